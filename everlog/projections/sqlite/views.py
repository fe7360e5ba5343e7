"""Tables of views in the same file: alone, or in one transaction with the offset."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from everlog.errors import HandlerFailed
from everlog.projections.copies import rename
from everlog.projections.offsets import Offset
from everlog.projections.port import ProjectionDeadLetter, View, ViewTransaction
from everlog.projections.save_window import OffsetProgress
from everlog.projections.sqlite.rows import SQL, bury, save_progress
from everlog.runtime.lease import Lease
from everlog.sqlite.connection import explain, is_fatal

T = TypeVar("T")
_SAVEPOINT = "everlog_envelope"
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

    def savepoint(self, offset: Offset | None = None) -> None:
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
