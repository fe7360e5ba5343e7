"""The driver's part of the order: a plan before a cycle, the watermark after it.

    read the plans → add the next one, if no other pipeline did → … the cycle … → pointer2 → read pointer2 → watermark

A plan is a fact forever, so what was read once need not be read again; that it is still the newest is checked
when the next one is added.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from itertools import islice

import msgspec

from everlog.config import TagsConfig
from everlog.core.plan import (
    BEGINNING,
    NOTHING,
    RETIRED,
    START,
    TOPIC_NUMBER,
    Order,
    PlanShare,
    TagPlan,
    Watermark,
    advance,
    ends_of,
    extend,
    share_of,
)
from everlog.core.timeuuid import tick_of
from everlog.core.values import parse_partition_name, partition_name
from everlog.errors import Unreachable
from everlog.runtime.clock import Clock
from everlog.store.port import Store
from everlog.store.tag_port import TagTables

MAX_TRIES = 100
# Plans below the watermark are dropped now and then, not one by one.
DROP_EVERY = 200
# Where something held the watermark for long, this many are looked at together.
PLANS_AT_ONCE = 1_000

_encode = msgspec.json.Encoder().encode
_beginning = msgspec.json.Decoder(dict[int, int]).decode


class OrderPlanner:
    """Makes plans and publishes the watermark. Where no views by tag are kept, it does nothing."""

    def __init__(self, store: Store, config: TagsConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._numbers: dict[str, int] = {}
        self._beginnings: dict[str, int] = {}
        self._watermark: Watermark | None = None
        self._retired: set[str] = set()
        self._last: TagPlan | None = None
        self._open: deque[TagPlan] = deque()
        self._shares: defaultdict[str, deque[PlanShare]] = defaultdict(deque)
        self._covered: dict[str, int] = {}
        self._dropped = 0
        # The log partitions that the watermark waits for.
        self.holding: list[str] = []

    async def prepare(self, ends: Mapping[str, int], starts: Mapping[str, int]) -> dict[tuple[str, int], Order]:
        """Every offset of a cycle, from `starts` up to `ends`, gets its place before any of its rows is written."""
        tables = self._tables
        if tables is None or not ends:
            return {}
        if self._watermark is None:
            await self._load(tables)
        await self._begin_topics(tables, {parse_partition_name(place)[0] for place in ends})
        # Partitions that were added to a topic later hold no journals.
        ends = {place: end for place, end in ends.items() if place in self._beginnings}
        for _ in range(MAX_TRIES):
            plan = extend(
                self._last,
                {**self._beginnings, **self._covered},
                ends,
                now_tick=await self._earliest_tick(tables),
                bucket_ms=self._config.bucket_ms,
                shards=self._config.shards,
            )
            if plan is None:
                return {parse_partition_name(place): self._order(place, starts.get(place, 0)) for place in ends}
            if await tables.add_plan(plan):
                self._take([plan])
            else:
                await self._load(tables)
        raise Unreachable(f"the order of the cycle could not be stored in {MAX_TRIES} tries: it will be tried again")

    async def publish(self) -> None:
        """Move the watermark over all plans that pointer2, as it is now, covers."""
        tables = self._tables
        if tables is None:
            return
        if self._watermark is None:
            await self._load(tables)
        assert self._watermark is not None
        while self._open:
            oldest = list(islice(self._open, PLANS_AT_ONCE))
            pointers = await self._pointers(oldest)
            reached = advance(self._watermark, oldest, pointers, self._retired)
            if reached is not None:
                await self._reach(tables, reached)
            if reached is None or reached.nr < oldest[-1].nr:
                waited = self._open[0].ranges.items()
                self.holding = sorted(place for place, (_, end) in waited if pointers.get(place, -1) < end - 1)
                return
        self.holding = []

    async def _reach(self, tables: TagTables, reached: Watermark) -> None:
        await tables.publish(reached)
        self._watermark = reached
        while self._open and self._open[0].nr <= reached.nr:
            self._open.popleft()
        if reached.nr - self._dropped >= DROP_EVERY:
            await tables.drop_plans(reached.nr)
            self._dropped = reached.nr

    @property
    def _tables(self) -> TagTables | None:
        return self._store.tags if self._config.enabled else None

    @property
    def watermark(self) -> Watermark:
        """The last one that this driver knows of."""
        return self._watermark or NOTHING

    async def _load(self, tables: TagTables) -> None:
        """The watermark, then the plans from its own on: if that one is gone, the watermark has moved meanwhile."""
        for _ in range(MAX_TRIES):
            watermark = await tables.watermark()
            plans = await tables.plans(watermark.nr)
            if [plan.nr for plan in plans[:1]] == [max(watermark.nr, 1)] or (not plans and watermark.nr == 0):
                break
        else:
            raise Unreachable("the order plan cannot be read: it will be tried again")
        self._retired = {key.removeprefix(RETIRED) for key in await tables.settings(RETIRED)}
        self._watermark = watermark
        self._covered = dict(watermark.positions)
        self._last = None
        self._open.clear()
        self._shares.clear()
        self._take(plans)

    def _take(self, plans: Collection[TagPlan]) -> None:
        assert self._watermark is not None
        for plan in plans:
            assert self._last is None or plan.nr == self._last.nr + 1, "a plan is missing"
            self._last = plan
            if plan.nr > self._watermark.nr:
                self._open.append(plan)
                for place in plan.ranges:
                    self._shares[place].append(share_of(plan, place))
        self._covered |= ends_of(plans)

    def _order(self, place: str, start: int) -> Order:
        """The places from `start` on. A cycle never begins before the one before it."""
        topic, partition = parse_partition_name(place)
        shares = self._shares[place]
        while shares and shares[0].end <= start:
            shares.popleft()
        return Order(self._numbers[topic], partition, list(shares))

    async def _begin_topics(self, tables: TagTables, topics: Collection[str]) -> None:
        """Each topic's number, and where its plans begin: what was replicated before has no place in the order."""
        for topic in sorted(set(topics) - self._numbers.keys()):
            pinned = next(found for found in await self._store.pinned() if found.name == topic)
            pointers = await self._store.pointers(topic)
            begins = {partition: pointers.get(partition, -1) + 1 for partition in range(pinned.partitions)}
            found = await tables.pin(BEGINNING + topic, _encode(begins).decode(), self._clock.now_ms())
            for partition, begin in _beginning(found).items():
                self._beginnings[partition_name(topic, partition)] = begin
            self._numbers[topic] = await self._number(tables, topic)

    async def _number(self, tables: TagTables, topic: str) -> int:
        """The topic's number. Numbers are taken one after the other, each by the first who pins it."""
        for _ in range(MAX_TRIES):
            taken = await tables.settings(TOPIC_NUMBER)
            numbers = {name: int(key.removeprefix(TOPIC_NUMBER)) for key, name in taken.items()}
            if topic in numbers:
                return numbers[topic]
            free = max(numbers.values(), default=-1) + 1
            await tables.pin(f"{TOPIC_NUMBER}{free}", topic, self._clock.now_ms())
        raise Unreachable(f"the topic {topic} got no number in {MAX_TRIES} tries: it will be tried again")

    async def _earliest_tick(self, tables: TagTables) -> int:
        """Now; for the very first plan, a tick that is pinned: rows from before it will lie right below."""
        now_ms = self._clock.now_ms()
        if self._last is not None:
            return tick_of(now_ms)
        return int(await tables.pin(START, str(tick_of(now_ms)), now_ms))

    async def _pointers(self, plans: Collection[TagPlan]) -> dict[str, int]:
        """`pointer2` of every partition that these plans name, read now."""
        topics = sorted({parse_partition_name(place)[0] for plan in plans for place in plan.ranges})
        return {
            partition_name(topic, partition): pointer
            for topic in topics
            for partition, pointer in (await self._store.pointers(topic)).items()
        }
