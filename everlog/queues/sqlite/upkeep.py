"""Upkeep of bucket files: jobs that stayed too long move on, an empty bucket is put away, and in time removed."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence

from everlog.queues.sqlite.catalog import SQL, BucketFile, KnownQueue
from everlog.queues.sqlite.deletion import finish_deletions
from everlog.queues.sqlite.files import ITEM, BucketFiles, OpenBucket
from everlog.queues.sqlite.table import SqliteTable, row_from
from everlog.runtime.failpoints import failpoint

log = logging.getLogger("everlog.queues")

CARRY = 500


def tend(files: BucketFiles, known: KnownQueue, now: int) -> None:
    """Put away what is drained; carry the jobs of buckets beyond max_buckets into the open one; remove old files.

    What a deletion has left that was cut off goes, too, of whichever queue.
    """
    finish_deletions(files)
    name, options = known.declaration.name, known.declaration.options
    for seq in [opened.bucket.seq for opened in files.live(known)[:-1]]:
        _retire(files, name, now, seq)
    while len(_live(files, known)) > options.max_buckets:
        oldest = _live(files, known)[0].seq
        while _carry(files, name, now, oldest):
            pass
        if not _retire(files, name, now, oldest):
            break  # another process has put something back into it: next time
    # A bucket that is drained costs a file as long as it is kept, so that only the newest ones are.
    kept = 0 if options.on_empty == "delete" else max(0, options.max_buckets - len(_live(files, known)))
    for bucket in files.main.retired(known.space)[kept:]:
        files.remove(bucket)


def _live(files: BucketFiles, known: KnownQueue) -> list[BucketFile]:
    files.main.refresh()
    return files.main.buckets.get(known.space, [])


def _carry(files: BucketFiles, name: str, now: int, seq: int) -> bool:
    """Some jobs of the oldest bucket, if it is still that one; whether there may be more."""
    with files.transaction(name, now) as (known, buckets):
        if buckets[0].bucket.seq != seq or len(buckets) == 1:
            return False
        found = buckets[0].connection.execute(ITEM["some"], (CARRY,)).fetchall()
        for columns in found:
            row = row_from(columns)
            table = SqliteTable(files, known._replace(jid=columns[-1]), buckets)
            if table.get(row.entry) == row:
                table.refile(row, row)
        return len(found) == CARRY


def _retire(files: BucketFiles, name: str, now: int, seq: int) -> bool:
    """Take a bucket that is drained off the list, under all locks; then do with its file what the queue says.

    False if it is not drained.
    """
    with files.transaction(name, now) as (known, buckets):
        old = next((opened for opened in buckets[:-1] if opened.bucket.seq == seq), None)
        if old is None:
            return True
        if old.connection.execute(ITEM["any"]).fetchone():
            return False
        take_over_marks(files, [old])
        files.begin_main().execute(SQL["retire_bucket"], (seq,))
        failpoint("queue.retire")
    _put_away(files, known, old)
    return True


def take_over_marks(files: BucketFiles, buckets: Sequence[OpenBucket]) -> None:
    """Keep how far schedules are, of buckets that will no longer be read: in the transaction that takes them away."""
    for opened in buckets:
        for mark in opened.connection.execute(ITEM["all_marks"]).fetchall():
            files.begin_main().execute(SQL["take_over_mark"], (*mark, mark[0]))


def _put_away(files: BucketFiles, known: KnownQueue, old: OpenBucket) -> None:
    """The file is no longer read. If the process dies here, the file stays as it is until it is removed."""
    options = known.declaration.options
    log.info("%s: the bucket %s is drained: %s", known.declaration.name, old.bucket.file, options.on_empty)
    if options.on_empty == "delete":
        return
    try:
        if options.on_empty == "truncate":
            old.connection.execute("VACUUM")
        old.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error:
        if files.path(old.bucket).exists():  # else another process has removed it already
            raise
