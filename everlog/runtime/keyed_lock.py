"""Locks by key: one holder at a time per name, in the order of asking. Cheap where no other task asks."""

from __future__ import annotations

import asyncio
from collections import deque


class KeyedLock:
    """Locks by name that exist only while a task holds them."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, name: str) -> None:
        """Wait for the lock; `release` lets it go."""
        waiting = self._waiting.get(name)
        if waiting is None:
            self._waiting[name] = deque()
            return
        turn = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(name)  # it had just become ours: pass it on
            raise

    def release(self, name: str) -> None:
        """Release the lock to the next task that waits."""
        waiting = self._waiting[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[name]
