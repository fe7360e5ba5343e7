"""At-least-once with several envelopes at a time: ordered per journal, parallel over journals.

The invariant: an offset is saved only when it and all before it are done.
"""

from __future__ import annotations

import asyncio

from everlog.projections.event_stream import EventStream
from everlog.projections.save_window import Prefix, SaveWindow
from everlog.projections.source import Delivery
from everlog.projections.strategies import AtLeastOnce
from everlog.projections.strategy_loops import Saver


async def run_parallel(stream: EventStream, strategy: AtLeastOnce) -> None:
    """Handle up to `parallelism` envelopes at once; save the contiguous prefix."""
    async with Saver(stream, SaveWindow(strategy.save_every, strategy.within)) as saver:
        lanes = Lanes(stream, saver, strategy.parallelism)
        try:
            while not stream.ending() and (batch := await saver.take()) is not None:
                for delivery in batch:
                    if stream.ending():
                        break
                    if await stream.accepts(delivery):
                        await lanes.begin(delivery)
                    elif delivery.passed:
                        await lanes.pass_by(delivery)
            await lanes.finish()
        finally:
            await lanes.close()


class Lanes:
    """The open calls. A journal's envelopes follow each other; one without a journal runs alone."""

    def __init__(self, stream: EventStream, saver: Saver, parallelism: int) -> None:
        self._stream = stream
        self._saver = saver
        self._turns = asyncio.Semaphore(parallelism)
        # What is handled but not saved is bounded too: one slow journal holds back so much and no more.
        self._most = parallelism * 100
        self._prefix: Prefix[tuple[Delivery, int]] = Prefix()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._saves = asyncio.Lock()

    async def begin(self, delivery: Delivery) -> None:
        """Start a call, when its turn comes."""
        journal = delivery.journal
        if journal is None:
            await self.finish()
        while len(self._prefix) >= self._most:
            await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
            self._check()
        await self._turns.acquire()
        self._check()
        number = self._prefix.begin((delivery, 1))
        before = None if journal is None else self._last.get(journal)
        task = asyncio.create_task(self._handle(delivery, number, before))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        if journal is None:
            await self.finish()
        else:
            self._last[journal] = task
            task.add_done_callback(lambda done: self._forget(journal, done))

    def _forget(self, journal: str, task: asyncio.Task[None]) -> None:
        if self._last.get(journal) is task:
            del self._last[journal]

    async def pass_by(self, delivery: Delivery) -> None:
        """Nothing to handle, but a place to save once all before it is done."""
        await self._ended(self._prefix.begin((delivery, 0)))

    async def _handle(self, delivery: Delivery, number: int, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            if self._error is None:
                await self._stream.handle([delivery])
                await self._ended(number)
        except BaseException as error:
            if self._error is None:
                self._error = error
        finally:
            self._turns.release()

    async def _ended(self, number: int) -> None:
        async with self._saves:  # in order: what is released later is also saved later
            for delivery, envelopes in self._prefix.end(number):
                if self._saver.done(delivery, envelopes=envelopes):
                    await self._saver.save()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    async def finish(self) -> None:
        """Wait for all open calls."""
        while self._open:
            await asyncio.wait(self._open)
        self._check()

    async def close(self) -> None:
        """After an error: no call stays open."""
        while self._open:
            await asyncio.wait(self._open)
