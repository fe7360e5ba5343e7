"""`welcome.put(to="eve@example.org")`: puts jobs for a function, with its arguments instead of key and data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from everlog.core.duration import Duration
from everlog.errors import InvalidInput
from everlog.queues.job import NewJob, Receipt, When
from everlog.queues.keys import JobKey, KindKey
from everlog.queues.open_logs import QueueSource, innermost_log
from everlog.queues.queue import Queue

if TYPE_CHECKING:
    from everlog.queues.job_function import JobFunction


class JobOptions(NamedTuple):
    """What a put says besides the arguments. None: as the function says, or as a put does without it."""

    key: JobKey | Mapping[str, Any] | None = None
    priority: int | None = None
    at: When | None = None
    delay: Duration | timedelta | None = None
    expires: When | Duration | None = None
    group: str | None = None

    def over(self, others: JobOptions) -> JobOptions:
        """Those of both, these first. A time replaces a time, whichever way it is given."""
        if self.at is not None or self.delay is not None:
            others = others._replace(at=None, delay=None)
        return others._replace(**{name: value for name, value in self._asdict().items() if value is not None})


class JobSender:
    """Puts jobs for one function: into a certain log, or into the one that is open where `put` is called."""

    def __init__(
        self, function: JobFunction, queues: QueueSource | None = None, options: JobOptions | None = None
    ) -> None:
        if not hasattr(function, "arguments"):
            raise InvalidInput(f"jobs are put for a function with @everlog.job, not for {function!r:.100}")
        self._function = function
        self._queues = queues
        self._options = JobOptions() if options is None else options

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
        """The same with options for the jobs that it puts.

        >>> await welcome.options(key="u-7", delay="10m").put(to="eve@example.org")     # doctest: +SKIP
        """
        given = JobOptions(key, priority, at, delay, expires, group)
        return JobSender(self._function, self._queues, given.over(self._options))

    async def put(self, /, **arguments: Any) -> Receipt:
        """Put a job with these arguments. They are checked first: a wrong one is InvalidInput.

        Without a key a put that is repeated is another job.
        """
        queue = self._queue()
        return await queue.put(**self._new_job(queue, arguments)._asdict())

    async def put_many(self, arguments: Iterable[Mapping[str, Any]]) -> list[Receipt]:
        """Put a job for each mapping of arguments, as `Queue.put_many` does. All are checked before one is stored."""
        if not isinstance(arguments, Iterable):
            raise InvalidInput(f"put_many takes mappings of arguments, not {arguments!r:.100}")
        queue = self._queue()
        return await queue.put_many([self._new_job(queue, one) for one in arguments])

    def _queue(self) -> Queue:
        queues = innermost_log() if self._queues is None else self._queues
        if queues is None:
            name = self._function.__name__
            raise InvalidInput(
                f"no log is open here for {name}.put: write {name}.on(log).put(…), or call it inside "
                "'async with everlog.connect(…) as log'"
            )
        return queues(self._function.queue)

    def _new_job(self, queue: Queue, arguments: Mapping[str, Any]) -> NewJob:
        if not isinstance(arguments, Mapping):
            raise InvalidInput(f"the arguments of {self._function.__name__} come as a mapping, not {arguments!r:.100}")
        packed = self._function.arguments.pack(arguments)
        options = self._options
        key: Any = self._function.key_of(packed) if options.key is None else options.key
        if key is None:
            key = queue.store.clock.new_id()
        elif self._function.kind:
            key = KindKey(self._function.kind, key)
        return NewJob(
            key,
            packed.data,
            self._function.priority if options.priority is None else options.priority,
            options.at,
            options.delay,
            options.expires,
            self._function.kind or None,
            options.group,
        )
