"""When schedules come: lines of cron against a walk over all minutes, where clocks change, too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import InvalidInput
from everlog.queues.recurrence import ALIASES, CronLine, FixedInterval, parse_every

MINUTE_MS = 60_000
DAY_MINUTES = 1440


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()) * 1000


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        ("* * * * *", "2026-01-01 00:00", "2026-01-01 00:01"),
        ("30 2 * * *", "2026-01-01 02:30", "2026-01-02 02:30"),
        ("*/15 8-9 * * 1-5", "2026-01-02 09:45", "2026-01-05 08:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00", "2104-02-29 00:00"),
        ("0 12 1,15 * *", "2026-01-01 12:00", "2026-01-15 12:00"),
        ("0 0 13 * 5", "2026-01-01 00:00", "2026-01-02 00:00"),
        ("59 23 31 12 7", "2026-12-01 00:00", "2026-12-06 23:59"),
        ("50-59/3 4 * * *", "2026-01-01 00:00", "2026-01-01 04:50"),
        ("@hourly", "2026-01-01 00:00", "2026-01-01 01:00"),
        ("@daily", "2026-01-01 00:00", "2026-01-02 00:00"),
        ("@weekly", "2026-01-01 00:00", "2026-01-04 00:00"),
        ("@monthly", "2026-01-01 00:00", "2026-02-01 00:00"),
        ("@yearly", "2026-01-01 00:00", "2027-01-01 00:00"),
    ],
)
def test_lines_of_cron(line, after, expected):
    cron = CronLine(line)
    assert cron.after(ms(after)) == ms(expected)
    assert cron.up_to(ms(expected)) == ms(expected)
    assert cron.up_to(ms(expected) - 1) <= ms(after)


WRONG = """
* * * *
* * * * * *
60 * * * *
x * * * *
*/0 * * * *
5-1 * * * *
5- * * * *
+5 * * * *
٣ * * * *
1_0 * * * *
0 0 30 2 *
0 0 31 4,6,9,11 *
@never
"""


@pytest.mark.parametrize("line", ["", *WRONG.strip().splitlines(), "0 " * 500, None, 5])
def test_what_is_no_line_of_cron(line):
    with pytest.raises(InvalidInput):
        CronLine(line)


@pytest.mark.parametrize("zone", ["", "Nowhere", "Europe", "../UTC", "/etc/localtime", "a\0b", "x" * 1000, None, 7])
def test_what_is_no_time_zone(zone):
    with pytest.raises(InvalidInput, match="timezone"):
        CronLine("@daily", zone)


def test_every_means_the_same_moments_for_all():
    interval = FixedInterval(parse_every("10s"))
    assert [interval.after(now) for now in (0, 9999, 10_000)] == [10_000, 10_000, 20_000]
    assert [interval.up_to(now) for now in (0, 9999, 10_000)] == [0, 0, 10_000]


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        # 2026-03-29: after 01:59 comes 03:00.
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00", "2026-03-30T02:30"]),
        ("*/20 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00", "2026-03-30T02:00"]),
        ("30 2,3 * * *", "2026-03-28T12:00", ["2026-03-29T03:00", "2026-03-29T03:30"]),
        ("30 * * * *", "2026-03-29T01:00", ["2026-03-29T01:30", "2026-03-29T03:30"]),
        ("0 */2 * * *", "2026-03-29T00:00", ["2026-03-29T04:00"]),
        ("0 3 * * *", "2026-03-28T12:00", ["2026-03-29T03:00", "2026-03-30T03:00"]),
    ],
)
def test_a_time_that_the_clocks_skip(line, after, expected):
    cron = CronLine(line, BERLIN)
    now = ms(after, BERLIN)
    for wanted in expected:
        now = cron.after(now)
        assert now == ms(wanted, BERLIN)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # 2026-10-25: after the first 02:59 comes a second 02:00.
        ("30 2 * * *", [("2026-10-25T02:30", 0), ("2026-10-26T02:30", 0)]),
        ("0 2,3 * * *", [("2026-10-25T02:00", 0), ("2026-10-25T03:00", 0)]),
        ("30 * * * *", [("2026-10-25T01:30", 0), ("2026-10-25T02:30", 0), ("2026-10-25T02:30", 1)]),
    ],
)
def test_a_time_that_the_clocks_show_twice(line, expected):
    cron = CronLine(line, BERLIN)
    now = ms("2026-10-25T01:00", BERLIN)
    for wanted, fold in expected:
        now = cron.after(now)
        assert now == ms(wanted, BERLIN, fold)


def test_a_day_that_a_country_skipped():
    """Samoa had no 30th of December 2011: its midnight comes when the 31st begins."""
    assert CronLine("0 0 30 12 *", "Pacific/Apia").after(ms("2011-12-01")) == ms("2011-12-31T00:00", "Pacific/Apia")


# What the walk is compared with: no search, no dates, only one minute after the other.


def fits(fields: list[set[int]], either: bool, wall: datetime) -> bool:
    minutes, hours, days, months, weekdays = fields
    by_date, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
    day = (by_date or by_weekday) if either else (by_date and by_weekday)
    return wall.minute in minutes and wall.hour in hours and wall.month in months and day


def walk(line: str, zone: str, first: datetime, minutes: int) -> list[int]:
    """All times in a number of minutes."""
    parts = ALIASES.get(line, line).split()
    spans = (range(60), range(24), range(1, 32), range(1, 13), range(8))
    fields = [values(part, span) for part, span in zip(parts, spans, strict=True)]
    fields[4] = {value % 7 for value in fields[4]}
    either, real_time = parts[2] != "*" and parts[4] != "*", parts[1].startswith("*")
    found, before = [], (first - timedelta(minutes=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    shown: set[datetime] = set()
    for number in range(-3 * 60, minutes):  # a little earlier: what the clocks showed then, they may show again
        local = (first + timedelta(minutes=number)).astimezone(ZoneInfo(zone))
        wall = local.replace(tzinfo=None, fold=0)
        skipped = int((wall - before).total_seconds() // 60) if number > -3 * 60 else 1
        comes = fits(fields, either, wall) and (real_time or wall not in shown)
        if not real_time and 1 < skipped <= DAY_MINUTES + 60:
            comes = comes or any(fits(fields, either, before + timedelta(minutes=m)) for m in range(1, skipped))
        shown.add(wall)
        before = wall
        if comes and number > 0:
            found.append(int((first + timedelta(minutes=number)).timestamp()) * 1000)
    return found


def values(part: str, span: range) -> set[int]:
    found: set[int] = set()
    for item in part.split(","):
        base, _, step = item.partition("/")
        first, _, last = base.partition("-")
        low = span[0] if base == "*" else int(first)
        high = span[-1] if base == "*" or (step and not last) else int(last or first)
        found |= {value for value in span if low <= value <= high and (value - low) % int(step or 1) == 0}
    return found


def fields_of(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, 20)
    plain = st.one_of(st.just("*"), number.map(str), ranges)
    stepped = st.tuples(plain, steps).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.one_of(st.just("*"), st.lists(st.one_of(plain, stepped), min_size=1, max_size=3).map(",".join))


LINES = st.one_of(
    st.sampled_from(sorted(ALIASES)),
    st.tuples(fields_of(0, 59), fields_of(0, 23), fields_of(1, 28), st.just("*"), fields_of(0, 7)).map(" ".join),
)
# Clocks that change at night, at midnight, by half an hour, and not at all; near a change, and at any time.
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kolkata"]
STARTS = [
    "2026-03-28T12:00",
    "2026-10-24T12:00",
    "2026-03-07T20:00",
    "2026-11-01T00:00",
    "2018-11-03T20:00",
    "2018-02-17T20:00",
    "2026-04-04T06:00",
    "2026-10-03T06:00",
    "2026-12-31T12:00",
]


@given(line=LINES, zone=st.sampled_from(ZONES), start=st.sampled_from(STARTS), shift=st.integers(0, 300))
def test_the_next_time_is_what_a_walk_over_all_minutes_finds(line, zone, start, shift):
    """Forwards and backwards."""
    first = datetime.fromisoformat(start).replace(tzinfo=UTC) + timedelta(minutes=shift)
    begin = int(first.timestamp()) * 1000
    expected = walk(line, zone, first, 1300)
    end = begin + 1299 * MINUTE_MS
    cron = CronLine(line, zone)
    found, now = [], begin
    while (now := cron.after(now)) <= end:
        found.append(now)
    assert found == expected
    back, before = [], cron.up_to(end)
    while before is not None and before > begin:
        back.append(before)
        before = cron.up_to(before - 1)
    assert back[::-1] == expected
