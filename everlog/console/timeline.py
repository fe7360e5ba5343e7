"""The timeline of one journal: what its records in the log did, and what of it can be read now.

Where the log still holds a journal from its beginning, the whole of it is folded: then it is known which appends lost,
and what the journal was at any earlier position. Where it does not, the events that the store holds are shown alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everlog.core.actions import Append, Delete, Mark, Purge, Resume
from everlog.core.change import Change
from everlog.core.entry import Entry, decode
from everlog.core.events import EventRecord, shown_payload
from everlog.core.fold import fold
from everlog.core.head import Head, exists, seq_nr_of
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import JournalHalted
from everlog.journal.journal import Journal
from everlog.journal.reader import JournalView, Ref
from everlog.log.port import Trimmed
from everlog.store.port import Snapshot
from everlog.wire.events import moment

PAGE = 50
MAX_RECORDS = 1000
MAX_FOLDED = 5000

Item = dict[str, Any]


@dataclass(slots=True)
class TimelinePage:
    """Some events, newest first, and the span of offsets that belongs to them."""

    events: list[EventRecord]
    more: bool
    low: int
    high: int
    halted: str | None = None


@dataclass(slots=True)
class Timeline:
    """A page of a journal's life."""

    view: JournalView
    page: TimelinePage
    items: list[Item] = field(default_factory=list)
    whole: list[Entry] | None = None
    """All records of the journal, oldest first, if the log still holds them and they are not too many."""


async def read_timeline(journal: Journal, ref: Ref, *, before: int | None, upto: int | None) -> Timeline:
    """A page of events before a seqNr, with all other records of the journal between and around them."""
    view = await journal.parts.reader.view(ref)
    page = await _events(journal, ref, view, before, upto)
    start = await _first_offset(journal, ref, view)
    records = await _records(journal, ref, max(page.low, start), page.high)
    whole = await _whole(journal, ref, view) if start == 0 else None
    lost = await _lost(journal, ref, whole)
    timeline = Timeline(view, page, whole=whole)
    timeline.items = _items(page, records, whole, lost, view, await journal.snapshots.list(ref.id))
    return timeline


async def _first_offset(journal: Journal, ref: Ref, view: JournalView) -> int:
    """The offset from which the log is asked: where that costs little, and all that the tables lack."""
    log = journal.parts.log
    floor = min(log.floor(ref.log_topic, ref.partition), view.pointer + 1)
    return max((await log.bounds(ref.log_topic, ref.partition)).start, floor)


async def _events(journal: Journal, ref: Ref, view: JournalView, before: int | None, upto: int | None) -> TimelinePage:
    found: list[EventRecord] = []
    halted = None
    last = MAX_SEQ_NR if before is None else before - 1
    try:
        if last >= 1:
            async for page in journal.read_pages(ref.id, to_seq=last, reverse=True, limit=PAGE + 1):
                found += page
    except JournalHalted as error:
        halted = str(error)
    more = len(found) > PAGE
    found = found[:PAGE]
    low = found[-1].offset if more else 0
    high = view.end if upto is None else min(upto, view.end)
    return TimelinePage(found, more, low, high, halted)


async def _records(journal: Journal, ref: Ref, low: int, high: int) -> list[Entry]:
    """The journal's records with low <= offset < high, as far as the log has them."""
    try:
        found = await journal.parts.log.tail(
            ref.log_topic, ref.partition, ref.key, after=low - 1, before=high, limit=MAX_RECORDS
        )
    except Trimmed:
        return []
    return [decode(record) for record in found]


async def _whole(journal: Journal, ref: Ref, view: JournalView) -> list[Entry] | None:
    """All records up to the view's end; None if there are too many, or if they do not lead to what the view says."""
    entries: list[Entry] = []
    after = -1
    while True:
        page = await _records(journal, ref, after + 1, view.end)
        entries += page
        if len(page) < MAX_RECORDS:
            break
        after = page[-1].record.offset
        if len(entries) > MAX_FOLDED:
            return None
    state = fold(None, entries, ref.topic).head
    # A journal that was taken over, or a log that was filled again, has a past that is not in these records.
    return entries if _same(state, view.state) else None


def _same(folded: Head | None, known: Head | None) -> bool:
    if folded is None or known is None:
        return folded is known
    return (seq_nr_of(folded), folded.record_id, folded.offset) == (seq_nr_of(known), known.record_id, known.offset)


async def _lost(journal: Journal, ref: Ref, whole: list[Entry] | None) -> dict[int, str]:
    """Offsets of appends that lost, and why."""
    if whole is not None:
        return {one.offset: one.reason for one in fold(None, whole, ref.topic).rejected}
    rows = await journal.parts.store.rejected(journal.log_name, limit=MAX_RECORDS)
    return {row.rejected.offset: row.rejected.reason for row in rows if row.id == ref.id}


