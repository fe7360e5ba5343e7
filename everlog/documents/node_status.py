"""The nodes as any process may look at them, also where no server runs."""

from __future__ import annotations

from everlog.documents.nodes import Node
from everlog.documents.sqlite.nodes import FILE, SqliteNodes
from everlog.journal.parts import JournalParts


async def read_nodes(parts: JournalParts) -> list[Node]:
    """The rows of all nodes, of dead ones too for a while; none where documents were never served."""
    if parts.config.cassandra is not None:
        from everlog.documents.cassandra.nodes import find_nodes

        return await find_nodes(parts.config.cassandra)
    if not (parts.config.folder / FILE).exists():
        return []
    table = SqliteNodes(parts.config.folder)
    try:
        return await table.nodes()
    finally:
        await table.close()
