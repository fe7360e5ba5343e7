"""`everlog journal copy` as the Spark job that it is, and what a running pipeline makes of a retired topic."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import everlog
from everlog import Event
from everlog.config import Config
from everlog.errors import InvalidInput, TopicRetired
from everlog.journal.spark.copy_job import CopyReport, copy
from everlog.runtime.failpoints import VARIABLE
from everlog.testing.replication import replicate
from tests.cli_support import Cli
from tests.conftest import Pipeline
from tests.journal.copy_support import make_again, states_of
from tests.pipeline.suite import WAIT
from tests.support import small_config
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


async def fill(config: Config, journals: int = 12) -> dict[str, Any]:
    """Journals of several lengths, one of which is halted or begun later in TO; what they are."""
    async with everlog.connect(config) as log:
        journal = log.journal("orders")
        for number in range(5 * journals):
            await journal.append(f"o-{number % journals}", [Event(number, tags={"t"}), Event(b"\x00")])
        for number in range(0, journals, 3):
            await journal.delete(f"o-{number}", to=4)
        await journal.purge("o-1")
        await replicate(log, batch=50)
        originals = await states_of(log, "orders")
        make_again(log, "orders")
        return originals


async def read(config: Config, topic: str) -> dict[str, Any]:
    async with everlog.connect(config) as log:
        return await states_of(log, topic)


def test_a_topic_that_was_made_again_is_copied(spark, tmp_path, monkeypatch) -> None:
    """All journals, in several jobs and tasks; told how far it is; done again, it only compares."""
    config = small_config(tmp_path / "data")
    originals = asyncio.run(fill(config))
    monkeypatch.setattr("everlog.journal.spark.copy_job.JOURNALS_PER_JOB", 5)
    monkeypatch.setattr("everlog.journal.spark.copy_job.PER_TASK", 2)
    events = sum(len(state["events"]) for state in originals.values())
    gaps = dict.fromkeys(range(2), "the topic was made again")
    assert copy(config, "orders", "copies", dry_run=True, session=spark) == CopyReport(11, events, gaps=gaps)
    told: list[tuple[int, int]] = []
    done = copy(config, "orders", "copies", session=spark, progress=lambda *found: told.append(found))
    assert done == CopyReport(11, events, gaps=gaps)
    assert told == [(5, 11), (10, 11), (11, 11)]
    assert asyncio.run(read(config, "copies")) == originals
    assert copy(config, "orders", "copies", session=spark) == CopyReport(11, 0, events, gaps=gaps)


def test_the_command(spark, tmp_path, monkeypatch) -> None:
    """It counts, copies, names what is in the way, and its exit code says so."""
    cli = Cli(tmp_path / "data")
    for number in range(4):
        cli.run("journal", "append", "orders", f"o-{number}", "--payload", str(number))
    session = SimpleNamespace(createDataFrame=spark.createDataFrame, stop=lambda: None)
    monkeypatch.setattr("everlog.journal.spark.copy_job.open_session", lambda *_, **__: session)
    found = cli.json("journal", "copy", "orders", "copies", "--dry-run")
    assert (found["journals"], found["events"], found["dry_run"], found["gaps"]) == (4, 4, True, {})
    assert cli.error("journal", "read", "copies", "o-1", code=4)["type"] == "JournalNotFound"
    cli.run("journal", "append", "copies", "o-2", "--payload", "mine")
    result = cli.run("journal", "copy", "orders", "copies", code=3)
    assert result.stdout == "copied 3 events: 3 journals of orders are in copies, compared and equal\n"
    assert "copies:o-2: the event with seqNr 1 is not that of orders:o-2" in result.stderr
    cli.run("journal", "purge", "copies", "o-2")
    cli.break_journal("orders", "o-3")
    result = cli.run("journal", "copy", "orders", "copies", code=5)
    assert result.stdout.startswith("copied 1 events, 3 were there: 4 journals")
    assert "o-3" in result.stderr
    assert cli.out("journal", "read", "copies", "o-2").splitlines()[1].endswith("2")
    assert cli.error("journal", "copy", "odrers", "copies", code=4)["type"] == "JournalNotFound"
    assert cli.error("journal", "copy", "orders", "orders", code=2)["type"] == "InvalidInput"


def test_what_cannot_be_copied_at_all(tmp_path) -> None:
    config = small_config(tmp_path / "data")
    asyncio.run(fill(config, 2))
    with pytest.raises(InvalidInput):
        copy(config, "orders", "orders")

    async def retire() -> None:
        async with everlog.connect(config) as log:
            await log.journal("old").append("k", Event(1))
            make_again(log, "old")
            await log.retire("old")

    asyncio.run(retire())
    with pytest.raises(TopicRetired):
        copy(config, "orders", "old")


async def test_a_running_pipeline_leaves_a_retired_topic(tmp_path, pipeline: Pipeline) -> None:
    """A topic was lost with a batch that was planned and never finished. Views by tag wait for it, until it is copied
    and retired: the pipeline notices by itself, the events behind it appear, those of the copy too."""
    config = small_config(tmp_path / "data")
    async with everlog.connect(config) as log:
        await log.journal("orders").append("a", Event(1, tags={"t"}))
        await replicate(log)
        await log.journal("orders").append("a", Event(2, tags={"t"}))
        await replicate(log, publish=False)
        originals = await states_of(log, "orders")
        make_again(log, "orders")
        with pipeline(config) as running:
            await log.journal("others").append("b", Event(3, tags={"t"}))
            assert running.wait_until_replicated(WAIT), running.status
            assert "everlog journal copy orders NEW" in running.status.left_out["journal-orders"]
            assert running.status.tags_wait_for
            assert await payloads(log) == [1]
            report = await asyncio.to_thread(copy, config, "orders", "copies", session=running.session)
            assert (report.journals, report.events) == (1, 2)
            await log.retire("orders")

            async def left() -> bool:
                # Readers see the watermark a moment before the status knows that nothing holds it any more.
                status = running.status
                return not status.left_out and not status.tags_wait_for and await payloads(log) == [1, 2, 3, 1, 2]

            await until(left, seconds=WAIT, every=0.05)
            assert running.status.state == "running"
            assert running.status.last_error is None
            assert await states_of(log, "copies") == originals
            assert (await log.status()).retired == ["orders"]


async def payloads(log: everlog.Everlog) -> list[Any]:
    return [found.event.payload async for found in log.tag("t").current()]


@pytest.mark.faults
@pytest.mark.parametrize("at", ["copy.record:7", "copy.journal:5"])
def test_a_job_that_is_killed_is_run_again(tmp_path, at) -> None:
    """A worker dies in the middle, and the job with it; the next run goes on, and nothing is doubled."""
    config = small_config(tmp_path / "data")
    originals = asyncio.run(fill(config))

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "everlog.cli", "journal", "copy", "orders", "copies", "--json"]
        return subprocess.run(
            [*command, "--data", str(tmp_path / "data")],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=Path(__file__).parents[2],
        )

    died = run(**{VARIABLE: at})
    assert died.returncode == 75
    assert "run it again" in died.stderr
    assert "Python worker exited" in died.stderr
    begun = asyncio.run(read(config, "copies"))
    assert begun != originals
    done = run()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["journals"] == len(originals)
    assert asyncio.run(read(config, "copies")) == originals
