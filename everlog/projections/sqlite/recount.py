"""A second count of a view in SQLite, in files beside the live one.

The live file is copied first, in one consistent state; so the projection may go on meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from everlog.errors import InvalidProjection
from everlog.projections.copies import Difference, rename
from everlog.projections.port import OffsetStore
from everlog.projections.sqlite.views import quoted
from everlog.sqlite.connection import translated


def copy_file(path: Path, target: Path) -> None:
    """The file as it is at one moment."""
    with translated(path), closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copied:
        source.backup(copied)


async def make_tables(copied: OffsetStore, fresh: OffsetStore, name: str, tables: Sequence[str]) -> dict[str, str]:
    """Empty tables for the recount; the tables of the view as it is now, by the names that they have there."""
    copies = await copied.copies(name)
    renamed = copies.names(copies.current)
    names = {table: renamed.get(table.lower(), table) for table in tables}
    for table, found in names.items():
        rows = await copied.view().fetch("SELECT sql FROM sqlite_master WHERE name = ? AND type = 'table'", found)
        if not rows:
            raise InvalidProjection(f"there is no table {table!r} in {name}'s store")
        await fresh.view().execute(rename(rows[0][0], {found.lower(): table}))
    return names


def compare_files(before: Path, again: Path, names: Mapping[str, str]) -> list[Difference]:
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
