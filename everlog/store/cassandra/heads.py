"""Heads: one text cell each, beside its key in `metajournal`, and what kafka-journal left there.

A head is written as a whole or not at all, because it is a single cell: a late write of another pipeline can replace
it, and then loses by its time, but never mix with it. kafka-journal's own columns count only where there is no such
cell, that is until the first record that Everlog applies to the journal; they are never written and never cleared. All
of them are older than the topic's `base`, or another program still writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any
from zlib import crc32

import msgspec

from everlog.cassandra.session import CassandraRow, Session, rows_of
from everlog.core.duration import ExpireAfter, StoredDuration
from everlog.core.head import Deletion, Head, Topic
from everlog.core.values import (
    DEFAULT_SEGMENT_SIZE,
    HEAD_SEGMENTS,
    LEGACY_HEAD_SEGMENTS,
    MIN_SEGMENT_SIZE,
    head_segment,
    partition_of,
)
from everlog.errors import ForeignWriter, IntegrityViolated
from everlog.store.cassandra.batches import MAX_BYTES, MAX_ROWS, run_mutations

# With a thousand heads in a batch, one mutation takes thirty of them: less than half the server's work. More segments
# would save less, fewer would make partitions large: of ten million journals in eight log partitions, 10 MB each.
SEGMENTS_PER_PARTITION = 32
GROUP = 8
# Heads are loaded some at a time: half the work of loading them one by one, for us and for the server.
HEADS_AT_ONCE = 16
# The longest duration that its text brings back, far beyond any calendar; a record from outside may carry more.
_MAX_NANOS = 10**40 - 1


class HeadCell(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The text of the cell, as JSON: the same head always gives the same text. Times are milliseconds."""

    partition: int
    offset: int
    segment_size: int
    seq_nr: int = 0
    delete_to: int = 0
    created: int | None = None
    updated: int | None = None
    expire_after: str | None = None
    expire_on: date | None = None
    expire_at: int | None = None
    record_id: str | None = None
    origin: str | None = None
    purged: bool = False
    halted_at: int | None = None
    garbage: tuple[Deletion, ...] = ()
    tag_seq: dict[str, int] | None = None


class ListedHead(msgspec.Struct, frozen=True, gc=False):
    """What a walk over all heads looks at."""

    partition: int
    offset: int
    updated: int | None = None
    purged: bool = False
    halted_at: int | None = None
    tag_seq: dict[str, int] | None = None


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(HeadCell).decode
listed = msgspec.json.Decoder(ListedHead).decode


def encode_head(head: Head) -> str:
    """The text of a head's cell. Where it lies is not in it."""
    return _encode(
        HeadCell(
            head.partition,
            head.offset,
            head.segment_size,
            head.seq_nr,
            head.delete_to,
            head.created,
            head.updated,
            None if head.expire_after is None else _duration(head.expire_after),
            head.expire_on,
            head.expire_at,
            head.record_id,
            head.origin,
            head.purged,
            head.halted_at,
            head.garbage,
            head.tag_seq or None,
        )
    ).decode()


def _duration(after: ExpireAfter) -> str:
    return ExpireAfter(max(-_MAX_NANOS, min(after.nanos, _MAX_NANOS))).text()


def decode_head(text: str, *, legacy_segment: bool = False) -> Head:
    """The head of a cell."""
    cell = _decode(text)
    return Head(
        partition=cell.partition,
        offset=cell.offset,
        segment_size=cell.segment_size,
        seq_nr=cell.seq_nr,
        delete_to=cell.delete_to,
        created=cell.created,
        updated=cell.updated,
        expire_after=None if cell.expire_after is None else ExpireAfter.parse(cell.expire_after),
        expire_on=cell.expire_on,
        expire_at=cell.expire_at,
        record_id=cell.record_id,
        origin=cell.origin,
        purged=cell.purged,
        halted_at=cell.halted_at,
        garbage=cell.garbage,
        legacy_segment=legacy_segment,
        tag_seq=cell.tag_seq,
    )


