"""Kill -9 of the whole pipeline at every labelled point: it repairs itself, the tables are as if nothing happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import everlog
from everlog import Event
from everlog.failpoints import POINTS, VARIABLE
from everlog.log.base import NewRecord
from everlog.testing.replication import replicate
from tests.spark.tables import tables

TOPIC = "orders"


async def fill(folder: Path) -> None:
    """A bit of everything: appends, deletes, purges, second lives, expiry, snapshots, conflicts, bad records."""
    (folder / "everlog.toml").write_text("[journal]\nsegment_size = 3\n[log]\npartitions = 2\n")
    async with everlog.connect(folder) as log:
        journal = log.journal(TOPIC)
        for number in range(120):
            key = f"order-{number % 8}"
            await journal.append(key, [Event({"n": number}), Event(f"text {number}", tags={"eu"})])
            if number % 9 == 4:
                await journal.delete(key, to=number // 8 + 1)
            if number % 31 == 30:
                await journal.snapshots.save(key, seq_nr=1, payload={"state": number})
                await journal.purge(key)
            if number % 13 == 5:
                await journal.mark(key)
        await journal.append("expiring", Event(b"\x00\x01"), expire_after=timedelta(days=1))
        await journal.append("order-1", Event("late", seq_nr=1_000_000), verdict=False)
        await journal.append("order-1", Event("fork", seq_nr=1), verdict=False)
        ref = await journal.ref("broken")
        assert ref is not None
        bad = NewRecord(ref.partition, 1, ref.key, b'{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}', b"{")
        await log.parts.log.append(ref.log_topic, bad)
        await journal.append("order-2", Event("after the broken one"))


def run(folder: Path, *, die_at: str | None = None, batch: int = 100_000) -> int:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if die_at is not None:
        environment[VARIABLE] = die_at
    command = [sys.executable, "-m", "tests.faults.pipeline", str(folder), str(batch)]
    # Output goes to a file: orphans of a killed pipeline would keep a pipe open.
    with (folder / "pipeline.out").open("ab") as output:
        return subprocess.run(
            command, env=environment, stdout=output, stderr=output, timeout=180, check=False
        ).returncode


async def uninterrupted(folder: Path, tmp_path: Path) -> dict[str, list[tuple[object, ...]]]:
    """The tables that the same log gives without any crash, folded in one go."""
    copy = tmp_path / "uninterrupted"
    shutil.copytree(folder, copy)
    async with everlog.connect(copy) as log:
        await replicate(log)
    return tables(copy)


async def kill_and_compare(tmp_path: Path, points: list[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    await fill(folder)
    expected = await uninterrupted(folder, tmp_path)
    for point in points:
        assert run(folder, die_at=point, batch=60) == -signal.SIGKILL, f"did not die at {point}"
    assert run(folder) == 0
    assert tables(folder) == expected


@pytest.mark.spark
@pytest.mark.case("kafka-journal", 31)
@pytest.mark.timeout(300)
async def test_killed_in_the_middle(tmp_path: Path) -> None:
    """Killed while it writes, and again between applying and publishing: the rerun gives the same tables."""
    await kill_and_compare(tmp_path, ["apply.heads", "batch.applied"])


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.case("kafka-journal", 31)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_every_point(tmp_path: Path, point: str) -> None:
    """At each labelled point, in the first batch and in a later one: no lost and no doubled row, reads as ever."""
    await kill_and_compare(tmp_path, [point, f"{point}:2"])
