"""One job by its number, wherever it is, with all that its queue knows of it: what `queue.job(entry)` returns."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from everlog.queues.declaration import Declaration
from everlog.queues.history import EndedJob, read_ended
from everlog.queues.job import moment
from everlog.queues.keys import JobKey, decode_key
from everlog.queues.operations import FoundJob
from everlog.queues.payload import decode_data
from everlog.queues.rows import PROCESSING, Attempt, DeadLetter, JobRow
from everlog.queues.wait_reasons import WaitReason, explain_job

JobState = Literal["waiting", "running", "dead", "ended"]


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """A job as it is now; what does not apply to its state, or is not kept, is None.

    A job whose lease is over waits, and still has the owner and the deadline that it had. The data of a job that has
    ended are not kept. `ends` are the runs under this number that have ended, the last one first: what comes for a key
    while its job runs goes on under the same number. `why` says what it waits for, or what became of it.
    """

    entry: int
    state: JobState
    key: JobKey
    data: Any = None
    kind: str | None = None
    group: str | None = None
    priority: int | None = None
    inserted: datetime
    due: datetime | None = None
    expires: datetime | None = None
    claimed: datetime | None = None
    deadline: datetime | None = None
    ended: datetime | None = None
    owner: str | None = None
    token: int | None = None
    timeouts: int | None = None
    lifetime: int | None = None
    attempts: tuple[Attempt, ...] = ()
    successor: datetime | None = None
    stop: str | None = None
    how: str | None = None
    reason: str | None = None
    result: Any = None
    result_left_out: bool = False
    ends: tuple[EndedJob, ...] = ()
    why: tuple[WaitReason, ...] = ()


def read_job(entry: int, found: FoundJob, declaration: Declaration) -> JobReport | None:
    """What was found as users see it; None if nothing was."""
    more: dict[str, Any] = {"ends": tuple(map(read_ended, found.ended)), "why": tuple(explain_job(found))}
    if found.row is not None:
        return _read_row(found.row, waits=bool(found.causes), declaration=declaration, more=more)
    if found.letter is not None:
        return _read_letter(found.letter, declaration, more)
    if not found.ended:
        return None
    last: EndedJob = more["ends"][0]
    return JobReport(
        entry=entry,
        state="ended",
        key=last.key,
        kind=last.kind,
        group=last.group,
        inserted=last.inserted,
        claimed=last.claimed,
        ended=last.ended,
        owner=last.owner,
        token=last.token,
        attempts=last.attempts,
        how=last.how,
        reason=last.reason,
        result=last.result,
        result_left_out=last.result_left_out,
        **more,
    )


def _read_row(row: JobRow, *, waits: bool, declaration: Declaration, more: dict[str, Any]) -> JobReport:
    image, leased = row.image, row.status == PROCESSING
    return JobReport(
        entry=row.entry,
        state="running" if leased and not waits else "waiting",
        key=decode_key(row.key),
        data=decode_data(image.data, declaration, image.schema),
        kind=image.kind or None,
        group=image.group or None,
        priority=image.priority,
        inserted=moment(image.inserted_ms),
        due=moment(image.process_ms),
        expires=moment(image.expires_s * 1000) if image.expires_s else None,
        claimed=None if row.claimed_ms is None else moment(row.claimed_ms),
        deadline=moment(row.deadline_ms) if leased else None,
        owner=row.owner,
        token=row.token,
        timeouts=row.timeouts,
        lifetime=row.lifetime,
        attempts=row.attempts,
        successor=None if row.slot is None else moment(row.slot.process_ms),
        stop=row.stop,
        reason=row.stop_reason,
        **more,
    )


def _read_letter(letter: DeadLetter, declaration: Declaration, more: dict[str, Any]) -> JobReport:
    image = letter.image
    return JobReport(
        entry=letter.entry,
        state="dead",
        key=decode_key(letter.key),
        data=decode_data(image.data, declaration, image.schema),
        kind=image.kind or None,
        group=image.group or None,
        priority=image.priority,
        inserted=moment(image.inserted_ms),
        due=moment(image.process_ms),
        expires=moment(image.expires_s * 1000) if image.expires_s else None,
        ended=moment(letter.dead_ms),
        owner=letter.attempts[-1].owner if letter.attempts else None,
        timeouts=letter.timeouts,
        lifetime=letter.lifetime,
        attempts=letter.attempts,
        how=letter.cause,
        reason=letter.reason,
        **more,
    )
