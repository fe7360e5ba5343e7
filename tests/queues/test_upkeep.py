"""Upkeep without workers: a server sees to all queues, and drained files go, whatever is claimed or not."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import everlog
from everlog.config import CassandraConfig, KafkaConfig
from everlog.console.server import serving
from everlog.errors import OwnedElsewhere, StorageFailed
from everlog.queues.factory import make_upkeep
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.upkeep import QueueUpkeep
from everlog.testing.queue_desk import HOUR, T, VirtualClock, VirtualQueue
from tests.queues.test_buckets import files, run_mover
from tests.support import small_config
from tests.waiting import until

START = T // HOUR * HOUR
HOURS = 36


class NoStatus:
    """Keeps no status."""

    async def save_status(self, name: str, status: bytes, now_ms: int) -> None: ...


@pytest.fixture
def clock():
    return VirtualClock(START)


async def test_hours_of_work_leave_few_files(tmp_path, clock):
    """A program without a worker and without a server: a job every hour, done at once."""
    async with everlog.connect(small_config(tmp_path), clock=clock) as log:
        queue = log.queue("jobs")
        await queue.declare(bucket="hour")
        for n in range(HOURS):
            await queue.put(f"k{n}")
            (job,) = await queue.claim()
            await job.done()
            clock.now += HOUR
        assert (await queue.stats()).dead == 0
    assert 1 <= len(files(tmp_path)) <= 9


@pytest.mark.parametrize("on_empty", ["truncate", "reset", "delete"])
async def test_an_idle_queue_keeps_few_files(tmp_path, clock, on_empty):
    """Neither put nor claimed: what is left are the newest files, and a list of no more than these."""
    async with everlog.connect(small_config(tmp_path), clock=clock) as log:
        queue = log.queue("jobs")
        await queue.declare(bucket="hour", max_buckets=3, on_empty=on_empty)
        await queue.put("far", delay="365d")
        for _ in range(HOURS):
            clock.now += HOUR
            await log.queues.tend("jobs")
        assert len(files(tmp_path)) <= 3
        store = log.queues
        assert isinstance(store, SqliteQueueStore)
        (rows,) = store._reader.main.connection.execute("SELECT count(*) FROM everlog_queue_bucket").fetchone()
        assert rows <= 3
        assert (await queue.stats()).delayed == 1


async def test_many_full_buckets_are_carried_at_once(tmp_path, clock):
    """Jobs for next year in every hour, and upkeep that comes late: it makes up for all of it."""
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    desk = VirtualQueue(store, clock)
    await desk.declare(bucket="hour", max_buckets=1000)
    for n in range(30):
        await desk.enq(f"k{n}", proc=9000 * HOUR)
        desk.wait(HOUR)
    assert len(files(tmp_path)) == 30
    await desk.declare(bucket="hour", max_buckets=4, on_empty="delete")
    await store.tend("jobs")
    assert len(files(tmp_path)) <= 4
    assert (await desk.stats()).delayed == 30
    await store.close()


async def test_killed_between_a_file_and_its_name(tmp_path, clock):
    """The file is gone, its name is still on the list: the next upkeep finishes that, and nothing is lost."""
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    desk = VirtualQueue(store, clock)
    await desk.declare(bucket="hour", on_empty="delete")
    await desk.enq("a")
    await desk.done(await desk.one())
    desk.wait(HOUR)
    run_mover(tmp_path, clock.now, "tend", "queue.remove")
    await desk.enq("b", data=7)
    await store.tend("jobs")
    (left,) = files(tmp_path)
    assert left.startswith("queue-jobs-1.")
    assert [row.image.data for row in await desk.rows("b")] == [b"7"]
    await store.close()


def make_service(store, clock) -> QueueUpkeep:
    return QueueUpkeep(lambda: store, clock=clock, store=NoStatus())


async def test_one_bad_queue_does_not_keep_the_others_waiting(clock, monkeypatch):
    store = MemoryQueueStore(clock)
    for name in ("bad", "elsewhere", "good"):
        await Queue(name, store).declare(max_timeouts=1)
        await Queue(name, store).put("k")
        await Queue(name, store).claim()
    clock.now += HOUR + 1
    whole = store.tend

    async def tend(name):
        if name == "bad":
            raise StorageFailed("the disk is ill")
        if name == "elsewhere":
            raise OwnedElsewhere(name, "another")
        await whole(name)

    monkeypatch.setattr(store, "tend", tend)
    service = make_service(store, clock)
    service.start()
    await service.ran(1)
    await service.stop()
    assert service.status().last_error == "bad: the disk is ill"
    assert [letter.cause for letter in await Queue("good", store).dead()] == ["max_timeouts"]


async def test_a_queue_without_an_owner_is_left_to_workers_for_a_round(clock, monkeypatch):
    store = MemoryQueueStore(clock)
    await Queue("jobs", store).declare()
    unowned, tended = True, []

    async def is_unowned(name):
        return unowned

    async def tend(name):
        tended.append(name)

    monkeypatch.setattr(store, "is_unowned", is_unowned)
    monkeypatch.setattr(store, "tend", tend)
    service = make_service(store, clock)
    for expected in (0, 1):
        await service.tend_all()
        assert len(tended) == expected
    unowned = False
    await service.tend_all()
    unowned = True
    await service.tend_all()
    assert len(tended) == 2


async def test_upkeep_that_is_stopped_begins_no_other_queue(clock, monkeypatch):
    """A server with many queues need not see to all of them before it can stop; what is under way is finished."""
    store = MemoryQueueStore(clock)
    for name in "abc":
        await Queue(name, store).declare()
    begun, ended, may_end = [], [], asyncio.Event()

    async def tend(name):
        begun.append(name)
        await may_end.wait()
        ended.append(name)

    monkeypatch.setattr(store, "tend", tend)
    service = make_service(store, clock)
    service.start()
    await until(lambda: begun)
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.wait_for(stopping, 60)
    assert (begun, ended, service.status().running) == (["a"], ["a"], False)


@pytest.mark.parametrize("create_schema", [True, False])
async def test_tables_that_others_make_may_be_missing(tmp_path, clock, monkeypatch, create_schema):
    """Of a process that must not make tables, and has none of queues, no one expects that it tends any."""
    store = MemoryQueueStore(clock)

    async def names():
        raise StorageFailed("there is no table everlog.jq_queue")

    monkeypatch.setattr(store, "names", names)
    cassandra = CassandraConfig(create_schema=create_schema)
    config = msgspec.structs.replace(small_config(tmp_path), kafka=KafkaConfig(), cassandra=cassandra)
    service = make_upkeep(config, lambda: store, clock=clock, store=NoStatus())
    service.start()
    await service.ran(1)
    await service.stop()
    missing = "there is no table everlog.jq_queue"
    assert (service.status().last_result, service.status().last_error) == (
        (None, missing) if create_schema else ("no queues", None)
    )


async def test_upkeep_makes_no_files(tmp_path, clock):
    config = small_config(tmp_path)
    async with everlog.connect(config, clock=clock) as log:
        service = make_upkeep(config, lambda: log.queues, clock=clock, store=log.parts.store)
        assert str(await service.tend_all()) == "no queues"
    assert not (tmp_path / "queues").exists()


async def test_a_server_sees_to_queues_without_workers(tmp_path, clock):
    """Paused, and not claimed from: what is overdue is a dead letter with a flag, and the status says so."""
    config = small_config(tmp_path)
    async with everlog.connect(config, clock=clock) as log:
        queue = log.queue("jobs")
        await queue.declare(max_timeouts=1)
        await queue.put("overdue")
        await queue.claim()
        await queue.put("expired", expires="1m")
        await queue.pause()
        clock.now += HOUR + 1
        async with serving(log, host="127.0.0.1", port=0):
            await until(queue.flags)
        assert [flag.reason for flag in await queue.flags()] == ["max_timeouts"]
        assert [letter.cause for letter in await queue.dead()] == ["max_timeouts"]
        assert log.queues.counted("jobs")["EXPIRED"] == 1
        assert (await log.status()).services["queues"]["last_result"] == "1 queues"
