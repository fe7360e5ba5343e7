"""A worker: claims jobs, lets `job_runner` run their functions, and reports how it went.

A job is leased; a thread, one for each queue, keeps the leases while the functions run. A job that loses its lease is
cancelled, for another worker has it then. A worker that stops lets its jobs finish for a while, then gives the rest
back. The schedules of its queues are fired by a loop of their own, whatever becomes of the jobs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from everlog.config.queue_options import MAX_CLAIM, QueueOptions
from everlog.errors import EverlogError, LeaseLost
from everlog.queues.absence import outlast_absence
from everlog.queues.arguments import check_limit, check_seconds, check_text
from everlog.queues.done_reports import DoneReports
from everlog.queues.heartbeat import Heartbeats
from everlog.queues.job import Job
from everlog.queues.job_function import JobFunction
from everlog.queues.job_runner import JobOutcome, JobRunner, StopCause
from everlog.queues.middleware import JobMiddleware
from everlog.queues.open_logs import enter_log, leave_log
from everlog.queues.operations import BeatAnswer, Handle
from everlog.queues.port import POLL_S, QueueStore
from everlog.queues.queue import Queue
from everlog.queues.queue_functions import QueueFunctions
from everlog.queues.scheduler import Scheduler
from everlog.queues.upkeep import TEND_S
from everlog.runtime.supervisor import LoopStatus, LoopSupervisor, asks_to_end, log_failure, outcome_of

log = logging.getLogger("everlog.queues")

PASS_S = 60.0
RETRY_S = 1.0
MAX_RETRY_S = 5.0
MAX_REPORTS = 5


class WorkerSlots:
    """How many more jobs may run. A job gives its place back once, however often that is said."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken: set[Handle] = set()
        self._some = asyncio.Event()
        self._some.set()

    @property
    def free(self) -> int:
        return self._places - len(self._taken)

    async def wait(self) -> None:
        """Until there is room for one."""
        await self._some.wait()

    def take(self, handle: Handle) -> None:
        self._taken.add(handle)
        if not self.free:
            self._some.clear()

    def give(self, handle: Handle) -> None:
        if handle in self._taken:  # else its place may be another one's by now
            self._taken.remove(handle)
            self._some.set()


