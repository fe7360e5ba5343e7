"""What both SQLite files share: opening, errors with a remedy, named statements, migrations, tracing."""

from __future__ import annotations

import logging
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path

from everlog.errors import Busy, DiskFull, EverlogError, NewerVersion, NotWritable, StorageFailed

log = logging.getLogger("everlog.sqlite")

BUSY_SECONDS = 60.0
OPEN_AGAIN_SECONDS = 0.005
_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)

Trace = Callable[[str, float], None]


def load_statements(package: str, file: str = "statements.sql") -> dict[str, str]:
    """The blocks of a file, each under its line `-- name: …`."""
    parts = _NAME.split(resources.files(package).joinpath(file).read_text())
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


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
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, factory=Connection
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
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(OPEN_AGAIN_SECONDS)


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
        return Busy(f"{path} was locked by another process for {BUSY_SECONDS:.0f} s: try again")
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


def migrate(connection: sqlite3.Connection, path: Path, package: str) -> None:
    """Bring a file to this version's schema, in one transaction: two starters run each step once."""
    steps = _migrations(package)
    with translated(path):
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version < len(steps):
            with transaction(connection):
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                for number, step in enumerate(steps[version:], version + 1):
                    for statement in _split(step):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {number}")
                version = max(version, len(steps))
    if version > len(steps):
        raise NewerVersion(
            f"{path} has schema version {version}, this Everlog knows {len(steps)}: it was written by a newer "
            "version, upgrade this one (pip install --upgrade everlog)"
        )


@cache
def _migrations(package: str) -> list[str]:
    folder = resources.files(package).joinpath("migrations")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))
    return [folder.joinpath(name).read_text() for name in names]


def _split(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
