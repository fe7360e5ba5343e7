"""The embedded store of documents keeps what every one promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from everlog.documents.port import Batch, DocumentStore
from everlog.documents.query_plan import IndexRange
from everlog.documents.sqlite.document_store import MAX_SCANS, SqliteDocuments
from everlog.errors import Busy
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


async def test_a_bounded_number_of_large_reads_wait(tmp_path):
    """Those of clients that have gone away, too: further ones are refused, small ones are not."""
    store, whole = SqliteDocuments(tmp_path), IndexRange("", None)

    async def read(limit: int) -> Batch:
        return await store.elements("c~", whole, reverse=False, limit=limit, max_bytes=1000)

    found = await asyncio.gather(*[read(10_000) for _ in range(MAX_SCANS + 1)], read(1), return_exceptions=True)
    assert [type(one) for one in found] == [*[Batch] * MAX_SCANS, Busy, Batch]
    assert (await read(10_000)).entries == []
    await store.close()
