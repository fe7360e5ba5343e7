"""Jobs as the users of a queue see them: what became of a put, a job from outside, one under a lease, a dead one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from everlog.core.duration import Duration
from everlog.queues.declaration import Declaration
from everlog.queues.keys import JobKey, decode_key
from everlog.queues.operations import BeatAnswer, Handle, JobLease, Result
from everlog.queues.payload import decode_data
from everlog.queues.rows import Attempt, JobRow

if TYPE_CHECKING:
    from everlog.queues.queue import Queue


class Receipt(NamedTuple):
    """What became of a put: CREATED, MERGED, SUCCESSOR, …; `entry` names the job that holds it now."""

    result: Result
    entry: int


class JobInfo:
    """A job as one sees it from outside."""

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

    async def done(self) -> None:
        await self.queue.done(self)

    async def fail(self, reason: str | None = None, *, delay: Duration | timedelta | None = None) -> None:
        await self.queue.fail(self, reason, delay=delay)

    async def release(self) -> None:
        await self.queue.release(self)

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


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
