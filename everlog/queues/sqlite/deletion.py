"""Deleting a queue: off the list in one step, then out of its files.

One transaction on the main file takes the queue off the list with all that the main file has of it, and leaves a note
of what is still in bucket files. It holds the locks of these, so each operation of others is done before, or finds no
queue. Then the files are cleared, some jobs at a time, or removed if they are the queue's own; then the note goes.
After a crash in between, the next deletion of that name finishes what is noted, and so does upkeep. No job of a deleted
queue is seen meanwhile: a queue of the same name that comes later has another number.
"""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from everlog.errors import EverlogError, JobsRunning, QueueNotFound
from everlog.queues.sqlite.catalog import SQL, KnownQueue
from everlog.queues.sqlite.files import ITEM, BucketFiles
from everlog.queues.sqlite.table import SqliteTable
from everlog.runtime.failpoints import failpoint
from everlog.sqlite.connection import transaction

log = logging.getLogger("everlog.queues")

CHUNK = 2000
# What the main file has of a queue; the queue itself comes last.
HELD = ("dead", "flags", "starts", "group_starts", "turns", "totals", "ended", "schedules", "queue")


def delete_queue(files: BucketFiles, name: str, now: int, *, running: bool) -> int:
    """Delete a queue; how many jobs it had. If an earlier deletion of it was cut off, that is finished."""
    left = finish_deletions(files, name)
    try:
        count, known = _take_off(files, name, now, running=running)
    except QueueNotFound:
        if left is None:
            raise
        return left
    failpoint("queue.deleted")
    _clear(files, known)
    return count


def finish_deletions(files: BucketFiles, name: str | None = None) -> int | None:
    """Remove what queues of this name have left; how many jobs they had, None if nothing was left.

    Without a name it is upkeep, of all queues: what cannot be removed now must not keep the rest from it.
    """
    found = [one for one in files.main.deleted() if name in (None, one.known.declaration.name)]
    for one in found:
        try:
            _clear(files, one.known)
        except (EverlogError, sqlite3.Error) as error:
            if name is not None:
                raise
            log.warning("what is left of the deleted queue %s stays: %s", one.known.declaration.name, error)
    return sum(one.jobs for one in found) if found else None


def _take_off(files: BucketFiles, name: str, now: int, *, running: bool) -> tuple[int, KnownQueue]:
    """The step after which there is no such queue."""
    with files.transaction(name, now) as (known, buckets):
        live = SqliteTable(files, known, buckets).live_leases(now)
        if live and not running:
            raise JobsRunning(name, live)
        counts = [opened.connection.execute(ITEM["count_of_queue"], (known.jid,)).fetchone() for opened in buckets]
        count = sum(found[0] for found in counts)
        main = files.begin_main()
        main.execute(SQL["note_deleted"], (count, known.jid))
        for rows in HELD:
            main.execute(SQL[f"delete_{rows}"], (known.jid,))
        main.execute(SQL["retire_space"], (known.own_space,))
        failpoint("queue.delete")
    return count, known


def _clear(files: BucketFiles, known: KnownQueue) -> None:
    """Remove what a deleted queue has left in files. It may be done again, also by two processes at once."""
    files.main.forget()
    files.main.refresh()
    for bucket in files.main.retired(known.own_space):
        files.remove(bucket)
    if known.space != known.own_space:
        _clear_rows(files, known)
    main = files.main
    with transaction(main.connection):
        main.forget()
        main.refresh()
        if known.space.startswith("file:") and all(other.space != known.space for other in main.queues.values()):
            main.connection.execute(SQL["forget_space"], (known.space,))  # the file itself is its owner's
        main.connection.execute(SQL["forget_deleted"], (known.jid,))
    main.forget()


def _clear_rows(files: BucketFiles, known: KnownQueue) -> None:
    """From the oldest bucket to the newest, as upkeep moves jobs: none is missed, unless a bucket was opened."""
    file = known.declaration.options.file
    if file is not None and not Path(file).exists():
        return  # its owner has removed it, and with it all that is to be cleared
    cleared = None
    while cleared != (found := files.main.buckets.get(known.space, [])):
        cleared = found
        for opened in files.live(known):
            while opened.connection.execute(ITEM["delete_of_queue"], (known.jid, CHUNK)).rowcount == CHUNK:
                failpoint("queue.cleared")
            opened.connection.execute(ITEM["delete_marks"], (known.jid,))
        files.main.refresh()
