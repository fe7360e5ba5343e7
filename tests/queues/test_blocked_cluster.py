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

BLOCKED_S = 4.0


@pytest.mark.parametrize("owner", ["another process", "the worker"])
async def test_a_blocked_loop_neither_loses_a_lease_nor_keeps_a_queue_from_others(shared_config, owner):
    """The loop stands still for four leases: the job runs once, and the other process gets its answers meanwhile."""
    config = shared_config()
    name = f"jobs-{secrets.token_hex(4)}"
    ran: list[int] = []
    blocked, ended = threading.Event(), threading.Event()
    answers: list[int] = []

    @everlog.job(name, timeout="1s")
    async def work(job: everlog.Job) -> None:
        ran.append(job.attempt)
        blocked.set()
        time.sleep(BLOCKED_S)  # noqa: ASYNC251 (what a program must not do, and some do)
        ended.set()

    def rival() -> None:
        with everlog.sync.connect(config) as other:
            if owner == "another process":
                other.queue(name).put("k")  # the first to use a queue owns it
            ready.set()
            blocked.wait(60)
            while not ended.is_set():
                answers.append(len(other.queue(name).claim(owner="rival")))

    ready = threading.Event()
    async with everlog.connect(config) as log:
        if owner == "the worker":
            await log.queue(name).put("k")
        waiting = asyncio.create_task(asyncio.to_thread(rival))
        await asyncio.to_thread(ready.wait, 60)
        worker = log.worker(work)
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(ended.wait, 60)
        await waiting
        worker.stop()
        await running
        stats = await log.queue(name).stats()
    assert ran == [1]
    assert set(answers) == {0}
    assert len(answers) > BLOCKED_S, "more than one in a second"
    assert worker.counted == {"done": 1}
    assert (stats.ready, stats.running, stats.dead) == (0, 0, 0)
