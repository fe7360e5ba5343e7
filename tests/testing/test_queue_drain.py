"""`everlog.testing.drain`: the jobs of a test, here and now."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import everlog
from everlog.console.server import serving
from everlog.errors import InvalidInput
from everlog.queues.open_logs import innermost_log
from everlog.testing import DrainedJob, ManualClock, drain, drain_sync
from tests.support import small_config


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(params=["files", "HTTP"])
async def log(request, tmp_path, clock):
    async with everlog.connect(small_config(tmp_path / "data"), clock=clock) as local:
        if request.param == "files":
            yield local
        else:
            async with (
                serving(local, host="127.0.0.1", port=0, writable=True) as address,
                everlog.connect(address, clock=clock) as remote,
            ):
                yield remote


def test_a_clock_that_is_told():
    clock = ManualClock()
    now, monotonic = clock.now_ms(), clock.monotonic()
    clock.advance("1h")
    assert clock.now_ms() == now + 3_600_000
    assert clock.monotonic() >= monotonic + 3600
    with pytest.raises(InvalidInput):
        clock.advance(-1)


async def test_all_that_is_due_runs_in_order(log, clock):
    """Also what is put meanwhile; async and plain functions, one at a time, in the caller's task."""
    ran, tasks = [], set()

    @everlog.job("mails", kind="welcome")
    async def welcome(to: str):
        tasks.add(asyncio.current_task())
        ran.append(to)
        if to == "eve":
            await goodbye.put(name="late")

    @everlog.job("mails", kind="goodbye", priority=200)
    def goodbye(name: str):
        ran.append((name, threading.current_thread() is not threading.main_thread()))
        return len(name)

    await goodbye.on(log).put(name="bob")
    await welcome.on(log).options(priority=5).put(to="eve")
    await welcome.on(log).options(priority=4, key="first").put(to="adam")
    await welcome.on(log).options(delay="1h").put(to="later")
    clock.advance("1ms")
    found = await drain(log, [welcome, goodbye])
    assert ran[:2] == ["adam", "eve"]
    assert sorted(ran[2:]) == [("bob", True), ("late", True)]
    assert found[0] == DrainedJob("mails", "welcome:first", "welcome", 1, "done")
    assert sorted(one.result for one in found[2:]) == [3, 4]
    assert tasks == {asyncio.current_task()}
    assert await drain(log, [welcome, goodbye]) == []
    clock.advance("1h")
    assert [one.outcome for one in await drain(log.queue("mails"), [welcome, goodbye])] == ["done"]
    assert ran[-1] == "later"
    assert innermost_log() == log.queue


async def test_an_error_of_a_function_reaches_the_test(log, clock):
    @everlog.job("jobs", retries=everlog.RetryPolicy(max_attempts=2, backoff="10s"))
    def work(n: int):
        raise ZeroDivisionError(f"n is {n}")

    await work.on(log).put(n=7)
    with pytest.raises(ZeroDivisionError, match="n is 7"):
        await drain(log, work)
    assert await drain(log, work) == [], "it waits for its next attempt"
    clock.advance("10s")
    (run,) = await drain(log, work, raise_errors=False)
    assert (run.outcome, run.attempt, repr(run.error)) == ("failed", 2, "ZeroDivisionError('n is 7')")
    (letter,) = await log.queue("jobs").dead()
    assert len(letter.attempts) == 2


async def test_what_a_function_says_of_its_job_is_no_error(log, clock):
    @everlog.job("jobs")
    async def work(job, what: str):
        if job.attempt == 1 and what == "retry":
            raise everlog.Retry("busy", delay="1m")
        if what == "give up":
            raise everlog.GiveUp("no use")

    await work.on(log).put(what="retry")
    await work.on(log).put(what="give up")
    found = await drain(log, work)
    assert {(one.outcome, type(one.error)) for one in found} == {("failed", everlog.GiveUp), ("failed", everlog.Retry)}
    clock.advance("1m")
    assert [(one.outcome, one.attempt) for one in await drain(log, work)] == [("done", 2)]


