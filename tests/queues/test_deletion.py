"""Deleting queues in files: killed at any step, beside other processes, in shared files and in one of the user's."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import everlog
from everlog.config.queue_options import make_options
from everlog.errors import Busy, JobsRunning, LeaseLost, QueueNotFound
from everlog.queues.declaration import Declaration
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import Claim, FireSchedules
from everlog.queues.queue import Queue
from everlog.queues.sqlite.files import BucketFiles
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.worker import Worker
from everlog.runtime.failpoints import VARIABLE
from everlog.testing.queue_desk import HOUR, T, VirtualClock
from tests.waiting import until

POINTS = ("queue.delete", "queue.main", "queue.committed", "queue.deleted", "queue.cleared", "queue.remove")
PLACES = ({"placement": "dedicated"}, {"placement": "shared", "bucket": "hour"}, {"bucket": "none", "file": "own.db"})
DELETER = """
import asyncio, pathlib, sys
from everlog.queues.sqlite import deletion
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.testing.queue_desk import VirtualClock

async def main():
    deletion.CHUNK = 2
    store = SqliteQueueStore(pathlib.Path(sys.argv[1]), synchronous="NORMAL", clock=VirtualClock(int(sys.argv[2])))
    print(await store.delete("jobs"))
    await store.close()

asyncio.run(main())
"""


def delete_in_process(folder, now, *, point=None):
    environment = {**os.environ, **({} if point is None else {VARIABLE: point})}
    return subprocess.run(
        [sys.executable, "-c", DELETER, str(folder), str(now)], env=environment, capture_output=True, check=False
    )


def options_in(folder, place):
    return {name: str(folder / found) if name == "file" else found for name, found in place.items()}


def left_behind(folder, jid):
    """Rows of a queue in any table of any file, and notes about it."""
    found = []
    for file in [*folder.glob("*.db"), *(folder / "queues").glob("*.db")]:
        connection = sqlite3.connect(file)
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if "jid" in columns:
                rows = connection.execute(f"SELECT * FROM {table} WHERE jid = ?", (jid,)).fetchall()
                found += [(file.name, table, row) for row in rows]
        connection.close()
    return found


async def fill(folder, place, clock, jobs=5):
    """A queue with something of everything, in two buckets where it has such, beside another one."""
    store = SqliteQueueStore(folder, synchronous="NORMAL", clock=clock)
    for name in ("other", "jobs"):
        queue = Queue(name, store)
        await queue.declare(keep_done="1h", rate_limit="100/h", **options_in(folder, place))
        await queue.put("dead")
        (job,) = await queue.claim()
        await queue.fail(job, "no", retry=False)
        await queue.schedules.set("tick", every="1h")
        for number in range(jobs):
            await queue.put(f"k{number}")
    clock.now += HOUR
    await store.execute("jobs", FireSchedules())
    await Queue("jobs", store).put("late")
    await store.close()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("place", PLACES, ids=["own files", "shared files", "the user's file"])
async def test_a_deletion_that_is_killed_can_be_said_again(tmp_path, place, point):
    """The queue is whole or gone, never half; then the deletion ends, and nothing is left of it."""
    clock = VirtualClock(T)
    await fill(tmp_path, place, clock)
    killed = delete_in_process(tmp_path, clock.now, point=point)
    reached = killed.returncode != 0
    assert reached or (point, place["placement" if "placement" in place else "bucket"]) in (
        ("queue.cleared", "dedicated"),
        ("queue.remove", "shared"),
        ("queue.remove", "none"),
    ), killed.stderr
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    queue = Queue("jobs", store)
    whole = "jobs" in await store.names()
    assert whole == (reached and point in ("queue.delete", "queue.main"))
    if whole:
        stats = await queue.stats()
        assert (stats.ready, stats.dead, len(await queue.schedules.list())) == (7, 1, 1)
    else:
        with pytest.raises(QueueNotFound):
            await queue.stats()
    again = delete_in_process(tmp_path, clock.now)
    if reached:
        assert again.stdout == b"7\n", again.stderr
    assert b"QueueNotFound" in delete_in_process(tmp_path, clock.now).stderr
    assert left_behind(tmp_path, 2) == []
    assert await store.names() == ["other"]
    other = Queue("other", store)
    assert ((await other.stats()).ready, len(await other.dead()), len(await other.schedules.list())) == (5, 1, 1)
    assert list((tmp_path / "queues").glob("queue-jobs*")) == []
    receipt = await queue.put("k1")
    assert (receipt.result, (await queue.stats()).ready, receipt.entry > 12) == ("CREATED", 1, True)
    await store.close()


@pytest.mark.parametrize("place", PLACES, ids=["own files", "shared files", "the user's file"])
async def test_what_a_killed_deletion_left_is_seen_by_no_one(tmp_path, place):
    """Also when the queue is made again before the rest is removed; upkeep of any queue removes it."""
    clock = VirtualClock(T)
    await fill(tmp_path, place, clock)
    assert delete_in_process(tmp_path, clock.now, point="queue.deleted").returncode != 0
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    queue = Queue("jobs", store)
    await queue.declare(**options_in(tmp_path, place))
    assert (await queue.stats()).ready == 0
    for found in (queue.dead(), queue.flags(), queue.schedules.list(), queue.claim(9)):
        assert await found == []
    await queue.put("k1")
    assert left_behind(tmp_path, 2)
    await store.tend("other")
    assert left_behind(tmp_path, 2) == []
    assert [info.key async for info in queue.jobs()] == ["k1"]
    assert (await Queue("other", store).stats()).ready == 5
    await store.close()


async def test_several_stores_on_one_folder(tmp_path):
    """One deletes; others that have the queue's files open and its declaration at hand find it gone, or new."""
    one, two = (SqliteQueueStore(tmp_path, synchronous="NORMAL") for _ in range(2))
    first, second = Queue("jobs", one), Queue("jobs", two)
    for turn in range(5):
        await first.declare(placement="shared" if turn % 2 else "dedicated", max_in_flight=turn + 1)
        await first.put("a")
        (job,) = await second.claim()
        with pytest.raises(JobsRunning):
            await first.delete()
        assert await first.delete(running=True) == 1
        with pytest.raises(LeaseLost):
            await job.done()
        with pytest.raises(QueueNotFound):
            await two.execute("jobs", Claim("w"))
        assert (await second.put("b")).result == "CREATED"
        assert (await second.declaration()).options.max_in_flight is None
        assert await second.delete() == 1
    assert _count_removed(tmp_path) <= 12, "files of deleted queues are let go of"
    await asyncio.gather(one.close(), two.close())


