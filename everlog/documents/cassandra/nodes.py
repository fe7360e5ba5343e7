"""The nodes of a cluster: servers that share a keyspace. A row that its node does not renew ends by itself."""

from __future__ import annotations

from everlog.cassandra.session import Session, connect
from everlog.config import CassandraConfig
from everlog.documents.cassandra.tables import DOCUMENT_TABLES
from everlog.documents.nodes import Node, NodeState, NodeTable

ROW_TTL_S = 3600
_TABLE = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = 'document_node'"


class CassandraNodes(NodeTable):
    """Rows of the table `document_node`, by the session of the documents."""

    def __init__(self, session: Session, cql: dict[str, str]) -> None:
        self._session = session
        self._cql = cql

    async def nodes(self) -> list[Node]:
        rows = await self._session.fetch(self._cql["nodes"])
        return [Node(name, address, NodeState(state), *rest) for name, address, state, *rest in rows]

    async def save(self, node: Node) -> None:
        values = (node.id, node.address, str(node.state), node.beat, node.view, node.seen_ms)
        await self._session.write(self._cql["save_node"], *values, ROW_TTL_S)

    async def remove(self, node_id: str) -> None:
        await self._session.write(self._cql["remove_node"], node_id)

    async def close(self) -> None:
        """The documents close their session."""


async def find_nodes(config: CassandraConfig) -> list[Node]:
    """The nodes of a keyspace; none if it has no documents."""
    session = await connect(config)
    try:
        if not await session.fetch(_TABLE, config.keyspace.lower()):
            return []
        return await CassandraNodes(session, DOCUMENT_TABLES.statements(config.keyspace)).nodes()
    finally:
        await session.close()
