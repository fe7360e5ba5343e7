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

from everlog.core.change import Quarantined
from everlog.core.events import EventRecord
from everlog.core.head import Head, Topic
from everlog.core.values import MAX_SEQ_NR
from everlog.store.cassandra.expiry import Hint
from everlog.store.cassandra.heads import ListedHead, encode_head, head_from, listed
from everlog.store.port import Verdict


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
        return {column: value for column, (_, value) in self._live().items()}

    def times(self) -> dict[str, int]:
        """When they were written."""
        return {column: timestamp for column, (timestamp, _) in self._live().items()}

    def _live(self) -> dict[str, tuple[int, Any]]:
        return {
            column: (timestamp, value)
            for column, (timestamp, value) in self.cells.items()
            if timestamp > self.deleted_at and value is not None
        }


def _wins(value: Any, over: Any) -> bool:
    if value is None or over is None:
        return over is not None
    return bool(value > over)


def left_behind(head: Head) -> dict[str, Any]:
    """The columns that kafka-journal has for such a head, as they come back from the statement `head`."""
    return {
        "partition": head.partition,
        "offset": head.offset,
        "segment_size": head.segment_size,
        "seq_nr": head.seq_nr or None,
        "delete_to": head.delete_to or None,
        "created": head.created,
        "updated": head.updated,
        "expire_after": None if head.expire_after is None else head.expire_after.stored(),
        "expire_on": None if head.expire_on is None else head.expire_on.isoformat(),
        "record_id": head.record_id,
        "origin": head.origin,
    }


HOME = 0
COLUMNS = tuple(left_behind(Head(partition=0, offset=0, segment_size=2)))


class Hints:
    """A partition of hints: each row is its key and a write time, and so is a range tombstone."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._tombstones: list[tuple[str, str, int]] = []

    def put(self, key: str, timestamp: int) -> None:
        self._rows[key] = max(timestamp, self._rows.get(key, timestamp))

    def delete(self, first: str, last: str, timestamp: int) -> None:
        self._tombstones.append((first, last, timestamp))

    def read(self) -> list[str]:
        return [
            key
            for key, timestamp in sorted(self._rows.items())
            if not any(first <= key <= last and timestamp <= deleted for first, last, deleted in self._tombstones)
        ]


class Tables:
    """The tables of one topic with one log partition. Every method is one statement."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.topic = Topic("journal-model", "topic-id", 1, 2, base)
        self._heads: dict[str, Row] = defaultdict(Row)
        # Days, as text, and by day the ids that may expire on it; what was taken over has its hints.
        self._days = Hints()
        self._hints: dict[str, Hints] = defaultdict(Hints)
        self.is_taken_over = True
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

    def put_pointer(self, offset: int, timestamp: int | None = None) -> None:
        self._pointer.put(self.base + offset if timestamp is None else timestamp, {"offset": offset})

    def head(self, journal_id: str) -> Head | None:
        """As the store makes it of what stands in the row."""
        row = self._heads[journal_id]
        found, times = row.read(), row.times()
        if not found:
            return None
        columns = [found.get(name) for name in COLUMNS]
        cells = (HOME, found.get("head"), times.get("head"), times.get("offset"), *columns)
        return head_from([cells], self.topic, journal_id, HOME)

    def put_head(self, journal_id: str, head: Head) -> None:
        self._heads[journal_id].put(self.base + head.offset, {"head": encode_head(head)})

    def lay_down(self, journal_id: str, columns: Mapping[str, Any], timestamp: int) -> None:
        """Columns, as kafka-journal writes them: at a time of its own."""
        self._heads[journal_id].put(timestamp, columns)

    def delete_head(self, journal_id: str, timestamp: int) -> None:
        self._heads[journal_id].delete(timestamp)

    def listed_heads(self) -> dict[str, ListedHead]:
        """What a walk over all heads sees of those that Everlog wrote."""
        cells = {journal_id: row.read().get("head") for journal_id, row in self._heads.items()}
        return {journal_id: listed(cell) for journal_id, cell in cells.items() if cell is not None}

    def is_ours(self, journal_id: str) -> bool:
        """Whether Everlog has written the head."""
        return "head" in self._heads[journal_id].read()

    def taken_over_days(self) -> list[tuple[str, date]]:
        days = {journal_id: row.read().get("expire_on") for journal_id, row in self._heads.items()}
        return [(journal_id, date.fromisoformat(day)) for journal_id, day in days.items() if day is not None]

    def put_hint(self, hint: Hint) -> None:
        self._hints[hint.day.isoformat()].put(hint.id, self.base + hint.offset)

    def put_hint_day(self, day: date, offset: int) -> None:
        self._days.put(day.isoformat(), self.base + offset)

    def hints(self, day: date) -> list[str]:
        return self._hints[day.isoformat()].read()

    def hint_days(self, last: date = date.max) -> list[date]:
        return [day for text in self._days.read() if (day := date.fromisoformat(text)) <= last]

    def remove_hints(self, day: date, first: str, last: str, offset: int) -> None:
        self._hints[day.isoformat()].delete(first, last, self.base + offset)

    def remove_hint_day(self, day: date, offset: int) -> None:
        self._days.delete(day.isoformat(), day.isoformat(), self.base + offset)

    def put_event(self, journal_id: str, segment: int, event: EventRecord, timestamp: int | None = None) -> None:
        rows, place = self._events[journal_id, segment], (event.seq_nr, event.timestamp)
        timestamp = self.base + event.offset if timestamp is None else timestamp
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
