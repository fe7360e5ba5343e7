"""The watermark as it moves: one poll for all readers of a process, and none while no reader waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from everlog.config import TagsConfig
from everlog.core.plan import NOTHING, Watermark
from everlog.errors import StorageFailed
from everlog.runtime.notices import noticing, watermark_notice
from everlog.store.tag_port import TagTables
from everlog.tags.read_retry import RetryingRead


class Watermarks:
    """Readers that wait are woken by the poll that they all share. Cancelling one of them disturbs no other.

    A pipeline in the same process gives notice, under the name of where the data is: then the poll does not wait.
    """

    def __init__(self, tables: TagTables, config: TagsConfig, where: str) -> None:
        self._tables = tables
        self._notice = watermark_notice(where)
        self._interval = config.poll_interval_s
        self._retry = RetryingRead(config)
        self._seen = NOTHING
        self._waiting: set[asyncio.Future[None]] = set()
        self._poll: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def seen(self) -> Watermark:
        """As of the last look."""
        return self._seen

    async def now(self) -> Watermark:
        """As of this call."""
        self._note(await self._retry(self._tables.watermark))
        return self._seen

    async def until(self, reached: Callable[[Watermark], bool]) -> Watermark:
        """Wait until the watermark, as far as it is known, is there."""
        while not reached(self._seen):
            await self._moved()
        return self._seen

    async def _moved(self) -> None:
        if self._closed:
            raise StorageFailed("the log was closed while a reader waited for events")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._run(), name="everlog-watermark")
        try:
            await future
        finally:
            self._waiting.discard(future)
            if not self._waiting and self._poll is not None:
                self._poll.cancel()
                self._poll = None

    def _note(self, found: Watermark) -> None:
        """A watermark never moves back, whatever a lagging replica says."""
        if found.nr > self._seen.nr:
            self._seen = found
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)

    async def _run(self) -> None:
        try:
            with noticing(self._notice) as notice:
                while self._waiting:
                    await notice.wait(self._interval)
                    self._note(await self._retry(self._tables.watermark))
        except Exception as error:
            for future in self._waiting:
                if not future.done():
                    future.set_exception(error)

    async def close(self) -> None:
        """Wake all readers that wait: there is nothing to wait for any more."""
        self._closed = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(StorageFailed("the log was closed while a reader waited for events"))
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.cancel()
            await asyncio.gather(poll, return_exceptions=True)
