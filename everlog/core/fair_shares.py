"""How far the next cycle reads, if it may not read all."""

from __future__ import annotations

from collections.abc import Mapping

from everlog.core.values import LogOffsets


def next_ends(starts: Mapping[str, int], ends: Mapping[str, int], max_records: int) -> LogOffsets:
    """Up to where to read each partition that has more: all get an equal part, what one does not need goes to the
    others, and each gets one record at least.

    >>> next_ends({"a/0": 5, "a/1": 0, "a/2": 7}, {"a/0": 6, "a/1": 100, "a/2": 7}, max_records=10)
    {'a/0': 6, 'a/1': 9}
    """
    chosen: LogOffsets = {}
    behind = sorted((end - starts.get(name, 0), name) for name, end in ends.items() if end > starts.get(name, 0))
    for at, (lag, name) in enumerate(behind):
        part = min(lag, max(1, max_records // (len(behind) - at)))
        chosen[name] = starts.get(name, 0) + part
        max_records = max(0, max_records - part)
    return chosen
