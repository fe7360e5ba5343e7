"""Upkeep of bucket files: jobs that stayed too long move on, an empty bucket is put away."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from everlog.queues.sqlite.catalog import SQL, KnownQueue
from everlog.queues.sqlite.files import ITEM, BucketFiles, OpenBucket
from everlog.queues.sqlite.table import SqliteTable, row_from
from everlog.runtime.failpoints import failpoint

log = logging.getLogger("everlog.queues")

CARRY = 500


def tend(files: BucketFiles, known: KnownQueue, now: int) -> None:
    """Carry the jobs of buckets beyond max_buckets into the open one; put away what is drained."""
    name = known.declaration.name
    while _carry(files, name, now):
        pass
    for seq in [opened.bucket.seq for opened in files.live(known)[:-1]]:
        _retire(files, name, now, seq)


def _carry(files: BucketFiles, name: str, now: int) -> bool:
    """Some jobs of the oldest bucket, if there are too many buckets; whether there may be more."""
    with files.transaction(name, now) as (known, buckets):
        if len(buckets) <= known.declaration.options.max_buckets:
            return False
        found = buckets[0].connection.execute(ITEM["some"], (CARRY,)).fetchall()
        for columns in found:
            row = row_from(columns)
            table = SqliteTable(files, known._replace(jid=columns[-1]), buckets)
            if table.get(row.entry) == row:
                table.refile(row, row)
        return len(found) == CARRY


def _retire(files: BucketFiles, name: str, now: int, seq: int) -> None:
    """Take a bucket that is drained off the list, under all locks; then do with its file what the queue says."""
    with files.transaction(name, now) as (known, buckets):
        old = next((opened for opened in buckets[:-1] if opened.bucket.seq == seq), None)
        if old is None or old.connection.execute(ITEM["any"]).fetchone():
            return
        take_over_marks(files, [old])
        files.begin_main().execute(SQL["retire_bucket"], (seq,))
        failpoint("queue.retire")
    _put_away(files, known, old)


def take_over_marks(files: BucketFiles, buckets: Sequence[OpenBucket]) -> None:
    """Keep how far schedules are, of buckets that will no longer be read: in the transaction that takes them away."""
    for opened in buckets:
        for mark in opened.connection.execute(ITEM["all_marks"]).fetchall():
            files.begin_main().execute(SQL["take_over_mark"], (*mark, mark[0]))


def _put_away(files: BucketFiles, known: KnownQueue, old: OpenBucket) -> None:
    """The file is no longer read. If the process dies here, the file stays as it is: that costs disk only."""
    options = known.declaration.options
    path = files.path(old.bucket)
    log.info("%s: the bucket %s is drained: %s", known.declaration.name, path.name, options.on_empty)
    if options.on_empty == "delete":
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).unlink()
        return
    if options.on_empty == "truncate":
        old.connection.execute("VACUUM")
    old.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
