"""What runs inside a Spark task: Arrow batches in, one report out."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pyarrow as pa

from everlog.backends import open_store
from everlog.config import Config
from everlog.errors import EverlogError
from everlog.journal.head import Topic
from everlog.pipeline.apply import Applied, Grouped, Tagging, apply
from everlog.pipeline.known import KnownHeads, Partitions
from everlog.pipeline.places import place_name
from everlog.pipeline.sources.base import Decoder
from everlog.store.base import Store
from everlog.tags.plan import Order

logger = logging.getLogger("everlog.pipeline")

# A task that gathered so much applies it before it reads on.
MAX_GATHERED_BYTES = 64 * 1024 * 1024
REPORT_SCHEMA = "topic string, partition int, report binary"
_REPORT = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("report", pa.binary())])

_stores: dict[bytes, Store] = {}
_known = Partitions()
_runner: asyncio.Runner | None = None
_settled = False


class Range(NamedTuple):
    """What a batch holds of a log partition: offsets from `start` up to but not including `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Job:
    """What a task needs to know; travels to the workers."""

    config: Config
    topics: Mapping[str, Topic]
    decoder: Decoder
    ranges: Mapping[str, Range]
    orders: Mapping[tuple[str, int], Order] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gather the records of the task's one log partition, and apply them."""
        settle_process()
        grouped, size, place = Grouped(), 0, ("", -1)
        done = Applied()
        known: KnownHeads | None = None
        for batch in batches:
            for part in self.decoder(batch):
                if place[1] < 0:
                    place = (part.topic, part.partition)
                    known = self._begin(*place)
                if done.failed:
                    continue  # the rest is only drained: it comes again with the next try
                grouped.add(self.topics[part.topic], part.records)
                size += part.size
                if size >= MAX_GATHERED_BYTES:
                    self._apply(*place, grouped, known, done)
                    grouped, size = Grouped(), 0
        if place[1] < 0:
            return
        if not done.failed:
            self._apply(*place, grouped, known, done)
        if known is not None and not done.failed:
            known.finish(self.ranges[place_name(*place)].end)
        values = ([place[0]], [place[1]], [msgspec.json.encode(done)])
        arrays = [pa.array(value, field.type) for value, field in zip(values, _REPORT, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_REPORT)

    def _begin(self, topic: str, partition: int) -> KnownHeads | None:
        """What this process knows of the partition; nothing where a transaction must see the heads itself."""
        if self.config.embedded:
            return None
        start = self.ranges[place_name(topic, partition)].start
        return _known.begin(msgspec.json.encode(self.config), self.topics[topic].id, partition, start)

    def _apply(self, topic: str, partition: int, grouped: Grouped, known: KnownHeads | None, done: Applied) -> None:
        """A failure is reported, not raised: the other partitions of the batch shall be written all the same."""
        try:
            done.add(_process().run(self._fold_in(self.topics[topic], partition, grouped, known)))
        except EverlogError as error:
            logger.exception("%s/%d could not be applied", topic, partition)
            done.failed[""] = str(error)

    async def _fold_in(self, topic: Topic, partition: int, grouped: Grouped, known: KnownHeads | None) -> Applied:
        name = topic.name
        tagging = Tagging(self.orders.get((name, partition)), self.config.slices(name), self.config.propagates(name))
        return await apply(await _store(self.config), topic, partition, grouped, tagging, known)


def for_tasks(config: Config) -> Config:
    """The configuration as it travels to the workers, which do not have this process's environment."""
    cassandra = config.cassandra
    if cassandra is None or cassandra.username is None or cassandra.password is not None:
        return config
    from everlog.store.cassandra.session import PASSWORD_VARIABLE

    password = os.environ.get(PASSWORD_VARIABLE)
    return msgspec.structs.replace(config, cassandra=msgspec.structs.replace(cassandra, password=password))


def settle_process() -> None:
    """Once per worker: no garbage collection of our own, nothing here makes cycles. Spark collects after every task;
    what the imports made is kept out of its way."""
    global _settled  # noqa: PLW0603
    if not _settled:
        gc.collect()
        gc.freeze()
        gc.disable()
        _settled = True


def _process() -> asyncio.Runner:
    """One event loop per worker process, kept over batches: a store's connections belong to it."""
    global _runner  # noqa: PLW0603
    if _runner is None:
        _runner = asyncio.Runner()
    return _runner


async def _store(config: Config) -> Store:
    """One open store per worker process, kept over batches."""
    name = msgspec.json.encode(config)
    store = _stores.get(name)
    if store is None:
        store = _stores[name] = await open_store(config, in_task=True)
    return store
