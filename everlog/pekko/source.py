"""Events by tag that Akka or Pekko Persistence writes, as a source of projections.

Offsets are their time-UUIDs, so that a projection goes on where Akka or Pekko Projection stopped, and back. While some
journals are ahead of others, an offset is a `ResumePoint`. Late events come out of the order of their offsets: what a
view holds already is told by the number of an event in its journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from typing import Any
from uuid import UUID

import msgspec

from everlog.core.resume_point import ResumePoint
from everlog.core.tag_names import MAX_TAG_BYTES
from everlog.errors import InvalidConfig, InvalidOffset, InvalidProjection, InvalidTag
from everlog.journal.parts import JournalParts
from everlog.pekko.events import PekkoEvent
from everlog.pekko.reader import PekkoReader, open_reader
from everlog.pekko.time_buckets import place_of
from everlog.projections.offsets import JournalNumber, Offset, parse
from everlog.projections.projection_id import check_part
from everlog.projections.source import Delivery, Feed, Lag, Source
from everlog.projections.tag_source import MAX_LAG
from everlog.runtime.clock import Clock

OpenReader = Callable[[], AbstractAsyncContextManager[PekkoReader]]


class PekkoTagSource(Source):
    """Some tags of the tables that `[pekko]` names. Each is a key of the projection, as with Pekko Projection."""

    def __init__(self, *names: str) -> None:
        if not names:
            raise InvalidTag("name at least one tag: pekko_tag('carts')")
        for name in names:
            if not isinstance(name, str) or not 0 < len(name.encode(errors="surrogatepass")) <= MAX_TAG_BYTES:
                raise InvalidTag(f"a tag is text of 1 to {MAX_TAG_BYTES} bytes, not {name!r}")
            check_part("key", name)
        if len(set(names)) < len(names):
            raise InvalidProjection("a tag is named twice, and its events would come twice")
        self.names = names

    def open(self, parts: JournalParts | None) -> Feed:
        if parts is None:
            raise InvalidProjection("events that Akka or Pekko wrote need an open log, for its configuration")
        cassandra, pekko = parts.config.cassandra, parts.config.pekko
        if cassandra is None:
            raise InvalidConfig("[pekko] reads tables in Cassandra: add [cassandra] and [kafka] to the configuration")
        return PekkoTagFeed(self.names, lambda: open_reader(cassandra, pekko, clock=parts.clock), parts.clock)

    def describe(self) -> dict[str, Any]:
        return {"kind": "pekko_tag", "tags": list(self.names)}


class PekkoTagFeed(Feed):
    """Live queries, as deliveries. The reader is opened when it is first needed."""

    def __init__(self, names: Sequence[str], open_one: OpenReader, clock: Clock) -> None:
        self._names = names
        self._open_one = open_one
        self._clock = clock
        self._opening = asyncio.Lock()
        self._reader: PekkoReader | None = None
        self._opened = AsyncExitStack()

    async def _open(self) -> PekkoReader:
        async with self._opening:
            if self._reader is None:
                self._reader = await self._opened.enter_async_context(self._open_one())
            return self._reader

    async def keys(self) -> Sequence[str]:
        return self._names

    def check_offset(self, key: str, offset: Offset) -> Offset:
        _after(offset)
        return offset

    def parse_shown(self, text: str) -> Offset:
        return parse(text, "TBU")

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        after = _after(stored)
        async with aclosing((await self._open()).tag(key).live(after)) as events:
            async for event in events:
                yield (_deliver(event),)

    async def read_to(self, key: str, stored: Offset | None, end: Offset) -> AsyncIterator[Sequence[Delivery]]:
        """What has gone out when `end` was stored; late events are in their place by now."""
        last = _after(end)
        assert last is not None
        reached = place_of(last.after)
        async with aclosing((await self._open()).tag(key).current(_after(stored))) as events:
            async for event in events:
                assert event.tag_seq_nr is not None
                ahead = event.tag_seq_nr <= last.last.get(event.persistence_id, 0)
                if ahead or place_of(event.offset) <= reached:
                    yield (_deliver(event),)

    async def lag(self, key: str, stored: Offset | None) -> Lag | None:
        events, first = await (await self._open()).count(key, _after(stored), limit=MAX_LAG)
        return Lag(events, 0.0 if first is None else max(0.0, (self._clock.now_ms() - first) / 1000))

    def write_down(self, envelope: Any) -> bytes | None:
        return msgspec.msgpack.encode(envelope)

    def read_back(self, payload: bytes) -> Any:
        return msgspec.msgpack.decode(payload, type=PekkoEvent)

    async def close(self) -> None:
        self._reader = None
        await self._opened.aclose()


def _after(stored: Offset | None) -> ResumePoint | None:
    if isinstance(stored, UUID):
        return ResumePoint(stored)
    if stored is None or isinstance(stored, ResumePoint):
        return stored
    raise InvalidOffset(f"{stored!r} is not the offset of a tag that Akka or Pekko wrote: those are time-UUIDs")


def _deliver(event: PekkoEvent) -> Delivery:
    journal, number, resume = event.persistence_id, event.tag_seq_nr, event.resume
    assert number is not None
    assert resume is not None
    offset: Offset = event.offset
    if resume.last or resume.after != event.offset:
        offset = ResumePoint(resume.after, {**resume.last, journal: number})  # its own number: no two have one offset
    numbered = JournalNumber(journal, number, event.offset)
    return Delivery(offset, event, event.timestamp, journal, numbered=numbered)


def described_source(description: Mapping[str, Any]) -> Source | None:
    """The source that describes itself so."""
    match description:
        case {"kind": "pekko_tag", "tags": [str(), *_] as names}:
            return PekkoTagSource(*names)
    return None


def pekko_tag(*names: str) -> PekkoTagSource:
    """The events of tags that Akka or Pekko Persistence Cassandra writes: `source=pekko_tag("carts")`.

    Each tag is a key, so several instances share `pekko_tag("carts-0", "carts-1")`.
    """
    return PekkoTagSource(*names)
