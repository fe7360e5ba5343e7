"""The embedded store of documents keeps what every one promises."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from everlog.documents.port import DocumentStore
from everlog.documents.sqlite.document_store import SqliteDocuments
from everlog.testing.document_batches import DocumentBatchConformance
from everlog.testing.document_messages import DocumentMessageConformance
from everlog.testing.documents import DocumentStoreConformance


class TestSqliteDocuments(DocumentStoreConformance, DocumentMessageConformance, DocumentBatchConformance):
    @pytest.fixture
    async def store(self, tmp_path) -> AsyncIterator[DocumentStore]:
        store = SqliteDocuments(tmp_path, synchronous="NORMAL")
        yield store
        await store.close()

    test_many_writers_make_revisions_without_hole_or_double = pytest.mark.case("hyperstorage", 15)(
        DocumentStoreConformance.test_many_writers_make_revisions_without_hole_or_double
    )
    test_writes_during_a_build_are_in_the_index = pytest.mark.case("hyperstorage", 54)(
        DocumentStoreConformance.test_writes_during_a_build_are_in_the_index
    )
