"""Copies of a view in SQLite: which there are, and tables like others. Each function runs inside a transaction."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping

import msgspec

from everlog.errors import InvalidProjection
from everlog.projections.copies import Copies, rename
from everlog.projections.sqlite.rows import SQL

_SUFFIX = re.compile(r"__[0-9]+\Z")


def quoted(name: str) -> str:
    """A name as it stands in statements."""
    return '"' + name.replace('"', '""') + '"'


def read_copies(connection: sqlite3.Connection, name: str) -> Copies:
    row = connection.execute(SQL["copies"], (name,)).fetchone()
    return Copies() if row is None else msgspec.json.decode(row[0], type=Copies)


def write_copies(connection: sqlite3.Connection, name: str, before: Copies, after: Copies) -> bool:
    if read_copies(connection, name) != before:
        return False
    connection.execute(SQL["put_copies"], (name, msgspec.json.encode(after).decode()))
    return True


def copy_table(connection: sqlite3.Connection, table: str, new: str, copies: Mapping[str, str]) -> None:
    """An empty table like this one, with its indexes and triggers, unless it is there."""
    rows = connection.execute(SQL["defined"], (table,)).fetchall()
    if not any(kind == "table" for kind, _, _ in rows):
        raise InvalidProjection(f"there is no table {table!r} in the store")
    columns = connection.execute(f"SELECT * FROM {quoted(table)} LIMIT 0").description
    if any(column[0].lower() in {_SUFFIX.sub("", one.lower()) for one in copies} for column in columns):
        raise InvalidProjection(f"a column of {table} has the name of a table of this view: rename it")
    if connection.execute(SQL["defined"], (new,)).fetchall():
        return
    suffix = _SUFFIX.search(new)
    assert suffix is not None
    others = [name for kind, name, _ in rows if kind != "table"]
    names = {table.lower(): one for table, one in copies.items()}
    names |= {name.lower(): _SUFFIX.sub("", name) + suffix[0] for name in others}
    for _, _, text in rows:
        connection.execute(rename(text, names))
