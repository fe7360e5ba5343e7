"""A record that cannot be decoded halts its journal: quarantine, resume, skip, and purge as a way out."""

from __future__ import annotations

from datetime import date

import pytest

from everlog.core.change import KEPT_BYTES
from everlog.core.fold import fold
from everlog.core.head import Deletion, Head, exists
from everlog.core.values import MAX_VALUE_BYTES
from tests.support import (
    append_record,
    broken_record,
    delete_record,
    entries,
    foreign_record,
    mark_record,
    pinned_topic,
    purge_record,
    resume_record,
    seq_nrs,
)

TOPIC = pinned_topic()


def run(head, *records, waiting=()):
    return fold(head, entries(*records), TOPIC, quarantined=waiting)


def offsets(found) -> list[int]:
    return [each.record.offset for each in found]


@pytest.mark.case("kafka-journal", 54)
def test_a_record_that_makes_no_sense_halts_its_journal() -> None:
    """It and every action after it wait, with their bytes; the events before it stay as they are."""
    records = [append_record(0, 1), broken_record(1), append_record(2, 2), mark_record(3), delete_record(4, 1)]
    change = run(None, *records)
    assert change.head is not None
    assert (change.head.seq_nr, change.head.delete_to) == (1, 0)
    assert (change.head.halted_at, change.head.offset) == (1, 4)
    assert seq_nrs(change) == [1]
    assert offsets(change.quarantined) == [1, 2, 4]
    assert change.quarantined == change.waiting
    assert [found.record for found in change.quarantined] == [records[1], records[2], records[4]]
    assert "waits for the record at offset 1" in change.quarantined[1].reason
    assert not change.deletions


def test_a_value_that_makes_no_sense_halts_as_well() -> None:
    record = append_record(0, 1)
    cut = type(record)(0, 0, record.timestamp, record.key, record.action, record.value[:-1])
    change = run(None, cut)
    assert change.head is not None
    assert change.head.halted_at == 0


def test_a_value_that_no_row_could_hold_halts_as_well() -> None:
    """Only its beginning waits, and taking that up again halts again; skipping it goes on."""
    change = run(None, append_record(0, 1, payload="x" * MAX_VALUE_BYTES), append_record(1, 1))
    assert change.head is not None
    assert change.head.halted_at == 0
    assert "no more than 12,582,912 go in" in change.quarantined[0].reason
    assert len(change.quarantined[0].record.value or b"") == KEPT_BYTES
    again = run(change.head, resume_record(2), waiting=change.waiting)
    assert again.head is not None
    assert again.head.halted_at == 0
    after = run(again.head, resume_record(3, [again.waiting[0].record]), waiting=again.waiting)
    assert seq_nrs(after) == [1]


def test_a_halt_of_an_absent_journal_is_kept() -> None:
    """A marker remembers it. It has a time, so that it can be dropped one day."""
    change = run(None, broken_record(5))
    assert change.head is not None
    assert not exists(change.head)
    assert (change.head.halted_at, change.head.offset) == (5, 5)
    assert change.head.updated is not None
    later = run(change.head, append_record(6, 1))
    assert offsets(later.quarantined) == [6]
    assert not later.rows


def test_a_purged_journal_halts_too() -> None:
    marker = run(None, append_record(0, 1), purge_record(1)).head
    change = run(marker, broken_record(2))
    assert change.head is not None
    assert (change.head.purged, change.head.halted_at) == (True, 2)


def test_strangers_and_marks_do_not_wait() -> None:
    halted = run(None, broken_record(0)).head
    change = run(halted, mark_record(1), foreign_record(2))
    assert change.head is halted
    assert not change.quarantined


def test_a_second_broken_record_waits_like_any_other() -> None:
    change = run(None, broken_record(0), broken_record(1))
    assert change.head is not None
    assert (change.head.halted_at, change.head.offset) == (0, 1)
    assert offsets(change.quarantined) == [0, 1]


def test_skip_takes_up_what_waited_in_order() -> None:
    """As if the bad record had never been: the same events, seqNr, deleteTo and life."""
    records = [append_record(0, 1), broken_record(1), append_record(2, 2, 3), delete_record(3, 1), append_record(4, 4)]
    change = run(None, *records, resume_record(5, skip=[broken_record(1)]))
    plain = run(None, *(record for record in records if record.offset != 1))
    assert change.head is not None
    assert plain.head is not None
    assert (change.head.halted_at, change.head.offset) == (None, 5)
    assert seq_nrs(change) == seq_nrs(plain) == [2, 3, 4]
    assert [row.offset for row in change.rows] == [2, 2, 4]
    for column in ("seq_nr", "delete_to", "record_id", "created", "updated"):
        assert getattr(change.head, column) == getattr(plain.head, column)
    assert not change.waiting
    assert not change.quarantined
    assert change.deletions[-1] == Deletion(offset=5, quarantine=5)


