"""The tables of documents, made once, under the lock that guards all tables of the keyspace."""

from __future__ import annotations

from functools import partial

from everlog.cassandra.schema import Schema, keyspace_statements
from everlog.cassandra.session import Session
from everlog.errors import StorageFailed

PACKAGE = "everlog.documents.cassandra"
_TABLES = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"


statements = partial(keyspace_statements, PACKAGE)


async def prepare_tables(session: Session) -> None:
    """Make the tables that are missing. The keyspace is there: the store of journals was opened before."""
    keyspace = session.config.keyspace.lower()
    wanted = statements(keyspace, "tables.cql")

    async def missing() -> list[str]:
        known = {name for (name,) in await session.fetch(_TABLES, keyspace)}
        return [name for name in wanted if name not in known]

    if not await missing():
        return
    if not session.config.create_schema:
        raise StorageFailed(
            f"the keyspace {keyspace} has no tables for documents; set [cassandra] create_schema = true once, with a "
            "role that may create tables"
        )
    async with Schema(session).locked() as lock:
        for name in await missing():
            await lock.change(wanted[name])
