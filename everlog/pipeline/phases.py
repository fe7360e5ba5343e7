"""Where the time of a batch goes, and on which journals.

A phase ends at the labelled point beside it, at which tests kill the pipeline, or at the next phase's beginning. What
runs side by side, tasks and the partitions of a task, counts once: the one that took longest is what the batch waited
for. So the phases of a batch never add up to more than the batch took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import NamedTuple

import msgspec

SLOWEST = 5


class BatchPhase(NamedTuple):
    """A part of a batch: what it does, and the labelled point at which it ends, if it has one of its own."""

    name: str
    what: str
    point: str | None = None


# In the order in which they happen. `spark` is what of the tasks' time the slowest one cannot account for.
PHASES = (
    BatchPhase("plan", "order of tagged events", "batch.planned"),
    BatchPhase("spark", "starting tasks", "batch.applied"),
    BatchPhase("read", "records from the log"),
    BatchPhase("open", "waiting for the store"),
    BatchPhase("load", "pointer and heads", "apply.loaded"),
    BatchPhase("fold", "what the records mean"),
    BatchPhase("rows", "rows of events", "apply.rows"),
    BatchPhase("tags", "rows of views by tag"),
    BatchPhase("heads", "state of each journal", "apply.heads"),
    BatchPhase("garbage", "deletes and purges", "apply.garbage"),
    BatchPhase("commit", "end of the transaction", "apply.done"),
    BatchPhase("publish", "pointer2", "batch.published"),
    BatchPhase("watermark", "how far views reach", "batch.watermark"),
)


class SlowKey(msgspec.Struct, frozen=True):
    """A journal that took much of a batch: about how long (its fold, and its share of the rows' time), its records in
    the batch, the events and rows of views that were written, and when the batch ended."""

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
