"""What a run found: one table for people, one JSON file for programs."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from bench.rounds import Contender, percentile

PERCENTILES = (50, 90, 99, 99.9)
RESULTS = Path("bench-results")
# Added to the name of the best of several lines of one program.
BEST = " (its best)"


@dataclass(frozen=True, slots=True)
class Target:
    """What was promised, and what came of it."""

    name: str
    value: float
    limit: float
    sense: Literal["at least", "under"]
    unit: str

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.sense == "at least" else self.value < self.limit

    def __str__(self) -> str:
        sign = "≥" if self.sense == "at least" else "<"
        return f"{sign} {figure(self.limit)}{self.unit}"


@dataclass(slots=True)
class Line:
    """One row of the table. `ratio`: Everlog's rate as a multiple of this line's, unless the report says otherwise."""

    measurement: str
    who: str
    rate: float | None = None
    unit: str = "/s"
    milliseconds: dict[str, float] = field(default_factory=dict)
    ratio: float | None = None
    target: Target | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        if self.target is not None:
            found["target"]["met"] = self.target.met
        return found


def line_of(measurement: str, contender: Contender, unit: str, **details: Any) -> Line:
    """A contender's line: the median of its rounds, and the percentiles of its operations."""
    return Line(
        measurement,
        contender.name,
        rate=contender.rate,
        unit=unit,
        milliseconds=milliseconds(contender.latencies),
        details={"rates": [round(done.rate, 1) for done in contender.rounds], **details},
    )


def compare(own: Line, others: Sequence[Line], *, against: Line, at_least: float) -> list[Line]:
    """Everlog's line with its target, then the others with Everlog's rate as a multiple of theirs."""
    relate(own, others)
    assert against.ratio is not None
    own.target = Target(f"{own.measurement}: times {against.who}", against.ratio, at_least, "at least", "x")
    return [own, *others]


def relate(own: Line, others: Sequence[Line]) -> None:
    """Note in the others' lines what multiple of theirs Everlog's rate is."""
    assert own.rate is not None
    for other in others:
        assert other.rate is not None
        other.ratio = own.rate / other.rate


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    found = {f"p{percent:g}": percentile(seconds, percent) for percent in PERCENTILES}
    return {name: round(value * 1000, 3) for name, value in found.items() if value is not None}


def figure(value: float) -> str:
    """With three significant digits, which is enough to compare."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}".removesuffix(".0") if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(slots=True)
class Report:
    """Everything of one run. `about` says in a line or two what it ran on; `notes` stand below the table."""

    started: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    title: str
    about: Callable[[dict[str, Any]], str]
    ratio_name: str = "Everlog is"
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def targets(self) -> list[Target]:
        return [line.target for line in self.lines if line.target is not None]

    def save(self, path: Path) -> None:
        """Called after every measurement: a run that is broken off leaves what it had."""
        found = {
            "started": self.started,
            "machine": self.machine,
            "settings": self.settings,
            "lines": [line.as_json() for line in self.lines],
            "notes": self.notes,
            "failed": self.failed,
        }
        path.write_text(json.dumps(found, indent=2) + "\n")

    def show(self, console: Console) -> None:
        console.print(self.about(self.machine))
        console.print(self._table())
        for note in self.notes:
            console.print(note, highlight=False, soft_wrap=True)
        for name, reason in self.failed.items():
            console.print(f"[red]{name} could not be measured:[/] {reason}", highlight=False)
        for target in self.targets:
            verdict = "[green]met   [/]" if target.met else "[red]missed[/]"
            value = f"{figure(target.value)}{target.unit}"
            console.print(f"{verdict}  {target.name}: {value}, wanted {target}", highlight=False)
        met = sum(target.met for target in self.targets)
        console.print(f"{met} of {len(self.targets)} targets met" + self._caution(), highlight=False)

    def _caution(self) -> str:
        return "; a quick run is too small to judge by" if self.settings["quick"] else ""

    def _table(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        table.add_column("measurement")
        table.add_column("who")
        for name in ("rate", "p50 ms", "p99 ms", self.ratio_name, "target", "met"):
            table.add_column(name, justify="right", no_wrap=True)
        previous = None
        for line in self.lines:
            if previous is not None and line.measurement != previous:
                table.add_section()
            table.add_row(*_cells(line, first=line.measurement != previous))
            previous = line.measurement
        return table


def _cells(line: Line, *, first: bool) -> list[str]:
    target = line.target
    times = line.milliseconds
    return [
        line.measurement if first else "",
        line.who,
        "" if line.rate is None else f"{figure(line.rate)} {line.unit}",
        figure(times["p50"]) if "p50" in times else "",
        figure(times["p99"]) if "p99" in times else "",
        "" if line.ratio is None else f"{figure(line.ratio)}x",
        "" if target is None else str(target),
        "" if target is None else ("[green]yes[/]" if target.met else "[red]no[/]"),
    ]


def measure_all(
    report: Report,
    path: Path,
    names: Sequence[str],
    measure: Callable[[str], tuple[list[Line], list[str]]],
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Measure, and save what is known after each; a measurement that fails does not end the others. Then show it all.

    `measure` gives the lines of a measurement, and notes; `finish` is called after the last one.
    """
    notices = Console(stderr=True)
    for name in names:
        notices.print(f"measuring: {name}", highlight=False)
        try:
            lines, notes = measure(name)
            report.lines += lines
            report.notes += notes
        except Exception as error:
            traceback.print_exc()
            report.failed[name] = f"{type(error).__name__}: {error}"
        report.save(path)
    finish()
    report.save(path)
    # Into a file or a pipe, the table is as wide as it needs to be.
    console = Console(width=None if sys.stdout.isatty() else 160)
    report.show(console)
    console.print(f"written to {path}", highlight=False)
