"""Jobs that have ended, as far as a queue keeps them: `keep_done` says for how long.

What a job's function returned is kept if it is small JSON. A result never makes a job fail: what cannot be kept is left
out, and the record says so.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from everlog.core.json_text import encode_json
from everlog.queues.job import moment
from everlog.queues.keys import JobKey, decode_key
from everlog.queues.operations import HistoryPlace, JobResult
from everlog.queues.rows import Attempt, EndedRow

MAX_RESULT_BYTES = 4096
NO_RESULT = JobResult()
LEFT_OUT = JobResult(left_out=True)


class EndedJob(NamedTuple):
    """A job that has ended: how, when, by which worker, and what its function returned.

    `how` is "done", or the cause of its dead letter. `attempts` are the runs before that did not end in done. `due` is
    when its last run could begin.
    """

    entry: int
    token: int
    key: JobKey
    how: str
    reason: str | None
    inserted: datetime
    claimed: datetime | None
    ended: datetime
    owner: str | None
    attempts: tuple[Attempt, ...]
    result: Any
    result_left_out: bool
    kind: str | None = None
    group: str | None = None
    due: datetime | None = None

    @property
    def place(self) -> HistoryPlace:
        """Where it is in the history: a page goes on behind it."""
        return (round(self.ended.timestamp() * 1000), self.entry, self.token)


def read_ended(row: EndedRow) -> EndedJob:
    """A row of the history as users see it."""
    return EndedJob(
        row.entry,
        row.token,
        decode_key(row.key),
        row.how,
        row.reason,
        moment(row.inserted_ms),
        None if row.claimed_ms is None else moment(row.claimed_ms),
        moment(row.ended_ms),
        row.owner,
        row.attempts,
        None if row.result is None else msgspec.json.decode(row.result),
        row.result_left_out,
        row.kind or None,
        row.group or None,
        moment(row.due_ms) if row.due_ms else None,
    )


def pack_result(value: object) -> JobResult:
    """What a function returned, if it is small JSON; None is nothing."""
    if value is None:
        return NO_RESULT
    try:
        encoded = encode_json("result", value).encode()
    except Exception:  # an object of the user's may raise anything when it is written
        return LEFT_OUT
    return JobResult(encoded) if len(encoded) <= MAX_RESULT_BYTES else LEFT_OUT
