"""The reader: what the store has, and the un-replicated tail folded on top.

The order of the steps is the protocol: end of the log, pointer2, tail, head, rows, head again. Because the tail
is read before the head, and the pointer before both, nothing can fall between them.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import msgspec

from everlog.core.actions import Resume
from everlog.core.change import Change, Quarantined
from everlog.core.entry import Entry, decode
from everlog.core.events import EventRecord
from everlog.core.fold import fold
from everlog.core.head import Head, Topic, exists
from everlog.core.values import MAX_SEQ_NR, Position, check_id, partition_of, shown
from everlog.errors import IntegrityViolated, InvalidInput, InvalidPosition, JournalHalted, LogTruncated, Overtaken
from everlog.errors.storage import rescue
from everlog.log.port import Bounds, Log, LogTopic, Trimmed
from everlog.store.port import RowCursor, Store

log = logging.getLogger("everlog.journal")

MAX_TRIES = 10
AppendOutcome = Literal["won", "lost", "waiting"]


class Ref(msgspec.Struct, frozen=True, gc=False):
    """One journal, and where it lives. `text` names it for people, with the topic's short name."""

    log_topic: LogTopic
    topic: Topic
    id: str
    key: bytes
    name: str
    partition: int
    text: str

    @classmethod
    def of(cls, log_topic: LogTopic, topic: Topic, journal_id: str, key: bytes, name: str = "") -> Ref:
        partition = partition_of(key, topic.partitions)
        return cls(log_topic, topic, journal_id, key, name, partition, f"{name or topic.name}:{journal_id}")

    def sibling(self, journal_id: str) -> Ref:
        """Another journal of the same topic."""
        return Ref.of(self.log_topic, self.topic, journal_id, check_id(journal_id), self.name)

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class TailPage:
    """Where a page of the tail starts, and what was known there; enough to fold it again later."""

    after: int
    head: Head | None
    waiting: list[Quarantined]
    change: Change | None = None


@dataclass(slots=True)
class JournalView:
    """A journal at one moment: its stored head, the tail, and the state that they give together.

    `waiting` is what the tail leaves in quarantine; it includes the stored records only if `waited` is set.
    """

    ref: Ref
    end: int
    pointer: int
    stored: Head | None
    state: Head | None
    pages: list[TailPage] = field(default_factory=list)
    purged_at: int | None = None
    waited: bool = False
    waiting: list[Quarantined] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pin:
    """A journal as it was at one moment: its life, what was deleted of it, and where it ended.

    What a caller puts together from several reads belongs together only if each of them still finds this.

    >>> Pin.parse(Pin("0f61d3a5-0d9c-4f7b-9d5b-5a8c4a0b7a11", 2, 5).text).delete_to
    2
    """

    life: str | None
    delete_to: int
    seq_nr: int
    # Known where the journal was pinned; not part of what a link to a next page says.
    halted_at: int | None = field(default=None, compare=False)

    @classmethod
    def of(cls, head: Head | None) -> Pin:
        """The journal with this head; one that does not exist has no events to read."""
        if head is None or not exists(head):
            return cls(None, 0, 0)
        return cls(head.record_id, head.delete_to, head.seq_nr, head.halted_at)

    @property
    def text(self) -> str:
        return f"{self.seq_nr}-{self.delete_to}-{self.life or ''}"

    @classmethod
    def parse(cls, text: str) -> Pin:
        seq_nr, _, rest = text.partition("-")
        delete_to, dash, life = rest.partition("-")
        if not dash or len(text) > 100 or not seq_nr.isdecimal() or not delete_to.isdecimal():
            raise InvalidPosition(f"a pin is what a link to a next page says, not {text!r}")
        return cls(life or None, int(delete_to), int(seq_nr))

    def within(self, first: int, last: int) -> tuple[int, int]:
        """The part of a range of seqNrs where the journal had events then."""
        return max(first, self.delete_to + 1), min(last, self.seq_nr)

    def holds(self, head: Head | None, first: int) -> bool:
        """Whether all events of that moment from `first` on are still in the journal."""
        if head is None or not exists(head):
            return False
        return head.record_id == self.life and head.delete_to < first


def check_pin(pin: Pin) -> Pin:
    """A pin and nothing else."""
    if not isinstance(pin, Pin):
        raise InvalidInput(f"a pin is what `pinned` gives, not {shown(pin)}")
    return pin


class _Moved(Exception):
    """What was read does not fit together any more; start over."""


