"""Times that repeat: at a fixed interval, or as a line of cron says. UTC.

The line is parsed here rather than by `croniter` (6.2): that takes a range of one value such as `3-3` for every value,
and it accepts a range that ends before it starts, six and seven fields, and `R` for a random minute, so that two
workers would not mean the same moments. Here such a line is an error that names the field.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from everlog.core.duration import Duration, milliseconds
from everlog.errors import InvalidInput

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_MINUTE_MS = 60_000
_MAX_YEARS = 5


class Schedule:
    """Says when the next time is, strictly after a moment."""

    def __init__(self, text: str, after: Callable[[int], int]) -> None:
        self.text = text
        self.after = after

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """A line of cron: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday).

        >>> Schedule.parse("30 2 * * 1-5").text
        '30 2 * * 1-5'
        """
        parts = text.split()
        if len(parts) != len(_FIELDS):
            raise InvalidInput(f"cron: {text!r} has {len(parts)} fields, not five: '0 3 * * *' is every day at 03:00")
        minutes, hours, days, months, weekdays = (
            _values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
        )
        weekdays = {value % 7 for value in weekdays}
        # As cron does: if both days are given, either is enough.
        either = parts[2] != "*" and parts[4] != "*"

        def matches(day: datetime) -> bool:
            by_date, by_weekday = day.day in days, day.isoweekday() % 7 in weekdays
            return day.month in months and ((by_date or by_weekday) if either else (by_date and by_weekday))

        def after(now: int) -> int:
            moment = datetime.fromtimestamp(now // _MINUTE_MS * 60, UTC) + timedelta(minutes=1)
            last = moment + timedelta(days=366 * _MAX_YEARS)
            while moment < last:
                if not matches(moment):
                    moment = moment.replace(hour=0, minute=0) + timedelta(days=1)
                elif moment.hour not in hours:
                    moment = moment.replace(minute=0) + timedelta(hours=1)
                elif moment.minute not in minutes:
                    moment += timedelta(minutes=1)
                else:
                    return int(moment.timestamp()) * 1000
            raise InvalidInput(f"cron: {text!r} never comes")

        after(0)
        return cls(text, after)


def parse_every(every: Duration | timedelta) -> Schedule:
    """At a fixed interval, counted from 1970, so that all workers mean the same moments."""
    step = milliseconds(every)
    if step < 1:
        raise InvalidInput("every: at least a millisecond")
    return Schedule(f"every {every}", lambda now: (now // step + 1) * step)


def _values(part: str, name: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for item in part.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        try:
            start, stop, stride = int(first), int(last or (high if step else first)), int(step or 1)
        except ValueError as error:
            raise InvalidInput(f"cron: {item!r} is no {name}") from error
        if not (low <= start <= stop <= high) or stride < 1:
            raise InvalidInput(f"cron: {item!r} is no {name} from {low} to {high}")
        found |= set(range(start, stop + 1, stride))
    return found
