"""Time-UUIDs, their order, and buckets."""

from __future__ import annotations

from uuid import UUID, uuid1, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidConfig, InvalidOffset
from everlog.pekko.time_buckets import Buckets, check_offset, first_place, last_place, offset_of, place_of, unix_ms

places = st.integers(0, 2**124 - 1)


@pytest.mark.case("tags-and-projections", 1)
def test_a_time_is_in_one_bucket_of_each_size():
    """The three vectors; a bucket's name is its first millisecond."""
    found = [Buckets.of(name).at(1409545135047) for name in ("Day", "hour", "MINUTE")]
    assert found == [1409529600000, 1409544000000, 1409545080000]
    with pytest.raises(InvalidConfig, match="Week"):
        Buckets.of("Week")


@pytest.mark.case("tags-and-projections", 2)
def test_the_first_bucket_is_rounded_down_and_its_form_is_checked():
    """`20151120T12:20` with days is that day's start; other text is an error that names the form."""
    assert Buckets.of("Day").parse("20151120T12:20") == 1447977600000
    assert Buckets.of("Hour").parse("20151120T00:00") == 1447977600000
    assert Buckets.of("Day").parse("20151120") == 1447977600000
    assert Buckets.of("Hour").parse("20151120T01") == 1447981200000
    for name, text in (
        ("Day", "cats"),
        ("Hour", "20151120"),
        ("Day", "20151120T01"),
        ("Hour", "20151320T00:00"),
        ("Day", ""),
    ):
        with pytest.raises(InvalidConfig, match="yyyyMMddTHH:mm"):
            Buckets.of(name).parse(text)


@pytest.mark.case("tags-and-projections", 3)
def test_the_bounds_of_a_millisecond():
    """They are the two UUIDs of the vectors, and the first sorts below the last."""
    first, last = first_place(1447977600000), last_place(1447977600000)
    assert offset_of(first) == UUID("a4698000-8f19-11e5-8080-808080808080")
    assert offset_of(last) == UUID("a469a70f-8f19-11e5-7f7f-7f7f7f7f7f7f")
    assert first < last < first_place(1447977600001)
    event = UUID("49225740-2019-11ea-a752-ffae2393b6e4")
    assert unix_ms(place_of(event)) == 1576510356148
    assert Buckets.of("Hour").of_place(place_of(event)) == 1576508400000


@pytest.mark.case("tags-and-projections", 4)
def test_equal_times_are_ordered_by_signed_bytes():
    """0x80… sorts below 0x00…, as the server does it (the cluster's test asks the server) and not as Python does it."""
    low, high = UUID("a4698000-8f19-11e5-8080-808080808080"), UUID("a4698000-8f19-11e5-0000-000000000000")
    assert place_of(low) < place_of(high)
    assert low > high


@given(places, places)
def test_a_place_and_its_uuid_are_one_thing(one, other):
    assert place_of(offset_of(one)) == one
    signed = [
        tuple(byte - 256 if byte > 127 else byte for byte in offset_of(place).bytes[8:]) for place in (one, other)
    ]
    times = [offset_of(place).time for place in (one, other)]
    assert (one < other) == ((times[0], signed[0]) < (times[1], signed[1]))


@given(st.integers(0, 2**42))
def test_a_millisecond_lies_between_its_bounds(ms):
    assert unix_ms(first_place(ms)) == unix_ms(last_place(ms)) == ms
    assert unix_ms(first_place(ms) - 1) == ms - 1


def test_only_time_uuids_of_about_now_are_offsets():
    now = unix_ms(place_of(uuid1()))
    assert check_offset(uuid1(), now) > 0
    # Without the variant bits `UUID.version` is None; it is a time-UUID all the same.
    assert check_offset(UUID("a4698000-8f19-11e5-0000-000000000000"), now) > 0
    for bad in (uuid4(), str(uuid1()), 5, UUID(int=0)):
        with pytest.raises(InvalidOffset, match="time-UUID"):
            check_offset(bad, now)
    with pytest.raises(InvalidOffset, match="future"):
        check_offset(uuid1(), now - 3_700_000)
