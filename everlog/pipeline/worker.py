"""What runs inside a Spark task: Arrow batches in, one report out."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from everlog.config import Config
from everlog.errors import EverlogError
from everlog.journal.head import Topic
from everlog.log.base import Headers, Record
from everlog.pipeline.apply import Applied, Grouped, apply
from everlog.store.base import Store
from everlog.store.sqlite.store import SqliteStore

logger = logging.getLogger("everlog.pipeline")

REPORT_SCHEMA = "topic string, partition int, report binary"
_REPORT = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("report", pa.binary())])

_stores: dict[str, Store] = {}
_settled = False


@dataclass(frozen=True, slots=True)
class Job:
    """What a task needs to know; travels to the workers."""

    config: Config
    topics: Mapping[str, Topic]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gather the records of the task's one log partition, then apply them."""
        settle_process()
        grouped = Grouped()
        topic, partition = "", -1
        for batch in batches:
            if not batch.num_rows:
                continue
            topic, partition = batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py()
            grouped.add(self.topics[topic], _records(batch))
        if partition < 0:
            return
        report = self._apply(topic, partition, grouped)
        values = [pa.array([topic]), pa.array([partition], pa.int32()), pa.array([report], pa.binary())]
        yield pa.RecordBatch.from_arrays(values, schema=_REPORT)

    def _apply(self, topic: str, partition: int, grouped: Grouped) -> bytes:
        """A failure is reported, not raised: the other partitions of the batch shall be written all the same."""
        try:
            done = asyncio.run(apply(_store(self.config), self.topics[topic], partition, grouped))
        except EverlogError as error:
            logger.exception("%s/%d could not be applied", topic, partition)
            done = Applied(failed={"": str(error)})
        return msgspec.json.encode(done)


def settle_process() -> None:
    """Once per worker: Spark collects garbage after every task, so keep what the imports made out of its way."""
    global _settled  # noqa: PLW0603
    if not _settled:
        gc.collect()
        gc.freeze()
        _settled = True


def _store(config: Config) -> Store:
    """One open store per worker process, kept over batches."""
    store = _stores.get(config.data)
    if store is None:
        store = _stores[config.data] = SqliteStore(config.folder, synchronous=config.store.synchronous)
    return store


def _records(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = [
        batch.column(name).to_pylist() for name in ("partition", "offset", "timestamp", "key", "action", "value")
    ]
    headers = batch.column("headers")
    if headers.null_count == batch.num_rows:
        return map(Record, *columns)
    return map(Record, *columns, map(_headers, headers.to_pylist()))


def _headers(found: list[dict[str, object]] | None) -> Headers:
    return tuple((header["key"], header["value"]) for header in found or ())  # type: ignore[misc]
