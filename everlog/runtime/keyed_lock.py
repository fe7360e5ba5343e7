"""Turns: one at a time per name, in the order of asking. Costs next to nothing where nobody else asks."""

from __future__ import annotations

import asyncio
from collections import deque


class KeyedLock:
    """Locks by name that exist only while somebody holds them."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, name: str) -> None:
        """Wait for the turn; to be ended by `end`."""
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
                self.end(name)  # it had just become ours: pass it on
            raise

    def end(self, name: str) -> None:
        """Let the next one have its turn."""
        waiting = self._waiting[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[name]