def date_from(text: str) -> date:
    """A date as the driver gives it; one that Python's calendar does not hold counts as the last."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return date.max


def head_from(rows: Sequence[CassandraRow], topic: Topic, journal_id: str, home: int) -> Head:
    """A head from the rows of the statement `head`: of two, in the old and in the new segment, the newer counts.

    `home` is the segment in which a new head would lie.
    """
    heads = [_head(row, topic, journal_id, home) for row in rows]
    return heads[0] if len(heads) == 1 else max(heads, key=lambda head: head.offset)


def _head(row: CassandraRow, topic: Topic, journal_id: str, home: int) -> Head:
    segment, cell, written, theirs, *columns = row
    if theirs is not None and theirs >= topic.base:
        raise _foreign(topic, journal_id, f"column offset at {theirs}, not before {topic.base}")
    legacy_segment = segment != home
    if cell is None:
        return _taken_over(columns, topic, journal_id, legacy_segment)
    head = decode_head(cell, legacy_segment=legacy_segment)
    if written != topic.base + head.offset:
        raise _foreign(topic, journal_id, f"column head at {written}, not {topic.base + head.offset}")
    return head


def _foreign(topic: Topic, journal_id: str, what: str) -> ForeignWriter:
    return ForeignWriter(
        f"{topic.name}:{journal_id}: another program wrote this head after Everlog took over the topic ({what}): stop "
        "the other replicator: only Everlog may write into metajournal"
    )


def _taken_over(columns: Sequence[Any], topic: Topic, journal_id: str, legacy_segment: bool) -> Head:
    """From the columns of kafka-journal."""
    partition, offset, segment_size, seq_nr, delete_to, created, updated, after, day, record_id, origin = columns
    if offset is None or partition is None:
        raise IntegrityViolated(f"{topic.name}:{journal_id}: the row in metajournal has no offset: restore it")
    if partition != partition_of(journal_id.encode(), topic.partitions):
        offset = -1  # written when the topic had another number of partitions: its offset says nothing here
    return Head(
        partition=partition,
        offset=offset,
        segment_size=segment_size if segment_size and segment_size >= MIN_SEGMENT_SIZE else DEFAULT_SEGMENT_SIZE,
        seq_nr=seq_nr or 0,
        delete_to=delete_to or 0,
        created=created,
        updated=updated,
        expire_after=None if after is None else ExpireAfter.from_stored(StoredDuration(*after)),
        expire_on=None if day is None else date_from(day),
        record_id=record_id,
        origin=origin,
        legacy_segment=legacy_segment,
    )


def may_drop(head: ListedHead, before_ms: int, pointers: Mapping[int, int]) -> bool:
    """Whether a head is a purge marker that no replay can need."""
    return (
        head.purged
        and head.halted_at is None
        and not head.tag_seq
        and head.updated is not None
        and head.updated < before_ms
        and head.offset <= pointers.get(head.partition, -1)
    )


class HeadPlaces:
    """In which segments of `metajournal` heads lie.

    In a table that Everlog made, a log partition has a few segments of its own: heads that are written together lie
    together, and one mutation takes many of them. In a table that was `taken_over` they lie where kafka-journal put
    them: in one of ten thousand segments, or in one of a hundred as in its early days.
    """

    def __init__(self, *, taken_over: bool) -> None:
        self.taken_over = taken_over

    def of(self, journal_id: str, partition: int) -> tuple[int, ...]:
        """Where the head of a journal of this log partition may lie; a new one goes to the first of these."""
        if self.taken_over:
            return head_segment(journal_id), head_segment(journal_id, LEGACY_HEAD_SEGMENTS)
        return (partition * SEGMENTS_PER_PARTITION + crc32(journal_id.encode()) % SEGMENTS_PER_PARTITION,)

    def groups(self, partitions: int) -> Iterator[list[int]]:
        """All segments of a topic, in groups that are read at once; all places of a journal are in one group."""
        if self.taken_over:
            yield from (list(range(old, HEAD_SEGMENTS, LEGACY_HEAD_SEGMENTS)) for old in range(LEGACY_HEAD_SEGMENTS))
        else:
            count = partitions * SEGMENTS_PER_PARTITION
            yield from (list(range(first, first + GROUP)) for first in range(0, count, GROUP))


class HeadTable:
    """Loads and writes heads."""

    def __init__(self, session: Session, cql: Mapping[str, str], places: HeadPlaces) -> None:
        self._session = session
        self._cql = cql
        self._places = places

    async def find(self, topic: Topic, journal_id: str) -> Head | None:
        """The head of one journal."""
        places = self._places.of(journal_id, partition_of(journal_id.encode(), topic.partitions))
        cql = self._cql["head" if len(places) == 1 else "head_anywhere"]
        rows = await self._session.fetch(cql, topic.name, *places, journal_id)
        return head_from(rows, topic, journal_id, places[0]) if rows else None

    async def load(self, topic: Topic, partition: int, ids: Sequence[str]) -> dict[str, Head]:
        """The heads of those journals, all of one log partition, that have one."""
        places = {journal_id: self._places.of(journal_id, partition) for journal_id in ids}
        found: dict[str, list[CassandraRow]] = {}
        cql = self._cql["heads"]
        prepared = await self._session.prepare(cql)

        async def load(some: Sequence[str]) -> None:
            segments = {segment for one in some for segment in places[one]}
            values = [topic.name, list(segments), list(some)]
            for journal_id, *row in rows_of(await self._session.attempt(prepared.bind(values), cql)):
                # Every id is looked for in every segment: what lies in another one's is not its head.
                if row[0] in places[journal_id]:
                    found.setdefault(journal_id, []).append(tuple(row))

        near = sorted(places, key=places.__getitem__)
        parts = [near[start : start + HEADS_AT_ONCE] for start in range(0, len(near), HEADS_AT_ONCE)]
        await self._session.share(parts, load, len(parts))
        return {name: head_from(rows, topic, name, places[name][0]) for name, rows in found.items()}

    async def write(self, topic: Topic, partition: int, heads: Iterable[tuple[str, Head]]) -> dict[str, Exception]:
        """Write heads of one log partition; returns those that the server refused for good, with the reason."""
        return await run_mutations(self._session, self._cql["put_head"], self._mutations(topic, partition, heads))

    def _mutations(
        self, topic: Topic, partition: int, heads: Iterable[tuple[str, Head]]
    ) -> Iterator[list[tuple[str, list[Any]]]]:
        """Ids and the values of `put_head`: those of one segment, as many together as go into a mutation."""
        segments: dict[int, list[tuple[str, list[Any]]]] = {}
        sizes: dict[int, int] = {}
        for journal_id, head in heads:
            segment = self._places.of(journal_id, partition)[-1 if head.legacy_segment else 0]
            text = encode_head(head)
            size = sizes.get(segment, 0) + len(text)
            if segment in segments and (size > MAX_BYTES or len(segments[segment]) == MAX_ROWS):
                yield segments.pop(segment)
                size = len(text)
            sizes[segment] = size
            values = [topic.base + head.offset, text, topic.name, segment, journal_id]
            segments.setdefault(segment, []).append((journal_id, values))
        yield from segments.values()