@dataclass(frozen=True, slots=True)
class Span:
    """Which events of a journal are wanted."""

    first: int = 1
    last: int = MAX_SEQ_NR
    limit: int | None = None
    reverse: bool = False

    def within(self, pin: Pin) -> Span:
        """The part of this span where the journal had events at that moment."""
        first, last = pin.within(self.first, self.last)
        return replace(self, first=first, last=last)

    def behind(self, events: Sequence[EventRecord]) -> Span:
        """What is still wanted after these events."""
        limit = None if self.limit is None else self.limit - len(events)
        if self.reverse:
            return replace(self, last=events[-1].seq_nr - 1, limit=limit)
        return replace(self, first=events[-1].seq_nr + 1, limit=limit)


class Reader:
    """Reads journals. Holds no state: everything comes from the log and the store, every time."""

    def __init__(
        self,
        log: Log,
        store: Store,
        *,
        page_size: int = 1000,
        unique_seq_nrs: bool = True,
        correlate: bool = True,
    ) -> None:
        self._log = log
        self._store = store
        self._page_size = page_size
        self._unique = unique_seq_nrs
        self._correlate = correlate

    async def view(self, ref: Ref, after: Position | None = None) -> JournalView:
        """The journal as it is now: everything acknowledged before this call is in it."""
        for _ in range(MAX_TRIES):
            try:
                return await self._view(ref, after)
            except _Moved:
                continue
        raise Overtaken(f"{ref}: the log was trimmed under the read {MAX_TRIES} times: read again")

    async def pointer(self, topic: str, partition: int) -> int:
        """Up to where the partition is replicated."""
        return await self._store.pointer(topic, partition)

    async def recent_keys(self, log_topic: LogTopic, partition: int, after: Position | None = None) -> Sequence[bytes]:
        """The keys of all records that are not replicated yet, whatever these say."""
        for _ in range(MAX_TRIES):
            end = await self._end(log_topic, partition, after)
            pointer = await self._store.pointer(log_topic.name, partition)
            if end <= pointer + 1:
                return ()
            try:
                return await self._log.tail_keys(log_topic, partition, after=pointer, before=end)
            except Trimmed as trimmed:
                await self._check_trimmed(log_topic.name, partition, pointer, Bounds(trimmed.start, end))
        raise Overtaken(f"{log_topic.name}: the log was trimmed under the read {MAX_TRIES} times: read again")

    async def _end(self, log_topic: LogTopic, partition: int, after: Position | None) -> int:
        """Where a partition ends; not before a position that the caller knows of."""
        reach = after.offset + 1 if after is not None and after.partition == partition else 0
        end = await self._log.end(log_topic, partition, reach=reach)
        if end < reach:
            raise InvalidPosition(f"{after} is beyond the end of the log ({end}): is it from another log?")
        return end

    async def _view(self, ref: Ref, after: Position | None) -> JournalView:
        end = await self._end(ref.log_topic, ref.partition, after)
        pointer = await self._store.pointer(ref.topic.name, ref.partition)
        if pointer >= end:
            # The pipeline may just have moved on; an end that stays behind the pointer is a lost log.
            end = await self._log.end(ref.log_topic, ref.partition, reach=pointer + 1)
            check_truncation(ref.topic.name, ref.partition, Bounds(0, end), pointer)
        entries = await self._unreplicated(ref, pointer, end) if end > pointer + 1 else []
        stored = await self._store.head(ref.topic.name, ref.id)
        view = JournalView(ref, end, pointer, stored, stored)
        if entries:
            await self._fold_tail(view, entries)
        return view

    async def _unreplicated(self, ref: Ref, pointer: int, end: int) -> list[Entry]:
        """The first page of the key's tail. What is gone from the log must be replicated, or else it is lost."""
        try:
            return await self._page(ref, pointer, end)
        except Trimmed as trimmed:
            await self._check_trimmed(ref.topic.name, ref.partition, pointer, Bounds(trimmed.start, end))
            raise _Moved from None

    async def _check_trimmed(self, topic: str, partition: int, pointer: int, bounds: Bounds) -> None:
        """A pointer that has moved on meanwhile proves nothing: then the caller looks again."""
        if await self._store.pointer(topic, partition) == pointer:
            check_truncation(topic, partition, bounds, pointer)

    async def _tail(self, ref: Ref, after: int, end: int) -> list[Entry]:
        """A later page; if the log was trimmed meanwhile, what we have does not fit together."""
        try:
            return await self._page(ref, after, end)
        except Trimmed:
            raise _Moved from None

    async def _page(self, ref: Ref, after: int, end: int) -> list[Entry]:
        records = await self._log.tail(
            ref.log_topic, ref.partition, ref.key, after=after, before=end, limit=self._page_size
        )
        return [decode(record) for record in records]

    async def _fold_tail(self, view: JournalView, entries: list[Entry]) -> None:
        """Fold page after page; keep of each only where it starts, and the rows if there is but one."""
        ref, waiting = view.ref, await self._waiting(view, entries)
        after = view.pointer
        while entries:
            page = TailPage(after, view.state, waiting)
            change = fold(view.state, entries, ref.topic, quarantined=waiting)
            view.pages.append(page)
            view.state, view.waiting = change.head, change.waiting
            waiting = change.waiting
            view.purged_at = view.purged_at if change.purged_at is None else change.purged_at
            after = entries[-1].record.offset
            if len(entries) < self._page_size:
                if len(view.pages) == 1:
                    page.change = change
                break
            entries = await self._tail(ref, after, view.end)

    async def _waiting(self, view: JournalView, entries: list[Entry]) -> list[Quarantined]:
        """What waits in quarantine, if the fold may need it: only a Resume takes it up."""
        if view.stored is None or view.stored.halted_at is None:
            return []
        if len(entries) < self._page_size and not any(isinstance(entry.action, Resume) for entry in entries):
            return []
        view.waited = True
        waiting = await self._store.waiting(view.ref.topic.name, view.ref.id)
        await self._recheck(view)
        return waiting

    async def waiting(self, ref: Ref) -> list[Quarantined]:
        """What waits in quarantine as of now, oldest first."""
        view = await self.view(ref)
        if view.state is None or view.state.halted_at is None:
            return []
        found = {waiting.record.offset: waiting for waiting in view.waiting}
        if not view.waited and view.purged_at is None:
            stored = await self._store.waiting(ref.topic.name, ref.id)
            found |= {waiting.record.offset: waiting for waiting in stored}
        return [found[offset] for offset in sorted(found) if offset >= view.state.halted_at]

    async def outcome(self, ref: Ref, offset: int) -> AppendOutcome:
        """What became of the append at this offset: by the tail or, once it is replicated, by the store.

        The store knows it as long as the log has the record: a caller checks that afterwards.
        """
        for _ in range(MAX_TRIES):
            view = await self.view(ref)
            if offset <= view.pointer:
                kinds = {found.kind for found in await self._store.verdicts(ref.topic.name, ref.partition, [offset])}
                return "lost" if "rejected" in kinds else "waiting" if "waiting" in kinds else "won"
            try:
                for page in view.pages:
                    if any(lost.offset == offset for lost in (await self._change(view, page)).rejected):
                        return "lost"
            except _Moved:
                continue
            return "waiting" if any(found.record.offset == offset for found in view.waiting) else "won"
        raise Overtaken(f"{ref}: the log was trimmed under the read {MAX_TRIES} times: read again")

    async def _change(self, view: JournalView, page: TailPage) -> Change:
        """What a page of the tail changes; a long tail is folded again rather than kept."""
        if page.change is not None:
            return page.change
        entries = await self._tail(view.ref, page.after, view.end)
        return fold(page.head, entries, view.ref.topic, quarantined=page.waiting)

    async def _recheck(self, view: JournalView) -> None:
        """The store must still hold the same life, or rows may be missing from what was read."""
        now = await self._store.head(view.ref.topic.name, view.ref.id)
        if _identity(now, view.waited) != _identity(view.stored, view.waited):
            raise _Moved

    async def read(
        self, ref: Ref, span: Span, after: Position | None = None, pin: Pin | None = None
    ) -> AsyncIterator[list[EventRecord]]:
        """Pages of the events of one moment: that of `pin`, or of the first page.

        Where the tables change under a read, it goes on behind what it yielded, as long as the rest of that moment's
        events is still there; once some are deleted it is overtaken, and says so.
        """
        tries, rest, began = 0, span, None
        while tries < MAX_TRIES:
            tries += 1
            try:
                view = await self._view(ref, after)
                wanted = rest if pin is None else rest.within(pin)
                if pin is not None and wanted.first <= wanted.last and not pin.holds(view.state, wanted.first):
                    raise Overtaken(f"{ref} was deleted from or purged while it was being read: read again")
                async for page in self._events(view, wanted):
                    events = page if rest.limit is None else page[: rest.limit]
                    began = began or view
                    pin, tries, rest = pin or Pin.of(view.state), 0, rest.behind(events)
                    yield events
                    if rest.limit == 0:
                        return
            except _Moved:
                continue
            _raise_if_halted(began or view, span)
            return
        raise Overtaken(f"{ref} changed under the read {MAX_TRIES} times: read again")

    async def _events(self, view: JournalView, span: Span) -> AsyncIterator[list[EventRecord]]:
        """Stored rows, then the tail; the other way round in reverse."""
        if not exists(view.state):
            return
        parts = [self._stored_events(view, span), self._tail_events(view, span)]
        previous: int | None = None
        for part in reversed(parts) if span.reverse else parts:
            async for page in part:
                previous = self._check_order(view.ref, page, previous, reverse=span.reverse)
                yield page

    async def _stored_events(self, view: JournalView, span: Span) -> AsyncIterator[list[EventRecord]]:
        """Rows of the stored life, up to the stored seqNr: later ones come from the tail, older ones are deleted."""
        stored, state, ref = view.stored, view.state, view.ref
        if stored is None or stored.purged or view.purged_at is not None:
            return
        assert state is not None
        first, last = max(span.first, state.delete_to + 1), min(span.last, stored.seq_nr)
        cursor: RowCursor | None = None
        # A small limit needs no whole page.
        limit = self._page_size if span.limit is None else min(self._page_size, span.limit)
        while first <= last:
            rows = await self._store.rows(
                ref.topic.name,
                ref.id,
                segment_size=stored.segment_size,
                first=first,
                last=last,
                reverse=span.reverse,
                limit=limit,
                after=cursor,
                life=stored.record_id,
            )
            await self._recheck(view)
            kept = self._correlated(ref, rows, stored)
            if kept:
                yield kept
            if len(rows) < limit:
                return
            cursor = RowCursor(rows[-1].seq_nr, rows[-1].timestamp)

    async def _tail_events(self, view: JournalView, span: Span) -> AsyncIterator[list[EventRecord]]:
        """Events of the tail that survive it, page by page."""
        assert view.state is not None
        first, last = max(span.first, view.state.delete_to + 1), span.last
        oldest = -1 if view.purged_at is None else view.purged_at
        for page in reversed(view.pages) if span.reverse else view.pages:
            change = await self._change(view, page)
            rows = [row for row in change.rows if first <= row.seq_nr <= last and row.offset > oldest]
            if span.reverse:
                rows.reverse()
            for start in range(0, len(rows), self._page_size):
                yield rows[start : start + self._page_size]

    def _correlated(self, ref: Ref, rows: list[EventRecord], stored: Head) -> list[EventRecord]:
        """Only rows of this life; rows of another one are left-overs of a purge."""
        strays = [row for row in rows if row.record_id != stored.record_id]
        if not strays:
            return rows
        if not self._correlate:
            log.warning("%s: kept %d rows of another life", ref, len(strays))
            return rows
        if any(row.offset > stored.offset and row.partition == stored.partition for row in strays):
            # Rows are written before their head: these are of the next life, and one with the same seqNr and
            # time takes the place of a row of this one.
            raise _Moved
        log.error("%s: dropped %d rows of another life", ref, len(strays))
        return [row for row in rows if row.record_id == stored.record_id]

    def _check_order(self, ref: Ref, page: list[EventRecord], previous: int | None, *, reverse: bool) -> int | None:
        """Each seqNr once, in order: the pair of the check in the fold."""
        numbers = [row.seq_nr for row in page] if previous is None else [previous, *[row.seq_nr for row in page]]
        if self._unique and not all(map(operator.gt if reverse else operator.lt, numbers, numbers[1:])):
            pairs = pairwise(numbers)
            before, found = next((a, b) for a, b in pairs if (b >= a if reverse else b <= a))
            raise IntegrityViolated(
                f"{ref}: seqNr {found} is stored twice or out of order (after {before}): another writer filled these "
                "tables; set [journal] unique_seq_nrs = false to read both"
            )
        return numbers[-1] if numbers else previous


def check_truncation(topic: str, partition: int, bounds: Bounds, pointer: int) -> None:
    """Everything above the pointer must still be in the log, and the log must reach the pointer."""
    if bounds.start > pointer + 1:
        raise LogTruncated(
            topic,
            partition,
            f"the log starts at {bounds.start}, but only {pointer} and below is replicated: "
            "'everlog replicate --accept-loss' records the gap and goes on",
        )
    if bounds.end < pointer + 1:
        raise LogTruncated(
            topic,
            partition,
            f"the log ends at {bounds.end}, but {pointer} is already replicated: it was replaced by an older "
            f"or emptier one; {rescue()}",
        )


def _identity(head: Head | None, waited: bool) -> tuple[object, ...]:
    """What must not change under a read."""
    if head is None:
        return (None, True, 0, None)
    return (head.record_id, head.purged, head.delete_to, head.halted_at if waited else None)


def _raise_if_halted(view: JournalView, span: Span) -> None:
    state = view.state
    if state is not None and state.halted_at is not None and (state.purged or span.last > state.seq_nr):
        raise JournalHalted(str(view.ref), view.ref.partition, state.halted_at)
