"""Queues on Cassandra: this process owns the shards that it uses, until another one takes them over.

A shard belongs to one process at a time. Another process that uses the queue gets `OwnedElsewhere`, which names the
owner; it takes over when the owner's beat has stood still for a while of its own clock, or at once when the owner has
let go. No wall clock is compared.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import msgspec

from everlog.clock import Clock
from everlog.config import CassandraConfig
from everlog.errors import Busy, Deposed, EverlogError, OwnedElsewhere, QueueNotFound, StorageFailed
from everlog.queues.cassandra.backend import CassandraBackend, CassandraDesk, QueueSchema, queue_statements
from everlog.queues.cassandra.owner import Owner
from everlog.queues.cassandra.protocol import ShardLog
from everlog.queues.declaration import Declaration, decode_declaration, encode_declaration
from everlog.queues.operations import READS, Answer, AskStats, Operation, Put, Stats
from everlog.queues.store import QueueStore
from everlog.sqlite import Trace
from everlog.store.cassandra.session import Session, connect

logger = logging.getLogger("everlog.queues")

BEAT_SECONDS = 2.0
TAKEOVER_SECONDS = 8.0
REFRESH_SECONDS = 5.0
MAX_GROUP = 256
MAX_GROUP_BYTES = 4 * 1024 * 1024
MAX_PAYLOAD = 1024 * 1024
MAX_WAITING = 20_000
SWEEP = 200

T = TypeVar("T")


class _Request(NamedTuple):
    operation: Operation
    future: asyncio.Future[Answer]


class _Seen(NamedTuple):
    epoch: int
    beat: int
    since: float


class ShardService:
    """One shard in this process: groups of operations, beats, takeovers, one after the other."""

    def __init__(self, store: CassandraQueueStore, name: str) -> None:
        self._store = store
        self._name = name
        self._requests: list[_Request] = []
        self._some = asyncio.Event()
        self._owner: Owner | None = None
        self._seen: _Seen | None = None
        self._closing = False
        self._task = asyncio.create_task(self._run(), name=f"everlog-shard-{name}")
        self.counted: Counter[str] = Counter()

    async def execute(self, operation: Operation) -> Answer:
        if self._closing or self._task.done():
            raise StorageFailed(f"the queue {self._name} is closed")
        if len(self._requests) >= MAX_WAITING:
            raise Busy(f"{MAX_WAITING:,} operations wait for the queue {self._name}: try again")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._requests.append(_Request(operation, future))
        self._some.set()
        return await future

    async def close(self) -> None:
        """Finish what was accepted, then let go of the shard."""
        self._closing = True
        self._some.set()
        await self._task

    async def _run(self) -> None:
        clock = self._store.clock
        next_beat = clock.monotonic() + self._store.beat_seconds
        while not self._closing or self._requests:
            try:
                async with asyncio.timeout(self._store.beat_seconds):
                    await self._some.wait()
            except TimeoutError:
                pass
            await self._serve()
            if self._owner is not None and clock.monotonic() >= next_beat:
                next_beat = clock.monotonic() + self._store.beat_seconds
                await self._upkeep(self._owner.log.beat)
        if self._owner is not None:
            await self._upkeep(self._owner.log.resign)

    async def _serve(self) -> None:
        """One group: applied, written, answered; only then tidied up."""
        group = self._take_group()
        if not group:
            return
        try:
            owner = await self._own()
            declaration = await self._store.known(self._name)
            owner.engine.settings = declaration.options.settings
            answers = await owner.execute([request.operation for request in group], self._store.clock.now_ms())
        except Exception as error:
            self._owner = None  # what it has in memory may not be in the log
            verdict = error if isinstance(error, EverlogError) else StorageFailed(f"{self._name}: {error!r}")
            if verdict is not error:
                logger.error("a group of operations failed", exc_info=error)
            for request in group:
                if not request.future.done():
                    request.future.set_exception(verdict)
            return
        self.counted, owner.engine.counted = self.counted + owner.engine.counted, Counter()
        for request, answer in zip(group, answers, strict=True):
            if not request.future.done():
                request.future.set_result(answer)
        await self._upkeep(owner.tidy)

    def _take_group(self) -> list[_Request]:
        size = count = 0
        for request in self._requests[:MAX_GROUP]:
            if isinstance(request.operation, Put):
                size += len(request.operation.packet.data)
            if count and size > MAX_GROUP_BYTES:
                break
            count += 1
        group, self._requests = self._requests[:count], self._requests[count:]
        if not self._requests:
            self._some.clear()
        return group

    async def _upkeep(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:  # whatever it is, the log says what counts: it is read again
            logger.warning("%s: %s", self._name, error, exc_info=not isinstance(error, EverlogError))
            self._owner = None

    async def _own(self) -> Owner:
        """The shard, ours; taken over if its owner let go of it or has not moved for long enough."""
        if self._owner is not None:
            return self._owner
        store = self._store
        session = await store.session()
        backend = CassandraBackend(session, self._name)
        row = await backend.read_shard()
        now = store.clock.monotonic()
        if self._seen is None or (self._seen.epoch, self._seen.beat) != (row.epoch, row.beat):
            self._seen = _Seen(row.epoch, row.beat, now)
        if row.owner and row.owner != store.name and now - self._seen.since < store.takeover_seconds:
            raise OwnedElsewhere(self._name, row.owner)
        log = ShardLog(backend, owner=store.name)
        if not await log.take_over(row):
            raise Deposed(f"somebody else took over the queue {self._name}: try again")
        settings = (await store.known(self._name)).options.settings
        desk = CassandraDesk(session, self._name, settings, store.clock)
        owner = Owner(log, settings, desk=desk, sweep=min(store.sweep, SWEEP), segment_records=store.segment_records)
        await owner.load(store.clock.now_ms())
        logger.info("%s owns %s: %d jobs", store.name, self._name, len(owner.table.rows))
        self._owner = owner
        return owner


class CassandraQueueStore(QueueStore):
    """The queues of a keyspace."""

    def __init__(
        self,
        config: CassandraConfig,
        *,
        clock: Clock | None = None,
        trace: Trace | None = None,
        name: str | None = None,
        beat_seconds: float = BEAT_SECONDS,
        takeover_seconds: float = TAKEOVER_SECONDS,
        segment_records: int = 200_000,
        sweep: int = SWEEP,
    ) -> None:
        super().__init__(clock)
        self.name = name or f"owner-{self.clock.new_id()}"
        self.beat_seconds = beat_seconds
        self.takeover_seconds = takeover_seconds
        self.segment_records = segment_records
        self.sweep = sweep
        self._config = config
        self._trace = trace
        self._cql = queue_statements(config.keyspace)
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._shards: dict[str, ShardService] = {}
        self._known: dict[str, tuple[float, Declaration]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def session(self) -> Session:
        """Connected, with all tables there."""
        async with self._opening:
            if self._session is None:
                session = await connect(self._config, self._trace)
                try:
                    await QueueSchema(session).prepare()
                except BaseException:
                    await session.close()
                    raise
                self._session = session
                self._loop = asyncio.get_running_loop()
        return self._session

    async def declare(self, wanted: Declaration) -> Declaration:
        session = await self.session()
        for _ in range(20):
            found = await session.fetch(self._cql["queue"], wanted.name, serial=True)
            if not found:
                await session.write_if(self._cql["insert_queue"], wanted.name, encode_declaration(wanted).decode())
                continue
            before = decode_declaration(found[0][0])
            self._remember(before)
            evolved = before.evolve(wanted, empty=await self._is_empty(wanted.name))
            text = encode_declaration(evolved).decode()
            if evolved == before or await session.write_if(self._cql["update_queue"], text, wanted.name, found[0][0]):
                self._remember(evolved)
                self.ring(wanted.name)
                return self._known[wanted.name][1]
        raise Busy(f"the declaration of {wanted.name} is being changed by others: try again")

    async def _is_empty(self, name: str) -> bool:
        stats = await self.execute(name, AskStats())
        assert isinstance(stats, Stats)
        return stats.ready + stats.delayed + stats.running == 0

    def _remember(self, declaration: Declaration) -> None:
        """Larger payloads would need chunks of their own, which are not there yet."""
        options = declaration.options
        if options.max_payload > MAX_PAYLOAD:
            options = msgspec.structs.replace(options, max_payload=MAX_PAYLOAD)
            declaration = msgspec.structs.replace(declaration, options=options)
        self._known[declaration.name] = (self.clock.monotonic(), declaration)

    async def declared(self, name: str) -> Declaration | None:
        known = self._known.get(name)
        if known is not None and self.clock.monotonic() - known[0] < REFRESH_SECONDS:
            return known[1]
        session = await self.session()
        found = await session.fetch(self._cql["queue"], name, serial=known is None)
        if not found:
            return None
        self._remember(decode_declaration(found[0][0]))
        return self._known[name][1]

    async def known(self, name: str) -> Declaration:
        """The declaration, or an error that names the queues that there are."""
        found = await self.declared(name)
        if found is None:
            raise QueueNotFound(name, await self.names())
        return found

    async def names(self) -> list[str]:
        session = await self.session()
        return sorted(name for name, _ in await session.fetch(self._cql["queues"]))

    async def execute(self, name: str, operation: Operation) -> Answer:
        await self.known(name)
        shard = self._shards.get(name)
        if shard is None:
            shard = self._shards[name] = ShardService(self, name)
        answer = await shard.execute(operation)
        if not isinstance(operation, READS):
            self.ring(name, operation)
        return answer

    def sibling(self) -> QueueStore:
        """The queue is in this process: other threads ask the loop that has it."""
        return _Door(self)

    def counted(self, name: str) -> Counter[str]:
        shard = self._shards.get(name)
        return Counter() if shard is None else Counter(shard.counted)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    async def close(self) -> None:
        await super().close()
        for shard in self._shards.values():
            await shard.close()
        self._shards.clear()
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class _Door(QueueStore):
    """The same queues for another thread."""

    def __init__(self, inner: CassandraQueueStore) -> None:
        super().__init__(inner.clock)
        self._inner = inner

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._inner.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._inner.loop))

    async def declare(self, wanted: Declaration) -> Declaration:
        return await self._call(self._inner.declare(wanted))

    async def declared(self, name: str) -> Declaration | None:
        return await self._call(self._inner.declared(name))

    async def names(self) -> list[str]:
        return await self._call(self._inner.names())

    async def execute(self, name: str, operation: Operation) -> Answer:
        return await self._call(self._inner.execute(name, operation))

    def sibling(self) -> QueueStore:
        return _Door(self._inner)

    def counted(self, name: str) -> Counter[str]:
        return self._inner.counted(name)
