"""Connections to SQLite files: opening, errors that name the remedy, transactions, tracing."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from everlog.errors import Busy, DiskFull, EverlogError, NotWritable, StorageFailed
from everlog.runtime.trace import Trace

log = logging.getLogger("everlog.sqlite")

BUSY_S = 60.0
OPEN_AGAIN_S = 0.005


class TracedCursor(sqlite3.Cursor):
    """Reports every statement with its time."""

    def execute(self, sql: str, parameters: object = (), /) -> TracedCursor:
        return self._timed(sql, lambda: super(TracedCursor, self).execute(sql, parameters))  # type: ignore[arg-type]

    def executemany(self, sql: str, parameters: object, /) -> TracedCursor:
        return self._timed(sql, lambda: super(TracedCursor, self).executemany(sql, parameters))  # type: ignore[arg-type]

    def _timed(self, sql: str, run: Callable[[], object]) -> TracedCursor:
        started = time.perf_counter()
        run()
        trace = getattr(self.connection, "trace", None)
        if trace is not None:
            trace(" ".join(sql.split()), time.perf_counter() - started)
        return self


class Connection(sqlite3.Connection):
    """A connection whose statements can be watched."""

    trace: Trace | None = None

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        if self.trace is None:
            return super().execute(sql, parameters)  # type: ignore[arg-type]
        return self.cursor(TracedCursor).execute(sql, parameters)

    def executemany(self, sql: str, parameters: object, /) -> sqlite3.Cursor:
        if self.trace is None:
            return super().executemany(sql, parameters)  # type: ignore[arg-type]
        return self.cursor(TracedCursor).executemany(sql, parameters)


def connect(
    path: Path,
    *,
    synchronous: str = "FULL",
    cache_mib: int = 16,
    wal_pages: int = 1000,
    page_size: int = 4096,
    patient: bool = True,
    trace: Trace | None = None,
) -> Connection:
    """Open a file in WAL mode; transactions are explicit.

    `patient`: whether to wait for a file that another process writes, or to fail at once.
    `wal_pages`: how long the WAL gets before it is copied into the file and written from its beginning again. A
    short one is soon written over rather than extended, which makes small commits quick; a long one copies pages
    that every commit touches less often.
    """
    with translated(path):
        connection = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, factory=Connection
        )
        assert isinstance(connection, Connection)
        try:
            connection.execute(f"PRAGMA page_size = {page_size}")  # counts for a new file only
            _use_wal(connection)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA cache_size = -{cache_mib * 1024}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {wal_pages}")
            if not patient:
                connection.execute("PRAGMA busy_timeout = 0")  # opening itself may still have to wait
        except BaseException:
            connection.close()
            raise
        connection.trace = trace
        return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch a new file to WAL mode. SQLite does not wait for another opener that does the same, so we do."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(OPEN_AGAIN_S)


class translated:  # noqa: N801 (a statement, not a thing; a class costs a third of a generator, at every read)
    """Turn SQLite's errors into ours, which say what to do."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise explain(self._path, error) from error


def error_name(error: sqlite3.Error) -> str:
    """SQLite's own name of an error, such as SQLITE_FULL; empty if it is the module's, not SQLite's."""
    return getattr(error, "sqlite_errorname", None) or ""


def explain(path: Path, error: sqlite3.Error) -> EverlogError:
    """The error of ours that says what this one means."""
    name = error_name(error)
    text = str(error)
    if name.startswith("SQLITE_FULL"):
        return DiskFull(f"no space left for {path}: free some space and try again; nothing was stored")
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return NotWritable(f"{path} cannot be opened for writing ({text}): check the folder's owner and permissions")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Busy(f"{path} was locked by another process for {BUSY_S:.0f} s: try again")
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return StorageFailed(f"{path} is not a sound SQLite file ({text}): restore it from a copy")
    return StorageFailed(f"{path}: {text}")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process or thread holds a lock that we did not want to wait for."""
    return error_name(error).startswith("SQLITE_BUSY")


def is_fatal(error: sqlite3.Error) -> bool:
    """Whether the whole file is in trouble, not just the row that was being written."""
    name = error_name(error)
    return not name.startswith(("SQLITE_CONSTRAINT", "SQLITE_TOOBIG", "SQLITE_MISMATCH", "SQLITE_RANGE"))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One IMMEDIATE transaction: it holds the write lock from its beginning."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
