"""An event loop whose time passes at once when everybody waits: a backoff of 30 s costs nothing in a test."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, moves the time on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        self.now += 1e-6  # a turn of the loop takes some time, as everywhere
        if not ready and timeout is not None and timeout > 0:
            self.now += timeout
        assert ready or timeout is not None, "everybody waits, and nothing will ever happen"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """The result, and how many seconds it would have taken."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work), loop.time()
    finally:
        loop.close()
