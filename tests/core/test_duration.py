"""How long a journal lives: spec section 1.1, ExpireAfter and ExpireOn."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.duration import ExpireAfter, StoredDuration
from everlog.errors import MalformedRecord

MINUTE = 60_000_000_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@pytest.mark.case("kafka-journal", 9)
@pytest.mark.parametrize(
    ("wire", "nanos"),
    [
        (2, 2_000_000),
        ("1 min", MINUTE),
        ("30 h", 30 * HOUR),
        ("1 day", DAY),
        ("100 minutes", 100 * MINUTE),
        ("3d", 3 * DAY),
        ("5 s", 5_000_000_000),
        ("7 millis", 7_000_000),
        ("9 µs", 9_000),
        ("4 nanoseconds", 4),
    ],
)
def test_a_duration_is_text_with_a_unit_or_milliseconds(wire, nanos) -> None:
    """A number counts milliseconds; text has a number and a unit, in any of its spellings."""
    assert ExpireAfter.parse(wire).nanos == nanos


@pytest.mark.case("kafka-journal", 9)
@pytest.mark.parametrize(
    "wire", ["test", "", "1", "day", "1 fortnight", "-1 day", "1 day 2 h", None, True, 1.5, [], {}]
)
def test_anything_else_is_no_duration(wire) -> None:
    """ "test" and the like are errors that halt the journal, never a duration that somebody guessed."""
    with pytest.raises(MalformedRecord):
        ExpireAfter.parse(wire)


@pytest.mark.case("kafka-journal", 9)
def test_thirty_days_are_stored_as_days() -> None:
    """30 days are the triple of no months, 30 days, no nanoseconds; less than a day stays nanoseconds."""
    assert ExpireAfter.parse("30 days").stored() == StoredDuration(0, 30, 0)
    assert ExpireAfter.parse("25 h").stored() == StoredDuration(0, 1, HOUR)


@given(st.integers(1, 2**63 - 1))
def test_a_duration_survives_the_wire_and_the_tables(nanos) -> None:
    after = ExpireAfter(nanos)
    assert ExpireAfter.parse(after.text()) == after
    assert ExpireAfter.from_stored(after.stored()) == after


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=100_000)))
def test_a_duration_is_made_of_a_timedelta(value) -> None:
    assert ExpireAfter.of(value).nanos == value // timedelta(microseconds=1) * 1000


def test_a_duration_is_written_in_its_coarsest_unit() -> None:
    assert ExpireAfter(DAY).text() == "1 day"
    assert ExpireAfter(100 * MINUTE).text() == "100 minutes"
    assert ExpireAfter(2 * DAY + 1).text() == f"{2 * DAY + 1} nanoseconds"


def test_the_day_of_expiry_is_utc() -> None:
    late = int(datetime(2024, 2, 28, 23, 30, tzinfo=UTC).timestamp() * 1000)
    assert ExpireAfter.parse("29 minutes").expire_on(late) == date(2024, 2, 28)
    assert ExpireAfter.parse("30 minutes").expire_on(late) == date(2024, 2, 29)
    assert ExpireAfter.parse("2 days").expire_on(late) == date(2024, 3, 1)


def test_a_far_future_is_the_last_day() -> None:
    assert ExpireAfter.parse("9999999999 days").expire_on(0) == date.max
