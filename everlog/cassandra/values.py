"""Times and dates as the driver takes them."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

_EXACT = 2**50
_DAY_ZERO = date(1970, 1, 1).toordinal()


def timestamp(ms: int) -> float | Fraction:
    """Milliseconds as the driver takes them: seconds, which it multiplies and then cuts.

    Half a millisecond more keeps the cut from falling one short; beyond what a float holds, a fraction does.
    """
    return (ms + 0.5) / 1000 if 0 <= ms < _EXACT else Fraction(ms, 1000)


def day_seconds(value: date) -> int:
    """A date as the driver takes it: seconds."""
    return (value.toordinal() - _DAY_ZERO) * 86_400
