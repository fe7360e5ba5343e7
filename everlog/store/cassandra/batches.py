"""Event rows as statements: one batch for what goes into one partition, bounded in rows and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from everlog.errors import Refused
from everlog.journal.events import EventRecord
from everlog.journal.head import Topic
from everlog.journal.values import segment_of
from everlog.store.base import KeyChange
from everlog.store.cassandra.rows import bind_row
from everlog.store.cassandra.session import Request, make_batch

MAX_ROWS = 100
MAX_BYTES = 256 * 1024
# Just below the 16 MiB that a server takes by default. It does not only refuse a larger request: others on the same
# connection get no answer. So it is not sent.
MAX_ROW_BYTES = 15 * 1024 * 1024
# What a row's columns take beside payload, headers and metadata; a guess on the safe side.
ROW_BYTES = 300


def row_requests(prepared: Any, topic: Topic, key: KeyChange) -> Iterator[Request]:
    """A statement or a batch for every partition that a journal's new rows go into."""
    change = key.change
    assert change.head is not None
    # Where a purge is part of the batch, a row may take the place of one of the life before, which is still there:
    # then what it lacks is written as null. Otherwise it is left out, because nulls are tombstones.
    whole = change.purged_at is not None
    size = change.head.segment_size
    for segment, rows in partitions(change.rows, size):
        statements = [bind_row(prepared, topic, key.id, row, segment, whole=whole) for row in rows]
        yield statements[0] if len(statements) == 1 else make_batch(statements)


def partitions(rows: Sequence[EventRecord], segment_size: int) -> Iterator[tuple[int, Sequence[EventRecord]]]:
    """Runs of rows that go into one partition, and its segment; each fits into one batch."""
    start, size, segment = 0, 0, -1
    for at, row in enumerate(rows):
        row_size, row_segment = row_bytes(row), segment_of(row.seq_nr, segment_size)
        if row_size > MAX_ROW_BYTES:
            raise Refused(f"the event {row.seq_nr} is too large for a row: {row_size:,} bytes, {MAX_ROW_BYTES:,} go in")
        if at > start and (row_segment != segment or at - start >= MAX_ROWS or size + row_size > MAX_BYTES):
            yield segment, rows[start:at]
            start, size = at, 0
        segment = row_segment
        size += row_size
    yield segment, rows[start:]


def row_bytes(row: EventRecord) -> int:
    """About how many bytes a row takes; text counts as if it were not plain ASCII only where that is cheap to see."""
    data = row.data
    length = 0 if data is None else len(data) if isinstance(data, bytes) or data.isascii() else 4 * len(data)
    return ROW_BYTES + length + len(row.headers_json) + len(row.metadata_json) + len(row.tags_json)
