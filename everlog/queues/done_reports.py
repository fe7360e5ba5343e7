"""Says of jobs that they are done: of all that end in one turn of the event loop together, in one call.

Most jobs end well, and nothing but their heartbeats waits for their reports. So the task of the first one reports all,
and the others' tasks end: for a job that takes no time, waiting would be a good part of what a worker does.
"""

from __future__ import annotations

import asyncio

from everlog.errors import LeaseLost, QueueNotFound
from everlog.queues.job import Job
from everlog.queues.operations import Done, QueueAnswer
from everlog.queues.port import QueueStore
from everlog.runtime.supervisor import outcome_of


class DoneReports:
    """What is to be reported, by queue."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._gathered: dict[str, list[Job]] = {}
        self._unreported: set[Job] = set()

    def __contains__(self, job: Job) -> bool:
        """Whether it is not reported yet."""
        return job in self._unreported

    def add(self, job: Job) -> bool:
        """Whether it is the first: whoever adds that one calls `report`."""
        self._unreported.add(job)
        gathered = self._gathered.get(job.queue.name)
        if gathered is None:
            self._gathered[job.queue.name] = [job]
            return True
        gathered.append(job)
        return False

    async def report(self, name: str) -> list[tuple[Job, BaseException | None]]:
        """Report all of this queue that end in this turn; of each what was raised, if anything was."""
        await asyncio.sleep(0)  # the next claim comes up meanwhile: it and the reports then share a commit
        jobs = self._gathered.pop(name)
        found = await outcome_of(self._store.execute_all(name, [Done(job.handle) for job in jobs]))
        answers = [found] * len(jobs) if isinstance(found, BaseException) else found
        return [(job, _error(name, job, answer)) for job, answer in zip(jobs, answers, strict=True)]

    def settle(self, job: Job) -> None:
        """It was reported, or will not be."""
        self._unreported.discard(job)


def _error(name: str, job: Job, answer: QueueAnswer | BaseException) -> BaseException | None:
    if answer == "LEASE_LOST" or isinstance(answer, QueueNotFound):  # with a queue that was deleted its leases go
        return LeaseLost(name, *job.handle)
    return answer if isinstance(answer, BaseException) else None
