"""Times that repeat: at a fixed interval counted from 1970, or as a line of cron says, in a time zone.

The line is parsed here rather than by `croniter` (6.2): that takes a range of one value such as `3-3` for every value,
and it accepts a range that ends before it starts, six and seven fields, and `R` for a random minute, so that two
workers would not mean the same moments. Here such a line is an error that names the field.

Where clocks change, the rule is that of cron itself:

* A line whose hour begins with `*` means real time: `30 * * * *` comes every hour. It comes in both runs of an hour
  that is repeated, and not at all in one that is skipped.
* Any other line means a time of the day, which comes once on each of its days: in the first run of a repeated hour,
  and, if its time is skipped, at the moment at which the clocks go on. Several that are skipped come once, together.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from everlog.core.duration import Duration, duration_text, milliseconds
from everlog.errors import InvalidInput

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
MAX_LINE = 200
MAX_ZONE = 100
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_ITEM = re.compile(r"(?:\*|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
# The 29th of February is eight years away where a century has no leap year.
_MAX_DAYS = 366 * 9
_DAY = timedelta(days=1)


class Recurrence(Protocol):
    """Says when. Two that are equal in text mean the same moments, wherever they are asked."""

    text: str

    def after(self, ms: int) -> int:
        """The first time after a moment."""

    def up_to(self, ms: int) -> int | None:
        """The last time up to a moment; None if there is none within nine years."""


class FixedInterval(Recurrence):
    """At a fixed interval, counted from 1970, so that all workers mean the same moments."""

    def __init__(self, step_ms: int) -> None:
        self.text = f"every {duration_text(step_ms)}"
        self._step_ms = step_ms

    def after(self, ms: int) -> int:
        return (ms // self._step_ms + 1) * self._step_ms

    def up_to(self, ms: int) -> int:
        return ms // self._step_ms * self._step_ms


class CronLine(Recurrence):
    """A line of cron: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday), or an alias.

    >>> CronLine("30 2 * * 1-5", "Europe/Berlin").text
    '30 2 * * 1-5 Europe/Berlin'
    """

    def __init__(self, line: str, timezone: str = "UTC") -> None:
        parts = _split(line)
        self.text = f"{line} {timezone}"
        self._zone = _zone(timezone)
        self._minutes, self._hours, self._days, self._months, weekdays = (
            _values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
        )
        self._weekdays = {value % 7 for value in weekdays}
        # As cron does: if both days are given, either is enough.
        self._either = parts[2] != "*" and parts[4] != "*"
        self._by_real_time = parts[1].startswith("*")
        self._times_of = lru_cache(maxsize=8)(self._find_times)
        try:
            self.after(0)
        except InvalidInput:
            raise InvalidInput(f"cron: {line!r} never comes") from None

    def after(self, ms: int) -> int:
        for day in self._dates(ms, _DAY):
            # Clocks that go back over midnight make times of two dates alternate.
            found = [*_from(self._times_of(day), ms), *_from(self._times_of(day + _DAY), ms)]
            if found:
                return min(found)
        raise InvalidInput(f"cron: {self.text!r} does not come within nine years")

    def up_to(self, ms: int) -> int | None:
        for day in self._dates(ms, -_DAY):
            found = [*_until(self._times_of(day), ms), *_until(self._times_of(day - _DAY), ms)]
            if found:
                return max(found)
        return None

    def _dates(self, ms: int, step: timedelta) -> Iterator[date]:
        """The dates that may have a time beyond a moment, from the one before that of the moment itself."""
        day = datetime.fromtimestamp(ms // 1000, self._zone).date() - step
        for _ in range(_MAX_DAYS):
            if self._matches(day):
                yield day
            day += step

    def _matches(self, day: date) -> bool:
        by_date, by_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return day.month in self._months and ((by_date or by_weekday) if self._either else (by_date and by_weekday))

    def _find_times(self, day: date) -> tuple[int, ...]:
        """The moments of a date, in order."""
        if not self._matches(day):
            return ()
        found: set[int] = set()
        for hour in self._hours:
            for minute in self._minutes:
                wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self._zone)
                found.update(self._moments(wall))
        return tuple(sorted(found))

    def _moments(self, wall: datetime) -> set[int]:
        """When the clocks show this: once, twice, or never, see the rule above."""
        first, second = _ms(wall), _ms(wall.replace(fold=1))
        if first == second:
            return {first}
        if first < second:  # the clocks show it twice
            return {first, second} if self._by_real_time else {first}
        return set() if self._by_real_time else {self._change_between(second, first)}

    def _change_between(self, before: int, after: int) -> int:
        """The moment at which the clocks go on, to the second: the first one with the new offset."""
        low, high = before // 1000, after // 1000
        old = self._offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._offset(middle) == old else (low, middle)
        return high * 1000

    def _offset(self, seconds: int) -> timedelta | None:
        return datetime.fromtimestamp(seconds, self._zone).utcoffset()


def make_recurrence(every_ms: int | None, cron: str | None, timezone: str) -> Recurrence:
    """What a stored schedule says. Lines are parsed once."""
    if every_ms is not None:
        return FixedInterval(every_ms)
    assert cron is not None, "a schedule has an interval or a line of cron"
    return _parsed(cron, timezone)


@lru_cache(maxsize=1000)
def _parsed(cron: str, timezone: str) -> CronLine:
    return CronLine(cron, timezone)


def parse_every(every: Duration | timedelta) -> int:
    """An interval in milliseconds."""
    step = milliseconds(every)
    if step < 1:
        raise InvalidInput("every: at least a millisecond")
    return step


def _split(line: str) -> list[str]:
    if not isinstance(line, str) or len(line) > MAX_LINE:
        raise InvalidInput(f"cron: a line is text of at most {MAX_LINE} characters")
    parts = ALIASES.get(line.strip(), line).split()
    if len(parts) != len(_FIELDS):
        raise InvalidInput(
            f"cron: {line!r} has {len(parts)} fields, not five: '0 3 * * *' is every day at 03:00. "
            f"There are also {', '.join(ALIASES)}"
        )
    return parts


def _zone(name: str) -> ZoneInfo:
    try:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_ZONE:
            raise ValueError("a name such as 'Europe/Berlin' is wanted")
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # also a folder of the database, and a path out of it
        raise InvalidInput(f"timezone: {str(name)[:MAX_ZONE]!r} is not known here: {error}") from error


def _values(part: str, name: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in part.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise InvalidInput(f"cron: {item!r} is no {name}")
        first, last, step = match.groups()
        start, stride = int(first or low), int(step or 1)
        stop = int(last) if last else high if step or first is None else start
        if not (low <= start <= stop <= high) or stride < 1:
            raise InvalidInput(f"cron: {item!r} is no {name} from {low} to {high}")
        found |= set(range(start, stop + 1, stride))
    return found


def _from(times: tuple[int, ...], ms: int) -> tuple[int, ...]:
    """The first one after a moment, if there is one."""
    at = bisect_right(times, ms)
    return times[at : at + 1]


def _until(times: tuple[int, ...], ms: int) -> tuple[int, ...]:
    """The last one up to a moment, if there is one."""
    at = bisect_right(times, ms)
    return times[max(0, at - 1) : at]


def _ms(wall: datetime) -> int:
    return int(wall.astimezone(UTC).timestamp()) * 1000
