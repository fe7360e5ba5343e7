"""A middleware of our own: a line in the log for each job, and figures for each kind. `everlog work` uses it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from everlog.queues.job import Job
from everlog.queues.job_function import GiveBack
from everlog.queues.middleware import CallNext

log = logging.getLogger("everlog.jobs")


class KindFigures(msgspec.Struct):
    """How the jobs of a kind went: how many, how many of them raised, and how long they took."""

    queue: str
    kind: str | None
    jobs: int = 0
    raised: int = 0
    total_s: float = 0.0
    max_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.queue}/{self.kind}" if self.kind else self.queue

    def add(self, seconds: float, *, raised: bool) -> None:
        self.jobs += 1
        self.raised += raised
        self.total_s += seconds
        self.max_s = max(self.max_s, seconds)

    def __str__(self) -> str:
        raised = f", {self.raised} raised" if self.raised else ""
        return f"{self.name}: {self.jobs} in {self.total_s / self.jobs:.3f} s each, at most {self.max_s:.3f} s{raised}"


class JobLog:
    """Logs how each job ended and how long it took, at level `info`, and when it begins, at level `debug`.

    What a job was given is never logged. A job that is stopped, or given back, has not raised.

    >>> worker = log.worker(jobs, middleware=[everlog.JobLog()])            # doctest: +SKIP
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kinds: dict[tuple[str, str | None], KindFigures] = {}  # only kinds that have a function come here

    @property
    def kinds(self) -> list[KindFigures]:
        """The figures so far, by queue and kind."""
        return sorted(self._kinds.values(), key=lambda one: one.name)

    async def __call__(self, job: Job, call_next: CallNext) -> object:
        log.debug("began", extra=_facts(job))
        started, outcome = self._monotonic(), "raised"
        try:
            result = await call_next(job)
            outcome = "returned"
            return result
        except (GiveBack, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, GiveBack) or (task is not None and task.cancelling()):
                outcome = "stopped"
            raise
        finally:
            self._note(job, outcome, self._monotonic() - started)

    def _note(self, job: Job, outcome: str, seconds: float) -> None:
        name = (job.queue.name, job.kind)
        figures = self._kinds.setdefault(name, KindFigures(*name))
        figures.add(seconds, raised=outcome == "raised")
        if log.isEnabledFor(logging.INFO):
            log.info("%s after %.3f s", outcome, seconds, extra=_facts(job))


def _facts(job: Job) -> dict[str, Any]:
    return {"queue": job.queue.name, "kind": job.kind, "key": job.key, "entry": job.entry, "attempt": job.attempt}
