"""What a source is: a stream of Arrow batches, each log partition in one task, and how to read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from everlog.core.record import Record
from everlog.core.values import LogOffsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class PartitionRecords(NamedTuple):
    """Records of one log partition, in the log's order, and about how many bytes they are."""

    topic: str
    partition: int
    records: Sequence[Record]
    size: int


StreamDecoder = Callable[["pa.RecordBatch"], Iterator[PartitionRecords]]


class LogStream(ABC):
    """The log as a Spark stream. Offsets are always the next ones to read."""

    # Whether a task may read several log partitions, one after the other, and apply them at once.
    mixes = False

    @abstractmethod
    def stream(self, session: SparkSession, offsets: LogOffsets, passed: Collection[str]) -> DataFrame:
        """All topics but those in `passed`, from these offsets on; later topics from their beginning."""

    @abstractmethod
    def ends(self, offset: str) -> LogOffsets:
        """Where a batch ends, from what Spark writes down about it before it runs."""

    @property
    @abstractmethod
    def decoder(self) -> StreamDecoder:
        """Makes records of an Arrow batch; runs in the tasks, so it must be a function of a module."""
