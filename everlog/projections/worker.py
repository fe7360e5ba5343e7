"""One instance of a projection: one key, one owner, one stream after the other until it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from everlog.errors import EverlogError, OwnershipLost
from everlog.projections.event_stream import (
    EventStream,
    FailingEnvelope,
    Interrupted,
    Prefetch,
    ProgressHub,
    StopSignal,
    StreamCounts,
    describe,
)
from everlog.projections.handlers import HandlerCalls, HandlerSlot
from everlog.projections.lifecycle import ENDED, Lifecycle
from everlog.projections.observers import Observers
from everlog.projections.port import Desired, OffsetStore, Report, View
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.source import Feed
from everlog.projections.strategies import AtLeastOnce, AtMostOnce, ExactlyOnce, Flow, Grouped
from everlog.projections.strategy_loops import (
    run_at_least_once,
    run_at_most_once,
    run_exactly_once,
    run_flow,
    run_grouped,
    run_parallel,
)
from everlog.runtime.clock import Clock
from everlog.runtime.lease import Lease
from everlog.runtime.repeat_log import RepeatLog

log = logging.getLogger("everlog.projections")


class ProjectionWorker:
    """Runs one key for as long as it owns it."""

    def __init__(
        self,
        projection: Projection,
        lease: Lease,
        *,
        feed: Feed,
        store: OffsetStore,
        hub: ProgressHub,
        clock: Clock,
        chance: Callable[[], float],
        timeout_s: float | None,
        owned_until: float | None = None,
        keys: int = 1,
    ) -> None:
        self.id = ProjectionId(lease.name, lease.key)
        self.lease = lease
        self.signal = StopSignal()
        self._projection = projection
        self._feed = feed
        self._store = store
        self._hub = hub
        self._clock = clock
        self._timeout_s = projection.timeout_s if projection.timeout_s is not None else timeout_s
        self._observers = Observers(projection.observers)
        self._life = Lifecycle(projection.restart, chance)
        self._slot = HandlerSlot()
        self._counts = StreamCounts()
        self._failing = FailingEnvelope()
        self._repeats = RepeatLog(log, asyncio.get_running_loop().time)
        self._error: str | None = None
        self._restarts = 0
        self._keys = keys
        self._seen = 0
        self.owned_until = owned_until
        self.outclaimed = False  # whether a later owner of another division has parts of this key
        self._stream: EventStream | None = None
        self._now = asyncio.get_running_loop().time
        self.task = asyncio.create_task(self._run(), name=f"everlog-projection-{self.id}")

    # What the runner says

    def renewed(self, lease: Lease, owned_until: float) -> None:
        """The lease holds until then. A new epoch is a command's: the stream starts again under it."""
        self.owned_until = owned_until
        if self._stream is not None:
            self._stream.owned_until = owned_until
        if lease.epoch != self.lease.epoch:
            self.lease = lease
            self.signal.set("changed")

    def wanted(self, desired: Desired) -> None:
        """What is wanted may have changed."""
        if desired.version != self._seen:
            self.signal.set("changed")

    def report(self) -> Report:
        """How it is, for the store and for `status`."""
        return Report(
            state=self._life.phase,
            seen=self._seen,
            handled=self._counts.handled,
            skipped=self._counts.skipped,
            restarts=self._restarts,
            error=self._failing.error or self._error,
            failing=self._failing.offset,
            attempts=self._failing.attempts,
            source=self._projection.source.describe(),
            strategy=type(self._projection.strategy).__name__,
            tracks_all=self._feed.tracks_all,
            keys=self._keys,
            updated_ms=self._clock.now_ms(),
        )

    # Its life

    async def _run(self) -> None:
        try:
            while self._life.phase not in ENDED:
                await self._run_once()
        finally:
            self._hub.forget(self.id)
            await self._slot.close()

    async def _run_once(self) -> None:
        """One stream, from its start to the decision what follows."""
        if self._life.until is not None:
            await self.signal.wait(max(0.0, self._life.until - self._now()))
        if self.signal.reason in ("stop", "lost"):
            self._life.stop()
            return
        self.signal.clear_change()
        self._life.start(self._now())
        self._observers.started(self.id)
        cause: Exception | None = None
        try:
            await self._run_stream()
        except Interrupted:
            pass
        except OwnershipLost as error:
            cause = await self._lost(error)
        except Exception as error:
            cause = error
        self._end(cause)

    def _end(self, cause: Exception | None) -> None:
        if cause is not None and self.signal.reason in (None, "changed"):
            heard = self._life.fail(self._now())
            self._restarts += 1
            self._error = describe(cause)
            # An envelope's failure was logged with its traceback when it happened.
            error = None if self._failing.offset is not None else cause
            text = f"{self.id} failed, then {self._life.phase}: {self._error}"
            self._repeats.warn("stream", (self._failing.first, type(cause), self._life.phase), text, error)
        elif self.signal.reason in ("stop", "lost"):
            heard = self._life.stop()
        elif self.signal.reason == "changed":
            heard = self._life.begin_anew()
        else:
            heard = self._life.complete()
        if "failed" in heard:
            assert cause is not None
            self._observers.failed(self.id, cause)
        self._observers.stopped(self.id)

    async def _lost(self, error: OwnershipLost) -> Exception | None:
        """Another owner, or only a command of which the runner has not heard yet? The store knows."""
        try:
            lease = (await self._store.leases(self.id.name)).get(self.id.key)
        except EverlogError as unknown:
            return unknown
        if lease is None or lease.owner != self.lease.owner:
            self.signal.set("lost")
            return None
        if lease.epoch == self.lease.epoch:
            return error  # our own time ran out before it could be renewed
        self.lease = lease
        self.signal.set("changed")
        return None

    async def _run_stream(self) -> None:
        self._hub.forget(self.id)  # it may begin further back than where it was
        await self._claim()
        desired = (await self._store.desired(self.id.name)).get(self.id.key, Desired())
        self._seen = desired.version
        if desired.paused:
            self._life.pause()
            await self.signal.wait()
            return
        calls = HandlerCalls(self._projection.shape, self._slot, timeout_s=self._timeout_s, view=self._view())
        try:
            if not isinstance(self._projection.strategy, Flow):
                await calls.start()
            stored = await self._store.load(self.id)
            pages = self._feed.read(self.id.key, stored)
            async with aclosing(Prefetch(pages)) as prefetch:
                await self._process(calls, desired, prefetch)
        finally:
            self._stream = None
            self.signal.on_set(None)
            await self._stop_handler(calls)

    async def _claim(self) -> None:
        """The parts of the source that belong to this key, before it reads where they are."""
        parts = await self._feed.parts(self.id.key)
        self.outclaimed = False
        if parts is not None:
            try:
                await self._store.claim(self.lease, parts)
            except OwnershipLost:
                self.outclaimed = True
                raise

    def _view(self) -> View | None:
        if not self._projection.shape.takes_view:
            return None
        found: View = (
            self._store.view(self._projection.copies) if self._projection.view is None else self._projection.view
        )
        return found

    async def _process(self, calls: HandlerCalls, desired: Desired, prefetch: Prefetch) -> None:
        stream = self._stream = EventStream(
            self._projection,
            self.id,
            feed=self._feed,
            store=self._store,
            lease=self.lease,
            calls=calls,
            signal=self.signal,
            hub=self._hub,
            clock=self._clock,
            observers=self._observers,
            counts=self._counts,
            failing=self._failing,
            repeats=self._repeats,
            skips=desired.skips,
            prefetch=prefetch,
        )
        stream.owned_until = self.owned_until
        self.signal.on_set(prefetch.wake)
        strategy = self._projection.strategy
        if not isinstance(strategy, Flow):
            await stream.replay()
        match strategy:
            case AtLeastOnce() if strategy.parallelism > 1:
                await run_parallel(stream, strategy)
            case AtLeastOnce():
                await run_at_least_once(stream, strategy)
            case Grouped():
                await run_grouped(stream, strategy)
            case AtMostOnce():
                await run_at_most_once(stream, strategy)
            case Flow():
                await run_flow(stream, strategy)
            case ExactlyOnce():
                await run_exactly_once(stream, strategy)

    async def _stop_handler(self, calls: HandlerCalls) -> None:
        try:
            await calls.stop()
        except Exception as error:
            log.warning("%s: the handler's stop failed: %s", self.id, describe(error))
