"""One run of a projection's stream: what all strategies share. Handling with recovery, saving, dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from everlog.errors import InvalidOffset, OwnershipLost
from everlog.projections.handlers import Calls
from everlog.projections.ids import ProjectionId
from everlog.projections.observers import Observers
from everlog.projections.offsets import Encoded, encode, is_mergeable, show
from everlog.projections.port import OffsetStore, ProjectionDeadLetter, View, ViewChanged, ViewTransaction
from everlog.projections.projection import Projection
from everlog.projections.save_window import OffsetProgress
from everlog.projections.source import Delivery, Feed
from everlog.projections.strategies import ExactlyOnce, Grouped
from everlog.projections.stream_parts import Hub, Prefetch, Signal
from everlog.runtime.clock import Clock
from everlog.runtime.lease import Lease

log = logging.getLogger("everlog.projections")

SKIPPED_BY_HAND = "skipped by a command"


class Interrupted(Exception):
    """The stream was told to end while an envelope was waiting for its next attempt."""


class Failing:
    """The envelope that a stream is stuck at, for reports and for `skip`."""

    def __init__(self) -> None:
        self.offset: str | None = None
        self.attempts = 0
        self.error: str | None = None

    def note(self, offset: str, attempts: int, error: BaseException) -> None:
        self.offset, self.attempts, self.error = offset, attempts, describe(error)

    def clear(self) -> None:
        self.offset, self.attempts, self.error = None, 0, None


class StreamCounts:
    """How much was done, over all streams of an instance."""

    def __init__(self) -> None:
        self.handled = 0
        self.skipped = 0


def describe(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}"[:1000]


def offset_text(delivery: Delivery) -> Encoded:
    """A delivery's offset as it names a dead letter; a map is written as its one entry."""
    offset = delivery.offset
    if offset is None:
        raise InvalidOffset("an envelope needs an offset")
    if is_mergeable(offset):
        return Encoded(",".join(f"{entry}={place}" for entry, place in show(offset).items()), "MAP")
    return encode(offset)  # type: ignore[arg-type]


