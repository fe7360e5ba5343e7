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
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from everlog.cassandra.schema import Schema
from everlog.cassandra.session import Session, connect
from everlog.config import CassandraConfig
from everlog.config.queue_options import QueueSettings
from everlog.errors import (
    Busy,
    DeclarationRefused,
    EverlogError,
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
    Pause,
    QueueAnswer,
    Stats,
)
from everlog.queues.port import MAX_MAKES, SWEEP, QueueStore
from everlog.queues.shards import ShardPart, combine, in_turn, shard_of
from everlog.runtime.clock import Clock
from everlog.runtime.trace import Trace

if TYPE_CHECKING:
    from everlog.queues.cassandra.calls import Call, Caller, CallServer, Nudges, Reply

logger = logging.getLogger("everlog.queues")

BEAT_S = 2.0
TAKEOVER_S = 8.0
REFRESH_S = 5.0


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
        self._known: dict[str, tuple[float, Declaration]] = {}
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
                with suppress(QueueNotFound):  # another process was quicker
                    await self._clear(found)
                continue
            before = found.queue.declaration
            if before.options.shards != wanted.options.shards:
                raise DeclarationRefused(
                    f"{wanted.name} has {before.options.shards} shards, which cannot change: declare another queue"
                )
            self._remember(before)
            evolved = before.evolve(wanted, empty=await self._is_empty(wanted.name))
            if evolved == before or await register.replace(found, stored(evolved, found.queue)):
                self._remember(evolved)
                self.wake(wanted.name)
                return evolved
        raise Busy(f"the declaration of {wanted.name} is being changed by others: try again")

    async def delete(self, name: str, *, running: bool = False) -> int:
        """First the row says that the queue is being deleted: from then on there is none. Then its shards are cleared,
        each by its owner; last of all the row says so. Any process that finds it half done finishes it."""
        register, deletion = await self.register(), self.clock.new_id()
        for _ in range(MAX_MAKES):
            found = await register.read(name)
            if found is not None and found.queue.deletion == deletion and found.queue.state != "deleting":
                return found.queue.jobs  # another process has finished it
            if found is None or found.queue.state == "deleted":
                raise QueueNotFound(name, await self.names())
            if found.queue.state == "deleting":
                with suppress(QueueNotFound):
                    return await self._clear(found)
                continue
            held = not running and await self._hold(name)
            try:
                await register.replace(found, replace(found.queue, state="deleting", deletion=deletion))
            except EverlogError:
                if held:
                    await self.execute(name, Pause(False))
                raise
        raise Busy(f"the declaration of {name} is being changed by others: try again")

    async def _hold(self, name: str) -> bool:
        """Pause a queue in which nothing runs: then nothing begins either. Whether it was open."""
        self.forget(name)
        held = bool(await self.execute(name, Pause(True)))
        stats = cast(Stats, await self.execute(name, AskStats()))
        if stats.running:
            if held:
                await self.execute(name, Pause(False))
            raise JobsRunning(name, stats.running)
        return held

    async def _clear(self, found: QueueRow) -> int:
        """Finish a deletion; how many jobs there were still."""
        name, shards = found.queue.name, found.queue.options.shards
        self.forget(name)
        parts = [self._shard(name, at, shards).execute(Clear(found.queue.deletion)) for at in range(shards)]
        cleared = cast("list[ClearedShard]", await asyncio.gather(*parts))
        last = max(found.queue.last_entry, *(one.last_entry for one in cleared))
        jobs = sum(one.jobs for one in cleared)
        gone = StoredQueue(name, state="deleted", last_entry=last, deletion=found.queue.deletion, jobs=jobs)
        await (await self.register()).replace(found, gone)
        self._gone.add(name)
        self.wake(name)
        return jobs

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    async def _is_empty(self, name: str) -> bool:
        stats = await self.execute(name, AskStats())
        assert isinstance(stats, Stats)
        return stats.ready + stats.delayed + stats.running == 0

    def _remember(self, declaration: Declaration) -> None:
        self._known[declaration.name] = (self.clock.monotonic(), declaration)

    async def declared(self, name: str) -> Declaration | None:
        known = self._known.get(name)
        if known is not None and self.clock.monotonic() - known[0] < REFRESH_S:
            return known[1]
        found = await (await self.register()).read(name, serial=known is None)
        if found is None or found.queue.state != "open":
            self.forget(name)
            return None
        self._remember(found.queue.declaration)
        return found.queue.declaration

    async def latest(self, name: str) -> StoredQueue:
        """A queue as it is now, also one that is being deleted; QueueNotFound if there is none."""
        self.forget(name)
        found = await (await self.register()).read(name)
        if found is None or found.queue.state == "deleted":
            raise QueueNotFound(name, await self.names())
        if found.queue.state == "open":
            self._remember(found.queue.declaration)
        return found.queue

    async def known(self, name: str) -> Declaration:
        """The declaration, or an error that names the queues that there are."""
        found = await self.declared(name)
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
        shards = (await self.known(name)).options.shards
        self._gone.discard(name)
        index = shard_of(operation, shards)
        if index is not None:
            answer = await self._shard(name, index, shards).execute(operation)
        elif isinstance(operation, Claim):
            answer = await self._claim(name, operation, shards)
        else:
            answer = combine(operation, await self._of_all(name, operation, shards))
        if not isinstance(operation, READS):
            self.wake(name, operation)
        return answer

    async def is_unowned(self, name: str) -> bool:
        shards = (await self.known(name)).options.shards
        backends = [await self.backend(name, ShardPart(at, shards)) for at in range(shards)]
        return not all([(await backend.read_shard()).owner for backend in backends])

    async def _of_all(self, name: str, operation: Operation, shards: int) -> list[QueueAnswer]:
        return await asyncio.gather(*(self._shard(name, at, shards).execute(operation) for at in range(shards)))

    async def _claim(self, name: str, operation: Claim, shards: int) -> list[JobLease]:
        """Of the shard that has the first job, then of the next one, until there are enough."""
        heads = cast("list[JobPlace | None]", await self._of_all(name, AskHead(operation.fast_only), shards))
        leases: list[JobLease] = []
        for index in in_turn(heads):
            if len(leases) < operation.limit:
                wanted = msgspec.structs.replace(operation, limit=operation.limit - len(leases))
                leases += cast("list[JobLease]", await self._shard(name, index, shards).execute(wanted))
        return leases

    def _shard(self, name: str, index: int, shards: int) -> ShardService:
        found = self._shards.get((name, index))
        if found is None:
            found = self._shards[name, index] = ShardService(self, name, ShardPart(index, shards))
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
