"""Schemas on Kafka and Cassandra do what those in a folder do."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import msgspec
import pytest

from everlog.client import connect
from everlog.documents.api import Documents
from everlog.documents.cassandra.document_store import CassandraDocuments
from everlog.documents.port import DocumentStore
from everlog.store.cassandra.store import CassandraStore
from everlog.testing.document_schemas import SchemaConformance, SchemaStoreConformance
from tests.fixtures.cluster import MakeConfig

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def keyspace() -> str:
    """One for all tests: making the tables takes longer than a test; each test has names of its own."""
    return f"s{secrets.token_hex(5)}"


class TestCassandraSchemas(SchemaStoreConformance):
    @pytest.fixture
    async def store(self, shared_config: MakeConfig, keyspace: str) -> AsyncIterator[DocumentStore]:
        config = shared_config().cassandra
        assert config is not None
        config = msgspec.structs.replace(config, keyspace=keyspace)
        await (await CassandraStore.open(config)).close()  # as a user does: the keyspace comes with the journals
        store = await CassandraDocuments.open(config)
        yield store
        await store.close()


class TestSchemasOnACluster(SchemaConformance):
    @pytest.fixture
    async def docs(self, shared_config: MakeConfig, keyspace: str) -> AsyncIterator[Documents]:
        config = shared_config()
        assert config.cassandra is not None
        config = msgspec.structs.replace(config, cassandra=msgspec.structs.replace(config.cassandra, keyspace=keyspace))
        async with connect(config) as log:
            yield log.documents
