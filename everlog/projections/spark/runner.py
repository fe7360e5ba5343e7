"""Projections on Spark: a micro-batch at a time, as a DataFrame, with offsets in the same table as all others.

    views by tag, or the log → foreachBatch → the handler → its rows and the offset, together

As the pipeline: every start has a fresh checkpoint and begins at the stored offset, which is the only authority. A
stale owner is refused with its rows, or, where the handler writes elsewhere, before its next batch.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everlog.config import Config
from everlog.errors import EverlogError, InvalidProjection, OwnershipLost
from everlog.projections.factory import open_offset_store, stores_whole
from everlog.projections.offsets import Offset, show
from everlog.projections.port import Desired, OffsetStore, Report, View, ViewChanged, ViewTransaction
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.save_window import OffsetProgress
from everlog.projections.spark.feeds import SparkFeed, feed_of
from everlog.projections.strategies import OnSpark
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.lease import BEATS_PER_LEASE, Lease, LeaseWatch
from everlog.runtime.portal import Portal
from everlog.runtime.retry import Backoff
from everlog.spark.jobs import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("everlog.projections")

CHECK_S = 0.2


class SparkView:
    """What a handler on Spark gets: the view's tables, without `await`.

    The transaction begins with the first statement: let Spark work first, then write.
    """

    def __init__(self, portal: Portal, begin: Callable[[], Coroutine[Any, Any, View]]) -> None:
        self._portal = portal
        self._begin = begin
        self._view: View | None = None

    def _open(self) -> View:
        if self._view is None:
            self._view = self._portal.call(self._begin())
        return self._view

    def execute(self, statement: str, *values: Any) -> int:
        """Run a statement."""
        return self._portal.call(self._open().execute(statement, *values))

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._portal.call(self._open().fetch(statement, *values))


class SparkProjections:
    """A service: runs projections with `strategy=on_spark()` until it is stopped."""

    def __init__(
        self, config: Config, projections: Sequence[Projection], *, session: SparkSession, clock: Clock | None = None
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._session = session
        self._projections = {one.name: (one, _checked(config, one)) for one in projections}
        self._portal: Portal | None = None
        self.running: dict[str, SparkProjection] = {}

    def start(self) -> None:
        self._portal = portal = Portal()
        try:
            self._store = portal.call(open_offset_store(self._config, clock=self._clock))
        except BaseException:
            portal.close()
            raise
        for name, (one, feed) in self._projections.items():
            running = SparkProjection(self._config, one, feed, self._session, portal, self._store, self._clock)
            self.running[name] = running
            running.start()

    def stop(self) -> None:
        for running in self.running.values():
            running.stop()
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.call(self._store.close())
            portal.close()

    def status(self) -> dict[str, Report]:
        return {name: running.report() for name, running in self.running.items()}


def _checked(config: Config, projection: Projection) -> SparkFeed:
    """What it reads; what cannot work is refused before anything begins."""
    name, strategy = projection.name, projection.strategy
    if not isinstance(strategy, OnSpark):
        raise InvalidProjection(f"{name} has no strategy=on_spark(): run it with 'everlog projections run'")
    feed = feed_of(config, projection.source, strategy.max_events)
    if projection.shape.takes_view and len(feed.keys) > 1:
        raise InvalidProjection(f"{name}: with a view, a projection on Spark has one key: no split")
    if projection.shape.takes_view and not stores_whole(config) and not feed.repeatable:
        raise InvalidProjection(
            f"{name}: a view in Cassandra needs batches that can be repeated as they were: use a tag or slices"
        )
    return feed


class SparkProjection:
    """One projection: one query over all its keys, as long as it owns all of them."""

    def __init__(
        self,
        config: Config,
        projection: Projection,
        feed: SparkFeed,
        session: SparkSession,
        portal: Portal,
        store: OffsetStore,
        clock: Clock,
    ) -> None:
        self._config = config
        self._projection = projection
        self._feed = feed
        self._session = session
        self._portal = portal
        self._store = store
        self._clock = clock
        self._owner = clock.new_id()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"everlog-spark-{projection.name}", daemon=True)
        self._watch = LeaseWatch(config.projections.lease_s)
        self._leases: dict[str, Lease] = {}
        # As they were when the query began: what it has in hand after a command must not count under the new ones.
        self._begun: dict[str, Lease] = {}
        self._desired: dict[str, Desired] = {}
        self._query: StreamingQuery | None = None
        self._checkpoint = Path()
        self._at: str | None = None
        self._batch: str | None = None
        self._state = "new"
        self._handled = 0
        self._restarts = 0
        self._error: Exception | None = None
        self._said: str | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def report(self) -> Report:
        return Report(
            state=self._state,
            seen=max((one.version for one in self._desired.values()), default=0),
            handled=self._handled,
            restarts=self._restarts,
            error=self._said,
            source=self._projection.source.describe(),
            strategy=type(self._projection.strategy).__name__,
            tracks_all=self._feed.tracks_all,
            keys=len(self._feed.keys),
            batch=self._batch,
            updated_ms=self._clock.now_ms(),
        )

    # Its life

    def _run(self) -> None:
        pause = Backoff(self._config.pipeline.min_retry_s, self._config.pipeline.max_retry_s)
        while not self._stopping.is_set():
            handled = self._handled
            try:
                if self._take():
                    self._run_query()
                    continue
            except Exception as error:
                self._said = explain(self._error or error)
                logger.warning("%s on Spark: %s; trying again", self._projection.name, self._said)
                self._error = None
                self._restarts += 1
                if self._handled > handled:
                    pause.reset()
            self._stopping.wait(pause.next() if self._said else self._config.projections.lease_s / BEATS_PER_LEASE)
        self._state = "stopped"
        self._release()

    def _take(self) -> bool:
        """Own every key: those of others are waited for until their leases run out."""
        self._check_version()
        name = self._projection.name
        leases = self._portal.call(self._store.leases(name))
        now = self._clock.monotonic()
        for key in self._feed.keys:
            seen = leases.get(key)
            if seen is not None and seen.owner == self._owner:
                self._leases[key] = seen
                continue
            if seen is not None and self._watch.look(key, seen.sign, now) and seen.owner:
                return False
            lease = self._portal.call(self._store.take(ProjectionId(name, key), self._owner, seen))
            if lease is None:
                return False
            self._leases[key] = lease
        return True

    def _check_version(self) -> None:
        """A view belongs to the version that was the first to run; here no copy of it can be filled."""
        name, version = self._projection.name, self._projection.version
        if not self._projection.has_copies:
            return
        copies = self._portal.call(self._store.update_copies(name, lambda seen: seen.recorded(version)))
        if not copies.is_for(version):
            raise InvalidProjection(
                f"{name}: its view is filled by version {copies.versions[copies.current]!r}, not {version!r}. On Spark "
                "there are no copies: give the new version a name and tables of its own"
            )
        if copies.current:
            raise InvalidProjection(
                f"{name}: its view is read from copy {copies.current}, and on Spark there are no copies: run it with "
                "'everlog projections run', or under another name"
            )

    def _renew(self) -> bool:
        """Keep the leases; False if one is lost, or if a command wants something else."""
        name = self._projection.name
        for key, lease in list(self._leases.items()):
            found = self._portal.call(self._store.renew(lease, self.report()))
            if found is None:
                del self._leases[key]
                return False
            self._leases[key] = found
            if found.epoch != lease.epoch:
                return False
        desired = self._portal.call(self._store.desired(name))
        return {key: one.version for key, one in desired.items()} == {k: d.version for k, d in self._desired.items()}

    def _release(self) -> None:
        for lease in self._leases.values():
            with suppress(EverlogError):
                self._portal.call(self._store.release(lease, self.report()))

    def _run_query(self) -> None:
        """One query, until it fails, is stopped, or must begin anew."""
        name = self._projection.name
        self._desired = self._portal.call(self._store.desired(name))
        paused = any(one.paused for one in self._desired.values())
        self._state = "paused" if paused else "running"
        if not paused:
            self._begin()
        beat = -math.inf  # so that others see at once what runs where
        try:
            while not self._stopping.wait(CHECK_S):
                if self._query is not None and not self._query.isActive:
                    raise self._error or RuntimeError(explain(self._query.exception()))
                if self._clock.monotonic() - beat >= self._config.projections.lease_s / BEATS_PER_LEASE:
                    beat = self._clock.monotonic()
                    if not self._renew():
                        return
        finally:
            if self._query is not None:
                self._query.stop()
                self._query = None
                shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _begin(self) -> None:
        name, self._begun = self._projection.name, dict(self._leases)
        for key in self._feed.keys:
            parts = self._feed.parts(key)
            if parts is not None:
                self._portal.call(self._store.claim(self._begun[key], parts))
        stored = {key: self._portal.call(self._store.load(ProjectionId(name, key))) for key in self._feed.keys}
        self._at = _text(stored[self._feed.keys[0]])
        stream = self._portal.call(self._feed.stream(self._session, stored, self._planned()))
        self._checkpoint = Path(tempfile.mkdtemp(prefix="everlog-projection-"))
        self._query = (
            stream.writeStream.foreachBatch(self._process)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .trigger(processingTime="0 seconds")
            .start()
        )

    # A batch

    def _planned(self) -> str | None:
        """Where a batch ends that was begun from here, and of which some partitions of the view may have got rows."""
        if self._store.stores_whole or not self._projection.shape.takes_view:
            return None
        (key,) = self._feed.keys
        (known,) = [one for one in self._portal.call(self._store.known(self._projection.name)) if one.key == key]
        self._batch = known.report.batch
        begun, end = (None, None) if self._batch is None else json.loads(self._batch)
        return end if end is not None and begun == self._at else None

    def _plan(self, end: str) -> None:
        """Say how far the batch goes before any of it is stored: an owner that repeats it must take the same events."""
        if self._store.stores_whole or not self._projection.shape.takes_view:
            return
        self._batch = json.dumps([self._at, end])
        (lease,) = self._begun.values()
        found = self._portal.call(self._store.renew(lease, self.report()))
        if found is None or found.epoch != lease.epoch:
            raise OwnershipLost(f"{lease.name}-{lease.key}", lease.epoch)

    def _process(self, batch: DataFrame, number: int) -> None:
        """As Spark calls it. The error is kept here: Spark's own copy of it may get lost."""
        try:
            end = written_offset(self._checkpoint, number)
            reached = self._feed.reached(end)
            batch.persist()
            try:
                count = batch.count()
                if count:
                    self._plan(end)
                self._handle(batch, count, reached)
                self._at = _text(next(iter(reached.values())).offset) if reached else self._at
                self._handled += count
                self._said = None
            finally:
                batch.unpersist()
        except Exception as error:
            self._error = error
            raise

    def _handle(self, batch: DataFrame, count: int, reached: Mapping[str, OffsetProgress]) -> None:
        """The handler, unless there is nothing to handle; then the offset, with its rows if it wrote any."""
        if not reached:
            return
        while True:
            try:
                self._attempt(batch, count, reached)
            except ViewChanged:
                continue  # others got on meanwhile
            return

    def _attempt(self, batch: DataFrame, count: int, reached: Mapping[str, OffsetProgress]) -> None:
        first, *others = reached
        written = WrittenBatch(self._store, self._begun[first], reached[first], self._projection.copies)
        try:
            if count:
                view = SparkView(self._portal, written.begin)
                self._projection.handler(*((batch, view) if self._projection.shape.takes_view else (batch,)))
        except BaseException as error:
            self._portal.call(written.undo(error))
            raise
        self._portal.call(written.save())
        for key in others:
            self._portal.call(self._store.save(self._begun[key], reached[key]))


