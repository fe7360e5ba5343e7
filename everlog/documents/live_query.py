"""A query of a collection that goes on: what matches now, then what enters, changes and leaves.

The invariant: a client that applies every step up to a position has the set that the naive query gives at the revision
of that position. Each change of the collection comes at most once, in the order of the revisions, over disconnections,
restarts, and another server that answers: for a position says all there is to know, no server keeps anything about it.

How the beginning is of one revision, though elements change while they are read: the head says a revision `start`,
settled, so that all writes up to it are visible. Then the rows are read, and after the last one the head again.

* A row that was last written at or below `start` was the same at `start`.
* A row above it was written meanwhile, and an element that is missing may have been deleted meanwhile. Each of these
  writes has its event, above `start` and at or below the newest revision that was seen; the first of these events for
  an element tells its body before it, and that is the one at `start`.
* If the collection itself was deleted meanwhile, at revision t, nothing was there at t: the present begins anew, empty.

A live query needs neither an index nor a set of ids after that: whether an element matched before a change follows from
its body before it (`transitions.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import NamedTuple

from everlog.documents.bodies import encode_body
from everlog.documents.completer import Completer
from everlog.documents.evaluator import Evaluator
from everlog.documents.history import History
from everlog.documents.live_change import LiveChange, LiveFilter
from everlog.documents.live_feed import LiveFeeds
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentStore
from everlog.documents.transitions import TransitionReader
from everlog.errors import DocumentConflict, EverlogError, QueryLimited, Unreachable

SCAN_ROWS = 100
RETRY_S = 0.05


class LiveParts(NamedTuple):
    """What a live query works on, and its limits."""

    store: DocumentStore
    history: History
    completer: Completer
    feeds: LiveFeeds
    evaluator: Evaluator
    max_elements: int
    timeout_s: float


class LiveQuery:
    """One live query. Make it with `open`, which refuses what cannot be answered; then read its `steps`, once."""

    def __init__(self, parts: LiveParts, uri: str, condition: LiveFilter, after: int | None) -> None:
        self._parts = parts
        self._uri = uri
        self._condition = condition
        self._after = after
        self._given: set[str] = set()

    @classmethod
    async def open(cls, parts: LiveParts, uri: str, condition: str, after: str | None) -> LiveQuery:
        """DocumentConflict if the position is beyond the end of the collection."""
        made = LiveFilter(uri, await parts.evaluator.parse(condition), parts.evaluator)
        if after is None:
            return cls(parts, uri, made, None)
        revision = made.revision_of(after)
        end = await _revision(parts.store, uri)
        if revision > end:
            raise DocumentConflict(
                "position-beyond-end",
                f"{uri} is at revision {end}, not yet at {revision}: the position is of another collection; "
                "begin again, without a position",
                revision=end,
            )
        return cls(parts, uri, made, revision)

    @property
    def begin(self) -> str | None:
        """The position where it goes on; None if it begins with the present."""
        return None if self._after is None else self._condition.position(self._after)

    async def steps(self) -> AsyncGenerator[list[LiveChange], None]:
        """The present, unless it goes on behind a position; then changes as they come, forever."""
        async with self._parts.feeds.joined(self._uri) as feed:
            reached = self._after
            if reached is None:
                async with aclosing(self._present()) as present:
                    async for page in present:
                        yield page
                        reached = page[-1].revision
                self._given.clear()
            assert reached is not None
            async with aclosing(feed.follow(reached, self._condition)) as changes:
                async for some in changes:
                    yield some

    async def _present(self) -> AsyncGenerator[list[LiveChange], None]:
        """The last one is `complete`."""
        store, uri = self._parts.store, self._uri
        start = await _revision(store, uri)
        yield [LiveChange("reset", start)]
        newest, last, budget = start, "", self._condition.scan_budget()
        while rows := await store.elements_after(uri, last, limit=SCAN_ROWS):
            last = rows[-1].item
            newest = max(newest, *[row.revision for row in rows])
            matching = await self._condition.matching([row for row in rows if row.revision <= start], budget)
            if matching:
                yield [self._found(row.item, row.body, start) for row in matching]
            await asyncio.sleep(0)  # others want to be served, too
        newest = max(newest, await _revision(store, uri))
        begun = start
        if newest > start:
            async with aclosing(self._overtaken(start, newest)) as late:
                async for change in late:
                    begun = change.revision
                    yield [change]
        yield [LiveChange("complete", begun, self._condition.position(begun))]

    async def _overtaken(self, start: int, newest: int) -> AsyncGenerator[LiveChange, None]:
        """What was there at `start` of the elements that changed while they were read."""
        await self._wait_until_out(newest)
        seen: set[str] = set()
        begun = start
        reader = TransitionReader(self._parts.history, self._parts.store, self._uri, start)
        async with aclosing(reader.pages(newest)) as pages:
            async for page in pages:
                for one in page:
                    if one.clears:
                        begun = one.revision
                        yield LiveChange("reset", begun)
                    elif begun == start and one.item and one.item not in seen:
                        seen.add(one.item)
                        if one.item not in self._given and await self._condition.matches(one.before):
                            yield self._found(one.item, encode_body(one.before), start)

    def _found(self, item: str, body: str, start: int) -> LiveChange:
        self._given.add(item)
        if len(self._given) > self._parts.max_elements:
            raise QueryLimited(
                "live-too-large",
                f"more than {self._parts.max_elements:,} elements match: narrow the filter "
                "([documents] max_live_elements)",
            )
        return LiveChange("present", start, None, item, body)

    async def _wait_until_out(self, revision: int) -> None:
        """Until the events up to a revision are in the log: they are accepted, so they get there."""
        history, completer, uri = self._parts.history, self._parts.completer, self._uri
        try:
            async with asyncio.timeout(self._parts.timeout_s):
                while await history.last_revision(uri) < revision:
                    with suppress(EverlogError):  # the log may not take them now
                        if await completer.complete(uri):
                            continue
                    await asyncio.sleep(RETRY_S)
        except TimeoutError as error:
            raise Unreachable(f"the events of {uri} do not get into the log: try again") from error


async def _revision(store: DocumentStore, uri: str) -> int:
    """The newest revision of a collection, after any write under way has ended."""
    head = (await store.load(DocumentPlace(uri), settled=True)).head
    return 0 if head is None else head.revision
