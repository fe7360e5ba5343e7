"""A time limit on calls that costs next to nothing as long as it is kept: one timer for all of them."""

from __future__ import annotations

import asyncio
from typing import Any


class Watchdog:
    """Ends calls that take too long. They all have the same limit, so the oldest one is always the first to end."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._open: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def begin(self) -> asyncio.Task[Any]:
        """A call begins, in this task: it is cancelled if `end` does not come in time."""
        task = asyncio.current_task(self._loop)
        assert task is not None
        self._open[task] = deadline = self._loop.time() + self.timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)
        return task

    def cancelled(self, task: asyncio.Task[Any]) -> bool:
        """Whether the call was cancelled because it took too long, and for no other reason. Asked before `end`."""
        return task in self._late and task.uncancel() == 0

    def end(self, task: asyncio.Task[Any]) -> None:
        del self._open[task]
        if self._late:
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
