"""Everlog's side of queues, embedded or on a cluster: puts, drains and claims as rounds."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import everlog
from bench.rounds import Laps, Round
from everlog.queues.job import Job, NewJob
from everlog.queues.queue import Queue

T = TypeVar("T")

# Jobs that are put in one call, here and by the others.
PER_CALL = 1_000
# What every job carries, here and with the others.
DATA = "data" * 50


class QueueHost(Protocol):
    """An open log, and its event loop."""

    @property
    def log(self) -> everlog.Everlog: ...

    def run(self, work: Coroutine[Any, Any, T]) -> T: ...


class OwnQueue:
    """Everlog's side: one queue, put into and drained by tasks of one event loop."""

    def __init__(self, side: QueueHost, name: str = "bench") -> None:
        self._side = side
        self._name = name
        self._keys = itertools.count()

    @property
    def _queue(self) -> Queue:
        return self._side.log.queue(self._name)

    def one_by_one(self, jobs: int) -> Round:
        return self._side.run(self._one_by_one(jobs))

    async def _one_by_one(self, jobs: int) -> Round:
        clock, latencies, queue = time.perf_counter, [], self._queue
        started = clock()
        for _ in range(jobs):
            before = clock()
            await queue.put(next(self._keys), DATA)
            latencies.append(clock() - before)
        return Round(jobs, clock() - started, latencies)

    def together(self, jobs: int, delay: timedelta | None = None) -> Round:
        return self._side.run(self._together([next(self._keys) for _ in range(jobs)], delay))

    async def _together(self, keys: list[int], delay: timedelta | None = None) -> Round:
        """As many in one go as the others take in one call."""
        started, queue = time.perf_counter(), self._queue
        for first in range(0, len(keys), PER_CALL):
            await queue.put_many(NewJob(key, DATA, delay=delay) for key in keys[first : first + PER_CALL])
        return Round(len(keys), time.perf_counter() - started)

    def merge(self, jobs: int) -> tuple[Round, Round]:
        """New keys, then the same keys again."""
        keys = [next(self._keys) for _ in range(jobs)]
        inserted = self._side.run(self._together(keys))
        merged = self._side.run(self._together(keys))
        self.drain(jobs, PER_CALL)
        return inserted, merged

    def put_and_drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        """A drain of what it puts itself, before the clock runs."""
        self.together(jobs)
        return self.drain(jobs, concurrency, seconds)

    def drain(self, jobs: int, concurrency: int, seconds: float = 0.0) -> Round:
        """Jobs that take this long, without work for the processor."""
        return self._side.run(self._drain(jobs, concurrency, seconds))

    async def _drain(self, jobs: int, concurrency: int, seconds: float) -> Round:
        laps = Laps(jobs)

        async def work(job: Job) -> None:
            laps.begin()
            if seconds:
                await asyncio.sleep(seconds)
            if laps.see():
                worker.stop()

        worker = self._side.log.worker(everlog.job(self._name)(work), concurrency=concurrency)
        await worker.run()
        stats = await self._queue.stats()
        if worker.counted["done"] != jobs or stats.ready:
            raise RuntimeError(f"{worker.counted['done']:,} of {jobs:,} jobs are done, {stats.ready:,} are left")
        return laps.round

    def claims(self, claims: int, limit: int) -> Round:
        """How long a claim takes; only claims are timed."""
        return self._side.run(self._claims(claims, limit))

    async def _claims(self, claims: int, limit: int) -> Round:
        await self._together([next(self._keys) for _ in range(claims * limit)])
        latencies, queue = [], self._queue
        for _ in range(claims):
            before = time.perf_counter()
            jobs = await queue.claim(limit)
            latencies.append(time.perf_counter() - before)
            if len(jobs) != limit:
                raise RuntimeError(f"a claim got {len(jobs)} jobs, not {limit}")
            await asyncio.gather(*(job.done() for job in jobs))
        return Round(claims, sum(latencies), latencies)
