"""The index of a tail: what was fetched of a partition, by key, without holes, and bounded. No Kafka in here."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

from everlog.core.record import Record

# What a record takes in memory besides its bytes: objects, list entries, its share of the dictionary.
RECORD_OVERHEAD_BYTES = 350
# Of the largest index, one record in this many is dropped for room: few enough that they need not be fetched again.
DROPPED_FRACTION = 8

_offset = attrgetter("offset")


def cost(record: Record) -> int:
    """About how many bytes a record takes in memory."""
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.action or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value) + RECORD_OVERHEAD_BYTES // 2
    return size


class TailBudget:
    """What all indexes of a process may take together; the oldest records of the largest one go first."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.records = 0
        self.bytes = 0
        self._seen_records = 0
        self._seen_bytes = 0
        self._indexes: list[TailIndex] = []

    def open(self, at: int) -> TailIndex:
        """A new index that starts, empty, at this offset."""
        index = TailIndex(at, self)
        self._indexes.append(index)
        return index

    def close(self, index: TailIndex) -> None:
        """Let go of an index."""
        index.restart(index.upper)
        self._indexes.remove(index)

    def fits(self, records: int, *, beside: int = 0) -> bool:
        """Whether `records` more fit beside these, estimated from the sizes that were seen so far."""
        average = self._seen_bytes / self._seen_records if self._seen_records else RECORD_OVERHEAD_BYTES
        return records + beside <= self.max_records and (records + beside) * average <= self.max_bytes

    def take(self, records: int, size: int) -> None:
        """Count what came in, and make room if it is too much."""
        self.records += records
        self.bytes += size
        self._seen_records += records
        self._seen_bytes += size
        if self.records > self.max_records or self.bytes > self.max_bytes:
            self._make_room()

    def give(self, records: int, size: int) -> None:
        """Count what went."""
        self.records -= records
        self.bytes -= size

    def _make_room(self) -> None:
        while self.records > self.max_records:
            max(self._indexes, key=attrgetter("count")).drop_oldest()
        while self.bytes > self.max_bytes:
            max(self._indexes, key=attrgetter("bytes")).drop_oldest()


class TailIndex:
    """One partition's records with offsets from `lower` up to but not including `upper`, by key.

    Every record of that range that has a key is in it. Offsets may be missing in the log, and records without a key
    are not kept; the range covers both all the same.
    """

    __slots__ = ("_budget", "_keys", "_order", "bytes", "lower", "upper")

    def __init__(self, at: int, budget: TailBudget) -> None:
        self._budget = budget
        self._keys: dict[bytes, list[Record]] = {}
        self._order: list[Record] = []
        self.lower = at
        self.upper = at
        self.bytes = 0

    @property
    def count(self) -> int:
        """How many records it holds."""
        return len(self._order)

    def add(self, record: Record) -> int:
        """Add the very next record. Returns the offset from which its key has no other one, see `previous`."""
        assert record.offset == self.upper
        key = record.key
        self.upper += 1
        if key is None:
            return self.lower - 1
        known = self._keys.get(key)
        if known is None:
            self._keys[key] = [record]
            before = self.lower - 1
        else:
            before = known[-1].offset
            known.append(record)
        self._order.append(record)
        size = cost(record)
        self.bytes += size
        self._budget.take(1, size)
        return before

    def previous(self, key: bytes, offset: int) -> int | None:
        """The offset from which the key has no other record below `offset`; None if that is not known.

        That is the offset of the key's record before it, or the one below `lower` if there is none.
        """
        if not self.lower <= offset <= self.upper:
            return None
        known = self._keys.get(key, ())
        found = bisect_left(known, offset, key=_offset)
        return known[found - 1].offset if found else self.lower - 1

    def extend(self, records: Sequence[Record], upto: int) -> None:
        """Add what was read from `upper` or below, up to but not including `upto`; what is known already is skipped."""
        if upto <= self.upper:
            return
        if records and records[0].offset < self.upper:
            records = records[bisect_left(records, self.upper, key=_offset) :]
        assert not records or records[-1].offset < upto
        keys, order, size, count = self._keys, self._order, 0, 0
        for record in records:
            key = record.key
            if key is not None:
                known = keys.get(key)
                if known is None:
                    keys[key] = [record]
                else:
                    known.append(record)
                order.append(record)
                size += cost(record)
                count += 1
        self.upper = upto
        self.bytes += size
        self._budget.take(count, size)

    def prepend(self, records: Sequence[Record], first: int) -> None:
        """Add all records from `first` up to `lower`."""
        assert first <= self.lower
        assert not records or (first <= records[0].offset and records[-1].offset < self.lower)
        kept = [record for record in records if record.key is not None]
        earlier: dict[bytes, list[Record]] = {}
        for record in kept:
            assert record.key is not None
            earlier.setdefault(record.key, []).append(record)
        for key, found in earlier.items():
            self._keys[key] = found + self._keys.get(key, [])
        self._order[:0] = kept
        self.lower = first
        size = sum(map(cost, kept))
        self.bytes += size
        self._budget.take(len(kept), size)

    def find(self, key: bytes, after: int, before: int, limit: int) -> list[Record]:
        """The key's records with `after < offset < before`, oldest first; the range must be covered."""
        assert self.lower <= after + 1
        assert before <= self.upper
        known = self._keys.get(key)
        if known is None:
            return []
        # Nearly always the newest are asked for.
        start = len(known) if known[-1].offset <= after else bisect_left(known, after + 1, key=_offset)
        stop = len(known) if known[-1].offset < before else bisect_left(known, before, key=_offset)
        return known[start : min(stop, start + limit)]

    def keys(self, after: int, before: int) -> list[bytes]:
        """The distinct keys of the records with `after < offset < before`."""
        order = self._order
        start, stop = bisect_left(order, after + 1, key=_offset), bisect_left(order, before, key=_offset)
        return list(dict.fromkeys(record.key for record in order[start:stop] if record.key is not None))

    def at(self, offset: int) -> Record | None:
        """The record at this offset, if it is here."""
        found = bisect_left(self._order, offset, key=_offset)
        if found < len(self._order) and self._order[found].offset == offset:
            return self._order[found]
        return None

    def restart(self, at: int) -> None:
        """Forget everything and begin at this offset."""
        self._keys.clear()
        count, size = len(self._order), self.bytes
        self._order = []
        self.bytes = 0
        self.lower = self.upper = at
        self._budget.give(count, size)

    def drop_oldest(self) -> None:
        """Drop the oldest part of the records; `lower` rises above them."""
        dropped = self._order[: len(self._order) // DROPPED_FRACTION + 1]
        for key, count in Counter(record.key for record in dropped).items():
            assert key is not None
            known = self._keys[key]
            if len(known) == count:
                del self._keys[key]
            else:
                del known[:count]
        del self._order[: len(dropped)]
        self.lower = dropped[-1].offset + 1
        size = sum(map(cost, dropped))
        self.bytes -= size
        self._budget.give(len(dropped), size)
