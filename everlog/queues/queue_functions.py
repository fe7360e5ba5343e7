"""The functions of one queue: one per kind of job, and at most one for jobs that have no kind."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from everlog.queues.job_function import JobFunction
from everlog.queues.queue import Queue

log = logging.getLogger("everlog.queues")


class QueueFunctions:
    """Finds the function for a job, and says what all of them together need of their queue."""

    def __init__(self, name: str, functions: Sequence[JobFunction]) -> None:
        self.name = name
        self._functions = {function.kind: function for function in functions}

    def find(self, kind: str | None) -> JobFunction | None:
        """The function that does jobs of this kind; None if it is not known here."""
        return self._functions.get(kind or "")

    async def lease_ms(self, queue: Queue) -> int | None:
        """How long a claim leases all that it takes; None: as the queue says.

        One claim takes jobs of several kinds under one lease, which is therefore the longest that one of the functions
        asks for: none loses its job before its own time is over. A job whose worker dies waits for that long, too.
        """
        leases = [function.lease_ms for function in self._functions.values()]
        given = [lease for lease in leases if lease is not None]
        if len(given) == len(leases) or not given:
            return max(given, default=None)
        return max(*given, (await queue.declaration()).options.settings.processing_timeout_ms)

    async def prepare(self, queue: Queue) -> None:
        """Make the queue, and store what the functions declare. What was missed is put before the first claim."""
        declaration = await queue.ensure()
        limit = declaration.options.max_timeouts
        for function in self._functions.values():
            wanted = function.retries.max_attempts
            if wanted is not None and wanted > limit:
                log.warning(
                    "%s asks for %d attempts, but the queue %s gives up after %d: declare it with max_timeouts=%d",
                    function.__name__,
                    wanted,
                    self.name,
                    limit,
                    wanted,
                )
            schedule = function.schedule
            if schedule is not None:
                await queue.schedules.set(function.__name__, **schedule._asdict())
        await queue.schedules.fire()


def by_queue(functions: Sequence[JobFunction]) -> dict[str, QueueFunctions]:
    """Functions, together with those of the same queue."""
    names = dict.fromkeys(function.queue for function in functions)
    return {name: QueueFunctions(name, [one for one in functions if one.queue == name]) for name in names}