def _items(
    page: TimelinePage,
    records: Sequence[Entry],
    whole: Sequence[Entry] | None,
    lost: dict[int, str],
    view: JournalView,
    snapshots: Sequence[Snapshot],
) -> list[Item]:
    """Everything of the page, newest first."""
    items = [_event_item(event, view) for event in page.events]
    shown = {event.offset for event in page.events}
    purged = max((one.record.offset for one in whole or records if isinstance(one.action, Purge)), default=-1)
    items += [_record_item(entry, lost, view, purged) for entry in records if entry.record.offset not in shown]
    offsets = {event.seq_nr: event.offset for event in page.events}
    items += [_snapshot_item(one, offsets[one.seq_nr]) for one in snapshots if one.seq_nr in offsets]
    return sorted(items, key=_place, reverse=True)


def _place(item: Item) -> tuple[int, int, bool]:
    return (item["offset"], item["seq_nr"] or 0, item["kind"] == "snapshot")


def _item(kind: str, title: str, offset: int, time_ms: int, source: str, **more: Any) -> Item:
    known: Item = {"seq_nr": None, "payload": None, "payload_type": None, "tags": [], "detail": None, "origin": None}
    known |= {"type": None, "type_version": None}
    return {"kind": kind, "title": title, "offset": offset, "time_ms": time_ms, "source": source, **known, **more}


def _event_item(event: EventRecord, view: JournalView) -> Item:
    return _item(
        "event",
        f"#{event.seq_nr}",
        event.offset,
        event.timestamp,
        _source(event.offset, view),
        seq_nr=event.seq_nr,
        payload=shown_payload(event.payload_type, event.data),
        payload_type=event.payload_type,
        tags=sorted(event.tags),
        origin=event.origin,
        type=event.type,
        type_version=event.type_version,
    )


def _snapshot_item(one: Snapshot, offset: int) -> Item:
    return _item(
        "snapshot",
        f"snapshot at #{one.seq_nr}",
        offset,
        one.timestamp,
        "store",
        seq_nr=one.seq_nr,
        payload=shown_payload(one.payload_type, one.data),
        payload_type=one.payload_type,
        origin=one.origin,
    )


def _source(offset: int, view: JournalView) -> str:
    """Where a read takes an event from: above the pointer the tables are not asked."""
    return "store" if offset <= view.pointer else "tail"


def _record_item(entry: Entry, lost: dict[int, str], view: JournalView, purged: int) -> Item:
    """A record that is not a readable event: it removed something, changed nothing, or is gone itself."""
    record, action = entry.record, entry.action
    place: dict[str, Any] = {
        "offset": record.offset,
        "time_ms": record.timestamp,
        "source": "log" if record.offset <= view.pointer else "tail",
        "origin": getattr(action, "origin", None),
    }
    if entry.error is not None:
        return _item("broken", "cannot be decoded", **place, detail=entry.error)
    if isinstance(action, Append):
        return _append_item(action, lost.get(record.offset), place, _fate(action, record.offset, view, purged))
    if isinstance(action, Delete):
        only = None if action.only_life is None else f"only in the life {action.only_life[:8]}"
        return _item("delete", f"delete up to #{action.to}", **place, detail=only)
    if isinstance(action, Purge):
        return _item("purge", "purge", **place, detail=_condition(action))
    if isinstance(action, Mark):
        return _item("mark", "mark", **place, detail=action.id)
    if isinstance(action, Resume):
        skipped = ", ".join(name[:8] for name in action.skip)
        return _item("resume", "resume after a halt", **place, detail=f"without record {skipped}" if skipped else None)
    return _item("foreign", "record of another program", **place)


def _condition(purge: Purge) -> str | None:
    if not purge.only_expired:
        return None
    return f"if expired on {purge.expire_on}" if purge.expire_at is None else f"if expired at {moment(purge.expire_at)}"


def _fate(action: Append, offset: int, view: JournalView, purged: int) -> str:
    """What became of an append whose events cannot be read now."""
    if offset < purged:
        return "purged since"
    deleted = view.state is not None and action.range.last <= view.state.delete_to
    return "deleted since" if deleted else "waits in quarantine, or is no longer known"


def _append_item(action: Append, reason: str | None, place: dict[str, Any], fate: str) -> Item:
    first, last = action.range.first, action.range.last
    numbers = f"#{first}" if first == last else f"#{first} to #{last}"
    if reason is not None:
        expected = "" if action.expected is None else f", expected #{action.expected.seq_nr}"
        return _item("rejected", f"append of {numbers} lost", **place, detail=reason + expected)
    return _item("removed", f"append of {numbers}", **place, detail=fate)


def state_at(ref: Ref, whole: Sequence[Entry], offset: int) -> tuple[Head | None, list[EventRecord]]:
    """What the journal was once the record at this offset was applied: its head, and the events that could be read."""
    change: Change = fold(None, [entry for entry in whole if entry.record.offset <= offset], ref.topic)
    # Folded from the beginning, what was deleted or purged on the way is no longer among the rows.
    return change.head, change.rows if exists(change.head) else []
