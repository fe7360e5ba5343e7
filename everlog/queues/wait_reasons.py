"""Why does this not run? Plain answers about a queue and its jobs: pure functions of what the queue says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from everlog.config.queue_options import QueueSettings
from everlog.core.phrases import count, duration
from everlog.queues.inquiry import MAX_AHEAD
from everlog.queues.operations import DueAnswer, FoundJob, Stats, WaitCause, WaitCode
from everlog.queues.rows import PROCESSING, DeadLetter, EndedRow, JobRow

ReasonLevel = Literal["", "warn", "bad"]
START_A_WORKER = "Start a worker for this queue: `everlog work module:app`."


class WaitReason(msgspec.Struct, frozen=True):
    """One sentence, and what to do if something is to be done. `code` is for programs."""

    what: str
    remedy: str = ""
    level: ReasonLevel = ""
    code: str = ""


def explain_queue(stats: Stats, due: DueAnswer, settings: QueueSettings, now: int) -> list[WaitReason]:
    """What holds the queue back. Empty answers are answers, too."""
    if stats.paused:
        what = f"The queue is paused: nothing is claimed ({count(stats.ready, 'job')} ready)."
        return [WaitReason(what, "Resume it when you are ready.", "warn", "paused")]
    if not stats.ready and not stats.delayed:
        working = f"; {count(stats.running, 'job')} running" if stats.running else ""
        return [WaitReason(f"Nothing waits{working}.", code="empty")]
    if not stats.ready:
        what = f"Nothing is due yet: {count(stats.delayed, 'job')} delayed, {_next(due.next_ms, now)}."
        return [WaitReason(what, code="not_due")]
    if settings.max_in_flight is not None and stats.running >= settings.max_in_flight:
        what = f"{stats.running:,} run already, and max_in_flight is {settings.max_in_flight:,}."
        return [WaitReason(what, "The next one starts when one of them ends, or its lease does.", code="in_flight")]
    if not due.due and settings.rate_limit is not None and settings.rate_limit_per_group is None:
        rate = settings.rate_limit
        what = f"The rate limit is reached: {rate.count:,} starts per {duration(rate.window_ms / 1000)}."
        return [WaitReason(what, f"It goes on by itself, {_next(due.next_ms, now)}.", code="rate")]
    if not due.due and (settings.rate_limit_per_group is not None or settings.max_in_flight_per_group is not None):
        rate_too = "The rate limit is reached, or a" if settings.rate_limit is not None else "A"
        what = f"{rate_too}ll that is ready is of groups at their limit ({count(stats.ready, 'job')})."
        return [
            WaitReason(what, f"It goes on when their jobs end, or by itself: {_next(due.next_ms, now)}.", code="group")
        ]
    if not stats.running:
        what = f"{count(stats.ready, 'job')} could start now, but no worker claims any."
        return [WaitReason(what, START_A_WORKER, "warn", "unclaimed")]
    what = f"Workers are at it: {count(stats.running, 'job')} running, {stats.ready:,} ready."
    return [WaitReason(what, code="busy")]


def explain_job(found: FoundJob) -> list[WaitReason]:
    """What has become of one job, and why it does not run if it waits; empty if there is none."""
    now = found.now_ms
    if found.row is not None:
        row = found.row
        return _running(row, now) if row.status == PROCESSING and not found.causes else _waiting(row, found)
    if found.letter is not None:
        return [_dead(found.letter, now)]
    return [_ended(one, now) for one in found.ended[:1]]


def _running(row: JobRow, now: int) -> list[WaitReason]:
    left = duration((row.deadline_ms - now) / 1000)
    found = [WaitReason(f"It runs: {row.owner or 'a worker'} has it for another {left}.", code="running")]
    if row.stop is not None:
        what = f"It was told to stop ({row.stop}): its worker hears that with its next heartbeat."
        found.append(WaitReason(what, code="stopping"))
    if row.slot is not None:
        found.append(WaitReason("What was put for this key meanwhile waits behind it.", code="successor"))
    return found


def _waiting(row: JobRow, found: FoundJob) -> list[WaitReason]:
    reasons = [_SENTENCES[cause.code](cause, row, found.now_ms) for cause in found.causes]
    if row.timeouts and row.status != PROCESSING:
        last = row.attempts[-1] if row.attempts else None
        when = "" if last is None else f", last {duration((found.now_ms - last.ended_ms) / 1000)} ago"
        why = "" if last is None or not last.reason else f": {last.reason}"
        what = f"It failed {count(row.timeouts, 'time')} since the last put{when}{why}."
        reasons.append(WaitReason(what, code="failed"))
    return reasons


def _dead(letter: DeadLetter, now: int) -> WaitReason:
    why = f": {letter.reason}" if letter.reason else ""
    what = f"It has been a dead letter for {duration((now - letter.dead_ms) / 1000)} ({letter.cause}){why}."
    return WaitReason(what, "Revive it when the cause is gone.", "bad", "dead")


def _ended(ended: EndedRow, now: int) -> WaitReason:
    how = "It was done" if ended.how == "done" else f"It ended ({ended.how})"
    return WaitReason(f"{how} {duration((now - ended.ended_ms) / 1000)} ago.", code="ended")


def _paused(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    return WaitReason("The queue is paused: nothing is claimed.", "Resume it when you are ready.", "warn", cause.code)


def _overdue(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    late = duration((now - row.deadline_ms) / 1000)
    what = f"{row.owner or 'A worker'} had it and has not been heard of: its lease ended {late} ago."
    return WaitReason(what, "The next claim of any worker runs it again.", "warn", cause.code)


def _not_due(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    wait = duration(max(0, (cause.until_ms or now) - now) / 1000)
    return WaitReason(f"It is not due: it may start in {wait}.", code=cause.code)


def _in_flight(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    what = f"As many jobs run as the queue allows: max_in_flight is {cause.number:,}."
    return WaitReason(what, "The next one starts when one of them ends, or its lease does.", code=cause.code)


def _rate(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    remedy = f"It goes on by itself, {_next(cause.until_ms, now)}."
    return WaitReason(f"The rate limit is reached: {cause.number:,} starts.", remedy, code=cause.code)


def _group_in_flight(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    group = row.image.group
    what = f"As many jobs of the group {group} run as one may: max_in_flight_per_group is {cause.number:,}."
    return WaitReason(what, "The next one starts when one of them ends, or its lease does.", code=cause.code)


def _group_rate(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    remedy = f"It goes on by itself, {_next(cause.until_ms, now)}."
    what = f"The rate limit of the group {row.image.group} is reached: {cause.number:,} starts."
    return WaitReason(what, remedy, code=cause.code)


def _slow(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    what = f"It is slow (slow_threshold is {cause.number}): a worker takes it when a pass has brought nothing else."
    return WaitReason(what, code=cause.code)


def _behind(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    ahead = cause.number or 0
    before = f"at least {count(ahead, 'job')}" if ahead >= MAX_AHEAD else count(ahead, "job")
    return WaitReason(f"It is due: {before} before it.", code=cause.code)


def _first_in_line(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    return WaitReason("It is due, and the first in line: the next free worker takes it.", code=cause.code)


def _unclaimed(cause: WaitCause, row: JobRow, now: int) -> WaitReason:
    what = "It could start now, but nothing of this queue runs: no worker claims any job."
    return WaitReason(what, START_A_WORKER, "warn", cause.code)


_SENTENCES: dict[WaitCode, Callable[[WaitCause, JobRow, int], WaitReason]] = {
    "paused": _paused,
    "overdue": _overdue,
    "not_due": _not_due,
    "in_flight": _in_flight,
    "rate": _rate,
    "group_in_flight": _group_in_flight,
    "group_rate": _group_rate,
    "slow": _slow,
    "behind": _behind,
    "next": _first_in_line,
    "unclaimed": _unclaimed,
}


def _next(next_ms: int | None, now: int) -> str:
    return "nothing is planned" if next_ms is None else f"the next in {duration(max(0, next_ms - now) / 1000)}"
