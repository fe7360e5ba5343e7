"""A topic's records as a source: each record of the log, as it is, in the order of its partition.

Offsets are maps with one entry per partition, named as Akka does (`journal-orders-3`). So parts move on their own,
and a topic may be divided anew (`split`) without reading anything twice. Appends that lost are among the records:
only the fold knows. Use a tag for events that count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from everlog.core.actions import Append, decode_action
from everlog.core.codec import EventData, decode_value
from everlog.core.record import Record
from everlog.errors import InvalidOffset, InvalidProjection, LogTruncated, MalformedRecord
from everlog.journal.parts import Parts
from everlog.log.port import LogTopic, RecordReader
from everlog.projections.offsets import Offset
from everlog.projections.source import Delivery, Feed, Lag, Source

TOPIC_POLL_S = 0.05


class LoggedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of the log. `key` is the journal's id; None if it is no text."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: str | None
    action: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def events(self) -> tuple[EventData, ...]:
        """The events of an append; nothing for other records, or for one that cannot be read."""
        try:
            action = None if self.action is None else decode_action(self.action)
            if isinstance(action, Append) and self.value is not None:
                return decode_value(action.payload_type, self.value).events
        except MalformedRecord:
            pass
        return ()


class RecordSource(Source):
    """The records of a topic: `source=records("orders")`; with `split=4`, four keys for up to four instances."""

    def __init__(self, topic: str, *, split: int = 1) -> None:
        if not isinstance(topic, str) or not topic:
            raise InvalidProjection(f"a topic is text that is not empty, not {topic!r}")
        if split < 1:
            raise InvalidProjection(f"split must be at least 1, not {split}")
        self.topic = topic
        self.split = split

    def open(self, parts: Parts | None) -> Feed:
        if parts is None:
            raise InvalidProjection("records of a topic need an open log")
        return RecordFeed(self, parts, parts.log.reader())

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "topic": self.topic, "split": self.split}


class RecordFeed(Feed):
    """Some of a topic's partitions, as deliveries."""

    def __init__(self, source: RecordSource, parts: Parts, reader: RecordReader) -> None:
        self._source = source
        self._log = parts.log
        self._clock = parts.clock
        self._name = parts.config.journal.topic_prefix + source.topic
        self._reader = reader

    async def keys(self) -> Sequence[str]:
        split = self._source.split
        return [self._name] if split == 1 else [f"{self._name}/{part}of{split}" for part in range(split)]

    def _partitions(self, key: str, topic: LogTopic) -> range:
        part = 0 if self._source.split == 1 else int(key.rpartition("/")[2].partition("of")[0])
        return range(part, topic.partitions, self._source.split)

    def _entry(self, partition: int) -> str:
        return f"{self._name}-{partition}"

    def _place(self, partition: int, stored: Offset | None) -> int:
        """The last offset that is done; -1 at first."""
        if stored is None:
            return -1
        if not isinstance(stored, Mapping):
            raise InvalidOffset(
                f"the offset {stored!r} is none of a topic's records: those are maps, one per partition"
            )
        found = stored.get(self._entry(partition), -1)
        if not isinstance(found, int):
            raise InvalidOffset(f"the offset of {self._entry(partition)} is a number, not {found!r}")
        return int(found)

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        topic = await self._wait_for_topic()
        places: dict[int, int] = {}
        for partition in self._partitions(key, topic):
            place = self._place(partition, stored)
            start = (await self._log.bounds(topic, partition)).start
            if start > place + 1 and place >= 0:
                raise LogTruncated(
                    topic.name,
                    partition,
                    f"records {place + 1} to {start - 1} are gone, the projection did not see them",
                )
            places[partition] = max(place + 1, start)
        async for page in self._reader.read(topic, places):
            yield self._deliver(page)

    async def _wait_for_topic(self) -> LogTopic:
        """A topic is made by its first append, which may be in another process."""
        while True:
            topic = await self._log.topic(self._name)
            if topic is not None:
                return topic
            await asyncio.sleep(TOPIC_POLL_S)

    def _deliver(self, page: Sequence[Record]) -> list[Delivery]:
        """The records of a page, all of one partition."""
        topic, partition = self._source.topic, page[0].partition
        entry, place = self._entry(partition), (topic, partition)
        found: list[Delivery] = []
        for record in page:
            offset, timestamp, key = record.offset, record.timestamp, _text(record.key)
            logged = LoggedRecord(topic, partition, offset, timestamp, key, record.action, record.value, record.headers)
            found.append(Delivery({entry: offset}, logged, timestamp, key, {place: offset}))
        return found

    async def lag(self, key: str, stored: Offset | None) -> Lag | None:
        topic = await self._log.topic(self._name)
        if topic is None:
            return Lag(0, 0.0)
        events, oldest = 0, None
        for partition in self._partitions(key, topic):
            start, end = await self._log.bounds(topic, partition)
            first = max(self._place(partition, stored) + 1, start)
            if end > first:
                events += end - first
                since = await self._log.timestamp_at(topic, partition, first)
                oldest = since if oldest is None or (since is not None and since < oldest) else oldest
        return Lag(events, 0.0 if oldest is None else max(0.0, (self._clock.now_ms() - oldest) / 1000))

    def read_back(self, payload: bytes) -> Any:
        return msgspec.json.decode(payload, type=LoggedRecord)

    async def close(self) -> None:
        await self._reader.close()


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def records(topic: str, *, split: int = 1) -> RecordSource:
    """The records of a topic as a source."""
    return RecordSource(topic, split=split)
