"""A clock for tests that moves only when it is told to."""

from __future__ import annotations

from datetime import timedelta

from everlog.core.duration import Duration, milliseconds
from everlog.runtime.clock import SystemClock


class ManualClock(SystemClock):
    """Stands still at the moment at which it is made, until `advance`. Time-outs of the machine go on.

    >>> clock = ManualClock()
    >>> before = clock.now_ms(); clock.advance("10m"); clock.now_ms() - before
    600000
    """

    def __init__(self) -> None:
        self._now_ms = super().now_ms()
        self._passed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms + self._passed_ms

    def monotonic(self) -> float:
        return super().monotonic() + self._passed_ms / 1000

    def advance(self, by: Duration | timedelta) -> None:
        """Let time pass: `clock.advance("1h")`."""
        self._passed_ms += milliseconds(by)
