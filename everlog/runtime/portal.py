"""A portal from threads into an event loop: Spark calls us in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from everlog.errors import ForkedProcess
from everlog.runtime.process import PROCESS

T = TypeVar("T")

LOOK_S = 1.0


class Portal:
    """An event loop in a thread; `call` and `wait` run a coroutine there and wait for it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="everlog-portal", daemon=True)
        self._thread.start()
        self._pid = PROCESS.pid

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    @property
    def forked(self) -> bool:
        """Whether the thread is in another process, of which this one is a fork: it would never answer here."""
        return PROCESS.pid != self._pid

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._begin(work)
        try:
            return _result(future)
        except BaseException:
            future.cancel()  # Ctrl-C while we wait: the work must not go on behind our back
            raise

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a caller in another event loop; if the caller is cancelled, so is the work."""
        return await asyncio.wrap_future(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self.closed:
            work.close()
            raise RuntimeError("closed: open it again first")
        if self.forked:
            work.close()
            raise ForkedProcess("this log", self._pid)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def send(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine without waiting for it: safe in any thread, also in the loop's own."""
        if self.closed or self.forked:
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        if self.closed or self.forked:
            return
        self.call(self._loop.shutdown_asyncgens())
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _result(future: Future[T]) -> T:
    """Wait for it. Ctrl-C just before the wait begins, or in another thread, is seen only when the wait ends: so each
    wait is short."""
    while True:
        try:
            return future.result(LOOK_S)
        except TimeoutError:
            if future.done():  # it raised this itself, or has ended just now
                return future.result()
