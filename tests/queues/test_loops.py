"""Loops of workers: whatever is raised in one, it is logged, shown, and the loop begins again after a pause."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

import everlog
from everlog.errors import StorageFailed
from everlog.queues import heartbeat
from everlog.queues import scheduler as scheduler_module
from everlog.queues import worker as worker_module
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import AskSchedules, Claim, Done, FireSchedules, Heartbeat, Sweep
from everlog.queues.port import QueueStore
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.upkeep import QueueUpkeep
from everlog.queues.worker import Worker
from everlog.testing.queue_desk import VirtualClock
from tests.waiting import until

FOREIGN = [RuntimeError("broken"), SystemExit("broken"), asyncio.CancelledError("broken"), BaseException("broken")]
ERRORS = pytest.mark.parametrize("error", [*FOREIGN, StorageFailed("broken")], ids=lambda one: type(one).__name__)


@pytest.fixture(params=["memory", "files"])
async def store(request, tmp_path):
    store = MemoryQueueStore() if request.param == "memory" else SqliteQueueStore(tmp_path, synchronous="NORMAL")
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(worker_module, "RETRY_S", 0.001)
    monkeypatch.setattr(worker_module, "TEND_S", 0.001)
    monkeypatch.setattr(scheduler_module, "RETRY_S", 0.001)
    monkeypatch.setattr(heartbeat, "MIN_RETRY_S", 0.001)
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", 3000)  # every 20 ms for each minute of a lease


class Breakage:
    """Some operations of all stores of a kind raise an error while `left` says so."""

    def __init__(self, monkeypatch, store, error, *kinds):
        self.left = self.raised = 0
        execute = type(store).execute

        async def maybe(store, name, operation):
            if self.left > 0 and isinstance(operation, kinds):
                self.left -= 1
                self.raised += 1
                raise error
            return await execute(store, name, operation)

        monkeypatch.setattr(type(store), "execute", maybe)
        monkeypatch.setattr(type(store), "execute_all", QueueStore.execute_all)


@asynccontextmanager
async def working(store, *functions, **options):
    worker = Worker(store, functions, poll_s=0.01, grace_s=1.0, **options)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.ready or task.done())
    try:
        yield worker
    finally:
        worker.stop()
        await task


def loop(worker, name):
    (found,) = [one for one in worker.status() if one.name == name]
    return found


def told(caplog, text):
    return [record for record in caplog.records if text in record.getMessage()]


@ERRORS
async def test_claims_go_on_when_the_store_works_again(store, monkeypatch, caplog, error):
    ran = []

    @everlog.job("jobs")
    async def work(job):
        ran.append(job.key)

    async with working(store, work) as worker:
        broken = Breakage(monkeypatch, store, error, Claim)
        broken.left = 3
        await until(lambda: broken.raised == 3)
        await Queue("jobs", store).put("a")
        await until(lambda: ran == ["a"])
        found = loop(worker, "claims of jobs")
    assert (found.state, found.restarts, found.failures) == ("running", 3, 3)
    assert "broken" in found.last_error
    assert found.last_error_ms <= found.since_ms
    assert len(told(caplog, "claims of jobs: the loop begins again")) == 3, "a line for each failure, and no more"
    assert loop(worker, "claims of jobs").state == "stopped"


@ERRORS
async def test_a_loop_that_fails_rests(store, monkeypatch, caplog, error):
    """It does not spin, others go on meanwhile, and a worker whose loop rests can be stopped."""
    monkeypatch.setattr(worker_module, "RETRY_S", 3600.0)

    @everlog.job("jobs")
    async def work(job): ...

    async with working(store, work) as worker:
        broken = Breakage(monkeypatch, store, error, Claim)
        broken.left = 1_000_000
        await until(lambda: loop(worker, "claims of jobs").state == "restarting")
        for _ in range(200):
            await asyncio.sleep(0)
        assert broken.raised == 1
        assert loop(worker, "upkeep of jobs").state == "running"
    assert len(told(caplog, "the loop begins again")) == 1


async def test_each_pause_is_longer_than_the_one_before(monkeypatch, caplog):
    """By a clock that stands still: a loop that ran for longer than it had rested begins with a short pause."""
    store = MemoryQueueStore(VirtualClock())

    @everlog.job("jobs")
    async def work(job): ...

    async with working(store, work):
        broken = Breakage(monkeypatch, store, RuntimeError("broken"), Claim)
        broken.left = 5
        await until(lambda: broken.raised == 5 and len(told(caplog, "begins again")) == 5)
    pauses = [float(re.search(r"again in ([\d.]+) s", one.getMessage())[1]) for one in told(caplog, "begins again")]
    assert pauses[4] > pauses[0]
    assert pauses[4] > 0.007, "16 times the first, or half of that"


async def test_a_loop_that_begins_again_takes_no_more_jobs_than_before(store, monkeypatch):
    running, most, release = [], [], asyncio.Event()

    @everlog.job("jobs")
    async def work(job):
        running.append(job.key)
        most.append(len(running))
        await release.wait()
        running.remove(job.key)

    queue = Queue("jobs", store)
    await queue.put("a")
    async with working(store, work, concurrency=2) as worker:
        await until(lambda: running == ["a"])
        broken = Breakage(monkeypatch, store, RuntimeError("broken"), Claim)
        broken.left = 2
        await until(lambda: loop(worker, "claims of jobs").restarts == 2)
        await queue.put_many((number, None) for number in range(5))
        await until(lambda: len(running) == 2)
        release.set()
        await until(lambda: worker.counted["done"] == 6)
    assert max(most) == 2


@ERRORS
async def test_heartbeats_go_on_when_the_store_works_again(store, monkeypatch, caplog, error):
    release = asyncio.Event()

    @everlog.job("jobs")
    async def work(job):
        await release.wait()

    broken = Breakage(monkeypatch, store, error, Heartbeat)
    broken.left = 3
    beats = []
    execute = type(store).execute

    async def noted(store, name, operation):
        answer = await execute(store, name, operation)
        if isinstance(operation, Heartbeat):
            beats.append(answer.ack)
        return answer

    monkeypatch.setattr(type(store), "execute", noted)
    queue = Queue("jobs", store)
    await queue.declare(processing_timeout="1m")
    await queue.put("a")
    async with working(store, work) as worker:
        await until(lambda: len(beats) >= 2)
        found = loop(worker, "heartbeats of jobs")
        release.set()
        await until(lambda: worker.counted == {"done": 1})
    restarts = 0 if isinstance(error, StorageFailed) else 3  # an outage is waited for, without a restart
    assert (found.state, found.restarts, found.failures) == ("running", restarts, 3)
    assert "broken" in found.last_error
    assert set(beats) == {"OK"}
    assert len(told(caplog, "broken")) == 3


@ERRORS
async def test_schedules_are_fired_when_the_store_works_again(store, monkeypatch, caplog, error):
    ran = []

    @everlog.job("jobs", every="20ms")
    async def work(job):
        ran.append(job.key)

    async with working(store, work) as worker:
        broken = Breakage(monkeypatch, store, error, AskSchedules, FireSchedules)
        broken.left = 3
        await until(lambda: broken.raised == 3)
        before = len(ran)
        await until(lambda: len(ran) > before + 1)
        found = loop(worker, "schedules of jobs")
    assert (found.state, found.restarts, found.failures) == ("running", 3, 3)
    assert len(told(caplog, "schedules of jobs: the loop begins again")) == 3


@ERRORS
async def test_upkeep_of_a_worker_goes_on(store, monkeypatch, caplog, error):
    @everlog.job("jobs")
    async def work(job): ...

    async with working(store, work) as worker:
        broken = Breakage(monkeypatch, store, error, Sweep)
        broken.left = 3
        await until(lambda: loop(worker, "upkeep of jobs").restarts == 3)
        await until(lambda: loop(worker, "upkeep of jobs").state == "running")
    assert len(told(caplog, "upkeep of jobs: the loop begins again")) == 3


@ERRORS
async def test_upkeep_of_a_server_goes_on(store, monkeypatch, error):
    """One queue's error does not keep the others waiting, and the next round comes."""
    saved, tended, tend = [], [], store.tend

    class Statuses:
        async def save_status(self, name, status, now_ms):
            saved.append(status)
            raise error

    async def fails_for_one(name):
        if name == "a" and len(saved) < 2:
            raise error
        await tend(name)
        tended.append(name)

    await Queue("a", store).declare()
    await Queue("b", store).declare()
    monkeypatch.setattr(store, "tend", fails_for_one)
    monkeypatch.setattr("everlog.queues.upkeep.TEND_S", 0.001)
    upkeep = QueueUpkeep(lambda: store, clock=store.clock, store=Statuses())
    upkeep.start()
    await until(lambda: "a" in tended)
    await upkeep.ran(3)
    assert upkeep.status().running
    assert upkeep.status().failures == 2
    await upkeep.stop()
    assert tended[:2] == ["b", "b"]
    assert b"broken" in saved[0]


@ERRORS
async def test_a_report_that_fails_ends_its_job_only(store, monkeypatch, caplog, error):
    ran = []

    @everlog.job("jobs")
    async def work(job):
        ran.append(job.key)

    queue = Queue("jobs", store)
    async with working(store, work) as worker:
        broken = Breakage(monkeypatch, store, error, Done)
        broken.left = 1
        await queue.put("a")
        await until(lambda: worker.counted.total() == 1)
        await queue.put("b")
        await until(lambda: "b" in ran and worker.counted.total() == 2)
    assert "could not be reported" in caplog.text
