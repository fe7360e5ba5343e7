"""Heartbeats in a thread of their own: a job that keeps the event loop busy must not lose its lease for that.

The invariant: a job that is watched stays watched until it ends or is told to stop, whatever is raised in the thread.
The loop begins again, with a new connection to the store, and beats at once for those whose beats have failed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from everlog.errors import EverlogError, QueueNotFound
from everlog.queues.operations import BeatAnswer, Handle, Heartbeat
from everlog.queues.port import QueueStore
from everlog.runtime.clock import Clock
from everlog.runtime.lease import BEATS_PER_LEASE
from everlog.runtime.supervisor import LoopRecord, LoopStatus, outcome_of, run_in_thread

log = logging.getLogger("everlog.queues")

MAX_SLEEP_S = 3600.0
MIN_RETRY_S = 0.05
MAX_RETRY_S = 1.0
OnStop = Callable[[BeatAnswer], None]


class _Watched(NamedTuple):
    queue: str
    interval_s: float
    next_beat: float
    on_stop: OnStop


class Heartbeats:
    """Beats for all jobs of a worker. In their thread, `on_stop` is called when a job is lost or must stop."""

    def __init__(self, open_store: Callable[[], QueueStore], clock: Clock) -> None:
        self._open_store = open_store
        self._clock = clock
        self._watched: dict[tuple[str, Handle], _Watched] = {}
        self._lock = threading.RLock()  # taken for every job: a condition's own `with` would take longer
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._record = LoopRecord("heartbeats", clock=clock, logger=log, min_s=MIN_RETRY_S, max_s=MAX_RETRY_S)
        self._thread = threading.Thread(target=self._run, name="everlog-heartbeats", daemon=True)
        self._started = False
        self._sleeps_until = 0.0

    def watch(self, queue: str, handle: Handle, lease_ms: int, on_stop: OnStop) -> None:
        """Beat for a job from now on."""
        interval_s = lease_ms / 1000 / BEATS_PER_LEASE
        next_beat = self._clock.monotonic() + interval_s
        with self._lock:
            assert not self._closed
            self._watched[queue, handle] = _Watched(queue, interval_s, next_beat, on_stop)
            if not self._started:
                self._thread.start()
                self._started = True
            elif next_beat < self._sleeps_until:
                self._changed.notify()

    def status(self) -> LoopStatus:
        return self._record.status

    def forget(self, queue: str, handle: Handle) -> None:
        with self._lock:
            self._watched.pop((queue, handle), None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._started:
            self._thread.join()

    def _run(self) -> None:
        run_in_thread(self._record, self._run_once, self._rest)

    def _run_once(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._beat_on())

    def _rest(self, seconds: float) -> bool:
        """Wait; whether to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)
            return not self._closed

    async def _beat_on(self) -> None:
        store = self._open_store()
        try:
            while (due := self._next_due()) is not None:
                ends = await asyncio.gather(*(outcome_of(self._beat(store, *one)) for one in due))
                failed = [(one, end) for one, end in zip(due, ends, strict=True) if isinstance(end, BaseException)]
                if failed:
                    self._beat_soon([one for one, _ in failed])
                    raise failed[0][1]
        finally:
            await store.close()

    def _beat_soon(self, failed: Sequence[tuple[Handle, _Watched]]) -> None:
        """Beats that failed for no reason of ours are tried again as soon as the loop runs again."""
        with self._lock:
            for handle, found in failed:
                if (found.queue, handle) in self._watched:
                    self._watched[found.queue, handle] = found

    def _next_due(self) -> list[tuple[Handle, _Watched]] | None:
        """Blocks until some beats are due: this thread has nothing else to do. None at the end."""
        with self._changed:
            while not self._closed:
                now = self._clock.monotonic()
                due = [(key, found) for key, found in self._watched.items() if found.next_beat <= now]
                if due:
                    for key, found in due:
                        self._watched[key] = found._replace(next_beat=now + found.interval_s)
                    return [(handle, found) for (_, handle), found in due]
                nearest = min((found.next_beat for found in self._watched.values()), default=now + MAX_SLEEP_S)
                self._sleeps_until = nearest
                self._changed.wait(nearest - now)
        return None

    async def _beat(self, store: QueueStore, handle: Handle, watched: _Watched) -> None:
        """One beat. An error of ours is an outage, and the next beat may go well."""
        try:
            answer = await store.execute(watched.queue, Heartbeat(handle))
        except QueueNotFound:  # it was deleted, and its jobs with it
            answer = BeatAnswer("LEASE_LOST")
        except EverlogError as error:
            self._record.note(f"no heartbeat for {handle.entry} of {watched.queue}", error)
            return
        assert isinstance(answer, BeatAnswer)
        if answer.ack != "OK" or answer.stop is not None:
            with self._changed:
                known = self._watched.pop((watched.queue, handle), None) is not None
            if known:  # else the job ended meanwhile, and its lease with it
                watched.on_stop(answer)
