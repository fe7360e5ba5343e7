"""Keyspaces of tests: opened as a user does, or filled by hand, and dropped at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everlog.cassandra.session import Session, connect
from everlog.config import CassandraConfig
from everlog.runtime.trace import Trace
from everlog.store.cassandra.store import CassandraStore


@asynccontextmanager
async def opened(config: CassandraConfig, *, trace: Trace | None = None) -> AsyncIterator[CassandraStore]:
    """A store; its keyspace stays."""
    store = await CassandraStore.open(config, trace=trace)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def own_keyspace(config: CassandraConfig) -> AsyncIterator[Session]:
    """A session for statements by hand; its keyspace is dropped at the end."""
    session = await connect(config)
    try:
        yield session
    finally:
        await session.change_schema(f"DROP KEYSPACE IF EXISTS {config.keyspace}")
        await session.close()


async def contents(session: Session, *tables: str) -> dict[str, list[str]]:
    """All rows of these tables as JSON, with the write times of those that carry the log's."""
    found = {}
    for table in tables:
        time = {"metajournal": ", WRITETIME(offset)", "journal": ", WRITETIME(offset)"}.get(table, "")
        columns = "*" if not time else f"{await _columns(session, table)}{time}"
        rows = await session.fetch(f"SELECT JSON {columns} FROM {session.config.keyspace}.{table}")
        found[table] = sorted(row[0] for row in rows)
    return found


async def _columns(session: Session, table: str) -> str:
    rows = await session.fetch(
        "SELECT column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?",
        session.config.keyspace,
        table,
    )
    return ", ".join(sorted(name for (name,) in rows))
