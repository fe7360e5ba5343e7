"""An event loop in a thread of its own, for long work beside the main one.

All long work of a process shares this one thread: however much of it there is, the main loop competes with one thread
for the interpreter. The thread is started by the first that needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from everlog.runtime.portal import Portal

T = TypeVar("T")


class SideLoop:
    """Runs functions, coroutines and generators in the thread."""

    def __init__(self) -> None:
        self._portal: Portal | None = None

    async def call(self, work: Callable[[], T]) -> T:
        """What a function returns; it is not interrupted."""

        async def called() -> T:
            return work()

        return await self.run(called())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What a coroutine returns; it is cancelled with its caller."""
        if self._portal is None:
            self._portal = Portal()
        return await self._portal.wait(work)

    async def stream(self, make: Callable[[], AsyncGenerator[Sequence[T], None]]) -> AsyncGenerator[Sequence[T], None]:
        """The items of a generator, which is one item ahead of its reader, no more."""
        loop = asyncio.get_running_loop()
        found: asyncio.Queue[Sequence[T]] = asyncio.Queue(1)

        async def pump() -> None:
            async with aclosing(make()) as items:
                async for item in items:
                    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(found.put(item), loop))

        pumping = asyncio.ensure_future(self.run(pump()))
        try:
            while True:
                taking = asyncio.ensure_future(found.get())
                try:
                    await asyncio.wait({taking, pumping}, return_when=asyncio.FIRST_COMPLETED)
                    if not taking.done():
                        await pumping  # its error, if it has one
                        if found.empty():
                            return
                    item = await taking
                finally:
                    taking.cancel()
                yield item
        finally:
            pumping.cancel()
            await asyncio.wait({pumping})
            if not pumping.cancelled():
                pumping.exception()

    async def aclose(self) -> None:
        """Wait until the thread has ended."""
        portal, self._portal = self._portal, None
        if portal is not None:
            await asyncio.to_thread(portal.close)
