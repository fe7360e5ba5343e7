"""The index of a tail against a model that keeps everything."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everlog.core.record import Record
from everlog.log.kafka.index import DROPPED_FRACTION, RECORD_OVERHEAD_BYTES, TailBudget, cost

KEYS = [b"a", b"b", b"c", None]
MANY = 10**9


def record(offset: int, key: bytes | None = b"a", size: int = 1, partition: int = 0) -> Record:
    return Record(partition, offset, offset, key, b"{}", b"v" * size)


class IndexMachine(RuleBasedStateMachine):
    """Two partitions that share a budget. The log has holes; the model knows every record of it."""

    @initialize(records=st.integers(1, 30), size=st.integers(1, 30))
    def open(self, records, size):
        self.budget = TailBudget(records, size * (RECORD_OVERHEAD_BYTES + 20))
        self.indexes = [self.budget.open(at) for at in (0, 5)]
        self.logs = [{}, {}]
        self.ends = [0, 5]

    def _append(self, partition, gap, key, size):
        offset = self.ends[partition] + gap
        self.logs[partition][offset] = record(offset, key, size, partition)
        self.ends[partition] = offset + 1
        return offset

    @rule(partition=st.integers(0, 1), key=st.sampled_from(KEYS), size=st.integers(0, 40), gap=st.integers(0, 2))
    def append(self, partition, key, size, gap):
        """Somebody appends; holes are there before some records."""
        self._append(partition, gap, key, size)

    @rule(partition=st.integers(0, 1), key=st.sampled_from(KEYS), size=st.integers(0, 40))
    def acknowledge(self, partition, key, size):
        """Our own record: it enters if it is the next one, and then says where its key was before."""
        offset = self._append(partition, 0, key, size)
        index = self.indexes[partition]
        if index.upper == offset:
            lower = index.lower
            before = index.add(self.logs[partition][offset])
            assert index.upper == offset + 1
            assert lower - 1 <= before < offset
            self._nothing_between(partition, key, before, offset)

    def _nothing_between(self, partition, key, before, offset):
        assert [o for o, r in self.logs[partition].items() if before < o < offset and r.key == key and key] == []

    @rule(partition=st.integers(0, 1), data=st.data())
    def look_back(self, partition, data):
        """For any place of the index: nothing of the key lies between what it says and that place."""
        index = self.indexes[partition]
        offset = data.draw(st.integers(index.lower - 2, index.upper + 2))
        for key in (b"a", b"b", b"d"):
            before = index.previous(key, offset)
            assert (before is not None) == (index.lower <= offset <= index.upper)
            if before is not None:
                self._nothing_between(partition, key, before, offset)
                assert before == index.lower - 1 or self.logs[partition][before].key == key

    @rule(partition=st.integers(0, 1), back=st.integers(0, 3), many=st.integers(0, 12), hole=st.booleans())
    def extend(self, partition, back, many, hole):
        """A fetch from at or below the upper bound; behind the last record there may be a hole."""
        index, log = self.indexes[partition], self.logs[partition]
        start = max(0, index.upper - back)
        records = [log[offset] for offset in sorted(log) if offset >= start][:many]
        upto = records[-1].offset + 1 if records else index.upper
        if hole and not any(offset >= upto for offset in log):
            upto = self.ends[partition]
        index.extend(records, upto)
        assert index.upper >= upto

    @rule(partition=st.integers(0, 1), many=st.integers(1, 6))
    def prepend(self, partition, many):
        index, log = self.indexes[partition], self.logs[partition]
        first = max(0, index.lower - many)
        index.prepend([log[offset] for offset in sorted(log) if first <= offset < index.lower], first)

    @rule(partition=st.integers(0, 1), ahead=st.integers(0, 5))
    def restart(self, partition, ahead):
        self.indexes[partition].restart(self.indexes[partition].upper + ahead)
        self.ends[partition] = max(self.ends[partition], self.indexes[partition].upper)

    @precondition(lambda self: self.indexes[1].count > 3)
    @rule()
    def close(self):
        """A closed index gives its room back."""
        self.budget.close(self.indexes[1])
        self.indexes[1] = self.budget.open(self.indexes[1].upper)

    @rule(partition=st.integers(0, 1), data=st.data())
    def find(self, partition, data):
        index, log = self.indexes[partition], self.logs[partition]
        after = data.draw(st.integers(index.lower - 1, index.upper - 1))
        before = data.draw(st.integers(after + 1, index.upper))
        limit = data.draw(st.integers(1, 5))
        span = [log[offset] for offset in sorted(log) if after < offset < before]
        for key in (b"a", b"b", b"c", b"d"):
            assert index.find(key, after, before, limit) == [r for r in span if r.key == key][:limit]
        assert sorted(index.keys(after, before)) == sorted({r.key for r in span if r.key is not None})
        known = log.get(after)
        expected = known if index.lower <= after and known is not None and known.key is not None else None
        assert index.at(after) == expected

    @invariant()
    def everything_between_the_bounds_is_there(self):
        if not hasattr(self, "budget"):
            return
        for index, log in zip(self.indexes, self.logs, strict=True):
            assert index.lower <= index.upper
            kept = [r for o, r in sorted(log.items()) if index.lower <= o < index.upper and r.key is not None]
            for key in (b"a", b"b", b"c"):
                found = index.find(key, index.lower - 1, index.upper, MANY)
                assert found == [r for r in kept if r.key == key]
            assert index.count == len(kept)
            assert index.bytes == sum(map(cost, kept))

    @invariant()
    def the_budget_is_kept(self):
        if not hasattr(self, "budget"):
            return
        assert self.budget.records == sum(index.count for index in self.indexes) <= self.budget.max_records
        assert self.budget.bytes == sum(index.bytes for index in self.indexes) <= self.budget.max_bytes


TestIndex = IndexMachine.TestCase


def test_the_largest_index_makes_room():
    budget = TailBudget(10, MANY)
    small, large = budget.open(0), budget.open(0)
    small.extend([record(offset) for offset in range(2)], 2)
    large.extend([record(offset) for offset in range(8)], 8)
    small.extend([record(2)], 3)
    assert (small.lower, small.upper) == (0, 3)
    assert (large.lower, large.upper) == (8 // DROPPED_FRACTION + 1, 8)


def test_a_record_larger_than_the_bound_is_not_kept():
    budget = TailBudget(10, 2000)
    index = budget.open(0)
    index.extend([record(0, size=5000), record(1)], 2)
    assert index.lower == 1
    index.extend([record(2, size=5000)], 3)
    assert (index.lower, index.upper, index.count) == (3, 3, 0)


def test_what_fits_is_guessed_from_what_is_there():
    budget = TailBudget(1000, 100 * (RECORD_OVERHEAD_BYTES + 1000))
    assert budget.fits(100)
    assert not budget.fits(1001)
    budget.open(0).extend([record(offset, size=2000) for offset in range(10)], 10)
    assert budget.fits(40)
    assert not budget.fits(60)
    assert not budget.fits(40, beside=20)
