"""Pauses between tries: growing, with jitter, and with a limit."""

from __future__ import annotations

import random


class Backoff:
    """Each pause is about twice the one before, at most `most` seconds.

    >>> pause = Backoff(1.0, 5.0)
    >>> 0.5 <= pause.next() <= 1.0
    True
    """

    def __init__(self, first: float, most: float, *, chance: random.Random | None = None) -> None:
        self._first = first
        self._most = most
        self._tries = 0
        self._chance = chance or random.Random()

    def next(self) -> float:
        pause = min(self._most, self._first * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return pause * self._chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._tries = 0
