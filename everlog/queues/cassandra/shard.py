"""One shard of a queue in this process: served here while this process owns it, else passed on to the one that does.

Operations gather into groups. A group that the owner did not get is tried again: there, at the next owner, or here
after a takeover. One that was sent and not answered is asked for again under its number, which the owner does once; if
that owner is gone, reads are tried again and the callers of writes get `AnswerLost`.

The invariant: every caller gets an answer or an error, and the loop goes on, whatever is raised in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from everlog.core.bounded_map import BoundedMap
from everlog.errors import AnswerLost, Busy, Deposed, EverlogError, OwnedElsewhere, QueueNotFound, StorageFailed
from everlog.queues.cassandra.owner import ShardOwner
from everlog.queues.cassandra.shard_log import ShardLog, ShardRow
from everlog.queues.listeners import Listeners
from everlog.queues.operations import (
    READS,
    AskDue,
    AskStats,
    Claim,
    Clear,
    ClearedShard,
    DueAnswer,
    Heartbeat,
    Operation,
    Put,
    QueueAnswer,
    Stats,
)
from everlog.queues.port import SWEEP
from everlog.queues.shards import ShardPart
from everlog.queues.wire import WireOutcome, decode_outcomes, encode_outcomes
from everlog.runtime.lease import LeaseWatch
from everlog.runtime.supervisor import LoopRecord, LoopStatus, asks_to_end, run_supervised

if TYPE_CHECKING:
    from everlog.queues.cassandra.calls import Call, Reply
    from everlog.queues.cassandra.queue_store import CassandraQueueStore

logger = logging.getLogger("everlog.queues")

MAX_GROUP = 256
MAX_GROUP_BYTES = 4 * 1024 * 1024
MAX_WAITING = 20_000
MAX_SENDERS = 1000
RETRY_S = 0.1


class _Request(NamedTuple):
    """`passed_on`: by another process, so it is done here or not at all. `until`: how long to look for an owner.

    `life`: for which of the queues of this name its shard was chosen, and its data were packed.
    """

    operation: Operation
    life: int
    future: asyncio.Future[QueueAnswer]
    passed_on: bool
    until: float


class _Last(NamedTuple):
    """The last call of a process; a repeat of it is answered, not done."""

    number: int
    reply: asyncio.Task[Reply]


class ShardService:
    """Groups of operations, beats, takeovers, one after the other."""

    def __init__(self, store: CassandraQueueStore, name: str, index: int) -> None:
        self._store = store
        self._name = name
        self._part = ShardPart(index, index + 1)  # of how many, the row says
        self._life = 0
        self._requests: list[_Request] = []
        self._some = asyncio.Event()
        self._owner: ShardOwner | None = None
        self._route: ShardRow | None = None
        self._watch = LeaseWatch(store.takeover_s)
        self._number = 0
        self._senders: BoundedMap[str, _Last] = BoundedMap(MAX_SENDERS)
        self._remote = Listeners()
        self._told_ms: int | None = None
        self._closing = False
        self._record = LoopRecord(f"shard {index} of {name}", clock=store.clock, logger=logger)
        loop = run_supervised(self._record, self._run, lambda: True)
        self._task = asyncio.create_task(loop, name=f"everlog-shard-{name}-{index}")
        self.counted: Counter[str] = Counter()

    def status(self) -> LoopStatus:
        return self._record.status

    async def execute(self, operation: Operation, life: int, *, passed_on: bool = False) -> QueueAnswer:
        if self._closing or self._task.done():
            if passed_on:  # the next owner takes it
                raise OwnedElsewhere(self._name, "no process")
            raise StorageFailed(f"the queue {self._name} is closed")
        if len(self._requests) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING:,} operations wait for the queue {self._name}: try again")
        future: asyncio.Future[QueueAnswer] = asyncio.get_running_loop().create_future()
        until = self._store.clock.monotonic() + 2 * self._store.takeover_s
        self._requests.append(_Request(operation, life, future, passed_on, until))
        self._some.set()
        return await future

    async def answer(self, call: Call) -> Reply | None:
        """Do what another process asks, once for each of its numbers; None for one that it gave up."""
        last = self._senders.get(call.sender)
        if last is not None and call.number < last.number:
            return None
        if last is None or call.number > last.number:
            last = _Last(call.number, asyncio.create_task(self._reply(call)))
            self._senders.put(call.sender, last)
        return await asyncio.shield(last.reply)

    async def _reply(self, call: Call) -> Reply:
        from everlog.queues.cassandra.calls import Reply

        async def run(operation: Operation) -> WireOutcome:
            try:
                return await self.execute(operation, call.life, passed_on=True)
            except EverlogError as error:
                return error

        for operation in call.operations:
            if isinstance(operation, Claim):
                self._remote.claimed(call.nudge)
            elif isinstance(operation, AskDue) and call.nudge and self._remote.idle < MAX_SENDERS:
                self._remote.listen(call.nudge)  # before it is answered: nothing comes in between
        outcomes = await asyncio.gather(*(run(operation) for operation in call.operations))
        for outcome in outcomes:
            if isinstance(outcome, DueAnswer):
                self._told_ms = outcome.next_ms
        return Reply(self._store.clock.now_ms(), encode_outcomes(outcomes))

    async def close(self) -> None:
        """Finish what was accepted, then let go of the shard."""
        self._closing = True
        self._some.set()
        await self._task

    async def _run(self) -> None:
        clock = self._store.clock
        next_beat = clock.monotonic() + self._store.beat_s
        while not self._closing or self._requests:
            try:
                async with asyncio.timeout(None if self._owner is None else self._store.beat_s):
                    await self._some.wait()
            except TimeoutError:
                pass
            await self._serve()
            if self._owner is not None and clock.monotonic() >= next_beat:
                next_beat = clock.monotonic() + self._store.beat_s
                await self._upkeep(self._owner.log.beat)
        if self._owner is not None:
            await self._upkeep(self._owner.log.resign)

    async def _serve(self) -> None:
        """One group: here, or where the shard is owned."""
        group = self._take_group()
        if not group:
            return
        try:
            await self._serve_group(group)
        except Deposed as error:  # another process was quicker
            if self._store.calls:
                await self._again(group, error)
            else:
                self._fail(group, error)
        except BaseException as error:
            self._fail(group, error)
            if asks_to_end(error):
                raise

    async def _serve_group(self, group: Sequence[_Request]) -> None:
        if self._route is None:
            try:
                owner = await self._own(group[0])
            except OwnedElsewhere:
                if self._route is None:
                    raise
            else:
                return await self._serve_here(owner, group)
        assert self._route is not None
        return await self._pass_on(group, self._route)

    async def _serve_here(self, owner: ShardOwner, group: Sequence[_Request]) -> None:
        """Applied, written, answered; only then tidied up."""
        try:
            if group[0].life != self._life:
                self._fail(group, QueueNotFound(self._name, await self._store.names()))
                return
            if isinstance(group[0].operation, Clear):
                await self._clear(owner, group[0], group[0].operation)
                return
            declaration = await self._store.known(self._name)
            owner.engine.settings = declaration.options.settings
            answers = await owner.execute([request.operation for request in group], self._store.clock.now_ms())
        except BaseException as error:
            self._owner = None  # what it has in memory may not be in the log
            if asks_to_end(error):
                raise
            if isinstance(error, QueueNotFound):  # no process needs to wait for this one
                await self._upkeep(owner.log.resign)
            self._fail(group, error)
            return
        self.counted, owner.engine.counted = self.counted + owner.engine.counted, Counter()
        self._announce(owner)
        for request, answer in zip(group, answers, strict=True):
            if not request.future.done():
                request.future.set_result(answer)
        self._nudge(owner, group)
        await self._upkeep(owner.tidy)

    async def _clear(self, owner: ShardOwner, request: _Request, operation: Clear) -> None:
        """Forget a queue that is being deleted, or count what runs if that may still prevent it; and let go of the
        shard: the next owner looks whether it is there."""
        found = await self._store.latest(self._name)
        if (found.state, found.deletion) != ("deleting", operation.deletion):
            raise QueueNotFound(self._name, [])  # another process has finished that deletion
        now = self._store.clock.now_ms()
        if found.decided:
            answer = await owner.clear(operation, now)
        else:
            (stats,) = await owner.execute([AskStats()], now)
            assert isinstance(stats, Stats)
            answer = ClearedShard(stats.running, owner.table.last_entry)
        self._owner = None
        await self._upkeep(owner.log.resign)
        if not request.future.done():
            request.future.set_result(answer)

    def _announce(self, owner: ShardOwner) -> None:
        raised, owner.engine.raised = owner.engine.raised, []
        self._store.announce(self._name, raised)

    def _take_group(self) -> list[_Request]:
        size = count = 0
        for request in self._requests[:MAX_GROUP]:
            if isinstance(request.operation, Put):
                size += len(request.operation.packet.data)
            other = isinstance(request.operation, Clear) or request.life != self._requests[0].life
            if count and (size > MAX_GROUP_BYTES or other):
                break
            count += 1
            if isinstance(request.operation, Clear):  # alone: what comes after it finds no queue
                break
        group, self._requests = self._requests[:count], self._requests[count:]
        if not self._requests:
            self._some.clear()
        return group

    def _fail(self, requests: Sequence[_Request], error: BaseException) -> None:
        verdict = error if isinstance(error, EverlogError) else StorageFailed(f"{self._name}: {error!r}")
        if verdict is not error:
            self._record.note(f"{self._name}: a group of operations failed", error)
        for request in requests:
            if not request.future.done():
                request.future.set_exception(verdict)

    async def _upkeep(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except BaseException as error:  # whatever it is, the log says what counts: it is read again
            self._owner = None
            if asks_to_end(error):
                raise
            self._record.note(self._name, error)

    def _nudge(self, owner: ShardOwner, group: Sequence[_Request]) -> None:
        """Notify waiting processes: as many as there are jobs, or all if a job is due earlier than they know."""
        if not self._remote.idle or all(isinstance(request.operation, READS) for request in group):
            return
        now = self._store.clock.now_ms()
        answer = owner.engine.apply(AskDue(self._remote.wanted(now)), now)
        assert isinstance(answer, DueAnswer)
        names = self._remote.wake(answer.due, now)
        if answer.next_ms is not None and (self._told_ms is None or answer.next_ms < self._told_ms):
            self._told_ms = answer.next_ms
            names += self._remote.wake(1 << 31, now)
        for address in names:
            self._store.nudge(address, self._name)

    async def _own(self, request: _Request) -> ShardOwner:
        """The shard, ours; taken over if its owner let go of it or has not moved for long enough."""
        if self._owner is not None and request.life <= self._life:
            return self._owner
        self._owner = None  # a deletion goes by the owner: there has been another one meanwhile
        store = self._store
        backend = await store.backend(self._name, self._part)
        row = await backend.read_shard()
        alive = self._is_alive(row)
        forced = bool(row.owner) and row.owner != store.name
        if forced and alive:
            self._route = row if row.address and store.calls else None
            raise OwnedElsewhere(self._name, row.owner)
        queue = await store.latest(self._name)  # behind the read of the row: a deletion in between changes that
        part, settings = ShardPart(self._part.index, queue.options.shards), queue.options.settings
        refused = queue.state == "deleting" and not isinstance(request.operation, Clear)
        if refused or part.index >= part.count:
            raise QueueNotFound(self._name, await store.names())
        log = ShardLog(backend, owner=store.name, address=await store.listen())
        if not await log.take_over(row):
            raise Deposed(f"another process took over the queue {self._name}: try again")
        owner = ShardOwner(
            log,
            settings,
            admin=await store.admin(self._name, part, settings),
            sweep=min(store.sweep, SWEEP),
            segment_records=store.segment_records,
            part=part,
        )
        await owner.load(store.clock.now_ms(), forced_by=store.name if forced else None, last_entry=queue.last_entry)
        logger.info("%s owns %s/%d: %d jobs", store.name, self._name, self._part.index, len(owner.table.rows))
        self._owner, self._life = owner, queue.life
        self._announce(owner)
        return owner

    def _is_alive(self, row: ShardRow) -> bool:
        """Whether the owner has shown a sign of life, by a clock of ours."""
        return self._watch.look(self._name, (row.epoch, row.beat), self._store.clock.monotonic())

    async def _pass_on(self, group: Sequence[_Request], row: ShardRow) -> None:
        """Ask the owner."""
        from everlog.queues.cassandra.calls import Call, NoAnswer, NotSent

        self._fail([one for one in group if one.passed_on], OwnedElsewhere(self._name, row.owner))
        requests = [one for one in group if not one.passed_on]
        if not requests:
            return
        self._number += 1
        operations = [request.operation for request in requests]
        store = self._store
        place, life = (row.owner, self._name, self._part.index), requests[0].life
        call = Call(*place, store.name, self._number, store.nudged_at, operations, life)
        try:
            outcomes = await self._ask(row, call)
        except NotSent as error:
            self._route = None
            await self._again(requests, OwnedElsewhere(self._name, f"{row.owner} ({error})"))
        except NoAnswer as error:
            self._route = None
            await self._ask_again(requests, row, call, error)
        else:
            await self._deliver(requests, outcomes)

    async def _ask(self, row: ShardRow, call: Call) -> list[WireOutcome]:
        """The outcomes; times are converted to our clock."""
        reply = await self._store.send(row.address, call)
        ahead = self._store.clock.now_ms() - reply.now_ms
        return [
            one._replace(next_ms=one.next_ms + ahead) if isinstance(one, DueAnswer) and one.next_ms is not None else one
            for one in decode_outcomes(reply.outcomes, call.operations)
        ]

    async def _deliver(self, requests: Sequence[_Request], outcomes: Sequence[WireOutcome]) -> None:
        refused: list[_Request] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, OwnedElsewhere):
                refused.append(request)
            elif not request.future.done():
                if isinstance(outcome, EverlogError):
                    request.future.set_exception(outcome)
                else:
                    request.future.set_result(outcome)
        if refused:
            self._route = None
            await self._again(refused, OwnedElsewhere(self._name, "another process"))

    async def _ask_again(self, requests: Sequence[_Request], row: ShardRow, call: Call, why: Exception) -> None:
        """The same call once more, as long as the same owner lives: it does each call once."""
        from everlog.queues.cassandra.calls import NoAnswer, NotSent

        backend = await self._store.backend(self._name, self._part)
        while self._store.clock.monotonic() < requests[0].until and not self._closing:
            try:
                now = await backend.read_shard()
                if now.epoch != row.epoch or not self._is_alive(now):
                    break
                outcomes = await self._ask(row, call)
            except NoAnswer as error:
                why = error
            except (NotSent, EverlogError) as error:
                why = error
                break
            else:
                await self._deliver(requests, outcomes)
                return
        safe = (*READS, Heartbeat, Clear)
        lost = [request for request in requests if not isinstance(request.operation, safe)]
        self._fail(lost, AnswerLost(self._name, f"its owner {row.owner} did not answer: {why}"))
        await self._again([request for request in requests if isinstance(request.operation, safe)], why)

    async def _again(self, requests: Sequence[_Request], error: Exception) -> None:
        """Nothing of these was done: try again in a moment, while their callers can wait."""
        now = self._store.clock.monotonic()
        verdict = error if isinstance(error, EverlogError) else OwnedElsewhere(self._name, str(error))
        kept: list[_Request] = []
        for request in requests:
            if request.passed_on or request.until <= now or self._closing:
                self._fail([request], OwnedElsewhere(self._name, "another process") if request.passed_on else verdict)
            else:
                kept.append(request)
        self._requests[:0] = kept
        if self._requests:
            self._some.set()
            await asyncio.sleep(RETRY_S)