def test_a_skipped_record_may_be_any_that_waits() -> None:
    change = run(
        None,
        broken_record(0),
        append_record(1, 1),
        delete_record(2, 1),
        resume_record(3, skip=[broken_record(0), delete_record(2, 1)]),
    )
    assert seq_nrs(change) == [1]
    assert change.head is not None
    assert change.head.delete_to == 0


def test_a_waiting_append_may_lose() -> None:
    """What waited is folded by the same rules as everything else."""
    change = run(
        None,
        append_record(0, 1),
        broken_record(1),
        append_record(2, 2, expected=0),
        append_record(3, 2, expected=1, record_id=TOPIC.life(0, 0)),
        resume_record(4, skip=[broken_record(1)]),
    )
    assert [(lost.offset, lost.reason) for lost in change.rejected] == [(2, "conflict")]
    assert [row.offset for row in change.rows] == [0, 3]


def test_resume_without_skip_halts_again_at_a_record_that_still_makes_no_sense() -> None:
    change = run(None, append_record(0, 1), broken_record(1), append_record(2, 2), resume_record(3))
    assert change.head is not None
    assert (change.head.halted_at, change.head.offset, change.head.seq_nr) == (1, 3, 1)
    assert offsets(change.waiting) == [1, 2]
    assert offsets(change.quarantined) == [1, 2]


def test_resume_goes_as_far_as_the_next_broken_record() -> None:
    """What lies before the next one is taken and waits no longer; that one and the rest still wait."""
    change = run(
        None,
        broken_record(0),
        append_record(1, 1),
        broken_record(2),
        append_record(3, 2),
        resume_record(4, skip=[broken_record(0)]),
    )
    assert change.head is not None
    assert (change.head.halted_at, change.head.seq_nr, change.head.offset) == (2, 1, 4)
    assert offsets(change.waiting) == [2, 3]
    assert seq_nrs(change) == [1]
    assert change.deletions[-1] == Deletion(offset=4, quarantine=1)
    end = run(change.head, resume_record(5, skip=[broken_record(2)]), waiting=change.waiting)
    assert end.head is not None
    assert (end.head.halted_at, end.head.seq_nr) == (None, 2)
    assert seq_nrs(end) == [2]


def test_a_resume_of_a_journal_that_is_not_halted_does_nothing() -> None:
    head = run(None, append_record(0, 1)).head
    assert run(head, resume_record(1)).head is head
    assert run(None, resume_record(1)).head is None


def test_an_absent_journal_whose_only_record_is_skipped_is_absent() -> None:
    change = run(None, broken_record(0), resume_record(1, skip=[broken_record(0)]))
    assert change.head is not None
    assert not exists(change.head)
    assert change.head.halted_at is None


def test_a_purge_ends_the_halt_and_the_life() -> None:
    change = run(None, append_record(0, 1), broken_record(1), append_record(2, 2), purge_record(3), append_record(4, 1))
    assert change.head is not None
    assert (change.head.halted_at, change.head.seq_nr, change.head.record_id) == (None, 1, TOPIC.life(0, 4))
    assert [row.offset for row in change.rows] == [4]
    assert not change.waiting
    assert not change.quarantined
    assert Deletion(offset=3, quarantine=3) in change.deletions
    assert any(deletion.purge for deletion in change.deletions)


def test_a_purge_ends_the_halt_of_an_absent_journal() -> None:
    halted = run(None, broken_record(0), append_record(1, 1))
    change = run(halted.head, purge_record(2), waiting=halted.waiting)
    assert change.head == Head(partition=0, offset=2, segment_size=3, updated=change.head.updated, purged=True)
    assert change.deletions == [Deletion(offset=2, quarantine=2)]


def test_a_purge_for_expiry_waits_like_any_other_record() -> None:
    """Nobody knows what the bad record would have said about the expiry."""
    day = date(2030, 1, 1)
    halted = run(None, append_record(0, 1, expire_after="1 day"), broken_record(1), purge_record(2, expire_on=day))
    assert halted.head is not None
    assert halted.head.halted_at == 1
    assert offsets(halted.waiting) == [1, 2]
    change = run(halted.head, resume_record(3, skip=[broken_record(1)]), waiting=halted.waiting)
    assert not exists(change.head)
    assert change.purged_at == 2


@pytest.mark.case("kafka-journal", 54)
@pytest.mark.parametrize("cut", range(1, 8))
def test_where_the_batch_is_cut_does_not_matter(cut) -> None:
    """With a halt, a resume that gets stuck, another one and more appends: the same end for every cut."""
    records = [
        append_record(0, 1),
        broken_record(1),
        append_record(2, 2),
        broken_record(3),
        append_record(4, 3),
        resume_record(5, skip=[broken_record(1)]),
        resume_record(6, skip=[broken_record(3)]),
        append_record(7, 4),
    ]
    whole = run(None, *records)
    first = run(None, *records[:cut])
    second = run(first.head, *records[cut:], waiting=first.waiting)
    assert second.head == whole.head
    assert second.waiting == whole.waiting == []
    assert seq_nrs(first) + seq_nrs(second) == seq_nrs(whole) == [1, 2, 3, 4]
