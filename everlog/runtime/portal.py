"""A portal from threads into an event loop: Spark calls us in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """An event loop in a thread; `call` runs a coroutine there and waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="everlog-portal", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        if self.closed:
            work.close()
            raise RuntimeError("closed: open it again first")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while we wait: the work must not go on behind our back
            raise

    def send(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine without waiting for it: safe in any thread, also in the loop's own."""
        if self.closed:
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.call(self._loop.shutdown_asyncgens())
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
