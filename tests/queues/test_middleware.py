"""Middleware: around every job, outermost first; it sees results and errors, and may stand in for the function."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from typing import Any

import pytest

import everlog
from everlog.errors import InvalidInput
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.middleware import check_middleware
from everlog.queues.queue import Queue
from everlog.queues.worker import Worker
from tests.waiting import until


@pytest.fixture
def queue():
    return Queue("jobs", MemoryQueueStore())


async def run(queue: Queue, function: Any, *middleware: Any, ends: int = 1, **options: Any) -> Worker:
    """Put a job, unless one is there, and work until so many have ended."""
    await queue.put("k", {"to": "eve"}, **options)
    worker = Worker(queue.store, function, middleware=middleware)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.counted.total() >= ends)
    worker.stop()
    await running
    return worker


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_the_first_one_is_outermost(queue, plain):
    seen: list[Any] = []

    def middleware(name: str) -> Any:
        async def around(job: everlog.Job, call_next: Any) -> Any:
            seen.append((name, "before", job.key))
            result = await call_next(job)
            seen.append((name, "after", result))
            return f"{name} {result}"

        return around

    def work(to: str) -> str:
        seen.append(to)
        return to

    async def work_async(to: str) -> str:
        return work(to)

    await queue.declare(keep_done="1h")
    await run(queue, everlog.job("jobs")(work if plain else work_async), middleware("a"), middleware("b"))
    assert seen == [
        ("a", "before", "k"),
        ("b", "before", "k"),
        "eve",
        ("b", "after", "eve"),
        ("a", "after", "b eve"),
    ]
    assert [job.result for job in await queue.history()] == ["a b eve"]


async def test_an_object_may_be_middleware(queue):
    class Counting:
        count = 0

        async def __call__(self, job, call_next):
            self.count += 1
            return await call_next(job)

    counting = Counting()

    @everlog.job("jobs")
    async def work(job): ...

    await run(queue, work, counting)
    assert counting.count == 1


ENDS = {
    "retry": (everlog.Retry("later", delay="1h"), {"failed": 1}),
    "give up": (everlog.GiveUp("never"), {"failed": 1}),
    "give back": (everlog.GiveBack(), {"released": 1}),
    "error": (KeyError("no"), {"failed": 1}),
    "exit": (SystemExit(3), {"failed": 1}),
}


@pytest.mark.parametrize("where", ["function", "middleware"])
@pytest.mark.parametrize("name", ENDS)
async def test_what_is_raised_passes_through(queue, name, where):
    error, counted = ENDS[name]
    seen: list[BaseException] = []

    async def around(job, call_next):
        try:
            await call_next(job)
        except BaseException as found:
            seen.append(found)
            raise
        if where == "middleware":
            raise error

    @everlog.job("jobs", retries=everlog.RetryPolicy(backoff="1h"))
    async def work(job):
        if where == "function":
            await queue.pause()  # so that what is given back is not run again
            raise error
        await queue.pause()

    worker = await run(queue, work, around)
    assert worker.counted == counted
    assert seen == ([error] if where == "function" else [])
    assert len(await queue.dead()) == (name == "give up")


async def test_one_that_never_calls_on_stands_in_for_the_function(queue):
    ran = []

    async def instead(job, call_next):
        return "instead"

    @everlog.job("jobs")
    async def work(job):
        ran.append(job.key)

    await queue.declare(keep_done="1h")
    worker = await run(queue, work, instead)
    assert (ran, worker.counted) == ([], {"done": 1})
    assert [job.result for job in await queue.history()] == ["instead"]


async def twice(job, call_next):
    await call_next(job)
    return await call_next(job)


async def another_job(job, call_next):
    return await call_next("another")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (twice, "the middleware twice calls call_next twice"),
        (another_job, "the middleware another_job passes on 'another', not its job"),
    ],
)
async def test_one_that_is_wrong_fails_the_attempt(queue, wrong, message):
    ran = []

    @everlog.job("jobs", retries=everlog.RetryPolicy(max_attempts=1))
    async def work(job):
        ran.append(job.key)

    await run(queue, work, wrong)
    (letter,) = await queue.dead()
    assert message in letter.reason
    assert len(ran) == (wrong is twice)


@pytest.mark.parametrize("given", [5, "text", [5], [lambda job: None], [lambda a, b, c: None], None])
def test_what_is_no_middleware(given):
    @everlog.job("jobs")
    async def work(job): ...

    with pytest.raises(InvalidInput, match="middleware is"):
        Worker(MemoryQueueStore(), work, middleware=given)


def test_one_that_is_not_asynchronous_is_refused_before_any_job_runs():
    def plain(job, call_next):
        return call_next(job)

    with pytest.raises(InvalidInput, match="the middleware plain is not asynchronous"):
        check_middleware([plain])


def test_what_can_be_called_is_taken_as_it_is():
    async def with_default(job, call_next, *, level=3): ...

    class Traced:
        async def __call__(self, job, call_next): ...

    given = (with_default, twice, Traced(), functools.partial(with_default, level=4))
    assert check_middleware(given) == given
    assert check_middleware(()) == ()


async def test_data_that_do_not_fit_pass_through_it(queue):
    """So that what counts errors sees them."""
    seen = []

    async def around(job, call_next):
        try:
            return await call_next(job)
        except everlog.GiveUp as error:
            seen.append(str(error))
            raise

    @everlog.job("jobs")
    async def work(to: int): ...

    await run(queue, work, around)
    assert seen == ["work: the argument 'to' does not fit: Expected `int`, got `str`"]


async def test_it_does_not_run_for_an_unknown_kind(queue):
    seen = []

    async def around(job, call_next):
        seen.append(job.key)
        return await call_next(job)

    @everlog.job("jobs")
    async def work(job): ...

    worker = await run(queue, work, around, kind="new")
    assert (seen, worker.counted) == ([], {"unknown_kind": 1})


async def test_a_plain_function_sees_its_context(queue):
    """A trace that the middleware has begun goes on in the thread."""
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")
    seen = []

    async def around(job, call_next):
        trace.set(f"trace of {job.key}")
        return await call_next(job)

    @everlog.job("jobs")
    def work(job):
        seen.append(trace.get())

    await run(queue, work, around)
    assert seen == ["trace of k"]


async def test_a_worker_that_stops_cancels_it_with_the_function(queue):
    begun, seen = asyncio.Event(), []

    async def around(job, call_next):
        try:
            return await call_next(job)
        finally:
            seen.append("ended")

    @everlog.job("jobs")
    async def work(job):
        begun.set()
        await asyncio.Event().wait()

    await queue.put("k")
    worker = Worker(queue.store, work, middleware=[around], grace_s=0)
    running = asyncio.create_task(worker.run())
    await begun.wait()
    worker.stop()
    await running
    assert (seen, worker.counted) == (["ended"], {"released": 1})


async def test_the_log_of_jobs(queue, caplog):
    """Each kind has its figures; what was given back has not raised; no argument is in the log."""
    seconds = iter([0.0, 0.25, 10.0, 10.5, 20.0, 20.75])
    job_log = everlog.JobLog(monotonic=lambda: next(seconds))
    tries = []

    @everlog.job("jobs", kind="welcome", retries=everlog.RetryPolicy(max_attempts=3, backoff="1ms"))
    async def welcome(to: str) -> None:
        tries.append(to)
        if len(tries) < 3:
            raise (everlog.GiveBack, ValueError)[len(tries) - 1]("not now")

    with caplog.at_level("INFO", "everlog.jobs"):
        await run(queue, welcome, job_log, ends=3, kind="welcome")
    (figures,) = job_log.kinds
    assert (figures.name, figures.jobs, figures.raised, figures.total_s, figures.max_s) == (
        "jobs/welcome",
        3,
        1,
        1.5,
        0.75,
    )
    lines = [record for record in caplog.records if record.name == "everlog.jobs"]
    assert [line.getMessage() for line in lines] == [
        "stopped after 0.250 s",
        "raised after 0.500 s",
        "returned after 0.750 s",
    ]
    assert [(line.queue, line.kind, line.key, line.attempt) for line in lines] == [
        ("jobs", "welcome", "k", 1),
        ("jobs", "welcome", "k", 1),
        ("jobs", "welcome", "k", 2),
    ]
    assert "'eve'" not in str([vars(line) for line in lines])
