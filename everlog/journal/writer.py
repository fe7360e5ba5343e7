"""The writer: one append is one log record, and an append returns after its verdict.

The verdict is the fold's: the writer folds the key's records up to its own onto a state that it knew *before*
producing. A head read after producing could already contain later records, so it is never used.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from everlog.core.actions import Action, ActionRange, Append, Expected, encode_action, wrap_header_data
from everlog.core.arguments import check_append_id, check_events, check_expiry, check_headers
from everlog.core.change import Change, Quarantined, Rejected
from everlog.core.codec import NO_METADATA, AppendValue, EventData, PayloadMetadata, encode_value
from everlog.core.duration import ExpireAfter
from everlog.core.entry import Entry, decode
from everlog.core.events import Event, EventRecord, decode_payload, encode_payload
from everlog.core.fold import fold, judge
from everlog.core.head import Head, life_of, seq_nr_of
from everlog.core.json_text import encode_json
from everlog.core.record import Headers, NewRecord, Record
from everlog.core.values import MAX_SEQ_NR, SeqRange, Version, plain_text, shown
from everlog.errors import (
    AppendIdReused,
    AppendTooLarge,
    Conflict,
    EverlogError,
    InvalidInput,
    InvalidRange,
    JournalHalted,
    LogTruncated,
    OutcomeDeleted,
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
MAX_LIFE_RETRIES = 3
# A writer looks into the store this often, and waits for the answer at most this long.
LOOK_S = 10.0
ANSWER_S = 1.0
_KEY = re.compile(r"[A-Za-z0-9._:~-]{1,200}")


class Draft(msgspec.Struct, frozen=True):
    """What the user wants appended. `expected` may be a `Version`: then it holds in that life only."""

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
    def first(self) -> int | None:
        """Where the first event goes; None if that is wherever the journal ends."""
        given = self.events[0].seq_nr
        return given if given is not None or self.expected is None else self.expected + 1

    @property
    def anywhere(self) -> bool:
        """Whether the events may go wherever the journal ends."""
        return self.expected is None and not self.numbered


def check_draft(draft: Draft) -> None:
    """What can be wrong with an append before it is encoded. JSON is checked when it is, before anything is sent."""
    check_events(draft.events)
    if draft.expected is not None:
        _check_expected(draft.expected, draft.events[0].seq_nr)
    if draft.expire_after is not None:
        check_expiry(draft.expire_after)
    if draft.headers is not None:
        check_headers(draft.headers)


def _check_expected(expected: int, first: int | None) -> None:
    """A seqNr that the journal can be at, below the seqNrs of the events."""
    if isinstance(expected, bool) or not isinstance(expected, int) or not 0 <= expected <= MAX_SEQ_NR:
        raise InvalidInput(f"expected is the seqNr that the journal has now, 0 if it is absent; not {shown(expected)}")
    if first is not None and first <= expected:
        raise InvalidRange(f"the first seqNr {first} must be above expected={expected}")


class NewAppendId(str):
    """An append id that no append had before: nothing needs to be looked up under it."""

    __slots__ = ()


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
    """Where an append went, and into which life; None if it did not wait for a verdict."""

    offset: int
    range: SeqRange
    life: str | None = None


class AcknowledgedAppend(msgspec.Struct, frozen=True, gc=False):
    """An append that the log has acknowledged, what it says, and the life that it expects or begins, if it is known."""

    ack: Ack
    entry: Entry
    range: SeqRange
    life: str | None


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
        if draft.expected is None and not verdict and (append_id is None or isinstance(append_id, NewAppendId)):
            return self._append_unseen(ref, draft, append_id)
        # A plain number means the life that the journal is in: one that began meanwhile is no reason to lose.
        in_present_life = draft.expected is not None and not isinstance(draft.expected, Version)
        return self._append_once(ref, draft, append_id, verdict, MAX_LIFE_RETRIES if in_present_life else 0)

    def rehearse(self, draft: Draft) -> None:
        """All that an append checks, for callers that would make a topic for it."""
        check_draft(draft)
        self._compose(draft, 1, None, "")

    async def _append_unseen(self, ref: Ref, draft: Draft, append_id: str | None) -> Appended:
        """Numbered events without a verdict: what the journal holds makes no difference."""
        before = self._pointers.seen(ref.topic.name, ref.partition)
        if before is None:
            before = await self._pointers.at_least(ref.topic.name, ref.partition)
        append_id = self._new_append_id(draft.events[0].seq_nr or 1) if append_id is None else str(append_id)
        action, value, encoded, headers = self._compose(draft, 0, None, append_id)
        ack, _ = await self.produce(ref, action, encoded, headers, append_id)
        _check_growth(ref, ack, before)
        return Appended(ack.offset, _span(value))

    async def _append_anywhere(self, ref: Ref, draft: Draft, append_id: str | None, verdict: bool) -> Appended:
        """Wherever the journal ends. Such appends take turns, rather than lose to one another."""
        await self._turns.acquire(ref.text)
        try:
            for _ in range(MAX_RETRIES):
                try:
                    return await self._append_once(ref, draft, append_id, verdict)
                except Conflict:
                    append_id = None
            return await self._append_once(ref, draft, append_id, verdict)
        finally:
            self._turns.release(ref.text)

    async def _append_once(
        self, ref: Ref, draft: Draft, wanted_id: str | None, verdict: bool, life_retries: int = 0
    ) -> Appended:
        repeated = None if isinstance(wanted_id, NewAppendId) else wanted_id
        known = self._ground(ref, draft) if repeated is None else None
        if known is None:
            found = None if repeated is None else await self._find(ref, draft, repeated)
            if found is not None:
                return found
            known = await self._fresh_ground(ref, draft, repeated)
        given = draft.events[0].seq_nr
        first = seq_nr_of(known.head) + 1 if given is None else given
        fits = wanted_id is not None and first_of(wanted_id) == first
        append_id = str(wanted_id) if fits else self._new_append_id(first)
        expected = None if draft.expected is None and given is not None else _expectation(known)
        action, value, encoded, headers = self._compose(draft, first, expected, append_id)
        ack, record = await self.produce(ref, action, encoded, headers, append_id)
        _check_growth(ref, ack, known.upto)
        life = None if expected is None else expected.record_id if expected.seq_nr else action.life
        sent = AcknowledgedAppend(ack, Entry(record, action, value), _span(value), life)
        if not verdict:
            self.forget(ref)
            return Appended(ack.offset, sent.range)
        won = self._sure_win(ref, known, sent)
        if won is not None:
            return won
        try:
            return await self._settle(ref, draft, known, sent, append_id)
        except StorageFailed as error:
            # It is in the log; what became of it cannot be read now.
            self.forget(ref)
            raise OutcomeUnknown(str(ref), append_id, f"it cannot be read back: {error}") from error
        except Conflict as conflict:
            if not life_retries or conflict.actual != draft.expected:
                raise
        self.forget(ref)
        return await self._append_once(ref, draft, wanted_id, verdict, life_retries - 1)

    def _ground(self, ref: Ref, draft: Draft) -> KnownJournal | None:
        """The state that an append builds on, if the last one that was seen will do."""
        known = self._known.get(ref.text)
        if known is None or known.upto + 1 < self._log.floor(ref.log_topic, ref.partition):
            return None  # looking at the journal again costs less than reading the log from there
        return known if self._objection(ref, draft, known) is None else None

    async def _fresh_ground(self, ref: Ref, draft: Draft, repeated: str | None) -> KnownJournal:
        """The journal as it is now, or why the append cannot succeed. `repeated`: its id, if it was sent before.

        A repeated one was not found: what was deleted before that search is known only from a later look.
        """
        known = await self._load(ref)
        if repeated is not None and _is_gone(known.head, draft.expected, first_of(repeated)):
            raise OutcomeDeleted(str(ref), repeated)
        objection = self._objection(ref, draft, known)
        if objection is not None:
            raise objection
        return known

    def _sure_win(self, ref: Ref, known: KnownJournal, sent: AcknowledgedAppend) -> Appended | None:
        """The verdict on nearly all appends: nothing of the journal lies between the known and this append's record."""
        previous = sent.ack.previous
        if previous is None or previous > known.upto:
            return None
        head, lost = judge(known.head, sent.entry, ref.topic)
        if lost is not None or head is None or head.halted_at is not None:
            return None
        self._remember(ref, KnownJournal(head, sent.ack.offset))
        return Appended(sent.ack.offset, sent.range, head.record_id)

    async def _settle(
        self, ref: Ref, draft: Draft, known: KnownJournal, sent: AcknowledgedAppend, append_id: str
    ) -> Appended:
        """What became of an append that is in the log."""
        try:
            lost, head = await self._verdict(ref, known, sent, append_id)
        except Trimmed:
            return await self._look_up(ref, draft, sent, append_id)
        if lost is None:
            return Appended(sent.ack.offset, sent.range, life_of(head))
        winner = await self._find(ref, draft, append_id)
        if winner is not None:
            return winner
        raise _conflict(ref, sent, lost.actual, life_of(head))

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
        """Why an append on this state cannot succeed."""
        head = known.head
        if head is not None and head.halted_at is not None:
            return JournalHalted(str(ref), ref.partition, head.halted_at)
        seq_nr, expected = seq_nr_of(head), draft.expected
        if expected is not None:
            other_life = isinstance(expected, Version) and expected.life != life_of(head)
            if expected != seq_nr or other_life:
                return Conflict(str(ref), expected, seq_nr, life_of(head))
        first = draft.events[0].seq_nr
        if first is not None and first <= seq_nr:
            return Conflict(str(ref), first - 1, seq_nr, life_of(head))
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
            tags = tuple(sorted(event.tags)) if event.tags else ()
            encoded.append(EventData(event.seq_nr or first, tags, kind, data, event.event_type))
            first += 1
        events = tuple(encoded)
        metadata = NO_METADATA
        if draft.expire_after is not None or draft.metadata is not None:
            after = None if draft.expire_after is None else ExpireAfter.of(draft.expire_after)
            data = None if draft.metadata is None else encode_json("metadata", draft.metadata)
            metadata = PayloadMetadata(after, data)
        payload_type, value = encode_value(events, metadata)
        header = None if draft.header_metadata is None else encode_json("header metadata", draft.header_metadata)
        action = Append(
            range=ActionRange(events[0].seq_nr, events[-1].seq_nr),
            origin=self._origin.host,
            version=self._origin.version,
            payload_type=payload_type,
            metadata=wrap_header_data(header),
            expected=expected,
            id=append_id,
            # An append that names no life may begin one, and only a record of its own can give that life its name.
            life=self._clock.new_id() if expected is None or expected.record_id is None else None,
        )
        headers: Headers = ()
        size = len(value) + len(bytes(action.metadata))
        if draft.headers:
            headers = tuple((plain_text(name), text.encode()) for name, text in draft.headers.items())
            size += sum(len(name) + len(text) for name, text in headers)
        if size > self._max_append_bytes:
            raise AppendTooLarge(size, self._max_append_bytes)
        return action, AppendValue(events, metadata), value, headers

    async def _verdict(
        self, ref: Ref, known: KnownJournal, sent: AcknowledgedAppend, append_id: str
    ) -> tuple[Rejected | None, Head | None]:
        """Fold up to this append's record onto what was known: why it lost, or None if it won; and the head then."""
        offset = sent.ack.offset
        change = await self._fold_up_to(ref, known, sent)
        head = change.head
        self._remember(ref, KnownJournal(head, offset))
        if head is not None and head.halted_at is not None:
            raise JournalHalted(str(ref), ref.partition, head.halted_at, append_id)
        return next((lost for lost in change.rejected if lost.offset == offset), None), head

    async def _fold_up_to(self, ref: Ref, known: KnownJournal, sent: AcknowledgedAppend) -> Change:
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

    async def _look_up(self, ref: Ref, draft: Draft, sent: AcknowledgedAppend, append_id: str) -> Appended:
        """The verdict on an append if the log was trimmed between what was known and its record.

        An append that won is in the journal, unless it was deleted since. The store has a verdict on any other one, as
        long as its record is in the log.
        """
        self.forget(ref)
        offset = sent.ack.offset
        try:
            found = await self._find(ref, draft, append_id)
        except JournalHalted as halted:
            raise JournalHalted(halted.key, halted.partition, halted.offset, append_id) from None
        if found is not None:
            return found
        outcome = await self._reader.outcome(ref, offset)
        head = (await self._load(ref)).head
        if outcome == "lost":
            raise _conflict(ref, sent, seq_nr_of(head), life_of(head))
        if head is not None and head.halted_at is not None and head.halted_at < offset:
            raise JournalHalted(str(ref), ref.partition, head.halted_at)
        start = (await self._log.bounds(ref.log_topic, ref.partition)).start
        if outcome == "won" and start <= offset:
            return Appended(offset, sent.range, sent.life)
        raise OutcomeUnknown(str(ref), append_id, "the log was trimmed and the journal changed meanwhile")

    async def _find(self, ref: Ref, draft: Draft, append_id: str) -> Appended | None:
        """The append with this id, if it is in the journal; its first events may be deleted already."""
        first, found = first_of(append_id), list[EventRecord]()
        async for page in self._reader.read(ref, Span(first=first)):
            own = list(takewhile(lambda event: event.append_id == append_id, page))
            found += own
            if len(own) < len(page):
                break
        if not found:
            return None
        if not _says(draft, first, found):
            raise AppendIdReused(str(ref), append_id)
        return Appended(found[-1].offset, SeqRange(first, found[-1].seq_nr), found[-1].record_id)


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


