"""`python -m bench`: measure everything in one run, print one table, write one JSON file."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import click

from bench import machine
from bench.against import against, check_turns
from bench.report import RESULTS, Line, Report, measure_all
from bench.settings import Settings, quick

Measurement = Callable[[Settings], list[Line]]


def late(name: str, module: str | None = None) -> Measurement:
    """A measurement that is imported when it runs: what it compares with need not be there for the others."""

    def measure(settings: Settings) -> list[Line]:
        found: Measurement = getattr(import_module(f"bench.{module or name}"), name)
        return found(settings)

    return measure


MEASUREMENTS: dict[str, Measurement] = {
    "single": late("single", "appends"),
    "concurrent": late("concurrent", "appends"),
    "replay": late("replay"),
    "pipeline": late("pipeline"),
    "latency": late("latency", "pipeline"),
    "tags": late("tags"),
    "projections": late("projections"),
    "queues": late("queues"),
    "documents": late("documents"),
    "http": late("http", "http_load"),
}
TITLE = "Everlog, and what a user would take instead"


@click.command()
@click.option(
    "--quick", "is_quick", is_flag=True, help="Small sizes: shows that everything runs; the figures mean nothing."
)
@click.option("--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="Only this; may be repeated.")
@click.option("--events", type=click.IntRange(min=1_000), help="Events for the pipeline.  [default: 500,000]")
@click.option("--big/--no-big", default=None, help="Go on to ten times as many events.  [default: unless --quick]")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Rounds that count.  [default: 5; --quick: 2; --against: 3 per turn]"
)
@click.option("--seed", default=1, show_default=True, help="For payloads, keys and pauses.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    show_default=True,
    help="Both sides write in here, so it should be on the disk that you want to know about.",
)
@click.option("--against", "commit", metavar="COMMIT", help="Compare with this commit: by turns, in one run.")
@click.option(
    "--turns", type=click.IntRange(min=1), help="With --against: turns of each side.  [default: 5; --quick: 2]"
)
def main(
    *,
    is_quick: bool,
    only: Sequence[str],
    events: int | None,
    big: bool | None,
    rounds: int | None,
    seed: int,
    folder: Path,
    commit: str | None,
    turns: int | None,
) -> None:
    """Measure Everlog beside what a user would take instead, in one run, on one disk, with the same durability."""
    check_turns(commit, turns)
    names = [name for name in MEASUREMENTS if not only or name in only]
    if commit is not None:
        words = ["--seed", str(seed), *(["--quick"] if is_quick else [])]
        words += [] if events is None else ["--events", str(events)]
        words += [] if big is None else ["--big" if big else "--no-big"]
        words += [] if rounds is None else ["--rounds", str(rounds)]
        turns = turns or (quick(folder, seed) if is_quick else Settings(folder)).rounds
        sys.exit(1 if against(commit, "bench", names, words, turns, folder).failed else 0)
    folder.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="data-", dir=folder)).resolve()
    scratch.chmod(0o711)  # PostgreSQL, which does not run as root, must come to its own folder in it
    settings = quick(scratch, seed) if is_quick else Settings(folder=scratch, seed=seed)
    if events is not None:
        settings = replace(settings, pipeline_events=events, big_events=events * 10)
    settings = replace(
        settings, big=settings.big if big is None else big, rounds=settings.rounds if rounds is None else rounds
    )
    try:
        report = run(settings, names)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(1 if report.failed else 0)


def run(settings: Settings, names: Sequence[str]) -> Report:
    """Measure, and save what is known after each; a measurement that fails does not end the others."""
    now = datetime.now(UTC)
    found = machine.describe() | {"commits_per_second": [machine.commits_per_second(settings.folder)]}
    report = Report(now.isoformat(timespec="seconds"), settings.as_json(), found, TITLE, machine.about)

    def finish() -> None:
        found["commits_per_second"].append(machine.commits_per_second(settings.folder))

    measure_all(
        report, RESULTS / f"{now:%Y%m%d-%H%M%S}.json", names, lambda name: (MEASUREMENTS[name](settings), []), finish
    )
    return report


if __name__ == "__main__":
    main()
