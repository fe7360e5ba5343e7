"""Several processes on one queue, and kill -9 of them: each lease once, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

import everlog
from everlog.runtime.failpoints import VARIABLE

POINTS = (
    "queue.put",
    "queue.claim",
    "queue.done",
    "queue.bucket",
    "queue.main",
    "queue.committed",
)


@contextmanager
def processes(folder, mode, arguments, *, environment=None):
    """Processes that are ready; `go` starts them all at once."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.models.queue_process", str(folder), mode, str(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        for argument in arguments
    ]
    try:
        for process in started:
            assert process.stdout.readline() == b'["ready"]\n'
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def go(started):
    for process in started:
        process.stdin.write(b"\n")
        process.stdin.flush()


def lines(process):
    """What a process said; the last line of a killed one may be cut off."""
    found = process.stdout.read().split(b"\n")[:-1]
    return [json.loads(line) for line in found]


async def fill(folder, count, **options):
    async with everlog.connect(folder) as log:
        queue = log.queue("jobs")
        await queue.declare(**options)
        for first in range(0, count, 500):
            await asyncio.gather(*(queue.put(number) for number in range(first, min(count, first + 500))))


async def drained_by(folder, count, workers):
    await fill(folder, count)
    with processes(folder, "drain", [7] * workers) as started:
        go(started)
        said = [line for process in started for line in lines(process)]
    leases = [tuple(lease) for line in said for lease in line[1:]]
    assert len(leases) == len(set(leases)) == count
    assert len({entry for entry, _ in leases}) == count


async def test_four_processes_claim_each_job_once(tmp_path):
    await drained_by(tmp_path, 1000, 4)


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_eight_processes_claim_twenty_thousand_jobs(tmp_path):
    """20,000 jobs, 8 processes: 20,000 distinct leases."""
    await drained_by(tmp_path, 20_000, 8)


@pytest.mark.case("journal-tables", 30)
async def test_the_jobs_of_a_killed_worker_run_again(tmp_path):
    """kill -9 of a process that holds 100 leases: all 100 are claimable after their time, without any other code."""
    await fill(tmp_path, 100, processing_timeout="500ms")
    with processes(tmp_path, "hold", [100]) as (process,):
        go([process])
        leases = json.loads(process.stdout.readline())[1:]
        assert len(leases) == 100
        process.send_signal(signal.SIGKILL)
        process.wait()
    async with everlog.connect(tmp_path) as log:
        queue = log.queue("jobs")
        jobs = []
        async with asyncio.timeout(60):
            while len(jobs) < 100:
                await queue.wait(60)
                jobs += await queue.claim(100, lease="1h")
        assert {(job.entry, job.token - 1) for job in jobs} == {tuple(lease) for lease in leases}
        assert {job.attempt for job in jobs} == {2}


async def check_after_kills(folder, said):
    """I1 to I5, from outside: what was acknowledged is there once, or was claimed; what is done stays done."""
    acked = {line[1] for line in said if line[0] == "put"}
    maybe = {line[1] for line in said if line[0] == "putting"}
    done = {line[1] for line in said if line[0] == "done"}
    claimed = [(line[2], line[3]) for line in said if line[0] == "claimed"]
    assert len(claimed) == len(set(claimed)), "a handle was given twice"
    claimed_keys = {line[1] for line in said if line[0] == "claimed"}
    async with everlog.connect(folder) as log:
        queue = log.queue("jobs")
        stats = await queue.stats()
        waiting = [info.key async for info in queue.jobs()]
        assert len(waiting) == len(set(waiting)), "a key has two rows"
        assert set(waiting) <= maybe, "a job that nobody put"
        assert not set(waiting) & done, "a job that was done is back"
        running = {key for key in maybe if (found := await queue.get(key)) and found[0].running}
        assert len(running) == stats.running
        missing = acked - set(waiting) - running - claimed_keys
        # A claim that was committed and never said may have been finished by nobody: then it runs, see above.
        assert not missing, f"lost: {sorted(missing)}"
        assert not running & done
    return acked


def one_kill(folder, seed, chance, point=None):
    """Two processes at a time; one dies at its point, or both at some moment."""
    environment = {} if point is None else {VARIABLE: f"{point}:{chance.randint(1, 6)}"}
    with processes(folder, "churn", [seed, seed + 1], environment=environment) as started:
        go(started)
        if point is None:
            select.select([process.stdout for process in started], [], [], 60)  # one of them is at work
            time.sleep(chance.random() * 0.3)
            for process in started:
                process.send_signal(signal.SIGKILL)
        for process in started:
            assert process.wait(60) == -signal.SIGKILL
        return [line for process in started for line in lines(process)]


@pytest.mark.case("journal-tables", 45)
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_every_point(tmp_path, point):
    """Killed inside a put, a claim or a done, before and after its commit: after a restart all invariants hold."""
    options = {"rate_limit": "10000/s"} if point == "queue.main" else {}  # so that claims write to the main file
    await fill(tmp_path, 0, **options)
    chance = random.Random(point)
    said = []
    for kill in range(2):
        said += await asyncio.to_thread(one_kill, tmp_path, kill * 10, chance, point)
    assert await check_after_kills(tmp_path, said)


@pytest.mark.faults
@pytest.mark.case("journal-tables", 45)
@pytest.mark.timeout(900)
async def test_killed_at_any_moment(tmp_path):
    """Forty kills at random moments on one folder."""
    await fill(tmp_path, 0, bucket="hour")
    chance = random.Random(7)
    said = []
    for kill in range(40):
        said += await asyncio.to_thread(one_kill, tmp_path, kill * 10, chance)
    assert len(await check_after_kills(tmp_path, said)) > 40


@pytest.mark.case("journal-tables", 50)
async def test_limits_are_exact_over_processes(tmp_path):
    """Four processes with five workers each: never four jobs at once, never an eleventh start within a second."""
    await fill(tmp_path, 40, max_in_flight=3, rate_limit="10/s")
    with processes(tmp_path, "limited", [5] * 4) as started:
        go(started)
        said = [line for process in started for line in lines(process)]
    spans = sorted((began, ended) for _, began, ended in said)
    assert len(spans) == 40
    for began, _ in spans:
        assert sum(first <= began < last for first, last in spans) <= 3
        assert sum(began <= first < began + 1000 for first, _ in spans) <= 10
