"""Events by tag of a server, as they are now and live."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec

from everlog.core.values import Position
from everlog.errors import EverlogError, StorageFailed, Unreachable
from everlog.remote.connection import Wire, refusal
from everlog.runtime.retry import NO_JITTER, Backoff
from everlog.tags.tag import BEGINNING, Tag, TaggedEvent, TagOffset, parse_start
from everlog.wire.events import TaggedBody, tagged_of

PAGE = 500
MAX_FAILURES = 5
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
_decode_tagged = msgspec.json.Decoder(TaggedBody).decode


class RemoteTag(Tag):
    """The events of a tag at a server."""

    def __init__(self, wire: Wire, url: str, name: str) -> None:
        self.names = [name]
        self._wire = wire
        self._url = url

    def current_pages(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent], None]:
        return self._current_pages(_where(after, since, token))

    async def _current_pages(self, params: dict[str, str | None]) -> AsyncGenerator[list[TaggedEvent], None]:
        page: list[TaggedEvent] = []
        async with aclosing(self._wire.lines(self._url, params)) as lines:
            async for line in lines:
                page.append(tagged_of(_decode_tagged(line)))
                if len(page) == PAGE:
                    yield page
                    page = []
        if page:
            yield page

    def live_pages(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent], None]:
        return self._live_pages(_where(after, since, token))

    async def _live_pages(self, params: dict[str, str | None]) -> AsyncGenerator[list[TaggedEvent], None]:
        """A stream that is cut goes on behind the last frame; if nothing comes of that, the last error is raised."""
        last: str | None = None
        backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S, jitter=NO_JITTER)
        while True:
            try:
                async with aclosing(self._frames(params, last)) as frames:
                    async for place, event in frames:
                        if place != last:
                            backoff.reset()
                            last = place
                        if event is not None:
                            yield [event]
            except EverlogError as error:
                if backoff.failures == MAX_FAILURES or not error.retriable:
                    raise
            if backoff.failures == MAX_FAILURES:
                raise Unreachable(f"the server ends every stream of {self._url} at once")
            await backoff.sleep()

    async def _frames(
        self, params: dict[str, str | None], last: str | None
    ) -> AsyncGenerator[tuple[str, TaggedEvent | None], None]:
        headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": last})
        kind, place = "", ""
        async with aclosing(self._wire.stream(self._url, params, headers)) as lines:
            async for line in lines:
                name, _, value = line.partition(": ")
                if name == "id":
                    place = value
                elif name == "event":
                    kind = value
                elif name == "data" and kind == "failed":
                    raise refusal(500, msgspec.json.decode(value))
                elif name == "data":
                    yield place, tagged_of(_decode_tagged(value)) if kind == "event" else None

    def steps(self, after: TagOffset = None, **_: Any) -> AsyncGenerator[Any, None]:
        raise StorageFailed("a server does not give out watermarks")

    async def verify(self) -> Any:
        raise StorageFailed("views are verified where the store is: everlog tags verify")

    async def drop(self, *, topic: str | None = None, journal_id: str | None = None) -> int:
        raise StorageFailed("views are dropped where the store is: everlog tags drop")


def _where(after: TagOffset, since: datetime | None, token: Position | str | None) -> dict[str, str | None]:
    start, position = parse_start(after, since, token)
    return {
        "after": None if start == BEGINNING else str(start),
        "position": None if position is None else str(position),
    }
