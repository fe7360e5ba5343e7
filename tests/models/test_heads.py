"""A head in its cell, beside what kafka-journal left there: every set of writes, in every order of arrival."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, permutations

import pytest

from everlog.core.head import Head
from everlog.errors import ForeignWriter, IntegrityViolated
from everlog.store.cassandra import heads
from tests.models.switches import CellsDropped, ColumnsFirst, DroppedNow
from tests.models.tables import Tables, left_behind

BASE = 1_000_000
LIFE = "0b8e7c52-54b5-4e0e-9a55-6a9b0c6d7f01"
THEIRS = Head(partition=0, offset=5, segment_size=3, seq_nr=3, created=1, updated=2, record_id=LIFE)
OURS = {
    7: Head(partition=0, offset=7, segment_size=3, seq_nr=5, created=1, updated=4, record_id=LIFE),
    8: Head(partition=0, offset=8, segment_size=3, updated=5, purged=True),
    9: Head(partition=0, offset=9, segment_size=3, seq_nr=1, created=6, updated=6, record_id="another"),
}

WRITES: dict[str, Callable[[Tables], None]] = {
    "theirs": lambda tables: tables.lay_down("k", left_behind(THEIRS), BASE - 20),
    "theirs, a part": lambda tables: tables.lay_down("k", {"offset": 6, "seq_nr": 4}, BASE - 10),
    "theirs, too late": lambda tables: tables.lay_down("k", {"offset": 7, "seq_nr": 5}, BASE + 100),
    "ours": lambda tables: tables.put_head("k", OURS[7]),
    "our marker": lambda tables: tables.put_head("k", OURS[8]),
    "the marker is dropped": lambda tables: tables.delete_head("k", BASE + 8),
    "our next life": lambda tables: tables.put_head("k", OURS[9]),
}
SETS = [
    some
    for count in range(len(WRITES) + 1)
    for some in combinations(WRITES, count)
    # A part is written of what is there, and what is dropped is a marker.
    if ("theirs" in some or "theirs, a part" not in some)
    and ("our marker" in some or "the marker is dropped" not in some)
]


def right(some: tuple[str, ...]) -> Head | str | None:
    """What the row says, whichever write came first."""
    if "theirs, too late" in some:
        return "another program writes"
    if "our next life" in some:
        return OURS[9]
    if "the marker is dropped" in some:
        return None
    if "our marker" in some:
        return OURS[8]
    if "ours" in some:
        return OURS[7]
    if "theirs, a part" in some:
        return Head(partition=0, offset=6, segment_size=3, seq_nr=4, created=1, updated=2, record_id=LIFE)
    return THEIRS if "theirs" in some else None


def wrong_orders(kind: type[Tables]) -> list[tuple[str, ...]]:
    """The orders of writes after which the head is not what it must be."""
    found = []
    for some in SETS:
        for order in permutations(some):
            tables = kind(BASE)
            for name in order:
                WRITES[name](tables)
            try:
                head: Head | str | None = tables.head("k")
            except ForeignWriter:
                head = "another program writes"
            except IntegrityViolated:
                head = "nothing that can be read"
            if head != right(some):
                found.append(order)
    return found


@pytest.mark.case("kafka-journal", 30)
def test_a_head_is_the_newest_of_ours_or_else_theirs_in_whatever_order_writes_arrive() -> None:
    assert wrong_orders(Tables) == []


@pytest.mark.parametrize("kind", [ColumnsFirst, CellsDropped, DroppedNow])
def test_without_the_rule_some_order_gives_another_head(kind) -> None:
    assert wrong_orders(kind)


def test_without_the_look_at_the_times_another_program_goes_unnoticed(monkeypatch) -> None:
    taken = heads.head_from

    def trusting(rows, *place):
        return taken([(*row[:3], None, *row[4:]) for row in rows], *place)

    monkeypatch.setattr("tests.models.tables.head_from", trusting)
    found = wrong_orders(Tables)
    assert found
    assert all("theirs, too late" in order for order in found)


def test_a_cell_that_was_written_at_another_time_is_not_ours() -> None:
    for time in (BASE + 6, BASE + 8, BASE - 1):
        tables = Tables(BASE)
        tables.lay_down("k", {"head": heads.encode_head(OURS[7])}, time)
        with pytest.raises(ForeignWriter, match=f"column head at {time}"):
            tables.head("k")
