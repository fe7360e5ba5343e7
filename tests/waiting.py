"""Waiting for what must come true, where nobody tells: a worker, another process or a server is the one that knows."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

SECONDS = 60.0
EVERY = 0.01


async def until(condition: Callable[[], Any], *, seconds: float = SECONDS, every: float = EVERY) -> Any:
    """Ask again and again, in the loop's own time; the first answer that is true. TimeoutError if none comes.

    The condition may be a coroutine function.
    """
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(every)


def blocking_until(condition: Callable[[], Any], *, seconds: float = SECONDS, every: float = EVERY) -> Any:
    """The same without an event loop."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(every)
    return found
