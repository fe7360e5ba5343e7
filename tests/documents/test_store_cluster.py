"""Documents on Cassandra keep what every store of documents promises."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import msgspec
import pytest

from everlog.documents.cassandra.document_store import CassandraDocuments
from everlog.documents.ids import TransactionId
from everlog.documents.messages import KEPT_S, MESSAGE_MS
from everlog.documents.paths import partition_of_uri
from everlog.documents.port import DocumentStore
from everlog.store.cassandra.store import CassandraStore
from everlog.testing.document_batches import DocumentBatchConformance
from everlog.testing.document_messages import DocumentMessageConformance
from everlog.testing.documents import NOW, DocumentStoreConformance, name, write
from tests.fixtures.cluster import MakeConfig

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def keyspace() -> str:
    """One for all tests: making the tables takes longer than a test; each test has paths of its own."""
    return f"d{secrets.token_hex(5)}"


class TestCassandraDocuments(DocumentStoreConformance, DocumentMessageConformance, DocumentBatchConformance):
    @pytest.fixture
    async def store(self, shared_config: MakeConfig, keyspace: str) -> AsyncIterator[DocumentStore]:
        config = shared_config().cassandra
        assert config is not None
        config = msgspec.structs.replace(config, keyspace=keyspace)
        await (await CassandraStore.open(config)).close()  # as a user does: the keyspace comes with the journals
        store = await CassandraDocuments.open(config)
        yield store
        await store.close()

    async def test_completed_rows_are_forgotten_after_a_while(self, store: DocumentStore) -> None:
        """By themselves: they are completed with a time to live."""
        path = name("d")
        await write(store, "put", path, 1)
        (first,) = await store.pending(path, limit=10)
        await store.complete(path, [first], NOW)
        assert isinstance(store, CassandraDocuments)
        rows = await store._session.fetch(
            store._cql["transaction"].replace("completed_at", "TTL(event)", 1),
            TransactionId.parse(first.id).quantum,
            partition_of_uri(path),
            path,
            first.uuid,
        )
        assert 0 < rows[0][4] <= 7 * 86_400
        assert await store.forget(NOW + 1) == 0

    async def test_messages_that_nothing_asks_for_are_removed_in_steps(self, store: DocumentStore) -> None:
        """By themselves: they are stored with a time to live."""
        path = name("d")
        await write(store, "put", path, 1, message_id="m", remembered=True)
        assert isinstance(store, CassandraDocuments)
        cql = store._cql["state"].replace("row_revision", "TTL(body)", 1)
        rows = await store._session.fetch(cql, path, [0, 1, 2], ["", "m"])
        ends = {row[0]: row[3] for row in rows}
        assert ends[0] is ends[1] is None
        assert MESSAGE_MS / 1000 < ends[2] <= KEPT_S
        assert await store.forget_messages(NOW + MESSAGE_MS * 2) == 0

    test_many_writers_make_revisions_without_hole_or_double = pytest.mark.case("hyperstorage", 15)(
        DocumentStoreConformance.test_many_writers_make_revisions_without_hole_or_double
    )
