"""Which phase ends at which labelled point, as the code itself says it."""

from __future__ import annotations

from types import ModuleType

import pytest

from everlog.pipeline.phases import PHASES
from everlog.runtime.clock import Stopwatch

POINT_OF = {phase.name: phase.point for phase in PHASES}


def note_laps(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """What this module goes through from now on: `=rows` ends a phase, `apply.rows` is a labelled point."""
    noted: list[str] = []
    lap, split, failpoint = Stopwatch.lap, Stopwatch.split, vars(module)["failpoint"]

    def noted_lap(self, phase):
        noted.append(f"={phase}")
        lap(self, phase)

    def noted_split(self, phases, rest):
        noted.append(f"={rest}")
        split(self, phases, rest)

    def noted_point(name):
        noted.append(name)
        failpoint(name)

    monkeypatch.setattr(Stopwatch, "lap", noted_lap)
    monkeypatch.setattr(Stopwatch, "split", noted_split)
    monkeypatch.setattr(module, "failpoint", noted_point)
    return noted


def check_laps(noted: list[str]) -> None:
    """A phase that has a labelled point ends right before it, and every point but the first has a phase."""
    assert noted
    for before, point in zip(["", *noted], noted, strict=False):
        if not point.startswith("=") and point != "cycle.started":
            assert POINT_OF[before.removeprefix("=")] == point, noted
