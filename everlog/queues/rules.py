"""The rules of a queue: pure functions from a row and an event to the row after it. No clock, no I/O.

A merge is idempotent and associative and, for distinct dates, commutative in all but the Insertion Date: retries and
late packets cannot change what a queue converges to.

`max_wait` bounds what puts ask for, so that no burst delays a job forever: each put's date is capped at the Insertion
Date of the image that it meets, or begins, plus `max_wait`. It never brings a date forward that holds already, and it
bounds no pause after an attempt: not one that a retry or a release asked for, nor the queue's backoff. What has waited
behind the attempt is due at its own date, or after that pause, whichever is later.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec.structs import replace

from everlog.config.queue_options import QueueSettings
from everlog.queues.operations import JobResult
from everlog.queues.rows import (
    MAX_ATTEMPTS_KEPT,
    PROCESSING,
    WAITING,
    Attempt,
    AttemptReason,
    Cause,
    DeadLetter,
    EndedRow,
    Image,
    JobEnd,
    JobRow,
    Packet,
)
from everlog.runtime.retry import pause_after

MAX_COUNTER = 255
# Characters of an error in the history: a group of ends must fit into one batch of any store.
MAX_REASON_KEPT = 200


class RowChange(NamedTuple):
    """What becomes of a row: itself changed, or None for absent; and what else is to be written with it.

    `fresh` is a successor that outlives its row: it gets a row, and an entry id, of its own.
    """

    row: JobRow | None
    dead: DeadLetter | None = None
    fresh: Image | None = None
    flags: tuple[AttemptReason, ...] = ()
    expired: int = 0


def is_expired(image: Image, now: int) -> bool:
    """Strictly after its second; 0 is never."""
    return image.expires_s != 0 and now > image.expires_s * 1000


def is_overdue(row: JobRow, now: int) -> bool:
    """Whether the lease is over: strictly after its last moment. Such a row counts as waiting for all operations."""
    return row.status == PROCESSING and now > row.deadline_ms


def arrive(packet: Packet, now: int, settings: QueueSettings) -> tuple[Image, bool]:
    """The image that a packet brings, and whether its sender's clock is too far ahead to be believed."""
    skewed = packet.inserted_ms > now + settings.clock_tolerance_ms
    inserted = now if skewed else packet.inserted_ms
    process = inserted if packet.process_ms is None else max(packet.process_ms, inserted)
    image = Image(
        packet.priority,
        capped(process, inserted, settings),
        inserted,
        packet.expires_s,
        inserted,
        packet.schema,
        packet.data,
        packet.kind,
        packet.group,
    )
    return image, skewed


def capped(process_ms: int, inserted_ms: int, settings: QueueSettings) -> int:
    """The Process Date of a put is never later than the Insertion Date + max_wait."""
    return min(process_ms, inserted_ms + settings.max_wait_ms) if settings.max_wait_ms else process_ms


def merge(held: Image, incoming: Image, settings: QueueSettings) -> Image:
    """Two images of one key become one."""
    newer = incoming.data_date >= held.data_date
    return Image(
        priority=min(held.priority, incoming.priority),
        process_ms=max(held.process_ms, capped(incoming.process_ms, held.inserted_ms, settings)),
        inserted_ms=held.inserted_ms,
        expires_s=max(held.expires_s, incoming.expires_s) if held.expires_s and incoming.expires_s else 0,
        data_date=incoming.data_date if newer else held.data_date,
        schema=incoming.schema if newer else held.schema,
        data=incoming.data if newer else held.data,
        kind=incoming.kind if newer else held.kind,
        group=incoming.group if newer else held.group,
    )


def is_late(held: Image, incoming: Image, settings: QueueSettings) -> bool:
    """Whether a packet is older than what it meets, in a queue that ignores such packets."""
    return settings.late_packets == "ignore" and incoming.data_date < held.data_date


def merge_waiting(row: JobRow, incoming: Image, settings: QueueSettings) -> JobRow:
    """An arrival meets a waiting row: one row, whose count of failures begins again; its lifetime's does not."""
    return replace(row, image=merge(row.image, incoming, settings), timeouts=0)


def merge_slot(row: JobRow, incoming: Image, now: int, settings: QueueSettings) -> JobRow:
    """An arrival meets a running row: it waits in the slot, or merges with what waits there."""
    free = row.slot is None or is_expired(row.slot, now)
    slot = _behind(row, incoming, now) if free or row.slot is None else merge(row.slot, incoming, settings)
    stop = row.stop or ("restart" if settings.on_busy == "restart" else None)
    return replace(row, slot=slot, stop=stop)


