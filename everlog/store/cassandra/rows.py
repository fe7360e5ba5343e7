"""Between our values and the columns of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import msgspec

from everlog.cassandra.values import day_seconds, timestamp
from everlog.core.change import Quarantined, Rejected
from everlog.core.codec import encode_tags
from everlog.core.duration import ExpireAfter, StoredDuration, utc_day
from everlog.core.events import EventRecord
from everlog.core.head import Deletion, Head, Topic
from everlog.core.record import pack_headers
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import (
    DEFAULT_SEGMENT_SIZE,
    HEAD_SEGMENTS,
    LEGACY_HEAD_SEGMENTS,
    MIN_SEGMENT_SIZE,
    head_segment,
    partition_of,
)
from everlog.errors import ForeignWriter, IntegrityViolated
from everlog.store.port import Snapshot
from everlog.store.tag_port import TagEntry, TagProgress, TagRow

CassandraRow = tuple[Any, ...]

# Where the statement `head` has the segment.
SEGMENT = 14
NO_METADATA = '{"header":{},"payload":{}}'
_YEAR_9999 = 253_370_764_800_000
_DAY_ZERO = date(1970, 1, 1).toordinal()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_garbage = msgspec.json.Decoder(tuple[Deletion, ...]).decode


def duration(after: ExpireAfter) -> tuple[int, int, int]:
    """Months, days and nanoseconds as the server takes them: all of one sign, and not beyond its largest number."""
    sign = -1 if after.nanos < 0 else 1
    _, days, nanoseconds = ExpireAfter(abs(after.nanos)).stored()
    return 0, sign * min(days, 2**31 - 1), sign * nanoseconds


def _day_of(ms: int) -> int:
    """The UTC day of a time, as `day_seconds` gives it."""
    return ms // 86_400_000 * 86_400 if 0 <= ms < _YEAR_9999 else day_seconds(utc_day(ms // 1000))


def date_from(text: str) -> date:
    """A date as the driver gives it; one that Python's calendar does not hold counts as the last."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return date.max


def segments_for(journal_id: str) -> tuple[int, int]:
    """Where a head is looked for: its segment, and the one that it had when there were only a hundred."""
    return head_segment(journal_id), head_segment(journal_id, LEGACY_HEAD_SEGMENTS)


def head_from(rows: Sequence[CassandraRow], topic: Topic, journal_id: str) -> Head:
    """A head from the rows of the statement `head`: of two, in the old and in the new segment, the newer counts."""
    heads = [_head(row, topic, journal_id) for row in rows]
    return heads[0] if len(heads) == 1 else max(heads, key=lambda head: head.offset)


def _head(row: CassandraRow, topic: Topic, journal_id: str) -> Head:
    partition, offset, segment_size, seq_nr, delete_to, created, updated = row[:7]
    expire_after, expire_on, record_id, origin, purged, halted_at, garbage, segment, written = row[7:16]
    tag_seq, expire_at = row[16:]
    if offset is None or partition is None:
        raise IntegrityViolated(f"{topic.name}:{journal_id}: the row in metajournal has no offset: restore it")
    if written != topic.base + offset:
        if written >= topic.base:
            raise ForeignWriter(
                f"{topic.name}:{journal_id}: another program wrote this head after Everlog took over the topic (at "
                f"{written}, not {topic.base + offset}): stop the other replicator: only Everlog may write into "
                "metajournal"
            )
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
        expire_after=None if expire_after is None else ExpireAfter.from_stored(StoredDuration(*expire_after)),
        expire_on=None if expire_on is None else date_from(expire_on),
        record_id=record_id,
        origin=origin,
        purged=bool(purged),
        halted_at=halted_at,
        garbage=_garbage(garbage) if garbage else (),
        legacy_segment=segment != head_segment(journal_id),
        tag_seq=dict(tag_seq) if tag_seq else None,
        expire_at=expire_at,
    )


def head_values(topic: Topic, journal_id: str, head: Head) -> list[Any]:
    """The columns of the statement `put_head`: the whole row, with explicit nulls."""
    segments = LEGACY_HEAD_SEGMENTS if head.legacy_segment else HEAD_SEGMENTS
    created, updated, after = head.created, head.updated, head.expire_after
    return [
        topic.name,
        head_segment(journal_id, segments),
        journal_id,
        head.partition,
        head.offset,
        head.segment_size,
        head.seq_nr or None,
        head.delete_to or None,
        None if created is None else timestamp(created),
        None if created is None else _day_of(created),
        None if updated is None else timestamp(updated),
        None if after is None else duration(after),
        None if head.expire_on is None else day_seconds(head.expire_on),
        head.record_id,
        head.origin,
        head.purged,
        head.halted_at,
        _encode(head.garbage).decode() if head.garbage else None,
        head.tag_seq or None,
        None if head.expire_at is None else timestamp(head.expire_at),
        topic.base + head.offset,
    ]


