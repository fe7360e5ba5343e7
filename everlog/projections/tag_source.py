"""Events by tag as a source, and all events of a log in slices.

Offsets are the time-UUIDs of the one order that all tagged events have. A tag has one key; slices have as many as they
are divided into, and offsets with an entry for each sixty-fourth of them. So they may be divided anew (`slices(8)`
instead of `slices(4)`): only the keys change that the entries belong to.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from everlog.core.event_types import EventClasses, EventTypes, plain
from everlog.core.events import EventRecord
from everlog.core.plan import Watermark
from everlog.core.tag_names import PER_SLICE_TAG, SLICE_TAGS, SLICES, check_tag, slice_of, slice_part, slice_tag
from everlog.core.timeuuid import FUTURE_MS, TimeUuid
from everlog.errors import InvalidOffset, InvalidProjection
from everlog.journal.parts import JournalParts
from everlog.projections.offsets import Offset, has_passed, parse, parse_entry, show
from everlog.projections.save_window import LogPlace
from everlog.projections.settings import check_count
from everlog.projections.source import Delivery, Feed, Lag, Source
from everlog.tags.tag import Tag, TaggedEvent, Tags
from everlog.tags.typed_tag import TypedTag, typed_event

# A lag is counted up to this many events.
MAX_LAG = 10_000


class TagSource(Source):
    """The events of a tag, or without one of all slices in `split` parts."""

    def __init__(self, name: str | None, split: int = 1, types: EventClasses | None = None) -> None:
        if check_count("split", split) > SLICE_TAGS or SLICE_TAGS % split:
            raise InvalidProjection(f"slices are divided into a power of two up to {SLICE_TAGS}, not {split}")
        self.name = None if name is None else check_tag(name)
        self.split = split
        self.types = None if types is None else EventTypes.of(types)

    def open(self, parts: JournalParts | None) -> Feed:
        if parts is None:
            raise InvalidProjection("events by tag need an open log")
        return TaggedFeed(self, parts)

    def describe(self) -> dict[str, Any]:
        if self.name is None:
            return {"kind": "slices", "split": self.split}
        return {"kind": "tag", "tag": self.name}


class TaggedFeed(Feed):
    """Views by tag, as deliveries. The watermark tells which positions of the log are passed, tagged or not."""

    tracks_all = True

    def __init__(self, source: TagSource, parts: JournalParts) -> None:
        self._source = source
        self._parts = parts
        self._tags = Tags(parts)
        self.divides = source.name is None

    async def keys(self) -> Sequence[str]:
        return slice_keys(self._source.split) if self._source.name is None else [self._source.name]

    async def parts(self, key: str) -> Sequence[str] | None:
        return None if self._source.name is not None else [slice_part(first) for first in slice_firsts(key)]

    def check_offset(self, key: str, offset: Offset) -> Offset:
        """Of a tag a time-UUID; of slices one for all parts of the key, or a map of those."""
        if self._source.name is not None:
            return check_place(offset) or offset
        parts = [slice_part(first) for first in slice_firsts(key)]
        if not isinstance(offset, Mapping):
            return {part: check_place(offset) or offset for part in parts}
        unknown = sorted(set(offset) - set(parts))
        if unknown:
            raise InvalidOffset(f"{unknown[0]!r} is no part of the slices {key}: those are {parts[0]} to {parts[-1]}")
        return check_places(key, offset)

    def parse_shown(self, text: str) -> Offset:
        return parse(text, "TBU") if self._source.name is not None else parse_entry(text)

    def is_done(self, offset: Offset, stored: Offset | None) -> bool:
        return has_passed(stored, offset)

    async def check_place(self, key: str, offset: Offset) -> None:
        """Up to now: what is behind would be passed over until its time comes."""
        limit_ms = self._parts.clock.now_ms() + FUTURE_MS
        for place in offset.values() if isinstance(offset, Mapping) else [offset]:
            if isinstance(place, uuid.UUID) and TimeUuid.of(place).ms > limit_ms:
                raise InvalidOffset(f"the offset {place} lies more than an hour in the future: pass that of an event")

    def _tag(self, key: str, stored: Offset | None) -> tuple[Tag, uuid.UUID | None]:
        """What to read, and the offset from which."""
        if self._source.name is not None:
            return self._typed(self._tags.tag(key)), check_place(stored)
        places = check_places(key, stored)
        starts = {slice_tag(first): TimeUuid.of(places[slice_part(first)]) for first in slice_firsts(key, places)}
        first, _, last = key.partition("-")
        after = min(starts.values()).uuid if starts and len(starts) == len(slice_firsts(key)) else None
        return self._typed(self._tags.slices(int(first), int(last), starts=starts)), after

    def _typed(self, tag: Tag) -> Tag:
        return tag if self._source.types is None else TypedTag(tag, self._source.types)

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        tag, after = self._tag(key, stored)
        deliver = _deliver if self._source.name is not None else _deliver_part
        async with aclosing(tag.steps(after)) as steps:
            async for found in steps:
                if isinstance(found, Watermark):
                    yield [Delivery(None, positions=self._positions(found), passed=True)]
                else:
                    yield [deliver(event) for event in found]

    def _positions(self, watermark: Watermark) -> Mapping[LogPlace, int]:
        short, positions = self._parts.config.journal.short, {}
        for place, end in watermark.positions.items():
            topic, _, partition = place.rpartition("/")
            positions[short(topic), int(partition)] = end - 1
        return positions

    async def lag(self, key: str, stored: Offset | None) -> Lag | None:
        events, oldest = 0, None
        tag, after = self._tag(key, stored)
        async with aclosing(tag.current_pages(after=after)) as pages:
            async for page in pages:
                oldest = page[0].place.ms if oldest is None else oldest
                events += len(page)
                if events >= MAX_LAG:
                    break
        return Lag(events, 0.0 if oldest is None else max(0.0, (self._parts.clock.now_ms() - oldest) / 1000))

    def write_down(self, envelope: Any) -> bytes | None:
        return msgspec.msgpack.encode(msgspec.structs.replace(envelope, event=plain(envelope.event)))

    def read_back(self, payload: bytes) -> Any:
        found = msgspec.msgpack.decode(payload)  # text or bytes: it knows which, a type does not
        found |= {"place": TimeUuid(*found["place"]), "event": EventRecord(**found["event"])}
        event = TaggedEvent(**found)
        return event if self._source.types is None else typed_event(event, self._source.types)

    async def close(self) -> None:
        await self._tags.watermarks.close()


def slice_keys(split: int) -> list[str]:
    """The keys that all slices are divided into.

    >>> slice_keys(2)
    ['0-511', '512-1023']
    """
    size = SLICES // split
    return [f"{first}-{first + size - 1}" for first in range(0, SLICES, size)]


def slice_firsts(key: str, places: Mapping[str, Any] | None = None) -> list[int]:
    """The first slice of each part of a key; with `places`, of those parts that are among them."""
    first, _, last = key.partition("-")
    found = range(int(first), int(last) + 1, PER_SLICE_TAG)
    return [one for one in found if places is None or slice_part(one) in places]


def check_place(offset: Offset | None) -> uuid.UUID | None:
    """An offset of a tag."""
    if offset is not None and not isinstance(offset, uuid.UUID):
        raise InvalidOffset(
            f"{show(offset)!r} is not the offset of a tag: those are time-UUIDs (uuid.UUID, or the type uuid)"
        )
    if offset is not None:
        TimeUuid.of(offset)
    return offset


def check_places(key: str, offset: Offset | None) -> dict[str, uuid.UUID]:
    """The offsets of a key of slices, by part; those of other keys are left out."""
    if offset is None:
        return {}
    if not isinstance(offset, Mapping):
        raise InvalidOffset(f"{offset!r} is not the offset of slices: those are maps, with a time-UUID per part")
    found = {part: check_place(offset[part]) for part in map(slice_part, slice_firsts(key, offset))}
    return {part: place for part, place in found.items() if place is not None}


def _deliver(event: TaggedEvent) -> Delivery:
    return Delivery(event.offset, event, event.place.ms, f"{event.topic}:{event.id}")


def _deliver_part(event: TaggedEvent) -> Delivery:
    """Each part of the slices has its own offset: so they may be divided anew without reading anything twice."""
    place = {slice_part(slice_of(event.id)): event.offset}
    return Delivery(place, event, event.place.ms, f"{event.topic}:{event.id}")


def tag(name: str, types: EventClasses | None = None) -> TagSource:
    """The events that carry a tag, over all journals, as a source: `source=tag("cart")`; `types`: their classes."""
    return TagSource(check_tag(name), types=types)


def slices(split: int = 1, types: EventClasses | None = None) -> TagSource:
    """All events of the topics with `slices = true`, divided by journal into `split` keys for as many instances.

    The number may change later: nothing is read twice, and nothing is left out.
    """
    return TagSource(None, split, types)
