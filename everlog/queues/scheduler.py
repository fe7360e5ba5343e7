"""The loop that fires schedules: it looks when the next time comes, waits until then, and fires.

Any number of workers and servers run one, on the same queues: the first that fires a time moves the schedule's mark,
and the others find nothing to do. No error ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from everlog.errors import EverlogError
from everlog.queues.operations import AskSchedules, FireSchedules
from everlog.queues.port import QueueStore
from everlog.runtime.retry import Backoff

logger = logging.getLogger("everlog.queues")

# How soon it sees a schedule that another process has set.
LOOK_S = 1.0
MIN_PAUSE_S = 0.001
RETRY_S = 0.5
MAX_RETRY_S = 5.0


class Scheduler:
    """Fires the schedules of some queues. `counted`: times that were `fired`, and looks that `failed`.

    `store` is asked for when there is a queue to look at: a server opens none before. Without `takes_over`, queues that
    no process owns are left alone, so that their workers can start again: upkeep sees to them later.
    """

    def __init__(
        self,
        store: Callable[[], QueueStore],
        names: Callable[[], Awaitable[Sequence[str]]],
        *,
        look_s: float = LOOK_S,
        takes_over: bool = True,
    ) -> None:
        self.counted: Counter[str] = Counter()
        self._store = store
        self._names = names
        self._look_s = min(look_s, LOOK_S)
        self._takes_over = takes_over
        self._loops: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until it is cancelled. Each queue has a loop of its own: none waits for another one's owner."""
        try:
            while True:
                try:
                    names = await self._names()
                except Exception as error:
                    self._warn("the queues with schedules are not known now", error)
                    names = ()
                for name in names:
                    if name not in self._loops:
                        loop = asyncio.create_task(self._serve(name), name=f"everlog-scheduler-{name}")
                        self._loops[name] = loop
                await asyncio.sleep(self._look_s)
        finally:
            loops, self._loops = self._loops, {}
            for loop in loops.values():
                loop.cancel()
            await asyncio.gather(*loops.values(), return_exceptions=True)

    async def _serve(self, name: str) -> None:
        backoff = Backoff(RETRY_S, MAX_RETRY_S)
        while True:
            try:
                pause_s = await self._fire(name)
                backoff.reset()
            except Exception as error:
                self._warn(f"{name}: schedules are not fired now", error)
                pause_s = backoff.next()
            await asyncio.sleep(pause_s)

    async def _fire(self, name: str) -> float:
        """Put what has come; how long nothing needs to be done."""
        if not self._takes_over and await self._store().is_unowned(name):
            return self._look_s
        while True:
            wait_ms = await self._store().execute(name, AskSchedules())
            if wait_ms != 0:
                break
            count = await self._store().execute(name, FireSchedules())
            assert isinstance(count, int)
            self.counted["fired"] += count
        assert wait_ms is None or isinstance(wait_ms, int)
        return self._look_s if wait_ms is None else min(self._look_s, max(MIN_PAUSE_S, wait_ms / 1000))

    def _warn(self, text: str, error: Exception) -> None:
        """Our errors explain themselves; others need their traceback."""
        self.counted["failed"] += 1
        logger.warning("%s: %s", text, error, exc_info=not isinstance(error, EverlogError))
