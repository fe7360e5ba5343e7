"""What a log is: topics of a fixed number of partitions, each an ordered list of records.

Implemented by `everlog.log.sqlite.log` (one file) and `everlog.log.kafka`. Everything above uses only what stands here.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from everlog.core.record import NewRecord, Record
from everlog.runtime.retry import NO_JITTER, Backoff

# How often a log that cannot wait for records looks for them.
MIN_LOOK_S = 0.005
MAX_LOOK_S = 0.1


class LogTopic(NamedTuple):
    """A topic of the log. A topic that is created again under its old name has another `id`."""

    name: str
    id: str
    partitions: int


class Bounds(NamedTuple):
    """What a partition holds: offsets from `start` up to but not including `end`."""

    start: int
    end: int


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Where a record went.

    `previous` is the offset of the same key's record before it, at least -1, if the log can tell: then nothing of
    this key lies between the two. None if it cannot.
    """

    offset: int
    previous: int | None = None


class Trimmed(Exception):
    """The log no longer holds all that was asked for: its partition starts at `start` by now."""

    def __init__(self, start: int) -> None:
        super().__init__(f"the log starts at {start}")
        self.start = start


class RecordReader(ABC):
    """Reads whole partitions without end, for readers that want every record."""

    @abstractmethod
    def read(self, topic: LogTopic, starts: Mapping[int, int]) -> AsyncIterator[Sequence[Record]]:
        """Pages, each of one partition, from these offsets on. LogTruncated if records go before they are read."""

    @abstractmethod
    async def close(self) -> None:
        """Close the files or connections."""


class Log(ABC):
    """An ordered, durable log. Topic names are the log's own (`journal-orders`)."""

    @abstractmethod
    async def topic(self, name: str) -> LogTopic | None:
        """The topic, or None if it does not exist."""

    @abstractmethod
    async def create_topic(self, name: str) -> LogTopic:
        """The topic, created with the configured number of partitions if it does not exist."""

    @abstractmethod
    async def topics(self) -> list[LogTopic]:
        """All topics, by name; in a log that is shared with others, at least those that may hold journals."""

    # How often a listing of all topics may be asked for: every few milliseconds where it costs nothing.
    listing_s = 2.0

    async def find_topics(self, names: Collection[str]) -> dict[str, LogTopic]:
        """Those of the topics that exist."""
        found = await asyncio.gather(*map(self.topic, names))
        return {topic.name: topic for topic in found if topic is not None}

    async def wait_for_records(self, ends: Mapping[LogTopic, Sequence[int]], timeout_s: float) -> bool:
        """Wait until something lies at or above one of these ends, by partition; False if the time runs out first.

        It may also return because something else has changed. One caller at a time.
        """
        places = [(topic, partition, end) for topic, found in ends.items() for partition, end in enumerate(found)]
        deadline, backoff = time.monotonic() + timeout_s, Backoff(MIN_LOOK_S, MAX_LOOK_S, jitter=NO_JITTER)
        while True:
            found = await asyncio.gather(*(self.bounds(topic, partition) for topic, partition, _ in places))
            if any(bounds.end > end for bounds, (_, _, end) in zip(found, places, strict=True)):
                return True
            if time.monotonic() >= deadline:
                return False
            await backoff.sleep()

    @abstractmethod
    async def append(self, topic: LogTopic, record: NewRecord) -> Ack:
        """Store one record durably.

        Raises Unacknowledged if it is not known in time whether it was stored; any other error means that it was not.
        """

    @abstractmethod
    async def bounds(self, topic: LogTopic, partition: int) -> Bounds:
        """Where the partition starts and ends now."""

    @abstractmethod
    async def end(self, topic: LogTopic, partition: int, *, reach: int = 0) -> int:
        """Where the partition ends now: above every record that was acknowledged before this call.

        `reach` is an end that the caller knows of already; a log that has not reached it yet may wait for it.
        """

    def floor(self, topic: LogTopic, partition: int) -> int:
        """From which offset on `tail` is cheap, for callers that may choose where to start; 0 if it always is."""
        return 0

    @abstractmethod
    async def tail(
        self, topic: LogTopic, partition: int, key: bytes, *, after: int, before: int, limit: int
    ) -> list[Record]:
        """One key's records with `after < offset < before`, oldest first, at most `limit` of them.

        Raises Trimmed if the log no longer holds everything above `after`.
        """

    @abstractmethod
    async def tail_keys(self, topic: LogTopic, partition: int, *, after: int, before: int) -> Sequence[bytes]:
        """The distinct keys of the records with `after < offset < before`. Raises Trimmed as `tail` does."""

    @abstractmethod
    async def timestamp_at(self, topic: LogTopic, partition: int, offset: int) -> int | None:
        """The timestamp of the first record at or after this offset; None if there is none."""

    @abstractmethod
    def reader(self) -> RecordReader:
        """A reader of all records; the caller closes it before the log."""

    @property
    def trims(self) -> bool:
        """Whether `trim` may remove anything: not where the log has a retention of its own."""
        return False

    async def trim(self, topic: LogTopic, partition: int, *, below: int) -> int:
        """Remove the records below this offset that the configured retention does not keep; how many."""
        return 0

    async def concerns(self) -> dict[str, list[str]]:
        """By topic: what may lose acknowledged records one day. Topics without a concern are left out."""
        return {}

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted and let go of the files."""
