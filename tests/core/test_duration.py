"""How long a journal lives: spec section 1.1, ExpireAfter and ExpireOn."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.core.duration import LAST_MS, ExpireAfter, StoredDuration, utc_day
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
        ("1.5 hours", 90 * MINUTE),
        ("0.5 ns", 1),
        (".25 s", 250_000_000),
        ("1e3 s", 1000 * 1_000_000_000),
        ("-1 day", -DAY),
        ("- 1.5 h", -90 * MINUTE),
        ("+2 d", 2 * DAY),
        ("1 . 5 hours", 90 * MINUTE),
        (-7, -7_000_000),
        (2.0, 2_000_000),
    ],
)
def test_a_duration_is_text_with_a_unit_or_milliseconds(wire, nanos) -> None:
    """A number counts milliseconds; text has a number and a unit, in any of its spellings, with blanks anywhere.

    What Scala's `Duration` takes, kafka-journal takes: fractions, exponents and negative numbers too.
    """
    assert ExpireAfter.parse(wire).nanos == nanos


@pytest.mark.case("kafka-journal", 9)
@pytest.mark.parametrize(
    "wire",
    [
        *("test", "", "1", "day", "1 fortnight", "1 day 2 h", "1,5 h", "--1 h", ". s", "1e400 s", "Inf", "PT1H", "٣ h"),
        *("9" * 5000 + " d", None, True, 1.5, float("inf"), float("nan"), 1e30, [], {}),
    ],
)
def test_anything_else_is_no_duration(wire) -> None:
    """ "test" and the like are errors that halt the journal, never a duration that was guessed."""
    with pytest.raises(MalformedRecord):
        ExpireAfter.parse(wire)


@pytest.mark.case("kafka-journal", 9)
def test_thirty_days_are_stored_as_days() -> None:
    """30 days are the triple of no months, 30 days, no nanoseconds; less than a day stays nanoseconds."""
    assert ExpireAfter.parse("30 days").stored() == StoredDuration(0, 30, 0)
    assert ExpireAfter.parse("25 h").stored() == StoredDuration(0, 1, HOUR)


@given(st.integers(-(2**63), 2**63 - 1))
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


@given(st.integers(0, 10**14), st.integers(-(10**18), 10**18))
def test_the_time_of_expiry_is_exact_and_never_early(timestamp, nanos) -> None:
    """The first whole millisecond at which the duration has passed; one that is not positive passes at once."""
    found = ExpireAfter(nanos).expire_at(timestamp)
    assert found >= timestamp
    assert found == timestamp or (found - 1 - timestamp) * 1_000_000 < nanos <= (found - timestamp) * 1_000_000


def test_the_day_of_expiry_is_utc() -> None:
    late = int(datetime(2024, 2, 28, 23, 30, tzinfo=UTC).timestamp() * 1000)
    for text, day in (("29 minutes", 28), ("30 minutes", 29), ("1439 minutes", 29)):
        assert utc_day(ExpireAfter.parse(text).expire_at(late) // 1000) == date(2024, 2, day)


def test_what_no_calendar_holds_is_the_last_moment_of_it() -> None:
    last = ExpireAfter.parse("9999999999 days").expire_at(0)
    assert last == ExpireAfter(0).expire_at(-(2**63)) == ExpireAfter(0).expire_at(2**63 - 1) == LAST_MS
    assert utc_day(last // 1000) == date.max
    assert ExpireAfter(-(10**40)).expire_at(5) == 5