def row_values(topic: Topic, journal_id: str, segment: int, row: EventRecord) -> tuple[int, list[Any]]:
    """An event's columns in the order of `put_row`, without those that have no value; the number says which do."""
    values = [
        journal_id,
        topic.name,
        segment,
        row.seq_nr,
        timestamp(row.timestamp),
        row.partition,
        row.offset,
        row.metadata_json or NO_METADATA,
    ]
    shape = _add_optional(values, row)
    if row.ordering is not None:
        values.append(row.ordering)
        shape |= 512
    values.append(topic.base + row.offset)
    return shape, values


def tag_values(base: int, entry: TagEntry) -> tuple[int, list[Any]]:
    """The same for a row of a view, in the order of `put_tagged`."""
    tag, bucket, row = entry
    event = row.event
    values = [
        bucket.stored_tag(tag),
        bucket.start,
        str(row.offset),
        persistence_id_of(row.topic, row.id),
        row.number,
        event.seq_nr,
        timestamp(event.timestamp),
        event.partition,
        event.offset,
        event.metadata_json or NO_METADATA,
    ]
    shape = _add_optional(values, event)
    values.append(base + event.offset)
    return shape, values


def persistence_id_of(topic: str, journal_id: str) -> str:
    """A journal's name in tables that know no topics. No topic has a bar in its name."""
    return f"{topic}|{journal_id}"


def tag_row_from(row: CassandraRow) -> TagRow:
    """A row of the statement `tagged`."""
    offset, persistence_id, number, seq_nr, time, partition, place, *event = row
    topic, _, journal_id = persistence_id.partition("|")
    found = event_from((seq_nr, time, partition, place, *event, None))
    return TagRow(TimeUuid.of_stored(offset), topic, journal_id, number, found)


def progress_from(row: CassandraRow) -> TagProgress:
    """A row of the statement `progress`, without its tag; where all events were removed at once, only that is known."""
    seq_nr, number, offset, lowest = row
    lowest = lowest or 1
    place = TimeUuid(0, 0) if offset is None else TimeUuid.of_stored(offset)
    return TagProgress(seq_nr or 0, number or lowest - 1, place, lowest)


def _add_optional(values: list[Any], row: EventRecord) -> int:
    """Append the columns that a row may lack, as far as it has them; the number says which."""
    shape = 0
    if row.origin is not None:
        values.append(row.origin)
        shape |= 1
    if row.version is not None:
        values.append(row.version)
        shape |= 2
    if row.record_id is not None:
        values.append(row.record_id)
        shape |= 4
    if row.append_id is not None:
        values.append(row.append_id)
        shape |= 8
    if row.payload_type is not None:
        values.append(row.payload_type)
        shape |= 16
    if row.data is not None:
        values.append(row.data)
        shape |= 64 if row.payload_type == "binary" else 32
    if row.tags_json:
        values.append(set(_decode(row.tags_json)))
        shape |= 128
    if row.headers_json:
        values.append(_decode(row.headers_json))
        shape |= 256
    return shape


def event_from(row: CassandraRow) -> EventRecord:
    """An event from a row of the statement `rows`."""
    seq_nr, time, partition, offset, kind, text, data, tags, origin, version, life, append_id, *rest = row
    metadata, headers, ordering = rest
    return EventRecord(
        seq_nr,
        time,
        partition,
        offset,
        kind,
        data if text is None else text,
        encode_tags(tags) if tags else "",
        origin,
        version,
        life,
        append_id,
        "" if metadata is None or metadata == NO_METADATA else metadata,
        _encode(headers).decode() if headers else "",
        ordering,
    )


def waiting_values(topic: Topic, journal_id: str, kind: str, found: Quarantined) -> list[Any]:
    """The columns of the statement `put_waiting`; a record that belongs to no journal has the id ""."""
    record = found.record
    return [
        topic.name,
        journal_id,
        record.partition,
        record.offset,
        kind,
        found.reason,
        timestamp(record.timestamp),
        record.key,
        record.action,
        record.value,
        pack_headers(record.headers),
        topic.base + record.offset,
    ]


def rejected_values(topic: Topic, partition: int, journal_id: str, lost: Rejected) -> list[Any]:
    """The columns of the statement `put_rejected`."""
    return [
        topic.name,
        partition,
        lost.offset,
        journal_id,
        timestamp(lost.timestamp),
        lost.reason,
        lost.first,
        lost.last,
        lost.expected,
        lost.actual,
        lost.append_id,
        topic.base + lost.offset,
    ]


def snapshot_values(snapshot: Snapshot) -> list[Any]:
    """The columns of a snapshot behind its key."""
    binary = snapshot.payload_type == "binary"
    return [
        snapshot.seq_nr,
        timestamp(snapshot.timestamp),
        snapshot.payload_type,
        None if binary else snapshot.data,
        snapshot.data if binary else None,
        snapshot.record_id,
        snapshot.origin,
        snapshot.version,
        snapshot.metadata_json,
    ]


def snapshot_from(row: CassandraRow) -> Snapshot:
    """A snapshot from a row of the statement `snapshots`, without the slot."""
    seq_nr, time, kind, text, data, record_id, origin, version, metadata = row
    return Snapshot(seq_nr, time, kind, data if text is None else text, record_id, origin, version, metadata or "")
