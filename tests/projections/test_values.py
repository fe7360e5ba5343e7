"""Ids, offsets and their encodings, windows, recovery: the pure parts of projections."""

from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.resume_point import ResumePoint
from everlog.errors import InvalidOffset, InvalidProjection
from everlog.projections.offsets import (
    Encoded,
    Int32,
    Sequence,
    SerializedOffset,
    decode,
    encode,
    entries,
    merge,
    parse,
    same,
    show,
)
from everlog.projections.projection_id import ProjectionId
from everlog.projections.recovery import Recovery
from everlog.projections.save_window import DonePrefix, SaveWindow

UUID = uuid.UUID("49225740-2019-11ea-a752-ffae2393b6e4")

# Ids


@pytest.mark.case("tags-and-projections", 60)
@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("00", 1),
        ("carts-0", 3),
        ("carts-1", 4),
        ("carts-2", 0),
        ("carts-3", 1),
        ("carts-4", 2),
        ("polygenelubricants", 3),  # its hash is -2^31, which has no positive twin in 32 bits
    ],
)
def test_the_partition_of_a_key(key, partition):
    """The five partitions are those that Akka Projection computes."""
    assert ProjectionId("carts", key).partition == partition


def test_ids_are_equal_when_their_text_is():
    assert ProjectionId("a-b", "c") == ProjectionId("a", "b-c")
    assert len({ProjectionId("a-b", "c"), ProjectionId("a", "b-c"), ProjectionId("a", "c")}) == 2
    assert str(ProjectionId("a", "b")) == "a-b"


@pytest.mark.parametrize("bad", ["", "  ", "\t\n", None, 7, "\ud800", "x" * 1001])
def test_names_and_keys_must_not_be_blank(bad):
    for name, key in ((bad, "k"), ("n", bad)):
        with pytest.raises(InvalidProjection):
            ProjectionId(name, key)


# Encodings

GOLDEN = [
    ("a text", Encoded("a text", "STR")),
    ("", Encoded("", "STR")),
    (7, Encoded("7", "LNG")),
    (-(2**63), Encoded("-9223372036854775808", "LNG")),
    (Int32(2**31 - 1), Encoded("2147483647", "INT")),
    (Sequence(42), Encoded("42", "SEQ")),
    (UUID, Encoded("49225740-2019-11ea-a752-ffae2393b6e4", "TBU")),
    (SerializedOffset(4, "cart.Offset", b"\x00\xff"), Encoded("AP8=", "4:cart.Offset")),
    (SerializedOffset(17, "", b""), Encoded("", "17:")),
    (ResumePoint(UUID, {"q": 2, "p": 1}), Encoded(f'{{"after":"{UUID}","last":{{"p":1,"q":2}}}}', "RESUME")),
]


@pytest.mark.case("tags-and-projections", 60)
@pytest.mark.parametrize(("offset", "stored"), GOLDEN)
def test_encodings_are_those_of_akka_and_come_back(offset, stored):
    """Each type has its manifest and its text, and is the same type when it is read again."""
    assert encode(offset) == stored
    found = decode(*stored)
    assert found == offset
    assert type(found) is type(offset)


@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(-(2**31), 2**31 - 1).map(Int32),
        st.integers(0, 2**63 - 1).map(Sequence),
        st.uuids(),
        st.builds(SerializedOffset, st.integers(0, 2**31 - 1), st.text(max_size=5), st.binary(max_size=9)),
    )
)
def test_any_offset_comes_back(offset):
    found = decode(*encode(offset))
    assert found == offset
    assert type(found) is type(offset)
    assert same(found, offset)


@pytest.mark.parametrize("bad", [True, 1.5, None, b"x", 2**63, Int32(2**31), object(), "\ud800", [1]])
def test_what_is_no_offset_is_refused(bad):
    with pytest.raises(InvalidOffset):
        encode(bad)


@pytest.mark.parametrize(
    ("text", "manifest"),
    [("x", "LNG"), ("1.5", "INT"), ("", "SEQ"), ("no", "TBU"), ("!", "4:x"), ("7", "XYZ"), ("7", ""), ("٣", "LNG")],
)
def test_a_stored_offset_of_another_type_is_named(text, manifest):
    with pytest.raises(InvalidOffset):
        decode(text, manifest)


def test_typed_offsets_are_checked():
    assert parse("7", "LNG") == 7
    with pytest.raises(InvalidOffset):
        parse("9" * 19, "INT")


def test_types_make_a_difference():
    assert same(7, 7)
    assert not same(7, "7")
    assert not same(7, Int32(7))
    assert not same(None, 0)
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not same({"a": 1}, 1)
    assert show({"a": Sequence(3), "b": UUID}) == {"a": 3, "b": str(UUID)}


def test_a_map_is_one_row_per_entry():
    assert entries("all", {"t-0": 5, "t-1": 7}) == {"t-0": Encoded("5", "LNG"), "t-1": Encoded("7", "LNG")}
    assert entries("all", 5) == {"all": Encoded("5", "LNG")}
    for bad in ({}, {"": 1}, {"a": {"b": 1}}, {"a": None}):
        with pytest.raises((InvalidOffset, InvalidProjection)):
            entries("all", bad)