class Worker:
    """Runs the jobs of one or more queues, `concurrency` at a time for each queue, whatever their kinds are.

    `middleware` is called around every job, the first one outermost. `chance`: where the jitter of retries comes from.

    >>> worker = Worker(log.queues, [send])            # doctest: +SKIP
    >>> await worker.run()                             # doctest: +SKIP
    """

    def __init__(
        self,
        store: QueueStore,
        jobs: Sequence[JobFunction] | JobFunction,
        *,
        concurrency: int = 10,
        poll_s: float = POLL_S,
        grace_s: float = 30.0,
        name: str | None = None,
        options: Mapping[str, QueueOptions] | None = None,
        middleware: Sequence[JobMiddleware] = (),
        chance: random.Random | None = None,
    ) -> None:
        check_limit("the number of jobs that a worker runs at a time is", concurrency, MAX_CLAIM)
        check_seconds("poll_s", poll_s)
        check_seconds("grace_s", grace_s)
        check_text("the name of a worker", "" if name is None else name)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{store.clock.new_id()[:8]}"
        self.counted: Counter[str] = Counter()
        self._store = store
        self._options = options or {}
        self._runner = JobRunner(jobs, lambda: self._threads, middleware=middleware, chance=chance)
        self._concurrency = concurrency
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._heartbeats = {name: Heartbeats(name, store.sibling, store.clock) for name in self._runner.queues}
        self._threads = ThreadPoolExecutor(concurrency * len(self._runner.queues), thread_name_prefix="everlog-job")
        self._loops = LoopSupervisor(clock=store.clock, logger=log)
        self.scheduler = Scheduler(lambda: store, self._queue_names, self._loops, look_s=poll_s)
        self.ready = False  # whether it has begun: what its functions declare is stored
        self._stopping = asyncio.Event()
        self._running: dict[asyncio.Task[None], StopCause | None] = {}
        self._reporting: set[asyncio.Task[None]] = set()  # of these, the functions have ended
        self._done = DoneReports(store)

    @property
    def running(self) -> int:
        """How many jobs run now."""
        return len(self._running)

    def status(self) -> list[LoopStatus]:
        """How the loops of this worker are: one that failed is begun again, and says here why."""
        return [*self._loops.status(), *(found.status() for found in self._heartbeats.values())]

    async def _queue_names(self) -> list[str]:
        return list(self._runner.queues)

    def _queue(self, name: str) -> Queue:
        return Queue(name, self._store, self._options.get(name))

    def stop(self) -> None:
        """Take no more jobs; `run` returns when those under way have ended."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until `stop`."""
        enter_log(self._queue)  # its loops inherit that, and so does every job: one job puts another one here
        try:
            for functions in self._runner.queues.values():
                queue = self._queue(functions.name)
                prepare = partial(functions.prepare, queue)
                await prepare()
                serve = partial(self._serve, functions, queue, WorkerSlots(self._concurrency))
                claims = partial(outlast_absence, self._store, queue.name, serve, returned=prepare)
                upkeep = partial(outlast_absence, self._store, queue.name, partial(self._tend, queue))
                self._loops.start(f"claims of {queue.name}", claims, min_s=RETRY_S, max_s=MAX_RETRY_S)
                self._loops.start(f"upkeep of {queue.name}", upkeep, min_s=RETRY_S, max_s=TEND_S)
            self.scheduler.start()
            self.ready = True
            await self._stopping.wait()
        finally:
            leave_log(self._queue)
            await self._loops.stop()
            await self._end_jobs()
            for heartbeats in self._heartbeats.values():
                await asyncio.to_thread(heartbeats.close)
            self._threads.shutdown()

    async def _end_jobs(self) -> None:
        """A while for what runs, then the rest is released: it waits again at once, uncounted."""
        if self._running:
            log.info("%d jobs run still: they have %.0f s", len(self._running), self._grace_s)
            await asyncio.wait(list(self._running), timeout=self._grace_s)
        for task in self._running:
            self._cancel(task, "shutdown")
        if self._running:
            await asyncio.wait(list(self._running))

    async def _serve(self, functions: QueueFunctions, queue: Queue, room: WorkerSlots) -> None:
        """Claim and start jobs of one queue. A pass ends when there is nothing, or after a minute."""
        clock = self._store.clock
        fast_only, pass_ends = False, clock.monotonic() + PASS_S
        while True:
            await room.wait()
            if clock.monotonic() >= pass_ends:
                fast_only, pass_ends = False, clock.monotonic() + PASS_S
            jobs = await self._claim(functions, queue, room.free, fast_only)
            for job in jobs:
                self._start(job, room)
            if jobs:
                fast_only = fast_only or any(job.goes_first for job in jobs)
            else:
                fast_only = False
                await self._store.wait(queue.name, self.name, self._poll_s)
                pass_ends = clock.monotonic() + PASS_S

    async def _claim(self, functions: QueueFunctions, queue: Queue, count: int, fast_only: bool) -> list[Job]:
        """Claim jobs. If the worker stops meanwhile, the store may have leased them already: they are given back."""
        lease = _seconds(await functions.lease_ms(queue))
        claiming = queue.claim(count, owner=self.name, lease=lease, fast_only=fast_only)
        claim = asyncio.create_task(outcome_of(claiming))
        try:
            return _raised(await asyncio.shield(claim))
        except asyncio.CancelledError as error:
            if asks_to_end(error):
                await self._give_back(queue, claim)
            raise

    async def _give_back(self, queue: Queue, claim: asyncio.Task[list[Job] | BaseException]) -> None:
        """Release what a claim under way brings. If that fails, the leases end by themselves."""
        try:
            async with asyncio.timeout(self._grace_s):
                jobs = _raised(await claim)
                ends = await asyncio.gather(*(outcome_of(queue.release(job)) for job in jobs))
            failed = [end for end in ends if isinstance(end, BaseException)]
            if len(ends) > len(failed):
                self.counted["released"] += len(ends) - len(failed)
            if failed:
                raise failed[0]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            log_failure(log, f"{queue.name}: the last claim was not given back", error)

    def _start(self, job: Job, room: WorkerSlots) -> None:
        loop, heartbeats = asyncio.get_running_loop(), self._heartbeats[job.queue.name]
        task = asyncio.create_task(self._run_job(job, room))
        self._running[task] = None
        room.take(job.handle)

        def stop_job(answer: BeatAnswer) -> None:
            cause: StopCause = answer.stop if answer.ack == "OK" and answer.stop is not None else "lost"
            job.stopping = True  # plain functions look at it: a thread cannot be cancelled
            loop.call_soon_threadsafe(self._cancel, task, cause)

        def ended(_: asyncio.Task[None]) -> None:
            del self._running[task]
            self._reporting.discard(task)
            room.give(job.handle)
            if job not in self._done:
                heartbeats.forget(job.handle)

        task.add_done_callback(ended)
        heartbeats.watch(job.handle, job.row.lease_ms, stop_job)

    def _cancel(self, task: asyncio.Task[None], cause: StopCause) -> None:
        """Stop a function. Too late once it has ended: what is told about it then must not be cut off."""
        if task not in self._reporting and task in self._running and self._running[task] is None:
            self._running[task] = cause
            task.cancel()

    async def _run_job(self, job: Job, room: WorkerSlots) -> None:
        """Run the function once, and report how it went. Nothing that it raises ends the worker."""
        try:
            outcome = await self._runner.run(job, self._stop_cause)
        finally:
            self._reporting.add(_this_task())
            room.give(job.handle)
        if outcome.name == "done" and not outcome.keeps_result:
            if self._done.add(job):
                await self._report_done(job.queue.name)
            return
        await asyncio.sleep(0)  # the next claim comes up meanwhile: it and the report then share a commit
        await self._report(job, outcome)

    async def _report_done(self, queue: str) -> None:
        """Report all jobs that end in this turn of the loop. What fails is tried again, as any other report is."""
        failed = []
        for job, error in await self._done.report(queue):
            if error is None:
                self.counted["done"] += 1
                self._settle(job)
            else:
                failed.append(self._report_again(job, error))
        if failed:
            await asyncio.gather(*failed)

    async def _report_again(self, job: Job, error: BaseException) -> None:
        try:
            await self._report(job, JobOutcome("done", partial(job.queue.done, job)), error)
        finally:
            self._settle(job)

    def _settle(self, job: Job) -> None:
        self._done.settle(job)
        self._heartbeats[job.queue.name].forget(job.handle)

    def _stop_cause(self) -> StopCause | None:
        """Why the job of the running task was stopped, if it was."""
        return self._running.get(_this_task())

    async def _report(self, job: Job, found: JobOutcome, failed: BaseException | None = None) -> None:
        """Report how it went; again, if that may help. If that fails, the lease ends and the job runs again.

        `failed`: how the first try went, if there was one.
        """
        outcome = found.name
        for attempt in range(1, MAX_REPORTS + 1):
            try:
                if attempt == 1 and failed is not None:
                    raise failed
                await found.report()
                break
            except LeaseLost as error:
                outcome = "lost"
                log.warning("%s", error)
                break
            except EverlogError as error:
                log.warning("%s: the end of job %s could not be reported: %s", job.queue.name, job.entry, error)
                if not error.retriable or attempt == MAX_REPORTS:
                    outcome = "unreported"
                    break
                await asyncio.sleep(RETRY_S)
            except BaseException as error:
                if asks_to_end(error):
                    raise
                log_failure(log, f"{job.queue.name}: the end of job {job.entry} could not be reported", error)
                outcome = "unreported"
                break
        self.counted[outcome] += 1

    async def _tend(self, queue: Queue) -> None:
        while True:
            await self._store.tend(queue.name)
            await asyncio.sleep(TEND_S)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _raised(outcome: list[Job] | BaseException) -> list[Job]:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000
