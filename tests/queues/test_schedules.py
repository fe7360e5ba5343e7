"""Schedules as users meet them: whatever becomes of one run, and whenever workers start, the next times come."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import msgspec
import pytest

import everlog
from everlog.queues import scheduler as scheduler_module
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import AskSchedules, FireSchedules, ListSchedules, SetSchedule
from everlog.queues.queue import Queue
from everlog.queues.sqlite import files as bucket_files
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.worker import Worker
from everlog.runtime.failpoints import VARIABLE
from everlog.testing.queue_desk import HOUR, T, VirtualClock
from tests.queues.test_processes import go, lines, processes
from tests.waiting import until

NEXT_HOUR = T // HOUR * HOUR + HOUR


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture(params=["memory", "files"])
async def store(request, tmp_path, clock):
    files = request.param == "files"
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock) if files else MemoryQueueStore(clock)
    yield store
    await store.close()


@asynccontextmanager
async def working(store, *functions, **options):
    worker = Worker(store, functions, poll_s=0.01, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


ENDINGS = {"done": None, "fails": ValueError("no"), "gives up": everlog.GiveUp("never")}


@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_next_time_comes_whatever_became_of_the_last_run(store, clock, ending):
    """A run that dies, and one that is cancelled, are no reason to stop."""
    ran = []

    @everlog.job("reports", every="1h")
    async def report(job):
        ran.append(job.due.timestamp() * 1000)
        if ENDINGS[ending] is not None:
            raise ENDINGS[ending]

    queue = Queue("reports", store)
    await queue.declare(max_timeouts=1)
    async with working(store, report) as worker:
        await until(lambda: worker.ready)
        for number in range(3):
            clock.now = NEXT_HOUR + number * HOUR
            await until(lambda number=number: len(ran) == number + 1)
    assert ran == [NEXT_HOUR, NEXT_HOUR + HOUR, NEXT_HOUR + 2 * HOUR]


async def test_a_job_that_was_cancelled_is_not_the_last_one(store, clock):
    ran = []

    @everlog.job("reports", every="1h")
    async def report(job):
        ran.append(job.due.timestamp() * 1000)

    queue = Queue("reports", store)
    async with working(store, report) as worker:
        await until(lambda: worker.ready)
        await queue.pause()
        clock.now = NEXT_HOUR
        await until(queue.peek)
        assert await queue.cancel("report") == 1
        await queue.resume()
        clock.now += HOUR
        await until(lambda: ran)
    assert ran == [NEXT_HOUR + HOUR]


async def test_what_was_due_during_a_deployment_runs_when_workers_are_back(store, clock):
    """The next time must not be merged into a run that is already due."""
    ran = []

    @everlog.job("reports", every="1h")
    async def report(job):
        ran.append(job.due.timestamp() * 1000)

    async with working(store, report) as worker:
        await until(lambda: worker.ready)
    clock.now = NEXT_HOUR + HOUR + HOUR // 2
    async with working(store, report):
        await until(lambda: ran)
    assert ran == [NEXT_HOUR + HOUR], "two were missed: one run stands for both, that of the last"


async def test_several_workers_put_each_time_once(store, clock):
    """In a queue that merges nothing: a second put would be a second run."""
    ran = []

    @everlog.job("reports", every="1h")
    async def report(job):
        ran.append(round(job.due.timestamp() * 1000))

    await Queue("reports", store).declare(merge=False)
    async with working(store, report) as one, working(store, report) as two, working(store, report) as three:
        workers = (one, two, three)
        await until(lambda: all(worker.ready for worker in workers))
        for number in range(20):
            clock.now = NEXT_HOUR + number * HOUR
            await until(lambda number=number: len(ran) > number)
    assert ran == [NEXT_HOUR + number * HOUR for number in range(20)]
    assert sum(worker.scheduler.counted["fired"] for worker in workers) == 20


async def test_no_error_ends_the_loop_that_fires(store, clock, monkeypatch, caplog):
    """It is in the log and in the status, and the loop goes on."""
    monkeypatch.setattr(scheduler_module, "RETRY_S", 0.01)
    ran, failed = [], []
    execute = store.execute

    async def fail_twice(name, operation):
        if isinstance(operation, AskSchedules | FireSchedules) and len(failed) < 4:
            failed.append(operation)
            raise KeyError("not one of ours")
        return await execute(name, operation)

    @everlog.job("reports", every="1h")
    async def report(job):
        ran.append(job.key)

    async with working(store, report) as worker:
        await until(lambda: worker.ready)
        monkeypatch.setattr(store, "execute", fail_twice)
        clock.now = NEXT_HOUR
        await until(lambda: ran)
    assert worker.scheduler.counted == {"fired": 1}
    assert {one.name: one.restarts for one in worker.status()}["schedules of reports"] == 4
    assert "KeyError: 'not one of ours'" in caplog.text


async def test_what_a_worker_declares_replaces_what_is_stored(store, clock):
    """The pause of an operator stays."""
    queue = Queue("reports", store)

    @everlog.job("reports", every="1h")
    async def report(job): ...

    async with working(store, report) as worker:
        await until(lambda: worker.ready)
    await queue.schedules.pause("report")
    changed = everlog.job("reports", cron="@daily", timezone="Asia/Tokyo", catch_up="none", data=3)(report.handler)
    async with working(store, changed) as worker:
        await until(lambda: worker.ready)
    (info,) = await queue.schedules.list()
    assert (info.name, info.timing, info.catch_up, info.data) == ("report", "@daily Asia/Tokyo", "none", 3)
    assert info.paused


async def test_marks_survive_their_buckets(tmp_path, clock):
    """Files of jobs are drained and put away, and a queue moves to other files: no time is put twice."""
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    queue = Queue("reports", store)
    await queue.declare(bucket="hour", merge=False, on_empty="delete")
    await queue.schedules.set("report", every="4h")
    clock.now = (await queue.schedules.get("report")).row.next_ms
    fired = clock.now
    assert await queue.schedules.fire() == 1
    (job,) = await queue.claim()
    await job.done()
    clock.now += HOUR
    await queue.put("other")  # opens the next bucket, in which nothing was fired
    await store.tend("reports")
    assert len(list((tmp_path / "queues").glob("queue-reports*.db"))) == 1
    assert await queue.schedules.fire() == 0
    (job,) = await queue.claim()
    await job.done()
    clock.now = fired = fired + 4 * HOUR
    assert await queue.schedules.fire() == 1
    (job,) = await queue.claim()
    await job.done()
    await queue.declare(bucket="none", file=str(tmp_path / "own.db"))
    assert await queue.schedules.fire() == 0
    (info,) = await queue.schedules.list()
    assert info.last.timestamp() * 1000 == fired
    await store.close()


@pytest.mark.parametrize("point", ["queue.fireschedules", "queue.bucket", "queue.committed"])
async def test_a_process_that_dies_while_it_fires(tmp_path, point):
    """Job and mark are there together, or neither is: the next one that fires puts each time once."""
    async with everlog.connect(tmp_path) as log:
        queue = log.queue("jobs")
        await queue.declare(merge=False)
        await queue.schedules.set("tick", every="500ms", catch_up="all")
        first = (await queue.schedules.get("tick")).next
    with processes(tmp_path, "fire", [1], environment={VARIABLE: point}) as (process,):
        go([process])
        assert process.wait(60) != 0
    async with everlog.connect(tmp_path) as log:
        queue = log.queue("jobs")
        await queue.schedules.fire()
        times = sorted([job.due async for job in queue.jobs()])
    assert times
    assert times == [first + number * timedelta(milliseconds=500) for number in range(len(times))]


async def test_several_processes_put_each_time_once(tmp_path):
    async with everlog.connect(tmp_path) as log:
        queue = log.queue("jobs")
        await queue.declare(merge=False)
        await queue.schedules.set("tick", every="50ms", catch_up="all")
        first = (await queue.schedules.get("tick")).next
        with processes(tmp_path, "fire", [40] * 3) as started:
            go(started)
            counts = [sum(count for _, count in lines(process)) for process in started]
        times = sorted([job.due async for job in queue.jobs()])
    assert len(times) == sum(counts) >= 40
    assert times == [first + number * timedelta(milliseconds=50) for number in range(len(times))]


async def test_a_declaration_takes_no_mark_from_a_firing_that_is_lost(tmp_path, monkeypatch):
    """Both come in the same moment. The main file is committed first; then the bucket with the job fails, as in a
    crash: the time is still to be put."""
    clock = VirtualClock(T)
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    queue = Queue("jobs", store)
    await queue.declare()
    await queue.schedules.set("hourly", every="1h")
    (row,) = await store.execute("jobs", ListSchedules())
    clock.now = T // HOUR * HOUR + HOUR

    def crash(point: str) -> None:
        if point == "queue.bucket":
            raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(bucket_files, "failpoint", crash)
        changed = msgspec.structs.replace(row, priority=7)
        operations = (FireSchedules(), SetSchedule(changed))
        fired, _ = await asyncio.gather(*(store.execute("jobs", one) for one in operations), return_exceptions=True)
        assert isinstance(fired, Exception)
    assert await queue.schedules.fire() == 1
    (info,) = await queue.schedules.list()
    assert (info.priority, len(await queue.peek())) == (7, 1)
    await store.close()
