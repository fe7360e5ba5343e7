"""Time, randomness and ids are passed in, so that every protocol can be tested in virtual time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Protocol


class Clock(Protocol):
    """Where time and fresh ids come from."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Seconds that never go back, for durations and time-outs."""

    def new_id(self) -> str:
        """A random UUID, which no other process makes."""


class SystemClock:
    """The machine's clock and random numbers."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        """A random UUID, made in a third of the time that `uuid.uuid4` takes: many appends carry a fresh one."""
        data = os.urandom(16)
        text = data.hex()
        variant = "89ab"[data[8] & 3]
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{variant}{text[17:20]}-{text[20:]}"


class Stopwatch:
    """Says where time went: all that passed since the last lap belongs to the phase that ends now.

    So the phases add up to what passed between the start and the last lap.

    >>> times = iter([0.0, 1.0, 3.0])
    >>> watch = Stopwatch(lambda: next(times))
    >>> watch.lap("read"); watch.split({"fold": 0.5}, rest="other"); watch.seconds
    {'read': 1.0, 'fold': 0.5, 'other': 1.5}
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, busy: Callable[[], float] = time.thread_time) -> None:
        self.busy = busy  # seconds of work of this thread alone: short pieces of it, whatever else the machine does
        self.seconds: dict[str, float] = {}
        self._now = now
        self._since = now()

    def lap(self, phase: str) -> None:
        """The phase ends here; what follows belongs to another one."""
        self._add(phase, self._passed())

    def split(self, phases: Mapping[str, float], rest: str) -> None:
        """What passed since the last lap was measured elsewhere: these phases, and `rest` for what they leave.

        Another machine's clock may say a little more than passed here: then it is cut down to that.
        """
        passed, inside = self._passed(), sum(phases.values())
        scale = 1.0 if inside <= passed else passed / inside
        for phase, seconds in phases.items():
            self._add(phase, seconds * scale)
        self._add(rest, max(0.0, passed - inside))

    def _passed(self) -> float:
        before, self._since = self._since, self._now()
        return self._since - before

    def _add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
