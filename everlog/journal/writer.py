"""The writer: one append is one log record, and an append returns after its verdict.

The verdict is the fold's: the writer folds the key's records up to its own onto a state that it knew *before*
producing. A head read after producing could already contain later records, so it is never used.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from everlog.core.actions import Action, ActionRange, Append, Expected, encode_action
from everlog.core.change import Change, Quarantined, Rejected
from everlog.core.codec import NO_METADATA, AppendValue, EventData, PayloadMetadata, check_json_metadata, encode_value
from everlog.core.duration import ExpireAfter
from everlog.core.entry import Entry, decode
from everlog.core.events import Event, encode_payload
from everlog.core.fold import fold, judge
from everlog.core.head import Head, seq_nr_of
from everlog.core.record import Headers, NewRecord, Record
from everlog.core.values import MAX_SEQ_NR, SeqRange
from everlog.errors import (
    AppendTooLarge,
    Conflict,
    EmptyAppend,
    EverlogError,
    InvalidInput,
    InvalidRange,
    JournalHalted,
    LogTruncated,
    OutcomeUnknown,
    StorageFailed,
    Unacknowledged,
)
from everlog.errors.storage import rescue
from everlog.journal.reader import Reader, Ref, Span
from everlog.log.port import Ack, Log, Trimmed
from everlog.runtime.clock import Clock
from everlog.runtime.keyed_lock import KeyedLock

MAX_RETRIES = 100
# A writer looks into the store this often, and waits for the answer at most this long.
LOOK_S = 10.0
ANSWER_S = 1.0


class Draft(msgspec.Struct, frozen=True):
    """What the user wants appended."""

    events: Sequence[Event]
    expected: int | None = None
    expire_after: timedelta | None = None
    metadata: Any = None
    header_metadata: Any = None
    headers: Mapping[str, str] | None = None

    @property
    def numbered(self) -> bool:
        return self.events[0].seq_nr is not None

    @property
    def anywhere(self) -> bool:
        """Whether the events may go wherever the journal ends."""
        return self.expected is None and not self.numbered


def check_draft(draft: Draft) -> None:
    """Everything that can be wrong with an append before anything is sent."""
    events, expected = draft.events, draft.expected
    if not events:
        raise EmptyAppend("an append needs at least one event")
    if len(events) > 1:
        _check_numbers(events)
    if expected is not None:
        if isinstance(expected, bool) or not 0 <= expected <= MAX_SEQ_NR:
            raise InvalidInput(f"expected is the seqNr that the journal has now, 0 if it is absent; not {expected!r}")
        first = events[0].seq_nr
        if first is not None and first <= expected:
            raise InvalidRange(f"the first seqNr {first} must be above expected={expected}")
    if draft.expire_after is not None and draft.expire_after <= timedelta(0):
        raise InvalidInput("expire_after must be positive")
    if draft.metadata is not None:
        check_json_metadata("metadata", draft.metadata)
    if draft.header_metadata is not None:
        check_json_metadata("header metadata", draft.header_metadata)
    for name, text in (draft.headers or {}).items():
        if not isinstance(name, str) or not isinstance(text, str) or name.startswith("journal."):
            raise InvalidInput(f"headers map text to text and their names do not start with 'journal.': {name!r}")


def _check_numbers(events: Sequence[Event]) -> None:
    given = [event.seq_nr for event in events if event.seq_nr is not None]
    if given and len(given) < len(events):
        raise InvalidInput("give every event of an append a seq_nr, or none of them")
    if any(a >= b for a, b in pairwise(given)):
        raise InvalidRange(f"the seqNrs of an append must ascend: {given[:10]}")


class PointerCache:
    """How far partitions are replicated, for appends that do not look at the store.

    A record below that place would never count: the log lost its end, and grows again from further back. Pointers only
    grow: a remembered one is low, never wrong.
    """

    def __init__(self, look: Callable[[str, int], Awaitable[int]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[float, int]] = {}

    def seen(self, topic: str, partition: int) -> int | None:
        """What the pointer is at least, if it was looked up lately; -1 if the store did not answer."""
        looked, pointer = self._known.get((topic, partition), (None, -1))
        return None if looked is None or self._clock.monotonic() - looked > LOOK_S else pointer

    async def at_least(self, topic: str, partition: int) -> int:
        """What the pointer is at least; -1 if it is unknown. A silent store does not hold up the append."""
        looked, pointer = self._known.get((topic, partition), (None, -1))
        now = self._clock.monotonic()
        if looked is None or now - looked > LOOK_S:
            self._known[topic, partition] = (now, pointer)
            try:
                found = await asyncio.wait_for(self._look(topic, partition), ANSWER_S)
            except (StorageFailed, TimeoutError):
                return pointer
            pointer = max(pointer, found)
            self._known[topic, partition] = (now, pointer)
        return pointer


class Origin(NamedTuple):
    """The writer's host and version: part of every action."""

    host: str
    version: str


