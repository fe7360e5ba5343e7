"""Which appends of a log's partition counted: those that won, in the log's order, and where.

The invariant: every append that the fold accepts is named exactly once, at its own record or, if that had to wait in
quarantine, at the Resume that took it up; an append that lost is never named.

What is replicated is known from the store: the verdicts on records up to `pointer2`, and on one journal's records up
to its head, are complete, because they are written before the head, and the head before the pointer. What is above is
folded, as every read does. So the pointer is read first, then heads, then verdicts; and the log's start last, because
verdicts go when their records do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from everlog.core.actions import Append, Resume
from everlog.core.change import Quarantined
from everlog.core.entry import Entry, decode
from everlog.core.fold import fold
from everlog.core.head import Head, Topic
from everlog.core.record import Record
from everlog.core.values import partition_of
from everlog.errors import LogTruncated, Overtaken
from everlog.journal.reader import check_truncation
from everlog.log.port import Bounds, Log, LogTopic, Trimmed
from everlog.store.port import Store

MAX_TRIES = 10
HEADS_AT_ONCE = 64


class AcceptedAppends(NamedTuple):
    """The appends that count at `offset`: at most one, unless a Resume stands there."""

    offset: int
    timestamp: int
    appends: Sequence[Entry]


class _Moved(Exception):
    """What was read does not fit together any more; start over."""


@dataclass(slots=True)
class _JournalState:
    """A journal before the next page. Records up to `covered` have their verdicts in the store; later ones are folded.

    `waiting` is set only where the page may need it.
    """

    head: Head | None
    covered: int
    waiting: Sequence[Quarantined] = ()


class VerdictReader:
    """Judges one partition's records, page after page, in order.

    It keeps the heads of journals that it has folded, `max_known` at most. They are all that have records above
    `_floor` and up to the last page, so one that is not among them has none there.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        log_topic: LogTopic,
        topic: Topic,
        partition: int,
        *,
        start: int,
        page_size: int = 1000,
        max_known: int = 100_000,
    ) -> None:
        self._log = log
        self._store = store
        self._log_topic = log_topic
        self._topic = topic
        self._partition = partition
        self._page_size = page_size
        self._max_known = max_known
        self._floor = start - 1
        self._known: dict[str, _JournalState] = {}

    async def judge(self, records: Sequence[Record]) -> list[AcceptedAppends]:
        """What counts at each of the partition's next records; nothing may be left out between two calls."""
        entries = [decode(record) for record in records]
        for _ in range(MAX_TRIES):
            try:
                return await self._judge(entries)
            except _Moved:
                continue
        raise Overtaken(
            f"{self._topic.name}, partition {self._partition}: its tables changed under the read {MAX_TRIES} times: "
            "read again"
        )

    async def _judge(self, entries: Sequence[Entry]) -> list[AcceptedAppends]:
        last = entries[-1].record.offset
        pointer = await self._store.pointer(self._topic.name, self._partition)
        journals = self._by_journal(entries)
        if last <= pointer:
            verdicts = _Verdicts()
            await self._add_stored(verdicts, entries, dict.fromkeys(journals, pointer))
            self._known.clear()
            self._floor = last
        else:
            states = await self._find_states(journals, pointer, entries[0].record.offset)
            verdicts = self._fold(journals, states)
            await self._add_stored(verdicts, entries, {journal_id: one.covered for journal_id, one in states.items()})
            self._remember(states, last)
        placed = {id(entry) for group in journals.values() for entry in group}
        return [verdicts.accepted(entry, placed=id(entry) in placed) for entry in entries]

    def _by_journal(self, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
        """What belongs to a journal: records without a meaning, or in the wrong partition, do not."""
        journals: dict[str, list[Entry]] = {}
        for entry in entries:
            key = entry.record.key
            if key is None or (entry.action is None and entry.error is None):
                continue
            try:
                journal_id = key.decode()
            except UnicodeDecodeError:
                continue
            if partition_of(key, self._topic.partitions) == self._partition:
                journals.setdefault(journal_id, []).append(entry)
        return journals

    # What is replicated

    async def _add_stored(self, verdicts: _Verdicts, entries: Sequence[Entry], covered: dict[str, int]) -> None:
        """Verdicts from the store, of each journal up to where they are complete."""
        upto = max(covered.values(), default=-1)
        offsets = [entry.record.offset for entry in entries if entry.record.offset <= upto]
        if not offsets:
            return
        for found in await self._store.verdicts(self._topic.name, self._partition, offsets):
            if found.offset <= covered.get(found.id, -1):
                if found.record is None:
                    verdicts.lost.add(found.offset)
                else:
                    verdicts.resumed.setdefault(found.offset, []).append(found.record)
        await self._check_start(offsets[0])

    async def _check_start(self, first: int) -> None:
        """The log still holds the records, so the store still held the verdicts on them."""
        start = (await self._log.bounds(self._log_topic, self._partition)).start
        if start > first:
            raise LogTruncated(
                self._topic.name, self._partition, f"records {first} to {start - 1} are gone while they were read"
            )

    # What is not

    async def _find_states(
        self, journals: dict[str, list[Entry]], pointer: int, first: int
    ) -> dict[str, _JournalState]:
        states: dict[str, _JournalState] = {}
        missing: list[str] = []
        for journal_id, entries in journals.items():
            known = self._known.get(journal_id)
            if known is None or (_is_halted(known.head) and _resumes(entries)):
                missing.append(journal_id)
            else:
                states[journal_id] = known
        for at in range(0, len(missing), HEADS_AT_ONCE):
            states |= await self._load_some(missing[at : at + HEADS_AT_ONCE], pointer, first)
        return states

    async def _load_some(self, ids: Sequence[str], pointer: int, first: int) -> dict[str, _JournalState]:
        found = await asyncio.gather(*(self._load(journal_id, pointer, first) for journal_id in ids))
        return dict(zip(ids, found, strict=True))

    async def _load(self, journal_id: str, pointer: int, first: int) -> _JournalState:
        """The stored head, and what the key has between the pointer and the page folded onto it."""
        name = self._topic.name
        head = await self._store.head(name, journal_id)
        state = _JournalState(head, pointer if head is None else max(pointer, head.offset))
        if head is not None and _is_halted(head):
            state.waiting = await self._store.waiting(name, journal_id)
            await self._recheck(journal_id, head)
        if journal_id in self._known or pointer < self._floor:
            await self._fold_tail(state, journal_id.encode(), pointer, first)
        return state

    async def _recheck(self, journal_id: str, head: Head) -> None:
        """What waits is released after a new head is written: as long as it is the same, nothing was missing."""
        now = await self._store.head(self._topic.name, journal_id)
        if now is None or now.offset != head.offset:
            raise _Moved

    async def _fold_tail(self, state: _JournalState, key: bytes, pointer: int, first: int) -> None:
        """Fold the key's records with `pointer < offset < first`."""
        after, limit = pointer, self._page_size
        while after < first - 1:
            try:
                records = await self._log.tail(
                    self._log_topic, self._partition, key, after=after, before=first, limit=limit
                )
            except Trimmed as trimmed:
                if await self._store.pointer(self._topic.name, self._partition) == pointer:
                    check_truncation(self._topic.name, self._partition, Bounds(trimmed.start, first), pointer)
                raise _Moved from None
            change = fold(state.head, [decode(record) for record in records], self._topic, quarantined=state.waiting)
            state.head, state.waiting = change.head, change.waiting
            if len(records) < limit:
                return
            after = records[-1].offset

    def _fold(self, journals: dict[str, list[Entry]], states: dict[str, _JournalState]) -> _Verdicts:
        """Fold the page onto the states, which then are those behind it."""
        verdicts = _Verdicts()
        for journal_id, entries in journals.items():
            state = states[journal_id]
            recent = [entry for entry in entries if entry.record.offset > state.covered]
            rowless = {entry.record.offset for entry in recent}  # only the verdicts are wanted
            change = fold(state.head, recent, self._topic, quarantined=state.waiting, rowless=rowless)
            verdicts.lost.update(lost.offset for lost in change.rejected)
            verdicts.lost.update(change.set_aside)
            for found in change.resumed:
                verdicts.resumed.setdefault(found.offset, []).append(found.record)
            states[journal_id] = _JournalState(change.head, state.covered)
        return verdicts

    def _remember(self, states: dict[str, _JournalState], last: int) -> None:
        """Keep the states for the next page, without what no verdict needs."""
        for journal_id, state in states.items():
            head = state.head
            if head is not None and (head.tag_seq or head.garbage):
                state.head = msgspec.structs.replace(head, tag_seq=None, garbage=())
            self._known[journal_id] = state
        if len(self._known) > self._max_known:
            self._known.clear()
            self._floor = last


class _Verdicts:
    """What became of a page's records: offsets that do not count, and what counts at a Resume."""

    def __init__(self) -> None:
        self.lost: set[int] = set()
        self.resumed: dict[int, list[Record]] = {}

    def accepted(self, entry: Entry, *, placed: bool) -> AcceptedAppends:
        offset, timestamp = entry.record.offset, entry.record.timestamp
        if not placed:
            return AcceptedAppends(offset, timestamp, ())
        if offset in self.resumed:
            return AcceptedAppends(offset, timestamp, [decode(record) for record in self.resumed[offset]])
        counts = isinstance(entry.action, Append) and entry.value is not None and offset not in self.lost
        return AcceptedAppends(offset, timestamp, [entry] if counts else ())


def _is_halted(head: Head | None) -> bool:
    return head is not None and head.halted_at is not None


def _resumes(entries: Sequence[Entry]) -> bool:
    return any(isinstance(entry.action, Resume) for entry in entries)
