"""A view in a file is copied in one consistent state, counted again beside it, and compared.

The second run ends where that copy's offsets are. So the projection may go on meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from everlog.errors import InvalidProjection
from everlog.journal.parts import Parts
from everlog.projections.copies import Difference, copy_name, rename
from everlog.projections.projection import Projection
from everlog.projections.sqlite.view_copies import quoted
from everlog.projections.verify import Counted, count_again
from everlog.sqlite.connection import translated

if TYPE_CHECKING:
    from everlog.projections.sqlite.offset_store import SqliteOffsetStore


async def verify_file(
    projection: Projection,
    path: Path,
    tables: Sequence[str],
    *,
    open_store: type[SqliteOffsetStore],
    parts: Parts | None = None,
    told: Counted | None = None,
) -> list[Difference]:
    """Recount a view in the store of this file, and compare these tables of it."""
    with TemporaryDirectory(prefix="everlog-verify-") as folder:
        before, again = Path(folder) / "before.db", Path(folder) / "again.db"
        await asyncio.to_thread(_copy, path, before)
        stores = open_store(before), open_store(again, synchronous="OFF")
        names = await _recount(projection, stores, tables, parts, told)
        return await asyncio.to_thread(_compare, before, again, names)


def _copy(path: Path, target: Path) -> None:
    with translated(path), closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copied:
        source.backup(copied)


async def _recount(
    projection: Projection,
    stores: tuple[SqliteOffsetStore, SqliteOffsetStore],
    tables: Sequence[str],
    parts: Parts | None,
    told: Counted | None,
) -> dict[str, str]:
    """Run it again; the tables of the view as it is now, by the names that they have in the recount."""
    copied, fresh = stores
    try:
        copies = await copied.copies(projection.name)
        renamed = copies.names(copies.current)
        names = {table: renamed.get(table.lower(), table) for table in tables}
        for table, name in names.items():
            rows = await copied.view().fetch("SELECT sql FROM sqlite_master WHERE name = ? AND type = 'table'", name)
            if not rows:
                raise InvalidProjection(f"there is no table {table!r} in {projection.name}'s store")
            await fresh.view().execute(rename(rows[0][0], {name.lower(): table}))
        current = copy_name(projection.name, copies.current)
        ends = {one.key: one.offset for one in await copied.known(current)}
        await count_again(projection, fresh, ends, parts, told)
        return names
    finally:
        await copied.close()
        await fresh.close()


def _compare(before: Path, again: Path, names: Mapping[str, str]) -> list[Difference]:
    found: list[Difference] = []
    with translated(before), closing(sqlite3.connect(before)) as connection:
        connection.execute("ATTACH DATABASE ? AS again", (str(again),))
        for table, name in names.items():
            view, recount = f"main.{quoted(name)}", f"again.{quoted(table)}"
            columns = _columns(connection, view)
            (rows,) = connection.execute(f"SELECT count(*) FROM {view}").fetchone()
            missing, surplus = (
                connection.execute(
                    # Grouped, because a row may be there more than once.
                    f"SELECT count(*) FROM (SELECT *, count(*) FROM {one} GROUP BY {columns} "
                    f"EXCEPT SELECT *, count(*) FROM {other} GROUP BY {columns})"
                ).fetchone()[0]
                for one, other in ((recount, view), (view, recount))
            )
            found.append(Difference(table, rows, missing, surplus))
    return found


def _columns(connection: sqlite3.Connection, table: str) -> str:
    cursor = connection.execute(f"SELECT * FROM {table} LIMIT 0")
    return ", ".join(quoted(column[0]) for column in cursor.description)
