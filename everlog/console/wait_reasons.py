"""Why does this not run? Plain answers about a queue and its jobs: pure functions of what the queue says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from everlog.config.queue_options import QueueSettings
from everlog.console.problems import count, duration
from everlog.queues.operations import DueAnswer, Stats
from everlog.queues.rows import PROCESSING, DeadLetter, JobRow

ReasonLevel = Literal["", "warn", "bad"]


class WaitReason(msgspec.Struct, frozen=True):
    """One sentence, and what to do if something is to be done."""

    what: str
    remedy: str = ""
    level: ReasonLevel = ""


def explain_queue(stats: Stats, due: DueAnswer, settings: QueueSettings, now: int) -> list[WaitReason]:
    """What holds the queue back. Empty answers are answers, too."""
    if stats.paused:
        what = f"The queue is paused: nothing is claimed ({count(stats.ready, 'job')} ready)."
        return [WaitReason(what, "Resume it when you are ready.", "warn")]
    if not stats.ready and not stats.delayed:
        working = f"; {count(stats.running, 'job')} running" if stats.running else ""
        return [WaitReason(f"Nothing waits{working}.")]
    if not stats.ready:
        return [WaitReason(f"Nothing is due yet: {count(stats.delayed, 'job')} delayed, {_next(due.next_ms, now)}.")]
    if settings.max_in_flight is not None and stats.running >= settings.max_in_flight:
        what = f"{stats.running:,} run already, and max_in_flight is {settings.max_in_flight:,}."
        return [WaitReason(what, "The next one starts when one of them ends, or its lease does.")]
    if not due.due and settings.rate_limit is not None:
        rate = settings.rate_limit
        what = f"The rate limit is reached: {rate.count:,} starts per {duration(rate.window_ms / 1000)}."
        return [WaitReason(what, f"It goes on by itself, {_next(due.next_ms, now)}.")]
    if not stats.running:
        what = f"{count(stats.ready, 'job')} could start now, but no worker claims any."
        return [WaitReason(what, "Start a worker for this queue: `everlog work module:app`.", "warn")]
    return [WaitReason(f"Workers are at it: {count(stats.running, 'job')} running, {stats.ready:,} ready.")]


def explain_job(
    rows: Sequence[JobRow], dead: Sequence[DeadLetter], ahead: int | None, queue: Sequence[WaitReason], now: int
) -> list[WaitReason]:
    """What one key's jobs wait for. `ahead`: how many come before it, None if they are too many to count."""
    if not rows and not dead:
        what = "There is no job with this key: it is done, has expired, was cancelled, or was never put."
        return [WaitReason(what)]
    reasons: list[WaitReason] = []
    for letter in dead[:1]:
        why = f": {letter.reason}" if letter.reason else ""
        what = f"It is a dead letter since {duration((now - letter.dead_ms) / 1000)} ({letter.cause}){why}."
        reasons.append(WaitReason(what, "Put it back when the cause is gone.", "bad"))
    for row in rows:
        reasons += _running(row, now) if row.status == PROCESSING else _waiting(row, ahead, queue, now)
    return reasons


def _running(row: JobRow, now: int) -> list[WaitReason]:
    left = row.deadline_ms - now
    who = row.owner or "a worker"
    if left < 0:
        what = f"{who} had it and has not been heard of: its lease ended {duration(-left / 1000)} ago."
        found = [WaitReason(what, "The next claim of any worker runs it again.", "warn")]
    else:
        found = [WaitReason(f"It runs: {who} has it for another {duration(left / 1000)}.")]
    if row.stop is not None:
        found.append(WaitReason(f"It was told to stop ({row.stop}): its worker hears that with its next heartbeat."))
    if row.slot is not None:
        found.append(WaitReason("What was put for this key meanwhile waits behind it."))
    return found


def _waiting(row: JobRow, ahead: int | None, queue: Sequence[WaitReason], now: int) -> list[WaitReason]:
    found = []
    if row.timeouts:
        last = row.attempts[-1] if row.attempts else None
        why = "" if last is None or not last.reason else f": {last.reason}"
        found.append(WaitReason(f"It failed {count(row.timeouts, 'time')} since the last put{why}."))
    wait = row.image.process_ms - now
    if wait > 0:
        return [WaitReason(f"It is not due: it may start in {duration(wait / 1000)}."), *found]
    before = "more than a page of jobs" if ahead is None else count(ahead, "job")
    place = f"{before} before it" if ahead != 0 else "the first in line"
    found.insert(0, WaitReason(f"It is due: {place}."))
    return found + list(queue)


def _next(next_ms: int | None, now: int) -> str:
    return "nothing is planned" if next_ms is None else f"the next in {duration(max(0, next_ms - now) / 1000)}"
