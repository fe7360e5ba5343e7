"""Loading aggregates, and updating them: load, decide, append with the version that was loaded, again on a conflict."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Generic

import msgspec

from everlog.core.event_types import TypedRecord
from everlog.core.events import EventRecord
from everlog.core.values import Version
from everlog.errors import (
    Conflict,
    EventMismatch,
    EverlogError,
    InvalidInput,
    JournalNotFound,
    OutcomeUnknown,
    Overtaken,
    StateLost,
)
from everlog.journal.aggregate import (
    SNAPSHOT_VERSION,
    A,
    Aggregate,
    AggregatePlace,
    definition_of,
    place_of,
    state_of,
    state_payload,
)
from everlog.journal.journal import Journal, Token
from everlog.journal.reader import Pin
from everlog.runtime.keyed_lock import KeyedLock
from everlog.runtime.retry import Backoff
from everlog.store.port import Snapshot

logger = logging.getLogger("everlog.aggregates")

MAX_RETRIES = 3
# A journal that is deleted from all the time is given up.
MAX_LOADS = 10
# Ask at most this often for an append whose outcome is unknown.
MAX_LOOKS = 5
MIN_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
# After a conflict: long enough that the winner is done.
MIN_CONFLICT_PAUSE_S = 0.005
MAX_CONFLICT_PAUSE_S = 0.05
# Updates of one aggregate take turns within a process; a function that takes long holds up others no longer than this.
MAX_TURN_S = 1.0
MAX_SNAPSHOT_S = 5.0


async def load(journal: Journal, kind: type[A], journal_id: str) -> A:
    """The aggregate as of now, from its newest snapshot and the events after it; at version 0 if there is none."""
    for left in reversed(range(MAX_LOADS)):
        try:
            return await _load(journal, kind, journal_id)
        except Overtaken:
            if not left:
                raise
    raise AssertionError("unreachable")


async def _load(journal: Journal, kind: type[A], journal_id: str) -> A:
    pin, newest = await journal.pinned(journal_id)
    state, kept = await _kept_state(journal, kind, journal_id, pin, newest)
    is_lost = kept < pin.delete_to
    if is_lost and (newest is not None or pin.delete_to < pin.seq_nr):
        raise StateLost(kind.__name__, journal_id, pin.delete_to, kept, definition_of(kind).snapshot_version)
    place = place_of(state)
    place.is_anew = is_lost
    place.id, place.version, place.kept = journal_id, Version(pin.seq_nr, pin.life), kept
    async for page in journal.pinned_pages(journal_id, pin, from_seq=kept + 1):
        for event in page:
            _apply(state, event)
    return state


async def _kept_state(
    journal: Journal, kind: type[A], journal_id: str, pin: Pin, newest: Snapshot | None
) -> tuple[A, int]:
    """The state of the newest snapshot of this class as it is now, and its seqNr; a fresh one, and 0, without any."""
    found = None if newest is None else _state_of(kind, journal_id, newest)
    if newest is None:
        return kind(), 0
    if found is not None:
        return found, newest.seq_nr
    for older in reversed(await journal.snapshots.list(journal_id)):  # programs of two versions may run side by side
        if older.record_id == pin.life and older.seq_nr < newest.seq_nr:
            found = _state_of(kind, journal_id, older)
            if found is not None:
                return found, older.seq_nr
    return kind(), 0


def _apply(state: Aggregate, event: EventRecord) -> None:
    if definition_of(type(state)).types is not None and not isinstance(event, TypedRecord):
        state.apply_unknown(event)
        return
    try:
        payload = event.payload
    except EventMismatch as error:
        raise error.within(f"{type(state).__name__} {state.id!r}") from error
    state.apply(payload)


def check_decision(decision: object) -> None:
    """What the function of an update returned is not used, and so must not be what it was to do."""
    if isinstance(decision, Iterator | AsyncIterator):
        raise InvalidInput(
            "the function of an update returned an iterator, whose steps never run: write a function without yield, "
            "and a loop instead of map or a generator expression"
        )


def _state_of(kind: type[A], journal_id: str, snapshot: Snapshot) -> A | None:
    """The state of a snapshot, if it is one of this class as it is now."""
    try:
        return state_of(kind, snapshot)
    except (msgspec.MsgspecError, TypeError, NameError, NotImplementedError, ValueError) as error:
        logger.warning(
            "%s %r: the snapshot at seqNr %d does not fit the class, so more events are read (%s): "
            "raise snapshot_version when fields change",
            kind.__name__,
            journal_id,
            snapshot.seq_nr,
            error,
        )
        return None


class AggregateUpdate(Generic[A]):
    """An update under way: `begin`, let the caller decide, `commit`; again until that says True; then `end`."""

    def __init__(self, journal: Journal, kind: type[A], journal_id: str, retries: int, turns: KeyedLock) -> None:
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise InvalidInput(f"retries is a whole number from 0, not {retries!r}")
        self._journal = journal
        self._kind = kind
        self._id = journal_id
        self._left = retries
        self._turns = turns
        self._turn: str | None = None
        self._pause = Backoff(MIN_CONFLICT_PAUSE_S, MAX_CONFLICT_PAUSE_S)

    async def begin(self) -> A:
        """The aggregate as it is now."""
        if self._turn is None:
            await self._take_turn()
        return await load(self._journal, self._kind, self._id)

    async def _take_turn(self) -> None:
        """Rather than lose to one another. Not more: an update is right without its turn."""
        name = f"{self._journal.topic}:{self._id}"
        try:
            async with asyncio.timeout(MAX_TURN_S):
                await self._turns.acquire(name)
        except TimeoutError:
            return
        self._turn = name

    async def end(self) -> None:
        """Whatever came of it, others may go on."""
        if self._turn is not None:
            self._turns.release(self._turn)
            self._turn = None

    async def commit(self, aggregate: A) -> bool:
        """Store what was emitted; False if another writer was faster, and the decision must be made again."""
        place = place_of(aggregate)
        if not place.emitted:
            return True
        try:
            if place.is_anew and isinstance(place.version, Version) and place.version.life is not None:
                await self._keep_beginning(place, place.version)
            token = await self._append(place)
        except (Conflict, Overtaken):
            if not self._left:
                raise
            self._left -= 1
            await self._pause.sleep()
            return False
        before, place.version, place.token = place.version, token.version, token
        place.emitted.clear()
        if place.is_anew:
            await self._keep_beginning_late(place, Version(before, token.life))
        every = definition_of(self._kind).snapshot_every
        # Once every `snapshot_every` events, even if it fails: the writer whose append gets there keeps the state.
        if every is not None and (place.version - place.kept) // every > (before - place.kept) // every:
            await self._snapshot(place)
        return True

    async def _keep_beginning(self, place: AggregatePlace, version: int) -> None:
        """Without this snapshot, the events to come would look like what a delete left of a longer story."""
        try:
            await self._save(version, self._kind())
        except JournalNotFound:
            pass  # it was purged since, which the append finds out
        except InvalidInput as error:
            raise InvalidInput(
                f"{self._kind.__name__} {self._id!r}: all its events are deleted, and the state that it begins with "
                f"again cannot be kept as a snapshot: {error}"
            ) from error
        else:
            place.kept, place.is_anew = int(version), False

    async def _keep_beginning_late(self, place: AggregatePlace, version: int) -> None:
        """The append began a life: a snapshot of before would have belonged to none."""
        try:
            await self._keep_beginning(place, version)
        except EverlogError as error:  # the events are stored, and the caller must hear that
            logger.warning(
                "%s %r: it cannot be loaded until a snapshot is kept: %s", self._kind.__name__, self._id, error
            )

    async def _save(self, seq_nr: int, state: A) -> None:
        metadata = {SNAPSHOT_VERSION: definition_of(self._kind).snapshot_version}
        await self._journal.snapshots.save(self._id, seq_nr=seq_nr, payload=state_payload(state), metadata=metadata)

    async def _append(self, place: AggregatePlace) -> Token:
        """Append, and where the outcome is unknown ask for it with the id that the first attempt had."""
        append_id: str | None = None
        pause = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)
        for left in reversed(range(MAX_LOOKS)):
            try:
                return await self._journal.append(
                    self._id, list(place.emitted), expected=place.version, append_id=append_id
                )
            except OutcomeUnknown as unknown:
                if not left:
                    raise
                append_id = unknown.append_id
            await pause.sleep()
        raise AssertionError("unreachable")

    async def _snapshot(self, place: AggregatePlace) -> None:
        """Keep the state. The events are stored: a failure only means that more of them are read next time.

        It is made from the events once more: what the function changed beside them must not be kept.
        """
        kind = self._kind
        try:
            async with asyncio.timeout(MAX_SNAPSHOT_S):
                state = await load(self._journal, kind, self._id)
                await self._save(state.version, state)
        except Exception as error:
            logger.warning("%s %r: no snapshot at seqNr %d: %r", kind.__name__, self._id, place.version, error)
        else:
            place.kept = state.version
