"""Connections to SQLite files: opening, errors that name the remedy, transactions, tracing."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import WeakValueDictionary

from everlog.config.private import make_file
from everlog.errors import Busy, DiskFull, EverlogError, ForkedProcess, NotWritable, StorageFailed
from everlog.runtime.process import PROCESS
from everlog.runtime.trace import Trace

log = logging.getLogger("everlog.sqlite")

MEMORY = Path(":memory:")  # not a file

BUSY_S = 60.0
OPEN_AGAIN_S = 0.005
# How SQLite says that files cannot be made next to the one that is opened, or that it cannot be written.
_REFUSED = ("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")


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
    """A connection whose statements can be watched, and that no fork of its process uses."""

    trace: Trace | None = None
    path: Path
    pid: int

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        if self.pid != PROCESS.pid:
            raise ForkedProcess(str(self.path), self.pid)
        if self.trace is None:
            return super().execute(sql, parameters)  # type: ignore[arg-type]
        return self.cursor(TracedCursor).execute(sql, parameters)

    def executemany(self, sql: str, parameters: object, /) -> sqlite3.Cursor:
        if self.pid != PROCESS.pid:
            raise ForkedProcess(str(self.path), self.pid)
        if self.trace is None:
            return super().executemany(sql, parameters)  # type: ignore[arg-type]
        return self.cursor(TracedCursor).executemany(sql, parameters)

    def close(self) -> None:
        if self.pid == PROCESS.pid:
            _opened.pop(id(self), None)
            super().close()


C = TypeVar("C", bound=Connection)
# Those that were not closed, by their identity. No lock guards it, because a fork might inherit one that is held.
_opened: WeakValueDictionary[int, Connection] = WeakValueDictionary()


def connect(
    path: Path,
    *,
    synchronous: str = "FULL",
    cache_mib: int = 16,
    wal_pages: int = 1000,
    page_size: int = 4096,
    patient: bool = True,
    create: bool = True,
    trace: Trace | None = None,
) -> Connection:
    """Open a file in WAL mode; transactions are explicit.

    `create`: whether to make a file that is not there, or to fail.
    `patient`: whether to wait for a file that another process writes, or to fail at once.
    `wal_pages`: how long the WAL gets before it is copied into the file and written from its beginning again. A
    short one is soon written over rather than extended, which makes small commits quick; a long one copies pages
    that every commit touches less often.

    A file that this process may not write is opened for reading: writes then raise NotWritable.
    """
    with translated(path):
        target = str(path) if create else f"file:{quote(str(path.absolute()))}?mode=rw"
        connection = _open(path, target, Connection, create=create)
        try:
            connection.execute(f"PRAGMA page_size = {page_size}")  # counts for a new file only
            _use_wal(connection)
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute(f"PRAGMA cache_size = -{cache_mib * 1024}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {wal_pages}")
            if not patient:
                connection.execute("PRAGMA busy_timeout = 0")  # opening itself may still have to wait
        except sqlite3.Error as error:
            connection.close()
            if not error_name(error).startswith(_REFUSED) or not path.exists():
                raise
            connection = open_unchanging(path)
        except BaseException:
            connection.close()
            raise
        connection.trace = trace
        return connection


def _open(path: Path, target: str, kind: type[C], *, create: bool = False) -> C:
    """Open a file, unless a process had it open when this one was forked from it.

    SQLite keeps one note per file of the locks that its process holds. A fork inherits the note without the locks: it
    would believe to hold them, and lose what it writes as soon as the other process removes the WAL.
    """
    place = Path(os.path.realpath(path))  # through links, too
    for reference in _opened.valuerefs():
        other = reference()
        if other is not None and other.pid != PROCESS.pid and other.path == place:
            raise ForkedProcess(str(path), other.pid)
    if create and path != MEMORY:
        # The files beside it, -wal and -shm, get the mode that it has.
        with suppress(OSError):  # SQLite says better what is wrong with the place
            make_file(path)
    connection = sqlite3.connect(
        target,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
        factory=kind,
        uri=target.startswith("file:"),
    )
    assert isinstance(connection, kind)
    connection.path, connection.pid = place, PROCESS.pid
    _opened[id(connection)] = connection
    return connection


class UnchangingCursor(TracedCursor):
    """Rows of a file that did not change while they were read."""

    connection: UnchangingConnection

    def fetchone(self) -> Any:
        found = super().fetchone()
        self.connection.check()
        return found

    def fetchall(self) -> list[Any]:
        found = super().fetchall()
        self.connection.check()
        return found

    def __next__(self) -> Any:
        try:
            return super().__next__()
        finally:
            self.connection.check()  # also where the rows seem to end


class UnchangingConnection(Connection):
    """Reads a file in a folder where this process may not make the files by which readers and writers find each other.

    So it cannot see what others write from now on. It looks whether they do, before and after it reads.
    """

    found: object

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        self.check()
        return self.cursor(UnchangingCursor).execute(sql, parameters)

    def check(self) -> None:
        """Raise unless the file is as it was when it was opened."""
        if _look(self.path) != self.found:
            raise StorageFailed(
                f"another process began to write to {self.path}, and this one has no right to follow it there: "
                "connect again"
            )


def open_unchanging(path: Path) -> UnchangingConnection:
    """Open a file that no process writes now, and that this one may not write."""
    found = _look(path)
    if found[0]:
        raise NotWritable(
            f"{path} has changes in {path.name}-wal that only a process with the right to write into the folder can "
            "read: open it once as such, or copy the folder and open the copy"
        )
    connection = _open(path, f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", UnchangingConnection)
    connection.found = found
    return connection


def _look(path: Path) -> tuple[int, int, int]:
    """How much waits in the WAL, and what changes when the file itself does."""
    try:
        waiting = path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:
        waiting = 0
    found = path.stat()
    return waiting, found.st_mtime_ns, found.st_ino


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
    if name.startswith(_REFUSED):
        return NotWritable(f"{path} cannot be opened for writing ({text}): check the folder's owner and permissions")
    if name.startswith("SQLITE_BUSY_SNAPSHOT"):
        return Busy(
            f"this transaction on {path} has read what another process changed since, so it cannot write any more: "
            "roll back, and begin again with BEGIN IMMEDIATE"
        )
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
