"""Does a view hold what its events add up to? The projection runs again from the beginning, into tables beside it.

The second run ends where the view's offsets are. Where a store cannot copy a view as it is at one moment, the
projection pauses meanwhile, and runs again afterwards, also if the process that paused it died.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import Protocol

from msgspec.structs import replace

from everlog.errors import InvalidProjection, StorageFailed
from everlog.journal.parts import JournalParts
from everlog.projections.claims import divide
from everlog.projections.copies import Difference
from everlog.projections.lifecycle import Restart
from everlog.projections.offsets import Offset
from everlog.projections.port import OffsetStore
from everlog.projections.projection import Projection
from everlog.projections.runner import Runner
from everlog.projections.source import Delivery, Feed, Source
from everlog.projections.tag_source import MAX_LAG

LOOK_S = 0.1
# A handler that is under way gets this long to end.
MAX_PAUSE_WAIT_S = 60.0

OnCounted = Callable[[int, int | None], None]
"""How many events were handled, and how many there are; None if the source cannot tell."""


async def verify(
    projection: Projection,
    store: OffsetStore,
    tables: Sequence[str],
    *,
    parts: JournalParts | None = None,
    on_progress: OnCounted | None = None,
) -> list[Difference]:
    """Recount a view, and compare these tables of it. The handler runs again: it should write to its view only."""
    if not projection.shape.takes_view or projection.view is not None:
        raise InvalidProjection(f"{projection.name} does not fill tables of the store: there is nothing to compare")
    async with store.recount(projection.name, tables) as recount:
        second = projection.as_copy(recount.number, tables) if recount.number else projection
        await count_again(second, recount.store, recount.ends, parts, on_progress)
        return await recount.compare()


class PauseCommands(Protocol):
    """Commands to a projection."""

    async def pause(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None: ...

    async def resume(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None: ...


@asynccontextmanager
async def hold_paused(
    commands: PauseCommands, store: OffsetStore, name: str, running: Iterable[str]
) -> AsyncIterator[None]:
    """Pause these keys. They are noted first: after a process that died, the next one lets its keys go on, too."""
    noted = await store.update_copies(name, lambda seen: replace(seen, paused=tuple(sorted({*seen.paused, *running}))))
    try:
        for key in noted.paused:
            await commands.pause(name, key, wait_s=MAX_PAUSE_WAIT_S)
        yield
    finally:
        for key in noted.paused:
            await commands.resume(name, key)
        await store.update_copies(name, lambda seen: replace(seen, paused=()))


async def count_again(
    projection: Projection,
    store: OffsetStore,
    ends: Mapping[str, Offset | None],
    parts: JournalParts | None,
    on_progress: OnCounted | None = None,
) -> None:
    """Run a projection from its beginning up to these offsets, by key."""
    feed = projection.source.open(parts)
    try:
        ends = await divide(feed, ends)
    finally:
        await feed.close()
    second = copy(projection)
    second.source, second.observers = BoundedSource(projection.source, ends), ()
    second.restart = Restart(max_restarts=0)
    total = None if on_progress is None else await _all_events(projection.source, ends, parts)
    async with Runner([second], store=store, parts=parts) as runner:
        ended = asyncio.ensure_future(runner.ended())
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=LOOK_S)
                if on_progress is not None:
                    on_progress(sum(one.handled for one in runner.status()[projection.name].values()), total)
        finally:
            ended.cancel()
        failed = [one.error for one in runner.status()[projection.name].values() if one.state != "completed"]
    if failed:
        raise StorageFailed(f"{projection.name} could not be counted again: {failed[0]}")


async def _all_events(source: Source, ends: Mapping[str, Offset | None], parts: JournalParts | None) -> int | None:
    """How many events lie before these offsets."""
    feed = source.open(parts)
    try:
        found = 0
        for key, end in ends.items():
            whole, left = await feed.lag(key, None), await feed.lag(key, end)
            if whole is None or left is None or whole.events >= MAX_LAG:
                return None  # beyond that, it is not counted
            found += whole.events - left.events
        return found
    finally:
        await feed.close()


class BoundedSource(Source):
    """A source that ends at these offsets, by key."""

    def __init__(self, source: Source, ends: Mapping[str, Offset | None]) -> None:
        self._source = source
        self._ends = ends

    def open(self, parts: JournalParts | None) -> Feed:
        return BoundedFeed(self._source.open(parts), self._ends)


class BoundedFeed(Feed):
    """Delivers up to the end of each key, or of each entry of its map."""

    def __init__(self, feed: Feed, ends: Mapping[str, Offset | None]) -> None:
        self._feed = feed
        self._ends = ends

    async def keys(self) -> Sequence[str]:
        return [key for key in await self._feed.keys() if self._ends.get(key) is not None]

    async def parts(self, key: str) -> Sequence[str] | None:
        return await self._feed.parts(key)

    async def verify(self, key: str, delivery: Delivery) -> bool:
        return await self._feed.verify(key, delivery)

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        end = self._ends[key]
        assert end is not None, "keys without an end are none of its keys"
        async for page in self._feed.read_to(key, stored, end):
            yield page

    async def close(self) -> None:
        await self._feed.close()
