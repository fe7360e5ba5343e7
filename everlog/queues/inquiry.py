"""What is known of one job, and what keeps it from starting: questions to a table, which change nothing.

The causes are told where they are exact: at the table, at one moment, by the same limits that a claim goes by. Who
listens in other processes is not known, so an absent worker shows only in that nothing runs though something could.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from everlog.config.queue_options import QueueSettings
from everlog.queues import rules
from everlog.queues.operations import FoundJob, WaitCause
from everlog.queues.rows import PROCESSING, DeadLetter, JobRow
from everlog.queues.table import QueueTable

# So many jobs before one are counted, and no more.
MAX_AHEAD = 1000
MAX_ENDS = 16

InOrder = Callable[[int, int], Iterator[JobRow]]
"""Claimable rows, the first one first; of each priority at most so many, at this moment."""


def find_job(table: QueueTable, settings: QueueSettings, entry: int, now: int, in_order: InOrder) -> FoundJob:
    """All that the table has under a number."""
    row = table.get(entry)
    if row is not None and _is_gone(row, now):
        row = None
    letter = table.dead(entry)
    if letter is not None and not _is_kept(letter, now, settings):
        letter = None
    oldest = now - settings.keep_done_ms
    ended = tuple(one for one in table.ended_of(entry, MAX_ENDS) if one.ended_ms > oldest)
    waits = row is not None and (row.status != PROCESSING or rules.is_overdue(row, now))
    causes = tuple(_causes(table, settings, row, now, in_order)) if row is not None and waits else ()
    return FoundJob(now, row, letter, ended, causes)


def _is_gone(row: JobRow, now: int) -> bool:
    """Whether it only waits to be swept. One that runs goes on, even if it has expired since."""
    return rules.is_expired(row.image, now) and (row.status != PROCESSING or rules.is_overdue(row, now))


def _is_kept(letter: DeadLetter, now: int, settings: QueueSettings) -> bool:
    return letter.dead_ms > now - settings.dead_letter_ttl_ms


def _causes(
    table: QueueTable, settings: QueueSettings, row: JobRow, now: int, in_order: InOrder
) -> Iterator[WaitCause]:
    """What a claim would go by, in its order: a pause, the lease, the date, the limits, the others."""
    if table.paused():
        yield WaitCause("paused")
    if row.status == PROCESSING:
        yield WaitCause("overdue", until_ms=row.deadline_ms)
    elif row.image.process_ms > now:
        yield WaitCause("not_due", until_ms=row.image.process_ms)
        return
    if table.paused():
        return
    running = table.live_leases(now)
    held = list(_limits(table, settings, running, now))
    yield from held
    if settings.slow_threshold is not None and row.image.priority >= settings.slow_threshold:
        yield WaitCause("slow", settings.slow_threshold)
    ahead = _ahead(row, in_order(MAX_AHEAD, now))
    if ahead:
        yield WaitCause("behind", ahead)
    if not held and not running:
        yield WaitCause("unclaimed")
    elif not held and not ahead:
        yield WaitCause("next")


def _limits(table: QueueTable, settings: QueueSettings, running: int, now: int) -> Iterator[WaitCause]:
    """The limits of the whole queue that allow no start now."""
    if settings.max_in_flight is not None and running >= settings.max_in_flight:
        yield WaitCause("in_flight", settings.max_in_flight)
    rate = settings.rate_limit
    if rate is not None:
        starts = table.starts(now - rate.window_ms)
        if len(starts) >= rate.count:
            yield WaitCause("rate", rate.count, starts[len(starts) - rate.count] + rate.window_ms)


def _ahead(row: JobRow, ordered: Iterator[JobRow]) -> int:
    """How many come before it. An overdue row is not in order yet: its place among the others is known."""
    count = 0
    for other in islice(ordered, MAX_AHEAD):
        if other.entry == row.entry or (row.status == PROCESSING and other.order > row.order):
            break
        count += 1
    return count
