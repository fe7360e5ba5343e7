"""`@everlog.job`: a function that does the jobs of a queue."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from everlog.config.queue_options import check_name
from everlog.core.duration import Duration, milliseconds
from everlog.errors import InvalidInput
from everlog.queues.job import Job, Receipt, When
from everlog.queues.job_arguments import JobArguments, PackedArguments
from everlog.queues.job_sender import JobOptions, JobSender
from everlog.queues.keys import JobKey
from everlog.queues.labels import check_kind
from everlog.queues.priority import DEFAULT_PRIORITY, check_priority
from everlog.queues.retry_policy import AS_THE_QUEUE_SAYS, RetryPolicy
from everlog.queues.schedule import CatchUp
from everlog.queues.schedules import NewSchedule

JobHandler: TypeAlias = Callable[..., Any]
KeyRule: TypeAlias = str | Callable[[Mapping[str, Any]], JobKey | Mapping[str, Any]]
"""Where the key of a job comes from: an argument, by its name, or a function of all arguments."""

S_co = TypeVar("S_co", covariant=True)


class SenderSource(Protocol[S_co]):
    """A log, with or without `await`: it hands out what puts jobs for a function."""

    def job_sender(self, function: JobFunction) -> S_co: ...


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


class UnfitArguments(GiveUp):
    """The data of a job are not the arguments of its function: no attempt can change that."""


class JobFunction:
    """A handler, its queue and the kind of job that it does there. Called, it is the plain function."""

    def __init__(
        self,
        queue: str,
        handler: JobHandler,
        *,
        kind: str = "",
        key: KeyRule | None = None,
        lease_ms: int | None = None,
        priority: int = DEFAULT_PRIORITY,
        retries: RetryPolicy = AS_THE_QUEUE_SAYS,
        schedule: NewSchedule | None = None,
    ) -> None:
        if not callable(handler):
            raise InvalidInput(f"@everlog.job stands above a function, not above {handler!r:.100}")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise InvalidInput(f"{handler!r:.100} yields, so calling it would do nothing: let it return instead")
        self.__doc__ = handler.__doc__
        self.__name__ = getattr(handler, "__name__", queue)
        self.queue = check_name(queue)
        self.kind = kind
        self.handler = handler
        self.lease_ms = lease_ms
        self.priority = priority
        self.retries = retries
        called = getattr(type(handler), "__call__", None)  # noqa: B004  # of an object that can be called
        self.is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)
        self.arguments = JobArguments(self.__name__, handler)
        self._schedule = schedule
        self._key = key
        if isinstance(key, str) and key not in self.arguments.names:
            raise InvalidInput(f"{self.__name__} has no argument {key!r} that could be the key of its jobs")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        kind = f" of the kind {self.kind}" if self.kind else ""
        return f"<job {self.__name__}{kind} of the queue {self.queue}>"

    @property
    def schedule(self) -> NewSchedule | None:
        """The schedule that it declares, with data that the function can take."""
        new = self._schedule
        if new is None or self.arguments.raw:
            return new
        data = {} if new.data is None else new.data
        if not isinstance(data, Mapping):
            raise InvalidInput(
                f"{self.__name__}: the data of its schedule are its arguments, by name: not {data!r:.100}"
            )
        return new._replace(data=self.arguments.pack(data).data)

    def check(self) -> None:
        """Raises InvalidInput if a type of an argument is not known, or the schedule's data do not fit."""
        self.arguments.checked_types()
        self.schedule  # noqa: B018  # it is packed

    def bind(self, job: Job) -> Callable[[], Any]:
        """The call of the function for this job; UnfitArguments if its data are others."""
        try:
            return self.arguments.bind(job)
        except InvalidInput as error:
            raise UnfitArguments(str(error)) from error

    def key_of(self, packed: PackedArguments) -> JobKey | Mapping[str, Any] | None:
        """The key of a job with these arguments; None: one of its own."""
        if self._key is None:
            return None
        if callable(self._key):
            return self._key(packed.values)
        found: JobKey = packed.values[self._key]
        # As JSON has it: an id is text then, and so is a date.
        return found if self.arguments.raw else msgspec.to_builtins(found)

    def on(self, log: SenderSource[S_co]) -> S_co:
        """What puts jobs into this log: `await welcome.on(log).put(…)`; of a log of `everlog.sync`, without await."""
        if not hasattr(log, "job_sender"):
            raise InvalidInput(f"{self.__name__}.on takes an open log, not {log!r:.100}")
        return log.job_sender(self)

    def options(
        self,
        *,
        key: JobKey | Mapping[str, Any] | None = None,
        priority: int | None = None,
        at: When | None = None,
        delay: Duration | timedelta | None = None,
        expires: When | Duration | None = None,
        group: str | None = None,
    ) -> JobSender:
        """Puts jobs with these options: `await welcome.options(key="u-7").put(…)`."""
        return JobSender(self, options=JobOptions(key, priority, at, delay, expires, group))

    async def put(self, /, **arguments: Any) -> Receipt:
        """Put a job with these arguments into the log that is open here: in `async with`, or in a job of a worker.

        A function that takes the job alone has one argument, `data`.
        """
        return await JobSender(self).put(**arguments)

    async def put_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Receipt]:
        """Put a job for each mapping of arguments; all are checked before one is stored."""
        return await JobSender(self).put_many(arguments)


