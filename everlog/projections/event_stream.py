"""One run of a projection's stream: what all strategies share. Handling with recovery, saving, dead letters.

A stream has a signal to end it and reads ahead; a hub in the process wakes callers that wait for its progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple

from everlog.errors import InvalidOffset, OwnershipLost
from everlog.projections.handlers import HandlerCalls
from everlog.projections.observers import Observers
from everlog.projections.offsets import Encoded, encode, is_mergeable, show
from everlog.projections.port import OffsetStore, ProjectionDeadLetter, View, ViewChanged, ViewTransaction
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.save_window import LogPlace, OffsetProgress
from everlog.projections.source import Delivery, Feed
from everlog.projections.strategies import ExactlyOnce, Grouped
from everlog.runtime.clock import Clock
from everlog.runtime.lease import Lease
from everlog.runtime.repeat_log import RepeatLog

log = logging.getLogger("everlog.projections")

SKIPPED_BY_HAND = "skipped by a command"
UP_TO = ".."
READ_AHEAD = 1000

EndReason = Literal["stop", "changed", "lost"]
# In order of precedence: a lost lease ends everything, a stop ends the instance, a change only the stream.
_ORDER: dict[EndReason | None, int] = {None: 0, "changed": 1, "stop": 2, "lost": 3}


class StopSignal:
    """Tells a stream to end in good order, and why."""

    def __init__(self) -> None:
        self.reason: EndReason | None = None
        self._event = asyncio.Event()
        self._wake: Callable[[], None] | None = None

    def set(self, reason: EndReason) -> None:
        if _ORDER[reason] > _ORDER[self.reason]:
            self.reason = reason
            self._event.set()
            if self._wake is not None:
                self._wake()

    def clear_change(self) -> None:
        """A new stream begins; a stop or a loss stays."""
        if self.reason == "changed":
            self.reason = None
            self._event.clear()

    def on_set(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal, at most this long; whether it came."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Prefetch:
    """Reads ahead of the handler, in a task of its own, up to a bound."""

    def __init__(self, pages: AsyncIterator[Sequence[Delivery]], *, limit: int = READ_AHEAD) -> None:
        self._pages = pages
        self._limit = limit
        self._ready: deque[Delivery] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for page in self._pages:
                self._ready.extend(page)
                self._wake.set()
                while len(self._ready) >= self._limit:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._wake.set()

    def wake(self) -> None:
        """Let `take` look around."""
        self._wake.set()

    async def take(self, limit: int, until: float | None = None) -> list[Delivery] | None:
        """What is there, up to `limit`; [] if woken or at that time; None at the end. An error comes last."""
        if not self._ready and not self._ended:
            self._wake.clear()
            timer = None if until is None else asyncio.get_running_loop().call_at(until, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        if self._ready:
            taken = [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
            self._room.set()
            return taken
        if self._error is not None:
            raise self._error
        return None if self._ended else []

    async def aclose(self) -> None:
        """Read no further."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        close = getattr(self._pages, "aclose", None)
        if close is not None:
            await close()


class ProgressHub:
    """Wakes callers of this process that wait for a projection to pass a position, as soon as that is handled."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str], dict[LogPlace, int]] = {}
        self._changed = asyncio.Event()
        self._waiting = 0

    def reached(self, projection: ProjectionId, positions: Mapping[LogPlace, int]) -> None:
        """All up to these positions is handled, though perhaps not saved yet."""
        self._positions.setdefault((projection.name, projection.key), {}).update(positions)
        self.wake()

    def forget(self, projection: ProjectionId) -> None:
        """The stream begins anew, perhaps further back."""
        self._positions.pop((projection.name, projection.key), None)

    def positions(self, name: str, place: LogPlace) -> dict[str, int]:
        """By key: up to where this part of the log is handled."""
        found = {key: places.get(place, -1) for (one, key), places in self._positions.items() if one == name}
        return {key: offset for key, offset in found.items() if offset >= 0}

    def wake(self) -> None:
        """Something changed."""
        if self._waiting:
            self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Until something changes, at most this long."""
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            self._changed.clear()