def test_maps_and_single_offsets_do_not_mix():
    with pytest.raises(InvalidOffset):
        merge({"a": 1}, 2)
    with pytest.raises(InvalidOffset):
        merge(2, {"a": 1})


# Windows


def test_a_window_ends_by_count():
    """10 of 15 and 20 of 22 with windows of 10: what is beyond the last full window stays pending."""
    for total, saved in ((15, 10), (22, 20)):
        window = SaveWindow(10, 0.5)
        offsets = [window.take().offset for offset in range(1, total + 1) if window.add(offset, now=0.0)]
        assert offsets[-1] == saved
        assert window.take().offset == total


def test_a_window_ends_by_time_counted_from_its_first_envelope():
    window = SaveWindow(100, 0.5)
    assert not window.add(1, now=10.0)
    assert not window.add(2, now=10.4), "later envelopes do not postpone it"
    assert window.deadline == 10.5
    assert not window.due(10.49)
    assert window.due(10.5)
    taken = window.take()
    assert (taken.offset, taken.envelopes) == (2, 2)
    assert window.take() is None
    assert not window.due(99.0)


def test_a_window_of_one_is_due_at_once():
    assert SaveWindow(1, 0.5).add(1, now=0.0)


def test_a_window_folds_maps_to_the_last_place_per_entry():
    """The original stores only the last one of a window, so that other partitions lose their progress."""
    window = SaveWindow(100, 0.5)
    for offset in ({"t-0": 1}, {"t-1": 7}, {"t-0": 2}, {"t-2": 3}):
        window.add(offset, now=0.0)
    assert window.take().offset == {"t-0": 2, "t-1": 7, "t-2": 3}


def test_a_window_changes_nothing_that_it_was_given_or_gave_away():
    window, given = SaveWindow(100, 0.5), [{"t-0": 1}, {"t-1": 7}, {"t-0": 2}]
    for offset in given[:2]:
        window.add(offset, now=0.0)
    taken = window.take()
    window.add(given[2], now=0.0)
    assert given == [{"t-0": 1}, {"t-1": 7}, {"t-0": 2}]
    assert taken.offset == {"t-0": 1, "t-1": 7}


def test_what_was_filtered_moves_the_window_but_is_not_counted():
    window = SaveWindow(2, 0.5)
    assert not window.add(5, now=0.0, envelopes=0, positions={("orders", 0): 5})
    assert not window.add(6, now=0.0, envelope="e", positions={("orders", 0): 6})
    taken = window.take()
    assert (taken.offset, taken.envelopes, taken.positions, taken.last) == (6, 1, {("orders", 0): 6}, "e")


@pytest.mark.parametrize(("count", "seconds"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_windows_have_a_size(count, seconds):
    with pytest.raises(InvalidProjection):
        SaveWindow(count, seconds)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1)), max_size=40), st.integers(1, 7))
def test_a_window_never_covers_what_was_not_added(steps, count):
    """Over any run, the saved places per entry are a growing prefix of what was added."""
    window, now, added, saved = SaveWindow(count, 0.5), 0.0, {}, {}
    for part, pause in steps:
        now += pause
        added[f"t-{part}"] = added.get(f"t-{part}", -1) + 1
        due = window.add({f"t-{part}": added[f"t-{part}"]}, now)
        if due:
            saved |= window.take().offset
            assert saved == added
    rest = window.take()
    assert saved | (rest.offset if rest else {}) == added


def test_the_contiguous_prefix_is_released_whatever_the_order():
    """Exhaustive for five items: an item comes out once, in order, when it and all before it are done."""
    for order in itertools.permutations(range(5)):
        prefix, out, done = DonePrefix(), [], set()
        numbers = [prefix.begin(f"item {number}") for number in range(5)]
        for number in order:
            done.add(number)
            out += prefix.end(numbers[number])
            expected = next((at for at in range(5) if at not in done), 5)
            assert out == [f"item {at}" for at in range(expected)]
        assert len(prefix) == 0


# Recovery


@pytest.mark.case("tags-and-projections", 55)
def test_recovery_strategies():
    """1 + n attempts; without retries both retrying variants are fail."""
    assert (Recovery.fail().attempts, Recovery.fail().skips) == (1, False)
    assert (Recovery.skip().attempts, Recovery.skip().skips) == (1, True)
    assert (Recovery.retry_and_fail(3, 1.0).attempts, Recovery.retry_and_fail(3, 1.0).skips) == (4, False)
    assert (Recovery.retry_and_skip(3, 1.0).attempts, Recovery.retry_and_skip(3, 1.0).skips) == (4, True)
    assert Recovery.retry_and_skip().retries == 5
    for zero in (0, -1):
        assert Recovery.retry_and_skip(zero, 1.0) == Recovery.retry_and_fail(zero, 1.0) == Recovery.fail()
    names = [one.name for one in (Recovery(), Recovery.skip(), Recovery.retry_and_fail(), Recovery.retry_and_skip())]
    assert names == ["fail", "skip", "retry and fail", "retry and skip"]


@pytest.mark.parametrize(("retries", "delay"), [(1.5, 1.0), (True, 1.0), (3, -1.0), (3, float("nan"))])
def test_bad_recovery(retries, delay):
    with pytest.raises(InvalidProjection):
        Recovery.retry_and_skip(retries, delay)
