"""Where the time of a cycle goes, and on which journals.

A phase ends at the labelled point beside it, at which tests kill the pipeline, or at the next phase's beginning. What
runs side by side, tasks and the partitions of a task, counts once: the one that took longest is what the cycle waited
for. So the phases of a cycle never add up to more than the cycle took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import NamedTuple

import msgspec

SLOWEST = 5


class CyclePhase(NamedTuple):
    """A part of a cycle: what it does, and the labelled point at which it ends, if it has one of its own."""

    name: str
    what: str
    point: str | None = None


# In the order in which they happen. `spark` is what of the tasks' time the slowest one cannot account for.
PHASES = (
    CyclePhase("plan", "order of tagged events", "cycle.planned"),
    CyclePhase("spark", "starting tasks", "cycle.applied"),
    CyclePhase("read", "records from the log"),
    CyclePhase("open", "waiting for the store"),
    CyclePhase("load", "pointer and heads", "apply.loaded"),
    CyclePhase("fold", "what the records mean"),
    CyclePhase("rows", "rows of events", "apply.rows"),
    CyclePhase("tags", "rows of views by tag"),
    CyclePhase("heads", "state of each journal", "apply.heads"),
    CyclePhase("garbage", "deletes and purges", "apply.garbage"),
    CyclePhase("commit", "end of the transaction", "apply.done"),
    CyclePhase("publish", "pointer2", "cycle.published"),
    CyclePhase("watermark", "how far views reach", "cycle.watermark"),
)


class SlowKey(msgspec.Struct, frozen=True):
    """A journal that took much of a cycle: about how long (its fold, and its share of the rows' time), its records in
    the cycle, the events and rows of views that were written, and when the cycle ended."""

    topic: str
    id: str
    ms: float
    records: int
    events: int
    tagged: int = 0
    ended_ms: int = 0


def longest(measured: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Of what ran side by side, the phases of the one that took longest.

    >>> longest([{"fold": 1.0, "rows": 1.0}, {"fold": 0.1, "rows": 3.0}, {}])
    {'fold': 0.1, 'rows': 3.0}
    """
    return max(measured, key=lambda phases: sum(phases.values()), default={})


def slowest(keys: Iterable[SlowKey], limit: int = SLOWEST) -> list[SlowKey]:
    """The slowest journals, each once, the slowest first."""
    worst: dict[tuple[str, str], SlowKey] = {}
    for key in keys:
        place = (key.topic, key.id)
        if place not in worst or worst[place].ms < key.ms:
            worst[place] = key
    return nlargest(limit, worst.values(), key=lambda key: key.ms)