class KnownJournal(msgspec.Struct, frozen=True, gc=False):
    """A journal's state, folded up to and including `upto`."""

    head: Head | None
    upto: int


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where an append went."""

    offset: int
    range: SeqRange


class Sent(msgspec.Struct, frozen=True, gc=False):
    """An append that the log has acknowledged, and what it says."""

    ack: Ack
    entry: Entry
    range: SeqRange


class Writer:
    """Appends to journals, and remembers the last state of those it appended to."""

    def __init__(
        self,
        log: Log,
        reader: Reader,
        clock: Clock,
        origin: Origin,
        *,
        max_append_bytes: int,
        max_known_journals: int,
        page_size: int,
    ) -> None:
        self._log = log
        self._reader = reader
        self._clock = clock
        self._origin = origin
        self._max_append_bytes = max_append_bytes
        self._max_known_journals = max_known_journals
        self._page_size = page_size
        self._name = secrets.token_urlsafe(9)
        self._numbers = itertools.count()
        self._known: OrderedDict[str, KnownJournal] = OrderedDict()
        self._turns = KeyedLock()
        self._pointers = PointerCache(reader.pointer, clock)

    async def produce(
        self, ref: Ref, action: Action, value: bytes | None = None, headers: Headers = (), append_id: str = ""
    ) -> tuple[Ack, Record]:
        """One record into the log; a time-out is an unknown outcome, never a failure."""
        new = NewRecord(ref.partition, self._clock.now_ms(), ref.key, encode_action(action), value, headers)
        try:
            ack = await self._log.append(ref.log_topic, new)
        except Unacknowledged as error:
            raise OutcomeUnknown(str(ref), append_id, str(error)) from error
        return ack, Record(new.partition, ack.offset, new.timestamp, new.key, new.action, new.value, new.headers)

    def append(self, ref: Ref, draft: Draft, *, verdict: bool, append_id: str | None) -> Coroutine[Any, Any, Appended]:
        """Append and wait for the verdict."""
        check_draft(draft)
        if draft.anywhere:
            return self._append_anywhere(ref, draft, append_id, verdict)
        if draft.expected is None and not verdict:
            return self._append_unseen(ref, draft)
        return self._append_once(ref, draft, append_id, verdict)

    async def _append_unseen(self, ref: Ref, draft: Draft) -> Appended:
        """Numbered events without a verdict: what the journal holds makes no difference."""
        before = self._pointers.seen(ref.topic.name, ref.partition)
        if before is None:
            before = await self._pointers.at_least(ref.topic.name, ref.partition)
        append_id = self._new_append_id(draft.events[0].seq_nr or 1)
        action, value, encoded, headers = self._compose(draft, 0, None, append_id)
        ack, _ = await self.produce(ref, action, encoded, headers, append_id)
        _check_growth(ref, ack, before)
        return Appended(ack.offset, _span(value))

    async def _append_anywhere(self, ref: Ref, draft: Draft, append_id: str | None, verdict: bool) -> Appended:
        """Wherever the journal ends. Such appends take turns, rather than lose to one another."""
        await self._turns.take(ref.text)
        try:
            for _ in range(MAX_RETRIES):
                try:
                    return await self._append_once(ref, draft, append_id, verdict)
                except Conflict:
                    append_id = None
            return await self._append_once(ref, draft, append_id, verdict)
        finally:
            self._turns.end(ref.text)

    async def _append_once(self, ref: Ref, draft: Draft, append_id: str | None, verdict: bool) -> Appended:
        known = self._known.get(ref.text)
        if known is not None and known.upto + 1 < self._log.floor(ref.log_topic, ref.partition):
            known = None  # looking at the journal again costs less than reading the log from there
        fresh = known is None
        if known is None:
            known = await self._load(ref)
        if append_id is not None:
            found = await self._find(ref, append_id)
            if found is not None:
                return found
            # Loaded after the search: what was deleted before it, and so was not found, is then known.
            known = await self._load(ref)
            if known.head is not None and known.head.delete_to >= first_of(append_id):
                raise OutcomeUnknown(str(ref), append_id, "what stood at its place was deleted since")
        objection = self._objection(ref, draft, known)
        if objection is not None and not fresh:
            known = await self._load(ref)
            objection = self._objection(ref, draft, known)
        if objection is not None:
            raise objection
        given = draft.events[0].seq_nr
        first = seq_nr_of(known.head) + 1 if given is None else given
        if append_id is None or first_of(append_id) != first:
            append_id = self._new_append_id(first)
        expected = None if draft.expected is None and given is not None else _expectation(known)
        action, value, encoded, headers = self._compose(draft, first, expected, append_id)
        ack, record = await self.produce(ref, action, encoded, headers, append_id)
        _check_growth(ref, ack, known.upto)
        sent = Sent(ack, Entry(record, action, value), _span(value))
        if not verdict:
            self.forget(ref)
            return Appended(ack.offset, sent.range)
        if self._surely_won(ref, known, sent):
            return Appended(ack.offset, sent.range)
        try:
            return await self._settle(ref, known, sent, append_id)
        except StorageFailed as error:
            # It is in the log; what became of it cannot be read now.
            self.forget(ref)
            raise OutcomeUnknown(str(ref), append_id, f"it cannot be read back: {error}") from error

    def _surely_won(self, ref: Ref, known: KnownJournal, sent: Sent) -> bool:
        """The verdict on nearly all appends: nothing of the journal lies between what was known and the own record."""
        previous = sent.ack.previous
        if previous is None or previous > known.upto:
            return False
        head, lost = judge(known.head, sent.entry, ref.topic)
        if lost is not None or head is None or head.halted_at is not None:
            return False
        self._remember(ref, KnownJournal(head, sent.ack.offset))
        return True

    async def _settle(self, ref: Ref, known: KnownJournal, sent: Sent, append_id: str) -> Appended:
        """What became of an append that is in the log."""
        try:
            lost = await self._verdict(ref, known, sent, append_id)
        except Trimmed:
            return await self._look_up(ref, known, sent, append_id)
        if lost is None:
            return Appended(sent.ack.offset, sent.range)
        winner = await self._find(ref, append_id)
        if winner is not None:
            return winner
        first = sent.range.first
        raise Conflict(str(ref), first - 1 if lost.expected is None else lost.expected, lost.actual)

    async def _load(self, ref: Ref) -> KnownJournal:
        view = await self._reader.view(ref)
        return self._remember(ref, KnownJournal(view.state, view.end - 1))

    def _new_append_id(self, first: int) -> str:
        """A fresh id; it says where the append would be found."""
        return f"{first}.{self._name}-{next(self._numbers):x}"

    def forget(self, ref: Ref) -> None:
        """What was known is surely outdated: the next append looks again, rather than lose first."""
        self._known.pop(ref.text, None)

    def _remember(self, ref: Ref, known: KnownJournal) -> KnownJournal:
        self._known[ref.text] = known
        self._known.move_to_end(ref.text)
        if len(self._known) > self._max_known_journals:
            self._known.popitem(last=False)
        return known

    def _objection(self, ref: Ref, draft: Draft, known: KnownJournal) -> EverlogError | None:
        """Why an append on this state would be in vain."""
        head = known.head
        if head is not None and head.halted_at is not None:
            return JournalHalted(str(ref), ref.partition, head.halted_at)
        seq_nr = seq_nr_of(head)
        if draft.expected is not None and draft.expected != seq_nr:
            return Conflict(str(ref), draft.expected, seq_nr)
        first = draft.events[0].seq_nr
        if first is not None and first <= seq_nr:
            return Conflict(str(ref), first - 1, seq_nr)
        if first is None and seq_nr + len(draft.events) > MAX_SEQ_NR:
            return InvalidRange(f"{ref}: no seqNr is left after {seq_nr}")
        return None

    def _compose(
        self, draft: Draft, first: int, expected: Expected | None, append_id: str
    ) -> tuple[Append, AppendValue, bytes, Headers]:
        """An append as it goes into the log: what it says, and the bytes of its value and headers."""
        encoded = []
        for event in draft.events:
            kind, data = encode_payload(event.payload)
            encoded.append(EventData(event.seq_nr or first, tuple(sorted(event.tags)), kind, data))
            first += 1
        events = tuple(encoded)
        metadata = NO_METADATA
        if draft.expire_after is not None or draft.metadata is not None:
            after = None if draft.expire_after is None else ExpireAfter.of(draft.expire_after)
            metadata = PayloadMetadata(after, draft.metadata)
        payload_type, value = encode_value(events, metadata)
        action = Append(
            range=ActionRange(events[0].seq_nr, events[-1].seq_nr),
            origin=self._origin.host,
            version=self._origin.version,
            payload_type=payload_type,
            metadata={} if draft.header_metadata is None else {"data": draft.header_metadata},
            expected=expected,
            id=append_id,
        )
        headers: Headers = ()
        size = len(value)
        if draft.headers:
            headers = tuple((name, text.encode()) for name, text in draft.headers.items())
            size += sum(len(name) + len(text) for name, text in headers)
        if size > self._max_append_bytes:
            raise AppendTooLarge(size, self._max_append_bytes)
        return action, AppendValue(events, metadata), value, headers

    async def _verdict(self, ref: Ref, known: KnownJournal, sent: Sent, append_id: str) -> Rejected | None:
        """Fold up to the own record onto what was known before; None means that it won."""
        offset = sent.ack.offset
        change = await self._fold_up_to(ref, known, sent)
        head = change.head
        self._remember(ref, KnownJournal(head, offset))
        if head is not None and head.halted_at is not None:
            raise JournalHalted(str(ref), ref.partition, head.halted_at, append_id)
        return next((lost for lost in change.rejected if lost.offset == offset), None)

    async def _fold_up_to(self, ref: Ref, known: KnownJournal, sent: Sent) -> Change:
        """The fold of what came after `known`, up to the record that was sent."""
        head, after, offset, previous = known.head, known.upto, sent.ack.offset, sent.ack.previous
        if previous is not None and previous <= after:
            return fold(head, [sent.entry], ref.topic, rowless=(offset,))
        # A journal that was not halted before has nothing in quarantine but what these pages set aside.
        waiting: list[Quarantined] = []
        while True:
            records = await self._log.tail(
                ref.log_topic, ref.partition, ref.key, after=after, before=offset + 1, limit=self._page_size
            )
            entries = [sent.entry if record.offset == offset else decode(record) for record in records]
            rowless = {record.offset for record in records}  # only heads are of interest here
            change = fold(head, entries, ref.topic, quarantined=waiting, rowless=rowless)
            if len(records) < self._page_size or records[-1].offset == offset:
                return change
            head, waiting, after = change.head, change.waiting, records[-1].offset

    async def _look_up(self, ref: Ref, before: KnownJournal, sent: Sent, append_id: str) -> Appended:
        """The verdict on an append if the log was trimmed between what was known and its record.

        An append that won is in the journal. One that is not there has lost, if this is still the same life and
        nothing was deleted at its place; otherwise the outcome is unknown.
        """
        self.forget(ref)
        try:
            found = await self._find(ref, append_id)
        except JournalHalted as halted:
            raise JournalHalted(halted.key, halted.partition, halted.offset, append_id) from None
        if found is not None:
            return found
        head = (await self._load(ref)).head
        if head is not None and head.halted_at is not None and head.halted_at < sent.ack.offset:
            raise JournalHalted(str(ref), ref.partition, head.halted_at)
        first = sent.range.first
        life = _expectation(before).record_id
        if life is not None and head is not None and head.record_id == life and head.delete_to < first:
            raise Conflict(str(ref), first - 1, head.seq_nr)
        raise OutcomeUnknown(str(ref), append_id, "the log was trimmed and the journal changed meanwhile")

    async def _find(self, ref: Ref, append_id: str) -> Appended | None:
        """The append with this id, if it is in the journal; its first events may be deleted already."""
        first, last, offset = first_of(append_id), 0, -1
        async for page in self._reader.read(ref, Span(first=first)):
            for event in page:
                if event.append_id != append_id:
                    return Appended(offset, SeqRange(first, last)) if last else None
                last, offset = event.seq_nr, event.offset
        return Appended(offset, SeqRange(first, last)) if last else None


def _span(value: AppendValue) -> SeqRange:
    return SeqRange.trusted(value.events[0].seq_nr, value.events[-1].seq_nr)


def _check_growth(ref: Ref, ack: Ack, before: int) -> None:
    """A record lies above all that was there before it, or the log is not what it was: no read will see it."""
    if ack.offset <= before:
        raise LogTruncated(
            ref.topic.name,
            ref.partition,
            f"an append went to offset {ack.offset}, but {before} was there already: the log was replaced by an "
            f"older or emptier one, and what is appended to it does not count; {rescue(ref.name or ref.topic.name)}",
        )


def _expectation(known: KnownJournal) -> Expected:
    head = known.head
    if head is None or head.purged:
        return Expected(0)
    return Expected(head.seq_nr, head.record_id)


def first_of(append_id: str) -> int:
    number, dot, rest = append_id.partition(".")
    if not number.isdecimal() or not dot or not rest:
        raise InvalidInput(f"{append_id!r} is not an append id: take it from OutcomeUnknown.append_id")
    return int(number)