def _behind(row: JobRow, late: Image, now: int) -> Image:
    """What waits behind a running row has no older data than that: else the older ones would be those that run last."""
    held = row.image
    if late.data_date >= held.data_date or row.stop == "cancel" or is_expired(held, now):
        return late
    return replace(late, data_date=held.data_date, schema=held.schema, data=held.data, kind=held.kind, group=held.group)


def claim(row: JobRow, owner: str, now: int, lease_ms: int) -> JobRow:
    """A waiting row gets a lease, under a token that it never had."""
    return replace(
        row,
        status=PROCESSING,
        claimed_ms=now,
        start_ms=now,
        lease_ms=lease_ms,
        token=row.token + 1,
        owner=owner,
        stop=None,
        stop_reason=None,
    )


def beat(row: JobRow, now: int) -> JobRow:
    """The lease begins again, the attempt does not; a late beat counts as long as no other worker has the row."""
    return replace(row, start_ms=now)


def holds(row: JobRow | None, token: int) -> bool:
    """Whether a handle is the one that the row was claimed under."""
    return row is not None and row.status == PROCESSING and row.token == token


def done(row: JobRow, now: int) -> RowChange:
    """The work is finished: the row goes, or lives on as its successor."""
    slot, expired = live_slot(row, now)
    if slot is None:
        return RowChange(None, expired=expired)
    return RowChange(waiting(replace(row, image=slot, timeouts=0)))


def end_attempt(
    row: JobRow,
    now: int,
    settings: QueueSettings,
    how: Literal["timeout", "failed"],
    *,
    reason: str | None = None,
    delay_ms: int | None = None,
    retry: bool = True,
    since: int | None = None,
) -> RowChange:
    """An attempt ended without success: again, or dead. Exactly one such end is counted per attempt.

    `since`: the moment from which a pause counts, if that is not now.
    """
    counter = min(MAX_COUNTER, row.timeouts + 1)
    ended = replace(_noted(row, now, how, reason), timeouts=counter, lifetime=row.lifetime + 1)
    flags: tuple[AttemptReason, ...] = ("lifetime_timeouts",) if ended.lifetime >= settings.lifetime_timeouts else ()
    gone = _ended_for_good(ended, now)
    if gone is not None:
        return gone._replace(flags=flags)
    if not retry or counter >= settings.max_timeouts:
        cause: Literal["max_timeouts", "failed"] = "max_timeouts" if how == "timeout" else "failed"
        slot, expired = live_slot(row, now)
        return RowChange(None, bury(ended, now, cause, reason or how), slot, (cause, *flags), expired)
    slot, expired = live_slot(row, now)
    pause = backoff(counter, settings) if delay_ms is None else delay_ms
    # Without a pause a failure is as if it were put now; a time-out and a successor keep the place that they have.
    paused = pause or (how == "failed" and slot is None)
    process = (now if since is None else since) + pause if paused else row.image.process_ms
    if slot is not None:
        return RowChange(_succeeded(ended, slot, process, settings), flags=flags)
    image = row.image if process == row.image.process_ms else replace(row.image, process_ms=process)
    return RowChange(waiting(replace(ended, image=image)), flags=flags, expired=expired)


def as_waiting(row: JobRow, now: int, settings: QueueSettings) -> JobRow | None:
    """An overdue row as all readers see it until it is swept: it waits, or is gone if it has expired.

    As if it were swept when its lease ended: a place that moved with each look would be on every page. One that would
    be a dead letter waits, too: until it is swept its worker may still end it well.
    """
    change = end_attempt(row, now, settings, "timeout", since=row.deadline_ms + 1)
    if change.fresh is not None:
        return JobRow(row.entry, row.key, row.hash, change.fresh)
    if change.dead is None or is_expired(row.image, now):
        return change.row
    letter = change.dead
    return waiting(replace(row, timeouts=letter.timeouts, lifetime=letter.lifetime, attempts=letter.attempts))


def _succeeded(row: JobRow, slot: Image, process_ms: int, settings: QueueSettings) -> JobRow:
    """After an attempt that did not finish the work, the row and its successor are one: due when both may run."""
    process_ms = max(process_ms, row.image.process_ms, slot.process_ms)
    image = replace(merge(row.image, slot, settings), process_ms=process_ms)
    return waiting(replace(row, image=image, timeouts=0))


