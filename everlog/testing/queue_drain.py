"""`await drain(log, [welcome])`: runs the jobs that are due, here and now, for tests of your own functions.

The same code runs a job as in a worker; there are no loops, no heartbeats, and one job at a time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from everlog.api import Everlog
from everlog.errors import InvalidInput, LeaseLost
from everlog.queues.job import Job
from everlog.queues.job_function import GiveBack, GiveUp, JobFunction, Retry, UnfitArguments
from everlog.queues.job_runner import JobRunner
from everlog.queues.keys import JobKey
from everlog.queues.middleware import JobMiddleware
from everlog.queues.open_logs import QueueSource, enter_log, leave_log
from everlog.queues.queue import Queue
from everlog.queues.queue_functions import QueueFunctions
from everlog.runtime.twin import Twin

MAX_RUNS = 1000
# By these a function says how its job is to end: they are no failures of a test.
_INTENDED = (Retry, GiveUp, GiveBack)


class DrainedJob(NamedTuple):
    """One run of a job. `outcome`: done, failed, released, unknown_kind, or lost; `error`: what the function raised."""

    queue: str
    key: JobKey
    kind: str | None
    attempt: int
    outcome: str
    result: object = None
    error: BaseException | None = None


async def drain(
    target: Everlog | Queue,
    functions: Sequence[JobFunction] | JobFunction,
    *,
    middleware: Sequence[JobMiddleware] = (),
    raise_errors: bool = True,
    max_runs: int = MAX_RUNS,
    chance: random.Random | None = None,
) -> list[DrainedJob]:
    """Run what is due in the queues of these functions, in order, until nothing is; what ran.

    Jobs that come meanwhile run, too. An error of a function reaches the queue as it does in a worker, and is then
    raised, as are data that do not fit a function, and a kind without one; `raise_errors=False` only notes them. The
    exceptions `Retry`, `GiveUp` and `GiveBack` are never raised: a function says by them how its job ends. Delayed jobs
    and later attempts wait for their time: give the log a `ManualClock`.

    >>> (run,) = await drain(log, [welcome])     # doctest: +SKIP
    """
    threads = ThreadPoolExecutor(1, thread_name_prefix="everlog-drain")
    runner = JobRunner(functions, lambda: threads, middleware=middleware, chance=chance)
    source = _source(target, runner)
    found: list[DrainedJob] = []
    enter_log(source)
    try:
        queues = [(one, source(one.name)) for one in runner.queues.values()]
        for one, queue in queues:
            await one.prepare(queue)
        while (job := await _next_job(queues)) is not None:
            if len(found) >= max_runs:
                await job.release()
                raise InvalidInput(f"jobs are still due after {max_runs} runs: does one put itself again and again?")
            found.append(await _run(runner, job, raise_errors))
    finally:
        leave_log(source)
        threads.shutdown()
    return found


def drain_sync(
    log: Twin[Everlog],
    functions: Sequence[JobFunction] | JobFunction,
    *,
    middleware: Sequence[JobMiddleware] = (),
    raise_errors: bool = True,
    max_runs: int = MAX_RUNS,
    chance: random.Random | None = None,
) -> list[DrainedJob]:
    """As `drain`, for a log of `everlog.sync`."""
    running = drain(
        log._inner, functions, middleware=middleware, raise_errors=raise_errors, max_runs=max_runs, chance=chance
    )
    return log._portal.call(running)


def _source(target: Everlog | Queue, runner: JobRunner) -> QueueSource:
    if isinstance(target, Everlog):
        return target.queue
    if not isinstance(target, Queue):
        raise InvalidInput(f"drain takes an open log or a queue, not {target!r:.100}")
    others = [name for name in runner.queues if name != target.name]
    if others:
        raise InvalidInput(f"a function does jobs of the queue {others[0]!r}, not of {target.name!r}: give the log")
    return lambda name: target if name == target.name else Queue(name, target.store)


async def _next_job(queues: Sequence[tuple[QueueFunctions, Queue]]) -> Job | None:
    """The first job of the first queue that has one."""
    for functions, queue in queues:
        lease_ms = await functions.lease_ms(queue)
        claimed = await queue.claim(1, owner="drain", lease=None if lease_ms is None else lease_ms / 1000)
        if claimed:
            return claimed[0]
    return None


async def _run(runner: JobRunner, job: Job, raise_errors: bool) -> DrainedJob:
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    outcome = await runner.run(job)
    name, error = outcome.name, outcome.error
    try:
        await outcome.report()
    except LeaseLost as lost:  # the function has ended it by itself, or ran for longer than its lease
        name, error = "lost", error or lost
    if task is not None and task.cancelling() > before:  # the caller is to end, whatever became of the job
        raise asyncio.CancelledError from error
    if raise_errors and error is not None and _is_failure(error):
        raise error
    if raise_errors and name == "unknown_kind":
        raise InvalidInput(f"no function is given for job {job.key!r}, of the kind {job.kind!r} of {job.queue.name}")
    return DrainedJob(job.queue.name, job.key, job.kind, job.attempt, name, outcome.result, error)


def _is_failure(error: BaseException) -> bool:
    return isinstance(error, UnfitArguments) or not isinstance(error, _INTENDED)
