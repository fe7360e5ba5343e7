"""One reader per collection for all live queries of it.

It keeps the newest transitions, a bounded number of them and of their bytes, and what each filter makes of them: so
a change is read once, and evaluated once for each distinct filter, however many queries follow. A query asks for what
is behind its own revision; nothing waits for it. One that is further behind than what is kept reads on its own until
it is not: that is how a query begins, resumes, and survives a slow client. Revisions without hole make this safe: what
is kept at place n has the revision low + n + 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from everlog.documents.history import History
from everlog.documents.live_change import LiveChange, LiveFilter
from everlog.documents.port import DocumentStore
from everlog.documents.transitions import Transition, TransitionReader
from everlog.errors import EverlogError, StorageFailed
from everlog.runtime.keyed_lock import KeyedLock

log = logging.getLogger("everlog.documents")

MAX_KEPT = 1000
MAX_KEPT_BYTES = 4 * 1024 * 1024
STEP = 64


class _Kept:
    """A transition, and what it means for each filter that was asked about."""

    __slots__ = ("size", "transition", "verdicts")

    def __init__(self, transition: Transition) -> None:
        self.transition = transition
        self.size = 2 * len(transition.json) + 500
        self.verdicts: dict[str, LiveChange | None] = {}

    async def verdict(self, condition: LiveFilter) -> LiveChange | None:
        if condition.digest not in self.verdicts:
            self.verdicts[condition.digest] = await condition.change(self.transition)
        return self.verdicts[condition.digest]


class LiveFeed:
    """The one reader of a collection, as long as it has followers. It has all of `low` < revision <= `high`."""

    def __init__(self, history: History, store: DocumentStore, uri: str) -> None:
        self.followers = 0
        self.low = self.high = -1  # until it has begun
        self.error: EverlogError | None = None
        self._history = history
        self._store = store
        self._uri = uri
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._evaluating = KeyedLock()
        self.task = asyncio.create_task(self._run(), name="everlog-live-collection")

    async def _run(self) -> None:
        try:
            async with contextlib.aclosing(self._history.ends(self._uri)) as ends:
                self.low = self.high = await anext(ends)
                self._tell()
                reader = TransitionReader(self._history, self._store, self._uri, self.high)
                async for end in ends:
                    if end > self.high:
                        async for page in reader.pages(end):
                            self._keep(page)
        except EverlogError as error:
            self.error = error
        except Exception:  # a defect must not leave queries waiting forever
            log.exception("the reader of live queries of %s failed", self._uri, extra={"key": self._uri})
            self.error = StorageFailed(f"the reader of {self._uri} failed: go on behind the last position")
        self._tell()

    def _keep(self, page: Sequence[Transition]) -> None:
        for one in page:
            assert one.revision == self.high + 1
            kept = _Kept(one)
            self._kept.append(kept)
            self._bytes += kept.size
            self.high = one.revision
        while len(self._kept) > MAX_KEPT or self._bytes > MAX_KEPT_BYTES:
            self._bytes -= self._kept.popleft().size
            self.low += 1
        self._tell()

    async def end(self) -> None:
        """Read no more; a follower that is left gets an error."""
        self.error = self.error or StorageFailed("these documents are closed: open them again")
        self._tell()
        self.task.cancel()
        await asyncio.wait([self.task])

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self, after: int, condition: LiveFilter) -> AsyncGenerator[list[LiveChange], None]:
        """What the changes above a revision mean for a filter, as they come, forever; the last of each list says how
        far it is.
        """
        reached = after
        while True:
            if self.error is not None:
                raise self.error
            if reached < self.low:
                reader = TransitionReader(self._history, self._store, self._uri, reached)
                async with contextlib.aclosing(reader.pages(self.low)) as pages:
                    async for page in pages:
                        reached = page[-1].revision
                        changes = [await condition.change(one) for one in page]
                        yield _changes(changes, condition.checkpoint(reached))
            elif reached < self.high:
                start = reached - self.low
                some = list(itertools.islice(self._kept, start, start + STEP))
                reached += len(some)
                await self._evaluating.acquire(condition.digest)  # the others that ask for the same need only wait
                try:
                    changes = [await one.verdict(condition) for one in some]
                finally:
                    self._evaluating.release(condition.digest)
                yield _changes(changes, condition.checkpoint(reached))
                await asyncio.sleep(0)  # others want to be served, too
            else:
                await self._news.wait()


def _changes(found: Sequence[LiveChange | None], checkpoint: LiveChange) -> list[LiveChange]:
    changes = [one for one in found if one is not None]
    return changes if found[-1] is not None else [*changes, checkpoint]


class LiveFeeds:
    """The readers of a process, by collection."""

    def __init__(self, history: History, store: DocumentStore) -> None:
        self._history = history
        self._store = store
        self._feeds: dict[str, LiveFeed] = {}

    @contextlib.asynccontextmanager
    async def joined(self, uri: str) -> AsyncIterator[LiveFeed]:
        """The reader of a collection, which ends with the last of its followers."""
        feed = self._feeds.get(uri)
        if feed is None or feed.task.done():
            feed = self._feeds[uri] = LiveFeed(self._history, self._store, uri)
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                if self._feeds.get(uri) is feed:
                    del self._feeds[uri]
                await feed.end()

    async def close(self) -> None:
        feeds = list(self._feeds.values())
        self._feeds.clear()
        for feed in feeds:
            await feed.end()
