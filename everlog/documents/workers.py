"""Workers: one per key, and a bounded number at a time; other tasks wait in the order of asking, up to a limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from everlog.errors import Busy
from everlog.runtime.keyed_lock import KeyedLock

MAX_TASKS = 1024
MAX_WAITING = 4096


class Workers:
    """One group of tasks. A key that a task works on, or waits for, is under way.

    >>> Workers().keys
    []
    """

    def __init__(self, *, max_tasks: int = MAX_TASKS, max_waiting: int = MAX_WAITING) -> None:
        self._locks = KeyedLock()
        self._slots = asyncio.Semaphore(max_tasks)
        self._limit = max_tasks + max_waiting
        self._count = 0
        self._under_way: Counter[str] = Counter()
        self.watchers: list[Callable[[str], None]] = []
        """Told of every key that is no longer under way."""

    @property
    def keys(self) -> Collection[str]:
        """The keys that are under way."""
        return list(self._under_way)

    @contextmanager
    def admitted(self, key: str) -> Iterator[None]:
        """The key counts as under way, from this very moment on."""
        self._under_way[key] += 1
        try:
            yield
        finally:
            self._leave(key)

    async def take(self, key: str) -> None:
        """Wait for a worker; `end` lets it go."""
        if self._count >= self._limit:
            raise Busy(f"{self._limit:,} tasks are under way already: try again later")
        self._count += 1
        self._under_way[key] += 1
        try:
            await self._locks.acquire(key)
            try:
                await self._slots.acquire()
            except BaseException:
                self._locks.release(key)
                raise
        except BaseException:
            self._count -= 1
            self._leave(key)
            raise

    def end(self, key: str) -> None:
        """Leave the key to the next task that waits for it, and the worker to any."""
        self._slots.release()
        self._locks.release(key)
        self._count -= 1
        self._leave(key)

    def _leave(self, key: str) -> None:
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
            for watcher in self.watchers:
                watcher(key)
