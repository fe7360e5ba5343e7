"""The tails of partitions: what was fetched is kept in an index, what is missing is fetched on request.

A request that starts below the index extends it downwards if that fits into the bounds; otherwise it streams the
partition by itself and leaves the index alone. Records that this process has appended itself enter the index with
their acknowledgement if they are the next ones, so that a lone writer never reads its own records back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from everlog.core.record import NewRecord, Record
from everlog.errors import StorageFailed, TopicMissing, TopicReplaced, Unreachable
from everlog.errors.storage import rescue
from everlog.log.kafka.errors import LogPartition
from everlog.log.kafka.fetcher import Fetcher
from everlog.log.kafka.follower import PartitionFollower, RecordSink
from everlog.log.kafka.index import TailBudget, TailIndex, cost
from everlog.log.kafka.offsets import EndOffsets
from everlog.log.kafka.topics import Topics
from everlog.log.port import Bounds, LogTopic, Trimmed

Answer = TypeVar("Answer")

MAX_STREAMS = 2
# After this many tries to cover a range while others push it out of the index, a request streams.
MAX_TRIES = 3
# An index that has not grown for longer may be far behind the log.
FRESH_S = 2.0
# And one that no request has used for longer takes room from others.
UNUSED_S = 60.0
# Above every offset.
NOWHERE = 2**63 - 1


class Fetchers:
    """One fetcher for all indexes, and a few more for streams; each is made when it is first needed."""

    def __init__(self, make: Callable[[], Fetcher]) -> None:
        self._make = make
        self._shared: Fetcher | None = None
        self._free: list[Fetcher] = []
        self._all: list[Fetcher] = []
        self._closed = False
        self._turn = asyncio.Semaphore(MAX_STREAMS)

    @property
    def shared(self) -> Fetcher:
        if self._shared is None or not self._shared.alive:
            self._shared = self._new()
        return self._shared

    def _new(self) -> Fetcher:
        if self._closed:
            raise StorageFailed("the log is closed")
        fetcher = self._make()
        self._all = [*(other for other in self._all if other.alive), fetcher]
        return fetcher

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Fetcher]:
        """A fetcher that no other stream uses."""
        async with self._turn:
            fetcher = self._free.pop() if self._free else self._new()
            try:
                yield fetcher
            finally:
                if fetcher.alive:
                    self._free.append(fetcher)

    async def close(self) -> None:
        """Stop their threads."""
        self._closed = True
        for fetcher in self._all:
            await fetcher.close()


@dataclass(slots=True)
class TailSource:
    """What all partitions share."""

    servers: str
    timeout: float
    budget: TailBudget
    offsets: EndOffsets
    topics: Topics
    fetchers: Fetchers


class Tail:
    """One partition, for the event loop. `acked` is the highest offset that was acknowledged to this process."""

    def __init__(self, source: TailSource, topic: LogTopic, partition: int) -> None:
        self.place = LogPartition(topic.name, partition)
        self.servers = source.servers
        self.timeout = source.timeout
        self.acked = -1
        self.index: TailIndex | None = None
        self._topic = topic
        self._source = source
        self._follower: PartitionFollower | None = None
        self._extending: asyncio.Future[None] | None = None
        self._too_large = -1
        self._loop = asyncio.get_running_loop()
        self._grown = -FRESH_S
        self._used = self._loop.time()

    # What is known of the partition.

    async def end(self) -> int:
        """Where it ends now: above all that was acknowledged here."""
        return max((await self._ask(self._source.offsets.end)), self.acked + 1)

    async def bounds(self) -> Bounds:
        """Where it starts and ends now."""
        start, end = await self._ask(self._source.offsets.bounds)
        return Bounds(start, max(end, self.acked + 1))

    async def _ask(self, question: Callable[[LogPartition], Awaitable[Answer]]) -> Answer:
        try:
            return await question(self.place)
        except TopicMissing as error:
            await self.check()  # perhaps we may not see it
            raise Unreachable(f"{self.place}: its broker does not know it yet: try again ({error})") from error

    async def check(self) -> None:
        """Raise an error if the topic was deleted or made again, or is not for us."""
        name = self.place.topic
        found = await self._source.topics.describe(name)
        if found is None:
            raise TopicMissing(f"the topic {name} was deleted while it was in use: {rescue()}")
        if found.id != self._topic.id:
            raise TopicReplaced(f"the topic {name} was made again while it was in use: {rescue()}")

    def acknowledge(self, sent: NewRecord, offset: int, timestamp: int) -> int | None:
        """A record of our own is in the log. The offset from which its key has no other one, if that is known."""
        if offset > self.acked:  # noqa: PLR1730 (half the time of max, at every append)
            self.acked = offset
        index = self.index
        if index is None:
            return None
        if offset != index.upper:
            return None if sent.key is None else index.previous(sent.key, offset)
        record = Record(sent.partition, offset, timestamp, sent.key, sent.action, sent.value, sent.headers)
        before = index.add(record)
        self._grown = self._loop.time()
        follower = self._follower
        if follower is not None and not follower.stopped:
            follower.advance(index.upper)
        return before

    def floor(self) -> int:
        """The offset from which a tail costs little: what is in the index, if that was near the log's end a moment ago.

        Otherwise others may have filled the log meanwhile, so that only its end is near.
        """
        if self.index is None or self._loop.time() - self._grown > FRESH_S:
            return NOWHERE
        return self.index.lower

    # What is asked for.

    async def find(self, key: bytes, after: int, before: int, limit: int) -> list[Record]:
        """One key's records with `after < offset < before`, at most `limit`."""
        index = self.index
        self._used = self._loop.time()
        if index is not None and index.lower <= after + 1 and before <= index.upper:
            return index.find(key, after, before, limit)
        covered = await self._cover(after + 1, before)
        if covered is not None:
            index, upto = covered
            return index.find(key, after, upto, limit)
        return await self._stream(after + 1, before, limit, key=key)

    async def keys(self, after: int, before: int) -> list[bytes]:
        """The distinct keys of the records with `after < offset < before`."""
        self._used = self._loop.time()
        covered = await self._cover(after + 1, before)
        if covered is not None:
            index, upto = covered
            return index.keys(after, upto)
        found: dict[bytes, None] = {}

        def collect(records: Sequence[Record], position: int) -> None:
            found.update(dict.fromkeys(record.key for record in records if record.key is not None))

        async with self._reading(after + 1, before, collect) as follower:
            await follower.reach(before)
        return list(found)

    async def first(self, offset: int) -> Record | None:
        """The first record at or after this offset."""
        index = self.index
        known = None if index is None or not index.lower <= offset < index.upper else index.at(offset)
        if known is not None:
            return known
        end = await self.end()
        while offset < end:
            try:
                found = await self._stream(offset, end, 1)
            except Trimmed as trimmed:
                offset = trimmed.start
            else:
                return found[0] if found else None
        return None

    async def _cover(self, first: int, before: int) -> tuple[TailIndex, int] | None:
        """The index and up to where it holds what was asked for: `before`, or the log's end. None: stream it."""
        for _ in range(MAX_TRIES):
            index = self._usable()
            if index is not None and first < index.lower:
                if not await self._extend_down(index, first):
                    return None
                continue
            if not self._source.budget.fits(before - first):
                return None
            follower = self._follow(first)
            upto = await follower.reach(before)
            index = self.index
            if index is not None and index.lower <= first and upto <= index.upper:
                return index, upto
        return None

    def _usable(self) -> TailIndex | None:
        """The index, unless it holds what is no longer in the log."""
        follower = self._follower
        if follower is not None and follower.stopped:
            self._follower = None
            if follower.beyond and self.index is not None:
                self._source.budget.close(self.index)
                self.index = None
        return self.index

    def _follow(self, first: int) -> PartitionFollower:
        """The follower that reads on from the index's upper bound; the index starts over if it ends below `first`."""
        if self._follower is not None:
            return self._follower
        if self.index is None:
            self.index = self._source.budget.open(first)
        elif first > self.index.upper:
            self.index.restart(first)  # no request needs what lies between
        index = self.index

        def take(records: Sequence[Record], position: int) -> None:
            index.extend(records, position)
            self._grown = self._loop.time()

        self._follower = PartitionFollower(self, self._source.fetchers.shared, index.upper, take)
        return self._follower

    async def _extend_down(self, index: TailIndex, first: int) -> bool:
        """Fetch what lies below the index, once for all callers; False if it is too much."""
        if self._extending is not None:
            await asyncio.wait([self._extending])
            return True
        lower, budget = index.lower, self._source.budget
        if first <= self._too_large or not budget.fits(lower - first, beside=budget.records):
            return False
        self._extending = self._loop.create_future()
        try:
            found = await self._fetch(first, lower, budget.max_bytes - budget.bytes)
        finally:
            self._extending.set_result(None)
            self._extending = None
        if found is None:
            self._too_large = first
            return False
        if index is self.index and index.lower == lower:
            index.prepend(found, first)
        return True

    async def _fetch(self, first: int, before: int, room: int) -> list[Record] | None:
        """All records from `first` up to `before`; None if they are too large."""
        found: list[Record] = []

        def collect(records: Sequence[Record], position: int) -> None:
            nonlocal room
            found.extend(records)
            room -= sum(map(cost, records))
            if room < 0:
                follower.finish()

        async with self._reading(first, before, collect) as follower:
            return found if await follower.reach(before) == before and room >= 0 else None

    async def _stream(self, first: int, before: int, limit: int, *, key: bytes | None = None) -> list[Record]:
        """Read the partition from `first` on, apart from the index, and keep the key's records (None: all)."""
        found: list[Record] = []

        def collect(records: Sequence[Record], position: int) -> None:
            found.extend(records)
            if len(found) >= limit:
                follower.finish()

        async with self._reading(first, before, collect, key) as follower:
            await follower.reach(before)
        return found[:limit]

    @asynccontextmanager
    async def _reading(
        self, first: int, before: int, sink: RecordSink, key: bytes | None = None
    ) -> AsyncIterator[PartitionFollower]:
        async with self._source.fetchers.one() as fetcher:
            follower = PartitionFollower(self, fetcher, first, sink, key=key, until=before)
            try:
                yield follower
            finally:
                follower.stop()

    def forget(self) -> None:
        """Let go of an index that has not been used, and has not grown, for long."""
        idle = self._follower is None or self._follower.stopped
        if self.index is not None and idle and self._loop.time() - max(self._used, self._grown) > UNUSED_S:
            self._source.budget.close(self.index)
            self.index = None

    def close(self) -> None:
        """Stop reading."""
        if self._follower is not None:
            self._follower.stop(StorageFailed("the log is closed"))