async def test_bad_data_and_unknown_kinds_are_errors_of_a_test(log, clock):
    @everlog.job("jobs")
    async def work(n: int): ...

    queue = log.queue("jobs")
    await queue.put("bad", {"n": "x"})
    with pytest.raises(everlog.GiveUp, match="'n' does not fit"):
        await drain(queue, work)
    assert len(await queue.dead()) == 1
    await queue.put("other", kind="other")
    with pytest.raises(InvalidInput, match="no function is given for job 'other', of the kind 'other'"):
        await drain(queue, work)
    assert [flag.reason for flag in await queue.flags() if flag.reason != "failed"] == ["unknown_kind"]
    clock.advance("2s")
    (run,) = await drain(queue, work, raise_errors=False)
    assert run.outcome == "unknown_kind"


async def test_middleware_runs_as_in_a_worker(log):
    seen = []

    async def around(job, call_next):
        seen.append(job.key)
        return await call_next(job)

    @everlog.job("jobs", key="n")
    async def work(n: int): ...

    await work.on(log).put(n=7)
    await drain(log, work, middleware=[around])
    assert seen == [7]


async def test_schedules_are_stored_and_fired(log, clock):
    ran = []

    @everlog.job("jobs", kind="hourly", every="1h", data={"n": 1})
    async def hourly(n: int):
        ran.append(n)

    assert await drain(log, hourly) == []
    clock.advance("1h")
    assert [one.kind for one in await drain(log, hourly)] == ["hourly"]
    assert ran == [1]


async def test_a_job_without_end_is_noticed(log):
    @everlog.job("jobs")
    async def again():
        await again.put()

    await again.on(log).put()
    with pytest.raises(InvalidInput, match="still due after 20 runs"):
        await drain(log, again, max_runs=20)
    assert (await log.queue("jobs").stats()).running == 0


@pytest.mark.parametrize("raise_errors", [True, False])
async def test_a_test_that_is_cancelled_gives_its_job_back(log, raise_errors):
    begun = asyncio.Event()

    @everlog.job("jobs")
    async def work(job):
        begun.set()
        await asyncio.Event().wait()

    await log.queue("jobs").put("k")
    running = asyncio.create_task(drain(log, work, raise_errors=raise_errors))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stats = await log.queue("jobs").stats()
    assert (stats.ready, stats.running) == (1, 0)


async def test_a_time_limit_of_a_test_is_heard_while_a_plain_function_runs(log):
    """The function under way ends, as a thread cannot be cancelled; no other one begins."""
    began, ran = threading.Event(), []

    @everlog.job("jobs")
    def work(job):
        ran.append(job.key)
        began.set()
        while not job.stopping:
            time.sleep(0.001)

    await log.queue("jobs").put_many([(number, None) for number in range(3)])
    running = asyncio.create_task(drain(log, work))
    await asyncio.to_thread(began.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(ran) == 1


async def test_a_job_that_the_function_ends_by_itself(log):
    @everlog.job("jobs")
    async def work(job):
        await job.done()

    await log.queue("jobs").put("k")
    (run,) = await drain(log, work, raise_errors=False)
    assert (run.outcome, type(run.error)) == ("lost", everlog.LeaseLost)


async def test_wrong_targets(log):
    @everlog.job("jobs")
    async def work(job): ...

    with pytest.raises(InvalidInput, match="not of 'other'"):
        await drain(log.queue("other"), work)
    with pytest.raises(InvalidInput, match="an open log or a queue"):
        await drain("jobs", work)
    with pytest.raises(InvalidInput):
        await drain(log, [])


def test_the_blocking_twin(tmp_path):
    ran = []

    @everlog.job("jobs", key="n")
    def work(n: int):
        ran.append(n)

    with everlog.sync.connect(small_config(tmp_path)) as log:
        work.on(log).put(n=1)
        work.on(log).options(priority=3).put_many([{"n": 2}])
        with pytest.raises(InvalidInput, match="'n' does not fit"):
            work.on(log).put(n="x")
        assert [one.outcome for one in drain_sync(log, work)] == ["done", "done"]
    assert ran == [2, 1]
