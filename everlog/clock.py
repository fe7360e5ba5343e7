"""Time, randomness and ids are passed in, so that every protocol can be tested in virtual time."""

from __future__ import annotations

import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """Where time and fresh ids come from."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, for durations and time-outs."""

    def new_id(self) -> str:
        """A random id that nobody else has."""


class SystemClock:
    """The machine's clock and random numbers."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        return str(uuid.uuid4())
