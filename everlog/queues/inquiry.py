"""What is known of one job, and what keeps it from starting: questions to a table, which change nothing.

The causes are told where they are exact: at the table, at one moment, by the same limits that a claim goes by. Who
listens in other processes is not known, so an absent worker shows only in that nothing runs though something could.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from everlog.config.queue_options import QueueSettings
from everlog.queues import rules
from everlog.queues.claim_order import ClaimOrder
from everlog.queues.operations import FoundJob, WaitCause
from everlog.queues.rows import PROCESSING, DeadLetter, JobRow
from everlog.queues.table import QueueTable

# So many jobs before one are counted, and no more.
MAX_AHEAD = 1000
MAX_ENDS = 16


def find_job(table: QueueTable, settings: QueueSettings, entry: int, now: int, *, unswept: int) -> FoundJob:
    """All that the table has under a number. `unswept`: how many overdue rows a claim turns over first."""
    row = table.get(entry)
    if row is not None and _is_gone(row, now):
        row = None
    letter = table.dead(entry)
    if letter is not None and not _is_kept(letter, now, settings):
        letter = None
    oldest = now - settings.keep_done_ms
    ended = tuple(one for one in table.ended_of(entry, MAX_ENDS) if one.ended_ms > oldest)
    waits = row is not None and (row.status != PROCESSING or rules.is_overdue(row, now))
    causes: tuple[WaitCause, ...] = ()
    if row is not None and waits:
        overdue = row if row.status == PROCESSING else None
        order = ClaimOrder(table, settings, now, unswept=unswept, overdue=overdue)
        causes = tuple(_causes(table, settings, row, now, order))
    return FoundJob(now, row, letter, ended, causes)


def _is_gone(row: JobRow, now: int) -> bool:
    """Whether it only waits to be swept. One that runs goes on, even if it has expired since."""
    return rules.is_expired(row.image, now) and (row.status != PROCESSING or rules.is_overdue(row, now))


def _is_kept(letter: DeadLetter, now: int, settings: QueueSettings) -> bool:
    return letter.dead_ms > now - settings.dead_letter_ttl_ms


def _causes(
    table: QueueTable, settings: QueueSettings, row: JobRow, now: int, order: ClaimOrder
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
    held = [*_limits(table, settings, running, now), *_group_limits(settings, row.image.group, order)]
    yield from held
    if settings.slow_threshold is not None and row.image.priority >= settings.slow_threshold:
        yield WaitCause("slow", settings.slow_threshold)
    order.lift_limits(row.image.group)  # which place it has, is asked: others that cannot start have none before it
    ahead = _ahead(row, order.walk(MAX_AHEAD))
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


def _group_limits(settings: QueueSettings, group: str, order: ClaimOrder) -> Iterator[WaitCause]:
    """The limits of its group that allow no start now."""
    most, rate = settings.max_in_flight_per_group, settings.rate_limit_per_group
    if group and most is not None and order.in_flight(group) >= most:
        yield WaitCause("group_in_flight", most)
    ends = order.window_ends(group)
    if rate is not None and ends is not None:
        yield WaitCause("group_rate", rate.count, ends)


def _ahead(row: JobRow, ordered: Iterator[JobRow]) -> int:
    """How many come before it."""
    count = 0
    for other in islice(ordered, MAX_AHEAD):
        if other.entry == row.entry:
            break
        count += 1
    return count
