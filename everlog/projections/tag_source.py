"""Events by tag as a source, and all events of a log in slices.

Offsets are the time-UUIDs of the one order that all tagged events have. A tag has one key; slices have as many as they
are divided into.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from everlog.core.events import EventRecord
from everlog.core.plan import Watermark
from everlog.core.tag_names import SLICES, check_tag
from everlog.core.timeuuid import TimeUuid
from everlog.errors import InvalidOffset, InvalidProjection
from everlog.journal.parts import Parts
from everlog.projections.offsets import Offset
from everlog.projections.save_window import LogPlace
from everlog.projections.source import Delivery, Feed, Lag, Source
from everlog.tags.tag import Tag, TaggedEvent, Tags

# A lag is counted up to this many events.
MAX_LAG = 10_000


class TagSource(Source):
    """The events of a tag, or without one of all slices in `split` parts."""

    def __init__(self, name: str | None, split: int = 1) -> None:
        if name is None and not (1 <= split <= SLICES and SLICES % split == 0):
            raise InvalidProjection(f"slices are divided into a power of two up to {SLICES}, not {split}")
        self.name = None if name is None else check_tag(name)
        self.split = split

    def open(self, parts: Parts | None) -> Feed:
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

    def __init__(self, source: TagSource, parts: Parts) -> None:
        self._source = source
        self._parts = parts
        self._tags = Tags(parts)

    async def keys(self) -> Sequence[str]:
        if self._source.name is not None:
            return [self._source.name]
        size = SLICES // self._source.split
        return [f"{first}-{first + size - 1}" for first in range(0, SLICES, size)]

    def _tag(self, key: str) -> Tag:
        if self._source.name is not None:
            return self._tags.tag(key)
        first, _, last = key.partition("-")
        return self._tags.slices(int(first), int(last))

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        async with aclosing(self._tag(key).steps(_after(stored))) as steps:
            async for found in steps:
                if isinstance(found, Watermark):
                    yield [Delivery(None, positions=self._positions(found), passed=True)]
                else:
                    yield [_deliver(event) for event in found]

    def _positions(self, watermark: Watermark) -> Mapping[LogPlace, int]:
        short, positions = self._parts.config.journal.short, {}
        for place, end in watermark.positions.items():
            topic, _, partition = place.rpartition("/")
            positions[short(topic), int(partition)] = end - 1
        return positions

    async def lag(self, key: str, stored: Offset | None) -> Lag | None:
        events, oldest = 0, None
        async with aclosing(self._tag(key).current_pages(after=_after(stored))) as pages:
            async for page in pages:
                oldest = page[0].place.ms if oldest is None else oldest
                events += len(page)
                if events >= MAX_LAG:
                    break
        return Lag(events, 0.0 if oldest is None else max(0.0, (self._parts.clock.now_ms() - oldest) / 1000))

    def write_down(self, envelope: Any) -> bytes | None:
        return msgspec.msgpack.encode(envelope)

    def read_back(self, payload: bytes) -> Any:
        found = msgspec.msgpack.decode(payload)  # text or bytes: it knows which, a type does not
        found |= {"place": TimeUuid(*found["place"]), "event": EventRecord(**found["event"])}
        return TaggedEvent(**found)

    async def close(self) -> None:
        await self._tags.watermarks.close()


def _after(stored: Offset | None) -> uuid.UUID | None:
    if stored is not None and not isinstance(stored, uuid.UUID):
        raise InvalidOffset(f"the offset {stored!r} is none of a tag: those are time-UUIDs")
    return stored


def _deliver(event: TaggedEvent) -> Delivery:
    return Delivery(event.offset, event, event.place.ms, f"{event.topic}:{event.id}")


def tag(name: str) -> TagSource:
    """The events that carry a tag, over all journals, as a source: `source=tag("cart")`."""
    return TagSource(name)


def slices(split: int = 1) -> TagSource:
    """All events of the topics with `slices = true`, divided by journal into `split` keys for as many instances."""
    return TagSource(None, split)
