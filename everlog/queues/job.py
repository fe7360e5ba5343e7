"""Jobs as the users of a queue see them: one to put, what became of it, a job from outside, under a lease, or dead.

`packing` turns a job to put into the packet that is sent: keys, data and dates are all checked before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from everlog.core.duration import LAST_MS, Duration, milliseconds
from everlog.errors import InvalidInput, InvalidKey
from everlog.queues.columns import encode_columns_key
from everlog.queues.declaration import Declaration
from everlog.queues.keys import JobKey, KindKey, decode_key, encode_key, hash_key
from everlog.queues.labels import check_group, check_kind
from everlog.queues.operations import BeatAnswer, Handle, JobLease, LetterPlace, Result
from everlog.queues.payload import decode_data, encode_data
from everlog.queues.priority import DEFAULT_PRIORITY, check_priority
from everlog.queues.rows import Attempt, JobRow, Packet

if TYPE_CHECKING:
    from everlog.queues.queue import Queue

When = datetime | timedelta
MAX_ENTRY = 2**63 - 1
# The last whole second of the calendar.
MAX_MOMENT_MS = LAST_MS // 1000 * 1000


class NewJob(NamedTuple):
    """A job to put. `at` or `delay`: not before then. `expires`: not after then (a moment, or how long from now)."""

    key: JobKey | Mapping[str, Any]
    data: Any = None
    priority: int = DEFAULT_PRIORITY
    at: When | None = None
    delay: Duration | timedelta | None = None
    expires: When | Duration | None = None
    kind: str | None = None
    group: str | None = None


class Receipt(NamedTuple):
    """What became of a put: CREATED, MERGED, SUCCESSOR, …; `entry` names the job that holds it now."""

    result: Result
    entry: int


class JobInfo:
    """A job as it is seen from outside."""

    def __init__(self, row: JobRow, declaration: Declaration) -> None:
        self.row = row
        self._declaration = declaration

    @property
    def entry(self) -> int:
        return self.row.entry

    @property
    def key(self) -> JobKey:
        return decode_key(self.row.key)

    @property
    def data(self) -> Any:
        return decode_data(self.row.image.data, self._declaration, self.row.image.schema)

    @property
    def priority(self) -> int:
        return self.row.image.priority

    @property
    def kind(self) -> str | None:
        """Which function does it, in a queue with several; None if it has no kind."""
        return self.row.image.kind or None

    @property
    def group(self) -> str | None:
        """Whose share of the queue it uses; None if it belongs to no group."""
        return self.row.image.group or None

    @property
    def inserted(self) -> datetime:
        """When it was first put: what merged into it later does not change that."""
        return moment(self.row.image.inserted_ms)

    @property
    def claimed(self) -> datetime | None:
        """When its present attempt began; heartbeats do not change that. None while it waits."""
        return None if self.row.claimed_ms is None else moment(self.row.claimed_ms)

    @property
    def due(self) -> datetime:
        """When it may start."""
        return moment(self.row.image.process_ms)

    @property
    def expires(self) -> datetime | None:
        seconds = self.row.image.expires_s
        return moment(seconds * 1000) if seconds else None

    @property
    def running(self) -> bool:
        return self.row.status == "P"

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The last runs that did not end in done."""
        return self.row.attempts

    @property
    def schema(self) -> int:
        """The version of the columns that the data were written with."""
        return self.row.image.schema


class Job(JobInfo):
    """A job that this worker has, until its lease ends. (entry, token) never repeats: fence your own writes with it."""

    def __init__(self, queue: Queue, lease: JobLease, declaration: Declaration) -> None:
        super().__init__(lease.row, declaration)
        self.queue = queue
        self.handle = Handle(lease.row.entry, lease.row.token)
        self.deadline_ms = lease.deadline_ms
        self.stopping = False

    def __repr__(self) -> str:
        return f"Job({self.queue.name}, {self.key!r}, attempt {self.attempt})"

    @property
    def token(self) -> int:
        return self.row.token

    @property
    def attempt(self) -> int:
        """1 for the first run since the last merge."""
        return self.row.timeouts + 1

    @property
    def goes_first(self) -> bool:
        """Whether slow ones wait for it, in a queue that keeps them apart."""
        threshold = self._declaration.options.slow_threshold
        return threshold is not None and self.row.image.priority < threshold

    @property
    def keeps_result(self) -> bool:
        """Whether what the function returns is kept: the queue has a history."""
        return self._declaration.options.settings.keep_done_ms > 0

    async def done(self, result: Any = None) -> None:
        await self.queue.done(self, result)

    async def fail(self, reason: str | None = None, *, delay: Duration | timedelta | None = None) -> None:
        await self.queue.fail(self, reason, delay=delay)

    async def release(self, *, delay: Duration | timedelta | None = None) -> None:
        await self.queue.release(self, delay=delay)

    async def heartbeat(self) -> BeatAnswer:
        return await self.queue.heartbeat(self)


