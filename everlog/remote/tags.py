"""Events by tag of a server, as they are now and live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from everlog.core.timeuuid import TimeUuid
from everlog.core.values import Position
from everlog.errors import EverlogError, Unreachable
from everlog.remote.connection import Wire, refusal
from everlog.tags.tag import BEGINNING, Tag, TaggedEvent
from everlog.wire.events import TaggedBody, tagged_of

PAGE = 500
TRIES = 5
FIRST_PAUSE_S = 0.1
_decode_tagged = msgspec.json.Decoder(TaggedBody).decode


class RemoteTag(Tag):
    """The events of a tag at a server."""

    def __init__(self, wire: Wire, url: str, name: str) -> None:
        self.names = [name]
        self._wire = wire
        self._url = url

    async def _current(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        page: list[TaggedEvent] = []
        async with aclosing(self._wire.lines(self._url, _where(start, token))) as lines:
            async for line in lines:
                page.append(tagged_of(_decode_tagged(line)))
                if len(page) == PAGE:
                    yield page
                    page = []
        if page:
            yield page

    async def _live(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        """A stream that is cut goes on behind the last frame; if nothing comes of that, the last error is raised."""
        params = _where(start, token)
        last: str | None = None
        tries = 0
        while True:
            try:
                async with aclosing(self._frames(params, last)) as frames:
                    async for place, event in frames:
                        tries, last = 0 if place != last else tries, place
                        if event is not None:
                            yield [event]
            except EverlogError as error:
                if tries == TRIES or not error.retriable:
                    raise
            if tries == TRIES:
                raise Unreachable(f"the server ends every stream of {self._url} at once")
            await asyncio.sleep(FIRST_PAUSE_S * 2**tries)
            tries += 1

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


def _where(start: TimeUuid, token: Position | None) -> dict[str, str | None]:
    return {
        "after": None if start == BEGINNING else str(start),
        "position": None if token is None else str(token),
    }
