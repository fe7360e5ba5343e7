"""Tables of views in the same file: alone, or in one transaction with the offset; and copies of them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from everlog.errors import HandlerFailed, InvalidProjection
from everlog.projections.copies import Copies, decode_copies, encode_copies, rename
from everlog.projections.offsets import JournalNumber, Offset
from everlog.projections.port import ProjectionDeadLetter, View, ViewTransaction
from everlog.projections.save_window import OffsetProgress
from everlog.projections.sqlite.rows import SQL, bury, save_progress
from everlog.runtime.lease import Lease
from everlog.sqlite.connection import explain, is_fatal

T = TypeVar("T")
_SAVEPOINT = "everlog_envelope"
_SUFFIX = re.compile(r"__[0-9]+\Z")
_CONTROL = re.compile(
    r"(\s|--[^\n]*\n|/\*.*?\*/)*(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE)\b", re.IGNORECASE | re.DOTALL
)


class SqliteView(View):
    """Each statement is a transaction of its own."""

    def __init__(
        self,
        write: Callable[[Callable[[sqlite3.Connection], int]], Awaitable[int]],
        reader: sqlite3.Connection,
        path: Path,
        copies: Mapping[str, str] | None = None,
    ) -> None:
        self._write = write
        self._reader = reader
        self._path = path
        self._copies = copies

    async def execute(self, statement: str, *values: Any) -> int:
        text = rename(statement, self._copies)
        return await self._write(lambda connection: _run(connection, self._path, text, values).rowcount)

    async def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return _run(self._reader, self._path, rename(statement, self._copies), values).fetchall()


class SqliteOpenView(View):
    """Statements inside the transaction that also stores the offset."""

    def __init__(self, connection: sqlite3.Connection, path: Path, copies: Mapping[str, str] | None) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._path = path
        self._copies = copies

    def close(self) -> None:
        self._connection = None

    async def execute(self, statement: str, *values: Any) -> int:
        return _run(self._open(statement), self._path, rename(statement, self._copies), values).rowcount

    async def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return _run(self._open(statement), self._path, rename(statement, self._copies), values).fetchall()

    def _open(self, statement: str) -> sqlite3.Connection:
        if self._connection is None:
            raise HandlerFailed("this view was used after its handler had come back: await all it does inside")
        if _CONTROL.match(statement):
            raise HandlerFailed("a handler must not commit or roll back: the offset is stored in the same transaction")
        return self._connection


def _run(connection: sqlite3.Connection, path: Path, statement: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
    """The file in trouble is an error of ours; a wrong statement stays SQLite's own, for the handler to see."""
    try:
        return connection.execute(statement, values)
    except sqlite3.OperationalError as error:
        if is_fatal(error) and getattr(error, "sqlite_errorname", "SQLITE_ERROR") != "SQLITE_ERROR":
            raise explain(path, error) from error
        raise


class SqliteTransaction(ViewTransaction):
    """One transaction over view rows, offset and dead letters."""

    view: SqliteOpenView

    def __init__(
        self,
        connection: sqlite3.Connection,
        lease: Lease,
        path: Path,
        now_ms: int,
        copies: Mapping[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self._lease = lease
        self._now_ms = now_ms
        self.view = SqliteOpenView(connection, path, copies)

    def close(self) -> None:
        self.view.close()

    def savepoint(self, offset: Offset | None = None, numbered: JournalNumber | None = None) -> None:
        self._connection.execute(f"SAVEPOINT {_SAVEPOINT}")

    def keep(self) -> None:
        self._connection.execute(f"RELEASE {_SAVEPOINT}")

    def undo(self) -> None:
        self._connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
        self._connection.execute(f"RELEASE {_SAVEPOINT}")

    def save(self, progress: OffsetProgress) -> None:
        save_progress(self._connection, self._lease, progress, self._now_ms)

    def bury(self, letters: Sequence[ProjectionDeadLetter]) -> None:
        bury(self._connection, letters)

    def forget(self, letter: ProjectionDeadLetter) -> None:
        self._connection.execute(SQL["forget_letter"], (letter.name, letter.key, letter.offset))


def quoted(name: str) -> str:
    """A name as it stands in statements."""
    return '"' + name.replace('"', '""') + '"'


def read_copies(connection: sqlite3.Connection, name: str) -> Copies:
    """Which copies there are; this and what follows runs inside a transaction."""
    row = connection.execute(SQL["copies"], (name,)).fetchone()
    return Copies() if row is None else decode_copies(row[0])


def write_copies(connection: sqlite3.Connection, name: str, before: Copies, after: Copies) -> bool:
    if read_copies(connection, name) != before:
        return False
    connection.execute(SQL["put_copies"], (name, encode_copies(after)))
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
