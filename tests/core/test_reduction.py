"""The batch reduction of spec section 3.3, and that it never changes a result."""

from __future__ import annotations

import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.fold import fold, reduce, rowless
from everlog.core.record import Record
from tests.support import (
    append_record,
    broken_record,
    delete_record,
    entries,
    mark_record,
    pinned_topic,
    purge_record,
    resume_record,
)

TOPIC = pinned_topic()


def records(text: str) -> list[Record]:
    """`0:A1-2 1:D1 2:P 3:m`, as the specification writes batches."""
    found = []
    for offset, kind, first, last in re.findall(r"(\d+):([ADPm])(\d*)-?(\d*)", text):
        at = int(offset)
        if kind == "A":
            found.append(append_record(at, int(first), int(last or first)))
        elif kind == "D":
            found.append(delete_record(at, int(first)))
        else:
            found.append(purge_record(at) if kind == "P" else mark_record(at))
    return found


def reduced(text: str) -> str:
    """The reduced batch, as the specification writes it."""
    batch = records(text)
    ranges = {entry.record.offset: entry.action.range for entry in entries(*batch) if hasattr(entry.action, "range")}
    steps = []
    for step in reduce(entries(*batch)):
        if step.kind == "appends":
            spans = [ranges[offset] for offset in step.appends]
            names = [str(s.first) if s.first == s.last else f"{s.first}-{s.last}" for s in spans]
            steps.append(f"A[{','.join(names)}]@{step.offset}")
        else:
            steps.append(f"P@{step.offset}" if step.kind == "purge" else f"D{step.to}@{step.offset}")
    return " ".join(steps)


TABLE = [
    ("1:A1 2:D1 3:A2 4:D2", "A[2]@3 D2@4"),
    ("0:A1 1:A2 2:D1 3:A3 4:D3 5:A4", "A[3]@3 D3@4 A[4]@5"),
    ("0:A1 1:A2 2:m 3:D1 4:A3 5:A4 6:m", "A[2]@1 D1@3 A[3,4]@5"),
    ("0:A1 1:A2 2:A3 3:D1 4:A4 5:A5 6:D2 7:A6", "A[3,4,5]@5 D2@6 A[6]@7"),
    ("0:A1-2 1:A3-4 2:A5 3:D1 4:A6 5:A7 6:D3 7:A8", "A[3-4,5,6,7]@5 D3@6 A[8]@7"),
    ("2:D2 3:D1", "D2@2"),
    ("1:D10 2:D6", "D10@1"),
    ("0:A1-6 1:D3 2:D6", "A[1-6]@0 D6@2"),
    ("0:A1-4 1:A5-6 2:D3 3:D6", "A[5-6]@1 D6@3"),
    ("0:P 1:m 2:P", "P@2"),
    ("0:A1 1:P", "P@1"),
    ("0:P 1:A1", "P@0 A[1]@1"),
    ("0:P 1:D1", "P@0 D1@1"),
    ("1797039:A574 1801629:A575 1801632:m 1801642:D575", "A[575]@1801629 D575@1801642"),
]


@pytest.mark.case("kafka-journal", 25)
@pytest.mark.parametrize(("batch", "result"), TABLE)
def test_the_examples_of_the_specification(batch, result) -> None:
    """Every line of the table of examples."""
    assert reduced(batch) == result


@pytest.mark.case("kafka-journal", 25)
@pytest.mark.parametrize(
    ("batch", "result"),
    [
        # A mark is skipped, whatever follows.
        ("0:m", ""),
        ("0:m 1:P", "P@1"),
        ("0:m 1:D1", "D1@1"),
        ("0:m 1:A1", "A[1]@1"),
        # A purge is skipped only before a purge.
        ("0:P", "P@0"),
        ("0:P 1:P", "P@1"),
        ("0:P 1:D1", "P@0 D1@1"),
        ("0:P 1:A1", "P@0 A[1]@1"),
        # A delete before nothing, a purge, a delete.
        ("0:D1", "D1@0"),
        ("0:D1 1:P", "P@1"),
        ("0:D1 1:D2", "D2@1"),
        ("0:D2 1:D2", "D2@0"),
        ("0:D3 1:D2", "D3@0"),
        # A delete before appends: it counts if nothing later deletes as much.
        ("0:D1 1:A2", "D1@0 A[2]@1"),
        ("0:D1 1:A2 2:D2", "A[2]@1 D2@2"),
        ("0:D2 1:A3 2:D2", "A[3]@1 D2@2"),
        ("0:D3 1:A4 2:D2", "D3@0 A[4]@1 D2@2"),
        # An append before nothing, a purge, a delete.
        ("0:A1", "A[1]@0"),
        ("0:A1 1:P", "P@1"),
        ("0:A1 1:D1", "A[1]@0 D1@1"),
        # An append before appends: it counts if nothing later deletes it whole; the newer offset stays.
        ("0:A1 1:A2", "A[1,2]@1"),
        ("0:A1 1:A2 2:D1", "A[2]@1 D1@2"),
        ("0:A1-2 1:A3 2:D1", "A[1-2,3]@1 D1@2"),
        ("", ""),
    ],
)
def test_every_cell_of_the_rules(batch, result) -> None:
    """Each action, before nothing, a purge, a delete and appends."""
    assert reduced(batch) == result


