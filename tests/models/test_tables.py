"""The store double must be as treacherous as Cassandra is, or the model proves nothing."""

from __future__ import annotations

import pytest

from everlog.core.events import EventRecord
from tests.models.tables import Row, Tables


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ((1, "old"), (2, "new"), "new"),
        ((2, "new"), (1, "old"), "new"),
        ((1, "a"), (1, "b"), "b"),
        ((1, "b"), (1, "a"), "b"),
        ((1, "a"), (1, None), None),
        ((1, None), (1, "a"), None),
        ((1, None), (2, "a"), "a"),
    ],
)
def test_the_last_write_wins_then_null_then_the_larger_value(first, second, found) -> None:
    row = Row()
    for timestamp, value in (first, second):
        row.put(timestamp, {"column": value})
    assert row.read().get("column") == found


def test_a_row_tombstone_hides_what_is_as_old_whenever_it_comes() -> None:
    row = Row()
    row.delete(5)
    row.put(5, {"one": 1})
    row.put(6, {"two": 2})
    assert row.read() == {"two": 2}


def test_cells_of_different_writes_mix_in_a_row() -> None:
    row = Row()
    row.put(1, {"one": 1, "two": 1})
    row.put(2, {"two": 2})
    assert row.read() == {"one": 1, "two": 2}


def test_a_range_tombstone_hides_rows_up_to_its_bound_and_its_time() -> None:
    tables = Tables(base=1000)
    for seq_nr, offset in ((1, 3), (2, 7), (5, 3)):
        tables.put_event("a", 0, EventRecord(seq_nr, 0, 0, offset, None, None))
    tables.delete_events("a", 0, to=4, offset=3)
    assert [event.seq_nr for event in tables.events("a", 0)] == [2, 5]
    tables.delete_events("a", 0, to=None, offset=7)
    assert tables.events("a", 0) == []
    tables.put_event("a", 0, EventRecord(2, 0, 0, 7, None, None))
    assert tables.events("a", 0) == []


def test_the_pointer_never_moves_back() -> None:
    tables = Tables(base=1000)
    for offset in (4, 2):
        tables.put_pointer(offset)
    assert tables.pointer() == 4
