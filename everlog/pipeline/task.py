"""What runs inside a Spark task: Arrow batches in, one report per log partition out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from everlog.config import Config
from everlog.core.head import Topic
from everlog.core.plan import Order
from everlog.core.values import partition_name
from everlog.errors import EverlogError, MissingExtra
from everlog.log.stream import StreamDecoder
from everlog.pipeline.apply import Applied, KeyGroups, TagRules, apply
from everlog.pipeline.head_cache import HeadCache, KnownHeads
from everlog.pipeline.phases import longest
from everlog.runtime.clock import Stopwatch
from everlog.spark.process import run, settle_process
from everlog.store.factory import open_store, takes_known_heads
from everlog.store.port import Store

try:
    import pyarrow as pa
except ImportError as error:  # pragma: no cover - needs an installation without the extra
    raise MissingExtra("spark") from error

logger = logging.getLogger("everlog.pipeline")

# A task that gathered this much applies it before it reads on.
MAX_GATHERED_BYTES = 64 * 1024 * 1024
REPORT_SCHEMA = "topic string, partition int, report binary"
_REPORT = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("report", pa.binary())])

_stores: dict[bytes, Store] = {}
_known = HeadCache()


class OffsetRange(NamedTuple):
    """What a batch holds of a log partition: offsets from `start` up to but not including `end`."""

    start: int
    end: int


@dataclass(slots=True)
class _Partition:
    """What a task has gathered of a log partition, and what it has done."""

    topic: str
    number: int
    known: KnownHeads | None
    grouped: KeyGroups = field(default_factory=KeyGroups)
    done: Applied = field(default_factory=Applied)


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """What a task needs to know; travels to the workers."""

    config: Config
    topics: Mapping[str, Topic]
    decoder: StreamDecoder
    ranges: Mapping[str, OffsetRange]
    orders: Mapping[tuple[str, int], Order] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gather the records of the task's log partitions, and apply them."""
        watch = Stopwatch()
        settle_process()
        parts: dict[tuple[str, int], _Partition] = {}
        size = 0
        for batch in batches:
            for part in self.decoder(batch):
                place = (part.topic, part.partition)
                found = parts.get(place)
                if found is None:
                    found = parts[place] = _Partition(*place, self._begin(*place))
                if found.done.failed:
                    continue  # the rest is only drained: it comes again with the next try
                found.grouped.add(self.topics[part.topic], part.records)
                size += part.size
                if size >= MAX_GATHERED_BYTES:
                    self._apply_gathered(parts.values(), watch)
                    size = 0
        if parts:
            self._apply_gathered(parts.values(), watch)
            next(iter(parts.values())).done.phases = watch.seconds
            yield _reports(parts.values())
        for place, found in parts.items():
            if found.known is not None and not found.done.failed:
                found.known.finish(self.ranges[partition_name(*place)].end)

    def _begin(self, topic: str, partition: int) -> KnownHeads | None:
        """What this process knows of the partition; nothing where a transaction must see the heads itself."""
        if not takes_known_heads(self.config):
            return None
        from pyspark import SparkFiles

        start = self.ranges[partition_name(topic, partition)].start
        folder = Path(SparkFiles.getRootDirectory())
        return _known.begin(msgspec.json.encode(self.config), self.topics[topic].id, partition, start, folder)

    def _apply_gathered(self, parts: Collection[_Partition], watch: Stopwatch) -> None:
        """What was gathered, all partitions at once. The rest of the time is the store's, which is opened once."""
        watch.lap("read")
        watch.split(longest(run(self._apply_all(parts))), rest="open")

    async def _apply_all(self, parts: Collection[_Partition]) -> list[dict[str, float]]:
        """Where the time went, by partition."""
        return await asyncio.gather(*(self._apply(part) for part in parts if not part.done.failed))

    async def _apply(self, part: _Partition) -> dict[str, float]:
        """A failure is reported, not raised: the other partitions of the batch are written all the same."""
        try:
            store, watch = await _store(self.config), Stopwatch()
            part.done.add(await self._fold_in(store, part, watch))
        except EverlogError as error:
            logger.exception("%s/%d could not be applied", part.topic, part.number)
            part.done.failed[""] = str(error)
            return {}
        return watch.seconds

    async def _fold_in(self, store: Store, part: _Partition, watch: Stopwatch) -> Applied:
        grouped, part.grouped = part.grouped, KeyGroups()
        order, config = self.orders.get((part.topic, part.number)), self.config
        tag_rules = TagRules(order, config.slices(part.topic), config.propagates(part.topic))
        return await apply(store, self.topics[part.topic], part.number, grouped, tag_rules, part.known, watch)


def _reports(parts: Collection[_Partition]) -> pa.RecordBatch:
    values = (
        [part.topic for part in parts],
        [part.number for part in parts],
        [msgspec.json.encode(part.done) for part in parts],
    )
    arrays = [pa.array(value, field.type) for value, field in zip(values, _REPORT, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_REPORT)


async def _store(config: Config) -> Store:
    """One open store per worker process, kept over batches."""
    name = msgspec.json.encode(config)
    store = _stores.get(name)
    if store is None:
        store = _stores[name] = await open_store(config, in_task=True)
    return store
