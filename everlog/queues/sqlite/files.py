"""The files of queues for one thread: connections, and transactions over all buckets of a queue.

Locks are taken from the oldest bucket to the newest and then on the main file, so that no two wait for each other.
Commits go the other way: the main file first, then from the newest bucket to the oldest. SQLite makes each of them
atomic, not all of them together; so what a crash between two leaves behind must be harmless:

* a dead letter, an entry of the history or a start that is counted, of a job that is still there: the job ends again,
  and is counted once more;
* a job that is in two buckets: the newer one lists it in `moved`, and the next writer deletes the older copy first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path

from everlog.errors import EverlogError, QueueNotFound, StorageFailed
from everlog.queues.sqlite.catalog import BLOCK, SQL, BucketFile, KnownQueue, MainFile
from everlog.runtime.failpoints import failpoint
from everlog.runtime.statements import load_statements
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import Connection, connect, transaction
from everlog.sqlite.migrations import migrate

BUCKET_PACKAGE = "everlog.queues.sqlite.bucket"
NAMES = (
    "id, jid, kh, ukey, priority, process_ms, inserted_ms, expires_s, data_date, schema_v, status, claimed_ms, "
    "start_ms, lease_ms, deadline_ms, timeouts, lifetime, token, owner, stop, stop_reason, attempts, slot, data, kind, "
    "grp"
)
COLUMNS = (
    "id, ukey, kh, priority, process_ms, inserted_ms, expires_s, data_date, schema_v, data, kind, grp, status, "
    "claimed_ms, start_ms, lease_ms, timeouts, lifetime, token, owner, slot, stop, stop_reason, attempts"
)
MARKS = ", ".join("?" * len(NAMES.split(", ")))
GROUPED = "_grouped"
_WAITING = "everlog_queue_item INDEXED BY everlog_queue_{} WHERE jid = ? AND status = 'W' AND grp {} ''"


def _load() -> dict[str, str]:
    """The statements by name; those on waiting jobs twice, as jobs with a group have an index of their own."""
    found: dict[str, str] = {}
    for name, text in load_statements(BUCKET_PACKAGE).items():
        whole = text.replace("{columns}", COLUMNS).replace("{names}", NAMES).replace("{marks}", MARKS)
        found[name] = whole.replace("{waiting}", _WAITING.format("plain", "="))
        if "{waiting}" in whole:
            found[name + GROUPED] = whole.replace("{waiting}", _WAITING.format("grouped", "<>"))
    return found


ITEM = _load()
MAX_RELOADS = 100


class _BucketGone(Exception):
    """A bucket was drained and removed since the list of buckets was read."""


class OpenBucket:
    """An open bucket."""

    def __init__(self, bucket: BucketFile, connection: Connection) -> None:
        self.bucket = bucket
        self.connection = connection
        self.changed = False

    def write(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        self.changed = True
        return self.connection.execute(ITEM[statement], values)

    def write_all(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if rows:
            self.changed = True
            self.connection.executemany(ITEM[statement], rows)


class BucketFiles:
    """Connections of one thread. `patient`: whether to wait for another process that writes, or to fail at once."""

    def __init__(
        self, folder: Path, *, synchronous: str = "FULL", patient: bool = True, trace: Trace | None = None
    ) -> None:
        self.folder = folder
        self._synchronous = synchronous
        self._patient = patient
        self._trace = trace
        self.main = MainFile(folder, synchronous=synchronous, patient=patient, trace=trace)
        self._opened: dict[str, OpenBucket] = {}
        self._entries: Iterator[int] = iter(())
        self._left = 0
        self._tentative = False
        self.rotated = False  # a transaction has opened a new bucket: those before it may be drained

    def known(self, name: str) -> KnownQueue | None:
        """The queue of that name, as of now."""
        self.main.refresh()
        return self.main.queues.get(name)

    def live(self, known: KnownQueue) -> list[OpenBucket]:
        """The buckets of a queue, from the oldest to the newest."""
        for _ in range(MAX_RELOADS):
            buckets = self.main.buckets.get(known.space, [])
            for file in [file for file, one in self._opened.items() if one.bucket.seq not in self.main.live]:
                self._opened.pop(file).connection.close()
            try:
                return [self._open(bucket, known) for bucket in buckets]
            except _BucketGone:
                self.main.forget()
                self.main.refresh()
        raise StorageFailed(f"{self.main.path} changes too often")

    def _open(self, bucket: BucketFile, known: KnownQueue) -> OpenBucket:
        found = self._opened.get(bucket.file)
        if found is not None and found.bucket.seq == bucket.seq:
            return found
        if found is not None:
            found.connection.close()
        path = self.path(bucket)
        try:
            connection = self._connect(bucket, path, known, create=bucket.foreign)
        except (EverlogError, sqlite3.Error) as error:
            if bucket.foreign:
                raise
            connection = self._create(bucket, path, known, error)
        opened = self._opened[bucket.file] = OpenBucket(bucket, connection)
        return opened

    def _create(self, bucket: BucketFile, path: Path, known: KnownQueue, error: Exception) -> Connection:
        """Make the file of a new bucket. One that was drained and removed must not be made again."""
        if not self.main.is_live(bucket):
            raise _BucketGone from error
        try:
            connection = self._connect(bucket, path, known, create=True)
        except (EverlogError, sqlite3.Error) as failed:
            if self.main.is_live(bucket):
                raise
            remove_file(path)  # it was removed while it was being opened
            raise _BucketGone from failed
        if not self.main.is_live(bucket):
            connection.close()
            remove_file(path)
            raise _BucketGone
        return connection

    def _connect(self, bucket: BucketFile, path: Path, known: KnownQueue, *, create: bool) -> Connection:
        connection = connect(path, synchronous=self._synchronous, create=create, trace=self._trace)
        try:
            if bucket.foreign:
                create_tables(connection)
            else:
                migrate(connection, path, BUCKET_PACKAGE)
            if not self._patient:
                connection.execute("PRAGMA busy_timeout = 0")  # only now: others may be making the same tables
            if not bucket.foreign:  # some builds of SQLite have it on: that costs time for nothing
                secure = "ON" if known.declaration.options.secure else "OFF"
                connection.execute(f"PRAGMA secure_delete = {secure}")
        except BaseException:
            connection.close()
            raise
        return connection

    def close_bucket(self, bucket: BucketFile) -> None:
        """Let go of a file that is about to be removed."""
        found = self._opened.get(bucket.file)
        if found is not None and found.bucket.seq == bucket.seq:
            self._opened.pop(bucket.file).connection.close()

    def remove(self, bucket: BucketFile) -> None:
        """Remove a file, then forget it: if the process dies in between, both are done again.

        Not the other way round: a file whose name is forgotten could become a new bucket, with what is left in it.
        """
        self.close_bucket(bucket)
        if not bucket.foreign:
            remove_file(self.path(bucket))
        failpoint("queue.remove")
        with transaction(self.main.connection):
            self.main.connection.execute(SQL["forget_bucket"], (bucket.seq,))
        self.main.forget()

    def path(self, bucket: BucketFile) -> Path:
        return Path(bucket.file) if bucket.foreign else self.main.path.parent / bucket.file

    @contextmanager
    def transaction(self, name: str, now: int) -> Iterator[tuple[KnownQueue, list[OpenBucket]]]:
        """Lock all buckets of a queue, the open one last; commit what was changed, or nothing."""
        known, buckets = self._lock(name, now)
        try:
            yield known, buckets
            self.commit(buckets)
        except BaseException:
            self.rollback(buckets)
            raise
        finally:
            for opened in buckets:
                opened.changed = False

    def _lock(self, name: str, now: int) -> tuple[KnownQueue, list[OpenBucket]]:
        """The locks are worth something only if the list of buckets is still the same when all are held."""
        for attempt in range(MAX_RELOADS):
            # What was known last will do at first: a look behind the locks says whether it is still so.
            known = self.main.queues.get(name)
            if attempt or known is None or not self.main.has_bucket(known, now):
                known = self.known(name)
                if known is None:
                    raise QueueNotFound(name, sorted(self.main.queues))
                self.rotated = self.main.open_bucket(known, now) or self.rotated
            buckets = self.live(known)
            begun: list[OpenBucket] = []
            try:
                for opened in buckets:
                    opened.connection.execute("BEGIN IMMEDIATE")
                    begun.append(opened)
                if not self.main.refresh() and self.main.queues.get(name) == known:
                    self._finish_moves(buckets)
                    return known, buckets
            except sqlite3.Error:
                self.rollback(begun)
                if all(self.main.is_live(opened.bucket) for opened in buckets):
                    raise
                self.main.forget()  # another process has removed a file under this one
                continue
            except BaseException:
                self.rollback(begun)
                raise
            self.rollback(begun)
        raise StorageFailed(f"{self.main.path} changes too often")

    def _finish_moves(self, buckets: list[OpenBucket]) -> None:
        """Delete the older copies of moved jobs; only when they are known to be gone is the note removed."""
        for at, newer in enumerate(buckets[1:], 1):
            moved = newer.connection.execute(ITEM["moved"]).fetchall()
            if not moved:
                continue
            left = 0
            for older in buckets[:at]:
                for (entry,) in moved:
                    if older.connection.execute(ITEM["exists"], (entry,)).fetchone():
                        older.write("delete", (entry,))
                        left += 1
            if not left:
                newer.write("clear_moved")

    def begin_main(self) -> Connection:
        """The main file, locked for writing: last of all."""
        if not self.main.connection.in_transaction:
            self.main.connection.execute("BEGIN IMMEDIATE")
        return self.main.connection

    def next_entry(self) -> int:
        """A number that no job ever had, in any queue."""
        if not self._left:
            self._tentative = self.main.connection.in_transaction
            self._entries, self._left = iter(self.main.reserve()), BLOCK
        self._left -= 1
        return next(self._entries)

    def commit(self, buckets: Sequence[OpenBucket]) -> None:
        """The main file first, then from the newest bucket to the oldest."""
        if self.main.connection.in_transaction:
            failpoint("queue.main")
            self.main.connection.execute("COMMIT")
            self.main.forget()
        self._tentative = False
        moved = sum(opened.changed for opened in buckets) > 1
        for opened in reversed(buckets):
            if opened.changed:
                failpoint("queue.bucket")
            opened.connection.execute("COMMIT")
            if moved and opened.changed and self._synchronous != "FULL":
                # The deletion of the older copy must not reach the disk before the newer one.
                opened.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        failpoint("queue.committed")

    def rollback(self, buckets: Sequence[OpenBucket]) -> None:
        """Undo everything, with the entry ids that were reserved on the way."""
        if self._tentative:
            self._left, self._tentative = 0, False
        for connection in [self.main.connection, *(opened.connection for opened in buckets)]:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        for opened in self._opened.values():
            opened.connection.close()
        self._opened.clear()
        self.main.connection.close()


def remove_file(path: Path) -> None:
    """Remove a bucket's file, and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


def create_tables(connection: sqlite3.Connection) -> None:
    """The tables of jobs in a file of the user's own, whose version number is not ours to set."""
    folder = resources.files(BUCKET_PACKAGE).joinpath("migrations")
    for name in sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql")):
        statement = ""
        for line in folder.joinpath(name).read_text().splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                try:
                    connection.execute(statement)
                except sqlite3.OperationalError as error:  # a column has no IF NOT EXISTS
                    if "duplicate column name" not in str(error):
                        raise
                statement = ""
