"""Numbers in sentences for people."""

from __future__ import annotations


def count(number: int, one: str) -> str:
    """A number and its noun.

    >>> count(1, "job"), count(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{number:,} {one if number == 1 else one + 's'}"


def duration(seconds: float) -> str:
    """A duration with one unit, for people.

    >>> duration(0.25), duration(90), duration(7200)
    ('250 ms', '90 s', '2 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:,.0f} d"
