"""A time limit on calls that costs next to nothing as long as it is kept: one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from everlog.errors import HandlerTimeout


class Watchdog:
    """Ends calls that take too long. They all have the same limit, so the oldest one is always the first to end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._open: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    async def watch(self, call: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Run a call in this task; HandlerTimeout if it does not come back in time."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = deadline = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)
        try:
            await call(*arguments)
        except asyncio.CancelledError as error:
            if task in self._late and task.uncancel() == 0:
                raise HandlerTimeout(f"the handler did not come back within {self._seconds:g} s") from error
            raise
        finally:
            del self._open[task]
            self._late.discard(task)

    def _look(self) -> None:
        """The timer of a call that ended long ago, most of the time: set it for the oldest that is open."""
        self._timer = None
        now = self._loop.time()
        for task, deadline in self._open.items():
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._look)
                return
            if task not in self._late:
                self._late.add(task)
                task.cancel()

    def close(self) -> None:
        """No call is open any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
