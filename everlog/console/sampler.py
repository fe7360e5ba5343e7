"""The last hour in memory: one sample every few seconds, never more than fit into the hour.

A sample holds totals and levels; rates are made of the difference of two. Totals that went back (a projection that
was started again) count as no progress, never as a negative rate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from everlog.api import Everlog
from everlog.console.observation import Observation, observe
from everlog.console.queue_meter import QueueMeter
from everlog.errors import EverlogError

logger = logging.getLogger("everlog.console")

SAMPLE_INTERVAL_S = 5.0
KEPT_S = 3600.0
RATE_WINDOW_S = 30.0
POINTS = 90
MAX_RATED = 200


class MetricSample(msgspec.Struct, frozen=True, gc=False):
    """Totals (those in TOTALS) and levels (all others) at one moment."""

    time_ms: int
    records: int = 0
    replicated: int = 0
    handled: int = 0
    documents: int = 0
    tagged: int = 0
    lag: int = 0
    lag_seconds: float = 0.0
    tags_lag: int = 0
    projection_lag: int = 0
    ready: int = 0
    dead: int = 0
    cycle_ms: float = 0.0


TOTALS = ("records", "replicated", "handled", "documents", "tagged")


def sample_of(found: Observation) -> MetricSample:
    """What is kept of a look."""
    status, pipeline = found.status, None if found.status is None else found.status.pipeline
    lags = [one.lag.events for one in found.projections if one.lag is not None]
    return MetricSample(
        time_ms=found.time_ms,
        records=found.records,
        replicated=found.replicated,
        handled=sum(one.handled for one in found.projections),
        documents=found.document_events,
        tagged=0 if found.tags is None else found.records - found.tags.lag,
        lag=0 if status is None else status.lag,
        lag_seconds=0.0 if status is None else status.lag_seconds or 0.0,
        tags_lag=0 if found.tags is None else found.tags.lag,
        projection_lag=sum(lags),
        ready=sum(one.ready for one in found.queues),
        dead=sum(one.dead for one in found.queues),
        cycle_ms=0.0 if pipeline is None else pipeline.last_cycle_ms,
    )


def rate(samples: Sequence[MetricSample], total: str, seconds: float = RATE_WINDOW_S) -> float | None:
    """How much a total grew per second in the last seconds; None while that is unknown.

    >>> rate([MetricSample(0, records=0), MetricSample(10_000, records=50)], "records")
    5.0
    """
    if len(samples) < 2:
        return None
    last = samples[-1]
    first = next(one for one in samples if one.time_ms >= last.time_ms - seconds * 1000)
    if first is last:
        first = samples[-2]
    grown, passed = getattr(last, total) - getattr(first, total), (last.time_ms - first.time_ms) / 1000
    return max(0.0, grown / passed) if passed > 0 else None


def series(samples: Sequence[MetricSample], name: str, points: int = POINTS) -> list[float]:
    """The hour as a few numbers, oldest first: rates of a total, the highest of a level. Gaps are left out.

    >>> series([MetricSample(0, lag=1), MetricSample(5000, lag=3), MetricSample(10_000, lag=2)], "lag", points=2)
    [3.0, 2.0]
    """
    if name in TOTALS:
        pairs = pairwise(samples)
        values = [
            max(0.0, (getattr(b, name) - getattr(a, name)) * 1000 / (b.time_ms - a.time_ms))
            for a, b in pairs
            if b.time_ms > a.time_ms
        ]
    else:
        values = [float(getattr(one, name)) for one in samples]
    if len(values) <= points:
        return values
    width = -(-len(values) // points)
    return [max(values[at : at + width]) for at in range(0, len(values), width)]


class Sampler:
    """Looks at everything now and then; the same look serves all callers of about the same time."""

    def __init__(self, log: Everlog, *, interval_s: float = SAMPLE_INTERVAL_S, kept_s: float = KEPT_S) -> None:
        self._log = log
        self._interval_s = interval_s
        self._samples: deque[MetricSample] = deque(maxlen=max(2, round(kept_s / interval_s)))
        self._handled: deque[tuple[int, dict[tuple[str, str], int]]] = deque(
            maxlen=max(2, round(RATE_WINDOW_S / interval_s))
        )
        self.queues = QueueMeter()
        self._looking = asyncio.Lock()
        self._last: Observation | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    @property
    def samples(self) -> list[MetricSample]:
        return list(self._samples)

    def start(self) -> None:
        """Begin; needs a running event loop."""
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.create_task(self._run(), name="everlog-console-sampler")

    async def stop(self) -> None:
        """End; what was kept stays."""
        task, self._task = self._task, None
        if task is not None:
            self._stopping.set()
            await task

    async def latest(self, max_age_s: float = 1.0) -> Observation:
        """A look that is not older than `max_age_s`."""
        async with self._looking:
            now = self._log.parts.clock.now_ms()
            if self._last is None or not 0 <= now - self._last.time_ms <= max_age_s * 1000:
                self._last = await observe(self._log)
            return self._last

    @property
    def last(self) -> Observation | None:
        """The last look, however old; None before the first."""
        return self._last

    def forget(self) -> None:
        """Something was done: the next caller must see it."""
        self._last = None

    async def take(self) -> None:
        """Keep one sample. A look that found no status is not kept: it would look like a log without records."""
        found = await self.latest(-1.0)
        if found.status is not None:
            self._samples.append(sample_of(found))
            rated = found.projections[:MAX_RATED]
            self._handled.append((found.time_ms, {(one.name, one.key): one.handled for one in rated}))
        if found.knows("queues"):
            await self._take_queues(found)

    async def _take_queues(self, found: Observation) -> None:
        """The counters of all queues that this process can count."""
        store = self._log.queues
        names = [one.name for one in found.queues if one.unknown is None]
        try:
            self.queues.note(found.time_ms, {name: await store.totals(name) for name in names})
        except EverlogError as error:
            logger.info("the counters of queues are not known now: %s", error)

    def rate(self, total: str) -> float | None:
        return rate(self._samples, total)

    def handled_rate(self, name: str, key: str) -> float | None:
        """How many events one projection instance handles per second."""
        known = [(time, found[name, key]) for time, found in self._handled if (name, key) in found]
        if len(known) < 2 or known[-1][0] == known[0][0]:
            return None
        (start, before), (end, after) = known[0], known[-1]
        return max(0.0, (after - before) * 1000 / (end - start))

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await self.take()
            except Exception:
                logger.exception("a look at everything failed; the next one is due in %g s", self._interval_s)
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue
