"""Owners of a queue on a real Cassandra, killed and paused in a loop: nothing lost, nothing back, no lease twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.operations import Claim
from everlog.queues.queue import Queue
from tests.waiting import blocking_until

pytestmark = pytest.mark.cluster


def done(path: Path) -> int:
    """How many jobs a process had done."""
    return path.read_bytes().count(b'["done"')


def done_by(folder: Path) -> list[int]:
    return [done(path) for path in folder.glob("p[0-9]*")]


def torment(config, folder, rounds: int, host: str = "-", count: int = 2) -> list[list]:
    """Some processes at a time; each round one of them is killed, or stopped for longer than a takeover takes.

    Not before some work was done since the last time, by the victim if it can reach the owner: how long processes take
    to start, and queues to be taken over, nobody knows.
    """
    chance = random.Random(rounds)
    text = msgspec.json.encode(config).decode()
    said = []

    def start(name: str) -> tuple[subprocess.Popen, Path]:
        path = folder / name
        with path.open("wb") as output:
            command = [sys.executable, "-m", "tests.queues.owner_process", text, name, host]
            return subprocess.Popen(command, stdout=output), path

    def work_goes_on(victim: Path) -> None:
        wanted = sum(done_by(folder)) + 5
        blocking_until(lambda: sum(done_by(folder)) >= wanted and (host == "-" or done(victim)), seconds=120)

    living = [start(f"p{number}") for number in range(count)]
    try:
        for number in range(count, rounds + count):
            work_goes_on(living[0][1])
            time.sleep(0.5 + chance.random())
            process, path = living.pop(0)
            if number % 2:
                process.send_signal(signal.SIGSTOP)
                time.sleep(2.0)
                process.send_signal(signal.SIGCONT)
                time.sleep(0.5)
            process.kill()
            process.wait()
            said.append(path)
            living.append(start(f"p{number}"))
    finally:
        for process, path in living:
            process.kill()
            process.wait()
            said.append(path)
    lines = []
    for path in said:
        lines += [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    return lines


async def check(config, said: list[list]) -> int:
    def all_of(kind: str) -> set[str]:
        return {line[1] for line in said if line[0] == kind}

    claimed = [(line[2], line[3]) for line in said if line[0] == "claimed"]
    assert len(claimed) == len(set(claimed)), "a handle was given twice"
    store = CassandraQueueStore(config, name="judge", takeover_s=1.0)
    queue = Queue("jobs", store)
    async with asyncio.timeout(60):
        while True:
            try:
                stats = await queue.stats()
                break
            except Exception:
                await asyncio.sleep(0.3)
    there = {key for key in all_of("putting") if await queue.get(key)}
    assert len(there) == stats.ready + stats.running
    lost = all_of("put") - there - all_of("finishing")
    assert not lost, f"acknowledged and gone: {sorted(lost)[:5]}"
    back = there & all_of("done")
    assert not back, f"done and back: {sorted(back)[:5]}"
    assert await store.execute("jobs", Claim("judge", 1)) is not None
    await store.close()
    return len(all_of("done"))


async def run(config, folder, rounds: int, **options) -> None:
    first = CassandraQueueStore(config, name="first")
    await Queue("jobs", first).declare(processing_timeout="1h")
    await first.close()
    said = await asyncio.to_thread(torment, config, folder, rounds, **options)
    assert await check(config, said) > 10


def at_work(folder) -> int:
    """How many processes had a job done."""
    return sum(map(bool, done_by(folder)))


@pytest.mark.case("journal-tables", 46)
async def test_owners_killed_and_paused(cluster_config, tmp_path):
    await run(cluster_config().cassandra, tmp_path, 4)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "rounds", [pytest.param(15, marks=pytest.mark.faults), pytest.param(100, marks=pytest.mark.soak)]
)
async def test_owners_killed_and_paused_many_times(cluster_config, tmp_path, rounds):
    await run(cluster_config().cassandra, tmp_path, rounds)


@pytest.mark.case("journal-tables", 46)
async def test_processes_that_share_a_queue_killed_and_paused(cluster_config, tmp_path):
    """Three at a time, each reaching the owner, whoever that is: all of them get work done, and the same holds."""
    folder = tmp_path / "said"
    folder.mkdir()
    await run(cluster_config().cassandra, folder, 4, host="127.0.0.1", count=3)
    assert at_work(folder) >= 3


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "rounds", [pytest.param(12, marks=pytest.mark.faults), pytest.param(100, marks=pytest.mark.soak)]
)
async def test_processes_that_share_a_queue_killed_and_paused_many_times(cluster_config, tmp_path, rounds):
    folder = tmp_path / "said"
    folder.mkdir()
    await run(cluster_config().cassandra, folder, rounds, host="127.0.0.1", count=3)
    assert at_work(folder) >= rounds // 2
