"""Durations: of expiry, `"1 day"` on the wire and (months, days, nanoseconds) in the tables; and of queues.

Those of queues are `"1h"`, `"30 s"`, `"500ms"`, a number of seconds, or a timedelta; milliseconds inside.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from everlog.errors import InvalidInput, MalformedRecord

# Coarsest first: a duration is written in the first unit that divides it.
_UNITS = (
    ("day", 86_400_000_000_000, ("d",)),
    ("hour", 3_600_000_000_000, ("h", "hr")),
    ("minute", 60_000_000_000, ("m", "min")),
    ("second", 1_000_000_000, ("s", "sec")),
    ("millisecond", 1_000_000, ("ms", "milli")),
    ("microsecond", 1_000, ("µs", "micro")),
    ("nanosecond", 1, ("ns", "nano")),
)
_NANOS_BY_NAME = {
    spelling: nanos
    for name, nanos, short in _UNITS
    for spelling in (name, f"{name}s", *short, *(f"{s}s" for s in short[1:]))
}
_TEXT = re.compile(r"\s*(\d+)\s*([a-zµ]+)\s*")
_NANOS_PER_DAY = 86_400_000_000_000
_SHORT_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
MAX_MS = 10 * 365 * 86_400_000

Duration = str | int | float


class StoredDuration(NamedTuple):
    """A duration as Cassandra's type of that name keeps it."""

    months: int
    days: int
    nanoseconds: int


class ExpireAfter(NamedTuple):
    """How long a journal lives after its last append.

    >>> ExpireAfter.parse("100 minutes").text()
    '100 minutes'
    """

    nanos: int

    @classmethod
    def parse(cls, value: object) -> ExpireAfter:
        """From the wire: text with a unit, or a number of milliseconds."""
        if isinstance(value, int) and not isinstance(value, bool):
            return cls(value * 1_000_000)
        match = _TEXT.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2] not in _NANOS_BY_NAME:
            raise MalformedRecord(f"{value!r} is not a duration such as '1 day' or '100 minutes'")
        return cls(int(match[1]) * _NANOS_BY_NAME[match[2]])

    @classmethod
    def of(cls, value: timedelta) -> ExpireAfter:
        return cls((value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1_000)

    def text(self) -> str:
        name, nanos, _ = next(unit for unit in _UNITS if self.nanos % unit[1] == 0)
        count = self.nanos // nanos
        return f"{count} {name}" if count == 1 else f"{count} {name}s"

    def stored(self) -> StoredDuration:
        days, rest = divmod(self.nanos, _NANOS_PER_DAY)
        return StoredDuration(0, days, rest)

    @classmethod
    def from_stored(cls, stored: StoredDuration) -> ExpireAfter:
        return cls(stored.days * _NANOS_PER_DAY + stored.nanoseconds)

    def expire_on(self, timestamp_ms: int) -> date:
        """The UTC day on which a journal appended to at this time expires; far futures count as the last day."""
        return utc_day(timestamp_ms // 1000 + self.nanos // 1_000_000_000)


def utc_day(seconds: int) -> date:
    """The UTC day of a time; a time that no calendar holds, which a record may well carry, counts as the last day."""
    try:
        return datetime.fromtimestamp(seconds, UTC).date()
    except (OverflowError, ValueError, OSError):
        return date.max


def milliseconds(value: Duration | timedelta) -> int:
    """A duration in milliseconds.

    >>> milliseconds("1h"), milliseconds(0.5), milliseconds(0)
    (3600000, 500, 0)
    """
    if isinstance(value, timedelta):
        found = round(value.total_seconds() * 1000)
    elif isinstance(value, bool):
        raise InvalidInput(f"{value!r} is not a duration")
    elif isinstance(value, str):
        try:
            found = ExpireAfter.parse(value).nanos // 1_000_000
        except MalformedRecord as error:
            raise InvalidInput(f"{value!r} is not a duration such as '1h', '30s' or '500ms'") from error
    else:
        found = round(value * 1000) if abs(value) <= MAX_MS else -1
    if not 0 <= found <= MAX_MS:
        raise InvalidInput(f"{value!r} is not a duration between 0 and ten years")
    return found


def duration_text(value: int) -> str:
    """Milliseconds as people write them.

    >>> duration_text(5_400_000)
    '90m'
    """
    unit, size = next((unit, size) for unit, size in _SHORT_UNITS if value % size == 0 and (value or size == 1))
    return f"{value // size}{unit}"
