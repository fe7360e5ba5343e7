"""Jobs that end in one turn of the loop are reported in one call; each of them has its own outcome."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

import everlog
from everlog.errors import StorageFailed
from everlog.queues import heartbeat
from everlog.queues import worker as worker_module
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import Fail, Handle
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.worker import Worker
from tests.waiting import until

JOBS = 10


@pytest.fixture(params=["memory", "files"])
async def store(request, tmp_path):
    store = MemoryQueueStore() if request.param == "memory" else SqliteQueueStore(tmp_path, synchronous="NORMAL")
    yield store
    await store.close()


@asynccontextmanager
async def working(store):
    """A worker whose jobs all end at once, when `release` is set."""
    release = asyncio.Event()

    @everlog.job("jobs", timeout="1m")
    async def work(job):
        await release.wait()

    await Queue("jobs", store).put_many((number, None) for number in range(JOBS))
    worker = Worker(store, work, poll_s=0.01)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.running == JOBS)
    try:
        yield worker, release
    finally:
        release.set()
        worker.stop()
        await running


class Reports:
    """Counts the calls of a store that report jobs together, holds them up, and lets some fail."""

    def __init__(self, monkeypatch, store):
        self.sizes: list[int] = []
        self.errors: list[BaseException] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        whole = type(store).execute_all

        async def execute_all(store, name, operations):
            self.sizes.append(len(operations))
            await self.go_on.wait()
            if self.errors:
                raise self.errors.pop()
            return await whole(store, name, operations)

        monkeypatch.setattr(type(store), "execute_all", execute_all)


async def test_one_call_for_all_that_end_together(store, monkeypatch):
    """One of them has been lost meanwhile: that is said of this one alone."""
    reports = Reports(monkeypatch, store)
    async with working(store) as (worker, release):
        info, *_ = await Queue("jobs", store).leases()
        await store.execute("jobs", Fail(Handle(info.entry, info.row.token), delay_ms=3_600_000))
        release.set()
        await until(lambda: worker.counted.total() == JOBS)
    assert worker.counted == {"done": JOBS - 1, "lost": 1}
    assert reports.sizes == [JOBS]
    (left,) = await Queue("jobs", store).peek()
    assert left.entry == info.entry


@pytest.mark.parametrize("error", [StorageFailed("full"), RuntimeError("broken")], ids=["outage", "broken"])
async def test_a_call_that_fails_is_a_failure_of_each_report(store, monkeypatch, caplog, error):
    """An outage is outlasted; what is no error of ours leaves the leases to end by themselves, as for a single one."""
    monkeypatch.setattr(worker_module, "RETRY_S", 0.001)
    error.retriable = True
    reports = Reports(monkeypatch, store)
    async with working(store) as (worker, release):
        reports.errors.append(error)
        release.set()
        await until(lambda: worker.counted.total() == JOBS)
    is_ours = isinstance(error, StorageFailed)
    assert worker.counted == {"done" if is_ours else "unreported": JOBS}
    assert sum("could not be reported" in record.getMessage() for record in caplog.records) == JOBS
    assert (await Queue("jobs", store).stats()).running == (0 if is_ours else JOBS)


async def test_what_is_not_reported_yet_keeps_its_lease(store, monkeypatch):
    """However long the call takes, and also of those whose tasks have ended."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", 3000)
    reports = Reports(monkeypatch, store)
    queue = Queue("jobs", store)
    async with working(store) as (worker, release):
        reports.go_on.clear()
        release.set()
        await until(lambda: reports.sizes == [JOBS] and worker.running == 1)
        before = {info.entry: info.row.start_ms for info in await queue.leases()}

        async def all_were_kept() -> bool:
            return all(info.row.start_ms > before[info.entry] + 50 for info in await queue.leases())

        await until(all_were_kept)
        worker.stop()
        await until(lambda: worker.status()[0].state == "stopped")
        assert (await queue.stats()).running == JOBS, "a worker that stops waits for its reports"
        reports.go_on.set()
    assert worker.counted == {"done": JOBS}
    assert (await queue.stats()).running == 0
