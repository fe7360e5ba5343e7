"""The pipeline's steps without Spark, for tests: the same grouping, fold, writes and publish, in this process.

Works on any log and store, through their interfaces alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from everlog.client import Everlog
from everlog.errors import ReplicationFailed
from everlog.journal.head import Topic
from everlog.journal.pinning import pin_topic
from everlog.log.base import Log, LogTopic, Record
from everlog.pipeline.apply import Applied, Grouped, apply

MAX_RECORDS = 1_000_000_000
Place = tuple[str, int]


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

    `batches`: stop after so many. `leave`: so many of the newest records of each partition stay un-replicated.
    `start`: from this offset on, if the pointer is not below it: a replay. `publish=False`: pointer2 does not move,
    as if the pipeline had died before that.
    """
    driver = _Driver(log, batch or MAX_RECORDS, leave, start)
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
        batches = None if batches is None else batches - 1
    return done


@dataclass
class _Driver:
    """What the pipeline's driver knows: how far each partition is."""

    log: Everlog
    batch: int
    leave: int
    start: int | None
    positions: dict[Place, int] = field(default_factory=dict)

    async def run_batch(self) -> tuple[list[Applied], dict[Place, int]]:
        """One micro-batch over all partitions of all topics: what was done, and where it ended."""
        parts = self.log.parts
        results: list[Applied] = []
        ends: dict[Place, int] = {}
        for found in await parts.log.topics():
            if not parts.config.journal.includes(found.name):
                continue
            topic = await pin_topic(parts.store, found, parts.config, parts.clock)
            for partition in range(found.partitions):
                place = (topic.name, partition)
                first = await self._position(place)
                end = min((await parts.log.bounds(found, partition)).end - self.leave, first + self.batch)
                if end > first:
                    done = await apply_range(self.log, topic, found, partition, after=first - 1, before=end)
                    results.append(done)
                    self.positions[place] = ends[place] = end
        return results, ends

    async def _position(self, place: Place) -> int:
        if place not in self.positions:
            first = await self.log.parts.store.pointer(*place) + 1
            self.positions[place] = first if self.start is None else min(self.start, first)
        return self.positions[place]


async def apply_range(
    log: Everlog, topic: Topic, found: LogTopic, partition: int, *, after: int, before: int
) -> Applied:
    """Apply the records with `after < offset < before`, which may have been applied already: a replay."""
    grouped = Grouped()
    grouped.add(topic, await records_between(log.parts.log, found, partition, after=after, before=before))
    return await apply(log.parts.store, topic, partition, grouped)


async def records_between(log: Log, topic: LogTopic, partition: int, *, after: int, before: int) -> list[Record]:
    """All records of a range that have a key, in order; read key by key, as a log offers no other way."""
    records: list[Record] = []
    for key in await log.tail_keys(topic, partition, after=after, before=before):
        records += await log.tail(topic, partition, key, after=after, before=before, limit=MAX_RECORDS)
    return sorted(records, key=lambda record: record.offset)
