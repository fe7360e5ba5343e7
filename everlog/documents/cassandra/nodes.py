"""The nodes of a cluster: servers that share a keyspace. The row of a server that stops without removing it expires."""

from __future__ import annotations

from everlog.cassandra.session import Session
from everlog.documents.cassandra.schema import statements
from everlog.documents.nodes import Node, NodeState, NodeTable

KEPT_S = 3600
_TABLE = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = 'document_node'"


class CassandraNodes(NodeTable):
    """Rows of the table `document_node`. The session is the document store's."""

    def __init__(self, session: Session, cql: dict[str, str]) -> None:
        self._session = session
        self._cql = cql

    async def nodes(self) -> list[Node]:
        rows = await self._session.fetch(self._cql["nodes"])
        return [Node(name, address, NodeState(state), *rest) for name, address, state, *rest in rows]

    async def save(self, node: Node) -> None:
        values = (node.id, node.address, str(node.state), node.beat, node.view, node.seen_ms)
        await self._session.write(self._cql["save_node"], *values, KEPT_S)

    async def remove(self, node_id: str) -> None:
        await self._session.write(self._cql["remove_node"], node_id)

    async def close(self) -> None:
        """The session goes with the documents."""


async def find_nodes(session: Session) -> list[Node]:
    """The nodes of a keyspace; none if it has no documents."""
    keyspace = session.config.keyspace
    if not await session.fetch(_TABLE, keyspace.lower()):
        return []
    return await CassandraNodes(session, statements(keyspace)).nodes()
