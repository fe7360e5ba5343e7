"""The records of a topic as a Spark stream source: ranges of its log partitions, one task each.

An offset of the stream is `{"journal-orders/0": 17, …}`: per log partition, the next offset to read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from everlog.config import Config
from everlog.core.fair_shares import next_ends
from everlog.core.record import Record
from everlog.core.values import LogOffsets, parse_partition_name, partition_name
from everlog.errors import TopicReplaced
from everlog.log.factory import make_range_reader, open_log
from everlog.log.port import Log, LogTopic
from everlog.log.range_reader import LogRange
from everlog.spark.process import run, settle_process

FORMAT = "everlog-records"
PATIENCE_S = 1.0
SCHEMA = "topic string, partition int, offset long, time timestamp, key string, action string, value binary"
ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
        ("action", pa.string()),
        ("value", pa.binary()),
    ]
)

_logs: dict[str, Log] = {}


class RecordOptions(msgspec.Struct, frozen=True):
    """What a reader needs to know; travels as an option of the stream."""

    config: Config
    topic: LogTopic
    start: LogOffsets


class RangePartition(InputPartition):
    """A range of a log partition."""

    def __init__(self, partition: int, start: int, end: int) -> None:
        self.partition = partition
        self.start = start
        self.end = end


class RecordStreamReader(DataSourceStreamReader):
    """Offsets are asked for in the driver's helper process, `read` runs in the tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.text = options["everlog"]
        self.options = msgspec.json.decode(self.text, type=RecordOptions)

    def initialOffset(self) -> LogOffsets:  # noqa: N802
        return dict(self.options.start)

    def latestOffset(self, start: LogOffsets, limit: object = None) -> LogOffsets:  # noqa: N802
        """Wait a little for something new: cheaper, and quicker to notice, than being asked again and again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found: LogOffsets = start | run(self._latest(start))
            left_s = deadline - time.monotonic()
            if found != start or left_s <= 0:
                return found
            run(self._wait(start, left_s))

    async def _latest(self, start: LogOffsets) -> LogOffsets:
        """Fair parts of what there is, up to the size of a batch."""
        log, topic = await self._log(), self.options.topic
        present = await log.topic(topic.name)
        if present is None or present.id != topic.id:
            raise TopicReplaced(f"the topic {topic.name} is not the one that the projection began with")
        ends = {
            partition_name(topic.name, partition): (await log.bounds(topic, partition)).end
            for partition in range(topic.partitions)
        }
        return next_ends(start, ends, self.options.config.pipeline.max_cycle_records)

    async def _wait(self, start: LogOffsets, seconds: float) -> None:
        topic = self.options.topic
        places = [start.get(partition_name(topic.name, number), 0) for number in range(topic.partitions)]
        await (await self._log()).wait_for_records({topic: places}, seconds)

    async def _log(self) -> Log:
        """One open log in the driver's helper process."""
        found = _logs.get(self.text)
        if found is None:
            found = _logs[self.text] = await open_log(self.options.config)
        return found

    def partitions(self, start: LogOffsets, end: LogOffsets) -> Sequence[RangePartition]:
        return [
            RangePartition(parse_partition_name(name)[1], start.get(name, 0), upto)
            for name, upto in end.items()
            if upto > start.get(name, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        settle_process()
        wanted = LogRange(self.options.topic, partition.partition, partition.start, partition.end)
        with closing(make_range_reader(self.options.config)) as reader:
            for chunk in reader.read([wanted]):
                for part in chunk:
                    if part.error is not None:
                        raise part.error
                    rows = [self._row(record) for record in part.records]
                    yield pa.RecordBatch.from_pylist(rows, schema=ARROW)

    def _row(self, record: Record) -> dict[str, Any]:
        return {
            "topic": self.options.config.journal.short(self.options.topic.name),
            "partition": record.partition,
            "offset": record.offset,
            "time": datetime.fromtimestamp(record.timestamp / 1000, UTC),
            "key": _text(record.key),
            "action": _text(record.action),
            "value": record.value,
        }


class RecordStreamSource(DataSource):
    """`spark.readStream.format("everlog-records")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> RecordStreamReader:  # noqa: N802
        return RecordStreamReader(self.options)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")
