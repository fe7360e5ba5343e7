"""After the answer: an accepted write reaches the indexes, then the feed, then the views, then it is completed.

Every step may be repeated, and may be cut off after any other one: the outbox row stays until all are done. A
failing index never holds the feed back: it is marked as failed, and no longer used. Nor does a view: what it cannot
show is set aside. Only what passes by itself, such as a store that does not answer, is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from everlog.documents.evaluator import Evaluator
from everlog.documents.indexes import Index, IndexStatus
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentStore, PendingIndex
from everlog.documents.publisher import Publisher
from everlog.documents.workers import Workers
from everlog.errors import EverlogError
from everlog.runtime.clock import Clock
from everlog.runtime.failpoints import failpoint
from everlog.runtime.retry import pause_after

log = logging.getLogger("everlog.documents")

BATCH = 100
MIN_RETRY_S = 0.1
MAX_RETRY_S = 10.0


class Follower(Protocol):
    """What else a completed write leads to: views, template indexes."""

    async def before_indexes(self, uri: str, transactions: Sequence[DocumentTransaction]) -> bool:
        """New indexes may be due; whether some were defined."""

    async def after_events(self, uri: str, transactions: Sequence[DocumentTransaction]) -> bool:
        """The events are out; whether something is left for `fill`."""

    async def fill(self, owns: Callable[[str], bool]) -> int:
        """Show in views what was there before them, and what was left; how many views."""


class Completer:
    """Completes documents in the background, a few at a time and one run per document."""

    def __init__(
        self,
        store: DocumentStore,
        publisher: Publisher,
        *,
        clock: Clock,
        max_completers: int,
        evaluator: Evaluator,
        follower: Follower | None = None,
        published: Callable[[str], None] = lambda uri: None,
        group: Workers | None = None,
        spark_above: int = 0,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._locate = evaluator.locate
        self._follower = follower
        self._published = published
        self._max_completers = max_completers
        self._spark_above = spark_above
        self._group = group or Workers()
        self.owns: Callable[[str], bool] = lambda uri: True
        self._waiting: dict[str, int] = {}  # uri -> failed attempts so far; in the order of asking
        self._workers: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._builder: asyncio.Task[None] | None = None
        self._build_again = False
        self._closed = False
        self.last_error: str | None = None

    def kick(self, uri: str, attempt: int = 0) -> None:
        """Complete this document soon."""
        if self._closed:
            return
        self._waiting.setdefault(uri, attempt)
        if len(self._workers) < self._max_completers:
            self._workers.add(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        """One that ends leaves at once: a document that comes between the last look and the end must find no worker."""
        try:
            await self._work_on()
        finally:
            task = asyncio.current_task()
            assert task is not None
            self._workers.discard(task)

    async def _work_on(self) -> None:
        while self._waiting:
            uri = next(iter(self._waiting))
            attempt = self._waiting.pop(uri)
            try:
                await self.complete(uri)
            except Exception as error:
                # Whatever it is: the events wait in the outbox, and one document must not end the work on others.
                self.last_error = f"{uri}: {error}"
                unexpected = not isinstance(error, EverlogError)
                log.warning("the events of %s wait: %s", uri, error, exc_info=unexpected, extra={"key": uri})
                self._later(uri, attempt + 1)

    def _later(self, uri: str, attempt: int) -> None:
        """Try again after a pause that doubles; if this process ends before, recovery does it."""
        pause = pause_after(attempt + 1, MIN_RETRY_S, MAX_RETRY_S)
        timer: list[asyncio.TimerHandle] = []

        def again() -> None:
            self._timers.discard(timer[0])
            self.kick(uri, attempt)

        if not self._closed:
            timer.append(asyncio.get_running_loop().call_later(pause, again))
            self._timers.add(timer[0])

    async def complete(self, uri: str) -> int:
        """Complete what is pending now, oldest first; how many events went out. Raises at the first that does not."""
        count = 0
        await self._group.take(uri)
        try:
            while pending := await self._store.pending(uri, limit=BATCH):
                await self._index(uri, pending)
                failpoint("documents.indexed")
                await self._publish(uri, pending)
                count += len(pending)
                if len(pending) < BATCH:
                    break
        finally:
            self._group.end(uri)
        return count

    async def _publish(self, uri: str, pending: Sequence[DocumentTransaction]) -> None:
        done: list[DocumentTransaction] = []
        try:
            for transaction in pending:
                await self._publisher.publish(transaction)
                done.append(transaction)
        finally:
            if done:
                failpoint("documents.published")
                self._published(uri)
                if self._follower is not None and await self._follower.after_events(uri, done):
                    self.kick_indexes(BATCH)
                await self._store.complete(uri, done, self._clock.now_ms())
                failpoint("documents.completed")

    async def _index(self, uri: str, pending: Sequence[DocumentTransaction]) -> None:
        if not DocumentPlace(uri).in_collection:
            return
        if self._follower is not None and await self._follower.before_indexes(uri, pending):
            self.kick_indexes(BATCH)
        ended = max((one.revision for one in pending if one.ends_collection), default=0)
        for index in await self._store.indexes(uri):
            if index.since < ended:
                await self._store.mark_index(uri, index, IndexStatus.DELETING)
                self.kick_indexes(BATCH)
            elif index.status not in (IndexStatus.DELETING, IndexStatus.FAILED):
                await self._update(uri, index, pending)

    async def _update(self, uri: str, index: Index, pending: Sequence[DocumentTransaction]) -> None:
        try:
            await self._store.update_index(uri, index, pending, self._locate, pending[-1].revision)
        except Exception as error:
            await self._fail(uri, index, error)

    async def _fail(self, uri: str, index: Index, error: Exception) -> None:
        """Give an index up, unless a store that does not answer is to blame: then everything waits for it."""
        if isinstance(error, EverlogError) and error.retriable:
            raise error
        expected = isinstance(error, EverlogError)
        log.warning(
            "the index %s of %s failed: %s", index.index_id, uri, error, exc_info=not expected, extra={"key": uri}
        )
        await self._store.mark_index(uri, index, IndexStatus.FAILED, str(error) or type(error).__name__)

    def kick_indexes(self, step: int) -> None:
        """Build and drop indexes soon."""
        self._build_again = True
        if self._builder is None and not self._closed:
            self._builder = asyncio.create_task(self._build(step))

    async def _build(self, step: int) -> None:
        try:
            while self._build_again and not self._closed:
                self._build_again = False
                await self.build_indexes(step)
        except Exception as error:
            self.last_error = str(error)
            unexpected = not isinstance(error, EverlogError)
            log.warning("indexes wait to be built: %s", error, exc_info=unexpected)  # recovery builds them
        finally:
            self._builder = None

    async def build_indexes(self, step: int) -> int:
        """Build what is to be built and drop what is to be dropped, to the end; how many indexes. Then fill views."""
        pending = [one for one in await self._store.pending_indexes() if await self._is_ours(one)]
        for uri, index in pending:
            work: Callable[[], Awaitable[bool]]
            if index.status is IndexStatus.DELETING:
                work = _bound(self._store.drop_index, uri, index, limit=step)
            else:
                work = _bound(self._store.build, uri, index, self._locate, limit=step)
            try:
                while not self._closed and not await work():
                    pass
            except Exception as error:
                await self._fail(uri, index, error)
        if self._follower is not None and not self._closed:
            await self._follower.fill(self.owns)
        return len(pending)

    async def _is_ours(self, pending: PendingIndex) -> bool:
        """Another node's are not, nor those of large collections, if these are left to a Spark job."""
        if not self.owns(pending.uri):
            return False
        if not self._spark_above or pending.definition.status is not IndexStatus.INDEXING:
            return True
        head, _, _ = await self._store.load(DocumentPlace(pending.uri))
        return head is None or head.count <= self._spark_above

    @property
    def waiting(self) -> int:
        """Documents whose events are not all out yet, as far as this process knows."""
        return len(self._waiting) + len(self._workers) + len(self._timers)

    async def idle(self) -> None:
        """Wait until nothing is left to do but retries."""
        while self._workers:
            await asyncio.wait(self._workers)

    async def close(self) -> None:
        """Finish what was begun; what failed stays for recovery."""
        await self.idle()
        self._closed = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        await self.idle()
        if self._builder is not None:
            await self._builder


def _bound(
    method: Callable[..., Awaitable[bool]], *arguments: object, **options: object
) -> Callable[[], Awaitable[bool]]:
    return lambda: method(*arguments, **options)
