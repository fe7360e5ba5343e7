"""Heartbeats in a thread of their own: a job that keeps the event loop busy must not lose its lease for that.

The invariants: a job that is watched stays watched until it ends or is told to stop, whatever is raised in the thread.
And no job waits for another one's beat: each queue has a thread and a connection of its own, and in that thread each
job has at most one beat under way, however long that takes. After an error that is not ours the loop begins again,
with a new connection to the store, and beats at once for those whose beats were under way.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from everlog.errors import EverlogError, QueueNotFound
from everlog.queues.operations import BeatAnswer, Handle, Heartbeat
from everlog.queues.port import QueueStore
from everlog.runtime.clock import Clock
from everlog.runtime.lease import BEATS_PER_LEASE
from everlog.runtime.supervisor import LoopRecord, LoopStatus, asks_to_end, run_in_thread

log = logging.getLogger("everlog.queues")

MAX_SLEEP_S = 3600.0
MIN_RETRY_S = 0.05
MAX_RETRY_S = 1.0
OnStop = Callable[[BeatAnswer], None]


class _Watched(NamedTuple):
    interval_s: float
    next_beat: float  # never, while a beat is under way
    on_stop: OnStop


class Heartbeats:
    """Beats for all jobs that a worker has of one queue. `on_stop` is called in their thread, when a job is lost or
    must stop."""

    def __init__(self, queue: str, open_store: Callable[[], QueueStore], clock: Clock) -> None:
        self._queue = queue
        self._open_store = open_store
        self._clock = clock
        self._watched: dict[Handle, _Watched] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        name = f"heartbeats of {queue}"
        self._record = LoopRecord(name, clock=clock, logger=log, min_s=MIN_RETRY_S, max_s=MAX_RETRY_S)
        self._thread = threading.Thread(target=self._run, name=f"everlog-heartbeats-{queue}", daemon=True)
        self._started = False
        self._sleeps_until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()  # of the thread's loop
        self._failure: BaseException | None = None

    def watch(self, handle: Handle, lease_ms: int, on_stop: OnStop) -> None:
        """Beat for a job from now on."""
        interval_s = lease_ms / 1000 / BEATS_PER_LEASE
        next_beat = self._clock.monotonic() + interval_s
        with self._lock:
            assert not self._closing.is_set()
            self._watched[handle] = _Watched(interval_s, next_beat, on_stop)
            if not self._started:
                self._thread.start()
                self._started = True
            elif next_beat < self._sleeps_until:
                self._wake()

    def status(self) -> LoopStatus:
        return self._record.status

    def forget(self, handle: Handle) -> None:
        with self._lock:
            self._watched.pop(handle, None)

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            self._wake()
        if self._started:
            self._thread.join()

    def _wake(self) -> None:
        """Under the lock: the thread looks again, if its loop runs; else it will as soon as that does."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    def _run(self) -> None:
        run_in_thread(self._record, self._run_once, lambda seconds: not self._closing.wait(seconds))

    def _run_once(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._beat_on())

    async def _beat_on(self) -> None:
        under_way: set[asyncio.Task[None]] = set()
        store = self._open_store()
        self._failure, self._changed = None, asyncio.Event()
        with self._lock:
            self._loop = asyncio.get_running_loop()
        try:
            while not self._closing.is_set():
                self._changed.clear()
                for handle, watched in self._take_due():
                    beat = asyncio.create_task(self._beat(store, handle, watched))
                    under_way.add(beat)
                    beat.add_done_callback(under_way.discard)
                await self._rest()
                if self._failure is not None:
                    raise self._failure
        finally:
            with self._lock:
                self._loop = None
            for beat in under_way:
                beat.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
            await store.close()

    def _take_due(self) -> list[tuple[Handle, _Watched]]:
        """What is due, each job's beat from now on under way; and until when there will be nothing else."""
        with self._lock:
            now = self._clock.monotonic()
            due = [(handle, found) for handle, found in self._watched.items() if found.next_beat <= now]
            for handle, found in due:
                self._watched[handle] = found._replace(next_beat=math.inf)
            nearest = min((found.next_beat for found in self._watched.values()), default=math.inf)
            self._sleeps_until = min(nearest, now + MAX_SLEEP_S)
            return due

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._sleeps_until - self._clock.monotonic()):
                await self._changed.wait()

    async def _beat(self, store: QueueStore, handle: Handle, watched: _Watched) -> None:
        """One beat. An error of ours is an outage, and the next beat may go well; any other ends the loop."""
        next_beat = self._clock.monotonic() + watched.interval_s
        try:
            answer = await self._ask(store, handle)
            if answer is not None and (answer.ack != "OK" or answer.stop is not None):
                self._stop(handle, watched, answer)
        except BaseException as error:
            next_beat = -math.inf
            if asks_to_end(error):
                raise
            self._failure = error
        finally:
            with self._lock:
                if handle in self._watched:
                    self._watched[handle] = watched._replace(next_beat=next_beat)
            self._changed.set()

    async def _ask(self, store: QueueStore, handle: Handle) -> BeatAnswer | None:
        try:
            answer = await store.execute(self._queue, Heartbeat(handle))
        except QueueNotFound:  # it was deleted, and its jobs with it
            return BeatAnswer("LEASE_LOST")
        except EverlogError as error:
            self._record.note(f"no heartbeat for {handle.entry} of {self._queue}", error)
            return None
        assert isinstance(answer, BeatAnswer)
        return answer

    def _stop(self, handle: Handle, watched: _Watched, answer: BeatAnswer) -> None:
        with self._lock:
            known = self._watched.pop(handle, None) is not None
        if known:  # else the job ended meanwhile, and its lease with it
            watched.on_stop(answer)
