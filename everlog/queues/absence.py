"""What a loop does that serves a queue while there is no such queue: it waits for the next one of that name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from everlog.errors import QueueNotFound
from everlog.queues.port import QueueStore
from everlog.runtime.retry import Backoff

log = logging.getLogger("everlog.queues")

MIN_ABSENCE_S = 0.5
MAX_ABSENCE_S = 5.0


async def outlast_absence(
    store: QueueStore,
    name: str,
    body: Callable[[], Awaitable[None]],
    *,
    returned: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run a loop; while its queue turns out to be deleted, rest, each time longer, and begin it again.

    `returned`: what is to be done before it goes on. A loop that gives it also says in the log that it waits, once.
    """
    backoff, told, clock = Backoff(MIN_ABSENCE_S, MAX_ABSENCE_S), False, store.clock
    while True:
        began = clock.monotonic()
        try:
            return await body()
        except QueueNotFound:
            if clock.monotonic() - began > MAX_ABSENCE_S:  # it was there for a while
                backoff.reset()
        if returned is not None and not told:
            log.warning("the queue %s is deleted: its worker waits until there is one of that name again", name)
        told = True
        await asyncio.sleep(backoff.next())
        if returned is not None and await store.declared(name) is not None:
            with suppress(QueueNotFound):  # what this process knew was out of date, or it is deleted again
                await returned()
                told = False
