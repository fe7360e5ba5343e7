"""The numbers that the fold gives to tagged events."""

from __future__ import annotations

import msgspec
import pytest

from everlog.core.change import Change
from everlog.core.codec import EventData
from everlog.core.fold import fold
from everlog.core.head import Head
from everlog.core.tag_names import slice_tag
from tests.support import (
    append_record,
    broken_record,
    delete_record,
    entries,
    pinned_topic,
    purge_record,
    resume_record,
)

TOPIC = pinned_topic()


def tagged(offset: int, first: int, *tags: tuple[str, ...], **more):
    """An append at this offset; one event per tuple of tags."""
    events = [EventData(first + at, found, "text", "e") for at, found in enumerate(tags)]
    return append_record(offset, first, first + len(tags) - 1, events=events, **more)


def run(head: Head | None, *records, **more) -> Change:
    return fold(head, entries(*records), TOPIC, **more)


def numbers(change: Change) -> list[tuple[int, dict[str, int]]]:
    return [(found.row.seq_nr, dict(found.numbers)) for found in change.tagged]


@pytest.mark.case("tags-and-projections", 7)
def test_numbers_count_the_events_of_a_tag() -> None:
    """Of five events the second and the fourth carry the tag: they get 1 and 2."""
    change = run(None, tagged(0, 1, (), ("t",), (), ("t",), ()))
    assert numbers(change) == [(2, {"t": 1}), (4, {"t": 2})]
    assert [found.index for found in change.tagged] == [1, 3]
    assert change.head.tag_seq == {"t": 2}


@pytest.mark.case("tags-and-projections", 6)
def test_each_tag_has_its_own_numbers() -> None:
    change = run(None, tagged(0, 1, ("a", "b")), tagged(1, 2, ("b",)), tagged(2, 3, ("b", "a", "b")))
    assert numbers(change) == [(1, {"a": 1, "b": 1}), (2, {"b": 2}), (3, {"a": 2, "b": 3})]


@pytest.mark.case("tags-and-projections", 14, 17)
def test_the_head_says_where_the_numbers_go_on() -> None:
    """A head that knows seqNr 4 and tagSeqNr 3: events 5 and 6 get 4 and 5; earlier records are not numbered again."""
    first = run(None, tagged(0, 1, ("t",), (), ("t",), ("t",)))
    again = run(first.head, tagged(0, 1, ("t",), (), ("t",), ("t",)), tagged(1, 5, ("t",), ("t",)))
    assert numbers(again) == [(5, {"t": 4}), (6, {"t": 5})]
    assert first.head.tag_seq == {"t": 3}, "a head is never changed, only replaced"


def test_an_event_without_tags_leaves_no_trace() -> None:
    change = run(None, append_record(0, 1, 3))
    assert change.tagged == []
    assert change.head.tag_seq is None


def test_a_rejected_append_gets_no_numbers() -> None:
    change = run(None, tagged(0, 1, ("t",)), tagged(1, 1, ("t",)), tagged(2, 2, ("t",)))
    assert numbers(change) == [(1, {"t": 1}), (2, {"t": 2})]


@pytest.mark.case("tags-and-projections", 46)
def test_deletes_and_purges_do_not_take_anything_back() -> None:
    """What was appended and removed within one batch is gone from the journal and stays in the view."""
    change = run(None, tagged(0, 1, ("t",)), delete_record(1, 1), tagged(2, 2, ("t",)), purge_record(3))
    assert change.rows == []
    assert numbers(change) == [(1, {"t": 1}), (2, {"t": 2})]
    assert change.head.purged
    assert change.head.tag_seq == {"t": 2}


def test_rows_that_need_not_be_built_are_built_for_their_tags() -> None:
    change = run(None, tagged(0, 1, ("t",), ()), purge_record(1), rowless={0})
    assert change.rows == []
    assert numbers(change) == [(1, {"t": 1})]


def test_numbers_go_on_over_all_lives() -> None:
    head = run(None, tagged(0, 1, ("t",), ("u",)), purge_record(1)).head
    change = run(head, tagged(2, 1, ("t",)), delete_record(3, 1))
    assert numbers(change) == [(1, {"t": 2})]
    assert change.head.tag_seq == {"t": 2, "u": 1}
    absent = run(head, delete_record(4, 7))
    assert absent.head.tag_seq == {"t": 1, "u": 1}


def test_what_waited_takes_its_place_where_it_is_taken_up() -> None:
    """Events behind a broken record get their place from the Resume: theirs may be published already."""
    halted = run(None, tagged(0, 1, ("t",)), broken_record(1), tagged(2, 2, ("t",), ("t",)), tagged(3, 4, ("t",)))
    assert numbers(halted) == [(1, {"t": 1})]
    change = run(halted.head, resume_record(9, [broken_record(1)]), quarantined=halted.waiting)
    assert numbers(change) == [(2, {"t": 2}), (3, {"t": 3}), (4, {"t": 4})]
    assert [(found.position, found.index) for found in change.tagged] == [(9, 0), (9, 1), (9, 2)]
    assert [found.row.offset for found in change.tagged] == [2, 2, 3]


def test_a_built_in_tag_is_counted_like_any() -> None:
    change = run(None, tagged(0, 1, ("t",), ()), built_in=slice_tag(7))
    assert numbers(change) == [(1, {slice_tag(7): 1, "t": 1}), (2, {slice_tag(7): 2})]


@pytest.mark.parametrize("tag", ["", "a\0b", "x" * 1025])
def test_tags_of_others_that_cannot_be_are_passed_over(tag) -> None:
    """The event stays as it is; it only gets into no view of that name."""
    change = run(None, tagged(0, 1, (tag, "t")))
    assert numbers(change) == [(1, {"t": 1})]
    assert change.rows[0].tags == {tag, "t"}


def test_a_head_survives_json() -> None:
    head = run(None, tagged(0, 1, ("t",))).head
    assert msgspec.json.decode(msgspec.json.encode(head), type=Head) == head
