"""Does a view in Cassandra hold what its events add up to? Counted again into tables beside it, and compared.

The projection pauses meanwhile: unlike a file, tables cannot be copied as they are at one moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from everlog.journal.parts import Parts
from everlog.projections.cassandra.marks import COLUMN
from everlog.projections.copies import Difference, copy_name
from everlog.projections.projection import Projection
from everlog.projections.rebuild import clean
from everlog.projections.verify import Counted, count_again

if TYPE_CHECKING:
    from everlog.projections.cassandra.offset_store import CassandraOffsetStore

PAGE = 1000
_COLUMNS = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"


async def verify_tables(
    projection: Projection,
    store: CassandraOffsetStore,
    tables: Sequence[str],
    *,
    parts: Parts | None = None,
    told: Counted | None = None,
) -> list[Difference]:
    """Recount a view whose projection stands still, and compare these tables of it."""
    while True:
        seen = await clean(store, projection.name)
        number = seen.last + 1
        # Garbage from the start: whatever happens, the next command drops it.
        numbers, names = (*seen.garbage, number), {**seen.tables, number: tuple(tables)}
        after = replace(seen, last=number, garbage=numbers, tables=names)
        if await store.change_copies(projection.name, seen, after):
            break
    old, new = after.names(after.current), after.names(number)
    try:
        await store.copy_tables({old.get(table, table): copied for table, copied in new.items()})
        ends = {one.key: one.offset for one in await store.known(copy_name(projection.name, after.current))}
        await count_again(projection.as_copy(number, tables), store, ends, parts, told)
        return [await _compare(store, table, old.get(table.lower(), table), new[table.lower()]) for table in tables]
    finally:
        await clean(store, projection.name)


async def _compare(store: CassandraOffsetStore, table: str, view: str, recount: str) -> Difference:
    rows, again = await _rows(store, view), await _rows(store, recount)
    return Difference(table, rows.total(), (again - rows).total(), (rows - again).total())


async def _rows(store: CassandraOffsetStore, table: str) -> Counter[int]:
    """How often there is which row; a row is kept as a number, so that a large view fits."""
    session = store.session
    keyspace = session.config.keyspace.lower()
    columns = sorted(name for (name,) in await session.fetch(_COLUMNS, keyspace, table) if name != COLUMN)
    text = ", ".join(f'"{name}"' for name in columns)
    found: Counter[int] = Counter()
    async for page in session.pages(f'SELECT {text} FROM "{keyspace}"."{table}"', page=PAGE):
        found.update(hash(repr(row)) for row in page)
    return found
