"""The order of tagged events under random schedules: pipelines that die, sleep and forget, readers that restart.

The order plan, the fold, `apply`, the driver's `OrderPlanner` and the merge of a read are the real ones; the store is a
double in which every statement is a step of its own, and whose conditional writes may lose their answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any
from unittest import mock

from everlog.config import TagsConfig
from everlog.core.buckets import Bucket
from everlog.core.change import Quarantined
from everlog.core.codec import EventData
from everlog.core.head import Head, Topic
from everlog.core.plan import NOTHING, TagPlan, Watermark
from everlog.core.timeuuid import MIN_RANK, TimeUuid
from everlog.core.values import partition_name, partition_of
from everlog.pipeline import planner
from everlog.pipeline.apply import KeyGroups, TagRules, apply
from everlog.pipeline.planner import OrderPlanner
from everlog.store.port import KeyChange, Store, StoreTask
from everlog.store.tag_port import TagEntry, TagRow, TagTables
from everlog.tags.view_reader import read_range
from tests.models.doubles import double
from tests.models.scheduler import Process, Step
from tests.support import append_record

PARTITIONS = 2
TOPIC = Topic("journal-model", "topic-id", PARTITIONS, 2, 0)
PLACES = [partition_name(TOPIC.name, partition) for partition in range(PARTITIONS)]
KEYS = [[key for key in map(str, range(20)) if partition_of(key.encode(), PARTITIONS) == nr][:2] for nr in (0, 1)]
SIZES = ("minute", "hour", "second")
TURNS = 500
EVENT = tuple[str, int]


@double
class TagTask(StoreTask):
    """The writes of a batch for one partition, step by step."""

    def __init__(self, store: TagStore, partition: int) -> None:
        self.store = store
        self.partition = partition

    async def __aenter__(self) -> TagTask:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is taken back."""

    async def pointer(self) -> int:
        await Step("read the pointer")
        return self.store.published[self.partition]

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        found = {}
        for journal_id in ids:
            await Step(f"read the head of {journal_id}")
            if journal_id in self.store.heads:
                found[journal_id] = self.store.heads[journal_id]
        return found

    async def waiting(self, journal_id: str) -> list[Quarantined]:
        return []

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        for key in changes:
            for entry in key.tagged:
                await Step(f"write {entry.tag} {entry.row.event.seq_nr} of {key.id} at {entry.row.offset.tick}")
                self.store.tables.put_entry(entry)
        return {}

    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        for key in changes:
            await Step(f"write the head of {key.id}")
            known = self.store.heads.get(key.id)
            if key.head is not None and (known is None or known.offset < key.head.offset):
                self.store.heads[key.id] = key.head
        return {}

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return {}


class LateRows(TagTask):
    """Views are written after the heads, like copies."""

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return {}

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return await super().write_rows(changes)


@double
class Tables(TagTables):
    """Plans, watermark and rows."""

    def __init__(self, world: TagWorld) -> None:
        self.world = world
        self.pinned: dict[str, str] = {}
        self.plan_rows: list[TagPlan] = []
        self.mark = NOTHING
        self.found: dict[str, dict[Bucket, dict[TimeUuid, TagRow]]] = {}

    def put_entry(self, entry: TagEntry) -> None:
        rows = self.found.setdefault(entry.tag, {}).setdefault(entry.bucket, {})
        if entry.row.offset not in rows and entry.row.offset.tick <= self.mark.tick:
            self.world.find("below the watermark", row=entry.row.offset, mark=self.mark)
        rows[entry.row.offset] = entry.row

    async def settings(self, prefix: str) -> dict[str, str]:
        await Step("read settings")
        return {key: value for key, value in self.pinned.items() if key.startswith(prefix)}

    async def pin(self, key: str, value: str, now_ms: int) -> str:
        await Step(f"pin {key}")
        return self.pinned.setdefault(key, value)

    async def plans(self, first: int) -> list[TagPlan]:
        await Step("read plans")
        return [plan for plan in self.plan_rows if plan.nr >= first]

    async def add_plan(self, plan: TagPlan) -> bool:
        await Step(f"add plan {plan.nr}")
        answered = self.world.random.random() < 0.9
        if (self.plan_rows[-1].nr if self.plan_rows else 0) != plan.nr - 1:
            return False
        self.plan_rows.append(plan)
        await Step("hear of it")
        return answered

    async def drop_plans(self, below: int) -> None:
        await Step(f"drop plans below {below}")
        self.plan_rows = [plan for plan in self.plan_rows if plan.nr >= below]

    async def watermark(self) -> Watermark:
        await Step("read the watermark")
        return self.mark

    async def publish(self, watermark: Watermark) -> None:
        await Step(f"publish watermark {watermark.nr}")
        if watermark.nr > self.mark.nr:
            self.mark = watermark

    async def buckets(self, tag: str, since_ms: int) -> list[Bucket]:
        await Step(f"read buckets of {tag}")
        return sorted(bucket for bucket in self.found.get(tag, {}) if bucket.start + bucket.size > since_ms)

    async def rows(self, tag: str, bucket: Bucket, *, after: TimeUuid, upto: TimeUuid, limit: int) -> list[TagRow]:
        """Of one stored tag and start; what shares both lies together, whatever its size."""
        await Step(f"read rows of {tag}")
        found = {
            offset: row
            for one, rows in self.found[tag].items()
            if one.start == bucket.start
            for offset, row in rows.items()
            if after < offset <= upto
        }
        return [found[offset] for offset in sorted(found)[:limit]]