def _conflict(ref: Ref, sent: AcknowledgedAppend, actual: int, life: str | None) -> Conflict:
    """The end of an append that lost to another state of the journal."""
    action = sent.entry.action
    expected = action.expected if isinstance(action, Append) else None
    return Conflict(str(ref), sent.range.first - 1 if expected is None else expected.seq_nr, actual, life)


def _is_gone(head: Head | None, expected: int | None, first: int) -> bool:
    """Whether an append that was sent earlier may have stood in this journal and have been deleted with its place."""
    if isinstance(expected, Version) and expected.life is not None and life_of(head) != expected.life:
        return True
    return head is not None and not head.purged and head.delete_to >= first


def _says(draft: Draft, first: int, stored: Sequence[EventRecord]) -> bool:
    """Whether these are the draft's events; the first of them may be gone."""
    wanted = []
    for number, event in enumerate(draft.events, first):
        kind, data = encode_payload(event.payload)
        wanted.append((event.seq_nr or number, kind, _comparable(kind, data), event.tags, event.event_type))
    found = [
        (event.seq_nr, event.payload_type, _comparable(event.payload_type, event.data), event.tags, event.event_type)
        for event in stored
    ]
    return len(found) <= len(wanted) and wanted[-len(found) :] == found


def _comparable(kind: str | None, data: str | bytes | None) -> object:
    """A payload to compare: JSON as text in one order, because to Python 1, 1.0 and True are equal."""
    payload = decode_payload(kind, data)
    return msgspec.json.encode(payload, order="sorted") if kind == "json" else payload


def append_id_of(key: str, draft: Draft) -> str:
    """The id under which an append with an idempotency key is stored once: it says where the append would stand."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidInput(
            f"an idempotency key is 1 to 200 letters, digits and '.', '_', ':', '~', '-'; not {shown(key)}"
        )
    if draft.first is None:
        raise InvalidInput("an idempotency key needs expected=, or events with a seq_nr: they say where to look")
    return f"{draft.first}.{key}"


def first_of(append_id: str) -> int:
    check_append_id(append_id)
    return int(append_id.partition(".")[0])
