"""Durations of queues: `"1h"`, `"30 s"`, `"500ms"`, a number of seconds, or a timedelta; milliseconds inside."""

from __future__ import annotations

from datetime import timedelta

from everlog.core.duration import ExpireAfter
from everlog.errors import InvalidInput, MalformedRecord

Duration = str | int | float
MAX_MS = 10 * 365 * 86_400_000
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


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
    unit, size = next((unit, size) for unit, size in _UNITS if value % size == 0 and (value or size == 1))
    return f"{value // size}{unit}"
