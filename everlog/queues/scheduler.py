"""The loop that fires schedules: it looks when the next time comes, waits until then, and fires.

Any number of workers and servers run one, on the same queues: the first that fires a time moves the schedule's mark,
and the others find nothing to do. Its loops are supervised: no error ends them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from everlog.errors import QueueNotFound
from everlog.queues.operations import AskSchedules, FireSchedules
from everlog.queues.port import QueueStore
from everlog.runtime.supervisor import LoopSupervisor

# How soon it sees a schedule that another process has set.
LOOK_S = 1.0
MIN_PAUSE_S = 0.001
RETRY_S = 0.5
MAX_RETRY_S = 5.0


class Scheduler:
    """Fires the schedules of some queues. `counted`: times that were `fired`.

    `store` is asked for when there is a queue to look at: a server opens none before. Without `takes_over`, queues that
    no process owns are left alone, so that their workers can start again: upkeep sees to them later.
    """

    def __init__(
        self,
        store: Callable[[], QueueStore],
        names: Callable[[], Awaitable[Sequence[str]]],
        supervisor: LoopSupervisor,
        *,
        look_s: float = LOOK_S,
        takes_over: bool = True,
    ) -> None:
        self.counted: Counter[str] = Counter()
        self._store = store
        self._names = names
        self._look_s = min(look_s, LOOK_S)
        self._takes_over = takes_over
        self._supervisor = supervisor

    def start(self) -> None:
        """Begin; the supervisor ends it. Each queue has a loop of its own: none waits for another one's owner."""
        self._supervisor.start("schedules", self._find_queues, min_s=RETRY_S, max_s=MAX_RETRY_S)

    async def _find_queues(self) -> None:
        while True:
            for name in await self._names():
                serve = partial(self._serve, name)
                self._supervisor.start(f"schedules of {name}", serve, min_s=RETRY_S, max_s=MAX_RETRY_S, may_end=True)
            await asyncio.sleep(self._look_s)

    async def _serve(self, name: str) -> None:
        """Until the queue is deleted; a later one of its name is found, and served anew."""
        try:
            while True:
                pause_s = await self._fire(name)
                await asyncio.sleep(pause_s)
        except QueueNotFound:
            await asyncio.sleep(MAX_RETRY_S)

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
