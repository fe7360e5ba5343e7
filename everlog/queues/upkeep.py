"""Upkeep of all queues of a store, also of those that no worker serves, and of paused ones.

What time alone brings about must not wait for a claim: an attempt that is overdue ends, with its flag and its dead
letter; what has expired goes; old dead letters and drained files are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from everlog.errors import Deposed, EverlogError, OwnedElsewhere, QueueNotFound, StorageFailed
from everlog.queues.port import QueueStore
from everlog.runtime.clock import Clock
from everlog.runtime.service import Service, StatusStore
from everlog.runtime.supervisor import asks_to_end, error_text

logger = logging.getLogger("everlog.queues")

TEND_S = 60.0


class QueueUpkeep(Service):
    """Tends all queues every minute. An error of one does not keep the others waiting.

    `find_store` gives None as long as there are no queues: looking must not make files.
    `tables_optional`: the tables may be missing, where this process must not make them.
    """

    def __init__(
        self,
        find_store: Callable[[], QueueStore | None],
        *,
        clock: Clock,
        store: StatusStore,
        tables_optional: bool = False,
    ) -> None:
        super().__init__("queues", TEND_S, self.tend_all, clock=clock, store=store)
        self._find_store = find_store
        self._tables_optional = tables_optional
        self._unowned: set[str] = set()

    async def tend_all(self) -> str:
        """One round over all queues; says how many it has seen to. If some failed, the error names them."""
        queues = self._find_store()
        if queues is None:
            return "no queues"
        try:
            names = await queues.names()
        except StorageFailed:
            if self._tables_optional:
                return "no queues"
            raise
        tended, failed = 0, []
        self._unowned &= set(names)
        for name in names:
            if self._stopping.is_set():
                break
            try:
                if await self._may_tend(queues, name):
                    await queues.tend(name)
                    tended += 1
            except QueueNotFound:
                logger.info("%s was deleted meanwhile", name)
            except (OwnedElsewhere, Deposed) as error:  # only its owner may change it
                logger.info("%s is left to its owner: %s", name, error)
            except BaseException as error:
                if asks_to_end(error):
                    raise
                if not isinstance(error, EverlogError):  # of ours, the service logs what they say
                    logger.warning("%s: upkeep failed", name, exc_info=True)
                failed.append(f"{name}: {error_text(error)}")
        if failed:
            raise StorageFailed("; ".join(failed))
        return f"{tended} queues"

    async def _may_tend(self, queues: QueueStore, name: str) -> bool:
        """Whether this process may touch the queue now.

        On a cluster the first touch makes a process its owner. That is better a worker: one that is just starting
        again gets a round's time.
        """
        if not await queues.is_unowned(name):
            self._unowned.discard(name)
            return True
        if name in self._unowned:
            return True
        self._unowned.add(name)
        return False
