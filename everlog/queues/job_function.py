"""`@everlog.job`: a function that does the jobs of a queue."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from types import ModuleType
from typing import Any

from everlog.config.queue_options import check_name
from everlog.core.duration import Duration, milliseconds
from everlog.errors import InvalidInput
from everlog.queues.job import Job
from everlog.queues.priority import DEFAULT_PRIORITY
from everlog.queues.schedule import CatchUp
from everlog.queues.schedules import NewSchedule

JobHandler = Callable[[Job], Awaitable[object] | object]


class Retry(Exception):
    """Raised by a handler: try this job again, after a while of its own."""

    def __init__(self, reason: str = "again", *, delay: Duration | timedelta | None = None) -> None:
        super().__init__(reason)
        self.delay_ms = None if delay is None else milliseconds(delay)


class GiveBack(Exception):
    """Raised by a handler: this job is not done, let another attempt begin anew. That does not count as a failure.

    A function that ends early because of `job.stopping` says so.
    """

    def __init__(self, reason: str = "given back") -> None:
        super().__init__(reason)


class GiveUp(Exception):
    """Raised by a handler: this job can never succeed, make it a dead letter."""


class JobFunction:
    """A handler and its queue. Called, it is the plain function."""

    def __init__(self, queue: str, handler: JobHandler, *, lease_ms: int | None, schedule: NewSchedule | None) -> None:
        self.queue = check_name(queue)
        self.handler = handler
        self.lease_ms = lease_ms
        self.schedule = schedule
        self.is_async = inspect.iscoroutinefunction(handler)
        self.__doc__ = handler.__doc__
        self.__name__ = getattr(handler, "__name__", queue)

    def __call__(self, job: Job) -> Awaitable[object] | object:
        return self.handler(job)

    def __repr__(self) -> str:
        return f"<job {self.__name__} of the queue {self.queue}>"


def job(
    queue: str,
    *,
    timeout: Duration | timedelta | None = None,
    every: Duration | timedelta | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    catch_up: CatchUp = "one",
    data: Any = None,
    priority: int = DEFAULT_PRIORITY,
) -> Callable[[JobHandler], JobFunction]:
    """Say that a function does the jobs of a queue; `everlog work module` then runs it.

    `timeout`: how long a job is leased at a time; heartbeats extend it while the function runs. `every` or `cron`: a
    schedule with the function's name, which a worker stores when it starts; it puts a job with that key, `data` and
    `priority` at each of its times. `catch_up`: of times that were missed, put "one", "all", or "none". Plain functions
    run in threads.

    >>> @job("emails", timeout="10m")
    ... async def send(job): ...
    """
    lease_ms = None if timeout is None else milliseconds(timeout)
    if lease_ms == 0:
        raise InvalidInput("timeout: a lease lasts at least a millisecond")
    new = NewSchedule(every, cron, timezone, catch_up, data, priority)
    schedule = None if new == NewSchedule() else new.check()

    def decorate(handler: JobHandler) -> JobFunction:
        return JobFunction(queue, handler, lease_ms=lease_ms, schedule=schedule)

    return decorate


def find_jobs(found: Any) -> list[JobFunction]:
    """The job functions that something stands for: one, several, or all of a module."""
    if isinstance(found, JobFunction):
        jobs = [found]
    elif isinstance(found, ModuleType):
        jobs = [value for value in vars(found).values() if isinstance(value, JobFunction)]
    elif isinstance(found, Iterable):
        jobs = list(found)
    else:
        jobs = []
    if not jobs or not all(isinstance(one, JobFunction) for one in jobs):
        raise InvalidInput(f"{found!r} holds no function with @everlog.job, and is no list of such functions")
    unique = list(dict.fromkeys(jobs))
    queues = [one.queue for one in unique]
    twice = sorted({name for name in queues if queues.count(name) > 1})
    if twice:
        raise InvalidInput(f"two functions do the jobs of the queue {twice[0]!r}: one worker runs one of them")
    return unique
