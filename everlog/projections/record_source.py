"""A topic's records as a source: each record of the log, as it is, in the order of its partition.

Offsets are maps with one entry per partition, named as Akka does (`journal-orders-3`). So parts move on their own,
and a topic may be divided anew (`split`) without reading anything twice. Appends that lost are among the records:
only the fold knows. `everlog.projections.event_source` hands out the events that count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from everlog.core.actions import Append, decode_action
from everlog.core.codec import EventData, decode_value
from everlog.core.events import decode_payload
from everlog.core.record import Record
from everlog.errors import InvalidInput, InvalidOffset, InvalidProjection, LogTruncated, MalformedRecord
from everlog.journal.journal import check_topic
from everlog.journal.parts import JournalParts
from everlog.log.port import LogTopic, RecordReader
from everlog.projections.offsets import Offset, RecordPlace, Single, has_passed, parse_entry, show
from everlog.projections.settings import check_count
from everlog.projections.source import Delivery, EnvelopeFacts, Feed, Lag, Source

TOPIC_POLL_S = 0.05
MAX_SPLIT = 10_000


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
        """The events of an append, even of one that lost; nothing for other records, or for one that cannot be read."""
        try:
            action = None if self.action is None else decode_action(self.action)
            if isinstance(action, Append) and self.value is not None:
                return decode_value(action.payload_type, self.value).events
        except MalformedRecord:
            pass
        return ()


class TopicSource(Source):
    """Something of a topic of the log; with `split=4`, in four keys for up to four instances."""

    def __init__(self, topic: str, *, split: int = 1) -> None:
        try:
            self.topic = check_topic(topic)
        except InvalidInput as error:
            raise InvalidProjection(str(error)) from error
        self.split = check_count("split", split, most=MAX_SPLIT)


class RecordSource(TopicSource):
    """The records of a topic: `source=records("orders")`."""

    def open(self, parts: JournalParts | None) -> Feed:
        if parts is None:
            raise InvalidProjection("records of a topic need an open log")
        return RecordFeed(self, parts, parts.log.reader())

    def describe(self) -> dict[str, Any]:
        return {"kind": "records", "topic": self.topic, "split": self.split}


class TopicFeed(Feed):
    """Some of a topic's partitions: their keys, entries of offsets, and lag."""

    divides = True
    places: tuple[type, ...] = (int,)
    """What an entry of an offset may be."""

    def __init__(self, source: TopicSource, parts: JournalParts, reader: RecordReader) -> None:
        self._source = source
        self._log = parts.log
        self._clock = parts.clock
        self._name = parts.config.journal.topic_prefix + source.topic
        self._reader = reader

    async def keys(self) -> Sequence[str]:
        split = self._source.split
        return [self._name] if split == 1 else [f"{self._name}/{part}of{split}" for part in range(split)]

    async def parts(self, key: str) -> Sequence[str] | None:
        topic = await self._log.topic(self._name)
        return None if topic is None else [self._entry(one) for one in self._partitions(key, topic)]

    def check_offset(self, key: str, offset: Offset) -> Offset:
        """A map of numbers, by partition."""
        if not isinstance(offset, Mapping) or not offset:
            raise InvalidOffset(
                f"{show(offset)!r} is not the offset of a topic's records: those are maps, with a number per "
                f"partition, such as {self._entry(0)}=17"
            )
        part = self._part(key)
        for entry, place in offset.items():
            partition = self._partition(entry)
            if partition is None or partition % self._source.split != part:
                raise InvalidOffset(f"{entry!r} is no partition of the key {key}: those are named {self._entry(part)}")
            if isinstance(place, bool) or not isinstance(place, self.places):
                raise InvalidOffset(f"the offset of {entry} is a number, not {show(place)!r}")
        return offset

    def parse_shown(self, text: str) -> Offset:
        return parse_entry(text)

    def is_done(self, offset: Offset, stored: Offset | None) -> bool:
        return has_passed(stored, offset)

    async def check_place(self, key: str, offset: Offset) -> None:
        """Up to the last record of each partition. -1 is before the first; what the log has dropped is no place."""
        assert isinstance(offset, Mapping)
        topic = await self._log.topic(self._name)
        count = 0 if topic is None else topic.partitions
        for entry, place in offset.items():
            partition = self._partition(entry)
            if topic is None or partition is None or partition >= count:
                raise InvalidOffset(f"there is no partition {entry}: {self._name} has {count} of them")
            start, end = await self._log.bounds(topic, partition)
            if isinstance(place, RecordPlace):
                there = start <= place.offset < end and place.event >= 0
            else:
                there = isinstance(place, int) and (place == -1 or start - 1 <= place < end)
            if not there:
                raise InvalidOffset(
                    f"{entry} has no place {show(place)}: its log has the records {start} to {end - 1}, and -1 is "
                    "before the first"
                )

    def _partition(self, entry: str) -> int | None:
        """The partition that an entry of an offset is of; None if it is none of this topic."""
        name, _, text = entry.rpartition("-")
        found = int(text) if name == self._name and text.isascii() and text.isdecimal() else None
        return found if found is not None and self._entry(found) == entry else None

    def _part(self, key: str) -> int:
        return 0 if self._source.split == 1 else int(key.rpartition("/")[2].partition("of")[0])

    def _partitions(self, key: str, topic: LogTopic) -> range:
        return range(self._part(key), topic.partitions, self._source.split)

    def _entry(self, partition: int) -> str:
        return f"{self._name}-{partition}"

    def _place(self, partition: int, stored: Offset | None) -> int:
        """The last record that is done; -1 at first."""
        found = self._stored(partition, stored)
        if not isinstance(found, int):
            raise InvalidOffset(f"the offset of {self._entry(partition)} is a number, not {found!r}")
        return int(found)

    def _stored(self, partition: int, stored: Offset | None) -> Single:
        """The partition's entry; -1 if there is none."""
        if stored is None:
            return -1
        if not isinstance(stored, Mapping):
            raise InvalidOffset(f"{stored!r} is not the offset of a topic's records: those are maps, one per partition")
        return stored.get(self._entry(partition), -1)

    async def _wait_for_topic(self) -> LogTopic:
        """A topic is made by its first append, which may be in another process."""
        while True:
            topic = await self._log.topic(self._name)
            if topic is not None:
                return topic
            await asyncio.sleep(TOPIC_POLL_S)

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

    async def close(self) -> None:
        await self._reader.close()


class RecordFeed(TopicFeed):
    """The records, as deliveries."""

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

    def read_back(self, payload: bytes) -> Any:
        return msgspec.json.decode(payload, type=LoggedRecord)

    def describe(self, envelope: Any) -> EnvelopeFacts:
        """An append of one event is that event; of several, it begins at the first, and has all payloads."""
        assert isinstance(envelope, LoggedRecord)
        events, topic, journal_id = envelope.events, envelope.topic, envelope.key
        if not events:
            return EnvelopeFacts(topic=topic, id=journal_id, payload=_text(envelope.action))
        payloads = [decode_payload(one.payload_type, one.data) for one in events]
        return EnvelopeFacts(
            topic=topic,
            id=journal_id,
            seq_nr=events[0].seq_nr,
            tags=tuple(sorted({tag for one in events for tag in one.tags})),
            payload_type=events[0].payload_type,
            payload=payloads[0] if len(payloads) == 1 else payloads,
        )


def _text(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return None


def records(topic: str, *, split: int = 1) -> RecordSource:
    """The raw records of a topic as a source, also those of appends that lost: for events, use `events`."""
    return RecordSource(topic, split=split)
