"""A topic's events as a source: those that count, decoded, in the log's order of each partition.

Each accepted event comes once: at its own record or, if that had to wait in quarantine, at the Resume that took it up.
An append that lost never comes. It needs no running pipeline: what is not replicated yet is folded here, as reads do.

Offsets are those of a topic's records, a map with one entry per partition. An append of several events is one record:
a place between two of them is a `RecordPlace`, so that no strategy repeats or loses one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from everlog.core.actions import Append
from everlog.core.codec import encode_headers, encode_tags, record_metadata
from everlog.core.entry import Entry
from everlog.core.event_types import EventClasses, EventTypes, plain
from everlog.core.events import EventEnvelope, EventRecord
from everlog.core.values import Position
from everlog.errors import InvalidProjection, LogTruncated
from everlog.journal.parts import JournalParts
from everlog.journal.reader import check_truncation
from everlog.journal.topic_registry import pin_topic
from everlog.journal.verdict_reader import AcceptedAppends, VerdictReader
from everlog.log.port import LogTopic
from everlog.projections.offsets import Offset, RecordPlace
from everlog.projections.record_source import TopicFeed, TopicSource
from everlog.projections.settings import check_choice
from everlog.projections.source import Delivery, Feed

# A page is judged as a whole, so it is bounded.
PAGE = 500


class AcceptedEvent(EventEnvelope, msgspec.Struct, frozen=True, gc=False):
    """An event that counts. `position` is where it took effect: its own append, or the Resume that took that up."""

    topic: str
    id: str
    position: Position
    event: EventRecord


class EventSource(TopicSource):
    """The events of a topic: `source=events("orders")`."""

    def __init__(self, topic: str, types: EventClasses | None = None, *, split: int = 1, partial: bool = False) -> None:
        super().__init__(topic, split=split)
        self.partial = check_choice("partial", partial)
        self.types = None if types is None else EventTypes.of(types)

    def open(self, parts: JournalParts | None) -> Feed:
        if parts is None:
            raise InvalidProjection("events of a topic need an open log")
        return EventFeed(self, parts)

    def describe(self) -> dict[str, Any]:
        return {"kind": "events", "topic": self.topic, "split": self.split}


class EventFeed(TopicFeed):
    """The events, as deliveries. A record without an event that counts is passed."""

    places = (int, RecordPlace)

    def __init__(self, source: EventSource, parts: JournalParts) -> None:
        super().__init__(source, parts, parts.log.reader())
        self._parts = parts
        self._partial = source.partial
        self._types = source.types

    def _place(self, partition: int, stored: Offset | None) -> int:
        found = self._stored(partition, stored)
        return found.offset - 1 if isinstance(found, RecordPlace) else super()._place(partition, stored)

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        log_topic, parts = await self._wait_for_topic(), self._parts
        topic = await pin_topic(parts.store, log_topic, parts.config, parts.clock)
        done: dict[int, int | RecordPlace] = {}
        starts: dict[int, int] = {}
        verdicts: dict[int, VerdictReader] = {}
        for partition in self._partitions(key, log_topic):
            begin = await self._begin(log_topic, partition, self._place(partition, stored))
            place = self._stored(partition, stored)
            assert isinstance(place, int | RecordPlace)
            done[partition], starts[partition] = place, begin
            verdicts[partition] = VerdictReader(
                parts.log,
                parts.store,
                log_topic,
                topic,
                partition,
                start=begin,
                page_size=parts.config.journal.page_size,
                max_known=parts.config.journal.max_known_journals,
            )
        async for page in self._reader.read(log_topic, starts):
            partition = page[0].partition
            for at in range(0, len(page), PAGE):
                found = await verdicts[partition].judge(page[at : at + PAGE])
                deliveries = self._deliver(partition, found, done[partition])
                if deliveries:
                    yield deliveries

    async def _begin(self, topic: LogTopic, partition: int, place: int) -> int:
        """Where to read from: behind what is done or, where the log finds a key's records only at a price, from the
        first record that is not replicated; so what lies between is read once, not once for each journal.
        """
        pointer = await self._parts.store.pointer(topic.name, partition)
        bounds = await self._log.bounds(topic, partition)
        if bounds.start > place + 1 and not (place < 0 and self._partial):
            raise LogTruncated(
                topic.name,
                partition,
                f"records {place + 1} to {bounds.start - 1} are gone, the projection did not see their events: read a "
                f"tag or slices, which keep theirs; or go on without them, from the offset "
                f"{self._entry(partition)}={bounds.start - 1}"
                + (", or with events(…, partial=True)" if place < 0 else ""),
            )
        wanted = max(place + 1, bounds.start)
        if wanted <= pointer + 1:
            return wanted
        check_truncation(topic.name, partition, bounds, pointer)
        return wanted if self._log.floor(topic, partition) <= pointer + 1 else pointer + 1

    def _deliver(self, partition: int, page: Sequence[AcceptedAppends], done: int | RecordPlace) -> list[Delivery]:
        topic, entry = self._source.topic, self._entry(partition)
        last, index = (done.offset, done.event) if isinstance(done, RecordPlace) else (done + 1, -1)
        found: list[Delivery] = []
        for offset, timestamp, appends in page:
            if offset < last:
                continue
            position, passed = Position(topic, partition, offset), {(topic, partition): offset}
            events = [
                AcceptedEvent(topic, journal_id, position, self._typed(event))
                for append in appends
                for journal_id, event in _events(append)
            ]
            first = index + 1 if offset == last else 0
            for at, event in enumerate(events[first:], first):
                whole = at == len(events) - 1
                place = offset if whole else RecordPlace(offset, at)
                found.append(Delivery({entry: place}, event, event.timestamp, event.id, passed if whole else None))
            if not events:
                found.append(Delivery({entry: offset}, None, timestamp, positions=passed, passed=True))
        return found

    def _typed(self, event: EventRecord) -> EventRecord:
        return event if self._types is None else self._types.typed(event)

    def write_down(self, envelope: Any) -> bytes | None:
        return msgspec.msgpack.encode(msgspec.structs.replace(envelope, event=plain(envelope.event)))

    def read_back(self, payload: bytes) -> Any:
        found = msgspec.msgpack.decode(payload)  # text or bytes: it knows which, a type does not
        event = self._typed(EventRecord(**found["event"]))
        found |= {"position": Position(*found["position"]), "event": event}
        return AcceptedEvent(**found)


def _events(entry: Entry) -> list[tuple[str, EventRecord]]:
    """The events of an append, each with its journal's id."""
    record, action, value = entry.record, entry.action, entry.value
    assert isinstance(action, Append)
    assert value is not None
    assert record.key is not None
    journal_id = record.key.decode()
    kinds = {event.event_type for event in value.events}
    metadata = {kind: record_metadata(action.header_data, value.metadata, kind) for kind in kinds}
    headers = encode_headers(record.headers)
    return [
        (
            journal_id,
            EventRecord(
                event.seq_nr,
                record.timestamp,
                record.partition,
                record.offset,
                event.payload_type,
                event.data,
                tags_json=encode_tags(event.tags),
                origin=action.origin,
                version=action.version,
                append_id=action.id,
                metadata_json=metadata[event.event_type],
                headers_json=headers,
            ),
        )
        for event in value.events
    ]


def events(topic: str, types: EventClasses | None = None, *, split: int = 1, partial: bool = False) -> EventSource:
    """The events of a topic as a source: those of appends that counted, in the order of each partition of the log.

    `types`: their classes. `split`: in as many keys, for as many instances. `partial`: a view of what the log still
    holds; otherwise a projection that begins after records have left the log says so instead of leaving events out.

        @projection("owed", source=events("invoices"), strategy=exactly_once())
        async def owed(event, view):
            await view.execute(ADD, event.id, event.payload["cents"])
    """
    return EventSource(topic, types, split=split, partial=partial)
