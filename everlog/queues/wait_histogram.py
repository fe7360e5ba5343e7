"""How long jobs waited from when they were due until they started: a histogram, as a few counters of an engine.

A claim adds one to one counter for each of its jobs: that costs less than half a microsecond. The width of a bucket
is at most a quarter of what it counts, so that a percentile is right to about an eighth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from everlog.queues.rows import JobRow

_FIRST, _BITS = 4, 48
_PREFIX = "WAITED_"


def bucket_of(ms: int) -> int:
    """Four buckets for each power of two; what is shorter than 4 ms is exact.

    >>> [bucket_of(ms) for ms in (0, 3, 4, 7, 8, 9, 10, 16)]
    [0, 3, 4, 7, 8, 8, 9, 12]
    """
    if ms < _FIRST:
        return max(0, ms)
    shift = min(ms.bit_length(), _BITS) - 3
    return shift * 4 + min(ms >> shift, 7)


def middle_of(bucket: int) -> float:
    """The milliseconds that a bucket stands for."""
    if bucket < 8:
        return float(bucket)
    shift, part = bucket // 4 - 1, 4 + bucket % 4
    return (part << shift) + ((1 << shift) - 1) / 2


_NAMES = tuple(f"{_PREFIX}{bucket}" for bucket in range(bucket_of(1 << _BITS) + 1))
_BUCKETS = {name: bucket for bucket, name in enumerate(_NAMES)}


def count_claimed(counted: Counter[str], rows: Sequence[JobRow], now: int) -> None:
    """Note that these rows start now. One that failed waits since then, or since its next date if that is later."""
    counted["CLAIMED"] += len(rows)
    for row in rows:
        since = row.image.process_ms
        if row.attempts and row.attempts[-1].ended_ms > since:
            since = row.attempts[-1].ended_ms
        counted[_NAMES[bucket_of(now - since)]] += 1


def is_wait(name: str) -> bool:
    """Whether a counter is one of the histogram's."""
    return name in _BUCKETS


def wait_percentile(counted: Mapping[str, int], share: float) -> float | None:
    """The milliseconds that this share of all starts waited at most; None without any start.

    >>> wait_percentile({"WAITED_1": 9, "WAITED_12": 1}, 0.5)
    1.0
    """
    found = sorted((_BUCKETS[name], number) for name, number in counted.items() if name in _BUCKETS and number > 0)
    left = share * sum(number for _, number in found)
    for bucket, number in found:
        left -= number
        if left <= 1e-9:
            return middle_of(bucket)
    return middle_of(found[-1][0]) if found else None
