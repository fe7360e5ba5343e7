"""Durations: of expiry, `"1 day"` on the wire and (months, days, nanoseconds) in the tables; and of queues.

Those of queues are `"1h"`, `"30 s"`, `"500ms"`, a number of seconds, or a timedelta; milliseconds inside.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
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
# Parsing takes time in proportion to the digits: longer text is not a duration.
_TEXT = re.compile(r"([+-]?)([0-9]{1,40})([a-zµ]+)")
_FRACTION = re.compile(r"([+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?)([a-zµ]+)")
# Larger numbers are whole, because a double of kafka-journal holds no others.
_MAX_FRACTION = 2**53
_NANOS_PER_DAY = 86_400_000_000_000
DAY_S = 86_400
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
_SHORT_UNITS = (("d", DAY_MS), ("h", HOUR_MS), ("m", 60_000), ("s", 1000), ("ms", 1))
MAX_MS = 10 * 365 * DAY_MS
# The first and the last millisecond that a calendar holds.
_FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999

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
        """From the wire, as kafka-journal reads it: text with a unit, or a whole number of milliseconds.

        A number may be negative, and has fractions in text only: `"1.5 hours"`, `"-1 day"`.
        """
        nanos: int | None = None
        if isinstance(value, str):
            nanos = _nanos_of("".join(value.split()))
        elif isinstance(value, int) and not isinstance(value, bool):
            nanos = value * 1_000_000
        elif isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
            nanos = int(value) * 1_000_000
        if nanos is None:
            raise MalformedRecord(f"{value!r} is not a duration such as '1 day' or '100 minutes'")
        return cls(nanos)

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

    def expire_at(self, timestamp_ms: int) -> int:
        """When a journal appended to at this time expires, in milliseconds, never too early.

        A duration that is not positive ends at once. What no calendar holds counts as the last millisecond of it.

        >>> ExpireAfter.parse("1.5 s").expire_at(1000), ExpireAfter.parse("-1 day").expire_at(1000)
        (2500, 1000)
        """
        found = timestamp_ms - min(-self.nanos // 1_000_000, 0)
        return found if _FIRST_MS <= found <= LAST_MS else LAST_MS


def _nanos_of(text: str) -> int | None:
    """Text without blanks in nanoseconds, rounded; None if it is no duration."""
    whole = _TEXT.fullmatch(text)
    if whole is not None:
        size = _NANOS_BY_NAME.get(whole[3])
        return None if size is None else int(whole[1] + whole[2]) * size
    match = _FRACTION.fullmatch(text)
    size = None if match is None else _NANOS_BY_NAME.get(match[2])
    if match is None or size is None or abs(float(match[1])) > _MAX_FRACTION:
        return None
    return math.floor(Fraction(match[1]) * size + Fraction(1, 2))


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
    elif isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput(f"{value!r:.100} is not a duration")
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
