"""`python -m bench.cluster`: measure on a real cluster in one run, print one table, write one JSON file."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from bench import machine
from bench.against import Comparisons, against, check_turns
from bench.cluster.appends import appends
from bench.cluster.documents import documents
from bench.cluster.latency import latency
from bench.cluster.pipeline import pipeline
from bench.cluster.queues import queues
from bench.cluster.reads import reads
from bench.cluster.servers import Servers, servers
from bench.cluster.settings import Settings, quick
from bench.cluster.tags import tags
from bench.report import RESULTS, Line, Report, measure_all

MEASUREMENTS: dict[str, Callable[[Settings, Servers], tuple[list[Line], list[str]]]] = {
    "pipeline": pipeline,
    "appends": appends,
    "reads": reads,
    "latency": latency,
    "tags": tags,
    "queues": queues,
    "documents": documents,
}
TITLE = "Everlog on Kafka, Spark and Cassandra, and what the clients alone can do"


@click.command()
@click.option(
    "--quick", "is_quick", is_flag=True, help="Small sizes: shows that everything runs; the figures mean nothing."
)
@click.option("--only", multiple=True, type=click.Choice(list(MEASUREMENTS)), help="Only this; may be repeated.")
@click.option("--events", type=click.IntRange(min=1_000), help="Events for the pipeline.  [default: 300,000]")
@click.option(
    "--rounds", type=click.IntRange(min=1), help="Rounds that count.  [default: 3; --quick: 1; --against: 3 per turn]"
)
@click.option("--seed", default=1, show_default=True, help="For payloads and the order of the journals.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Measure on the cluster of this everlog.toml, in keyspaces and topics of its own.  [default: start one]",
)
@click.option("--keep", is_flag=True, help="Leave the servers, keyspaces and topics as they are at the end.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    show_default=True,
    help="The servers write in here, so it should be on the disk that you want to know about.",
)
@click.option("--against", "commit", metavar="COMMIT", help="Compare with this commit: by turns, on the same servers.")
@click.option(
    "--turns", type=click.IntRange(min=1), help="With --against: turns of each side.  [default: 3; --quick: 1]"
)
def main(
    *,
    is_quick: bool,
    only: Sequence[str],
    events: int | None,
    rounds: int | None,
    seed: int,
    config: Path | None,
    keep: bool,
    folder: Path,
    commit: str | None,
    turns: int | None,
) -> None:
    """Measure Everlog on a cluster, beside what the clients of Kafka and Cassandra can do alone."""
    check_turns(commit, turns)
    folder.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="cluster-", dir=folder)).resolve()
    settings = quick(scratch, seed, keep) if is_quick else Settings(folder=scratch, seed=seed, keep=keep)
    turns = turns or settings.rounds
    settings = replace(settings, events=events or settings.events, rounds=rounds or settings.rounds)
    names = [name for name in MEASUREMENTS if not only or name in only]
    report: Report | Comparisons
    try:
        with servers(config, scratch, keep=keep) as found:
            if commit is None:
                report = run(settings, found, names)
            else:
                words = ["--seed", str(seed), "--config", str(found.file), *(["--quick"] if is_quick else [])]
                words += [*(["--keep"] if keep else []), *([] if events is None else ["--events", str(events)])]
                words += [] if rounds is None else ["--rounds", str(rounds)]
                report = against(commit, "bench.cluster", names, words, turns, scratch)
    finally:
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(1 if report.failed else 0)


def run(settings: Settings, found: Servers, names: Sequence[str]) -> Report:
    """Measure, and save what is known after each; a measurement that fails does not end the others."""
    now = datetime.now(UTC)
    known = machine.describe() | {"servers": found.describe(), "given": found.given}
    report = Report(now.isoformat(timespec="seconds"), settings.as_json(), known, TITLE, about, ratio_name="share")
    path = RESULTS / f"cluster-{now:%Y%m%d-%H%M%S}.json"
    measure_all(report, path, names, lambda name: MEASUREMENTS[name](settings, found))
    return report


def about(found: dict[str, Any]) -> str:
    """What it ran on, in a line."""
    kafka, cassandra = found["servers"]["kafka"], found["servers"]["cassandra"]
    return (
        f"{found['cpus']} processors (load {found['load']} at the start), Python {found['python']}, "
        f"Kafka {kafka['version'] or 'of unknown version'}, Cassandra {cassandra['version']}, "
        f"Spark {found['pyspark']}, confluent-kafka {found['confluent-kafka']}, acsylla {found['acsylla']}"
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
