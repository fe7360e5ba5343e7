"""One reader per tag for all live streams of it.

A stream first reads on its own, up to the watermark, and then shares what the one reader of its tag brings: rows are
read once and encoded once, however many streams there are. Nothing is lost at the change-over: a stream subscribes
before its own last read, and passes over what it has sent already, which the order of all tagged events makes easy. A
stream that falls far behind reads on its own again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import aclosing

import msgspec

from everlog.core.plan import Watermark
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import Position
from everlog.errors import EverlogError, StorageFailed
from everlog.server.sse import Checkpoint, Frame, Items
from everlog.tags.tag import Tag, TaggedEvent
from everlog.wire.events import tagged_body

log = logging.getLogger("everlog.http")

MAX_WAITING = 100
WATERMARK_INTERVAL_S = 0.5
_encode = msgspec.json.Encoder().encode

Placed = tuple[TimeUuid, Frame]


def _frame(event: TaggedEvent) -> Placed:
    return event.place, Frame(str(event.place), "event", _encode(tagged_body(event)).decode())


class _Subscriber:
    """What waits for one stream; `behind` once that was too much."""

    def __init__(self) -> None:
        self._waiting: deque[list[Placed] | TimeUuid | EverlogError] = deque()
        self._news = asyncio.Event()
        self.behind = False

    def give(self, item: list[Placed] | TimeUuid | EverlogError) -> bool:
        """False if there is no room: it gets nothing more."""
        self.behind = len(self._waiting) >= MAX_WAITING
        if not self.behind:
            self._waiting.append(item)
        self._news.set()
        return not self.behind

    async def take(self) -> list[Placed] | TimeUuid | None:
        """The next item; None when it is behind and has taken what there was."""
        while not self._waiting:
            if self.behind:
                return None
            self._news.clear()
            await self._news.wait()
        item = self._waiting.popleft()
        if isinstance(item, EverlogError):
            raise item
        return item


class _Feed:
    """The one reader of a tag, as long as it has followers."""

    def __init__(self, tag: Tag, after: TimeUuid) -> None:
        self.subscribers: set[_Subscriber] = set()
        self._tag = tag
        self._after = after
        self.task = asyncio.create_task(self._run(), name="everlog-live-tag")

    def subscribe(self) -> _Subscriber:
        made = _Subscriber()
        self.subscribers.add(made)
        return made

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        told = loop.time()
        try:
            async with aclosing(self._tag.steps(self._after)) as steps:
                async for found in steps:
                    if not isinstance(found, Watermark):
                        self._give([_frame(event) for event in found])
                    elif loop.time() - told >= WATERMARK_INTERVAL_S:  # no follower needs each of them
                        told = loop.time()
                        self._give(found.end)
        except EverlogError as error:
            self._give(error)
        except Exception:  # a defect must not leave streams waiting forever
            log.exception("the reader of a live tag failed")
            self._give(StorageFailed("the reader of this tag failed: connect again"))

    def _give(self, item: list[Placed] | TimeUuid | EverlogError) -> None:
        self.subscribers -= {one for one in self.subscribers if not one.give(item)}


class Fanout:
    """The feeds of a server, by the address of their tag."""

    def __init__(self) -> None:
        self._feeds: dict[str, _Feed] = {}

    async def follow(self, name: str, tag: Tag, start: TimeUuid, token: Position | None = None) -> Items:
        """All events behind `start`, each once and in order, for one stream; once the view has reached the token."""
        last = upto = start
        while True:
            feed, subscriber = self._join(name)
            try:
                async with aclosing(tag.steps(last, token=token)) as steps:
                    async for found in steps:
                        if isinstance(found, Watermark):
                            upto, last = found.end, max(last, found.end)
                            if last.tick >= 0:
                                yield Checkpoint(str(last))
                            break
                        last = found[-1].place
                        yield [_frame(event)[1] for event in found]
                token = None
                if subscriber is None:
                    if name not in self._feeds:
                        # From the watermark on, which is the same for all; this stream may want less.
                        self._feeds[name] = _Feed(tag, upto)
                        feed = self._feeds[name]
                        subscriber = feed.subscribe()
                    else:
                        continue  # another one began meanwhile, perhaps further on: read once more, subscribed
                assert feed is not None
                while (item := await subscriber.take()) is not None:
                    if isinstance(item, TimeUuid):
                        if item > last:
                            yield Checkpoint(str(item))
                        continue
                    fresh = [frame for place, frame in item if place > last]
                    if fresh:
                        last = item[-1][0]
                        yield fresh
            finally:
                self._leave(name, feed, subscriber)

    def _join(self, name: str) -> tuple[_Feed | None, _Subscriber | None]:
        feed = self._feeds.get(name)
        if feed is not None and feed.task.done():
            del self._feeds[name]
            feed = None
        return feed, None if feed is None else feed.subscribe()

    def _leave(self, name: str, feed: _Feed | None, subscriber: _Subscriber | None) -> None:
        if feed is None or subscriber is None:
            return
        feed.subscribers.discard(subscriber)
        if not feed.subscribers:
            feed.task.cancel()
            if self._feeds.get(name) is feed:
                del self._feeds[name]
