"""Drains: jobs that take 0, 1 and 15 ms, run 1, 10 and 100 at a time by the worker of each side.

Every cell of that table has its own turns, one side after the other. The clock runs from the beginning of the first job
to the end of the last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from bench.report import Line, Target, line_of
from bench.rounds import Contender, Round, alternate, ratio
from bench.settings import Settings

UNIT = "jobs/s"
CONCURRENCIES = (1, 10, 100)
MILLISECONDS = (0, 1, 15)
# With jobs of this many milliseconds, at so many at a time, the worker must not be what one waits for.
IDEAL_CELLS = ((15, 1), (15, 10))
OF_IDEAL = 0.9
TIMES_FASTEST = 2
TIMES_PROCRASTINATE = 5
# Enough rounds of a worker's places, so that the first and the last of them do not count much.
PLACES = 4


class DrainSide(Protocol):
    """Puts jobs, then drains them; only the drain is timed."""

    def put_and_drain(self, jobs: int, concurrency: int, seconds: float) -> Round: ...


class Drainer(NamedTuple):
    """One side. `rate`: about how many jobs that do nothing it runs in a second, so that no round takes long."""

    name: str
    side: DrainSide
    rate: int
    rate_alone: int


class Cell(NamedTuple):
    """Jobs that take so long, so many at a time."""

    milliseconds: int
    concurrency: int

    @property
    def ideal(self) -> float:
        """Jobs per second of a worker that itself takes no time."""
        return self.concurrency * 1000 / self.milliseconds if self.milliseconds else float("inf")

    @property
    def measurement(self) -> str:
        work = f"jobs of {self.milliseconds} ms" if self.milliseconds else "no-op jobs"
        return f"queues: drain {work}, {self.concurrency} at a time"

    def jobs(self, drainer: Drainer, seconds: float) -> int:
        """As many as take about that long."""
        rate = min(self.ideal, drainer.rate_alone if self.concurrency == 1 else drainer.rate)
        return max(int(rate * seconds), PLACES * self.concurrency)

    def run(self, drainer: Drainer, seconds: float) -> Callable[[], Round]:
        jobs = self.jobs(drainer, seconds)
        return partial(drainer.side.put_and_drain, jobs, self.concurrency, self.milliseconds / 1000)


def drains(settings: Settings, drainers: list[Drainer]) -> list[Line]:
    """Everlog is the first of the sides, procrastinate the last."""
    cells = [Cell(milliseconds, concurrency) for milliseconds in MILLISECONDS for concurrency in CONCURRENCIES]
    table = {cell: [Contender(one.name, cell.run(one, settings.queue_drain_s)) for one in drainers] for cell in cells}
    alternate([one for row in table.values() for one in row], settings.rounds)
    return [line for cell in cells for line in _lines(cell, table)]


def _lines(cell: Cell, table: dict[Cell, list[Contender]]) -> list[Line]:
    own, *others = table[cell]
    lines = [line_of(cell.measurement, one, UNIT) for one in (own, *others)]
    for line, other in zip(lines[1:], others, strict=True):
        line.ratio = ratio(own, other)
    lines[0].details["share_of_ideal"] = own.rate / cell.ideal
    lines[0].target = _target(cell, table)
    return lines


def _target(cell: Cell, table: dict[Cell, list[Contender]]) -> Target | None:
    """What jobs do nothing is held to the fastest of the others at any number at a time, not only at the same."""
    own, *others = table[cell]
    if cell in IDEAL_CELLS:
        return Target(f"{cell.measurement}, of {cell.ideal:.0f}/s", own.rate / cell.ideal, OF_IDEAL, "at least", "x")
    if cell == Cell(0, 1):
        name = f"{cell.measurement}, times {others[-1].name}"
        return Target(name, ratio(own, others[-1]), TIMES_PROCRASTINATE, "at least", "x")
    if cell == Cell(0, max(CONCURRENCIES)):
        rivals = [(one, other.concurrency) for other in table if not other.milliseconds for one in table[other][1:]]
        fastest, concurrency = max(rivals, key=lambda rival: rival[0].rate)
        name = f"{cell.measurement}, times {fastest.name}, {concurrency} at a time"
        return Target(name, ratio(own, fastest), TIMES_FASTEST, "at least", "x")
    return None
