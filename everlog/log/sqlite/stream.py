"""The SQLite log as a Spark stream source: Arrow batches, read limits, one log partition per task.

An offset of the stream is `{"journal-orders/0": 17, …}`: per log partition, the next offset to read. A row of the
stream is a block of records: Spark then moves bytes, and does not take every record apart and put it together again.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from everlog.config import Config, JournalConfig
from everlog.core.record import Record
from everlog.core.values import LogOffsets, parse_partition_name, partition_name
from everlog.log.sqlite.appender import SQL
from everlog.log.sqlite.log import FILE
from everlog.log.stream import LogStream, PartitionRecords, StreamDecoder
from everlog.spark.process import settle_process
from everlog.sqlite.connection import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = "everlog-log"
PATIENCE_S = 1.0
SCHEMA = "topic string not null, partition int not null, block binary not null"
ARROW = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("block", pa.binary(), nullable=False),
    ]
)

MAX_BLOCK_RECORDS = 1_000
MAX_BLOCK_BYTES = 4 * 1024 * 1024

# partition, offset, timestamp, key, action, value, packed headers: the columns of the statement `range`.
LogRow = tuple[int, int, int, bytes | None, bytes | None, bytes | None, bytes | None]

_encode = msgspec.msgpack.Encoder().encode
decode_block = msgspec.msgpack.Decoder(list[Record]).decode
_connections: dict[str, sqlite3.Connection] = {}


def blocks(rows: Iterable[LogRow]) -> Iterator[list[LogRow]]:
    """Cut rows into blocks that are bounded in records and bytes."""
    block: list[LogRow] = []
    size = 0
    for row in rows:
        block.append(row)
        size += len(row[5] or b"")
        if len(block) >= MAX_BLOCK_RECORDS or size >= MAX_BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def encode_block(rows: Sequence[LogRow]) -> bytes:
    """The rows as `decode_block` reads them; most have no headers, which are then left out."""
    found: list[Any] = [row[:6] if row[6] is None else (*row[:6], msgspec.Raw(row[6])) for row in rows]
    return _encode(found)


def next_ends(start: Mapping[str, int], ends: Mapping[str, int], max_records: int) -> LogOffsets:
    """How far the next batch reads: at most `max_records`, shared fairly, at least one of each that has any."""
    chosen = dict(start)
    behind = sorted((end - start.get(place, 0), place) for place, end in ends.items() if end > start.get(place, 0))
    for at, (lag, place) in enumerate(behind):
        take = min(lag, max(1, max_records // (len(behind) - at)))
        chosen[place] = start.get(place, 0) + take
        max_records -= take
    return chosen


class Slice(InputPartition):
    """The records of one log partition from `start` up to but not including `end`."""

    def __init__(self, topic: str, partition: int, start: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end


class LogReader(DataSourceStreamReader):
    """Offsets and slices are asked for in the driver's helper process, `read` runs in the tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.path = options["path"]
        self.journal = msgspec.json.decode(options["journal"], type=JournalConfig)
        self.start: LogOffsets = json.loads(options["start"])
        self.left_out = set(json.loads(options["leftOut"]))
        self.max_records = int(options["maxRecords"])
        self.patience = float(options["patience"])
        self.poll_interval_s = float(options["pollInterval"])

    def initialOffset(self) -> LogOffsets:  # noqa: N802
        return self.start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.max_records)

    def latestOffset(self, start: LogOffsets, limit: ReadLimit) -> LogOffsets:  # noqa: N802
        """Wait a little for something new: cheaper, and quicker to notice, than being asked again and again."""
        max_records = limit.max_rows if isinstance(limit, ReadMaxRows) else self.max_records
        deadline = time.monotonic() + self.patience
        while True:
            chosen = next_ends(start, self._ends(), max_records)
            if chosen != start or time.monotonic() >= deadline:
                return chosen
            time.sleep(self.poll_interval_s)

    def _ends(self) -> LogOffsets:
        rows = _log(self.path).execute(SQL["all_bounds"])
        return {
            partition_name(topic, partition): end
            for topic, partition, _, end in rows
            if self.journal.includes(topic) and topic not in self.left_out
        }

    def partitions(self, start: LogOffsets, end: LogOffsets) -> Sequence[Slice]:
        slices = []
        for place, last in end.items():
            first = start.get(place, 0)
            if last > first:
                slices.append(Slice(*parse_partition_name(place), first, last))
        return slices

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        settle_process()
        connection = _log(self.path)
        (number, *_) = connection.execute(SQL["topic"], (partition.topic,)).fetchone()
        bounds = (number, partition.partition, partition.start, partition.end)
        expected = partition.start
        for rows in blocks(connection.execute(SQL["range"], bounds)):
            # A hole means that the log was trimmed under us: fail, rather than publish past it.
            if rows[0][1] != expected or rows[-1][1] != expected + len(rows) - 1:
                raise RuntimeError(f"{partition.topic}/{partition.partition}: the log has a hole at {expected}")
            expected += len(rows)
            values = ([partition.topic], [partition.partition], [encode_block(rows)])
            arrays = [pa.array(value, field.type) for value, field in zip(values, ARROW, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=ARROW)
        if expected != partition.end:
            raise RuntimeError(f"{partition.topic}/{partition.partition}: the log ends at {expected}")


def _log(path: str) -> sqlite3.Connection:
    connection = _connections.get(path)
    if connection is None:
        connection = _connections[path] = connect(Path(path) / FILE)
    return connection


class LogSource(DataSource):
    """`spark.readStream.format("everlog-log")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> LogReader:  # noqa: N802
        return LogReader(self.options)


class SqliteStream(LogStream):
    """The SQLite log of a folder."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def stream(self, session: SparkSession, offsets: LogOffsets, passed: Collection[str]) -> DataFrame:
        session.dataSource.register(LogSource)
        return (
            session.readStream.format(FORMAT)
            .option("path", str(self._config.folder))
            .option("journal", msgspec.json.encode(self._config.journal).decode())
            .option("start", json.dumps(offsets))
            .option("leftOut", json.dumps(sorted(passed)))
            .option("maxRecords", self._config.pipeline.max_batch_records)
            .option("patience", PATIENCE_S)
            .option("pollInterval", self._config.pipeline.poll_interval_s)
            .load()
        )

    def ends(self, offset: str) -> LogOffsets:
        found: LogOffsets = json.loads(offset)
        return found

    @property
    def decoder(self) -> StreamDecoder:
        return decode_blocks


def decode_blocks(batch: pa.RecordBatch) -> Iterator[PartitionRecords]:
    """The blocks of a batch."""
    for topic, partition, block in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield PartitionRecords(topic, partition, decode_block(block), len(block))
