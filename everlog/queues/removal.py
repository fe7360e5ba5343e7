"""Removing what waits in a queue: not done, not cancelled, gone without a trace."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from everlog.queues.operations import PurgeJobs
from everlog.queues.rows import JobRow
from everlog.queues.rules import is_overdue
from everlog.queues.table import QueueTable

END_OF_TIME_MS = 2**62


def purge(table: QueueTable, operation: PurgeJobs, now: int) -> int:
    """Remove jobs, at most about `limit` of them; how many. Fewer than `limit` means that no more are there.

    What waits goes: due or not, what waits behind a job that runs, and a job whose lease is over. A job that runs goes
    only if that is wanted; its worker then hears that it has lost its lease. Dead letters, the history and schedules
    stay.
    """
    count = 0
    for row in _leased(table):
        if count >= operation.limit:
            return count
        if operation.running or is_overdue(row, now):
            table.remove(row)
            count += 1 if row.slot is None else 2
        elif row.slot is not None:
            table.save(_without_successor(row), row)
            count += 1
    waiting = list(islice(table.page(None, now, operation.limit), operation.limit - count))
    for row in waiting:
        table.remove(row)
    return count + len(waiting)


def _leased(table: QueueTable) -> list[JobRow]:
    """All that is leased: every lease is over at the end of all time."""
    running = table.live_leases(0)
    return list(table.overdue(END_OF_TIME_MS, running)) if running else []


def _without_successor(row: JobRow) -> JobRow:
    """A job that was told to stop in favour of its successor goes on."""
    return replace(row, slot=None, stop=None if row.stop == "restart" else row.stop)