class DeadJob(NamedTuple):
    """A job that will not run again by itself; `revive(entry)` puts it back."""

    entry: int
    key: JobKey
    data: Any
    cause: str
    reason: str | None
    time: datetime
    attempts: tuple[Attempt, ...]
    kind: str | None = None
    group: str | None = None

    @property
    def place(self) -> LetterPlace:
        """Where it is among the dead: a page goes on behind it."""
        return (round(self.time.timestamp() * 1000), self.entry)


def check_entry(entry: object) -> int:
    """The number of a job, as every store can hold it."""
    if type(entry) is not int or not 0 <= entry <= MAX_ENTRY:
        raise InvalidInput(f"the number of a job is a whole number from 0 to 2**63 - 1, not {repr(entry)[:100]}")
    return entry


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def make_key(declaration: Declaration, key: object) -> bytes:
    """The canonical bytes of a key; a declared one is a value per column, or a dictionary of them.

    Columns leave no room for a kind: where they are declared, the key is theirs alone.
    """
    schema = declaration.schema
    if schema is None:
        return encode_key(key.plain if isinstance(key, KindKey) else key)
    if isinstance(key, KindKey):
        key = key.key
    columns = schema.key_columns
    if isinstance(key, Mapping):
        return encode_columns_key(columns, key)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(columns):
        raise InvalidInput(f"the key of {declaration.name} has {len(columns)} columns, not {len(values)}")
    return encode_columns_key(columns, dict(zip((column.name for column in columns), values, strict=True)))


def parse_key(declaration: Declaration | None, text: str) -> JobKey:
    """A key as a user types it: text, or for declared columns one value for each, separated by commas."""
    schema = None if declaration is None else declaration.schema
    if schema is None:
        return text
    columns = schema.key_columns
    parts = text.split(",") if len(columns) > 1 else [text]
    if len(parts) != len(columns):
        raise InvalidKey(f"the key is {','.join(column.name for column in columns)}, not {text!r}")
    values: list[str | int | bytes] = []
    for column, part in zip(columns, parts, strict=True):
        try:
            whole = column.width is not None
            values.append(int(part) if whole else part if column.type == "string" else part.encode())
        except ValueError as error:
            raise InvalidKey(f"the key column {column.name} is {column.type}: {part!r} is not") from error
    return values[0] if len(values) == 1 else tuple(values)


def packing(job: NewJob, now: int) -> Callable[[Declaration], Packet]:
    """What makes the packet that a put sends. All that needs no declaration is checked already."""
    priority = check_priority(job.priority)
    kind, group = check_kind(job.kind), check_group(job.group)
    process_ms, expires_s = process_ms_of(job.at, job.delay, now), expires_s_of(job.expires, now)

    def pack(declaration: Declaration) -> Packet:
        key = make_key(declaration, job.key)
        data = encode_data(job.data, declaration)
        version = declaration.version
        return Packet(key, hash_key(key), data, priority, now, process_ms, expires_s, version, kind, group)

    return pack


def process_ms_of(at: When | None, delay: Duration | timedelta | None, now: int) -> int | None:
    """When a job may start; None: at once."""
    if at is not None and delay is not None:
        raise InvalidInput("give `at` or `delay`, not both")
    if delay is not None:
        return now + milliseconds(delay)
    return None if at is None else _absolute_ms("at", at, now)


def expires_s_of(expires: When | Duration | None, now: int) -> int:
    """The last second of its life, rounded up: a job must not expire earlier than it was told."""
    if expires is None:
        return 0
    if isinstance(expires, str | int | float):
        expires = timedelta(milliseconds=milliseconds(expires))
    return -(-_absolute_ms("expires", expires, now) // 1000)


def _absolute_ms(name: str, when: object, now: int) -> int:
    if isinstance(when, timedelta):
        found = now + round(when.total_seconds() * 1000)
    elif not isinstance(when, datetime):
        raise InvalidInput(f"{name} is a datetime or a timedelta, not {when!r}")
    elif when.tzinfo is None:
        raise InvalidInput(f"{name}={when} has no time zone: write datetime(…, tzinfo=UTC)")
    else:
        found = min(round(when.timestamp() * 1000), MAX_MOMENT_MS)
    if not 0 <= found <= MAX_MOMENT_MS:
        raise InvalidInput(f"{name}={when!r} is not between the years 1970 and 9999")
    return found