class Interrupted(Exception):
    """The stream was told to end while an envelope was waiting for its next attempt."""


class FailingEnvelope:
    """The envelope that a stream is stuck at, for reports and for `skip`."""

    def __init__(self) -> None:
        self.offset: str | None = None
        self.attempts = 0
        self.error: str | None = None

    def note(self, offset: str, attempts: int, error: BaseException) -> None:
        self.offset, self.attempts, self.error = offset, attempts, describe(error)

    def clear(self) -> None:
        self.offset, self.attempts, self.error = None, 0, None

    @property
    def first(self) -> str | None:
        """Its offset, or that of a group's first: a group may end elsewhere when it is formed anew."""
        return None if self.offset is None else self.offset.partition(UP_TO)[0]

    def is_among(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether these are, or begin with, what fails."""
        return self.offset is not None and any(offset_text(one).text == self.first for one in deliveries)


class LeftOut(NamedTuple):
    """An envelope that is not handled: its dead letter, and the command that wanted it so, if it was one."""

    letter: ProjectionDeadLetter
    skip: str | None = None


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
    if delivery.numbered is not None:
        return encode(delivery.numbered.place)  # its own, wherever others are
    offset = delivery.offset
    if offset is None:
        raise InvalidOffset("an envelope needs an offset")
    if is_mergeable(offset):
        return Encoded(",".join(f"{entry}={place}" for entry, place in show(offset).items()), "MAP")
    return encode(offset)  # type: ignore[arg-type]


def name_of(deliveries: Sequence[Delivery]) -> str:
    """How reports and skips name what is handled as one: its offset, or those of a group's first and last."""
    first, last = offset_text(deliveries[0]).text, offset_text(deliveries[-1]).text
    return first if len(deliveries) == 1 else f"{first}{UP_TO}{last}"


def unwanted_of(deliveries: Sequence[Delivery], skips: Sequence[str]) -> dict[str, str]:
    """Which of these are to be skipped, by offset, and by which command: one alone, or all from one to another.

    A group that is formed anew may end elsewhere: what it does not have any more is not skipped.
    """
    if not skips:
        return {}
    texts = [offset_text(one).text for one in deliveries]
    found: dict[str, str] = {}
    for skip in skips:
        if skip in texts:
            found[skip] = skip
            continue
        first, _, last = skip.partition(UP_TO)
        if last and first in texts:
            end = texts.index(last) + 1 if last in texts else len(texts)
            found |= dict.fromkeys(texts[texts.index(first) : end], skip)
    return found


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
        calls: HandlerCalls,
        signal: StopSignal,
        hub: ProgressHub,
        clock: Clock,
        observers: Observers,
        counts: StreamCounts,
        failing: FailingEnvelope,
        repeats: RepeatLog,
        skips: Sequence[str],
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
        self.repeats = repeats
        self.prefetch = prefetch
        self.skips = tuple(skips)
        # What is left out, by offset. It counts with the offset that is stored behind it, and not before: its dead
        # letter is stored just before that, and a command is fulfilled just after. Until then, it is still wanted.
        self._left_out: dict[str, LeftOut] = {}
        self._covered: list[LeftOut] = []
        self._failed = False
        self.now = asyncio.get_running_loop().time
        self._verifies = type(feed).verify is not Feed.verify
        # Until when the lease holds for sure; the owner moves it on. None: no other instance can take it.
        self.owned_until: float | None = None
        self._hub = hub
        self._clock = clock

    def ending(self) -> bool:
        """Whether the stream is told to end."""
        return self.signal.reason is not None

    def check_owned(self) -> None:
        """An owner that cannot renew stops before another one begins."""
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
        """Call the handler, again as often as the recovery says; True if handled, False if left out.

        What a command does not want is left out, once the others of the group are done.
        """
        unwanted = unwanted_of(deliveries, self.skips)
        if not unwanted:
            return await self._attempt_all(deliveries, group=group)
        texts = [offset_text(one).text for one in deliveries]
        rest = [one for one, text in zip(deliveries, texts, strict=True) if text not in unwanted]
        handled = bool(rest) and await self._attempt_all(rest, group=group)
        gone = [one for one, text in zip(deliveries, texts, strict=True) if text in unwanted]
        attempts = self.failing.attempts if self.failing.is_among(gone) else 0
        self._leave_out(gone, self.letters(gone, None, attempts), unwanted)
        return handled

    async def _attempt_all(self, deliveries: Sequence[Delivery], *, group: bool) -> bool:
        attempts = 0
        while True:
            attempts += 1
            try:
                await self.attempt(deliveries, group=group)
                return True
            except OwnershipLost:
                raise  # no failure of the envelope's: the next owner will handle it
            except Exception as error:
                recovery = self.projection.recovery
                self.note_error(deliveries, attempts, error)
                if attempts < recovery.attempts:
                    if await self.signal.wait(recovery.delay_s):
                        raise Interrupted from error
                    continue
                if not recovery.skips:
                    raise
                self._leave_out(deliveries, self.letters(deliveries, error, attempts), {})
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
        self._ended_well(deliveries)

    def note_error(self, deliveries: Sequence[Delivery], attempts: int, error: Exception) -> None:
        """An attempt failed."""
        first = deliveries[0]
        self._failed = True
        self.failing.note(name_of(deliveries), attempts, error)
        text = f"{self.id}: attempt {attempts} at {self.failing.offset} failed: {describe(error)}"
        self.repeats.warn("attempt", (self.failing.first, type(error)), text, error)
        self.observers.error(self.id, first.envelope, error, self.projection.recovery)

    def _ended_well(self, deliveries: Sequence[Delivery]) -> None:
        """Handled, or left out. What failed in an earlier stream is over; in this one, if it was among these."""
        if self.failing.offset is not None and (not self._failed or self.failing.is_among(deliveries)):
            self.failing.clear()

    def _leave_out(
        self, deliveries: Sequence[Delivery], letters: Sequence[ProjectionDeadLetter], skips: Mapping[str, str]
    ) -> None:
        self._left_out |= {letter.offset: LeftOut(letter, skips.get(letter.offset)) for letter in letters}
        self._ended_well(deliveries)

    def cover(self, deliveries: Sequence[Delivery]) -> None:
        """The offset that is saved next is behind these."""
        if self._left_out:
            found = [self._left_out.pop(offset_text(one).text, None) for one in deliveries]
            self._covered.extend(one for one in found if one is not None)

    async def end_skips(self, skips: Collection[str]) -> None:
        """These commands are fulfilled."""
        self.skips = tuple(one for one in self.skips if one not in skips)
        await self.store.end_skips(self.id, skips)

    def count_skipped(self, deliveries: Sequence[Delivery]) -> None:
        self.counts.skipped += len(deliveries)
        self._ended_well(deliveries)

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
        """Handled, filtered or skipped: callers that wait for it may go on."""
        if delivery.positions:
            self._hub.reached(self.id, delivery.positions)

    async def save(self, progress: OffsetProgress | None) -> None:
        """Store the offset, and what belongs to it; None if it is stored already. A failure fails the stream."""
        covered, self._covered = self._covered, []
        if covered:
            await self.store.bury(self.lease, [one.letter for one in covered])
        if progress is not None:
            await self.store.save(self.lease, progress)
            self.saved(progress)
        self.counts.skipped += len(covered)
        if skips := {one.skip for one in covered if one.skip is not None}:
            await self.end_skips(skips)

    def saved(self, progress: OffsetProgress) -> None:
        if self.observers and progress.envelopes:
            self.observers.offset_progress(self.id, progress.last, progress.envelopes)
        self._hub.wake()

    async def replay(self) -> None:
        """Handle the dead letters whose replay was asked for, before anything new."""
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
