"""Events by tag as instances of classes: `log.tag("eu", OrderPlaced | OrderPaid)`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime

import msgspec

from everlog.core.event_types import EventTypes
from everlog.core.plan import Watermark
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import Position
from everlog.tags.tag import Tag, TaggedEvent, TagOffset
from everlog.tags.tag_status import TagStatus
from everlog.tags.upkeep import Verified


class TypedTag(Tag):
    """The events of a tag, here or at a server, with their classes."""

    def __init__(self, inner: Tag, types: EventTypes) -> None:
        self.names = inner.names
        self._inner = inner
        self._types = types

    def typed(self, page: list[TaggedEvent]) -> list[TaggedEvent]:
        """A page with payloads of their classes."""
        return [typed_event(found, self._types) for found in page]

    async def status(self) -> TagStatus:
        return await self._inner.status()

    async def _current(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        async with aclosing(self._inner._current(start, token)) as pages:
            async for page in pages:
                yield self.typed(page)

    async def _live(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        async with aclosing(self._inner._live(start, token)) as pages:
            async for page in pages:
                yield self.typed(page)

    async def steps(
        self, after: TagOffset = None, *, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent] | Watermark, None]:
        async with aclosing(self._inner.steps(after, since=since, token=token)) as steps:
            async for found in steps:
                yield found if isinstance(found, Watermark) else self.typed(found)

    async def verify(self) -> Verified:
        return await self._inner.verify()

    async def drop(self, *, topic: str | None = None, journal_id: str | None = None) -> int:
        return await self._inner.drop(topic=topic, journal_id=journal_id)


def typed_event(found: TaggedEvent, types: EventTypes) -> TaggedEvent:
    """A tagged event with a payload of its class."""
    event = types.typed(found.event)
    return found if event is found.event else msgspec.structs.replace(found, event=event)
