"""Rebuild, verify and drop views by tag, from the journals' own rows. All of it is safe while the pipeline runs.

An event's row says its tags and its place in the order; its number follows from the head, which knows the last one
of each tag: the newest event of a tag has that number, the one before it the number before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from everlog.config import Config
from everlog.core.buckets import Bucket, bucket_of
from everlog.core.events import EventRecord
from everlog.core.head import Head, Topic, exists
from everlog.core.plan import BEGINNING, START, TOPIC_NUMBER
from everlog.core.tag_names import is_tag, shard_of, slice_of, slice_tag
from everlog.core.timeuuid import MIN_RANK, TimeUuid, event_rank
from everlog.store.port import RowCursor, Store
from everlog.store.tag_port import TagEntry, TagRow, TagTables

PAGE = 1000
# The index of the last event of a record from before the order began.
LAST_INDEX = (1 << 20) - 1

_beginning = msgspec.json.Decoder(dict[int, int]).decode


class UnplannedRows(NamedTuple):
    """Rows from before the first plan, which have no place in the order by themselves: those below `offsets`, by
    partition. They lie right below `tick`."""

    tick: int
    offsets: Mapping[int, int]

    def place(self, row: EventRecord, topic_number: int, index: int) -> TimeUuid | None:
        end = self.offsets.get(row.partition, 0)
        if row.offset >= end:
            return None
        return TimeUuid(self.tick - (end - row.offset), event_rank(topic_number, row.partition, index))


class JournalRef(NamedTuple):
    """A journal in the store, and what is pinned for its topic."""

    topic: Topic
    id: str
    number: int
    unplanned: UnplannedRows


async def pinned_order(store: Store, topic: Topic) -> tuple[int, UnplannedRows] | None:
    """A topic's number and its rows from before the order began; None if nothing of it was ever planned."""
    tables = tables_of(store)
    numbers = {name: int(key.rpartition(":")[2]) for key, name in (await tables.settings(TOPIC_NUMBER)).items()}
    pinned = await tables.settings(BEGINNING + topic.name)
    start = await tables.settings(START)
    if topic.name not in numbers or BEGINNING + topic.name not in pinned or START not in start:
        return None
    return numbers[topic.name], UnplannedRows(int(start[START]), _beginning(pinned[BEGINNING + topic.name]))


