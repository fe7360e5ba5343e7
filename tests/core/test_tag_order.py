"""Time-UUIDs, buckets and the order plan: the pure parts of events by tag."""

from __future__ import annotations

import itertools
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.buckets import Bucket, bucket_of, bucket_size
from everlog.core.plan import NOTHING, Order, TagPlan, advance, ends_of, extend, share_of
from everlog.core.tag_names import (
    MAX_TAG_BYTES,
    SLICES,
    check_tag,
    is_built_in,
    is_tag,
    shard_of,
    slice_of,
    slice_tag,
    stored_tag,
)
from everlog.core.timeuuid import (
    MAX_INDEX,
    MAX_PARTITIONS,
    MAX_RANK,
    MAX_TICK,
    MAX_TOPICS,
    TimeUuid,
    before_time,
    end_of,
    event_rank,
    start_of,
    tick_of,
)
from everlog.errors import InvalidConfig, InvalidOffset, InvalidTag

HOUR = bucket_size("hour")

# Time-UUIDs


def signed_order(value: uuid.UUID) -> tuple[int, list[int]]:
    """Cassandra's order, in its plainest words: the time, then the other bytes as signed ones."""
    tick = int(value.hex[13:16] + value.hex[8:12] + value.hex[:8], 16)
    return tick, [byte - 256 if byte > 127 else byte for byte in value.bytes[8:]]


@pytest.mark.case("tags-and-projections", 3)
def test_the_bounds_of_a_millisecond() -> None:
    """The two UUIDs of the specification; the first sorts below the second."""
    start, end = start_of(1447977600000), end_of(1447977600000)
    assert str(start) == "a4698000-8f19-11e5-8080-808080808080"
    assert str(end) == "a469a70f-8f19-11e5-7f7f-7f7f7f7f7f7f"
    assert start < end < start_of(1447977600001)
    assert start.ms == end.ms == 1447977600000


@pytest.mark.case("tags-and-projections", 4)
def test_equal_times_sort_by_signed_bytes() -> None:
    """0x80… is the smallest of all, as in Cassandra; Python's own order says otherwise."""
    low, high = (uuid.UUID(f"a4698000-8f19-11e5-{tail}") for tail in ("8080-808080808080", "0000-000000000000"))
    assert TimeUuid.of(low) < TimeUuid.of(high)
    assert signed_order(low) < signed_order(high)
    assert high < low, "Python's order, which must not be used"


@pytest.mark.case("tags-and-projections", 4)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), min_size=2, max_size=8))
def test_any_uuids_sort_as_in_cassandra(parts) -> None:
    found = [uuid.UUID(int=tick << 96 | 1 << 76 | low) for tick, low in parts]
    assert sorted(found, key=TimeUuid.of) == sorted(found, key=signed_order)


@given(st.integers(0, MAX_TICK), st.integers(-(2**63), 2**63 - 1))
def test_a_time_uuid_survives_its_text(tick, rank) -> None:
    found = TimeUuid(tick, rank)
    assert TimeUuid.parse(str(found)) == TimeUuid.of(found.uuid) == TimeUuid.of_stored(str(found)) == found


indexes = st.tuples(st.integers(0, MAX_TOPICS - 1), st.integers(0, MAX_PARTITIONS - 1), st.integers(0, MAX_INDEX - 1))


@given(indexes, indexes)
def test_the_rank_of_an_event_sorts_like_its_numbers(one, two) -> None:
    """By topic, partition and index; every byte is below 0x80, and all lie within the bounds of their tick."""
    first, second = TimeUuid(7, event_rank(*one)), TimeUuid(7, event_rank(*two))
    assert (first < second) == (one < two)
    assert (signed_order(first.uuid) < signed_order(second.uuid)) == (one < two)
    assert max(first.uuid.bytes[8:]) < 0x80
    assert first.rank <= MAX_RANK
    assert first.uuid.version is None, "so only the nibble may be looked at"


