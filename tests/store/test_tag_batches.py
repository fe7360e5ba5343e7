"""How rows of views go to Cassandra: in batches of one partition, bounded in rows and bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.buckets import Bucket
from everlog.core.events import EventRecord
from everlog.core.timeuuid import TimeUuid, tick_of
from everlog.store.tag_port import TagEntry, TagRow

views = pytest.importorskip("everlog.store.cassandra.tag_tables")
HOUR = 3_600_000


def entry(at_ms: int, number: int = 1, *, tag: str = "t", size: int = 10, shard: int | None = None) -> TagEntry:
    event = EventRecord(number, at_ms, 0, number, "text", "x" * size)
    bucket = Bucket(at_ms // HOUR * HOUR, HOUR, shard)
    return TagEntry(tag, bucket, TagRow(TimeUuid(tick_of(at_ms), number), "journal-a", "k", number, event))


def numbers(batches) -> list[list[int]]:
    return [[found.row.number for found in batch] for batch in batches]


@pytest.mark.case("tags-and-projections", 8)
def test_batches_of_two(monkeypatch) -> None:
    """Four events of one bucket, two rows at a time: (1, 2), (3, 4). The batch that they came with is published only
    when all of it is written (that is the acknowledgement)."""
    monkeypatch.setattr(views, "MAX_ROWS", 2)
    assert numbers(views._batches([entry(nr, nr) for nr in (1, 2, 3, 4)])) == [[1, 2], [3, 4]]


@pytest.mark.case("tags-and-projections", 9)
def test_no_batch_has_two_buckets() -> None:
    """Events in buckets b, b, b+1: the first two go together, before the third."""
    found = list(views._batches([entry(0, 1), entry(HOUR - 1, 2), entry(HOUR, 3)]))
    assert numbers(found) == [[1, 2], [3]]
    assert numbers(views._batches([entry(0, 1), entry(0, 2, tag="u"), entry(0, 3, shard=1)])) == [[1], [2], [3]]


entries = st.lists(
    st.builds(
        entry,
        st.integers(0, 3 * HOUR),
        st.integers(1, 99),
        tag=st.sampled_from("tu"),
        size=st.sampled_from([0, 1_000, 200_000]),
        shard=st.sampled_from([None, 0, 1]),
    ),
    max_size=150,
)


@given(entries)
def test_batches_are_bounded_and_lose_nothing(found) -> None:
    batches = list(views._batches(found))
    assert sorted(map(id, (one for batch in batches for one in batch))) == sorted(map(id, found))
    for batch in batches:
        assert len({(one.bucket.stored_tag(one.tag), one.bucket.start) for one in batch}) == 1
        assert len(batch) <= views.MAX_ROWS
        assert len(batch) == 1 or sum(views.row_bytes(one.row.event) for one in batch) <= views.MAX_BYTES
    for one, two in pairwise(batches):
        same = (one[0].tag, one[0].bucket) == (two[0].tag, two[0].bucket)
        assert not same or len(one) >= views.MAX_ROWS or sum(map(_size, one)) + _size(two[0]) > views.MAX_BYTES


def _size(one: TagEntry) -> int:
    return views.row_bytes(one.row.event)
