"""Between our values and the columns of the tables."""

from __future__ import annotations

from typing import Any

import msgspec

from everlog.cassandra.values import timestamp
from everlog.core.change import Quarantined, Rejected
from everlog.core.codec import encode_tags
from everlog.core.events import EventRecord
from everlog.core.head import Topic
from everlog.core.record import pack_headers
from everlog.core.timeuuid import TimeUuid
from everlog.store.port import Snapshot
from everlog.store.tag_port import TagEntry, TagProgress, TagRow

CassandraRow = tuple[Any, ...]

NO_METADATA = '{"header":{},"payload":{}}'

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


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
