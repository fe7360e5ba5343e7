"""The pipeline's steps without Spark, for tests: the same grouping, fold, writes and publish, in this process.

Works on any log and store, through their interfaces alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from everlog.api import Everlog
from everlog.core.head import Topic
from everlog.core.record import Record
from everlog.core.values import partition_name
from everlog.errors import ReplicationFailed
from everlog.journal.topic_registry import pin_topic, retired_topics
from everlog.log.port import Log, LogTopic
from everlog.pipeline.apply import NO_TAGS, Applied, KeyGroups, TagRules, apply
from everlog.pipeline.planner import OrderPlanner

MAX_RECORDS = 1_000_000_000
ReplicatedPlace = tuple[str, int]


async def replicate(
    log: Everlog,
    *,
    batch: int | None = None,
    batches: int | None = None,
    leave: int = 0,
    start: int | None = None,
    publish: bool = True,
) -> list[Applied]:
    """Apply what is not replicated yet, in micro-batches of at most `batch` offsets per partition.

    `batches`: stop after this many. `leave`: this many of the newest records of each partition stay un-replicated.
    `start`: from this offset on, if the pointer is not below it: a replay. `publish=False`: pointer2 does not move,
    as if the pipeline had died before that.
    """
    driver = _Driver(log, batch or MAX_RECORDS, leave, start)
    await driver.planner.publish()  # what the run before this one did not get to
    done: list[Applied] = []
    while batches is None or batches > 0:
        results, ends = await driver.run_batch()
        done += results
        failed = {key: reason for result in results for key, reason in result.failed.items()}
        if failed:
            raise ReplicationFailed(f"nothing of this batch was published: {failed}")
        if not ends:
            break
        if publish:
            await log.parts.store.publish({place: end - 1 for place, end in ends.items()}, log.parts.clock.now_ms())
            await driver.planner.publish()
        batches = None if batches is None else batches - 1
    return done


class _Slice(NamedTuple):
    """The share of a micro-batch that one partition has."""

    topic: Topic
    log_topic: LogTopic
    partition: int
    first: int
    end: int

    @property
    def place(self) -> ReplicatedPlace:
        return self.topic.name, self.partition


@dataclass
class _Driver:
    """What the pipeline's driver knows: how far each partition is."""

    log: Everlog
    batch: int
    leave: int
    start: int | None
    positions: dict[ReplicatedPlace, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = self.log.parts
        self.planner = OrderPlanner(parts.store, parts.config.tags, parts.clock)

    async def run_batch(self) -> tuple[list[Applied], dict[ReplicatedPlace, int]]:
        """One micro-batch over all partitions of all topics: what was done, and where it ended."""
        parts = self.log.parts
        slices: list[_Slice] = []
        retired = await retired_topics(parts.store)
        for found in await parts.log.topics():
            if not parts.config.journal.includes(found.name) or found.name in retired:
                continue
            topic = await pin_topic(parts.store, found, parts.config, parts.clock)
            for partition in range(found.partitions):
                first = await self._position((topic.name, partition))
                end = min((await parts.log.bounds(found, partition)).end - self.leave, first + self.batch)
                if end > first:
                    slices.append(_Slice(topic, found, partition, first, end))
        orders = await self.planner.prepare(
            {partition_name(*part.place): part.end for part in slices},
            {partition_name(*part.place): part.first for part in slices},
        )
        results = []
        for part in slices:
            name = part.topic.name
            tag_rules = TagRules(orders.get(part.place), parts.config.slices(name), parts.config.propagates(name))
            where = {"after": part.first - 1, "before": part.end}
            results.append(
                await apply_range(self.log, part.topic, part.log_topic, part.partition, **where, tag_rules=tag_rules)
            )
            self.positions[part.place] = part.end
        return results, {part.place: part.end for part in slices}

    async def _position(self, place: ReplicatedPlace) -> int:
        if place not in self.positions:
            first = await self.log.parts.store.pointer(*place) + 1
            self.positions[place] = first if self.start is None else min(self.start, first)
        return self.positions[place]


async def apply_range(
    log: Everlog,
    topic: Topic,
    found: LogTopic,
    partition: int,
    *,
    after: int,
    before: int,
    tag_rules: TagRules = NO_TAGS,
) -> Applied:
    """Apply the records with `after < offset < before`, which may have been applied already: a replay."""
    grouped = KeyGroups()
    grouped.add(topic, await records_between(log.parts.log, found, partition, after=after, before=before))
    return await apply(log.parts.store, topic, partition, grouped, tag_rules)


async def records_between(log: Log, topic: LogTopic, partition: int, *, after: int, before: int) -> list[Record]:
    """All records of a range that have a key, in order; read key by key, as a log offers no other way."""
    records: list[Record] = []
    for key in await log.tail_keys(topic, partition, after=after, before=before):
        records += await log.tail(topic, partition, key, after=after, before=before, limit=MAX_RECORDS)
    return sorted(records, key=lambda record: record.offset)
