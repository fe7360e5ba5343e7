"""The same measurement on another commit, by turns in one run: `python -m bench --against COMMIT`.

The other commit gets a checkout and an environment of its own: its locked requirements, installed by the set-up script
of this checkout, because an older one may trip over what was released since. Each side runs its own `bench` package in
a separate process, a few rounds at a time: old, new, new, old, old, new, … So a slow minute of the machine hits both,
and module names may differ between the two. Figures are compared by measurement and name.

All that is asked of a side: `python -m bench --only NAME --rounds N --seed N --folder FOLDER` measures, and leaves a
JSON file in `bench-results/` of its working folder, as `bench.report` writes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.report import BEST, RESULTS, figure

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path("~/.cache/everlog-bench").expanduser()
LOCKS = ("requirements-build.lock", "requirements.lock", "requirements-bench.lock")
SET_UP = ("scripts/setup.sh", "scripts/apt.sh")
# What an environment consists of; everything else in its folder belongs to a commit.
ENVIRONMENT = (".venv", ".setup.lock")
# The figure of a turn is the median of these, unless the caller's words name another number. A round of a quick
# measurement takes less time than its process to start.
ROUNDS_PER_TURN = 3
PERCENTILES = ("p50", "p99")
SHOWN_LINES = 20
HOW_TO_READ = (
    "new/old is the median over the turns, the spread its lowest and highest: above 1 a rate is better, "
    "below 1 a time is better.\nLines of other programs show the noise: the commit changed nothing there."
)

Key = tuple[str, str, str]
Values = Mapping[Key, tuple[float, str]]


class CannotMeasure(Exception):
    """A side could not be set up, or its measurement failed."""


def check_turns(commit: str | None, turns: int | None) -> None:
    """Turns are those of two sides."""
    if turns is not None and commit is None:
        raise click.UsageError("--turns goes with --against")


@dataclass(frozen=True, slots=True)
class Checkout:
    """One side: the files of a commit, and the Python of its environment."""

    name: str
    commit: str
    folder: Path
    python: Path

    def measure(self, program: str, words: Sequence[str], scratch: Path) -> list[dict[str, Any]]:
        """The lines that one run of its own benchmark reports."""
        with tempfile.TemporaryDirectory(prefix="turn-", dir=scratch) as name:
            folder = Path(name)
            folder.chmod(0o711)  # as `bench.__main__` does with its own folder, and for the same reason
            done = subprocess.run(
                [self.python, "-m", program, *words, "--folder", folder / "data"],
                cwd=folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            files = sorted((folder / RESULTS).glob("*.json"))
            found = json.loads(files[-1].read_text()) if files else {"failed": {}}
            if done.returncode or found["failed"] or not files:
                last = "\n".join(done.stdout.splitlines()[-SHOWN_LINES:])
                raise CannotMeasure(f"{self.name}: {'; '.join(found['failed'].values()) or 'no results'}\n{last}")
        lines: list[dict[str, Any]] = found["lines"]
        return lines

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        return os.environ | {"PYTHONPATH": str(self.folder), "PATH": path}


def this_checkout(root: Path = ROOT) -> Checkout:
    """The files as they are, changes that are not committed included."""
    changed = "+" if git(root, "status", "--porcelain", "--untracked-files=no") else ""
    commit = git(root, "rev-parse", "--short", "HEAD") + changed
    return Checkout("this checkout", commit, root, Path(sys.executable))


@contextmanager
def other_checkout(commit: str, root: Path = ROOT, cache: Path = CACHE) -> Iterator[Checkout]:
    """The files of a commit beside an environment, which later commits with the same requirements use again.

    The files are copies, not a worktree: a run that is killed leaves nothing in the repository.
    """
    try:
        full = git(root, "rev-parse", "--verify", f"{commit}^{{commit}}")
        locks = "\n".join(git(root, "show", f"{full}:{name}") for name in LOCKS)
    except subprocess.CalledProcessError as error:
        raise CannotMeasure(f"{commit}: {error.stderr.strip()}") from error
    folder = cache / hashlib.sha256(locks.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _fill(folder, full, root)
        made = subprocess.run(["scripts/setup.sh", "bench"], cwd=folder, check=False)
        if made.returncode:
            raise CannotMeasure(f"{commit}: scripts/setup.sh failed in {folder}")
        short = git(root, "rev-parse", "--short", full)
        yield Checkout(commit, short, folder, folder / ".venv" / "bin" / "python")


def _fill(folder: Path, commit: str, root: Path) -> None:
    for old in folder.iterdir():
        if old.name not in ENVIRONMENT:
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    archive = subprocess.run(["git", "-C", root, "archive", commit], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    for name in SET_UP:
        shutil.copy2(root / name, folder / name)


def git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def values(lines: Sequence[Mapping[str, Any]]) -> Values:
    """The figures of one run by measurement, name and kind.

    Which of several did best may differ from run to run. Percentiles of a single operation say no more than its rate.
    """
    found: dict[Key, tuple[float, str]] = {}
    for line in lines:
        name = (line["measurement"], line["who"].removesuffix(BEST))
        if line["rate"] is not None:
            found[*name, "rate"] = (line["rate"], line["unit"])
        times = line["milliseconds"]
        if len({*times.values()}) > 1 or line["rate"] is None:
            found |= {(*name, percent): (times[percent], "ms") for percent in PERCENTILES if percent in times}
    return found


class Comparison(NamedTuple):
    """One figure on both sides, turn by turn."""

    key: Key
    unit: str
    old: tuple[float, ...]
    new: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        return [new / old for old, new in zip(self.old, self.new, strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def as_json(self) -> dict[str, Any]:
        measurement, who, kind = self.key
        ratios = [round(ratio, 4) for ratio in self.ratios]
        return {
            "measurement": measurement,
            "who": who,
            "figure": kind,
            "unit": self.unit,
            "old": self.old,
            "new": self.new,
            "ratios": ratios,
            "ratio": round(self.ratio, 4),
            "lowest": min(ratios),
            "highest": max(ratios),
        }


def compare_turns(turns: Sequence[tuple[Values, Values]]) -> tuple[list[Comparison], set[Key]]:
    """The figures that both sides have in every turn, and the others."""
    runs = [run for turn in turns for run in turn]
    every = [key for key in runs[0] if all(run.get(key, (0, ""))[0] for run in runs)] if runs else []
    found = [
        Comparison(key, runs[0][key][1], tuple(old[key][0] for old, _ in turns), tuple(new[key][0] for _, new in turns))
        for key in every
    ]
    return found, {key for run in runs for key in run} - set(every)


@dataclass(slots=True)
class Comparisons:
    """Both sides of one run, in one table and one JSON file."""

    started: str
    old: Checkout
    new: Checkout
    words: Sequence[str]
    turns: int
    comparisons: list[Comparison] = field(default_factory=list)
    not_on_both: set[Key] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=machine.describe)

    def save(self, path: Path) -> None:
        """Called after every measurement: a run that is broken off leaves what it had."""
        found = {
            "started": self.started,
            "machine": self.machine,
            "old": self.old.commit,
            "new": self.new.commit,
            "options": [*self.words],
            "turns": self.turns,
            "comparisons": [one.as_json() for one in self.comparisons],
            "not_on_both": sorted(self.not_on_both),
            "failed": self.failed,
        }
        path.write_text(json.dumps(found, indent=2) + "\n")

    def show(self, console: Console) -> None:
        title = f"{self.new.name} ({self.new.commit}) against {self.old.commit}; turns: {self.turns}"
        table = Table(title=title, title_justify="left")
        for name in ("measurement", "who"):
            table.add_column(name)
        for name in ("figure", f"old: {self.old.commit}", f"new: {self.new.commit}", "new/old", "spread"):
            table.add_column(name, justify="right", no_wrap=True)
        previous = None
        for one in self.comparisons:
            if previous is not None and one.key[0] != previous:
                table.add_section()
            table.add_row(*_cells(one))
            previous = one.key[0]
        console.print(f"{self.machine['cpus']} processors (load {self.machine['load']} at the start)", highlight=False)
        console.print(table)
        console.print(HOW_TO_READ, highlight=False)
        for key in sorted(self.not_on_both):
            console.print(f"not on both sides: {', '.join(key)}", highlight=False)
        for name, reason in self.failed.items():
            console.print(f"[red]{name} could not be compared:[/] {reason}", highlight=False)


def _cells(one: Comparison) -> list[str]:
    *names, kind = one.key
    old, new = (f"{figure(statistics.median(values))} {one.unit}" for values in (one.old, one.new))
    return [*names, kind, old, new, f"{one.ratio:.2f}x", f"{min(one.ratios):.2f} to {max(one.ratios):.2f}"]


def run(
    sides: tuple[Checkout, Checkout], program: str, names: Sequence[str], words: Sequence[str], turns: int, folder: Path
) -> Comparisons:
    """Measure by turns, and save what is known after each; a measurement that fails does not end the others."""
    now = datetime.now(UTC)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"against-{now:%Y%m%d-%H%M%S}.json"
    report = Comparisons(now.isoformat(timespec="seconds"), *sides, words, turns)
    for name in names:
        try:
            found, rest = compare_turns(_turns(sides, program, name, words, turns, folder))
            report.comparisons += found
            report.not_on_both |= rest
        except CannotMeasure as error:
            report.failed[name] = str(error)
        report.save(path)
    # Into a file or a pipe, the table is as wide as it needs to be.
    console = Console(width=None if sys.stdout.isatty() else 180)
    report.show(console)
    console.print(f"written to {path}", highlight=False)
    return report


def _turns(
    sides: tuple[Checkout, Checkout], program: str, name: str, words: Sequence[str], turns: int, folder: Path
) -> list[tuple[Values, Values]]:
    notices = Console(stderr=True)
    found = []
    for turn in range(1, turns + 1):
        pair: list[Values] = [{}, {}]
        for at in (0, 1) if turn % 2 else (1, 0):  # whichever is first finds the machine in another state
            notices.print(f"measuring: {name}, turn {turn} of {turns}: {sides[at].commit}", highlight=False)
            lines = sides[at].measure(program, ["--only", name, "--rounds", str(ROUNDS_PER_TURN), *words], folder)
            pair[at] = values(lines)
        found.append((pair[0], pair[1]))
    return found


def against(
    commit: str, program: str, names: Sequence[str], words: Sequence[str], turns: int, folder: Path
) -> Comparisons:
    """The benchmark's `--against`: the commit is the old side, this checkout the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            other_checkout(commit) as old,
            tempfile.TemporaryDirectory(prefix="against-", dir=folder.resolve()) as scratch,
        ):
            Path(scratch).chmod(0o711)
            return run((old, this_checkout()), program, names, words, turns, Path(scratch))
    except CannotMeasure as error:
        raise click.ClickException(str(error)) from error
