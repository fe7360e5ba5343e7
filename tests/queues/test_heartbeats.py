"""No job waits for another one's heartbeat: each queue has beats of its own, and each job at most one at a time."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import contextmanager

import everlog
import everlog.sync
from everlog.console.server import serving
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import Heartbeat
from everlog.queues.queue import Queue
from everlog.queues.worker import Worker
from tests.waiting import until

LEASE = "1500ms"


async def test_a_queue_whose_file_is_locked_takes_no_lease_from_another(tmp_path):
    """A program holds a transaction on its own file, in which one of the queues is, for longer than a lease."""
    began: list[tuple[str, int]] = []
    release = asyncio.Event()

    @everlog.job("own", timeout=LEASE)
    async def held(job):
        began.append((job.key, job.attempt))
        await release.wait()

    @everlog.job("other", timeout=LEASE)
    async def work(job):
        began.append((job.key, job.attempt))
        await release.wait()

    file = tmp_path / "own.db"
    sqlite3.connect(file).close()
    async with everlog.connect(tmp_path / "data") as log, everlog.connect(tmp_path / "data") as rival:
        await log.queue("own").declare(bucket="none", file=str(file))
        await log.queue("own").put("a")
        await log.queue("other").put("b")
        worker = log.worker([held, work])
        running = asyncio.create_task(worker.run())
        await until(lambda: len(began) == 2)
        (first,) = await rival.queue("other").leases()
        owner = sqlite3.connect(file, isolation_level=None)
        owner.execute("BEGIN IMMEDIATE")

        async def is_kept() -> bool:
            """Two leases later; what the lease was at first would have been over long ago."""
            claimed = await rival.queue("other").claim(owner="rival")
            leases = await rival.queue("other").leases()
            lost = bool(claimed) or not leases or len(began) > 2
            return lost or leases[0].row.deadline_ms > first.row.deadline_ms + 2 * first.row.lease_ms

        await until(is_kept)
        owner.execute("ROLLBACK")
        owner.close()
        (kept,) = await rival.queue("other").leases()
        assert kept.row.token == first.row.token
        assert sorted(began) == [("a", 1), ("b", 1)]
        release.set()
        await until(lambda: worker.counted.total() >= 2)
        worker.stop()
        await running
    assert worker.counted["done"] == 2


async def test_a_beat_that_hangs_holds_up_its_own_job_only(monkeypatch):
    """Of two jobs of one queue: a part of a queue may be without an owner. The job that hangs has one beat under way,
    not one more at each time; when the worker stops, it does not wait for it."""
    store = MemoryQueueStore()
    release, hanging = asyncio.Event(), []
    execute = MemoryQueueStore.execute

    async def hangs_for_a(store, name, operation):
        if isinstance(operation, Heartbeat) and operation.handle.entry == 1:
            hanging.append(operation)
            await asyncio.Event().wait()
        return await execute(store, name, operation)

    @everlog.job("jobs")
    async def work(job):
        await release.wait()

    monkeypatch.setattr(MemoryQueueStore, "execute", hangs_for_a)
    monkeypatch.setattr("everlog.queues.heartbeat.BEATS_PER_LEASE", 3000)
    queue = Queue("jobs", store)
    await queue.declare(processing_timeout="1m")
    await queue.put("a")
    await queue.put("b")
    worker = Worker(store, work, poll_s=0.01)
    running = asyncio.create_task(worker.run())
    await until(lambda: hanging)
    (before,) = [one for one in await queue.leases() if one.key == "b"]

    async def is_kept() -> bool:
        (now,) = [one for one in await queue.leases() if one.key == "b"]
        return now.row.start_ms >= before.row.start_ms + 100

    await until(is_kept)
    assert len(hanging) == 1
    release.set()
    await until(lambda: worker.counted == {"done": 2})
    worker.stop()
    await running


@contextmanager
def a_server(folder):
    """In a thread, with a loop of its own; its address."""
    started, stop = threading.Event(), threading.Event()
    addresses = []

    async def serve():
        async with (
            everlog.connect(folder) as log,
            serving(log, host="127.0.0.1", port=0, writable=True) as address,
        ):
            addresses.append(address)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert started.wait(60)
        yield addresses[0]
    finally:
        stop.set()
        thread.join()


async def test_a_job_that_blocks_the_loop_keeps_its_lease_over_http(tmp_path):
    """For longer than a lease, while a rival asks the server for jobs all the time and gets its answers."""
    ran: list[int] = []
    answers: list[int] = []
    blocked, answered, ended = threading.Event(), threading.Event(), threading.Event()

    @everlog.job("jobs", timeout=LEASE)
    async def work(job):
        ran.append(job.attempt)
        blocked.set()
        time.sleep(2.5)  # noqa: ASYNC251 (what a program must not do, and some do)
        answered.wait(60)
        ended.set()

    def rival(address):
        with everlog.sync.connect(address) as other:
            blocked.wait(60)
            began = time.monotonic()
            while not ended.is_set():
                answers.append(len(other.queue("jobs").claim(owner="rival")))
                if time.monotonic() - began > 2.0:  # longer than a lease
                    answered.set()
                time.sleep(0.02)

    with a_server(tmp_path) as address:
        async with everlog.connect(address) as log:
            await log.queue("jobs").put("k")
            claiming = asyncio.create_task(asyncio.to_thread(rival, address))
            worker = log.worker(work)
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(ended.wait, 120)
            await claiming
            worker.stop()
            await running
            stats = await log.queue("jobs").stats()
    assert (ran, set(answers), worker.counted) == ([1], {0}, {"done": 1})
    assert answered.is_set(), "the rival got its answers while the loop stood still"
    assert (stats.ready, stats.running, stats.dead) == (0, 0, 0)
