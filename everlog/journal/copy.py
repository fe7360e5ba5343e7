"""Copies journals into another topic, with their seqNrs: one journal at a time, safe to repeat at any point.

A copy is made of ordinary records of the other topic, so that its log says all about it:

    Delete(to, copied)      if events are gone already: begins the journal behind them
    Append, Append, …       one for each append of the original, with its seqNrs, time, id, tags, metadata and headers
    Delete(to)              only if the original lost more events since an earlier copy

Every append expects the seqNr and the life that the one before it leaves. So nothing is doubled if a copy is repeated,
if two run at once or if one that was thought dead wakes up; and where another writer appends to the journal, the
copy loses from there on, and says so. Before anything is added, what is there already is compared with the original;
when nothing is left to add, that comparison was the proof that both are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from everlog.core.actions import Action, ActionRange, Append, Copied, Delete, Expected, wrap_header_data
from everlog.core.codec import EventData, encode_value, split_metadata
from everlog.core.events import EventRecord
from everlog.core.head import Head, exists
from everlog.core.record import Headers
from everlog.core.values import check_id
from everlog.errors import CopyRefused, EverlogError, Overtaken
from everlog.journal.damaged_log import Damage, DamagedLog
from everlog.journal.journal import Journal
from everlog.journal.parts import JournalParts, parts_over
from everlog.journal.reader import Ref, Span
from everlog.journal.topic_registry import pinned_topic
from everlog.runtime.failpoints import failpoint
from everlog.runtime.pages import each

# The original may change while it is copied; one that changes all the time is left for later.
MAX_ROUNDS = 5
# At most this much of a journal is on its way into the log at a time.
MAX_WAITING = 200
MAX_WAITING_BYTES = 4 * 1024 * 1024


class CopyOutcome(NamedTuple):
    """What became of a journal: events that were written (in a dry run: that would be), events that were there already.

    `halted`: the original is, so its copy ends before the record that halts it.
    """

    written: int = 0
    present: int = 0
    halted: bool = False


class Original:
    """The journals of a topic as they are now, also if its log is broken. Made by `find`."""

    def __init__(self, parts: JournalParts, opened: Ref, damaged: DamagedLog) -> None:
        self.parts = parts
        self.damaged = damaged
        self._opened = opened

    @classmethod
    async def find(cls, parts: JournalParts, topic: str, damage: Damage | None = None) -> Original:
        """The topic by its short name, broken, retired or sound; `damage`: what is known to be broken."""
        pinned = await pinned_topic(parts, topic)
        damaged = await DamagedLog.look(parts.log, parts.store, pinned, topic, damage)
        return cls(parts_over(parts, damaged), Ref.of(damaged.log_topic, pinned, "", b"", topic), damaged)

    def ref(self, journal_id: str) -> Ref:
        return self._opened.sibling(journal_id)

    async def ids(self) -> AsyncGenerator[list[str], None]:
        """Pages of the ids of all journals, each once: stored ones, then those only in the tail."""
        recent: set[str] = set()
        for partition in range(self._opened.topic.partitions):
            for key in await self.parts.reader.recent_keys(self._opened.log_topic, partition):
                try:
                    recent.add(check_id(key.decode()).decode())
                except (UnicodeDecodeError, EverlogError):
                    continue  # no journal has this key
        async for page in self.parts.store.ids(self._opened.topic.name):
            yield [journal_id for journal_id in page if journal_id not in recent]
        if recent:
            yield sorted(recent)


class _Compared(NamedTuple):
    """Both sides of a journal. `delete_to`: up to where the original has no events; `present`: events in both."""

    source: Head
    target: Head | None
    delete_to: int
    present: int

    @property
    def equal(self) -> bool:
        target = self.target
        return target is not None and (target.seq_nr, target.delete_to) == (self.source.seq_nr, self.delete_to)


class Copier:
    """Copies journals of one topic into another."""

    def __init__(self, original: Original, target: Journal, *, dry_run: bool = False) -> None:
        self._original = original
        self._target = target
        self._dry_run = dry_run

    async def copy(self, journal_id: str) -> CopyOutcome | None:
        """Copy what the target lacks of a journal, until both are equal; CopyRefused if another journal is there.

        None if the original does not exist (any more).
        """
        ref = await self._target.ref(journal_id, create=not self._dry_run)
        source, written = self._original.ref(journal_id), 0
        for _ in range(MAX_ROUNDS):
            found = await self._compare(source, ref)
            if found is None:
                return None
            halted = found.source.halted_at is not None
            if found.equal:
                assert ref is not None
                if not self._dry_run:
                    await self._copy_snapshots(found, ref)
                return CopyOutcome(written, found.present - written, halted)
            if self._dry_run or ref is None:
                return CopyOutcome(await self._count(source, found), found.present, halted)
            written += await _CopyWriter(self._target.parts, ref, found).write(self._appends(source, found))
        raise Overtaken(f"{source} changed {MAX_ROUNDS} times while it was copied: copy again")

    async def _compare(self, source: Ref, target: Ref | None) -> _Compared | None:
        """Look at both. What stands in the target must be a beginning of the original, or nothing may be added."""
        head = (await self._original.parts.reader.view(source)).state
        if head is None or not exists(head):
            return None
        delete_to = min(head.delete_to, head.seq_nr)
        there = None if target is None else (await self._target.parts.reader.view(target)).state
        if target is None or there is None or not exists(there):
            return _Compared(head, None, delete_to, 0)
        if there.halted_at is not None:
            raise CopyRefused(str(target), f"it is halted at offset {there.halted_at}: see 'everlog quarantine'")
        if there.seq_nr > head.seq_nr or there.delete_to > delete_to:
            raise CopyRefused(
                str(target),
                f"it is at seqNr {there.seq_nr}, deleted up to {there.delete_to}, the original {source} is at "
                f"{head.seq_nr}, deleted up to {delete_to}: it is written to already, and was left as it is",
            )
        present = await self._compare_events(source, target, Span(first=delete_to + 1, last=there.seq_nr))
        unproven = there.delete_to < there.seq_nr and not present
        if (there.delete_to < delete_to and unproven) or (there.seq_nr < head.seq_nr == delete_to):
            raise CopyRefused(
                str(target),
                f"all that it shares with {source} was deleted there since: purge it here, then copy again",
            )
        return _Compared(head, there, delete_to, present)

    async def _compare_events(self, source: Ref, target: Ref, span: Span) -> int:
        """How many events both have; CopyRefused at the first that differs."""
        if span.first > span.last:
            return 0
        count = 0
        async with (
            aclosing(each(self._original.parts.reader.read(source, span))) as originals,
            aclosing(each(self._target.parts.reader.read(target, span))) as copies,
        ):
            while True:
                one, two = await anext(originals, None), await anext(copies, None)
                if one is None and two is None:
                    return count
                if one is None or two is None or _content(one) != _content(two):
                    seq_nr = min(event.seq_nr for event in (one, two) if event is not None)
                    raise CopyRefused(
                        str(target), f"the event with seqNr {seq_nr} is not that of {source}: it is another journal"
                    )
                count += 1

    async def _count(self, source: Ref, found: _Compared) -> int:
        count = 0
        async for append in self._appends(source, found):
            count += len(append)
        return count

    async def _appends(self, source: Ref, found: _Compared) -> AsyncIterator[list[EventRecord]]:
        """What the target lacks, append by append as it was written."""
        first = max(found.delete_to, 0 if found.target is None else found.target.seq_nr) + 1
        if first > found.source.seq_nr:
            return
        append: list[EventRecord] = []
        async for event in each(self._original.parts.reader.read(source, Span(first=first, last=found.source.seq_nr))):
            if append and _origin(append[0]) != _origin(event):
                yield append
                append = []
            append.append(event)
        if append:
            yield append

    async def _copy_snapshots(self, found: _Compared, target: Ref) -> None:
        """Those of this life that the target does not have, the oldest first."""
        store, life = self._target.parts.store, found.target.record_id if found.target is not None else None
        slots = self._target.parts.config.journal.max_snapshots
        originals = await store.snapshots(self._original.ref(target.id).topic.name, target.id)
        wanted = [
            snapshot
            for snapshot in originals.values()
            if snapshot.record_id == found.source.record_id and snapshot.seq_nr <= found.source.seq_nr
        ]
        if not wanted:
            return
        there = await store.snapshots(target.topic.name, target.id)
        known = {snapshot.seq_nr for snapshot in there.values() if snapshot.record_id == life}
        for snapshot in sorted(wanted, key=lambda snapshot: (snapshot.seq_nr, snapshot.timestamp)):
            if snapshot.seq_nr not in known:
                copy = msgspec.structs.replace(snapshot, record_id=life)
                await store.put_snapshot(target.topic.name, target.id, copy, slots=slots)


class _CopyWriter:
    """The records of one journal, on their way into the other topic. `expected` is what the next append will find."""

    def __init__(self, parts: JournalParts, ref: Ref, found: _Compared) -> None:
        self._parts = parts
        self._ref = ref
        self._found = found
        there = found.target
        self._expected = Expected(0) if there is None else Expected(there.seq_nr, there.record_id)
        # The next record begins a life, as the fold sees it, and gives it its name.
        self._begins = there is None or (there.record_id is None and there.seq_nr == there.delete_to)
        self._waiting: list[tuple[Append, bytes, Headers]] = []
        self._size = 0

    async def write(self, appends: AsyncIterator[list[EventRecord]]) -> int:
        """How many events were sent. Whether all of them count, a comparison will tell."""
        found, written = self._found, 0
        if found.target is None and found.delete_to > 0:
            await self._begin_behind(found.source, found.delete_to)
        async for append in appends:
            await self._add(append)
            written += len(append)
        await self._send()
        if found.target is not None and found.target.delete_to < found.delete_to:
            origin = self._parts.origin
            await self._produce(Delete(found.delete_to, origin.host, origin.version, if_exists=True))
        self._parts.writer.forget(self._ref)
        return written

    async def _begin_behind(self, source: Head, delete_to: int) -> None:
        after = None if source.expire_after is None else source.expire_after.text()
        copied = Copied(source.created, source.updated, after, source.expire_on, source.expire_at)
        life, origin = self._parts.clock.new_id(), self._parts.origin
        await self._produce(Delete(delete_to, origin.host, origin.version, copied=copied, life=life))
        self._expected = Expected(delete_to, life)
        self._begins = False

    async def _add(self, append: list[EventRecord]) -> None:
        life = self._parts.clock.new_id() if self._begins else None
        action, value, headers = record_of(append, self._expected, life)
        self._begins = False
        self._waiting.append((action, value, headers))
        self._size += len(value)
        self._expected = Expected(append[-1].seq_nr, life or self._expected.record_id)
        if len(self._waiting) >= MAX_WAITING or self._size >= MAX_WAITING_BYTES:
            await self._send()

    async def _send(self) -> None:
        """All that waits, in order and together; if some of it fails, what comes after it loses."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        answers = await asyncio.gather(*(self._produce(*record) for record in waiting), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _produce(self, action: Action, value: bytes | None = None, headers: Headers = ()) -> int:
        failpoint("copy.record")
        append_id = (action.id or "") if isinstance(action, Append) else ""
        ack, _ = await self._parts.writer.produce(self._ref, action, value, headers, append_id)
        return ack.offset


