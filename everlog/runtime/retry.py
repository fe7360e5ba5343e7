"""Pauses between tries: twice as long each time, up to a bound, with or without jitter."""

from __future__ import annotations

import asyncio
import random
from typing import TypeVar

Pause = TypeVar("Pause", int, float)

MAX_DOUBLINGS = 40
# Each pause is between half as long and as long as it would be, so that not all callers come at once.
JITTER = (0.5, 1.0)
NO_JITTER = (1.0, 1.0)


def pause_after(failures: int, min_pause: Pause, max_pause: Pause) -> Pause:
    """How long to wait after this many failures in a row, in the unit of the bounds.

    >>> [pause_after(failures, 10, 50) for failures in (1, 2, 3, 4)]
    [10, 20, 40, 50]
    """
    return min(max_pause, min_pause * (1 << min(failures - 1, MAX_DOUBLINGS)))


class Backoff:
    """The pauses of a caller that tries again and again. `jitter`: by what each is multiplied, from and to.

    >>> backoff = Backoff(1.0, 5.0, jitter=NO_JITTER)
    >>> [backoff.next() for _ in range(4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    __slots__ = ("_chance", "_jitter", "_max_s", "_min_s", "failures")

    def __init__(
        self,
        min_s: float,
        max_s: float,
        *,
        jitter: tuple[float, float] = JITTER,
        chance: random.Random | None = None,
    ) -> None:
        self.failures = 0  # in a row
        self._min_s = min_s
        self._max_s = max_s
        self._jitter = jitter
        self._chance = chance

    def next(self) -> float:
        """A try failed: how long to wait before the next one."""
        self.failures += 1
        pause = pause_after(self.failures, self._min_s, self._max_s)
        if self._jitter is NO_JITTER:
            return pause
        return pause * (self._chance or random).uniform(*self._jitter)

    def reset(self) -> None:
        """A try went well: the next pause is a short one."""
        self.failures = 0

    async def sleep(self) -> None:
        """A try failed: wait."""
        await asyncio.sleep(self.next())
