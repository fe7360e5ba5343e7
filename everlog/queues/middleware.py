"""Middleware: what a worker runs around every job, whatever its function is.

async def timed(job, call_next):
    started = time.monotonic()
    try:
        return await call_next(job)
    finally:
        print(job.queue.name, job.kind, time.monotonic() - started)
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from everlog.errors import InvalidInput
from everlog.queues.job import Job

CallNext: TypeAlias = Callable[[Job], Awaitable[object]]
"""What comes further in: another middleware, or the function."""

JobMiddleware: TypeAlias = Callable[[Job, CallNext], Awaitable[object]]
"""What it returns is the job's result; what it raises ends the attempt as if the function had raised it."""


def check_middleware(given: object) -> tuple[JobMiddleware, ...]:
    """A list of middleware; each can be called with a job and what comes next."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidInput(f"middleware is a list of functions, not {given!r:.100}")
    for one in given:
        try:
            inspect.signature(one).bind(None, None)
        except (TypeError, ValueError) as error:
            raise InvalidInput(
                f"middleware is called with the job and what comes next: {one!r:.100} cannot be: {error}"
            ) from error
        if not any(map(inspect.iscoroutinefunction, (one, inspect.unwrap(one), getattr(type(one), "__call__", None)))):  # noqa: B004
            raise InvalidInput(f"the middleware {_name(one)} is not asynchronous: write 'async def'")
    return tuple(given)


def around(middleware: Sequence[JobMiddleware], call: CallNext) -> CallNext:
    """One call of all of them, the first one outermost."""
    for one in reversed(middleware):
        call = partial(_run, one, call)
    return call


async def _run(middleware: JobMiddleware, following: CallNext, job: Job) -> object:
    running = middleware(job, _SingleCall(middleware, following, job))
    if not inspect.isawaitable(running):
        raise InvalidInput(f"the middleware {_name(middleware)} is not asynchronous: write 'async def'")
    return await running


class _SingleCall:
    """`call_next` of one job: a second call would do the job twice under one lease."""

    __slots__ = ("_following", "_job", "_middleware", "_used")

    def __init__(self, middleware: JobMiddleware, following: CallNext, job: Job) -> None:
        self._middleware = middleware
        self._following = following
        self._job = job
        self._used = False

    async def __call__(self, job: Job) -> object:
        if job is not self._job:
            raise InvalidInput(f"the middleware {_name(self._middleware)} passes on {job!r:.100}, not its job")
        if self._used:
            raise InvalidInput(
                f"the middleware {_name(self._middleware)} calls call_next twice: raise everlog.Retry instead"
            )
        self._used = True
        return await self._following(job)


def _name(middleware: JobMiddleware) -> str:
    return getattr(middleware, "__name__", repr(middleware))