def release(
    row: JobRow, now: int, settings: QueueSettings, delay_ms: int | None = None, flag: AttemptReason | None = None
) -> RowChange:
    """A worker that shuts down, or has no function for it, gives the row back; that does not count as a failure."""
    gone = _ended_for_good(row, now)
    if gone is not None:
        return gone
    flags = () if flag is None else (flag,)
    process = max(row.image.process_ms, now + delay_ms) if delay_ms else row.image.process_ms
    slot, expired = live_slot(row, now)
    if slot is not None:
        return RowChange(_succeeded(row, slot, process, settings), flags=flags)
    return RowChange(waiting(replace(row, image=replace(row.image, process_ms=process))), flags=flags, expired=expired)


def cancel(row: JobRow, now: int, reason: str | None) -> RowChange:
    """What waits is gone at once; what runs is told to stop, and then not tried again. The slot is dropped."""
    if row.status == WAITING:
        return RowChange(None, bury(row, now, "cancelled", reason))
    return RowChange(replace(row, stop="cancel", stop_reason=reason, slot=None))


def live_slot(row: JobRow, now: int) -> tuple[Image | None, int]:
    """The successor, unless it has expired; and how many expired."""
    if row.slot is not None and is_expired(row.slot, now):
        return None, 1
    return row.slot, 0


def waiting(row: JobRow) -> JobRow:
    """The row, without its lease. The token stays: it must never repeat."""
    return replace(
        row,
        status=WAITING,
        claimed_ms=None,
        start_ms=None,
        lease_ms=0,
        owner=None,
        slot=None,
        stop=None,
        stop_reason=None,
    )


def bury(row: JobRow, now: int, cause: Cause, reason: str | None) -> DeadLetter:
    """What is kept of a row that will not run again."""
    return DeadLetter(
        row.entry, row.key, row.hash, row.image, cause, reason, now, row.timeouts, row.lifetime, row.attempts
    )


def ended(row: JobRow, now: int, letter: DeadLetter | None, result: JobResult | None = None) -> EndedRow:
    """What a history keeps of a row: done, or as its dead letter says."""
    how: JobEnd = "done" if letter is None else letter.cause
    reason, attempts = (None, row.attempts) if letter is None else (letter.reason, letter.attempts)
    return EndedRow(
        row.entry,
        row.token,
        row.key,
        row.hash,
        how,
        _cut(reason),
        row.image.inserted_ms,
        row.claimed_ms,
        now,
        row.owner,
        tuple(replace(one, reason=_cut(one.reason)) for one in attempts),
        None if result is None else result.json,
        result is not None and result.left_out,
        row.image.kind,
        row.image.group,
        row.image.process_ms,
    )


def _cut(reason: str | None) -> str | None:
    return None if reason is None else reason[:MAX_REASON_KEPT]


def backoff(counter: int, settings: QueueSettings) -> int:
    """How many milliseconds to wait after this many failures."""
    return pause_after(counter, settings.retry_backoff_ms, settings.max_retry_backoff_ms)


def effective_priority(image: Image, now: int, settings: QueueSettings) -> int:
    """With aging, a row that is past due for long counts as more urgent."""
    return aged_priority(image.priority, image.process_ms, now, settings)


def aged_priority(priority: int, process_ms: int, now: int, settings: QueueSettings) -> int:
    """The same, of what is known of its place."""
    if not settings.aging_ms:
        return priority
    return max(0, priority - max(0, now - process_ms) // settings.aging_ms)


def _ended_for_good(row: JobRow, now: int) -> RowChange | None:
    """An attempt of a cancelled or expired row was its last; a successor lives on."""
    if row.stop == "cancel":
        slot, expired = live_slot(row, now)
        return RowChange(None, bury(row, now, "cancelled", row.stop_reason), slot, expired=expired)
    if is_expired(row.image, now):
        slot, expired = live_slot(row, now)
        return RowChange(None, None, slot, expired=expired + 1)
    return None


def _noted(row: JobRow, now: int, how: Literal["timeout", "failed"], reason: str | None) -> JobRow:
    assert row.claimed_ms is not None
    attempt = Attempt(row.claimed_ms, now, row.owner or "", how, reason)
    return replace(row, attempts=(*row.attempts[1 - MAX_ATTEMPTS_KEPT :], attempt))