class NoCondition(Tables):
    """Plans are added without looking at the last one."""

    async def add_plan(self, plan: TagPlan) -> bool:
        await Step(f"add plan {plan.nr}")
        self.plan_rows = [*[known for known in self.plan_rows if known.nr < plan.nr], plan]
        return True


@double
class TagStore(Store):
    """Pointers and heads, and the tables of tags."""

    task_class: type[TagTask] = TagTask
    tables_class: type[Tables] = Tables

    def __init__(self, world: TagWorld) -> None:
        self.published = [-1] * PARTITIONS
        self.heads: dict[str, Head] = {}
        self.tables = self.tables_class(world)
        self.tags = self.tables

    def task(self, topic: Topic, partition: int) -> TagTask:
        return self.task_class(self, partition)

    async def pinned(self) -> list[Topic]:
        return [TOPIC]

    async def pointers(self, topic: str) -> dict[int, int]:
        found = {}
        for partition in range(PARTITIONS):
            await Step(f"read pointer {partition}")
            if self.published[partition] >= 0:
                found[partition] = self.published[partition]
        return found

    async def publish(self, pointers: Mapping[tuple[str, int], int], now_ms: int) -> None:
        for (_, partition), offset in pointers.items():
            await Step(f"publish pointer {partition}: {offset}")
            self.published[partition] = max(self.published[partition], offset)


class Clock:
    """The world's time, as one machine sees it."""

    def __init__(self, world: TagWorld, skew: int) -> None:
        self.world = world
        self.skew = skew

    def now_ms(self) -> int:
        return self.world.now_ms + self.skew

    def monotonic(self) -> float:
        return 0.0

    def new_id(self) -> str:
        return ""


class Pipeline:
    """The driver's loop."""

    def __init__(self, world: TagWorld, skew: int) -> None:
        self.world = world
        self.skew = skew
        self.done = [0] * PARTITIONS

    async def run(self, positions: list[int]) -> None:
        world, store = self.world, self.world.store
        config = TagsConfig(bucket=world.random.choice(SIZES))
        driver = OrderPlanner(store, config, Clock(world, self.skew))
        await driver.publish()
        while True:
            ends = [min(world.available[nr], positions[nr] + world.random.choice([0, 1, 2, 4])) for nr in (0, 1)]
            if ends == positions:
                await Step("idle")
                continue
            await self.replicate(driver, positions, ends)
            positions = self.done = ends

    async def replicate(self, driver: OrderPlanner, starts: list[int], ends: list[int]) -> None:
        moved = {PLACES[nr]: ends[nr] for nr in (0, 1) if ends[nr] > starts[nr]}
        orders = await driver.prepare(moved, dict(zip(PLACES, starts, strict=True)))
        for nr in (0, 1):
            if ends[nr] > starts[nr]:
                grouped = KeyGroups()
                grouped.add(TOPIC, self.world.records[nr][starts[nr] : ends[nr]])
                await apply(self.world.store, TOPIC, nr, grouped, TagRules(orders[TOPIC.name, nr]))
        await self.publish(driver, {(TOPIC.name, nr): ends[nr] - 1 for nr in (0, 1) if ends[nr] > starts[nr]})

    async def publish(self, driver: OrderPlanner, pointers: dict[tuple[str, int], int]) -> None:
        await self.world.store.publish(pointers, 0)
        await driver.publish()


