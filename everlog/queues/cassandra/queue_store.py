"""Queues on Cassandra: each shard belongs to one process at a time, all others reach it there.

A process that uses a shard without an owner becomes its owner, and listens for the others. Another one takes over when
the owner's beat has stood still for a while of its own clock, or at once when the owner has let go. No wall clock is
compared. A process without an address (`host=None`) cannot be reached and reaches no other: those get `OwnedElsewhere`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from everlog.cassandra.schema import Schema
from everlog.cassandra.session import Session, connect
from everlog.config import CassandraConfig
from everlog.config.queue_options import QueueSettings
from everlog.errors import (
    Busy,
    DeclarationRefused,
    InvalidConfig,
    JobsRunning,
    MissingExtra,
    QueueNotFound,
)
from everlog.queues.cassandra.backend import QUEUE_TABLES, Audited, CassandraAdminStore, CassandraBackend, read_audit
from everlog.queues.cassandra.own_thread import ThreadSafeQueues
from everlog.queues.cassandra.owner import AdminStore
from everlog.queues.cassandra.register import CassandraRegister, QueueRegister, QueueRow, StoredQueue, stored
from everlog.queues.cassandra.shard import ShardService
from everlog.queues.cassandra.shard_log import ShardBackend
from everlog.queues.declaration import Declaration
from everlog.queues.operations import (
    READS,
    AskHead,
    AskStats,
    Claim,
    Clear,
    ClearedShard,
    JobLease,
    JobPlace,
    Operation,
    QueueAnswer,
    Stats,
)
from everlog.queues.port import MAX_MAKES, SWEEP, QueueStore
from everlog.queues.shards import ShardPart, combine, in_turn, shard_of
from everlog.runtime.clock import Clock
from everlog.runtime.supervisor import LoopStatus
from everlog.runtime.trace import Trace

if TYPE_CHECKING:
    from everlog.queues.cassandra.calls import Call, Caller, CallServer, Nudges, Reply

logger = logging.getLogger("everlog.queues")

BEAT_S = 2.0
TAKEOVER_S = 8.0
REFRESH_S = 5.0


class _Known(NamedTuple):
    """What was read of a queue, and when."""

    at: float
    declaration: Declaration
    life: int


class CassandraQueueStore(QueueStore):
    """The queues of a keyspace."""

    counts_anywhere = False

    def __init__(
        self,
        config: CassandraConfig,
        *,
        clock: Clock | None = None,
        trace: Trace | None = None,
        name: str | None = None,
        beat_s: float = BEAT_S,
        takeover_s: float = TAKEOVER_S,
        segment_records: int = 200_000,
        sweep: int = SWEEP,
        host: str | None = None,
        token: str | None = None,
    ) -> None:
        super().__init__(clock)
        self.name = name or f"owner-{self.clock.new_id()}"
        self.beat_s = beat_s
        self.takeover_s = takeover_s
        self.segment_records = segment_records
        self.sweep = sweep
        self._config = config
        self._trace = trace
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._shards: dict[tuple[str, int], ShardService] = {}
        self._gone: set[str] = set()
        self._known: dict[str, _Known] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host = host
        self._token = token
        self._address = ""
        self._server: CallServer | None = None
        self._caller: Caller | None = None
        self._nudges: Nudges | None = None

    @property
    def calls(self) -> bool:
        """Whether this process reaches others."""
        return self._caller is not None

    @property
    def nudged_at(self) -> str:
        """The address at which this process is told to look."""
        return "" if self._nudges is None else self._nudges.address

    async def session(self) -> Session:
        """Connected, with all tables there."""
        async with self._opening:
            if self._session is None:
                await self.reach_others()
                session = await connect(self._config, self._trace)
                try:
                    await Schema(session, QUEUE_TABLES).prepare()
                except BaseException:
                    await session.close()
                    raise
                self._loop = asyncio.get_running_loop()
                self._session = session
        return self._session

    async def backend(self, name: str, part: ShardPart) -> ShardBackend:
        """The log of a shard."""
        return CassandraBackend(await self.session(), name, part.index)

    async def admin(self, name: str, part: ShardPart, settings: QueueSettings) -> AdminStore:
        """What a shard has besides its log."""
        return CassandraAdminStore(await self.session(), name, settings, self.clock, part)

    async def reach_others(self) -> None:
        """Be ready to call other processes, and to hear of work from them."""
        host = self._host
        if host is None or self._server is not None:
            return
        try:
            from everlog.queues.cassandra.calls import Caller, CallServer, Nudges
        except MissingExtra as error:
            logger.warning("queues are used by this process alone, others cannot reach it: %s", error)
            return
        self._server = CallServer(host, self._token, self._serve_call)
        self._caller = Caller(self._token, self.takeover_s / 2)
        self._nudges = Nudges(self.wake)
        try:
            await self._nudges.open(host)
        except OSError as error:
            raise InvalidConfig(f"[queue] host = {host!r} is not an address of this machine: {error}") from error

    async def listen(self) -> str:
        """The address of this process, where it answers from now on; empty if it does not."""
        if self._server is not None and not self._address:
            async with self._opening:
                if not self._address:
                    self._address = await self._server.start()
        return self._address

    async def _serve_call(self, call: Call) -> Reply | None:
        shard = self._shards.get((call.queue, call.shard))
        return None if call.owner != self.name or shard is None else await shard.answer(call)

    async def send(self, address: str, call: Call) -> Reply:
        assert self._caller is not None
        return await self._caller.send(address, call)

    def nudge(self, address: str, name: str) -> None:
        if self._nudges is not None:
            self._nudges.send(address, name)

    def changes(self, name: str) -> object:
        """Others may have changed it at any time: it is looked at with every poll."""
        return self.clock.monotonic()

    async def register(self) -> QueueRegister:
        """The table of all queues."""
        return CassandraRegister(await self.session())

    async def declare(self, wanted: Declaration) -> Declaration:
        register = await self.register()
        for _ in range(MAX_MAKES):
            found = await register.read(wanted.name)
            if found is None:
                await register.insert(stored(wanted))
                continue
            if found.queue.state == "deleted":
                await register.replace(found, stored(wanted, found.queue))
                continue
            if found.queue.state == "deleting":  # what was begun is finished first
                with suppress(QueueNotFound, JobsRunning):  # another process was quicker; it is refused, and goes on
                    await self._finish(found)
                continue
            before = found.queue.declaration
            if before.options.shards != wanted.options.shards:
                raise DeclarationRefused(
                    f"{wanted.name} has {before.options.shards} shards, which cannot change: declare another queue"
                )
            self._remember(before, found.queue.life)
            try:
                empty = await self._is_empty(wanted.name)
            except QueueNotFound:  # it is deleted since it was read
                continue
            evolved = before.evolve(wanted, empty=empty)
            if evolved == before or await register.replace(found, stored(evolved, found.queue)):
                self._remember(evolved, found.queue.life)
                self.wake(wanted.name)
                return evolved
        raise Busy(f"the declaration of {wanted.name} is being changed by others: try again")

    async def delete(self, name: str, *, running: bool = False) -> int:
        """First the row says that the queue is being deleted: from then on there is none. Then its shards are cleared,
        each by its owner; last of all the row says so. Any process that finds it half done finishes it."""
        register = await self.register()
        begun: set[str] = set()
        for _ in range(MAX_MAKES):
            found = await register.read(name)
            if found is not None and found.queue.deletion in begun and found.queue.state != "deleting":
                return found.queue.jobs  # another process has finished it
            if found is None or found.queue.state == "deleted":
                raise QueueNotFound(name, await self.names())
            try:
                if found.queue.state == "deleting":
                    jobs = await self._finish(found)
                    if jobs is not None:
                        return jobs
                    continue
                if not running:
                    await self._refuse_running(name)
            except QueueNotFound:
                continue
            except JobsRunning:
                if running:  # it is another process's deletion that is refused
                    continue
                raise
            deletion = self.clock.new_id()
            begun.add(deletion)
            changed = replace(found.queue, state="deleting", deletion=deletion, decided=running)
            await register.replace(found, changed)
        raise Busy(f"the declaration of {name} is being changed by others: try again")

    async def _refuse_running(self, name: str) -> None:
        """Before anything is changed: a deletion that is refused disturbs no worker, but for a job that begins now."""
        self.forget(name)
        stats = cast(Stats, await self.execute(name, AskStats()))
        if stats.running:
            raise JobsRunning(name, stats.running)

    async def _finish(self, found: QueueRow) -> int | None:
        """Finish a deletion; how many jobs there were still, or None if the row is to be read again.

        As long as it is not decided, owners only count what runs, and let go: no job begins after that.
        """
        queue, register = found.queue, await self.register()
        self.forget(queue.name)
        parts = [
            self._shard(queue.name, at).execute(Clear(queue.deletion), queue.life) for at in range(queue.options.shards)
        ]
        cleared = cast("list[ClearedShard]", await asyncio.gather(*parts))
        jobs = sum(one.jobs for one in cleared)
        if not queue.decided:
            if not jobs:
                await register.replace(found, replace(queue, decided=True))
            elif await register.replace(found, replace(queue, state="open", deletion="")):
                raise JobsRunning(queue.name, jobs)
            return None
        last = max(queue.last_entry, *(one.last_entry for one in cleared))
        gone = StoredQueue(
            queue.name, state="deleted", last_entry=last, deletion=queue.deletion, jobs=jobs, life=queue.life
        )
        await register.replace(found, gone)
        self._gone.add(queue.name)
        self.wake(queue.name)
        return jobs

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    async def _is_empty(self, name: str) -> bool:
        stats = await self.execute(name, AskStats())
        assert isinstance(stats, Stats)
        return stats.ready + stats.delayed + stats.running == 0

    def _remember(self, declaration: Declaration, life: int) -> _Known:
        known = self._known[declaration.name] = _Known(self.clock.monotonic(), declaration, life)
        return known

    async def declared(self, name: str) -> Declaration | None:
        found = await self._look_up(name)
        return None if found is None else found.declaration

    async def _look_up(self, name: str) -> _Known | None:
        known = self._known.get(name)
        if known is not None and self.clock.monotonic() - known.at < REFRESH_S:
            return known
        found = await (await self.register()).read(name, serial=known is None)
        if found is None or found.queue.state != "open":
            self.forget(name)
            return None
        return self._remember(found.queue.declaration, found.queue.life)

    async def latest(self, name: str) -> StoredQueue:
        """A queue as it is now, also one that is being deleted; QueueNotFound if there is none."""
        self.forget(name)
        found = await (await self.register()).read(name)
        if found is None or found.queue.state == "deleted":
            raise QueueNotFound(name, await self.names())
        if found.queue.state == "open":
            self._remember(found.queue.declaration, found.queue.life)
        return found.queue

    async def known(self, name: str) -> Declaration:
        """The declaration, or an error that names the queues that there are."""
        return (await self._known_or_refused(name)).declaration

    async def _known_or_refused(self, name: str) -> _Known:
        found = await self._look_up(name)
        if found is None:
            raise QueueNotFound(name, await self.names())
        return found

    async def names(self) -> list[str]:
        return await (await self.register()).open_names()

    async def in_use(self) -> list[str]:
        """Those that were used here and are there: to look at another one might make this process its owner."""
        return sorted({name for name, _ in self._shards} - self._gone)

    async def execute(self, name: str, operation: Operation) -> QueueAnswer:
        try:
            return await self._execute(name, operation)
        except QueueNotFound:
            self.forget(name)  # its owner knows better
            self._gone.add(name)
            raise

    async def _execute(self, name: str, operation: Operation) -> QueueAnswer:
        known = await self._known_or_refused(name)
        shards = known.declaration.options.shards
        self._gone.discard(name)
        index = shard_of(operation, shards)
        if index is not None:
            answer = await self._shard(name, index).execute(operation, known.life)
        elif isinstance(operation, Claim):
            answer = await self._claim(name, operation, shards, known.life)
        else:
            answer = combine(operation, await self._of_all(name, operation, shards, known.life))
        if not isinstance(operation, READS):
            self.wake(name, operation)
        return answer

    async def is_unowned(self, name: str) -> bool:
        shards = (await self.known(name)).options.shards
        backends = [await self.backend(name, ShardPart(at, shards)) for at in range(shards)]
        return not all([(await backend.read_shard()).owner for backend in backends])

    async def _of_all(self, name: str, operation: Operation, shards: int, life: int) -> list[QueueAnswer]:
        return await asyncio.gather(*(self._shard(name, at).execute(operation, life) for at in range(shards)))

    async def _claim(self, name: str, operation: Claim, shards: int, life: int) -> list[JobLease]:
        """Of the shard that has the first job, then of the next one, until there are enough."""
        heads = cast("list[JobPlace | None]", await self._of_all(name, AskHead(operation.fast_only), shards, life))
        leases: list[JobLease] = []
        for index in in_turn(heads):
            if len(leases) < operation.limit:
                wanted = msgspec.structs.replace(operation, limit=operation.limit - len(leases))
                leases += cast("list[JobLease]", await self._shard(name, index).execute(wanted, life))
        return leases

    def _shard(self, name: str, index: int) -> ShardService:
        found = self._shards.get((name, index))
        if found is None:
            found = self._shards[name, index] = ShardService(self, name, index)
        return found

    async def audited(self, name: str, limit: int = 100) -> list[Audited]:
        """What administrators did to a queue within a week, the newest first."""
        await self.known(name)
        return await read_audit(await self.session(), name, self.clock.now_ms(), limit)

    def sibling(self) -> QueueStore:
        """The queue is in this process: other threads ask the loop that has it."""
        return ThreadSafeQueues(self)

    def counted(self, name: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for (queue, _), shard in self._shards.items():
            if queue == name:
                found.update(shard.counted)
        return found

    def status(self) -> list[LoopStatus]:
        return [*super().status(), *(shard.status() for shard in list(self._shards.values()))]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    async def close(self) -> None:
        await super().close()
        await asyncio.gather(*(shard.close() for shard in self._shards.values()))
        self._shards.clear()
        if self._server is not None:
            await self._server.stop()
        if self._caller is not None:
            await self._caller.close()
        if self._nudges is not None:
            self._nudges.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()