def record_of(
    append: list[EventRecord], expected: Expected | None, life: str | None = None
) -> tuple[Append, bytes, Headers]:
    """The record that says again what the record of these events said."""
    first = append[0]
    header, metadata = split_metadata(first.metadata_json)
    events = tuple(
        EventData(event.seq_nr, tuple(sorted(event.tags)), event.payload_type, _data(event), event.event_type)
        for event in append
    )
    payload_type, value = encode_value(events, metadata)
    action = Append(
        range=ActionRange(first.seq_nr, append[-1].seq_nr),
        origin=first.origin,
        version=first.version,
        payload_type=payload_type,
        metadata=wrap_header_data(header),
        expected=expected,
        id=first.append_id,
        timestamp=first.timestamp,
        life=life,
    )
    return action, value, tuple((name, text.encode()) for name, text in first.headers.items())


def _origin(event: EventRecord) -> tuple[object, ...]:
    """What the events of one append share."""
    return event.partition, event.offset, event.timestamp, event.append_id


def _data(event: EventRecord) -> str | bytes | None:
    """The payload as it is encoded; what some store as nothing is nothing of its type."""
    if event.data or event.payload_type is None:
        return event.data
    if event.payload_type == "binary":
        return b""
    return "null" if event.payload_type == "json" else ""


def _content(event: EventRecord) -> tuple[object, ...]:
    """All that a copy must keep."""
    metadata = split_metadata(event.metadata_json)
    return (
        (event.seq_nr, event.timestamp, event.payload_type, _data(event), event.tags, metadata),
        (dict(event.headers), event.origin, event.version, event.append_id, event.event_type),
    )