class JournalRefs:
    """Journals with what is pinned about their topics' order; each topic is looked up once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: dict[str, JournalRef | None] = {}

    async def of(self, topic: str, journal_id: str) -> JournalRef | None:
        """The journal; None if nothing of its topic was ever planned."""
        if topic not in self._found:
            pinned = {found.name: found for found in await self._store.pinned()}[topic]
            order = await pinned_order(self._store, pinned)
            self._found[topic] = None if order is None else JournalRef(pinned, "", *order)
        found = self._found[topic]
        return None if found is None else found._replace(id=journal_id)


async def all_journals(
    store: Store, config: Config, topics: Collection[str] | None = None
) -> AsyncIterator[tuple[str, str]]:
    """All journals in the store, by topic of the log and id; `topics`: only of these."""
    for topic in await store.pinned():
        if config.journal.includes(topic.name) and (topics is None or config.journal.short(topic.name) in topics):
            async for page in store.ids(topic.name):
                for journal_id in page:
                    yield topic.name, journal_id


def tables_of(store: Store) -> TagTables:
    assert store.tags is not None
    return store.tags


async def journal_entries(
    store: Store, config: Config, ref: JournalRef, head: Head, wanted: Collection[str] | None
) -> AsyncIterator[list[TagEntry]]:
    """What the views must hold of a journal with this head, newest first. `wanted`: only these tags.

    Deletes meanwhile take the oldest rows away, and appends are newer than the head: neither changes a number.
    """
    entries: list[TagEntry] = []
    async for entry in _entries(store, config, ref, head):
        if wanted is None or entry.tag in wanted:
            entries.append(entry)
            if len(entries) == PAGE:
                yield entries
                entries = []
    if entries:
        yield entries


async def _entries(store: Store, config: Config, ref: JournalRef, head: Head) -> AsyncIterator[TagEntry]:
    left = dict(head.tag_seq or {})
    built_in = {slice_tag(slice_of(ref.id))} if config.slices(ref.topic.name) else set()
    record, index = -1, 0
    async for row in _rows_down(store, ref, head):
        tags = {tag for tag in row.tags if is_tag(tag)} | built_in
        offset = None if row.ordering is None else TimeUuid.parse(row.ordering)
        if offset is None and tags:
            # Downwards within its record, as the rows come: deletes take away the lowest, and move no other.
            record, index = row.offset, index - 1 if row.offset == record else LAST_INDEX
            offset = ref.unplanned.place(row, ref.number, index)
        if offset is None:
            continue
        for tag in sorted(tags):
            number = left.get(tag, 0)
            left[tag] = number - 1
            # An event from before its tag was counted has no number above 0, and is in the view only by a rebuild.
            if number > 0 or row.ordering is None:
                yield _entry(config, ref, tag, TagRow(offset, ref.topic.name, ref.id, number, row))


def _entry(config: Config, ref: JournalRef, tag: str, row: TagRow) -> TagEntry:
    shards = config.tags.shards.get(tag)
    start = bucket_of(row.offset.ms, config.tags.bucket_ms)
    bucket = Bucket(start, config.tags.bucket_ms, None if shards is None else shard_of(ref.id, shards))
    return TagEntry(tag, bucket, row)


async def _rows_down(store: Store, ref: JournalRef, head: Head) -> AsyncIterator[EventRecord]:
    """The rows of the stored life, newest first."""
    cursor: RowCursor | None = None
    while head.delete_to < head.seq_nr:
        rows = await store.rows(
            ref.topic.name,
            ref.id,
            segment_size=head.segment_size,
            first=head.delete_to + 1,
            last=head.seq_nr,
            reverse=True,
            limit=PAGE,
            after=cursor,
            life=head.record_id,
        )
        for row in rows:
            if row.record_id == head.record_id:
                yield row
        if len(rows) < PAGE:
            return
        cursor = RowCursor(rows[-1].seq_nr, rows[-1].timestamp)


async def rebuild_journal(store: Store, config: Config, ref: JournalRef, wanted: Collection[str] | None = None) -> int:
    """Put back what the views lack of a journal; returns the number of rows. Repeating it changes nothing."""
    tables, written = tables_of(store), 0
    head = await store.head(ref.topic.name, ref.id)
    if head is None or not exists(head):
        return 0
    async for entries in journal_entries(store, config, ref, head, wanted):
        found = await asyncio.gather(*(tables.find(entry.tag, entry.row) for entry in entries))
        missing = [entry for entry, places in zip(entries, found, strict=True) if not places]
        if missing:
            await tables.put(missing)
            written += len(missing)
            if config.propagates(ref.topic.name):
                await _take_back(store, ref, head, missing)
    return written


async def _take_back(store: Store, ref: JournalRef, head: Head, entries: Sequence[TagEntry]) -> None:
    """Remove what was deleted from the journal meanwhile. A later delete finds these rows by itself: it writes the
    head first."""
    now = await store.head(ref.topic.name, ref.id)
    gone = now is None or not exists(now) or now.record_id != head.record_id
    for entry in entries:
        if gone or (now is not None and entry.row.event.seq_nr <= now.delete_to):
            await tables_of(store).remove(entry.tag, entry.bucket, [entry.row])


@dataclass(slots=True)
class Verified:
    """What a recount found: the first difference, if there is any, and how much was compared."""

    tag: str
    events: int = 0
    journals: int = 0
    difference: str | None = None

    @property
    def right(self) -> bool:
        return self.difference is None


async def verify_journal(store: Store, config: Config, ref: JournalRef, tag: str, report: Verified) -> None:
    """Every event that the journal has with this tag is in the view, once, with its number."""
    head = await store.head(ref.topic.name, ref.id)
    if head is None or not exists(head) or tag not in (head.tag_seq or {}):
        return
    report.journals += 1
    async for page in journal_entries(store, config, ref, head, [tag]):
        entries = [entry for entry in page if entry.row.number > 0]
        differences = await asyncio.gather(*(_difference(tables_of(store), entry) for entry in entries))
        for entry, difference in zip(entries, differences, strict=True):
            if difference is not None and not await _deleted(store, ref, head, entry):
                where = f"{config.journal.short(ref.topic.name)}:{ref.id}, seqNr {entry.row.event.seq_nr}"
                report.difference = f"{where} {difference}"
                return
            report.events += difference is None


async def _difference(tables: TagTables, entry: TagEntry) -> str | None:
    found = {(bucket.start, bucket.shard): number for bucket, number in await tables.find(entry.tag, entry.row)}
    if not found:
        return "is not in the view"
    if len(found) > 1:
        return "is in the view twice"
    number = next(iter(found.values()))
    return None if number == entry.row.number else f"has the number {number} in the view, not {entry.row.number}"


async def _deleted(store: Store, ref: JournalRef, head: Head, entry: TagEntry) -> bool:
    """Whether the event was deleted while we looked, and rightly is no longer in a view."""
    now = await store.head(ref.topic.name, ref.id)
    if now is None or not exists(now) or now.record_id != head.record_id:
        return True
    return entry.row.event.seq_nr <= now.delete_to


async def drop_rows(tables: TagTables, tag: str, wanted: Callable[[TagRow], bool] | None = None) -> AsyncIterator[int]:
    """Remove a tag's rows up to the watermark, all or those of some journals; says how many, bucket by bucket.

    Only buckets that end below the watermark leave the index: in others the pipeline may be writing.
    """
    end = (await tables.watermark()).end
    journals: set[tuple[str, str]] = set()
    for bucket in await tables.buckets(tag, 0):
        after, removed = TimeUuid(0, MIN_RANK), 0
        while rows := await tables.rows(tag, bucket, after=after, upto=end, limit=PAGE):
            after = rows[-1].offset
            chosen = rows if wanted is None else [row for row in rows if wanted(row)]
            await tables.remove(tag, bucket, chosen)
            journals.update((row.topic, row.id) for row in chosen)
            removed += len(chosen)
        if wanted is None and bucket.last < end:
            await tables.forget(tag, [bucket])
        yield removed
    await tables.forget_progress(tag, sorted(journals))
