"""The main file of all queues in a folder, and what is known of it: names, options, the list of bucket files."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from everlog.config import prepare_folder
from everlog.config.queue_options import BucketPeriod
from everlog.queues.declaration import Declaration, decode_declaration
from everlog.runtime.statements import load_statements
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import Connection, connect
from everlog.sqlite.migrations import migrate

FOLDER = "queues"
MAIN = "main.db"
PACKAGE = "everlog.queues.sqlite.main"
SQL = load_statements(PACKAGE)
BLOCK = 1000
HOUR_MS = 3_600_000


class KnownQueue(NamedTuple):
    """A queue."""

    jid: int
    declaration: Declaration
    paused: bool

    @property
    def space(self) -> str:
        """Which files it is in: its own, the shared ones, or one of the user's."""
        options = self.declaration.options
        if options.file is not None:
            return f"file:{options.file}"
        return f"shared-{options.bucket}" if options.placement == "shared" else self.own_space

    @property
    def version(self) -> int:
        """That of its files. Queues that share files have versions of their own, which their rows say."""
        return 1 if self.declaration.options.placement == "shared" else self.declaration.version

    @property
    def own_space(self) -> str:
        """Its files if it has its own. A queue that is deleted and made again has others: names never come back."""
        return f"queue-{self.declaration.name}-{self.jid}"


class DeletedQueue(NamedTuple):
    """A queue that is gone, but for what is to be removed from its files. `jobs`: how many it had."""

    known: KnownQueue
    jobs: int


class BucketFile(NamedTuple):
    """A file of jobs; the greater `seq`, the newer."""

    seq: int
    space: str
    file: str
    kind: str
    period_ms: int
    version: int

    @property
    def foreign(self) -> bool:
        """Whether it is a file of the user's own."""
        return self.space.startswith("file:")

    def serves(self, kind: str, period_ms: int, version: int) -> bool:
        """Whether new jobs may go here. A clock that goes back opens no older bucket."""
        return self.kind == kind and self.period_ms >= period_ms and self.version >= version


class MainFile:
    """A connection to the main file, and its contents as of the last look. Looking costs microseconds."""

    def __init__(self, folder: Path, *, synchronous: str, patient: bool, trace: Trace | None) -> None:
        self.path = folder / FOLDER / MAIN
        prepare_folder(self.path.parent, read=True)
        self.connection: Connection = connect(self.path, synchronous=synchronous, trace=trace)
        try:
            migrate(self.connection, self.path, PACKAGE)
            if not patient:
                self.connection.execute("PRAGMA busy_timeout = 0")  # only now: others may be making the same tables
        except BaseException:
            self.connection.close()
            raise
        self.queues: dict[str, KnownQueue] = {}
        self.buckets: dict[str, list[BucketFile]] = {}
        self.live: frozenset[int] = frozenset()
        self._version: int | None = None

    def refresh(self) -> bool:
        """Whether queues or buckets changed since the last look."""
        (version,) = self.connection.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return False
        self._version, before = version, (self.queues, self.buckets)
        rows = self.connection.execute(SQL["queues"])
        self.queues = {
            name: KnownQueue(jid, decode_declaration(declaration), bool(paused))
            for jid, name, declaration, paused in rows
        }
        self.buckets = {}
        for row in self.connection.execute(SQL["buckets"]):
            bucket = BucketFile(*row)
            self.buckets.setdefault(bucket.space, []).append(bucket)
        self.live = frozenset(bucket.seq for found in self.buckets.values() for bucket in found)
        return before != (self.queues, self.buckets)

    def forget(self) -> None:
        """Look again next time: SQLite does not tell a connection of its own changes."""
        self._version = None

    def open_bucket(self, known: KnownQueue, now: int) -> bool:
        """Make the bucket that new jobs go to at this moment, unless it is there.

        True if it was made and there are older ones: they take no more jobs now.
        """
        if self.has_bucket(known, now):
            return False
        options, version = known.declaration.options, known.version
        period_ms, label = period(options.bucket, now)
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            self.forget()
            self.refresh()
            now_known = self.queues.get(known.declaration.name)
            there = now_known is not None and now_known.jid == known.jid  # else it was deleted meanwhile
            if there and not self.has_bucket(known, now):
                file = options.file or self._new_file(
                    f"{known.space}.{label}" + (f"-v{version}" if version > 1 else "")
                )
                values = (known.space, file, options.bucket, period_ms, version)
                self.connection.execute(SQL["insert_bucket"], values)
            self.connection.execute("COMMIT")
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.forget()
        self.refresh()
        return len(self.buckets.get(known.space, [])) > 1

    def retired(self, space: str) -> list[BucketFile]:
        """Drained buckets whose files may still be there, the newest first."""
        return [BucketFile(*row) for row in self.connection.execute(SQL["retired_buckets"], (space,))]

    def deleted(self) -> list[DeletedQueue]:
        """Queues whose deletion is not finished."""
        return [
            DeletedQueue(KnownQueue(jid, decode_declaration(declaration), False), jobs)
            for jid, _, declaration, jobs in self.connection.execute(SQL["deleted"])
        ]

    def has_schedules(self, known: KnownQueue) -> bool:
        return self.connection.execute(SQL["has_schedules"], (known.jid,)).fetchone() is not None

    def is_live(self, bucket: BucketFile) -> bool:
        """Whether it is still in use, as of this moment."""
        return self.connection.execute(SQL["is_live"], (bucket.seq,)).fetchone() is not None

    def has_bucket(self, known: KnownQueue, now: int) -> bool:
        """Whether the bucket that new jobs go to at this moment was there at the last look."""
        buckets, kind = self.buckets.get(known.space), known.declaration.options.bucket
        return buckets is not None and buckets[-1].serves(kind, period(kind, now)[0], known.version)

    def _new_file(self, stem: str) -> str:
        """A name that no bucket has, not even a drained one."""
        file, number = f"{stem}.db", 1
        while self.connection.execute(SQL["file_taken"], (file,)).fetchone():
            number += 1
            file = f"{stem}-{number}.db"
        return file

    def reserve(self) -> range:
        """Entry ids that no other process gets. The caller holds the write lock, or needs none."""
        own = not self.connection.in_transaction
        if own:
            self.connection.execute("BEGIN IMMEDIATE")
        try:
            (first,) = self.connection.execute(SQL["next_entries"]).fetchone()
            self.connection.execute(SQL["reserve"], (BLOCK,))
        except BaseException:
            if own:
                self.connection.execute("ROLLBACK")
            raise
        if own:
            self.connection.execute("COMMIT")
        return range(first, first + BLOCK)


def period(bucket: BucketPeriod, now: int) -> tuple[int, str]:
    """When the period of a moment began, and its name. Periods are those of the calendar, in UTC.

    >>> period("day", 1_700_000_000_000)
    (1699920000000, '2023-11-14')
    """
    return _period(bucket, now // HOUR_MS)


@lru_cache(maxsize=100)
def _period(bucket: BucketPeriod, hour: int) -> tuple[int, str]:
    if bucket == "none":
        return 0, "all"
    start = datetime.fromtimestamp(hour * HOUR_MS // 1000, UTC)
    if bucket != "hour":
        start = start.replace(hour=0, day=1 if bucket == "month" else start.day)
    form = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}[bucket]
    return int(start.timestamp()) * 1000, start.strftime(form)
