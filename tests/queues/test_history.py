"""The history of a queue: what functions return is kept with the job, if it can be, and never makes a job fail."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import everlog
from everlog.errors import InvalidInput
from everlog.queues.checks import check_operation
from everlog.queues.declaration import Declaration
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import Done, Handle, JobResult, ListHistory
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.worker import Worker
from everlog.testing.queue_desk import T, VirtualClock, VirtualQueue
from tests.queues.test_buckets import START
from tests.waiting import until


class Angry:
    """Cannot be written."""

    def model_dump(self, **_: Any) -> Any:
        raise ZeroDivisionError


def nested(depth: int) -> Any:
    found: Any = 0
    for _ in range(depth):
        found = [found]
    return found


RETURNED: list[tuple[Any, Any, bool]] = [
    (None, None, False),
    ({"pages": [1, 2.5, "é"]}, {"pages": [1, 2.5, "é"]}, False),
    (0, 0, False),
    ("text", "text", False),
    ("x" * 4094, "x" * 4094, False),
    ("x" * 4095, None, True),
    (object(), None, True),
    (math.nan, None, True),
    (nested(1000), None, True),
    ("\ud800", None, True),
    (Angry(), None, True),
]


@pytest.fixture(params=["memory", "files"])
async def store(request, tmp_path):
    store = MemoryQueueStore() if request.param == "memory" else SqliteQueueStore(tmp_path, synchronous="NORMAL")
    yield store
    await store.close()


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_functions_return(store, in_thread):
    queue = Queue("jobs", store)
    await queue.declare(keep_done="7d")
    await queue.put_many([(number, None) for number in range(len(RETURNED))])

    async def give(job):
        return RETURNED[job.key][0]

    def give_plainly(job):
        return RETURNED[job.key][0]

    worker = Worker(store, everlog.job("jobs")(give_plainly if in_thread else give), name="me")
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.counted["done"] == len(RETURNED))
    worker.stop()
    await running
    found = {job.key: job for job in await queue.history()}
    assert [(found[n].result, found[n].result_left_out) for n in range(len(RETURNED))] == [
        (kept, left_out) for _, kept, left_out in RETURNED
    ]
    assert {(job.how, job.owner) for job in found.values()} == {("done", "me")}


async def test_without_a_history_no_result_is_written(store):
    written = []

    class Watched:
        def model_dump(self, **_: Any) -> Any:
            written.append(True)
            return {}

    queue = Queue("jobs", store)
    await queue.put("k")
    worker = Worker(store, everlog.job("jobs")(lambda job: Watched()))
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.counted["done"] == 1)
    worker.stop()
    await running
    assert (written, await queue.history()) == ([], [])


async def test_without_a_history_an_end_takes_the_short_way(tmp_path, monkeypatch):
    """It costs a queue without the option nothing: neither a look at the row, nor the main file."""
    clock = VirtualClock(START)
    desk = VirtualQueue(SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock), clock)
    await desk.declare()
    await desk.enq()
    lease = await desk.one()
    from everlog.queues.sqlite.files import BucketFiles
    from everlog.queues.sqlite.table import SqliteTable

    for part, name in ((SqliteTable, "get"), (BucketFiles, "begin_main")):
        monkeypatch.setattr(part, name, None)
    assert await desk.done(lease) == "OK"
    monkeypatch.undo()
    await desk.store.close()


@pytest.mark.parametrize(
    "operation",
    [
        Done(Handle(1, 1), JobResult(b"not json")),
        Done(Handle(1, 1), JobResult(b'"' + b"x" * 4095 + b'"')),
        Done(Handle(1, 1), JobResult(b"\xff")),
        ListHistory(0),
        ListHistory(1001),
        ListHistory(1, None, b"key"),
        ListHistory(1, None, b"key", b"not its hash"),
    ],
)
def test_what_no_client_would_send_is_refused(operation):
    with pytest.raises(everlog.EverlogError):
        check_operation(operation, Declaration("jobs"))


async def test_pages_have_a_limit(store):
    queue = Queue("jobs", store)
    await queue.declare(keep_done="1d")
    for limit in (0, 1001):
        with pytest.raises(InvalidInput):
            await queue.history(limit)


async def test_pages_go_on_behind_a_job():
    clock = VirtualClock(T + 1)  # odd milliseconds survive the way through a datetime
    queue = Queue("jobs", MemoryQueueStore(clock))
    await queue.declare(keep_done="1d")
    for number in range(7):
        await queue.put(number)
        (job,) = await queue.claim()
        await job.done({"n": number})
        clock.now += number % 2
    pages, before = [], None
    while page := await queue.history(3, before=before):
        pages.append([job.result["n"] for job in page])
        before = page[-1]
    assert pages == [[6, 5, 4], [3, 2, 1], [0]]
    assert [job.key for job in await queue.history(key=3)] == [3]
