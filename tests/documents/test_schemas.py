"""JSON Schemas of documents: on the embedded store, over HTTP, and what a hostile one can do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlog.client import connect
from everlog.console.server import serving
from everlog.documents.api import Documents
from everlog.documents.port import DocumentStore
from everlog.documents.sqlite.document_store import SqliteDocuments
from everlog.testing.document_schemas import SchemaConformance, SchemaStoreConformance
from tests.support import small_config


class TestSqliteSchemas(SchemaStoreConformance):
    @pytest.fixture
    async def store(self, tmp_path) -> AsyncIterator[DocumentStore]:
        store = SqliteDocuments(tmp_path, synchronous="NORMAL")
        yield store
        await store.close()


class TestSchemas(SchemaConformance):
    @pytest.fixture(params=["embedded", "http"])
    async def docs(self, request, tmp_path) -> AsyncIterator[Documents]:
        async with connect(small_config(tmp_path / "data")) as local:
            if request.param == "embedded":
                yield local.documents
                return
            async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:
                yield remote.documents
