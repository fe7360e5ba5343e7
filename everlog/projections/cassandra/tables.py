"""The tables of projections, and tables like others for the copies of a view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everlog.cassandra.schema import TableSet, locked, quoted
from everlog.cassandra.session import CassandraRow, Session
from everlog.errors import InvalidProjection

PROJECTION_TABLES = TableSet(
    "projections",
    "everlog.projections.cassandra",
    migrations="migrations.cql",
    shared=("offset_store", "projection_management"),
)

_DEFINED = (
    "SELECT column_name, kind, position, type, clustering_order FROM system_schema.columns "
    "WHERE keyspace_name = ? AND table_name = ?"
)


async def copy_tables(session: Session, copies: Mapping[str, str]) -> None:
    """Empty tables with the columns and keys of these. Options and indexes are not copied."""
    keyspace = session.config.keyspace.lower()
    async with locked(session) as lock:
        for table, new in copies.items():
            rows = await session.fetch(_DEFINED, keyspace, table)
            if not rows:
                raise InvalidProjection(f"there is no table {table!r} in the keyspace {keyspace}")
            await lock.change(_creation(keyspace, new, rows))


async def drop_tables(session: Session, tables: Sequence[str]) -> None:
    if not tables:
        return
    async with locked(session) as lock:
        for table in tables:
            await lock.change(f'DROP TABLE IF EXISTS {quoted(session.config.keyspace)}."{table}"')


def _creation(keyspace: str, table: str, rows: Sequence[CassandraRow]) -> str:
    """An empty table with these columns: (name, kind, place in the key, type, order)."""

    def names(kind: str) -> list[tuple[str, str]]:
        return [(f'"{row[0]}"', row[4]) for row in sorted(rows, key=lambda row: row[2]) if row[1] == kind]

    columns = [f'"{name}" {kind}{" STATIC" if what == "static" else ""}' for name, what, _, kind, _ in rows]
    key = f"({', '.join(name for name, _ in names('partition_key'))})"
    clustering = names("clustering")
    primary = ", ".join([key, *(name for name, _ in clustering)])
    order = ", ".join(f"{name} {how}" for name, how in clustering)
    text = f'CREATE TABLE IF NOT EXISTS "{keyspace}"."{table}" ({", ".join(columns)}, PRIMARY KEY ({primary}))'
    return f"{text} WITH CLUSTERING ORDER BY ({order})" if order else text
