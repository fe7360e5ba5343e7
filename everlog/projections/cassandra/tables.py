"""The tables of projections on Cassandra, made under the same lock as all others."""

from __future__ import annotations

from functools import partial

from everlog.cassandra.schema import Schema, keyspace_statements
from everlog.cassandra.session import Session
from everlog.errors import StorageFailed

PACKAGE = "everlog.projections.cassandra"

_COLUMNS = "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?"


projection_statements = partial(keyspace_statements, PACKAGE)


async def prepare_tables(session: Session) -> None:
    """Make what is missing. The keyspace and the tables of the journal come first: the lock is among them."""
    keyspace = session.config.keyspace
    creations = projection_statements(keyspace, "tables.cql") | projection_statements(keyspace, "columns.cql")
    if not await _missing(session, creations):
        return
    schema = Schema(session)
    await schema.prepare()
    missing = await _missing(session, creations)
    if missing and not session.config.create_schema:
        raise StorageFailed(
            f"the keyspace {session.config.keyspace} has no {', '.join(missing)}; set [cassandra] create_schema "
            "= true once, with a role that may create tables"
        )
    async with schema.locked() as lock:
        for name in await _missing(session, creations):
            await lock.change(creations[name])


async def _missing(session: Session, creations: dict[str, str]) -> list[str]:
    """Tables, and `table.column`. What a table that is made now has from the start is not missing afterwards."""
    rows = await session.fetch(_COLUMNS, session.config.keyspace.lower())
    found = {table for table, _ in rows} | {f"{table}.{column}" for table, column in rows}
    return [name for name in creations if name not in found]
