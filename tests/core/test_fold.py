"""The fold: appends, deletes, purges, expiry. Spec sections 5.1 to 5.3 with the rules that Everlog adds.

`H(s, d, o)` in a docstring is a head with seqNr s, deleteTo d and offset o.
"""

from __future__ import annotations

from datetime import date
from itertools import product

import msgspec
import pytest

from everlog.core.change import Change
from everlog.core.codec import EventData
from everlog.core.duration import ExpireAfter
from everlog.core.fold import fold, judge
from everlog.core.head import Deletion, Head, exists, seq_nr_of
from everlog.core.record import Record
from everlog.core.values import MAX_SEQ_NR
from tests.support import (
    START_MS,
    append_record,
    delete_record,
    entries,
    events_of,
    foreign_record,
    mark_record,
    pinned_topic,
    purge_record,
    seq_nrs,
)

TOPIC = pinned_topic(segment_size=3)


def run(head: Head | None, *records: Record, topic=TOPIC) -> Change:
    return fold(head, entries(*records), topic)


def head_of(seq_nr: int, delete_to: int, offset: int, **columns) -> Head:
    """A stored head of a life that began at offset 0."""
    values = {"segment_size": 3, "created": START_MS, "updated": START_MS, "record_id": TOPIC.life(0, 0), **columns}
    return Head(partition=0, offset=offset, seq_nr=seq_nr, delete_to=delete_to, **values)


def numbers(head: Head | None) -> tuple[int, int, int]:
    assert head is not None
    return head.seq_nr, head.delete_to, head.offset


# Appends


