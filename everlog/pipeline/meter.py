"""What the pipeline reports about itself: counts, rates, durations, the last error."""

from __future__ import annotations

import os
import socket
import statistics
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from everlog.pipeline.apply import Applied
from everlog.pipeline.phases import SlowKey, slowest
from everlog.pipeline.status import CycleStatus, PipelineState, PipelineStatus
from everlog.runtime.clock import Clock

WINDOW_S = 10.0
KEPT_CYCLES = 100
# The status lists this many one by one.
RECENT_CYCLES = 12
SAVE_S = 1.0


class Meter:
    """Counts cycles; may be asked from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state: PipelineState = "starting"
        self._started = clock.now_ms()
        self._saved = clock.monotonic()
        self._recent: deque[tuple[float, int]] = deque(maxlen=KEPT_CYCLES)
        self._durations: deque[float] = deque(maxlen=KEPT_CYCLES)
        self._totals = Applied()
        self._seconds = 0.0
        self._phases: dict[str, float] = {}
        self._told: deque[tuple[CycleStatus, Sequence[SlowKey]]] = deque(maxlen=RECENT_CYCLES)
        self._last_records = 0
        self._last_error: str | None = None
        self._last_error_ms: int | None = None
        self.cycles = 0
        self.left_out: dict[str, str] = {}
        self.tags_wait_for: list[str] = []

    def enter(self, state: PipelineState) -> None:
        with self._lock:
            self._state = state

    def wrote(self, reports: Iterable[Applied]) -> None:
        """Count rows as soon as they are written: if their cycle fails, the next try finds them there."""
        with self._lock:
            for report in reports:
                self._totals.add_rows(report)

    def cycle(
        self,
        reports: Collection[Applied],
        seconds: float,
        phases: Mapping[str, float],
        slow: Sequence[SlowKey],
    ) -> None:
        """A cycle was published: its seconds, those of its phases, its slowest journals. Its rows are counted."""
        whole = Applied()
        for report in reports:
            whole.add(report)
        with self._lock:
            now_ms = self._clock.now_ms()
            self._last_records = whole.records
            self._totals.records += whole.records
            self._totals.misplaced += whole.misplaced
            self._recent.append((self._clock.monotonic(), whole.records))
            self._durations.append(seconds)
            self._seconds += seconds
            for phase, spent in phases.items():
                self._phases[phase] = self._phases.get(phase, 0.0) + spent
            told = CycleStatus(now_ms, in_ms(seconds), whole.records, by_phase(phases), whole.rows)
            self._told.append((told, [msgspec.structs.replace(key, ended_ms=now_ms) for key in slow]))
            self.cycles += 1

    def error(self, reason: str) -> None:
        with self._lock:
            self._state = "retrying"
            self._last_error = reason
            self._last_error_ms = self._clock.now_ms()

    def due(self) -> bool:
        """Whether the status should be saved after this cycle."""
        return self.age() >= SAVE_S

    def age(self) -> float:
        """Seconds since the status was last asked for."""
        return self._clock.monotonic() - self._saved

    def status(self) -> PipelineStatus:
        with self._lock:
            self._saved = now = self._clock.monotonic()
            recent = [(at, records) for at, records in self._recent if now - at <= WINDOW_S]
            rate = sum(records for _, records in recent) / WINDOW_S
            return PipelineStatus(
                state=self._state,
                pid=os.getpid(),
                host=socket.gethostname(),
                started_ms=self._started,
                updated_ms=self._clock.now_ms(),
                cycles=self.cycles,
                records=self._totals.records,
                events=self._totals.events,
                rejected=self._totals.rejected,
                rejected_by_life=self._totals.rejected_by_life,
                quarantined=self._totals.quarantined + self._totals.misplaced,
                records_per_second=round(rate, 1),
                last_cycle_records=self._last_records,
                last_cycle_ms=round(self._durations[-1] * 1000, 1) if self._durations else 0.0,
                cycle_ms_p50=round(statistics.median(self._durations) * 1000, 1) if self._durations else 0.0,
                last_error=self._last_error,
                last_error_ms=self._last_error_ms,
                left_out=dict(self.left_out),
                tags_wait_for=list(self.tags_wait_for),
                cycle_ms=in_ms(self._seconds),
                phase_ms=by_phase(self._phases),
                rows=self._totals.rows,
                recent=[cycle for cycle, _ in self._told],
                slowest=slowest(key for _, slow in self._told for key in slow),
            )


def in_ms(seconds: float) -> float:
    """Whole microseconds, cut off: so the parts of something never add up to more than it."""
    return int(seconds * 1_000_000) / 1000


def by_phase(seconds: Mapping[str, float]) -> dict[str, float]:
    return {phase: in_ms(spent) for phase, spent in seconds.items()}