def _count_removed(folder):
    """How many files this process has open that are no longer there."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(descriptor.readlink())
            count += str(folder) in target and target.endswith("(deleted)")
    return count


async def test_a_transaction_of_the_callers_is_before_or_after(tmp_path):
    """The deletion waits for it, and takes its job along; one that begins later finds no queue."""
    file = tmp_path / "own.db"
    sqlite3.connect(file).close()
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    await queue.declare(bucket="none", file=str(file))
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE mine (n)")
    queue.put_in(connection, "a")
    deleting = asyncio.create_task(queue.delete())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.shield(deleting)
    connection.commit()
    assert await deleting == 1
    with pytest.raises(QueueNotFound):
        queue.put_in(connection, "b")
    connection.rollback()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"mine", "everlog_queue_item"} <= tables
    assert connection.execute("SELECT count(*) FROM everlog_queue_item").fetchone() == (0,)
    connection.close()
    await store.close()


async def test_a_transaction_that_has_not_written_yet_keeps_the_queue(tmp_path, monkeypatch):
    """From the look whether it is there until the commit."""
    file = tmp_path / "own.db"
    sqlite3.connect(file).close()
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    await queue.declare(bucket="none", file=str(file))
    engine, deleting = store._engine, []

    def engine_beside_a_deletion(*arguments):
        if not deleting:
            deleting.append(subprocess.Popen([sys.executable, "-c", DELETER, str(tmp_path), str(T)], stdout=-1))
            with suppress(subprocess.TimeoutExpired):
                deleting[0].wait(2)
        return engine(*arguments)

    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("BEGIN")
    monkeypatch.setattr(store, "_engine", engine_beside_a_deletion)
    queue.put_in(connection, "a")
    connection.execute("COMMIT")
    assert deleting[0].communicate()[0] == b"1\n"
    assert connection.execute("SELECT count(*) FROM everlog_queue_item").fetchone() == (0,)
    connection.close()
    await store.close()


async def test_a_transaction_that_meets_a_move_of_the_queue_is_refused(tmp_path, monkeypatch):
    """It has looked up the queue, which then gets another file: a job in the old one would be seen by no one."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    sqlite3.connect(old).close()
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL")
    other = store.sibling()
    queue = Queue("jobs", store)
    await queue.declare(bucket="none", file=str(old))
    open_bucket = store._reader.main.open_bucket

    def move(*arguments):
        other._declare(Declaration("jobs", make_options(bucket="none", file=str(new))))
        return open_bucket(*arguments)

    monkeypatch.setattr(store._reader.main, "open_bucket", move)
    connection = sqlite3.connect(old)
    with pytest.raises(Busy, match="changed meanwhile"):
        queue.put_in(connection, "a")
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM everlog_queue_item").fetchone() == (0,)
    connection.close()
    await other.close()
    await store.close()


