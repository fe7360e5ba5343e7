"""The rows of the embedded store: its statements by name, and between our values and the columns of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import msgspec

from everlog.core.change import Quarantined, Rejected
from everlog.core.duration import ExpireAfter, StoredDuration, utc_day
from everlog.core.events import EventRecord
from everlog.core.head import Deletion, Head
from everlog.core.record import pack_headers, record_from
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import HEAD_SEGMENTS, LEGACY_HEAD_SEGMENTS, head_segment, segment_of
from everlog.runtime.statements import load_statements
from everlog.store.port import Verdict
from everlog.store.tag_port import TagEntry, TagRow

SQL = load_statements("everlog.store.sqlite")

_encode = msgspec.json.Encoder().encode
_duration = msgspec.json.Decoder(StoredDuration).decode
_garbage = msgspec.json.Decoder(tuple[Deletion, ...]).decode
_tag_seq = msgspec.json.Decoder(dict[str, int]).decode


def segments_for(journal_id: str) -> tuple[int, int]:
    """Where a head is looked for: its segment, and the one that it had when there were only a hundred."""
    return head_segment(journal_id), head_segment(journal_id, LEGACY_HEAD_SEGMENTS)


def head_from(rows: Sequence[tuple[Any, ...]], journal_id: str) -> Head:
    """A head from the rows of the statement `head`: of two, in the old and in the new segment, the newer counts."""
    row = rows[0] if len(rows) == 1 else max(rows, key=lambda row: row[1])
    expire_after, expire_on, garbage, segment, tag_seq = row[7], row[8], row[13], row[14], row[15]
    return Head(
        partition=row[0],
        offset=row[1],
        segment_size=row[2],
        seq_nr=row[3] or 0,
        delete_to=row[4] or 0,
        created=row[5],
        updated=row[6],
        expire_after=None if expire_after is None else ExpireAfter.from_stored(_duration(expire_after)),
        expire_on=None if expire_on is None else date.fromisoformat(expire_on),
        record_id=row[9],
        origin=row[10],
        purged=bool(row[11]),
        halted_at=row[12],
        garbage=() if garbage is None else _garbage(garbage),
        legacy_segment=segment != head_segment(journal_id),
        tag_seq=None if tag_seq is None else _tag_seq(tag_seq),
        expire_at=row[16],
    )


def head_values(topic: str, journal_id: str, head: Head) -> tuple[Any, ...]:
    """The columns of the statement `put_head`: the whole row, with explicit nulls."""
    segments = LEGACY_HEAD_SEGMENTS if head.legacy_segment else HEAD_SEGMENTS
    after = head.expire_after
    return (
        topic,
        head_segment(journal_id, segments),
        journal_id,
        head.partition,
        head.offset,
        head.segment_size,
        head.seq_nr or None,
        head.delete_to or None,
        head.created,
        None if head.created is None else utc_day(head.created // 1000).isoformat(),
        head.updated,
        None if after is None else _encode(after.stored()).decode(),
        None if head.expire_on is None else head.expire_on.isoformat(),
        head.record_id,
        head.origin,
        int(head.purged),
        head.halted_at,
        _encode(head.garbage).decode() if head.garbage else None,
        _encode(head.tag_seq).decode() if head.tag_seq else None,
        head.expire_at,
    )


def event_values(topic: str, journal_id: str, segment_size: int, row: EventRecord) -> tuple[Any, ...]:
    """The columns of the statements `put_row` and `put_binary_row`."""
    return (
        journal_id,
        topic,
        segment_of(row.seq_nr, segment_size),
        row.seq_nr,
        row.timestamp,
        row.partition,
        row.offset,
        row.origin,
        row.version,
        row.record_id,
        row.tags_json,
        row.metadata_json,
        row.payload_type,
        row.data,
        row.headers_json,
        row.append_id,
        row.ordering,
    )


def waiting_values(topic: str, journal_id: str | None, kind: str, found: Quarantined) -> tuple[Any, ...]:
    """The columns of the statement `put_waiting`."""
    record = found.record
    return (
        topic,
        record.partition,
        record.offset,
        journal_id,
        kind,
        found.reason,
        record.timestamp,
        record.key,
        record.action,
        record.value,
        pack_headers(record.headers),
    )


def tag_values(entry: TagEntry) -> tuple[Any, ...]:
    """The columns of the statement `put_tagged`."""
    tag, bucket, row = entry
    event, (tick, rank) = row.event, row.offset
    binary = event.payload_type == "binary"
    return (
        bucket.stored_tag(tag),
        bucket.start,
        tick,
        rank,
        row.topic,
        row.id,
        row.number,
        event.seq_nr,
        event.timestamp,
        event.partition,
        event.offset,
        event.payload_type,
        None if binary else event.data,
        event.data if binary else None,
        event.tags_json,
        event.origin,
        event.version,
        event.record_id,
        event.append_id,
        event.metadata_json,
        event.headers_json,
    )


def tag_row_from(row: tuple[Any, ...]) -> TagRow:
    """A row of the statement `tagged`."""
    return TagRow(TimeUuid(row[0], row[1]), row[2], row[3], row[4], EventRecord(*row[5:]))


def rejected_values(topic: str, partition: int, journal_id: str, lost: Rejected) -> tuple[Any, ...]:
    """The columns of the statement `put_rejected`."""
    return (
        topic,
        partition,
        lost.offset,
        journal_id,
        lost.timestamp,
        lost.reason,
        lost.first,
        lost.last,
        lost.expected,
        lost.actual,
        lost.append_id,
    )


def verdict_values(topic: str, partition: int, verdict: Verdict) -> tuple[Any, ...]:
    """The columns of the statement `put_verdict`."""
    place = (topic, partition, verdict.offset, verdict.taken, verdict.kind, verdict.id)
    record = verdict.record
    if record is None:
        return (*place, None, None, None, None, None)
    return (*place, record.timestamp, record.key, record.action, record.value, pack_headers(record.headers))


def verdict_from(row: tuple[Any, ...]) -> Verdict:
    """A row of the statement `verdicts`."""
    offset, kind, journal_id, *record = row
    return Verdict(offset, kind, journal_id, record_from(tuple(record)) if kind == "resumed" else None)