class PointersFirst(Pipeline):
    """Says that a batch is in the tables before it is."""

    async def replicate(self, driver: OrderPlanner, starts: list[int], ends: list[int]) -> None:
        moved = {PLACES[nr]: ends[nr] for nr in (0, 1) if ends[nr] > starts[nr]}
        await driver.prepare(moved, dict(zip(PLACES, starts, strict=True)))
        await self.publish(driver, {(TOPIC.name, nr): ends[nr] - 1 for nr in (0, 1) if ends[nr] > starts[nr]})
        await super().replicate(driver, starts, ends)


class OwnOrder(Pipeline):
    """Gives its batches places by its own clock, and tells nobody."""

    async def replicate(self, driver: OrderPlanner, starts: list[int], ends: list[int]) -> None:
        driver._last = None
        driver._covered = dict(zip(PLACES, starts, strict=True))
        driver._open.clear()
        with mock.patch.object(type(self.world.store.tables), "add_plan", _always):
            await super().replicate(driver, starts, ends)


async def _always(*_: Any) -> bool:
    return True


@dataclass(frozen=True)
class Setup:
    """Who takes part, and by which rules. `forgets`: how often a restarted pipeline begins at pointer2 or before."""

    pipelines: int = 1
    forgets: float = 0.3
    pipeline: type[Pipeline] = Pipeline
    tables: type[Tables] = Tables
    task: type[TagTask] = TagTask
    patches: Mapping[str, Any] = field(default_factory=dict)


async def once(work: Any) -> Any:
    """No second try: the double does not fail."""
    return await work()


class Reader:
    """Reads a tag up to the watermark, again and again; dies, and goes on from an offset that it had delivered."""

    def __init__(self, world: TagWorld, tag: str) -> None:
        self.world = world
        self.tag = tag
        self.delivered: list[TagRow] = []

    async def run(self) -> None:
        tables, after = self.world.store.tables, self.delivered[-1].offset if self.delivered else TimeUuid(-1, MIN_RANK)
        while True:
            mark = await tables.watermark()
            if mark.end <= after:
                await Step("idle")
                continue
            size = self.world.random.choice([1, 2, 100])
            pages = read_range(tables, [self.tag], after=after, upto=mark.end, page_size=size, retry=once)
            async for page in pages:
                self.delivered += page
            after = mark.end


