"""The strategies at work: one function each, from the first envelope to the end of the stream.

All end in good order when the source ends or the signal says so, with everything handled saved; an error leaves the
last window unsaved, and so to be repeated.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Any

from everlog.errors import Busy, HandlerFailed, OwnershipLost
from everlog.projections.event_stream import EventStream, Interrupted, offset_text, unwanted_of
from everlog.projections.port import ViewChanged, ViewTransaction
from everlog.projections.save_window import DonePrefix, OffsetProgress, SaveWindow
from everlog.projections.source import Delivery
from everlog.projections.strategies import AtLeastOnce, AtMostOnce, ExactlyOnce, Flow, Grouped

BATCH = 200
# A transaction keeps others from writing, leases too: it takes no more envelopes after this time.
TRANSACTION_S = 0.25
# Give up after this many lost races; the winner makes progress, so this is rare.
MAX_CHANGES = 100
CHANGED_S = 0.05


class OffsetSaver:
    """Saves a window when it is full, or when its time is up, also while a handler takes long."""

    def __init__(self, stream: EventStream, window: SaveWindow) -> None:
        self.window = window
        self._stream = stream
        self._filled = asyncio.Event()
        self._saving = asyncio.Lock()
        self._task = asyncio.create_task(self._run())
        # It only ends if a save fails; then the stream looks, also if nothing else happens.
        self._task.add_done_callback(lambda _: stream.prefetch.wake())

    async def __aenter__(self) -> OffsetSaver:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        orderly = kind is None or issubclass(kind, Interrupted)
        async with self._saving if orderly else nullcontext():  # a save under way ends with what belongs to it
            self._task.cancel()
        outcome = (await asyncio.gather(self._task, return_exceptions=True))[0]
        if orderly:
            if isinstance(outcome, Exception):
                raise outcome
            await self.save()

    async def take(self) -> list[Delivery] | None:
        """What the source has next, as `Prefetch.take`; a failed save fails the stream here."""
        self._check()
        return await self._stream.prefetch.take(BATCH)

    def _check(self) -> None:
        if self._task.done():
            self._task.result()

    def done(self, delivery: Delivery, *, envelopes: int) -> bool:
        """An envelope is done, or was filtered (`envelopes=0`); whether to `save` now."""
        self._check()
        if envelopes:
            self._stream.cover([delivery])
        due = self.window.add(
            delivery.offset,
            self._stream.now(),
            envelope=delivery.envelope,
            envelopes=envelopes,
            positions=delivery.positions,
        )
        self._stream.reached(delivery)
        if not due and not self._filled.is_set():
            self._filled.set()
        return due

    async def save(self) -> None:
        async with self._saving:
            progress = self.window.take()
            if progress is not None:
                await self._stream.save(progress)

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            deadline = self.window.deadline
            if deadline is None:
                self._filled.clear()
            elif (rest := deadline - self._stream.now()) > 0:
                await asyncio.sleep(rest)
            else:
                await self.save()


async def run_at_least_once(stream: EventStream, strategy: AtLeastOnce) -> None:
    """Handle, then save."""
    async with OffsetSaver(stream, SaveWindow(strategy.save_every, strategy.within_s)) as saver:
        while not stream.ending() and (batch := await saver.take()) is not None:
            for delivery in batch:
                if stream.ending():
                    return
                if await stream.accepts(delivery):
                    await stream.handle([delivery])
                    due = saver.done(delivery, envelopes=1)
                else:
                    due = delivery.passed and saver.done(delivery, envelopes=0)
                if due:
                    await saver.save()


async def run_parallel(stream: EventStream, strategy: AtLeastOnce) -> None:
    """Handle up to `parallelism` envelopes at once; save the contiguous prefix."""
    async with OffsetSaver(stream, SaveWindow(strategy.save_every, strategy.within_s)) as saver:
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

    def __init__(self, stream: EventStream, saver: OffsetSaver, parallelism: int) -> None:
        self._stream = stream
        self._saver = saver
        self._turns = asyncio.Semaphore(parallelism)
        # What is handled but not saved is bounded too: one slow journal holds back this much and no more.
        self._max_open = parallelism * 100
        self._prefix: DonePrefix[tuple[Delivery, int]] = DonePrefix()
        self._last: dict[str, asyncio.Task[None]] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._saves = asyncio.Lock()

    async def begin(self, delivery: Delivery) -> None:
        """Start a call, when its turn comes."""
        journal = delivery.journal
        if journal is None:
            await self.finish()
        while len(self._prefix) >= self._max_open:
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


async def run_at_most_once(stream: EventStream, strategy: AtMostOnce) -> None:
    """Save, then handle. A dead letter comes before the offset where that is possible: if a command wants it."""
    while not stream.ending() and (batch := await stream.prefetch.take(BATCH)) is not None:
        for delivery in batch:
            if stream.ending():
                return
            handles = await stream.accepts(delivery)
            unwanted = handles and bool(unwanted_of([delivery], stream.skips))
            if unwanted:
                await stream.handle([delivery])
                stream.cover([delivery])
            if handles or delivery.passed:
                progress = OffsetProgress(delivery.offset, int(handles), delivery.positions or {}, delivery.envelope)
                await stream.save(progress)
            if handles and not unwanted:
                await stream.handle([delivery])
                stream.cover([delivery])
                await stream.save(None)
            stream.reached(delivery)


async def run_grouped(stream: EventStream, strategy: Grouped) -> None:
    """Collect a group, handle it as one, save the last offset at once."""
    window = SaveWindow(strategy.size, strategy.within_s)
    group: list[Delivery] = []
    ended = False
    while not stream.ending() and not ended:
        batch = await stream.prefetch.take(strategy.size - len(group), window.deadline)
        ended = batch is None
        for delivery in batch or ():
            if delivery.passed or await stream.accepts(delivery):
                _add(window, delivery, stream)
                if not delivery.passed:
                    group.append(delivery)
        if not stream.ending() and (ended or window.due(stream.now())):
            if group:
                await stream.handle(group, group=True)
                stream.cover(group)
            progress = window.take()
            if progress is not None:
                await stream.save(progress)
                if progress.positions:
                    stream.reached(Delivery(None, positions=progress.positions))
            group = []


class FlowItem:
    """An envelope on its way through a flow, which yields it when it is done."""

    __slots__ = ("delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery

    @property
    def envelope(self) -> Any:
        return self.delivery.envelope


async def run_flow(stream: EventStream, strategy: Flow) -> None:
    """Envelopes go in, and come out when they are done."""
    numbers: dict[FlowItem, int] = {}  # what is inside, or was filtered out without anything behind it

    async def items(saver: OffsetSaver) -> AsyncIterator[FlowItem]:
        count = 0
        while not stream.ending() and (batch := await saver.take()) is not None:
            for delivery in batch:
                if stream.ending():
                    return
                if await stream.accepts(delivery):
                    stream.check_owned()
                    stream.observers.before_process(stream.id, delivery.envelope, delivery.created_ms)
                    item = FlowItem(delivery)
                    numbers[item] = count
                    count += 1
                    yield item
                elif delivery.passed and not numbers and saver.done(delivery, envelopes=0):
                    await saver.save()

    async with OffsetSaver(stream, SaveWindow(strategy.save_every, strategy.within_s)) as saver:
        flow = stream.projection.handler(items(saver))
        try:
            async for item in flow:
                number = numbers.pop(item, None) if isinstance(item, FlowItem) else None
                if number is None:
                    raise HandlerFailed(
                        f"a flow yielded {item!r:.100}: it must yield each item that it was given once, in their order"
                    )
                for skipped in [one for one, found in numbers.items() if found < number]:
                    del numbers[skipped]  # it was filtered out; a later one marks it done
                stream.observers.after_process(stream.id, item.envelope)
                stream.counts.handled += 1
                if saver.done(item.delivery, envelopes=1):
                    await saver.save()
        finally:
            await flow.aclose()


async def run_exactly_once(stream: EventStream, strategy: ExactlyOnce) -> None:
    """View rows and offset in one transaction, for as many envelopes as wait already."""
    while not stream.ending() and (batch := await stream.prefetch.take(strategy.size)) is not None:
        rest: Sequence[Delivery] = [one for one in batch if one.passed or await stream.accepts(one)]
        changes = 0
        while rest and not stream.ending():
            try:
                rest = await _store_together(stream, rest)
                changes = 0
            except ViewChanged as change:
                changes += 1
                if changes > MAX_CHANGES:
                    raise Busy(f"{stream.id}: others change {change} all the time") from change
                await stream.signal.wait(random.uniform(0, CHANGED_S))


async def _store_together(stream: EventStream, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
    """Handle as many as go well, in one transaction; what is left. The first that fails is then tried alone."""
    window = SaveWindow(len(deliveries), 1.0)
    failed: tuple[Delivery, Exception] | None = None
    unwanted: Delivery | None = None
    done = 0
    stream.check_owned()
    async with stream.transaction() as running:
        until = stream.now() + TRANSACTION_S
        for delivery in deliveries:
            if stream.ending() or running.full or (done and stream.now() >= until):
                break
            if stream.skips and offset_text(delivery).text in stream.skips:
                unwanted = delivery
                break
            if not delivery.passed:
                try:
                    running.savepoint(delivery.offset, delivery.numbered)
                    await stream.attempt([delivery], view=running.view)
                    running.keep()
                except (OwnershipLost, ViewChanged):
                    raise
                except Exception as error:
                    running.undo()
                    failed = (delivery, error)
                    break
            _add(window, delivery, stream)
            done += 1
        progress = window.take()
        if progress is not None:
            running.save(progress)
    if progress is not None:
        _announce(stream, progress)
    if failed is not None:
        await _recover(stream, *failed)
        done += 1
    if unwanted is not None:
        await _skip(stream, unwanted, stream.letters([unwanted], None, stream.failing.attempts))
        await stream.end_skips([offset_text(unwanted).text])
        done += 1
    return deliveries[done:]


async def _recover(stream: EventStream, delivery: Delivery, error: Exception) -> None:
    """An envelope that failed once: again, in a transaction each, with nothing locked in between."""
    recovery, attempts = stream.projection.recovery, 1
    while True:
        stream.note_error([delivery], attempts, error)
        if attempts >= recovery.attempts:
            break
        if await stream.signal.wait(recovery.delay_s):
            raise Interrupted from error
        attempts += 1
        try:
            async with stream.transaction() as running:
                running.savepoint(delivery.offset, delivery.numbered)
                await stream.attempt([delivery], view=running.view)
                running.keep()
                progress = _alone(stream, delivery, running)
        except (OwnershipLost, ViewChanged):
            raise
        except Exception as again:
            error = again
            continue
        _announce(stream, progress)
        return
    if not recovery.skips:
        raise error
    await _skip(stream, delivery, stream.letters([delivery], error, attempts))


async def _skip(stream: EventStream, delivery: Delivery, letters: Sequence[Any]) -> None:
    """The dead letter and the offset behind it, together."""
    async with stream.transaction() as running:
        running.bury(letters)
        progress = _alone(stream, delivery, running)
    stream.count_skipped([delivery])
    _announce(stream, progress)


def _add(window: SaveWindow, delivery: Delivery, stream: EventStream) -> None:
    window.add(
        delivery.offset,
        stream.now(),
        envelope=delivery.envelope,
        envelopes=int(not delivery.passed),
        positions=delivery.positions,
    )


def _alone(stream: EventStream, delivery: Delivery, running: ViewTransaction) -> OffsetProgress:
    progress = OffsetProgress(delivery.offset, 1, delivery.positions or {}, delivery.envelope)
    running.save(progress)
    return progress


def _announce(stream: EventStream, progress: OffsetProgress) -> None:
    if progress.positions:
        stream.reached(Delivery(None, positions=progress.positions))
    stream.saved(progress)