def job(
    queue: str,
    *,
    kind: str | None = None,
    key: KeyRule | None = None,
    timeout: Duration | timedelta | None = None,
    retries: RetryPolicy = AS_THE_QUEUE_SAYS,
    every: Duration | timedelta | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    catch_up: CatchUp = "one",
    data: Any = None,
    priority: int = DEFAULT_PRIORITY,
) -> Callable[[JobHandler], JobFunction]:
    """Say that a function does jobs of a queue; `everlog work module` then runs it.

    `kind`: those of this kind; without it, those that have none. `timeout`: how long a job is leased at a time;
    heartbeats extend it while the function runs. `retries`: how often it is tried, and the pauses in between. `every`
    or `cron`: a schedule with the function's name, which a worker stores when it starts; it puts a job with that key,
    `data` and `priority` at each of its times. `catch_up`: of times that were missed, put "one", "all", or "none".
    `key` and `priority` are those of `put`; without `key` each put is a job of its own. Plain functions run in threads.

    >>> @job("mails", kind="welcome", key="to", timeout="10m", retries=RetryPolicy(backoff="10s"))
    ... async def welcome(to: str, again: bool = False): ...
    """
    lease_ms = None if timeout is None else milliseconds(timeout)
    if lease_ms == 0:
        raise InvalidInput("timeout: a lease lasts at least a millisecond")
    if not isinstance(retries, RetryPolicy):
        raise InvalidInput(f"retries is an everlog.RetryPolicy(…), not {retries!r:.100}")
    if not (key is None or isinstance(key, str) or callable(key)):
        raise InvalidInput(f"key is the name of an argument, or a function of all arguments, not {key!r:.100}")
    check_priority(priority)
    found_kind = check_kind(kind)
    new = NewSchedule(every, cron, timezone, catch_up, data)
    schedule = None if new == NewSchedule() else new._replace(priority=priority, kind=found_kind or None).check()

    def decorate(handler: JobHandler) -> JobFunction:
        return JobFunction(
            queue,
            handler,
            kind=found_kind,
            key=key,
            lease_ms=lease_ms,
            priority=priority,
            retries=retries,
            schedule=schedule,
        )

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
    for (queue, kind), count in Counter((one.queue, one.kind) for one in unique).items():
        if count > 1:
            which = f"of the kind {kind!r}" if kind else "without a kind"
            raise InvalidInput(f"two functions do the jobs {which} of the queue {queue!r}: give each a kind of its own")
    scheduled = Counter((one.queue, one.__name__) for one in unique if one.schedule is not None)
    for (queue, name), count in scheduled.items():
        if count > 1:
            raise InvalidInput(f"two functions {name!r} declare a schedule of the queue {queue!r}: rename one of them")
    for one in unique:
        one.check()
    return unique
