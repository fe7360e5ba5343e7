"""Reading ranges of the log in a task of Spark: chunk after chunk, each log partition in order.

A range is a promise of the driver, which has seen that the log holds it. What cannot be read is told, not raised: the
other ranges of the task are read all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import NamedTuple

from everlog.core.record import Record
from everlog.core.values import partition_name
from everlog.errors import EverlogError
from everlog.log.port import LogTopic

# A chunk is bounded by both: it is folded and written while the next one is read.
MAX_CHUNK_RECORDS = 5_000
MAX_CHUNK_BYTES = 8 * 1024 * 1024


class LogRange(NamedTuple):
    """Offsets of a log partition, from `start` up to but not including `end`."""

    topic: LogTopic
    partition: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """The partition, as the pipeline's offsets name it."""
        return partition_name(self.topic.name, self.partition)


class RangeRecords(NamedTuple):
    """The next records of a range, or why there are none: then nothing more of this range follows."""

    range: LogRange
    records: Sequence[Record]
    error: EverlogError | None = None


Chunk = Sequence[RangeRecords]


class RangeReader(ABC):
    """Reads ranges, one call after the other. It belongs to the process that made it."""

    @abstractmethod
    def read(self, ranges: Sequence[LogRange]) -> Generator[Chunk, None, None]:
        """All records of these ranges, in chunks that hold some of one or several ranges.

        A range has ended when a record or the log's own word shows that all below `end` was passed. It fails with
        LogTruncated if records of it are gone, with TopicReplaced if the topic is another one.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files or connections."""
