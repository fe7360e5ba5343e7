"""Which of two rows for a key counts: ours, or the one that Akka or Pekko Projection wrote."""

from __future__ import annotations

import pytest

from everlog.projections.cassandra.offsets import OffsetRow, newest


def row(entry: str, stamp: int, offset: str | None, *, mergeable: bool = False) -> OffsetRow:
    return OffsetRow(entry, entry, 1, stamp, offset, "LNG", mergeable)


@pytest.mark.parametrize(
    ("own", "mirror", "offset"),
    [
        (None, row("a", 5, "1"), "1"),
        (row("a", 5, "2"), None, "2"),
        (row("a", 5, "2"), row("a", 5, "2"), "2"),
        (row("a", 9, "2"), row("a", 5, "1"), "2"),  # the process died before it wrote the mirror
        (row("a", 9, None), row("a", 5, "1"), None),  # or before it cleared it
        (row("a", 9, "2"), row("a", 10, "1"), "1"),  # set back by the other program
    ],
)
def test_the_row_that_was_written_last_counts(own, mirror, offset):
    (found,) = newest([own] if own else [], [mirror] if mirror else [])
    assert found.offset == offset


def test_keys_are_looked_at_one_by_one():
    found = newest([row("a", 5, "2"), row("c", 9, "7")], [row("a", 4, "1"), row("b", 4, "3"), row("c", 10, "8")])
    assert [(one.entry, one.offset) for one in found] == [("a", "2"), ("b", "3"), ("c", "8")]


def test_a_key_of_an_earlier_source_is_no_entry_of_a_map():
    """The projection reads a topic's records now; that a tag was its source once says nothing about them."""
    own = [row("orders-0", 5, "2", mergeable=True), row("orders", 5, None)]
    assert [one.entry for one in newest(own, [row("eu", 4, "1")])] == ["orders", "orders-0"]