HEADS = {
    "absent": None,
    "living": head_of(3, 1, 5, tag_seq={"eu": 7}, expire_after=ExpireAfter.parse("1 day"), expire_on=date(2030, 1, 1)),
    "purged": Head(partition=0, offset=5, segment_size=3, purged=True, tag_seq={"eu": 7}),
    "deleted, of unknown life": head_of(3, 3, 5, record_id=None),
    "halted": head_of(3, 0, 5, halted_at=4),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_writer_judges_its_append_as_the_fold_does(head) -> None:
    """For every append that could follow: the same head, and the same loser or none."""
    lives = (None, TOPIC.life(0, 0), TOPIC.life(0, 1))
    outcomes = set()
    for offset, first, expected, life, tags, expire_after in product(
        (5, 6), (1, 3, 4, 9), (None, 0, 2, 3), lives, ((), ("eu", "us")), (None, "2 days")
    ):
        events = [EventData(seq_nr, tags, "text", "e") for seq_nr in (first, first + 1)]
        record = append_record(
            offset, first, first + 1, expected=expected, record_id=life, events=events, expire_after=expire_after
        )
        (entry,) = entries(record)
        change = fold(head, [entry], TOPIC)
        assert judge(head, entry, TOPIC) == (change.head, next(iter(change.rejected), None))
        outcomes.add((change.changed, bool(change.rejected)))
    assert len(outcomes) > 1, "some change the head and some do not"


@pytest.mark.case("kafka-journal", 10)
def test_the_first_append_begins_a_life() -> None:
    """A1@0 on nothing: H(1, none, 0), one row that carries the new record_id, created = updated."""
    change = run(None, append_record(0, 1, origin="host"))
    assert change.head == Head(
        partition=0,
        offset=0,
        segment_size=3,
        seq_nr=1,
        delete_to=0,
        created=START_MS,
        updated=START_MS,
        record_id=TOPIC.life(0, 0),
        origin="host",
    )
    (row,) = change.rows
    assert (row.seq_nr, row.timestamp, row.partition, row.offset) == (1, START_MS, 0, 0)
    assert (row.record_id, row.payload) == (TOPIC.life(0, 0), "e1")
    assert change.changed
    assert not change.deletions
    assert not change.rejected


def test_the_record_id_is_a_function_of_the_log() -> None:
    """The same place in the log gives the same life, every other place another one."""
    lives = {
        topic.life(partition, offset)
        for topic in (TOPIC, pinned_topic("journal-other"))
        for partition in (0, 1)
        for offset in (0, 1)
    }
    assert len(lives) == 8
    assert pinned_topic(segment_size=7, base=1).life(0, 0) == TOPIC.life(0, 0)


@pytest.mark.case("kafka-journal", 11)
def test_a_journal_may_begin_later_than_one() -> None:
    """A5-7@10 on nothing: H(7, 4, 10), as if what comes before had been deleted."""
    change = run(None, append_record(10, 5, 7))
    assert numbers(change.head) == (7, 4, 10)
    assert seq_nrs(change) == [5, 6, 7]


@pytest.mark.case("kafka-journal", 13)
@pytest.mark.parametrize("offset", [13, 31])
@pytest.mark.parametrize("make", [lambda o: append_record(o, 14), lambda o: delete_record(o, 5), purge_record])
def test_a_record_that_was_folded_before_changes_nothing(offset, make) -> None:
    """At or below the head's offset neither append nor delete nor purge does anything."""
    head = head_of(13, 0, 31)
    change = run(head, make(offset))
    assert change.head is head
    assert not change.changed
    assert not change.rows
    assert not change.deletions
    assert change.purged_at is None


def test_an_append_continues_a_life() -> None:
    """seqNr, offset and updated move; the rest of the head stays, and the rows carry its record_id."""
    head = head_of(3, 1, 5, origin="first", record_id="life")
    change = run(head, append_record(9, 4, 6, origin="second"))
    assert change.head == msgspec.structs.replace(head, seq_nr=6, offset=9, updated=START_MS + 9000)
    assert [row.record_id for row in change.rows] == ["life"] * 3
    assert [row.origin for row in change.rows] == ["second"] * 3


def test_gaps_are_accepted() -> None:
    change = run(None, append_record(0, 1), append_record(1, 3), append_record(2, 9, events=events_of([9])))
    assert seq_nrs(change) == [1, 3, 9]
    assert numbers(change.head) == (9, 0, 2)
    assert seq_nrs(run(None, append_record(0, 1, 9, events=events_of([1, 4, 9])))) == [1, 4, 9]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_fork_loses_as_a_whole(first) -> None:
    """An append that starts at or below the journal's seqNr leaves no row, not even those above it."""
    head = head_of(3, 0, 2)
    change = run(head, append_record(7, first, 6, append_id="lost"))
    assert change.head is head
    assert not change.rows
    (lost,) = change.rejected
    assert (lost.offset, lost.reason, lost.first, lost.last) == (7, "fork", first, 6)
    assert (lost.expected, lost.actual, lost.append_id) == (None, 3, "lost")


def test_a_seq_nr_does_not_come_back_after_its_event_was_deleted() -> None:
    change = run(head_of(3, 3, 2), append_record(7, 3))
    assert change.rejected[0].reason == "fork"


@pytest.mark.parametrize(
    ("first", "last", "inside"),
    [
        (1, 3, [1, 3, 2]),  # out of order, and so the end does not match
        (1, 3, [1, 1, 3]),
        (1, 4, [1, 3, 2, 4]),
        (1, 3, [1, 2]),
        (1, 3, [2, 3]),
        (1, 1, [2]),
    ],
)
def test_an_append_whose_events_do_not_match_its_range_loses(first, last, inside) -> None:
    change = run(None, append_record(0, first, last, events=events_of(inside)))
    assert change.head is None
    assert not change.rows
    assert [lost.reason for lost in change.rejected] == ["malformed range"]


def test_the_last_seq_nr_can_be_reached_and_not_passed() -> None:
    change = run(head_of(MAX_SEQ_NR - 1, 0, 1), append_record(2, MAX_SEQ_NR), append_record(3, MAX_SEQ_NR))
    assert numbers(change.head) == (MAX_SEQ_NR, 0, 2)
    assert [lost.offset for lost in change.rejected] == [3]


# Expectations


def test_the_first_append_whose_expectation_holds_wins() -> None:
    """Of three that expect 0, the first in the log wins; the next writer goes on from there."""
    life = TOPIC.life(0, 4)
    change = run(
        None,
        append_record(4, 1, expected=0, payload="a"),
        append_record(5, 1, expected=0, payload="b"),
        append_record(6, 1, 2, expected=0, payload="c"),
        append_record(7, 2, expected=1, record_id=life, payload="d"),
    )
    assert [row.payload for row in change.rows] == ["a1", "d2"]
    assert [(lost.offset, lost.reason, lost.expected, lost.actual) for lost in change.rejected] == [
        (5, "conflict", 0, 1),
        (6, "conflict", 0, 1),
    ]
    assert numbers(change.head) == (2, 0, 7)


@pytest.mark.parametrize("expected", [0, 2, 4])
def test_an_expectation_must_hold_exactly(expected) -> None:
    """Lower or higher than the journal's seqNr: both lose, even where the numbers would not collide."""
    head = head_of(3, 0, 2)
    change = run(head, append_record(7, 9, expected=expected, record_id=head.record_id))
    assert change.head is head
    assert [lost.reason for lost in change.rejected] == ["conflict"]


def test_an_expectation_holds_for_the_life_that_it_was_read_under() -> None:
    """A purge and a new life that happens to have the same seqNr do not let an old writer through."""
    old, new = TOPIC.life(0, 0), TOPIC.life(0, 2)
    first = run(None, append_record(0, 1), purge_record(1), append_record(2, 1))
    assert first.head is not None
    assert first.head.record_id == new
    late = run(first.head, append_record(3, 2, expected=1, record_id=old))
    assert [lost.reason for lost in late.rejected] == ["life"]
    right = run(first.head, append_record(3, 2, expected=1, record_id=new))
    assert seq_nrs(right) == [2]


def test_a_purged_journal_is_expected_at_zero() -> None:
    """After a purge `expected=0` holds again, and an expectation of the ended life does not."""
    old = TOPIC.life(0, 0)
    purged = run(None, append_record(0, 1), purge_record(1)).head
    assert run(purged, append_record(2, 1, expected=0)).rejected == []
    assert run(purged, append_record(2, 2, expected=1, record_id=old)).rejected[0].actual == 0
    assert run(purged, append_record(2, 1, expected=0, record_id=old)).rejected[0].reason == "life"


def test_a_delete_does_not_change_what_is_expected() -> None:
    change = run(
        None,
        append_record(0, 1, 3),
        delete_record(1, 3),
        append_record(2, 4, expected=3, record_id=TOPIC.life(0, 0)),
    )
    assert seq_nrs(change) == [4]


def test_a_delete_counts_in_the_life_that_it_names() -> None:
    """Of the present one it deletes; of one that is over, or of an absent journal, it changes nothing at all."""
    mine, old = TOPIC.life(0, 2), TOPIC.life(0, 0)
    lives = append_record(0, 1, 3), purge_record(1), append_record(2, 1, 3)
    late = run(None, *lives, delete_record(3, 2, only_life=old))
    assert numbers(late.head) == (3, 0, 2)
    assert seq_nrs(late) == [1, 2, 3]
    own = run(None, *lives, delete_record(3, 2, only_life=mine))
    assert numbers(own.head) == (3, 2, 3)
    assert seq_nrs(own) == [3]
    assert run(None, delete_record(1, 5, only_life=old)).head is None


def test_an_expectation_comes_before_the_numbers() -> None:
    """A loser that also forks is reported as a conflict: its writer asked for the expectation."""
    change = run(head_of(3, 0, 2), append_record(7, 2, expected=1, record_id=TOPIC.life(0, 0)))
    assert change.rejected[0].reason == "conflict"


# Deletes


@pytest.mark.case("kafka-journal", 15)
def test_a_plain_delete_of_an_absent_journal_creates_it() -> None:
    """D5@1 on nothing: H(5, 5, 1) without record_id; A6@2 then begins the life: H(6, 5, 2), one event."""
    first = run(None, delete_record(1, 5))
    assert numbers(first.head) == (5, 5, 1)
    assert first.head is not None
    assert first.head.record_id is None
    assert (first.head.created, first.head.updated) == (START_MS + 1000, START_MS + 1000)
    assert not first.deletions
    second = run(first.head, append_record(2, 6))
    assert numbers(second.head) == (6, 5, 2)
    assert seq_nrs(second) == [6]
    assert second.rows[0].record_id == TOPIC.life(0, 2)
    third = run(second.head, append_record(3, 7))
    assert third.rows[0].record_id == TOPIC.life(0, 2)


def test_everlogs_own_delete_leaves_an_absent_journal_absent() -> None:
    assert run(None, delete_record(1, 5, if_exists=True)).head is None
    purged = run(head_of(3, 0, 2), purge_record(3)).head
    assert run(purged, delete_record(4, 2, if_exists=True)).head is purged
    assert numbers(run(purged, delete_record(4, 2)).head) == (2, 2, 4)


@pytest.mark.case("kafka-journal", 16)
def test_a_delete_in_the_middle() -> None:
    """H(5, none, 1), D2@2: H(5, 2, 2); rows up to 2 go, from the segments of 1 to 2."""
    change = run(head_of(5, 0, 1), delete_record(2, 2))
    assert numbers(change.head) == (5, 2, 2)
    assert change.deletions == [Deletion(offset=2, first=0, last=0, to=2)]
    assert change.head is not None
    assert change.head.updated == START_MS + 2000


@pytest.mark.case("kafka-journal", 17)
def test_a_delete_past_the_end_stops_there() -> None:
    """H(5, none, 1), D99@2: H(5, 5, 2), both segments; D99@3 only moves the offset."""
    change = run(head_of(5, 0, 1), delete_record(2, 99))
    assert numbers(change.head) == (5, 5, 2)
    assert change.deletions == [Deletion(offset=2, first=0, last=1, to=5)]
    again = run(change.head, delete_record(3, 99))
    assert numbers(again.head) == (5, 5, 3)
    assert not again.deletions
    assert seq_nrs(run(again.head, append_record(4, 6))) == [6]


@pytest.mark.case("kafka-journal", 18)
def test_an_old_delete_is_not_repeated() -> None:
    """H(1, 1, 2), D1@1: nothing changes and no row is touched."""
    head = head_of(1, 1, 2)
    change = run(head, delete_record(1, 1))
    assert change.head is head
    assert not change.deletions


def test_a_delete_starts_where_the_last_one_ended() -> None:
    """H(9, 4, 1), D7@2 deletes from 5, that is from the second segment."""
    change = run(head_of(9, 4, 1), delete_record(2, 7))
    assert numbers(change.head) == (9, 7, 2)
    assert change.deletions == [Deletion(offset=2, first=1, last=2, to=7)]


def test_delete_to_never_moves_back() -> None:
    """H(6, 4, 1), D3@2: the original goes back to 3 here; Everlog stays at 4."""
    change = run(head_of(6, 4, 1), delete_record(2, 3))
    assert numbers(change.head) == (6, 4, 2)
    assert not change.deletions


def test_a_delete_takes_the_rows_of_its_own_batch_with_it() -> None:
    """What the batch itself appended and deleted is not written, yet still deleted: a crash may have written it."""
    change = run(None, append_record(0, 1, 4), delete_record(1, 2))
    assert seq_nrs(change) == [3, 4]
    assert change.deletions == [Deletion(offset=1, first=0, last=0, to=2)]


def test_a_delete_keeps_life_and_expiry() -> None:
    head = head_of(5, 0, 1, expire_after=ExpireAfter.parse("1 day"), expire_on=date(2023, 11, 15), origin="o")
    change = run(head, delete_record(2, 5))
    assert change.head == msgspec.structs.replace(head, offset=2, delete_to=5, updated=START_MS + 2000)


# Purges


@pytest.mark.case("kafka-journal", 19)
def test_a_purge_leaves_a_marker_and_nothing_else() -> None:
    """H(2, none, 3), P@4: no journal, no rows. What stays is a marker with the purge's offset, which guards."""
    change = run(head_of(2, 0, 3), purge_record(4))
    assert change.head == Head(partition=0, offset=4, segment_size=3, updated=START_MS + 4000, purged=True)
    assert not exists(change.head)
    assert seq_nr_of(change.head) == 0
    assert change.purged_at == 4
    assert change.deletions == [Deletion(offset=4, first=0, last=1, purge=True, record_id=TOPIC.life(0, 0))]


@pytest.mark.case("kafka-journal", 19)
def test_a_purge_of_nothing_does_nothing() -> None:
    """P@4 again, or on a journal that never was: unchanged, and no marker is made."""
    marker = run(head_of(2, 0, 3), purge_record(4)).head
    for head in (marker, None):
        for offset in (4, 5):
            change = run(head, purge_record(offset))
            assert change.head is head
            assert not change.deletions
            assert change.purged_at is None


@pytest.mark.parametrize(
    ("seq_nr", "delete_to", "first", "last"),
    [
        (2, 0, 0, 1),  # never deleted from: from the first segment on
        (10, 0, 0, 4),
        (10, 1, 0, 4),
        (10, 8, 1, 4),  # one segment below the deleted
        (10, 10, 2, 4),  # all deleted: three segments
        (4, 12, 0, 4),  # a head of others: more deleted than there was
        (13, 40, 3, 14),
    ],
)
def test_which_segments_a_purge_clears(seq_nr, delete_to, first, last) -> None:
    """From one segment below the first that may hold rows to one above the last."""
    (deletion,) = run(head_of(seq_nr, delete_to, 3), purge_record(4)).deletions
    assert (deletion.first, deletion.last, deletion.to) == (first, last, None)


def test_a_purge_takes_the_rows_of_its_own_batch_with_it() -> None:
    change = run(None, append_record(0, 1, 4), purge_record(1), append_record(2, 1))
    assert [(row.seq_nr, row.offset) for row in change.rows] == [(1, 2)]
    assert [deletion.offset for deletion in change.deletions] == [1]
    assert change.purged_at == 1


def test_a_marker_guards_against_what_was_before_the_purge() -> None:
    """Replayed from the beginning, records of the ended life do not come back."""
    records = [append_record(0, 1, 2), delete_record(1, 1), purge_record(2)]
    marker = run(None, *records).head
    again = run(marker, *records)
    assert again.head is marker
    assert not again.rows


@pytest.mark.case("kafka-journal", 21)
def test_the_next_life_is_another_one() -> None:
    """After a purge: another record_id, the topic's segment size, a new creation time, nothing of the old."""
    head = head_of(7, 3, 3, segment_size=5, origin="old", expire_on=date(2023, 11, 15))
    change = run(head, purge_record(4), append_record(5, 1, origin="new"))
    assert change.head == Head(
        partition=0,
        offset=5,
        segment_size=3,
        seq_nr=1,
        created=START_MS + 5000,
        updated=START_MS + 5000,
        record_id=TOPIC.life(0, 5),
        origin="new",
    )
    assert change.head.record_id != head.record_id


@pytest.mark.case("kafka-journal", 22)
def test_a_journal_keeps_its_segment_size() -> None:
    """Made with segments of 3 in a topic that now says 10: appends and deletes still reckon with 3."""
    topic = pinned_topic(segment_size=10)
    change = run(head_of(5, 0, 1), append_record(2, 6, 9), delete_record(3, 8), topic=topic)
    assert change.head is not None
    assert change.head.segment_size == 3
    assert change.deletions == [Deletion(offset=3, first=0, last=2, to=8)]
    purged = run(change.head, purge_record(4), topic=topic)
    assert purged.deletions[0].last == 3
    assert purged.head is not None
    again = run(purged.head, append_record(5, 1), topic=topic)
    assert again.head is not None
    assert again.head.segment_size == 10


@pytest.mark.case("kafka-journal", 23)
def test_a_head_in_a_legacy_segment_stays_there() -> None:
    """Append, delete, purge and the next life all go to the row that is there; a second one is never made."""
    head = head_of(2, 0, 1, legacy_segment=True)
    for records in (
        [append_record(2, 3)],
        [delete_record(2, 1)],
        [purge_record(2)],
        [purge_record(2), append_record(3, 1)],
        [purge_record(2), delete_record(3, 4)],
    ):
        change = run(head, *records)
        assert change.head is not None
        assert change.head.legacy_segment


# Marks, and what is not for us


def test_marks_and_strangers_do_nothing() -> None:
    """They do not even move the head's offset: pointer2 alone passes them."""
    head = head_of(2, 0, 1)
    for start in (None, head):
        change = run(start, mark_record(5), foreign_record(6))
        assert change.head is start
        assert not change.changed


# Expiry


@pytest.mark.case("kafka-journal", 24)
def test_the_last_append_says_when_a_journal_expires() -> None:
    """One minute, then two, then nothing: each append replaces what the one before said."""
    first = run(None, append_record(0, 1, expire_after="1 min"))
    assert first.head is not None
    assert first.head.expire_after == ExpireAfter.parse("1 min")
    assert (first.head.expire_on, first.head.expire_at) == (date(2023, 11, 14), START_MS + 60_000)
    second = run(first.head, append_record(1, 2, expire_after="2 days"))
    assert second.head is not None
    assert second.head.expire_after == ExpireAfter.parse("2 days")
    assert second.head.expire_on == date(2023, 11, 16)
    third = run(second.head, append_record(2, 3))
    assert third.head is not None
    assert third.head.expire_after is None
    assert third.head.expire_on is third.head.expire_at is None


@pytest.mark.case("kafka-journal", 24)
def test_the_same_expiry_a_day_later_is_a_day_later() -> None:
    """The date is reckoned from the record's own time, so a replay gives the same one."""
    day = 86_400_000
    first = run(None, append_record(0, 1, expire_after="1 day"))
    second = run(first.head, append_record(1, 2, expire_after="1 day", timestamp=START_MS + day))
    assert first.head is not None
    assert first.head.expire_on == date(2023, 11, 15)
    assert second.head is not None
    assert second.head.expire_on == date(2023, 11, 16)


@pytest.mark.case("kafka-journal", 24)
def test_a_batch_expires_as_its_last_append_says() -> None:
    """Also when a delete of the same batch takes all the events away again."""
    change = run(
        None,
        append_record(0, 1, expire_after="5 days"),
        append_record(1, 2, expire_after="2 days"),
        delete_record(2, 2),
    )
    assert change.head is not None
    assert change.head.expire_after == ExpireAfter.parse("2 days")


def test_a_rejected_append_does_not_touch_the_expiry() -> None:
    head = run(None, append_record(0, 1, expire_after="2 days")).head
    assert run(head, append_record(1, 1, expire_after="9 days")).head is head


@pytest.mark.case("kafka-journal", 50)
@pytest.mark.parametrize(
    ("expires", "day", "gone"),
    [
        ("1 day", date(2023, 11, 15), True),  # on that day
        ("1 day", date(2023, 11, 20), True),  # a missed day is caught up
        ("1 day", date(2023, 11, 14), False),  # not yet
        (None, date(2023, 11, 20), False),  # never
    ],
)
def test_a_purge_for_expiry_looks_at_the_date_where_it_stands_in_the_log(expires, day, gone) -> None:
    """It ends the life only if the folded date is reached or passed."""
    change = run(None, append_record(0, 1, expire_after=expires), purge_record(1, expire_on=day))
    assert exists(change.head) is not gone
    assert (change.purged_at == 1) is gone
    assert seq_nrs(change) == ([] if gone else [1])


@pytest.mark.parametrize(("after_ms", "gone"), [(0, True), (1, True), (-1, False)])
def test_a_purge_for_expiry_looks_at_the_time_if_it_has_one(after_ms, gone) -> None:
    """23 hours end an hour before the day does, or wherever they do: the day alone decides nothing."""
    until = START_MS + 23 * 3_600_000 + after_ms
    for day in (date(2023, 11, 14), date(2023, 11, 20), None):
        purge = purge_record(1, expire_on=day, expire_at=until)
        change = run(None, append_record(0, 1, expire_after="23h"), purge)
        assert exists(change.head) is not gone
        assert exists(run(None, append_record(0, 1), purge).head), "one that never expires"


def test_a_head_that_knows_its_day_only_expires_on_that_day() -> None:
    """As one that was taken over from kafka-journal; a purge that has no day leaves it alone."""
    head = head_of(1, 0, 1, expire_after=ExpireAfter.parse("1 day"), expire_on=date(2023, 11, 15))
    for day, gone in ((14, False), (15, True), (16, True)):
        assert exists(run(head, purge_record(2, expire_on=date(2023, 11, day), expire_at=START_MS)).head) is not gone
    assert exists(run(head, purge_record(2, expire_at=START_MS * 2)).head)


def test_a_duration_before_zero_expires_at_once() -> None:
    change = run(None, append_record(0, 1, expire_after="-3 days"), purge_record(1, expire_at=START_MS))
    assert not exists(change.head)


@pytest.mark.case("kafka-journal", 50)
def test_an_append_that_extends_the_life_wins() -> None:
    """Between the search for expired journals and the purge, somebody appended: the journal stays."""
    change = run(
        None,
        append_record(0, 1, expire_after="1 day"),
        append_record(1, 2, expire_after="9 days"),
        purge_record(2, expire_on=date(2023, 11, 15), expire_at=START_MS + 8 * 86_400_000),
    )
    assert seq_nrs(change) == [1, 2]
    assert numbers(change.head) == (2, 0, 1)


# Heads that others wrote


def test_a_delete_repairs_a_head_that_says_more_was_deleted_than_there_was() -> None:
    """H(300, 400), D200: the seqNr becomes 400; the original then goes back to 200, Everlog stays at 400."""
    change = run(head_of(300, 400, 1), delete_record(2, 200))
    assert numbers(change.head) == (400, 400, 2)
    assert not change.deletions


def test_a_head_without_record_id_keeps_none_for_its_life() -> None:
    """While events of before may be there, rows go on without one: null matches null."""
    head = head_of(5, 2, 1, record_id=None)
    change = run(head, append_record(2, 6, expected=5))
    assert change.head is not None
    assert change.head.record_id is None
    assert change.rows[0].record_id is None


def test_a_head_without_record_id_and_without_events_gets_one() -> None:
    change = run(head_of(5, 5, 1, record_id=None), append_record(2, 6, expected=5))
    assert change.head is not None
    assert change.head.record_id == TOPIC.life(0, 2)
    assert change.rows[0].record_id == TOPIC.life(0, 2)


# Rows


def test_a_row_carries_all_of_its_append() -> None:
    events = [EventData(1, ("b", "a"), "json", '{"k":1}'), EventData(2, (), "binary", b"\x00")]
    record = append_record(0, 1, 2, events=events, append_id="1.x", metadata={"m": 1}, expire_after="1 day", origin="o")
    (first, second) = run(None, msgspec.structs.replace(record, headers=(("h", b"1"), ("h", b"2")))).rows
    assert first.payload == {"k": 1}
    assert first.tags == {"a", "b"}
    assert first.headers == {"h": "2"}
    assert first.metadata == {"header": {}, "payload": {"expireAfter": "1 day", "data": {"m": 1}}}
    assert (first.origin, first.append_id) == ("o", "1.x")
    assert second.payload == b"\x00"
    assert second.tags == frozenset()