class TagWorld:
    """A log, a store, and a schedule that a seed decides."""

    def __init__(self, seed: int, setup: Setup) -> None:
        self.random = random = Random(seed)
        self.setup = setup
        self.now_ms = 1_700_000_000_000
        self.trace: list[str] = []
        self.findings: list[str] = []
        self.records = [self._records(nr) for nr in range(PARTITIONS)]
        self.available = [0] * PARTITIONS
        self.store = type("Store", (TagStore,), {"task_class": setup.task, "tables_class": setup.tables})(self)
        skews = [random.choice([0, 0, -20_000, 15_000]) for _ in range(setup.pipelines)]
        self.drivers = [setup.pipeline(self, skew) for skew in skews]
        self.pipelines = [self._start(nr, [0] * PARTITIONS) for nr in range(setup.pipelines)]
        self.readers = [Reader(self, tag) for tag in ("t", "u")]
        self.reading = [Process("reader", reader.run(), self.trace) for reader in self.readers]
        self.weights = [random.random() + 0.05 for _ in self.pipelines]

    def _records(self, partition: int) -> list[Any]:
        seq_nrs: Counter[str] = Counter()
        found = []
        for offset in range(self.random.randint(2, 6)):
            key, count = self.random.choice(KEYS[partition]), self.random.randint(1, 2)
            first = seq_nrs[key] + 1
            seq_nrs[key] += count
            tags = self.random.choice([("t",), ("t", "u"), ("u",), ()])
            events = [EventData(first + at, tags, "text", "e") for at in range(count)]
            place = {"key": key.encode(), "partition": partition}
            found.append(append_record(offset, first, first + count - 1, events=events, **place))
        return found

    def find(self, kind: str, **facts: Any) -> None:
        text = f"{kind}: {facts}"
        self.findings.append(text)
        self.trace.append(f"FINDING {text}")

    def _start(self, nr: int, positions: list[int]) -> Process:
        self.drivers[nr].done = positions
        return Process(f"pipeline {nr}", self.drivers[nr].run(positions), self.trace)

    def run(self) -> TagWorld:
        with ExitStack() as stack:
            for name, patch in self.setup.patches.items():
                stack.enter_context(mock.patch.object(planner, name, patch))
            stack.enter_context(mock.patch.object(planner, "DROP_EVERY", 2))
            try:
                self._mix()
                self._settle()
                self._check()
            except Exception as error:
                self.find("error", error=repr(error))
            finally:
                for process in (*self.pipelines, *self.reading):
                    process.coroutine.close()
        return self

    def _mix(self) -> None:
        random = self.random
        for _ in range(TURNS):
            self.now_ms += random.choice([0, 0, 0, 1, 400, 9_000])
            chance = random.random()
            if chance < 0.08:
                nr = random.randrange(PARTITIONS)
                self.available[nr] = min(self.available[nr] + 1, len(self.records[nr]))
            elif chance < 0.3:
                self._turn_reader(random.randrange(len(self.readers)))
            else:
                self._turn_pipeline()

    def _turn_reader(self, nr: int) -> None:
        reader = self.readers[nr]
        if self.random.random() < 0.05:
            self.reading[nr].kill()
            del reader.delivered[self.random.randint(0, len(reader.delivered)) :]
            self.reading[nr] = Process("reader", reader.run(), self.trace)
        self.reading[nr].step()

    def _turn_pipeline(self) -> None:
        random, count = self.random, len(self.pipelines)
        nr = random.choices(range(count), self.weights)[0]
        if random.random() < 0.02:
            self.weights = [random.random() ** 3 + 0.01 for _ in range(count)]
        if random.random() < 0.04:
            positions = self.drivers[nr].done
            if random.random() < self.setup.forgets:
                positions = random.choice([[0] * PARTITIONS, [offset + 1 for offset in self.store.published]])
            self.pipelines[nr].kill()
            self.pipelines[nr] = self._start(nr, list(positions))
        else:
            self.pipelines[nr].step()

    def _settle(self) -> None:
        """All of the log, all pipelines to the end, then the readers."""
        self.available = [len(records) for records in self.records]
        for nr, process in enumerate(self.pipelines):
            for _ in range(5_000):
                process.step()
                if self.drivers[nr].done == self.available and process.pending == "idle":
                    break
        for process in self.reading:
            for _ in range(2_000):
                process.step()
                if process.pending == "idle":
                    break

    def _check(self) -> None:
        """Every event once, in the order of its journal; all below the watermark; every reader has seen all of it."""
        for reader in self.readers:
            wanted = Counter(
                (record.key.decode(), first + at)
                for records in self.records
                for record in records
                for first, count in [_numbers(record, reader.tag)]
                for at in range(count)
            )
            rows = [row for found in self.store.tables.found.get(reader.tag, {}).values() for row in found.values()]
            rows.sort(key=lambda row: row.offset)
            found = Counter((row.id, row.event.seq_nr) for row in rows)
            if found - wanted:
                self.find("twice", rows=found - wanted)
            if wanted - found:
                self.find("missing", rows=wanted - found)
            for key in {row.id for row in rows}:
                own = [(row.event.seq_nr, row.number) for row in rows if row.id == key]
                if not all(one < two for one, two in pairwise(own)):
                    self.find("order", key=key, found=own)
            if rows and self.store.tables.mark.tick < rows[-1].offset.tick:
                self.find("stuck", mark=self.store.tables.mark.tick)
            if reader.delivered != rows:
                self.find("read", tag=reader.tag, got=len(reader.delivered), right=len(rows))


def _numbers(record: Any, tag: str) -> tuple[int, int]:
    """The first seqNr and how many events of the record carry the tag."""
    from everlog.core.entry import decode

    entry = decode(record)
    tagged = [event.seq_nr for event in entry.value.events if tag in event.tags]
    return (tagged[0], len(tagged)) if tagged else (0, 0)
