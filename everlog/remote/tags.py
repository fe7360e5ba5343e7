"""Events by tag of a server, as they are now and live."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from everlog.core.timeuuid import TimeUuid
from everlog.core.values import Position
from everlog.errors import EverlogError, Unreachable
from everlog.remote.connection import Wire
from everlog.runtime.retry import NO_JITTER, Backoff
from everlog.tags.tag import BEGINNING, Tag, TaggedEvent
from everlog.tags.tag_status import TagStatus
from everlog.wire.events import decode_tagged

PAGE = 500
MAX_FAILURES = 5
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0


class RemoteTag(Tag):
    """The events of a tag at a server."""

    def __init__(self, wire: Wire, url: str, name: str) -> None:
        self.names = [name]
        self._wire = wire
        self._url = url

    async def status(self) -> TagStatus:
        answer = await self._wire.send("GET", f"{self._url}/status")
        return msgspec.json.decode(answer.content, type=TagStatus)

    async def _current(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        page: list[TaggedEvent] = []
        async with aclosing(self._wire.lines(self._url, _where(start, token))) as lines:
            async for line in lines:
                page.append(decode_tagged(line))
                if len(page) == PAGE:
                    yield page
                    page = []
        if page:
            yield page

    async def _live(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        """A stream that is cut goes on behind the last frame; if nothing comes of that, the last error is raised."""
        params = _where(start, token)
        last: str | None = None
        backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S, jitter=NO_JITTER)
        while True:
            try:
                async with aclosing(self._wire.events(self._url, params, last=last)) as frames:
                    async for frame in frames:
                        if frame.id != last:
                            backoff.reset()
                            last = frame.id
                        if frame.event == "event":
                            yield [decode_tagged(frame.data)]
            except EverlogError as error:
                if backoff.failures == MAX_FAILURES or not error.retriable:
                    raise
            if backoff.failures == MAX_FAILURES:
                raise Unreachable(f"the server ends every stream of {self._url} at once")
            await backoff.sleep()


def _where(start: TimeUuid, token: Position | None) -> dict[str, str | None]:
    return {
        "after": None if start == BEGINNING else str(start),
        "position": None if token is None else str(token),
    }
