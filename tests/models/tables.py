"""Tables as Cassandra keeps them: cells with write timestamps, tombstones, no transactions.

Of two writes to a cell the one with the higher timestamp counts; of two with the same timestamp, a null wins over
a value and a larger value over a smaller one. A tombstone hides what has its timestamp or a lower one, whenever
that was or will be written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import date
from typing import Any

import msgspec

from everlog.core.change import Quarantined
from everlog.core.duration import ExpireAfter
from everlog.core.events import EventRecord
from everlog.core.head import Deletion, Head
from everlog.core.values import MAX_SEQ_NR
from everlog.store.port import Verdict

_decode_garbage = msgspec.json.Decoder(tuple[Deletion, ...]).decode


class Row:
    """The cells of one row."""

    def __init__(self) -> None:
        self.cells: dict[str, tuple[int, Any]] = {}
        self.deleted_at = -1

    def put(self, timestamp: int, values: Mapping[str, Any]) -> None:
        for column, value in values.items():
            old = self.cells.get(column)
            if old is None or timestamp > old[0] or (timestamp == old[0] and _wins(value, old[1])):
                self.cells[column] = (timestamp, value)

    def delete(self, timestamp: int) -> None:
        self.deleted_at = max(self.deleted_at, timestamp)

    def read(self) -> dict[str, Any]:
        """The columns that have a value."""
        return {
            column: value
            for column, (timestamp, value) in self.cells.items()
            if timestamp > self.deleted_at and value is not None
        }


def _wins(value: Any, over: Any) -> bool:
    if value is None or over is None:
        return over is not None
    return bool(value > over)


def head_columns(head: Head) -> dict[str, Any]:
    """A head as a whole row, with explicit nulls."""
    return {
        "partition": head.partition,
        "offset": head.offset,
        "segment_size": head.segment_size,
        "seq_nr": head.seq_nr or None,
        "delete_to": head.delete_to or None,
        "created": head.created,
        "updated": head.updated,
        "expire_after": None if head.expire_after is None else head.expire_after.nanos,
        "expire_on": None if head.expire_on is None else head.expire_on.isoformat(),
        "expire_at": head.expire_at,
        "record_id": head.record_id,
        "origin": head.origin,
        "purged": head.purged or None,
        "halted_at": head.halted_at,
        "garbage": msgspec.json.encode(head.garbage).decode() if head.garbage else None,
    }


def head_from(found: Mapping[str, Any]) -> Head:
    """What a reader makes of the cells that it finds, however they came together."""
    after, day = found.get("expire_after"), found.get("expire_on")
    return Head(
        partition=found.get("partition", 0),
        offset=found["offset"],
        segment_size=found.get("segment_size", 2),
        seq_nr=found.get("seq_nr", 0),
        delete_to=found.get("delete_to", 0),
        created=found.get("created"),
        updated=found.get("updated"),
        expire_after=None if after is None else ExpireAfter(after),
        expire_on=None if day is None else date.fromisoformat(day),
        expire_at=found.get("expire_at"),
        record_id=found.get("record_id"),
        origin=found.get("origin"),
        purged=found.get("purged", False),
        halted_at=found.get("halted_at"),
        garbage=_decode_garbage(found.get("garbage", "[]")),
    )


class Tables:
    """The tables of one topic with one log partition. Every method is one statement."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._heads: dict[str, Row] = defaultdict(Row)
        # By journal and segment: rows by seqNr and record time, and range tombstones as (up to seqNr, timestamp).
        self._events: dict[tuple[str, int], dict[tuple[int, int], tuple[int, EventRecord]]] = defaultdict(dict)
        self._event_tombstones: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        # By journal: records by offset, and range tombstones as (up to offset, timestamp).
        self._waiting: dict[str, dict[int, Quarantined]] = defaultdict(dict)
        self._waiting_tombstones: dict[str, list[tuple[int, int]]] = defaultdict(list)
        # By offset and what was taken up there, and below which offset they are dropped.
        self._verdicts: dict[tuple[int, int], Verdict] = {}
        self._verdicts_start = 0
        self._pointer = Row()

    def pointer(self) -> int:
        return int(self._pointer.read().get("offset", -1))

    def put_pointer(self, offset: int) -> None:
        self._pointer.put(self.base + offset, {"offset": offset})

    def head(self, journal_id: str) -> Head | None:
        found = self._heads[journal_id].read()
        return head_from(found) if "offset" in found else None

    def put_head(self, journal_id: str, offset: int, columns: Mapping[str, Any]) -> None:
        self._heads[journal_id].put(self.base + offset, columns)

    def delete_head(self, journal_id: str, offset: int) -> None:
        self._heads[journal_id].delete(self.base + offset)

    def put_event(self, journal_id: str, segment: int, event: EventRecord) -> None:
        rows, place, timestamp = (
            self._events[journal_id, segment],
            (event.seq_nr, event.timestamp),
            self.base + event.offset,
        )
        # All columns are written at once, so that one cell stands for them.
        if place not in rows or timestamp > rows[place][0]:
            rows[place] = (timestamp, event)

    def delete_events(self, journal_id: str, segment: int, to: int | None, offset: int) -> None:
        bound = MAX_SEQ_NR if to is None else to
        self._event_tombstones[journal_id, segment].append((bound, self.base + offset))

    def events(self, journal_id: str, segment: int) -> list[EventRecord]:
        """The live rows of a segment, in the order of their keys."""
        tombstones = self._event_tombstones[journal_id, segment]
        return [
            event
            for (seq_nr, _), (timestamp, event) in sorted(self._events[journal_id, segment].items(), key=_key)
            if not any(seq_nr <= to and timestamp <= deleted for to, deleted in tombstones)
        ]

    def all_events(self, journal_id: str) -> list[EventRecord]:
        """The live rows of a journal, whether or not anybody would look for them there."""
        segments = sorted(segment for owner, segment in self._events if owner == journal_id)
        return [event for segment in segments for event in self.events(journal_id, segment)]

    def put_waiting(self, journal_id: str, found: Quarantined) -> None:
        self._waiting[journal_id][found.record.offset] = found

    def delete_waiting(self, journal_id: str, to: int, offset: int) -> None:
        self._waiting_tombstones[journal_id].append((to, offset))

    def waiting(self, journal_id: str) -> list[Quarantined]:
        tombstones = self._waiting_tombstones[journal_id]
        return [
            found
            for offset, found in sorted(self._waiting[journal_id].items(), key=_key)
            if not any(offset <= to and offset <= deleted for to, deleted in tombstones)
        ]

    def put_verdict(self, verdict: Verdict) -> None:
        self._verdicts[verdict.offset, verdict.taken] = verdict

    def drop_verdicts(self, start: int) -> None:
        self._verdicts_start = max(self._verdicts_start, start)

    def verdicts(self, offset: int) -> list[Verdict]:
        """Those at one offset."""
        found = sorted(self._verdicts.items(), key=_key) if offset >= self._verdicts_start else []
        return [verdict for (at, _), verdict in found if at == offset]


def _key(item: tuple[Any, Any]) -> Any:
    return item[0]