def written_offset(checkpoint: Path, number: int) -> str:
    """Where a batch ends, as its source says it: Spark writes that down first (version, metadata, then the offset)."""
    return (checkpoint / "offsets" / str(number)).read_text().splitlines()[2]


def _text(offset: Offset | None) -> str | None:
    if offset is None or not isinstance(offset, Mapping):
        return None if offset is None else str(show(offset))
    return json.dumps(show(offset), sort_keys=True)


class WrittenBatch:
    """The transaction of a batch, if its handler writes to the view; else the offset alone."""

    def __init__(self, store: OffsetStore, lease: Lease, progress: OffsetProgress, copies: Mapping[str, str]) -> None:
        self._store = store
        self._lease = lease
        self._progress = progress
        self._opening = store.transaction(lease, copies) if store.has_views else None
        self._running: ViewTransaction | None = None

    async def begin(self) -> View:
        assert self._opening is not None
        self._running = await self._opening.__aenter__()
        self._running.savepoint(self._progress.offset)
        return self._running.view

    async def undo(self, error: BaseException) -> None:
        if self._running is not None and self._opening is not None:
            with suppress(type(error)):
                await self._opening.__aexit__(type(error), error, error.__traceback__)

    async def save(self) -> None:
        if self._running is None or self._opening is None:
            await self._store.save(self._lease, self._progress)
            return
        self._running.keep()
        self._running.save(self._progress)
        await self._opening.__aexit__(None, None, None)