@pytest.mark.parametrize("text", ["", "cats", "49225740-2019-41ea-a752-ffae2393b6e4", "49225740", None, 17])
def test_what_is_no_time_uuid_is_refused(text) -> None:
    with pytest.raises(InvalidOffset, match="time-UUID"):
        TimeUuid.parse(text)


def test_a_time_is_turned_into_the_place_before_it() -> None:
    assert before_time(datetime(2015, 11, 20, tzinfo=UTC)) == start_of(1447977600000)
    with pytest.raises(InvalidOffset, match="zone"):
        before_time(datetime(2015, 11, 20))  # noqa: DTZ001
    with pytest.raises(InvalidOffset, match="outside"):
        before_time(datetime(1, 1, 2, tzinfo=UTC))


# Buckets


@pytest.mark.case("tags-and-projections", 1)
def test_the_bucket_of_a_time() -> None:
    keys = [bucket_of(1409545135047, bucket_size(size)) for size in ("Day", "Hour", "Minute")]
    assert keys == [1409529600000, 1409544000000, 1409545080000]


@pytest.mark.parametrize("name", ["week", "", "hours", None])
def test_an_unknown_size_is_refused(name) -> None:
    with pytest.raises(InvalidConfig, match="Day, Hour, Minute"):
        bucket_size(name)


def test_a_bucket_knows_its_bounds() -> None:
    bucket = Bucket(1409544000000, HOUR, 3)
    assert (bucket.first, bucket.last) == (start_of(1409544000000), end_of(1409547599999))
    assert bucket.stored_tag("eu") == "eu\x003"


# Names


@pytest.mark.parametrize("tag", ["", None, 7, "a\0b", "x" * (MAX_TAG_BYTES + 1), "é" * 513, "\ud800"])
def test_bad_tags_are_refused(tag) -> None:
    with pytest.raises(InvalidTag):
        check_tag(tag)
    assert not is_tag(tag)


def test_good_tags_are_taken() -> None:
    for tag in ("eu", " ", "x" * MAX_TAG_BYTES, "日本"):
        assert check_tag(tag) == tag
        assert is_tag(tag)
        assert not is_built_in(tag)


def test_slices_and_shards() -> None:
    """Sixteen slices share a built-in tag, which no user's tag can be; Java's hash decides, also a negative one."""
    assert {slice_of(f"order-{number}") for number in range(20_000)} == set(range(SLICES))
    assert len({slice_tag(number) for number in range(SLICES)}) == 64
    assert slice_tag(0) == slice_tag(15) != slice_tag(16)
    assert is_built_in(slice_tag(0))
    assert not is_tag(slice_tag(0))
    assert slice_of("polygenelubricants") == 0, "the smallest of all hashes"
    assert {shard_of(f"order-{number}", 4) for number in range(100)} == {0, 1, 2, 3}
    assert stored_tag("eu", None) == "eu"


# Plans

PLACES = ("journal-a/0", "journal-a/1", "journal-b/0")


def test_a_plan_goes_on_where_the_last_one_ended() -> None:
    """Offsets without a gap, ticks without an overlap, and only partitions that have something."""
    first = extend(None, {"a/0": 0, "a/1": 5}, {"a/0": 4, "a/1": 5}, now_tick=100, bucket_ms=HOUR)
    assert first == TagPlan(1, 100, {"a/0": (0, 4)}, HOUR)
    assert first.last_tick == 103
    second = extend(first, {"a/0": 4, "a/1": 5}, {"a/0": 4, "a/1": 7}, now_tick=90, bucket_ms=HOUR, shards={"hot": 4})
    assert second == TagPlan(2, 105, {"a/1": (5, 7)}, HOUR, {"hot": 4})
    assert extend(second, {"a/0": 4, "a/1": 7}, {"a/0": 3, "a/1": 7}, now_tick=999, bucket_ms=HOUR) is None
    assert extend(second, {"a/0": 4}, {"a/0": 5}, now_tick=999, bucket_ms=HOUR).tick == 999


def test_nobody_plans_for_a_partition_that_was_not_looked_at() -> None:
    with pytest.raises(KeyError):
        extend(None, {}, {"a/0": 4}, now_tick=100, bucket_ms=HOUR)