async def test_upkeep_of_others_outlasts_a_deletion_that_cannot_be_finished(tmp_path):
    """The file of a deleted queue is gone with its folder, or is none: no other queue is blamed for that."""
    clock, folder = VirtualClock(T), tmp_path / "app"
    folder.mkdir()
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)
    other, queue = Queue("other", store), Queue("jobs", store)
    await other.put("a")
    await queue.declare(bucket="none", file=str(folder / "own.db"))
    await queue.put("b")
    assert delete_in_process(tmp_path, clock.now, point="queue.deleted").returncode != 0
    for file in folder.iterdir():
        file.unlink()
    (folder / "own.db").write_bytes(b"no database" * 500)
    await store.tend("other")
    assert await other.flags() == []
    (folder / "own.db").unlink()
    await store.tend("other")
    assert left_behind(tmp_path, 2) == []
    assert not (folder / "own.db").exists()
    await store.close()


async def test_what_a_queue_did_is_not_counted_for_the_next_one(tmp_path):
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    for _ in range(2):
        await queue.put("a")
        (job,) = await queue.claim()
        await job.done()
        assert (await store.totals("jobs"))["DONE"] == 1
        await queue.delete()
    await queue.put("a")
    assert (await store.totals("jobs"))["CREATED"] == 1
    await store.close()
    assert [left_behind(tmp_path, jid) for jid in (1, 2)] == [[], []]


async def test_a_process_that_looks_late_makes_no_bucket(tmp_path):
    """It has looked up the queue, and opens a bucket for new jobs only after the deletion."""
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL")
    await Queue("jobs", store).declare(bucket="hour")
    late = BucketFiles(tmp_path)
    known = late.known("jobs")
    await store.delete("jobs")
    assert not late.main.open_bucket(known, store.clock.now_ms() + HOUR)
    assert late.main.connection.execute("SELECT count(*) FROM everlog_queue_bucket").fetchone() == (0,)
    late.close()
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_who_waits_for_a_deleted_queue_hears_of_the_next_one(tmp_path, kind):
    store = MemoryQueueStore() if kind == "memory" else SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    await queue.declare()
    waiting = asyncio.create_task(queue.wait(60))
    await until(lambda: store.waker("jobs").listeners.idle)
    await queue.delete()
    assert not await queue_waits(queue)
    await queue.put("a")
    assert await waiting
    await store.close()


async def queue_waits(queue):
    """Whether one can wait for a queue."""
    with suppress(QueueNotFound):
        return await queue.wait(0) is not None
    return False


async def test_a_worker_waits_until_its_queue_is_there_again(tmp_path, caplog, monkeypatch):
    """Its running job is stopped, it says once that the queue is gone, and goes on with the next one of that name."""
    monkeypatch.setattr("everlog.queues.absence.MIN_ABSENCE_S", 0.01)
    monkeypatch.setattr("everlog.queues.absence.MAX_ABSENCE_S", 0.05)
    monkeypatch.setattr("everlog.queues.scheduler.MAX_RETRY_S", 0.05)
    caplog.set_level(logging.INFO, "everlog.queues")
    begun, stopped, done, asks = asyncio.Event(), asyncio.Event(), [], Counter()

    @everlog.job(queue="jobs", every="1h", timeout="60ms")
    async def work(job):
        if job.key != "long":
            return done.append(job.key)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    store = SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    declared = store.declared

    async def counted(name):
        asks[name] += 1
        return await declared(name)

    monkeypatch.setattr(store, "declared", counted)
    worker = Worker(store, work, poll_s=0.02, grace_s=0.1)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.ready)
    for turn in range(2):
        begun.clear()
        stopped.clear()
        await queue.put("long")
        await begun.wait()
        assert await queue.delete(running=True) >= 1
        await stopped.wait()
        asked = asks["jobs"]
        await until(lambda asked=asked: asks["jobs"] > asked + 5)
        assert await store.names() == []
        assert caplog.text.count("the queue jobs is deleted: its worker waits") == 1
        caplog.clear()
        await queue.put(f"again{turn}")
        await until(lambda turn=turn: f"again{turn}" in done)
        await until(queue.schedules.list)
    assert all(one.restarts == 0 for one in worker.status()), worker.status()
    worker.stop()
    await running
    await store.close()
