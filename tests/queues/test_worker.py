"""Workers: functions run once per job, keep their leases, are told to stop, and give back what they cannot finish."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest

import everlog
from everlog.errors import InvalidInput, StorageFailed
from everlog.queues import heartbeat
from everlog.queues import worker as worker_module
from everlog.queues.heartbeat import Heartbeats
from everlog.queues.job_function import find_jobs
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import BeatAnswer, Done, Handle
from everlog.queues.port import QueueStore
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.queues.worker import Worker
from tests.waiting import until


@pytest.fixture(params=["memory", "files"])
async def store(request, tmp_path):
    store = MemoryQueueStore() if request.param == "memory" else SqliteQueueStore(tmp_path, synchronous="NORMAL")
    yield store
    await store.close()


@pytest.fixture
def quick_beats(monkeypatch):
    """Heartbeats come every 20 ms for each minute of a lease: quickly, and no pause of the machine ends the lease."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", 3000)


@asynccontextmanager
async def working(store, *functions, **options):
    worker = Worker(store, functions, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


async def gone(queue):
    stats = await queue.stats()
    return stats.ready + stats.delayed + stats.running == 0


async def until_empty(queue):
    await until(lambda: gone(queue), every=0.002)


async def test_every_job_runs_once(store):
    ran = []

    @everlog.job("jobs")
    async def work(job):
        await asyncio.sleep(0)
        ran.append(job.key)

    queue = Queue("jobs", store)
    for number in range(100):
        await queue.put(number)
    async with working(store, work, concurrency=7) as worker:
        await until_empty(queue)
        for number in range(100, 130):
            await queue.put(number)
        await until_empty(queue)
    assert sorted(ran) == list(range(130))
    assert worker.counted == {"done": 130}


@pytest.mark.parametrize("broken", ["declared", "wait", "execute", "tend"])
async def test_no_error_ends_a_worker(store, monkeypatch, caplog, broken):
    """Whatever the store raises, once: it is in the log, and the worker goes on."""
    monkeypatch.setattr(worker_module, "RETRY_S", 0.01)
    monkeypatch.setattr(worker_module, "TEND_S", 0.01)
    ran, raised = [], []

    @everlog.job("jobs")
    async def work(job):
        ran.append(job.key)

    queue = Queue("jobs", store)
    async with working(store, work, poll_s=0.01):
        await queue.put("before")
        await until(lambda: ran == ["before"])
        whole = getattr(store, broken)

        async def fails_once(*arguments):
            if not raised:
                raised.append(broken)
                raise KeyError("not one of ours")
            return await whole(*arguments)

        monkeypatch.setattr(store, broken, fails_once)
        await until(lambda: raised)
        await queue.put("after")
        await until(lambda: ran == ["before", "after"])
    assert "KeyError: 'not one of ours'" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_a_worker_with_a_backlog_does_not_rest(store, monkeypatch, caplog, concurrency):
    """Jobs that take a while: a place that becomes free is taken at once, and no claim is made for none."""
    monkeypatch.setattr(worker_module, "RETRY_S", 3600.0)  # a worker that rested would not be done in time
    queue = Queue("jobs", store)
    await queue.put_many((number, None) for number in range(100))
    left, wait = [], store.wait

    async def noted(*arguments):
        left.append((await queue.stats()).ready)
        return await wait(*arguments)

    monkeypatch.setattr(store, "wait", noted)

    @everlog.job("jobs")
    async def work(job):
        await asyncio.sleep(0.015)

    async with working(store, work, concurrency=concurrency, poll_s=3600) as worker:
        await until_empty(queue)
    assert worker.counted == {"done": 100}
    assert set(left) <= {0}, "it waits for jobs only when there are none"
    assert "no claim" not in caplog.text


ENDINGS = {
    "exit": lambda: sys.exit(3),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "stop iteration": lambda: _raise(StopIteration()),
    "generator exit": lambda: _raise(GeneratorExit()),
}


def _raise(error):
    raise error


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_whatever_a_function_raises_is_a_counted_attempt(store, ending, plain):
    """It neither ends the worker nor runs again without end."""
    ran = Counter()

    def work(job):
        ran[job.key] += 1
        if job.key == "bad":
            ENDINGS[ending]()

    async def work_async(job):
        work(job)

    queue = Queue("jobs", store)
    await queue.declare(max_timeouts=3)
    await queue.put("bad")
    async with working(store, everlog.job("jobs")(work if plain else work_async), concurrency=1) as worker:
        await until(lambda: worker.counted["failed"] == 3)
        await queue.put("good")
        await until_empty(queue)
    assert ran == {"bad": 3, "good": 1}
    (letter,) = await queue.dead()
    assert (letter.cause, len(letter.attempts)) == ("failed", 3)


async def test_a_heartbeat_that_comes_too_late_cuts_no_report_off(store, monkeypatch, quick_beats):
    """The job is gone already, and the answer to its end is still on its way."""
    execute, ended, answered = store.execute, asyncio.Event(), asyncio.Event()

    async def answer_late(name, operation):
        answer = await execute(name, operation)
        if isinstance(operation, Done):
            ended.set()
            await answered.wait()
        return answer

    monkeypatch.setattr(store, "execute", answer_late)
    monkeypatch.setattr(type(store), "execute_all", QueueStore.execute_all)
    lost = []
    whole = Worker._cancel
    monkeypatch.setattr(Worker, "_cancel", lambda *given: (lost.append(given[2]), whole(*given)))

    @everlog.job("jobs", timeout="60s")
    async def work(job):
        pass

    await Queue("jobs", store).put("k")
    async with working(store, work) as worker:
        await ended.wait()
        await until(lambda: lost)
        answered.set()
    assert (lost, worker.counted) == (["lost"], {"done": 1})


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_job_that_is_given_back_is_not_counted(store, plain):
    """A plain function that ends early because the worker stops says so; another worker does the job."""
    began, attempts = threading.Event(), []

    def work(job):
        attempts.append(job.attempt)
        began.set()
        if len(attempts) == 1:
            while not job.stopping:
                time.sleep(0.001)
            raise everlog.GiveBack

    async def work_async(job):
        attempts.append(job.attempt)
        if len(attempts) == 1:
            raise everlog.GiveBack("not here")

    queue = Queue("jobs", store)
    await queue.put("a")
    function = everlog.job("jobs")(work if plain else work_async)
    async with working(store, function, grace_s=0.01) as first:
        await until(lambda: began.is_set() if plain else first.counted["done"])
    async with working(store, function) as second:
        await until_empty(queue)
    assert first.counted["released"] == 1
    assert first.counted["done"] + second.counted["done"] == 1
    assert attempts == [1, 1]
    assert await queue.dead() == []


class _Called:
    def __init__(self, ran):
        self.ran = ran

    async def __call__(self, job):
        self.ran.append(job.key)


def _decorated(ran):
    async def work(job):
        ran.append(job.key)

    @functools.wraps(work)
    def traced(*args, **kwargs):
        return work(*args, **kwargs)

    return traced


@pytest.mark.parametrize("make", [_Called, _decorated])
async def test_a_coroutine_that_a_plain_call_returns_is_run(store, make):
    """An async function below a plain decorator, or an object: done means that it ran."""
    ran = []
    queue = Queue("jobs", store)
    await queue.put("a")
    async with working(store, everlog.job("jobs")(make(ran))) as worker:
        await until(lambda: worker.counted["done"])
    assert ran == ["a"]


def test_a_function_that_yields_is_refused():
    def plain(job):
        yield 1

    async def asynchronous(job):
        yield 1

    for handler in (plain, asynchronous):
        with pytest.raises(InvalidInput, match="yields"):
            everlog.job("jobs")(handler)


async def test_a_function_that_turns_its_cancellation_into_an_error_is_not_counted(store):
    """A driver makes an error of its own of it: the worker stops all the same, and the job waits again, uncounted."""
    began = asyncio.Event()

    async def work(job):
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise RuntimeError("connection closed") from error

    queue = Queue("jobs", store)
    await queue.put("a")
    function = everlog.job("jobs", retries=everlog.RetryPolicy(max_attempts=1))(work)
    async with working(store, function, grace_s=0.01) as worker:
        await began.wait()
    assert worker.counted == {"released": 1}
    assert await queue.dead() == []
    (waiting,) = await queue.peek()
    assert not waiting.attempts


@pytest.mark.parametrize("concurrency", [1, 5])
async def test_the_end_of_a_job_and_the_next_claim_share_a_commit(tmp_path, concurrency):
    """Each commit waits for the disk: one for each job, not two."""
    commits: list[str] = []

    def trace(statement: str, seconds: float) -> None:
        if statement == "COMMIT":
            commits.append(statement)

    files = SqliteQueueStore(tmp_path, synchronous="NORMAL", trace=trace)
    queue, jobs = Queue("pages", files), 40
    await queue.put_many((number, None) for number in range(jobs))

    @everlog.job("pages")
    async def index(job):
        await asyncio.sleep(0.002)  # so that jobs end one by one

    async with working(files, index, concurrency=concurrency) as worker:
        before = len(commits)
        await until(lambda: worker.counted["done"] == jobs, every=0.002)
        assert len(commits) - before <= jobs + 10  # a sweep, a schedule
    await files.close()


async def test_no_more_than_so_many_at_a_time(store):
    now = most = 0
    gate = asyncio.Event()

    @everlog.job("jobs")
    async def work(job):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await gate.wait()
        now -= 1

    queue = Queue("jobs", store)
    for number in range(20):
        await queue.put(number)
    async with working(store, work, concurrency=3) as worker:
        await until(lambda: now == 3)
        assert worker.running == 3
        gate.set()
        await until_empty(queue)
    assert most == 3


async def test_plain_functions_run_in_threads(store):
    threads = set()
    barrier = threading.Barrier(4, timeout=60)

    @everlog.job("jobs")
    def work(job):
        threads.add(threading.current_thread())
        barrier.wait()

    queue = Queue("jobs", store)
    for number in range(4):
        await queue.put(number)
    async with working(store, work, concurrency=4):
        await until_empty(queue)
    assert len(threads) == 4
    assert threading.main_thread() not in threads


async def test_failures_are_tried_again_and_then_dead(store):
    attempts = []

    @everlog.job("jobs")
    async def work(job):
        attempts.append((job.key, job.attempt))
        if job.key == "hopeless":
            raise everlog.GiveUp("no use")
        if job.key == "later":
            if job.attempt == 1:
                raise everlog.Retry("not yet", delay="5ms")
            return
        raise ValueError("broken")

    queue = Queue("jobs", store)
    await queue.declare(max_timeouts=3)
    for key in ("broken", "hopeless", "later"):
        await queue.put(key)
    async with working(store, work) as worker:
        await until_empty(queue)
    assert sorted(attempts) == [
        ("broken", 1),
        ("broken", 2),
        ("broken", 3),
        ("hopeless", 1),
        ("later", 1),
        ("later", 2),
    ]
    assert {(dead.key, dead.reason) for dead in await queue.dead()} == {
        ("broken", "ValueError: broken"),
        ("hopeless", "no use"),
    }
    assert worker.counted == {"failed": 5, "done": 1}


async def test_heartbeats_go_on_while_a_job_blocks_the_event_loop(store, monkeypatch):
    """The lease is 1.8 s, the job holds the loop for 2 s: nobody else gets it."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_LEASE", 60)  # so that a slow machine loses none
    ran = []

    @everlog.job("jobs", timeout="1800ms")
    async def work(job):
        ran.append(job.attempt)
        time.sleep(2)  # noqa: ASYNC251

    queue = Queue("jobs", store)
    await queue.put("k")
    async with working(store, work):
        await until_empty(queue)
    assert ran == [1]
    assert await queue.dead() == []


async def test_a_lost_lease_cancels_the_job(store, quick_beats):
    """Somebody else has it now: the function is stopped, and what it would say is not heard."""
    stopped = asyncio.Event()
    started = asyncio.Event()

    @everlog.job("jobs", timeout="60s")
    async def work(job):
        if job.attempt > 1:
            return
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    queue = Queue("jobs", store)
    await queue.put("k")
    async with working(store, work) as worker:
        await started.wait()
        (info,) = await queue.get("k")
        # As if the machine had slept: the row is taken from the worker behind its back.
        await queue.store.execute("jobs", everlog.queues.operations.Fail(Handle(info.entry, info.row.token)))
        await asyncio.wait_for(stopped.wait(), 60)
        await until_empty(queue)
    assert worker.counted == {"lost": 1, "done": 1}


async def test_a_cancelled_job_is_stopped_and_not_tried_again(store, quick_beats):
    started = asyncio.Event()

    @everlog.job("jobs", timeout="60s")
    async def work(job):
        started.set()
        await asyncio.Event().wait()

    queue = Queue("jobs", store)
    await queue.put("k")
    async with working(store, work) as worker:
        await started.wait()
        assert await queue.cancel("k", "enough") == 1
        await until(lambda: worker.counted["cancelled"])
        assert await gone(queue)
    assert [(dead.cause, dead.reason) for dead in await queue.dead()] == [("cancelled", "enough")]


async def test_restart_runs_the_newest_data_at_once(store, quick_beats):
    data = []

    @everlog.job("jobs", timeout="60s")
    async def work(job):
        data.append(job.data)
        if job.data == "old":
            await asyncio.Event().wait()

    queue = Queue("jobs", store)
    await queue.declare(on_busy="restart")
    await queue.put("k", "old")
    async with working(store, work):
        await until(lambda: data)
        assert (await queue.put("k", "new")).result == "SUCCESSOR"
        await until_empty(queue)
    assert data == ["old", "new"]
    assert await queue.dead() == []


@pytest.mark.parametrize("answer", ["comes late", "is an error"])
async def test_a_claim_under_way_is_given_back(store, monkeypatch, caplog, answer):
    """Stopped between a claim and its answer: the jobs wait again at once, uncounted, and not until their lease ends.
    An error instead of the answer does not keep the worker from stopping."""
    asked, let_go = asyncio.Event(), asyncio.Event()
    claim = Queue.claim

    async def slow(queue, *args, **options):
        jobs = await claim(queue, *args, **options)
        asked.set()
        await let_go.wait()
        if answer == "is an error":
            raise StorageFailed("out of reach")
        return jobs

    @everlog.job("jobs")
    async def work(job):
        raise AssertionError("the worker has stopped")

    queue = Queue("jobs", store)
    await queue.put("k")
    monkeypatch.setattr(Queue, "claim", slow)
    worker = Worker(store, work)
    running = asyncio.create_task(worker.run())
    await asked.wait()
    worker.stop()
    for _ in range(20):  # it stops, and waits for the claim
        await asyncio.sleep(0)
    assert not running.done()
    let_go.set()
    await asyncio.wait_for(running, 60)
    (info,) = await queue.get("k")
    if answer == "comes late":
        assert (info.running, info.row.timeouts, worker.counted) == (False, 0, {"released": 1})
    else:
        assert (info.running, worker.counted) == (True, {})
        assert "the last claim was not given back: out of reach" in caplog.text


async def test_one_release_that_fails_keeps_no_other_job(store, monkeypatch, caplog):
    """Stopped between a claim and its answer: one of the jobs waits for the end of its lease, the others do not."""
    asked, let_go = asyncio.Event(), asyncio.Event()
    claim, release = Queue.claim, Queue.release

    async def slow(queue, *args, **options):
        jobs = await claim(queue, *args, **options)
        asked.set()
        await let_go.wait()
        return jobs

    async def refuse_one(queue, job, **options):
        if job.key == "b":
            raise StorageFailed("out of reach")
        await release(queue, job, **options)

    @everlog.job("jobs")
    async def work(job):
        raise AssertionError("the worker has stopped")

    queue = Queue("jobs", store)
    await queue.put_many((key, None) for key in "abc")
    monkeypatch.setattr(Queue, "claim", slow)
    monkeypatch.setattr(Queue, "release", refuse_one)
    async with working(store, work) as worker:
        await asked.wait()
        asyncio.get_running_loop().call_soon(let_go.set)
    running = {job.key: job.running for key in "abc" for job in await queue.get(key)}
    assert running == {"a": False, "b": True, "c": False}
    assert worker.counted == {"released": 2}
    assert "the last claim was not given back: out of reach" in caplog.text


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_a_worker_that_is_cancelled_ends_what_it_began(store, plain):
    """As `asyncio.run` does at Ctrl-C: what runs gets its grace, then waits again, uncounted; no thread and no loop
    is left, and the status says so."""
    began = threading.Event()

    def work(job):
        began.set()
        while not job.stopping:
            time.sleep(0.001)
        raise everlog.GiveBack

    async def work_async(job):
        began.set()
        await asyncio.Event().wait()

    queue = Queue("jobs", store)
    await queue.put("k")
    worker = Worker(store, everlog.job("jobs")(work if plain else work_async), grace_s=0.01)
    running = asyncio.create_task(worker.run())
    await until(began.is_set)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (info,) = await queue.get("k")
    assert (info.running, info.row.timeouts, worker.counted) == (False, 0, {"released": 1})
    assert {one.state for one in worker.status()} == {"stopped"}
    assert not [one for one in threading.enumerate() if one.name.startswith(("everlog-heartbeats", "everlog-job"))]


async def test_what_cannot_finish_is_released(store):
    """Stopped while jobs run: they get their grace, then wait again, uncounted."""
    ended = []

    @everlog.job("jobs")
    async def work(job):
        await asyncio.sleep(0.02 if job.key == "short" else 3600)
        ended.append(job.key)

    queue = Queue("jobs", store)
    await queue.put("short")
    await queue.put("long")
    async with working(store, work, grace_s=1.0) as worker:
        await until(lambda: worker.running == 2)
    assert ended == ["short"]
    (info,) = await queue.peek()
    assert (info.key, info.running, info.row.timeouts) == ("long", False, 0)
    assert worker.counted == {"done": 1, "released": 1}


async def test_a_plain_function_keeps_its_job_until_it_ends(store):
    """A thread cannot be stopped: it is asked to, and the job is not given to another before it has ended."""
    seen = []

    @everlog.job("jobs")
    def work(job):
        while not job.stopping:
            time.sleep(0.005)
        seen.append(job.key)

    queue = Queue("jobs", store)
    await queue.put("k")
    async with working(store, work, grace_s=0.05) as worker:
        await until(lambda: worker.running == 1)
    assert seen == ["k"]
    assert worker.counted == {"done": 1}
    assert await gone(queue)


async def test_a_delayed_job_starts_when_it_is_due(store):
    """No poll is needed: the fall-back comes after an hour here."""
    started = []

    @everlog.job("jobs")
    async def work(job):
        started.append(time.time() - job.due.timestamp())

    queue = Queue("jobs", store)
    async with working(store, work, poll_s=3600):
        for delay in (0.05, 0.1, 0.2):
            await queue.put(f"k{delay}", delay=delay)
        await until_empty(queue)
    assert len(started) == 3
    assert min(started) >= 0


async def test_slow_jobs_wait_for_the_next_pass(store):
    order = []

    @everlog.job("jobs")
    async def work(job):
        order.append(job.key)
        if len(order) < 3:
            await job.queue.put(f"more-{len(order)}", priority=50)

    queue = Queue("jobs", store)
    await queue.declare(slow_threshold=200)
    await queue.put("slow", priority=230)
    await queue.put("fast", priority=50)
    async with working(store, work, concurrency=1):
        await until_empty(queue)
    assert order == ["fast", "more-1", "more-2", "slow"]


def test_functions_are_found():
    @everlog.job("one")
    async def one(job): ...

    @everlog.job("one")
    async def again(job): ...

    assert find_jobs(one) == find_jobs([one]) == [one]
    for wrong in (5, [], [len], [one, again], pytest):
        with pytest.raises(InvalidInput):
            find_jobs(wrong)
    for options in (
        {"every": 1, "cron": "* * * * *"},
        {"timeout": 0},
        {"every": 0},
        {"every": 1, "timezone": "UTC"},
        {"cron": "0 3 * * *", "timezone": "Mars/Olympus"},
        {"cron": "0 0 30 2 *"},
        {"every": 1, "catch_up": "some"},
        {"every": 1, "priority": 256},
        {"catch_up": "all"},
        {"data": 1},
    ):
        with pytest.raises(InvalidInput):
            everlog.job("x", **options)


def test_a_heart_beats_three_times_per_lease_and_tells_once():
    """The store's answers are scripted; the heart's own thread and clock are real."""
    beats: list[Handle] = []
    told: list[BeatAnswer] = []
    ended = threading.Event()

    class Scripted(MemoryQueueStore):
        async def execute(self, name, operation):
            beats.append(operation.handle)
            return BeatAnswer("OK", 0) if len(beats) < 3 else BeatAnswer("LEASE_LOST")

    def tell(answer):
        told.append(answer)
        ended.set()

    store = Scripted()
    heart = Heartbeats("jobs", lambda: store, store.clock)
    heart.watch(Handle(1, 1), 30, tell)
    assert ended.wait(60)
    heart.close()
    assert beats == [Handle(1, 1)] * 3
    assert told == [BeatAnswer("LEASE_LOST")]
