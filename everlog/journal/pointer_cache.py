"""How far partitions are replicated, for those who append without looking at the store.

A record below that place would never count: the log lost its end, and grows again from further back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from everlog.errors import StorageFailed
from everlog.runtime.clock import Clock

# Those who append look into the store so often, and wait no longer for the answer.
LOOK_S = 10.0
ANSWER_S = 1.0


class Pointers:
    """Remembers pointers, which only grow: an old one is low, never wrong."""

    def __init__(self, look: Callable[[str, int], Awaitable[int]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[float, int]] = {}

    def seen(self, topic: str, partition: int) -> int | None:
        """What the pointer is at least, if somebody has looked lately; -1 if the store did not say."""
        looked, pointer = self._known.get((topic, partition), (None, -1))
        return None if looked is None or self._clock.monotonic() - looked > LOOK_S else pointer

    async def at_least(self, topic: str, partition: int) -> int:
        """What the pointer is at least; -1 if nobody said yet. A store that does not answer holds nobody up."""
        looked, pointer = self._known.get((topic, partition), (None, -1))
        now = self._clock.monotonic()
        if looked is None or now - looked > LOOK_S:
            self._known[topic, partition] = (now, pointer)
            try:
                found = await asyncio.wait_for(self._look(topic, partition), ANSWER_S)
            except (StorageFailed, TimeoutError):
                return pointer
            pointer = max(pointer, found)
            self._known[topic, partition] = (now, pointer)
        return pointer
