"""The nodes of a folder: server processes that share it. In a file of their own, so that a beat waits for no write."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

from everlog.documents.nodes import Node, NodeState, NodeTable
from everlog.runtime.statements import load_statements
from everlog.sqlite.connection import connect, translated

FILE = "nodes.db"
SQL = load_statements("everlog.documents.sqlite", "nodes.sql")


class SqliteNodes(NodeTable):
    """The file `nodes.db` of a folder. What is in it lives as long as the servers: nothing waits for the disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._using = asyncio.Lock()
        self._connection: sqlite3.Connection | None = None

    async def nodes(self) -> list[Node]:
        rows = await self._run("nodes")
        return [Node(name, address, NodeState(state), *rest) for name, address, state, *rest in rows]

    async def save(self, node: Node) -> None:
        await self._run("save", node.id, node.address, str(node.state), node.beat, node.view, node.seen_ms)

    async def remove(self, node_id: str) -> None:
        await self._run("remove", node_id)

    async def _run(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        """In a thread: another process may have been stopped while it had the file."""
        async with self._using:
            return await asyncio.to_thread(self._execute, name, values)

    def _execute(self, name: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with translated(self.path):
            if self._connection is None:
                self._connection = connect(self.path, synchronous="OFF")
                self._connection.execute(SQL["create"])
            return self._connection.execute(SQL[name], values).fetchall()

    async def close(self) -> None:
        async with self._using:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
