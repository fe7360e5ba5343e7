"""The two charts of a queue: jobs per second or minute, and how long they waited to start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everlog.console.charts import Plot, make_plot
from everlog.console.queue_meter import QueuePoint
from everlog.core.phrases import duration

# Below so many per second a rate is told per minute.
MIN_PER_SECOND = 0.5


class PlotLine(NamedTuple):
    """One line: `texts` has its values as they are told, `last` the last of them."""

    name: str
    look: str
    values: list[float | None]
    texts: list[str]

    @property
    def last(self) -> str:
        return self.texts[-1]


class QueuePlot(NamedTuple):
    """A chart and what its axes are."""

    what: str
    unit: str
    most: str
    lines: list[PlotLine]
    plot: Plot


def make_queue_plots(points: Sequence[QueuePoint]) -> list[QueuePlot]:
    """The charts of a queue's hour; none before the first slot."""
    return [_jobs(points), _waits(points)] if points else []


def _jobs(points: Sequence[QueuePoint]) -> QueuePlot:
    highest = max(max(one.put, one.done, one.failed) for one in points)
    scale, unit = (60, "per minute") if highest < MIN_PER_SECOND else (1, "per second")
    series = {"put": ("dashed", [one.put for one in points]), "done": ("", [one.done for one in points])}
    series["failed"] = ("bad", [one.failed for one in points])
    lines = []
    for name, (look, rates) in series.items():
        values = [rate * scale for rate in rates]
        drawn: list[float | None] = _without_nothing(values) if name == "failed" else list(values)
        lines.append(PlotLine(name, look, drawn, [_number(value) for value in values]))
    plot = make_plot([line.values for line in lines])
    return QueuePlot("Jobs", unit, _number(plot.highest), lines, plot)


def _waits(points: Sequence[QueuePoint]) -> QueuePlot:
    lines = [
        _wait("half within", "", [one.wait_p50_s for one in points]),
        _wait("95 % within", "dashed", [one.wait_p95_s for one in points]),
    ]
    plot = make_plot([line.values for line in lines], seconds=True)
    return QueuePlot("Wait", "from due to start", duration(plot.highest), lines, plot)


def _wait(name: str, look: str, values: list[float | None]) -> PlotLine:
    return PlotLine(name, look, values, ["no start" if value is None else duration(value) for value in values])


def _without_nothing(values: list[float]) -> list[float | None]:
    """Where nothing failed there is no line: it would be one in the colour of what is wrong."""
    around = zip([0.0, *values[:-1]], values, [*values[1:], 0.0], strict=True)
    return [value if before or value or after else None for before, value, after in around]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:,.1f}"
