"""A job that blocks the event loop of its program, on a cluster: heartbeats and owners have a thread of their own."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time

import pytest

import everlog
import everlog.sync

pytestmark = pytest.mark.cluster

LEASE_S = 3
BLOCKED_S = 1.5 * LEASE_S
ENOUGH = 5


@pytest.mark.parametrize("owner", ["another process", "the worker"])
async def test_a_blocked_loop_neither_loses_a_lease_nor_keeps_a_queue_from_others(shared_config, owner):
    """The loop stands still for longer than a lease: the job runs once, and the other process gets its answers
    meanwhile."""
    config = shared_config()
    name = f"jobs-{secrets.token_hex(4)}"
    ran: list[int] = []
    blocked, answered, ended = threading.Event(), threading.Event(), threading.Event()
    answers: list[int] = []
    meanwhile: list[bool] = []

    @everlog.job(name, timeout=f"{LEASE_S}s")
    async def work(job: everlog.Job) -> None:
        ran.append(job.attempt)
        blocked.set()
        time.sleep(BLOCKED_S)  # noqa: ASYNC251 (what a program must not do, and some do)
        meanwhile.append(answered.wait(60))
        ended.set()

    def rival() -> None:
        with everlog.sync.connect(config) as other:
            if owner == "another process":
                other.queue(name).put("k")  # the first to use a queue owns it
            ready.set()
            blocked.wait(60)
            while not ended.is_set():
                answers.append(len(other.queue(name).claim(owner="rival")))
                if len(answers) >= ENOUGH:
                    answered.set()

    ready = threading.Event()
    async with everlog.connect(config) as log:
        if owner == "the worker":
            await log.queue(name).put("k")
        waiting = asyncio.create_task(asyncio.to_thread(rival))
        await asyncio.to_thread(ready.wait, 60)
        worker = log.worker(work)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(ended.wait, 120)
        await waiting
        worker.stop()
        await running
        stats = await log.queue(name).stats()
    assert ran == [1]
    assert set(answers) == {0}
    assert meanwhile == [True], "they came while the loop stood still"
    assert worker.counted == {"done": 1}
    assert (stats.ready, stats.running, stats.dead) == (0, 0, 0)
