"""Kill -9 of pipelines at labelled points, on any backend: they repair themselves, the tables are as if nothing
happened."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import everlog
from everlog import Event
from everlog.config import Config
from everlog.runtime.failpoints import ONCE_VARIABLE, ROOT_VARIABLE, VARIABLE
from tests.conftest import Pipeline
from tests.pipeline.backends import Backend, write_config
from tests.pipeline.class_archive import with_quick_start
from tests.pipeline.suite import TOPIC, check_tables, in_batches

KEYS = [f"order-{number}" for number in range(6)]
BATCH = 2 * len(KEYS)
TIMEOUT = 280


async def fill_in_kinds(config: Config) -> None:
    """Three batches of one partition: the first only appends, the second deletes, the third purges and begins anew."""
    assert config.log.partitions == 1
    async with everlog.connect(config) as log:
        journal = log.journal(TOPIC)
        for step in range(2):
            for key in KEYS:
                await journal.append(key, [Event({"n": number, "step": step}) for number in range(5)])
        for key in KEYS:
            await journal.snapshots.save(key, seq_nr=4, payload=key)
            await journal.delete(key, to=2)
            await journal.delete(key, to=7)
        for key in KEYS:
            await journal.purge(key)
            await journal.append(key, [Event("second life"), Event("second life")])


def run(config: Config, folder: Path, *, die_at: str | None = None, worker: bool = False) -> int:
    """Run a pipeline until it is done or dead; its exit code. `worker`: only a worker of it dies, once."""
    folder.mkdir(exist_ok=True)
    config = with_quick_start(config)
    environment = {
        name: value for name, value in os.environ.items() if name not in (VARIABLE, ROOT_VARIABLE, ONCE_VARIABLE)
    }
    if die_at is not None:
        environment[VARIABLE] = die_at
        if worker:
            environment[ONCE_VARIABLE] = str(folder / f"died-{die_at}")
    command = [sys.executable, "-m", "tests.faults.pipeline", str(write_config(config, folder / "config.json"))]
    if worker:
        command.append("worker")
    # Output goes to a file: orphans of a killed pipeline would keep a pipe open.
    with (folder / "pipeline.out").open("ab") as output:
        return subprocess.run(
            command, env=environment, stdout=output, stderr=output, timeout=TIMEOUT, check=False
        ).returncode


async def kill_pipelines(backend: Backend, folder: Path, points: list[str], pipeline: Pipeline, *, most: int) -> None:
    """Kill one pipeline after the other, each at its point; `pipeline` makes the last one, which lives. `most`:
    records of a batch."""
    config = in_batches(backend.config, most)
    for point in points:
        assert run(config, folder, die_at=point) == -signal.SIGKILL, f"did not die at {point}"
    with pipeline(config) as running:
        assert await asyncio.to_thread(running.wait_until_replicated, TIMEOUT), running.status
    await check_tables(backend)


async def kill_workers(backend: Backend, folder: Path, point: str, counts: list[int], *, most: int) -> None:
    """Kill one worker after the other, each when it comes to the point so many times; the pipeline lives on."""
    config = in_batches(backend.config, most)
    die_at = f"{point}:{','.join(map(str, counts))}"
    assert run(config, folder, die_at=die_at, worker=True) == 0, (folder / "pipeline.out").read_text()[-3000:]
    died = folder / f"died-{die_at}"
    assert died.exists(), f"no worker died at {point}"
    assert died.stat().st_size == len(counts), f"only {died.stat().st_size} workers died at {point}"
    await check_tables(backend)
