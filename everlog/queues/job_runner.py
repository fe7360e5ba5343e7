"""Runs one job: finds its function, calls it inside the middleware, and says how it went and what to report of it.

Workers and `everlog.testing.drain` share it. It never reports by itself: who runs it knows when, and how often.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Literal, NamedTuple

from everlog.core.bounded_map import BoundedMap
from everlog.queues.job import Job
from everlog.queues.job_function import GiveBack, GiveUp, JobFunction, Retry, find_jobs
from everlog.queues.middleware import JobMiddleware, around, check_middleware
from everlog.queues.queue_functions import by_queue
from everlog.runtime.retry import pause_after

log = logging.getLogger("everlog.queues")

StopCause = Literal["lost", "cancel", "restart", "shutdown"]
EndReport = Callable[[], Awaitable[None]]

# How long a job whose kind has no function here waits before it is given out again: it doubles each time.
MIN_UNKNOWN_S = 1.0
MAX_UNKNOWN_S = 60.0
MAX_UNKNOWN_KEPT = 10_000


class JobOutcome(NamedTuple):
    """How a run went, and what tells the queue. `error` is what the function raised, `result` what it returned, and
    `keeps_result` whether the queue keeps that."""

    name: str
    report: EndReport
    error: BaseException | None = None
    result: object = None
    keeps_result: bool = False


class JobRunner:
    """Runs jobs with these functions, any number at a time; plain functions in the `threads`."""

    def __init__(
        self,
        functions: Sequence[JobFunction] | JobFunction,
        threads: Callable[[], Executor],
        *,
        middleware: Sequence[JobMiddleware] = (),
        chance: random.Random | None = None,
    ) -> None:
        self.queues = by_queue(find_jobs(functions))
        self._threads = threads
        self._middleware = check_middleware(middleware)
        self._call = around(self._middleware, self._call_found)
        self._chance = chance or random.Random()
        self._unknown: BoundedMap[tuple[str, int], int] = BoundedMap(MAX_UNKNOWN_KEPT)

    async def run(self, job: Job, stop_cause: Callable[[], StopCause | None] = lambda: None) -> JobOutcome:
        """Run it once. Nothing that the function raises comes out, but for KeyboardInterrupt.

        `stop_cause` says why the running task was cancelled, if it was.
        """
        function = self._find(job)
        if function is None:
            return self._unknown_kind(job)
        try:
            # Most workers have no middleware: then the function need not be looked up again.
            result = await (self._call(job) if self._middleware else self._call_function(function, job))
        except asyncio.CancelledError as error:
            was_stopped = _this_task().cancelling() > 0  # else the function has raised it by itself
            cause = stop_cause()
            return self._stopped(job, cause, error) if was_stopped else self._failed(function, job, error, cause)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() ends the attempt, not the worker
            return self._failed(function, job, error, stop_cause())
        keeps_result = job.keeps_result
        report = partial(job.queue.done, job, result if keeps_result else None)
        return JobOutcome("done", report, None, result, keeps_result)

    def _find(self, job: Job) -> JobFunction | None:
        return self.queues[job.queue.name].find(job.kind)

    async def _call_found(self, job: Job) -> object:
        function = self._find(job)
        assert function is not None, "the middleware runs only around jobs that have a function"
        return await self._call_function(function, job)

    def _call_function(self, function: JobFunction, job: Job) -> Awaitable[object]:
        call = function.bind(job)
        return call() if function.is_async else self._in_thread(call, job)

    async def _in_thread(self, call: Callable[[], object], job: Job) -> object:
        """A thread cannot be cancelled: it is told by `job.stopping`, and the job is its own until it ends."""
        context = contextvars.copy_context()  # what a middleware has set there is seen by the function
        future = asyncio.get_running_loop().run_in_executor(self._threads(), context.run, _outcome_of, call)
        while not future.done():
            try:
                await asyncio.shield(asyncio.wait([future]))
            except asyncio.CancelledError:
                job.stopping = True
        result, error = future.result()
        if error is not None:
            raise error
        # A coroutine comes from an async function below a plain decorator: its home is this loop.
        return await result if inspect.isawaitable(result) else result

    def _failed(self, function: JobFunction, job: Job, error: BaseException, cause: StopCause | None) -> JobOutcome:
        # What a function raises when it is cancelled need not be that: a driver may make an error of its own of it.
        is_cut_off = function.is_async and cause in ("shutdown", "restart") and not isinstance(error, (GiveUp, Retry))
        if cause == "cancel" or is_cut_off or isinstance(error, GiveBack):
            return self._stopped(job, cause, error)
        if isinstance(error, GiveUp):
            return JobOutcome("failed", partial(job.queue.fail, job, str(error), retry=False), error)
        if isinstance(error, Retry):
            reason, delay_ms = str(error), error.delay_ms
        else:
            log.warning("%s: attempt %d of %r failed", job.queue.name, job.attempt, job.key, exc_info=error)
            reason, delay_ms = f"{type(error).__name__}: {error}", None
        if delay_ms is None:
            delay_ms = function.retries.delay_ms(job.attempt, self._chance)
        delay = None if delay_ms is None else delay_ms / 1000
        retry = function.retries.allows(job.attempt)
        return JobOutcome("failed", partial(job.queue.fail, job, reason, delay=delay, retry=retry), error)

    def _stopped(self, job: Job, cause: StopCause | None, error: BaseException) -> JobOutcome:
        """What to report about a job that was stopped. A report on one that was lost would be refused."""
        if cause == "lost":
            return JobOutcome("lost", _nothing, error)
        if cause == "cancel":
            return JobOutcome("cancelled", partial(job.queue.fail, job, "cancelled", retry=False), error)
        return JobOutcome("released", partial(job.queue.release, job), error)

    def _unknown_kind(self, job: Job) -> JobOutcome:
        """Another worker may know it, or a newer version of this one: it waits for that, uncounted, and is flagged."""
        place = (job.queue.name, job.entry)
        kept = place in self._unknown or len(self._unknown) < MAX_UNKNOWN_KEPT
        times = self._unknown.put(place, self._unknown.get(place, 0) + 1)
        # Where there are too many to remember, each waits for long: workers must not spend their time on them.
        pause = pause_after(times, MIN_UNKNOWN_S, MAX_UNKNOWN_S) if kept else MAX_UNKNOWN_S
        which = f"the kind {job.kind!r}" if job.kind else "no kind"
        log.warning("%s: no function here does job %d, which has %s", job.queue.name, job.entry, which)
        return JobOutcome("unknown_kind", partial(job.queue.release, job, delay=pause, flag="unknown_kind"))


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _outcome_of(call: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Call a plain function in its thread; what it raises comes back as a value: a future does not take all of it."""
    try:
        return call(), None
    except BaseException as error:
        return None, error


async def _nothing() -> None:
    """Nothing needs to be reported."""
