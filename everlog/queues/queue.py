"""`log.queue(name)`: put jobs into a queue, take them out, look at them.

queue = log.queue("pages")
await queue.put("page-7", {"edit": 3}, delay="10s")      # waits; another put for the key merges into it
for job in await queue.claim(10):
    ...
    await job.done()
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

from everlog.config.queue_options import MAX_CLAIM, QueueOptions, check_name, make_options
from everlog.core.duration import Duration, milliseconds
from everlog.errors import Busy, InvalidHandle, InvalidInput, KeyBusy, LeaseLost, QueueNotFound
from everlog.queues.arguments import (
    check_choice,
    check_handle,
    check_limit,
    check_place,
    check_reason,
    check_seconds,
    check_text,
)
from everlog.queues.declaration import ColumnSchema, Declaration, check_declaration
from everlog.queues.history import EndedJob, pack_result, read_ended
from everlog.queues.job import DeadJob, Job, JobInfo, NewJob, Receipt, When, check_entry, make_key, moment, packing
from everlog.queues.job_report import JobReport, read_job
from everlog.queues.keys import JobKey, decode_key, hash_key
from everlog.queues.operations import (
    AckFlag,
    AskStats,
    BeatAnswer,
    Cancel,
    Claim,
    Done,
    Fail,
    FindJob,
    Forget,
    FoundJob,
    Get,
    Handle,
    Heartbeat,
    HistoryPlace,
    JobLease,
    JobPlace,
    LetterPlace,
    ListDead,
    ListFlags,
    ListHistory,
    ListLeases,
    Operation,
    Pause,
    Peek,
    PurgeJobs,
    Put,
    PutAnswer,
    QueueAck,
    Release,
    ReleaseFlag,
    Revive,
    Stats,
)
from everlog.queues.payload import decode_data
from everlog.queues.port import MAX_MAKES, QueueStore
from everlog.queues.priority import DEFAULT_PRIORITY
from everlog.queues.rows import DeadLetter, EndedRow, Flag, JobRow
from everlog.queues.schedules import QueueSchedules

MAX_PAGE = 1000
PAGE_TEXT = "the number of jobs on a page is"
T = TypeVar("T")


class Queue:
    """One work queue. Made by `log.queue(name)`; the queue itself by the first put, or by a declaration."""

    def __init__(self, name: str, store: QueueStore, options: QueueOptions | None = None) -> None:
        self.name = check_name(name)
        self.store = store
        self._options = options

    @property
    def schedules(self) -> QueueSchedules:
        """Jobs that this queue puts by itself, again and again."""
        return QueueSchedules(self)

    async def declare(
        self, /, *, schema: ColumnSchema | None = None, description: str = "", **options: Any
    ) -> Declaration:
        """Make the queue, or change its options. What is not named here is what the configuration says.

        >>> await queue.declare(max_wait="1m", max_in_flight=10)     # doctest: +SKIP
        """
        base = {} if self._options is None else _given(self._options)
        wanted = Declaration(self.name, make_options(**{**base, **options}), _schemas(schema), description)
        check_declaration(wanted)
        return await self.store.declare(wanted)

    async def ensure(self) -> Declaration:
        """The queue's declaration; the queue is made if it is not there.

        What the configuration says is compared once per process: what is declared later stays.
        """
        found = await self.store.declared(self.name)
        new = self._options is not None and self.name not in self.store.configured
        if found is None or (new and found.options != self._options):
            schemas = () if found is None else found.schemas
            found = await self.store.declare(Declaration(self.name, self._options or QueueOptions(), schemas))
        if new:
            self.store.configured.add(self.name)
        return found

    async def declaration(self) -> Declaration:
        """The queue's declaration, or QueueNotFound."""
        found = await self.store.declared(self.name)
        if found is None:
            raise QueueNotFound(self.name, await self.store.names())
        return found

    async def put(
        self,
        key: JobKey | Mapping[str, Any],
        data: Any = None,
        *,
        priority: int = DEFAULT_PRIORITY,
        at: When | None = None,
        delay: Duration | timedelta | None = None,
        expires: When | Duration | None = None,
        kind: str | None = None,
        group: str | None = None,
    ) -> Receipt:
        """Put a job. If one with this key waits, the two merge; if one runs, this waits behind it.

        `at` or `delay`: not before then. `expires`: not after then (a moment, or how long from now).
        `kind`: which of the queue's functions does it. `group`: whose share of the queue it uses.
        """
        pack = packing(NewJob(key, data, priority, at, delay, expires, kind, group), self.store.clock.now_ms())
        put = await self._ensured(lambda declaration: self._do(Put(pack(declaration))))
        return self._receipt(cast(PutAnswer, put))

    async def put_many(self, jobs: Iterable[NewJob | tuple[Any, Any]]) -> list[Receipt]:
        """Put jobs, or pairs of key and data, as `put` does one after the other, but faster: they share commits.

        All are checked before the first one is stored. One whose key is busy where that is not allowed has the result
        REJECTED, and raises nothing. After an error some may have been put: putting them again merges them.
        """
        now = self.store.clock.now_ms()
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable):
            raise InvalidInput(f"jobs to put are NewJob values, or pairs of key and data, not {jobs!r:.100}")
        packs = [packing(_new_job(job), now) for job in jobs]
        put = await self._ensured(
            lambda declaration: self.store.put_all(self.name, [pack(declaration) for pack in packs])
        )
        return list(map(Receipt._make, put))

    async def _ensured(self, work: Callable[[Declaration], Awaitable[T]]) -> T:
        """Do something with the queue, which is made if it is not there, also if it is deleted right before."""
        for _ in range(MAX_MAKES):
            try:
                return await work(await self.ensure())
            except QueueNotFound:
                self.store.forget(self.name)
        raise Busy(f"the queue {self.name} is deleted again and again: try again")

    def put_in(
        self,
        connection: sqlite3.Connection,
        key: JobKey | Mapping[str, Any],
        data: Any = None,
        *,
        priority: int = DEFAULT_PRIORITY,
        at: When | None = None,
        delay: Duration | timedelta | None = None,
        expires: When | Duration | None = None,
        kind: str | None = None,
        group: str | None = None,
    ) -> Receipt:
        """Put a job inside your own SQLite transaction: it exists if and only if you commit.

        The queue must have been declared with `bucket="none"` and `file=` the file of this connection.
        """
        pack = packing(NewJob(key, data, priority, at, delay, expires, kind, group), self.store.clock.now_ms())
        return self._receipt(self.store.put_in(connection, self.name, pack))

    def _receipt(self, answer: PutAnswer) -> Receipt:
        if answer.result == "REJECTED":
            raise KeyBusy(self.name, answer.entry)
        return Receipt(answer.result, answer.entry)

    async def claim(
        self,
        limit: int = 1,
        *,
        owner: str = "client",
        lease: Duration | timedelta | None = None,
        fast_only: bool = False,
    ) -> list[Job]:
        """Take the first jobs that are due, each under a lease. `lease`: how long, instead of the queue's default."""
        check_limit("the number of jobs that a claim takes is", limit, MAX_CLAIM)
        check_text("the owner of a claim", owner)
        check_choice("fast_only", fast_only)
        lease_ms = None if lease is None else milliseconds(lease)
        if lease_ms == 0:
            raise InvalidInput("a lease lasts at least a millisecond")
        declaration = await self.declaration()
        leases = cast(list[JobLease], await self._do(Claim(owner, limit, lease_ms, fast_only)))
        return [Job(self, found, declaration) for found in leases]

    async def done(self, job: Job | Handle, result: Any = None) -> None:
        """The work is finished: the job goes, and what came for its key meanwhile is next.

        `result` is for the history of a queue with `keep_done`, if it is small JSON.
        """
        packed = None if result is None else pack_result(result)
        self._check(job, cast(QueueAck, await self._do_held(job, Done(self._handle(job), packed))))

    async def fail(
        self,
        job: Job | Handle,
        reason: str | None = None,
        *,
        delay: Duration | timedelta | None = None,
        retry: bool = True,
    ) -> None:
        """The attempt failed: again later, or with `retry=False` a dead letter."""
        delay_ms = None if delay is None else milliseconds(delay)
        operation = Fail(self._handle(job), check_reason(reason), delay_ms, check_choice("retry", retry))
        self._check(job, cast(QueueAck, await self._do_held(job, operation)))

    async def release(
        self, job: Job | Handle, *, delay: Duration | timedelta | None = None, flag: ReleaseFlag | None = None
    ) -> None:
        """Give the job back untouched; that does not count as a failure.

        `delay`: it is not given out again before that. `flag`: raise this flag in the same step.
        """
        delay_ms = None if delay is None else milliseconds(delay)
        self._check(job, cast(QueueAck, await self._do_held(job, Release(self._handle(job), delay_ms, flag))))

    async def heartbeat(self, job: Job | Handle) -> BeatAnswer:
        """Keep the job for one more lease; the answer says whether it should stop."""
        answer = cast(BeatAnswer, await self._do_held(job, Heartbeat(self._handle(job))))
        self._check(job, answer.ack)
        if isinstance(job, Job):
            job.deadline_ms = answer.deadline_ms
        return answer

    async def _do_held(self, job: Job | Handle, operation: Operation) -> Any:
        """With a queue that was deleted, its leases have gone; only of a bare handle it may never have been there."""
        try:
            return await self._do(operation)
        except QueueNotFound as error:
            if isinstance(job, Handle):
                raise
            raise LeaseLost(self.name, *job.handle) from error

    def _handle(self, job: Job | Handle) -> Handle:
        if not isinstance(job, Job):
            return check_handle(job)
        if job.queue.name != self.name:
            raise InvalidHandle(f"this job is of the queue {job.queue.name!r}, not of {self.name!r}")
        return job.handle

    def _check(self, job: Job | Handle, ack: QueueAck) -> None:
        if ack != "OK":
            raise LeaseLost(self.name, *self._handle(job))

    async def get(self, key: JobKey | Mapping[str, Any]) -> list[JobInfo]:
        """The jobs of a key, waiting or running: one at most, if the queue merges."""
        declaration = await self.declaration()
        encoded = make_key(declaration, key)
        rows = cast(list[JobRow], await self._do(Get(encoded, hash_key(encoded))))
        return [JobInfo(row, declaration) for row in rows]

    async def job(self, entry: int) -> JobReport | None:
        """One job by its number, wherever it is: waiting (and why it does not run), running, dead, or ended.

        None if there is none: it never was, it has expired, or it has ended and is not kept.
        """
        operation = FindJob(check_entry(entry))
        declaration = await self.declaration()
        return read_job(entry, cast(FoundJob, await self._do(operation)), declaration)

    async def peek(self, limit: int = 10, *, after: JobInfo | JobPlace | None = None) -> list[JobInfo]:
        """What waits, in order, due or not; `after` goes on behind a job of the last page."""
        check_limit(PAGE_TEXT, limit, MAX_PAGE)
        declaration = await self.declaration()
        place = after.row.order if isinstance(after, JobInfo) else check_place(after, (int, int, bytes, int))
        rows = cast(list[JobRow], await self._do(Peek(limit, place)))
        return [JobInfo(row, declaration) for row in rows]

    async def leases(self, limit: int = 100) -> list[JobInfo]:
        """What is being processed; the one whose lease ends first at the head."""
        check_limit(PAGE_TEXT, limit, MAX_PAGE)
        declaration = await self.declaration()
        rows = cast(list[JobRow], await self._do(ListLeases(limit)))
        return [JobInfo(row, declaration) for row in rows]

    async def jobs(self, page: int = 100) -> AsyncIterator[JobInfo]:
        """All that waits, in order."""
        after: JobInfo | None = None
        while found := await self.peek(page, after=after):
            for info in found:
                yield info
            after = found[-1]

    async def cancel(self, key: JobKey | Mapping[str, Any], reason: str | None = None) -> int:
        """Remove what waits for a key, tell what runs to stop; returns the number of jobs."""
        why = check_reason(reason)
        encoded = make_key(await self.declaration(), key)
        return cast(int, await self._do(Cancel(encoded, hash_key(encoded), why)))

    async def purge(self, *, running: bool = False) -> int:
        """Remove all that waits, for good; returns the number of jobs. What runs goes on, unless `running` is given.

        Dead letters, the history and schedules stay. It goes on until nothing waits, also for what is put meanwhile.
        """
        check_choice("running", running)
        count, found = 0, MAX_PAGE
        while found >= MAX_PAGE:
            found = cast(int, await self._do(PurgeJobs(MAX_PAGE, running)))
            count += found
        return count

    async def delete(self, *, running: bool = False) -> int:
        """Remove the queue with all that it holds, for good; returns the number of jobs.

        Its declaration, jobs, dead letters, flags, history and schedules go. While jobs run it is refused, unless
        `running` is given: their workers then hear that they have lost them. The next put makes the queue anew.
        """
        count = await self.store.delete(self.name, running=check_choice("running", running))
        self.store.configured.discard(self.name)
        return count

    async def pause(self) -> bool:
        """No more claims, until `resume`; whether that is new."""
        return cast(bool, await self._do(Pause(True)))

    async def resume(self) -> bool:
        return cast(bool, await self._do(Pause(False)))

    async def stats(self) -> Stats:
        """How many jobs are ready, delayed, running, dead."""
        return cast(Stats, await self._do(AskStats()))

    async def dead(self, limit: int = 100, *, before: DeadJob | LetterPlace | None = None) -> list[DeadJob]:
        """Dead letters, those that died last first; `before` goes on behind the last one of a page."""
        check_limit(PAGE_TEXT, limit, MAX_PAGE)
        declaration = await self.declaration()
        place = before.place if isinstance(before, DeadJob) else check_place(before, (int, int))
        letters = cast(list[DeadLetter], await self._do(ListDead(limit, place)))
        return [
            DeadJob(
                letter.entry,
                decode_key(letter.key),
                decode_data(letter.image.data, declaration, letter.image.schema),
                letter.cause,
                letter.reason,
                moment(letter.dead_ms),
                letter.attempts,
                letter.image.kind or None,
                letter.image.group or None,
            )
            for letter in letters
        ]

    async def history(
        self,
        limit: int = 100,
        *,
        before: EndedJob | HistoryPlace | None = None,
        key: JobKey | Mapping[str, Any] | None = None,
    ) -> list[EndedJob]:
        """Jobs that have ended, those that ended last first; `before` goes on behind the last one of a page.

        Empty unless the queue is declared with `keep_done`. `key`: only the jobs of this key.
        """
        check_limit(PAGE_TEXT, limit, MAX_PAGE)
        declaration = await self.declaration()
        encoded = None if key is None else make_key(declaration, key)
        place = before.place if isinstance(before, EndedJob) else check_place(before, (int, int, int))
        operation = ListHistory(limit, place, encoded, None if encoded is None else hash_key(encoded))
        return [read_ended(row) for row in cast(list[EndedRow], await self._do(operation))]

    async def revive(self, entry: int) -> Receipt | None:
        """Put a dead letter back into the queue; None if there is none of that number.

        Where a queue refuses or drops a put whose key runs, this is KeyBusy, and the letter stays.
        """
        answer = cast("PutAnswer | None", await self._do(Revive(check_entry(entry))))
        if answer is None:
            return None
        if answer.result == "DROPPED":
            raise KeyBusy(self.name, answer.entry)
        receipt = self._receipt(answer)
        await self._do(Forget(entry))
        return receipt

    async def flags(self) -> list[Flag]:
        """What an administrator should know: one open flag per reason."""
        return cast(list[Flag], await self._do(ListFlags()))

    async def ack_flag(self, reason: str) -> bool:
        """Close a flag; whether it was open."""
        return cast(bool, await self._do(AckFlag(check_text("the reason of a flag", reason))))

    async def wait(self, seconds: float, *, listener: str = "client") -> bool:
        """Wait until there may be work; False after `seconds`."""
        check_seconds("how long to wait", seconds)
        check_text("a listener", listener)
        await self.declaration()
        return await self.store.wait(self.name, listener, seconds)

    def _do(self, operation: Operation) -> Awaitable[Any]:
        return self.store.execute(self.name, operation)


def _given(options: QueueOptions) -> dict[str, Any]:
    default = QueueOptions()
    names = QueueOptions.__struct_fields__
    return {name: getattr(options, name) for name in names if getattr(options, name) != getattr(default, name)}


def _new_job(job: object) -> NewJob:
    if isinstance(job, NewJob):
        return job
    if not isinstance(job, tuple | list) or not 1 <= len(job) <= len(NewJob._fields):
        raise InvalidInput(f"a job to put is a NewJob, or a pair of key and data, not {job!r:.100}")
    return NewJob(*job)


def _schemas(schema: ColumnSchema | None) -> tuple[ColumnSchema, ...]:
    return () if schema is None else (schema,)
