"""The bodies of the routes of queues, as requests and as answers.

Bytes do not fit into JSON: a key's or a column's are written as `{"base64": "…"}`, a job's data as `dataBase64`.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
from litestar.openapi.datastructures import ResponseSpec

from everlog.config.queue_options import MAX_CLAIM, QueueOptions
from everlog.errors import InvalidInput, InvalidKey
from everlog.queues.checks import is_place
from everlog.queues.declaration import Declaration
from everlog.queues.history import EndedJob
from everlog.queues.job import DeadJob, Job, JobInfo
from everlog.queues.job_report import JobReport, JobState
from everlog.queues.keys import JobKey
from everlog.queues.operations import HistoryPlace, JobPlace, LetterPlace, Result
from everlog.queues.port import PUT_AT_ONCE
from everlog.queues.priority import DEFAULT_PRIORITY
from everlog.queues.rows import Attempt, Flag
from everlog.server.errors import also
from everlog.server.requests import MAX_WAIT_S

KeyPart = str | int | dict[str, str]
KeyBody = str | int | list[KeyPart] | dict[str, Any]
Place = TypeVar("Place", JobPlace, LetterPlace, HistoryPlace)
_described = msgspec.Meta


class PutBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A job. `data` is text or any JSON, or `dataBase64` are bytes."""

    key: Annotated[
        KeyBody,
        _described(description="Text, a whole number, a list of these, or an object with a value per key column"),
    ]
    data: Any = None
    data_base64: str | None = None
    priority: Annotated[int, _described(description="0 (first) to 255 (last)")] = DEFAULT_PRIORITY
    at: Annotated[datetime, _described(description="Not before this time")] | None = None
    delay: Annotated[str | float, _described(description="Not before this has passed: '10s', or seconds")] | None = None
    expires_at: Annotated[datetime, _described(description="Not after this time")] | None = None
    expires_in: Annotated[str | float, _described(description="Not after this has passed")] | None = None
    kind: Annotated[str, _described(description="Which of the queue's functions does it")] | None = None
    group: Annotated[str, _described(description="Whose share of the queue it uses")] | None = None


class ClaimBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How many jobs to take, and how long to wait for the first of them."""

    limit: Annotated[int, _described(ge=1, le=MAX_CLAIM)] = 1
    owner: Annotated[str, _described(max_length=1000)] = "http"
    lease: Annotated[str | float, _described(description="How long they are yours: '10m', or seconds")] | None = None
    wait: Annotated[float, _described(ge=0, le=MAX_WAIT_S, description="Seconds to wait for a job")] = 0.0
    fast_only: bool = False


class PutManyBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Jobs that are put together."""

    jobs: Annotated[list[PutBody], _described(min_length=1, max_length=PUT_AT_ONCE)]


class PurgeBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What to remove."""

    running: Annotated[bool, _described(description="Also what runs: its workers lose it")] = False


class FailBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Why an attempt failed, and when to try again; with `retry` false it is a dead letter."""

    reason: str | None = None
    delay: str | float | None = None
    retry: bool = True


class JobDoneBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What came of the work: kept with the job if its queue has a history, and if it is small."""

    result: Any = None


class CancelBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The key whose jobs are no longer wanted."""

    key: KeyBody
    reason: str | None = None


class ReceiptBody(msgspec.Struct, frozen=True, rename="camel"):
    """What became of a put, and the job that holds it."""

    result: Result
    entry: int


class ReceiptsBody(msgspec.Struct, frozen=True):
    """What became of each of several puts, in their order."""

    receipts: list[ReceiptBody]


class AttemptBody(msgspec.Struct, frozen=True, rename="camel"):
    """A run that did not end in done."""

    started: datetime
    ended: datetime
    owner: str
    how: str
    reason: str | None


class JobBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A job as its callers see it."""

    entry: int
    key: Any
    data: Any
    data_base64: str | None
    priority: int
    inserted: Annotated[datetime, _described(description="When it was first put")]
    due: datetime
    claimed: Annotated[datetime | None, _described(description="When its present attempt began; heartbeats keep it")]
    expires: datetime | None
    status: Literal["waiting", "running"]
    timeouts: int
    owner: str | None
    schema: int
    kind: str | None
    group: str | None
    attempts: list[AttemptBody]


class ClaimedBody(JobBody, frozen=True, rename="camel", kw_only=True):
    """A job that is yours until the deadline; entry and token are its handle."""

    token: int
    attempt: int
    deadline: datetime


class PageBody(msgspec.Struct, frozen=True, rename="camel"):
    """Jobs in their order, and where the next page begins."""

    jobs: list[JobBody]
    next: str | None = None


class ClaimsBody(msgspec.Struct, frozen=True, rename="camel"):
    """The jobs that were taken; none if there were none in time."""

    jobs: list[ClaimedBody]


class BeatBody(msgspec.Struct, frozen=True, rename="camel"):
    """The new deadline, and whether the job should stop."""

    deadline: datetime
    stop: Literal["cancel", "restart"] | None
    reason: str | None


class DeadBody(msgspec.Struct, frozen=True, rename="camel"):
    """A job that will not run again by itself."""

    entry: int
    key: Any
    data: Any
    data_base64: str | None
    cause: str
    reason: str | None
    time: datetime
    attempts: list[AttemptBody]
    kind: str | None
    group: str | None


class DeadPageBody(msgspec.Struct, frozen=True, rename="camel"):
    """Dead letters, the newest first; `next` is what `before` is for the next page."""

    dead: list[DeadBody]
    next: str | None = None


class EndedBody(msgspec.Struct, frozen=True, rename="camel"):
    """A job that has ended: `how` is `done`, or the cause of its dead letter."""

    entry: int
    token: int
    key: Any
    how: str
    reason: str | None
    inserted: datetime
    claimed: datetime | None
    ended: datetime
    owner: str | None
    attempts: list[AttemptBody]
    result: Annotated[Any, _described(description="What its function returned, if that was small JSON")]
    result_left_out: Annotated[bool, _described(description="Whether it returned something too large, or no JSON")]
    kind: str | None
    group: str | None
    due: datetime | None


class HistoryBody(msgspec.Struct, frozen=True, rename="camel"):
    """Jobs that have ended, the last one first; `next` is what `before` is for the next page."""

    jobs: list[EndedBody]
    next: str | None = None


class WaitReasonBody(msgspec.Struct, frozen=True, rename="camel"):
    """Why a job does not run, or what became of it."""

    code: str
    what: str
    remedy: str
    level: Literal["", "warn", "bad"]


class JobReportBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """All that is known of one job; what does not apply to its state is null."""

    entry: int
    state: JobState
    key: Any
    data: Any
    data_base64: str | None
    kind: str | None
    group: str | None
    priority: int | None
    inserted: datetime
    due: datetime | None
    expires: datetime | None
    claimed: datetime | None
    deadline: Annotated[datetime | None, _described(description="When its lease ends")]
    ended: Annotated[datetime | None, _described(description="When it ended, or became a dead letter")]
    owner: str | None
    token: int | None
    timeouts: int | None
    lifetime: int | None
    attempts: list[AttemptBody]
    successor: Annotated[datetime | None, _described(description="When what waits behind the running job is due")]
    stop: str | None
    how: Annotated[str | None, _described(description="How it ended: `done`, or the cause of the dead letter")]
    reason: str | None
    result: Any
    result_left_out: bool
    ends: Annotated[list[EndedBody], _described(description="Runs under this number that have ended, the last first")]
    why: Annotated[list[WaitReasonBody], _described(description="Why it does not run, or what became of it")]


class FlagBody(msgspec.Struct, frozen=True, rename="camel"):
    """Something that an operator should look at."""

    reason: str
    count: int
    first: datetime
    last: datetime
    owner: str | None
    dead_entry: int | None


class FlagsBody(msgspec.Struct, frozen=True):
    """The open flags of a queue."""

    flags: list[FlagBody]


class StatsBody(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of a queue."""

    ready: int
    delayed: int
    running: int
    dead: int
    paused: bool
    oldest_due: datetime | None


class QueueBody(msgspec.Struct, frozen=True, rename="camel"):
    """A queue: its options, and the columns of its keys and data."""

    declaration: Declaration


class QueuesBody(msgspec.Struct, frozen=True):
    """The names of all queues."""

    queues: list[str]


class DeclareBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The options of a queue; what is left out is the default."""

    options: QueueOptions = QueueOptions()
    schemas: list[Any] = []
    description: str = ""


class CountBody(msgspec.Struct, frozen=True):
    """How many jobs that were."""

    count: int


class PausedBody(msgspec.Struct, frozen=True):
    """Whether the queue is paused now, and whether that is new."""

    paused: bool
    changed: bool


class WokenBody(msgspec.Struct, frozen=True):
    """Whether there may be work."""

    woken: bool


def refusals(*statuses: int) -> dict[int, ResponseSpec]:
    """The errors that a route may answer with, for its documentation."""
    return also(504, *statuses)


def also_fine(status: int, body: type[Any], description: str) -> dict[int, ResponseSpec]:
    """A second way to succeed."""
    return {status: ResponseSpec(body, generate_examples=False, description=description)}


def read_key(body: KeyBody, declaration: Declaration | None) -> Any:
    """The key that a body stands for."""
    if isinstance(body, list):
        return tuple(_value(part) for part in body)
    if isinstance(body, dict) and declaration is not None and declaration.schema is not None:
        return {name: _value(value) for name, value in body.items()}
    found = _value(body)
    if isinstance(found, dict):
        raise InvalidKey('a key is text, a whole number, a list of these, or {"base64": "…"}')
    return found


class DataBody(Protocol):
    """A body that brings data."""

    @property
    def data(self) -> Any: ...

    @property
    def data_base64(self) -> str | None: ...


def read_data(body: DataBody, declaration: Declaration | None) -> Any:
    """The data that a body brings; bytes in columns are written like those of keys."""
    if body.data_base64 is not None:
        if body.data is not None:
            raise InvalidInput("give `data` or `dataBase64`, not both")
        return _bytes(body.data_base64)
    if declaration is not None and declaration.schema is not None and isinstance(body.data, dict):
        return {name: _value(value) for name, value in body.data.items()}
    return body.data


def _value(value: Any) -> Any:
    return _bytes(value["base64"]) if isinstance(value, dict) and list(value) == ["base64"] else value


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidInput(f"this is not base64: {error}") from error


def job_fields(info: JobInfo) -> dict[str, Any]:
    data, data_base64 = data_fields(info.data)
    row = info.row
    return {
        "entry": info.entry,
        "key": _key(info.key),
        "data": data,
        "data_base64": data_base64,
        "priority": info.priority,
        "inserted": info.inserted,
        "due": info.due,
        "claimed": info.claimed,
        "expires": info.expires,
        "status": "running" if info.running else "waiting",
        "timeouts": row.timeouts,
        "owner": row.owner,
        "schema": info.schema,
        "kind": info.kind,
        "group": info.group,
        "attempts": _attempts(info.attempts),
    }


def claimed_body(job: Job) -> ClaimedBody:
    return ClaimedBody(**job_fields(job), token=job.token, attempt=job.attempt, deadline=moment(job.deadline_ms))


def dead_body(letter: DeadJob) -> DeadBody:
    data, data_base64 = data_fields(letter.data)
    return DeadBody(
        letter.entry,
        _key(letter.key),
        data,
        data_base64,
        letter.cause,
        letter.reason,
        letter.time,
        _attempts(letter.attempts),
        letter.kind,
        letter.group,
    )


def ended_body(job: EndedJob) -> EndedBody:
    return EndedBody(
        job.entry,
        job.token,
        _key(job.key),
        job.how,
        job.reason,
        job.inserted,
        job.claimed,
        job.ended,
        job.owner,
        _attempts(job.attempts),
        job.result,
        job.result_left_out,
        job.kind,
        job.group,
        job.due,
    )


_WRITTEN = ("key", "data", "attempts", "ends", "why")


def report_body(report: JobReport) -> JobReportBody:
    data, data_base64 = data_fields(report.data)
    return JobReportBody(
        **{name: getattr(report, name) for name in JobReport.__dataclass_fields__ if name not in _WRITTEN},
        key=_key(report.key),
        data=data,
        data_base64=data_base64,
        attempts=_attempts(report.attempts),
        ends=[ended_body(one) for one in report.ends],
        why=[WaitReasonBody(one.code, one.what, one.remedy, one.level) for one in report.why],
    )


def flag_body(flag: Flag) -> FlagBody:
    return FlagBody(flag.reason, flag.count, moment(flag.first_ms), moment(flag.last_ms), flag.owner, flag.dead_entry)


def write_place(place: JobPlace) -> str:
    """Where a page ends, as text."""
    priority, process_ms, key_hash, entry = place
    return f"{priority}.{process_ms}.{key_hash.hex()}.{entry}"


def read_place(text: str) -> JobPlace:
    try:
        priority, process_ms, key_hash, entry = text.split(".")
        return _checked((int(priority), int(process_ms), bytes.fromhex(key_hash), int(entry)))
    except ValueError as error:
        raise InvalidInput(f"after: {text[:100]!r} is not the `next` of a page") from error


def write_letter_place(place: LetterPlace) -> str:
    """Where a page of dead letters ends, as text."""
    return f"{place[0]}.{place[1]}"


def read_letter_place(text: str) -> LetterPlace:
    try:
        dead_ms, entry = text.split(".")
        return _checked((int(dead_ms), int(entry)))
    except ValueError as error:
        raise InvalidInput(f"before: {text[:100]!r} is not the `next` of a page") from error


def write_history_place(place: HistoryPlace) -> str:
    """Where a page of the history ends, as text."""
    return ".".join(map(str, place))


def read_history_place(text: str) -> HistoryPlace:
    try:
        ended_ms, entry, token = text.split(".")
        return _checked((int(ended_ms), int(entry), int(token)))
    except ValueError as error:
        raise InvalidInput(f"before: {text[:100]!r} is not the `next` of a page") from error


def _checked(place: Place) -> Place:
    if not is_place(place):
        raise ValueError("no store holds such numbers")
    return place


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _attempts(attempts: tuple[Attempt, ...]) -> list[AttemptBody]:
    return [
        AttemptBody(moment(one.started_ms), moment(one.ended_ms), one.owner, one.how, one.reason) for one in attempts
    ]


def _key(key: JobKey) -> Any:
    return [_plain(part) for part in key] if isinstance(key, tuple) else _plain(key)


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def data_fields(data: Any) -> tuple[Any, str | None]:
    """Data as a body shows them: `data`, or `dataBase64`."""
    if isinstance(data, bytes):
        return None, base64.b64encode(data).decode()
    if isinstance(data, dict):
        return {name: _plain(value) for name, value in data.items()}, None
    return data, None