batches = st.lists(
    st.tuples(st.dictionaries(st.sampled_from(PLACES), st.integers(0, 4), max_size=3), st.integers(0, 9)), max_size=8
)


def make_plans(found) -> list[TagPlan]:
    plans: list[TagPlan] = []
    covered = dict.fromkeys(PLACES, 0)
    for grown, clock in found:
        ends = {place: covered[place] + more for place, more in grown.items()}
        plan = extend(plans[-1] if plans else None, covered, ends, now_tick=clock, bucket_ms=HOUR)
        if plan is not None:
            plans.append(plan)
            covered |= ends_of([plan])
    return plans


@given(batches)
def test_every_offset_has_one_place_and_the_order_of_the_log(found) -> None:
    """Whatever the clock says, each offset has one tick, later ones have higher ones, and plans do not overlap."""
    plans = make_plans(found)
    assert all(one.last_tick < two.tick for one, two in itertools.pairwise(plans))
    for number, place in enumerate(PLACES):
        order = Order(number, 0, [share_of(plan, place) for plan in plans if place in plan.ranges])
        end = ends_of(plans).get(place, 0)
        places = [order.place(offset) for offset in range(end)]
        assert None not in places
        ticks = [one.offset(0).tick for one in places]
        assert ticks == sorted(set(ticks))
        assert order.place(end) is None
        assert order.place(-1) is None


@given(batches, st.data())
def test_the_watermark_is_below_everything_that_may_still_be_written(found, data) -> None:
    """For any pointers: what is not covered by them lies above the watermark; what lies below is covered."""
    plans = make_plans(found)
    ends = ends_of(plans)
    pointers = {place: data.draw(st.integers(-1, end - 1)) for place, end in ends.items()}
    reached = advance(NOTHING, plans, pointers) or NOTHING
    for place in ends:
        order = Order(0, 0, [share_of(plan, place) for plan in plans if place in plan.ranges])
        for offset in range(pointers[place] + 1, ends[place]):
            assert order.place(offset).offset(0) > reached.end
        for offset in range(reached.positions.get(place, 0)):
            assert order.place(offset).offset(0) <= reached.end
            assert offset <= pointers[place]
    done = advance(reached, plans, {place: end - 1 for place, end in ends.items()}) or reached
    assert done.positions == ends
    assert done.nr == len(plans)


def test_a_plan_in_between_holds_the_watermark_and_a_retired_topic_does_not() -> None:
    plans = [
        TagPlan(1, 0, {"a/0": (0, 2)}, HOUR),
        TagPlan(2, 9, {"b/0": (0, 1)}, HOUR),
        TagPlan(3, 19, {"a/0": (2, 3)}, HOUR),
    ]
    reached = advance(NOTHING, plans, {"a/0": 2})
    assert (reached.nr, reached.tick, reached.positions) == (1, 1, {"a/0": 2})
    assert advance(reached, plans, {"a/0": 2}) is None
    assert advance(reached, plans, {"a/0": 2}, retired={"b"}).nr == 3


def test_a_missing_plan_is_noticed() -> None:
    with pytest.raises(AssertionError, match="missing"):
        advance(NOTHING, [TagPlan(2, 9, {"b/0": (0, 1)}, HOUR)], {"b/0": 5})


def test_the_place_of_an_event_says_its_bucket() -> None:
    """As it was when the plan was made, whatever the settings are by now."""
    order = Order(3, 1, [share_of(TagPlan(1, tick_of(1409547599999), {"a/1": (10, 99_999)}, HOUR, {"hot": 2}), "a/1")])
    place = order.place(10)
    assert place.offset(4) == TimeUuid(tick_of(1409547599999), event_rank(3, 1, 4))
    assert place.ordering(300) == str(place.offset(300)) == str(TimeUuid(place.tick, event_rank(3, 1, 300)))
    assert place.bucket_of("cold", "k") == Bucket(1409544000000, HOUR)
    later = order.place(10 + 10_000).bucket_of("hot", "k")
    assert later == Bucket(1409547600000, HOUR, shard_of("k", 2))
