"""The last hour of each queue: jobs put, done and failed per second, and how long they waited to start.

It is made of counters that only grow: what they grew by between two looks belongs to a slot of half a minute. Of a slot
the counters are kept, not what is computed of them, so that a percentile is one of all its starts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from everlog.queues.wait_histogram import is_wait, wait_percentile

SLOT_S = 30
SLOTS = 120
PUTS = ("CREATED", "MERGED", "SUCCESSOR", "SUCCESSOR_MERGED")
FAILURES = ("FAILED", "TIMED_OUT")


class QueuePoint(msgspec.Struct, frozen=True):
    """One slot: rates per second, and of the waits from due to start the median and the 95th percentile."""

    time_ms: int
    seconds: float
    put: float
    done: float
    failed: float
    starts: int
    wait_p50_s: float | None
    wait_p95_s: float | None


class _Slot(msgspec.Struct):
    number: int
    seconds: float
    counted: Counter[str]


class QueueMeter:
    """Takes the counters of all queues now and then. One that goes back, of a queue made again, counts as nothing."""

    def __init__(self, *, slot_s: int = SLOT_S, slots: int = SLOTS) -> None:
        self._slot_s = slot_s
        self._max_slots = slots
        self._last: dict[str, tuple[int, Counter[str]]] = {}
        self._slots: dict[str, deque[_Slot]] = {}

    def note(self, time_ms: int, totals: Mapping[str, Counter[str]]) -> None:
        """A look at the counters of all queues; one that is missing is forgotten."""
        for name in self._last.keys() - totals.keys():
            del self._last[name]
            self._slots.pop(name, None)
        for name, counted in totals.items():
            before_ms, before = self._last.get(name, (time_ms, counted))
            if time_ms > before_ms:
                grown = Counter({kind: found for kind, found in (counted - before).items() if _is_kept(kind)})
                self._add(name, time_ms, (time_ms - before_ms) / 1000, grown)
            self._last[name] = (time_ms, counted)

    def points(self, name: str) -> list[QueuePoint]:
        """The hour of a queue, oldest first."""
        return [_point(slot, self._slot_s) for slot in self._slots.get(name, ())]

    def _add(self, name: str, time_ms: int, seconds: float, grown: Counter[str]) -> None:
        slots = self._slots.setdefault(name, deque(maxlen=self._max_slots))
        number = time_ms // (1000 * self._slot_s)
        if slots and slots[-1].number >= number:  # a clock that goes back opens no older slot
            slots[-1].seconds += seconds
            slots[-1].counted.update(grown)
        else:
            slots.append(_Slot(number, seconds, grown))


def _is_kept(kind: str) -> bool:
    return kind == "DONE" or kind in PUTS or kind in FAILURES or is_wait(kind)


def _point(slot: _Slot, slot_s: int) -> QueuePoint:
    counted = slot.counted

    def rate(*kinds: str) -> float:
        return sum(counted[kind] for kind in kinds) / slot.seconds

    p50, p95 = wait_percentile(counted, 0.5), wait_percentile(counted, 0.95)
    return QueuePoint(
        slot.number * slot_s * 1000,
        slot.seconds,
        rate(*PUTS),
        rate("DONE"),
        rate(*FAILURES),
        sum(number for kind, number in counted.items() if is_wait(kind)),
        None if p50 is None else p50 / 1000,
        None if p95 is None else p95 / 1000,
    )
