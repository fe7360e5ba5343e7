"""Queues on Cassandra for other threads than the one whose event loop serves them.

That loop has a thread of its own: it beats for the shards that this process owns, answers other processes, and carries
the heartbeats of jobs. A job that blocks the event loop of its program must keep none of them waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from everlog.errors import StorageFailed
from everlog.queues.declaration import Declaration
from everlog.queues.operations import Operation, PutAnswer, QueueAnswer
from everlog.queues.port import QueueStore
from everlog.queues.rows import Packet
from everlog.runtime.portal import Portal
from everlog.runtime.supervisor import LoopStatus

if TYPE_CHECKING:
    from everlog.queues.cassandra.queue_store import CassandraQueueStore

T = TypeVar("T")


class ThreadSafeQueues(QueueStore):
    """The queues of a store that another event loop has."""

    counts_anywhere = False

    def __init__(self, inner: CassandraQueueStore) -> None:
        super().__init__(inner.clock)
        self._inner = inner

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self._inner.loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._inner.loop))

    async def declare(self, wanted: Declaration) -> Declaration:
        return await self._call(self._inner.declare(wanted))

    async def delete(self, name: str, *, running: bool = False) -> int:
        return await self._call(self._inner.delete(name, running=running))

    def forget(self, name: str) -> None:
        self._inner.forget(name)

    async def declared(self, name: str) -> Declaration | None:
        return await self._call(self._inner.declared(name))

    async def names(self) -> list[str]:
        return await self._call(self._inner.names())

    async def in_use(self) -> list[str]:
        return await self._call(self._inner.in_use())

    async def execute(self, name: str, operation: Operation) -> QueueAnswer:
        return await self._call(self._inner.execute(name, operation))

    async def put_all(self, name: str, packets: Sequence[Packet]) -> list[PutAnswer]:
        return await self._call(self._inner.put_all(name, packets))

    async def wait(self, name: str, listener: str, seconds: float) -> bool:
        """It waits where news of work arrives."""
        return await self._call(self._inner.wait(name, listener, seconds))

    async def is_unowned(self, name: str) -> bool:
        return await self._call(self._inner.is_unowned(name))

    async def tend(self, name: str) -> None:
        await self._call(self._inner.tend(name))

    def sibling(self) -> QueueStore:
        return ThreadSafeQueues(self._inner)

    def counted(self, name: str) -> Counter[str]:
        return self._inner.counted(name)

    def status(self) -> list[LoopStatus]:
        return self._inner.status()


class OwnThreadQueues(ThreadSafeQueues):
    """The same, with the thread: it begins with the first use, and ends when this is closed."""

    def __init__(self, inner: CassandraQueueStore) -> None:
        super().__init__(inner)
        self._portal: Portal | None = None
        self._closed = False

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._portal is None and not self._closed:
            self._portal = Portal()
        if self._portal is None:
            work.close()
            raise StorageFailed("the queues of this log are closed")
        return await self._portal.wait(work)

    async def in_use(self) -> list[str]:
        """None before the first use: to look begins none."""
        return [] if self._portal is None else await super().in_use()

    async def close(self) -> None:
        """Let go of the shards, then end the thread."""
        await super().close()
        portal, self._portal, self._closed = self._portal, None, True
        if portal is not None and not portal.forked:
            await portal.wait(self._inner.close())
            await asyncio.to_thread(portal.close)