@pytest.mark.case("kafka-journal", 25)
def test_what_is_reduced_away_gets_no_rows() -> None:
    """The fold still looks at it, so that numbers and expiry come out right; it only builds no rows for it."""
    batch = entries(*records("0:A1-2 1:A3-4 2:A5 3:D1 4:A6 5:A7 6:D3 7:A8"))
    assert rowless(batch, halted=False) == {0}
    assert rowless(entries(*records("0:A1 1:P 2:A1")), halted=False) == {0}
    assert rowless(entries(*records("0:A1 1:A2")), halted=False) == frozenset()
    change = fold(None, batch, TOPIC, rowless={0})
    assert [row.offset for row in change.rows] == [1, 2, 4, 5, 7]


def test_around_a_halt_nothing_is_left_out() -> None:
    """A resume may skip the very delete, or purge, that would have removed the rows."""
    batch = records("0:A1 1:A2 2:D2")
    assert rowless(entries(*batch), halted=False) == {0}
    assert rowless(entries(*batch), halted=True) == frozenset()
    assert rowless(entries(*batch, broken_record(3)), halted=False) == frozenset()
    assert rowless(entries(broken_record(0), append_record(1, 1), purge_record(2)), halted=False) == frozenset()
    assert rowless(entries(*batch, resume_record(3)), halted=False) == frozenset()


def test_a_delete_that_may_not_count_leaves_nothing_out() -> None:
    """It names a life; whether that is the present one is known only in the fold."""
    batch = entries(append_record(0, 1), append_record(1, 2), delete_record(2, 2, only_life=TOPIC.life(0, 9)))
    assert rowless(batch, halted=False) == frozenset()
    assert [row.seq_nr for row in fold(None, batch, TOPIC, rowless=rowless(batch, halted=False)).rows] == [1, 2]


steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 8), st.integers(0, 3), st.none() | st.integers(0, 6)),
    st.tuples(st.just("delete"), st.integers(1, 10), st.booleans(), st.none() | st.integers(0, 6)),
    st.tuples(st.sampled_from(["purge", "expire", "mark", "broken", "resume"]), st.none(), st.none(), st.none()),
)


def as_records(history) -> list[Record]:
    found: list[Record] = []
    for offset, (kind, number, extra, expected) in enumerate(history):
        if kind == "append":
            found.append(append_record(offset, number, number + extra, expected=expected, expire_after="1 day"))
        elif kind == "delete":
            life = None if expected is None else TOPIC.life(0, expected)  # as an append at that offset begins it
            found.append(delete_record(offset, number, if_exists=extra, only_life=life))
        elif kind == "purge":
            found.append(purge_record(offset))
        elif kind == "mark":
            found.append(mark_record(offset))
        elif kind == "broken":
            found.append(broken_record(offset))
        elif kind == "resume":
            # Skips every other record, and so some of the broken ones.
            found.append(resume_record(offset, skip=found[::2]))
        else:
            found.append(purge_record(offset, expire_on=TOMORROW))
    return found


TOMORROW = date(2023, 11, 16)


@pytest.mark.case("kafka-journal", 25)
@given(st.lists(steps, max_size=8), st.lists(steps, max_size=8))
def test_folding_without_needless_rows_gives_the_same(before, history) -> None:
    """Head, rows that stay, deletions, rejections, quarantine: equal with and without the reduction."""
    batch = as_records([*before, *history])
    first = fold(None, entries(*batch[: len(before)]), TOPIC)
    rest = entries(*batch[len(before) :])
    halted = first.head is not None and first.head.halted_at is not None
    plain = fold(first.head, rest, TOPIC, quarantined=first.waiting)
    fast = fold(first.head, rest, TOPIC, quarantined=first.waiting, rowless=rowless(rest, halted=halted))
    assert fast == plain
