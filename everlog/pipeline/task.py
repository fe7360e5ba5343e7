"""What runs inside a Spark task: ranges of the log are read, folded and written, and reported.

read a chunk → apply it, while the next one is read → … → one report per log partition
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from everlog.config import Config
from everlog.core.head import Topic
from everlog.core.plan import Order
from everlog.errors import EverlogError
from everlog.log.factory import make_range_reader
from everlog.log.range_reader import Chunk, LogRange, RangeReader
from everlog.pipeline.apply import Applied, KeyGroups, TagRules, apply
from everlog.pipeline.head_cache import HeadCache, KnownHeads
from everlog.pipeline.phases import longest
from everlog.runtime.clock import Stopwatch
from everlog.spark.process import run, settle_process
from everlog.store.factory import open_store, takes_known_heads
from everlog.store.port import Store

logger = logging.getLogger("everlog.pipeline")

Report = tuple[str, bytes]
"""The name of a log partition, and what was done of it."""

_stores: dict[bytes, Store] = {}
_readers: dict[bytes, RangeReader] = {}
_known = HeadCache()


@dataclass(slots=True)
class _Partition:
    """A range of a log partition: what was read and not applied yet, and what was done."""

    range: LogRange
    known: KnownHeads | None
    grouped: KeyGroups = field(default_factory=KeyGroups)
    done: Applied = field(default_factory=Applied)

    def fail(self, error: EverlogError) -> None:
        logger.warning("%s: %s", self.range.name, error, exc_info=error)
        self.done.failed[""] = str(error)


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """What a task needs to know; travels to the workers. `shares`: the ranges of each task."""

    config: Config
    topics: Mapping[str, Topic]
    shares: Sequence[Sequence[LogRange]]
    orders: Mapping[tuple[str, int], Order] = field(default_factory=dict)

    def __call__(self, number: int, empty: Iterable[object]) -> list[Report]:
        """Do the share of this task."""
        for _ in empty:
            pass
        settle_process()
        return run(self._apply_share(self.shares[number]))

    async def _apply_share(self, ranges: Sequence[LogRange]) -> list[Report]:
        """Read and apply, chunk by chunk; heads stay known only where a range was applied to its end."""
        watch, place = Stopwatch(), msgspec.json.encode(self.config)
        parts = {one.name: _Partition(one, self._begin(place, one)) for one in ranges}
        async with aclosing(_chunks(_reader(place, self.config), ranges)) as chunks:
            async for chunk in chunks:
                watch.lap("read")
                touched = self._take(parts, chunk)
                watch.split(longest(await self._apply_all(place, touched)), rest="open")
        watch.lap("read")
        for part in parts.values():
            if part.known is not None and not part.done.failed:
                part.known.finish(part.range.end)
        next(iter(parts.values())).done.phases = watch.seconds
        return [(name, msgspec.json.encode(part.done)) for name, part in parts.items()]

    def _begin(self, place: bytes, one: LogRange) -> KnownHeads | None:
        """What this process knows of the partition; nothing where a transaction must see the heads itself."""
        if not takes_known_heads(self.config):
            return None
        from pyspark import SparkFiles

        return _known.begin(place, one.topic.id, one.partition, one.start, Path(SparkFiles.getRootDirectory()))

    def _take(self, parts: Mapping[str, _Partition], chunk: Chunk) -> list[_Partition]:
        """Group what was read by journal. After a failure the rest of a range is left: it comes again."""
        touched = []
        for found in chunk:
            part = parts[found.range.name]
            if found.error is not None:
                part.fail(found.error)
            elif not part.done.failed:
                part.grouped.add(self.topics[found.range.topic.name], found.records)
                touched.append(part)
        return touched

    async def _apply_all(self, place: bytes, parts: Collection[_Partition]) -> list[dict[str, float]]:
        """What was gathered, all partitions at once. Where the time went, by partition."""
        try:
            store = await _store(place, self.config)
        except EverlogError as error:
            for part in parts:
                part.fail(error)
            return []
        return await asyncio.gather(*(self._apply(store, part) for part in parts))

    async def _apply(self, store: Store, part: _Partition) -> dict[str, float]:
        """A failure is reported, not raised: the other partitions of the cycle are written all the same."""
        watch = Stopwatch()
        try:
            part.done.add(await self._fold_in(store, part, watch))
        except EverlogError as error:
            part.fail(error)
            return {}
        return watch.seconds

    async def _fold_in(self, store: Store, part: _Partition, watch: Stopwatch) -> Applied:
        grouped, part.grouped = part.grouped, KeyGroups()
        topic, number, config = part.range.topic.name, part.range.partition, self.config
        tag_rules = TagRules(self.orders.get((topic, number)), config.slices(topic), config.propagates(topic))
        return await apply(store, self.topics[topic], number, grouped, tag_rules, part.known, watch)


def warm_up(number: int, empty: Iterable[object]) -> list[Report]:
    """A task that does nothing but start a worker."""
    for _ in empty:
        pass
    settle_process()
    return []


async def _chunks(reader: RangeReader, ranges: Sequence[LogRange]) -> AsyncGenerator[Chunk, None]:
    """The chunks of these ranges. While one is applied, the next one is read, in a thread."""
    chunks = reader.read(ranges)
    reading = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
    try:
        while (chunk := await reading) is not None:
            reading = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
            yield chunk
    finally:  # also if the caller reads no further
        await asyncio.wait([reading])
        chunks.close()


def _reader(place: bytes, config: Config) -> RangeReader:
    """One reader per worker process, kept over cycles."""
    reader = _readers.get(place)
    if reader is None:
        reader = _readers[place] = make_range_reader(config)
    return reader


async def _store(place: bytes, config: Config) -> Store:
    """One open store per worker process, kept over cycles."""
    store = _stores.get(place)
    if store is None:
        store = _stores[place] = await open_store(config, in_task=True)
    return store