class EventStream:
    """A stream at work. Its strategy decides when which of these is called."""

    def __init__(
        self,
        projection: Projection,
        identity: ProjectionId,
        *,
        feed: Feed,
        store: OffsetStore,
        lease: Lease,
        calls: Calls,
        signal: Signal,
        hub: Hub,
        clock: Clock,
        observers: Observers,
        counts: StreamCounts,
        failing: Failing,
        skip: str | None,
        prefetch: Prefetch,
    ) -> None:
        self.projection = projection
        self.id = identity
        self.feed = feed
        self.store = store
        self.lease = lease
        self.calls = calls
        self.signal = signal
        self.observers = observers
        self.counts = counts
        self.failing = failing
        self.prefetch = prefetch
        self.skip = skip
        self.now = asyncio.get_running_loop().time
        self._verifies = type(feed).verify is not Feed.verify
        # Until when the lease holds for sure; the owner moves it on. None: nobody else can take it.
        self.owned_until: float | None = None
        self._hub = hub
        self._clock = clock

    def ending(self) -> bool:
        """Whether somebody wants the stream to end."""
        return self.signal.reason is not None

    def check_owned(self) -> None:
        """An owner that cannot renew stops before anybody else begins."""
        if self.signal.reason == "lost" or (self.owned_until is not None and self.now() >= self.owned_until):
            self.signal.set("lost")
            raise OwnershipLost(str(self.id), self.lease.epoch)

    def transaction(self) -> AbstractAsyncContextManager[ViewTransaction]:
        """View rows and offset together."""
        return self.store.transaction(self.lease, self.projection.copies)

    async def accepts(self, delivery: Delivery) -> bool:
        """Whether there is something to handle: not filtered, and its offset verified."""
        return not delivery.passed and (not self._verifies or await self.feed.verify(self.id.key, delivery))

    async def handle(self, deliveries: Sequence[Delivery], *, group: bool = False) -> bool:
        """Call the handler, again as often as the recovery says; True if handled, False if skipped."""
        attempts = 0
        if self.skip is not None and self.skip == offset_text(deliveries[0]).text:
            await self._skip_by_hand(deliveries)
            return False
        while True:
            attempts += 1
            try:
                await self.attempt(deliveries, group=group)
                return True
            except OwnershipLost:
                raise  # no failure of the envelope's: somebody else will handle it
            except Exception as error:
                recovery = self.projection.recovery
                self.note_error(deliveries, attempts, error)
                if attempts < recovery.attempts:
                    if await self.signal.wait(recovery.delay):
                        raise Interrupted from error
                    continue
                if not recovery.skips:
                    raise
                await self.store.bury(self.lease, self.letters(deliveries, error, attempts))
                self.count_skipped(deliveries)
                return False

    async def attempt(self, deliveries: Sequence[Delivery], *, group: bool = False, view: View | None = None) -> None:
        """One call of the handler."""
        self.check_owned()
        observers = self.observers
        if observers:
            for one in deliveries:
                observers.before_process(self.id, one.envelope, one.created_ms)
        await self.calls.call([one.envelope for one in deliveries] if group else deliveries[0].envelope, view)
        if observers:
            for one in deliveries:
                observers.after_process(self.id, one.envelope)
        self.counts.handled += len(deliveries)
        if self.failing.offset is not None:
            self.failing.clear()

    def note_error(self, deliveries: Sequence[Delivery], attempts: int, error: Exception) -> None:
        """An attempt failed."""
        first = deliveries[0]
        self.failing.note(offset_text(first).text, attempts, error)
        log.warning("%s: attempt %d at %s failed: %s", self.id, attempts, self.failing.offset, describe(error))
        self.observers.error(self.id, first.envelope, error, self.projection.recovery)

    async def _skip_by_hand(self, deliveries: Sequence[Delivery]) -> None:
        await self.store.bury(self.lease, self.letters(deliveries, None, self.failing.attempts))
        await self.skip_is_done()
        self.count_skipped(deliveries)

    async def skip_is_done(self) -> None:
        """The wish is fulfilled once; the version that this makes is our own."""
        self.skip = None
        await self.store.skip(self.id, None)

    def count_skipped(self, deliveries: Sequence[Delivery]) -> None:
        self.counts.skipped += len(deliveries)
        self.failing.clear()

    def letters(
        self, deliveries: Sequence[Delivery], error: Exception | None, attempts: int
    ) -> list[ProjectionDeadLetter]:
        """What is given up, for the table."""
        cause = SKIPPED_BY_HAND if error is None else describe(error)
        now_ms = self._clock.now_ms()
        found: list[ProjectionDeadLetter] = []
        for one in deliveries:
            text, manifest = offset_text(one)
            payload = self.feed.write_down(one.envelope)
            letter = ProjectionDeadLetter(
                name=self.id.name,
                key=self.id.key,
                offset=text,
                manifest=manifest,
                cause=cause,
                attempts=attempts,
                payload=payload,
                created_ms=now_ms,
            )
            found.append(letter)
        return found

    def reached(self, delivery: Delivery) -> None:
        """Handled, filtered or skipped: those who wait for it may go on."""
        if delivery.positions:
            self._hub.reached(self.id, delivery.positions)

    async def save(self, progress: OffsetProgress) -> None:
        """Store the offset; a failure fails the stream."""
        await self.store.save(self.lease, progress)
        self.saved(progress)

    def saved(self, progress: OffsetProgress) -> None:
        if self.observers and progress.envelopes:
            self.observers.offset_progress(self.id, progress.last, progress.envelopes)
        self._hub.wake()

    async def replay(self) -> None:
        """Handle the dead letters that somebody asked for, before anything new."""
        for letter in await self.store.dead_letters(self.id.name, self.id.key, requested=True):
            if self.ending():
                return
            try:
                await self._replay(letter)
            except OwnershipLost:
                raise
            except Exception as error:
                log.warning("%s: the dead letter %s failed again: %s", self.id, letter.offset, describe(error))
                await self.store.answer_replay(self.lease, letter, describe(error))

    async def _replay(self, letter: ProjectionDeadLetter) -> None:
        assert letter.payload is not None
        delivery = Delivery(letter.offset, self.feed.read_back(letter.payload))
        strategy = self.projection.strategy
        while isinstance(strategy, ExactlyOnce):
            try:
                async with self.transaction() as running:
                    await self.attempt([delivery], view=running.view)
                    running.forget(letter)
            except ViewChanged:
                continue  # others got on meanwhile
            return
        await self.attempt([delivery], group=isinstance(strategy, Grouped))
        await self.store.answer_replay(self.lease, letter, None)
