"""The pipeline: log → Spark → fold → tables.

    ends of the log → plan → one Spark job: each task reads its ranges, folds, writes → publish pointer2 → tag watermark

One such run is a cycle. `pointer2` is the only authority on progress: every start begins right after it, and so does
every try after a cycle that failed, which published nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from everlog.config import Config
from everlog.core.fair_shares import next_ends
from everlog.core.plan import Order
from everlog.core.values import LogOffsets, parse_partition_name, partition_name
from everlog.errors import ReplicationFailed, TopicReplaced, TopicRetired
from everlog.journal.parts import open_parts
from everlog.journal.reader import check_truncation
from everlog.journal.topic_registry import look_again, retired_topics
from everlog.log.port import Bounds, LogTopic
from everlog.log.range_reader import LogRange
from everlog.pipeline.apply import Applied
from everlog.pipeline.meter import Meter
from everlog.pipeline.phases import SlowKey, longest, slowest
from everlog.pipeline.planner import OrderPlanner
from everlog.pipeline.start import Start, find_start, has_changed
from everlog.pipeline.status import PipelineStatus, save_pipeline_status
from everlog.pipeline.task import ApplyTask, warm_up
from everlog.runtime.clock import Clock, Stopwatch, SystemClock
from everlog.runtime.failpoints import failpoint
from everlog.runtime.notices import notify, watermark_notice
from everlog.runtime.portal import Portal
from everlog.runtime.retry import Backoff
from everlog.runtime.supervisor import LoopSupervisor
from everlog.spark.jobs import SparkJobs, explain
from everlog.spark.process import for_tasks
from everlog.spark.session import make_session, open_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("everlog.pipeline")

HEARTBEAT_S = 5.0
# How long it may take until a topic that was retired is left out.
LOOK_S = 2.0
IDLE_S = 0.2
STATUS_S = 3.0
# How long a stop waits for the cycle under way before it gives it up.
GRACE_S = 5.0
CANCEL_S = 0.5
# A task costs more than this many records do: ranges of fewer share one.
RECORDS_PER_TASK = 500
JOBS = "everlog-pipeline"
DAEMON = "everlog.pipeline.daemon"
SPARK_OUTPUT = "spark.log"

_decode_report = msgspec.json.Decoder(Applied).decode


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one run of the pipeline takes: ranges of the log, and the order of what is in them."""

    ranges: Sequence[LogRange]
    orders: Mapping[tuple[str, int], Order]

    @property
    def topics(self) -> dict[str, LogTopic]:
        return {one.topic.name: one.topic for one in self.ranges}

    @property
    def ends(self) -> LogOffsets:
        return {one.name: one.end for one in self.ranges}

    def shares(self) -> list[list[LogRange]]:
        """The ranges of each task: a large one has a task of its own, small ones share as few as are worth it."""
        large = [[one] for one in self.ranges if one.end - one.start >= RECORDS_PER_TASK]
        small = [one for one in self.ranges if one.end - one.start < RECORDS_PER_TASK]
        tasks = -(-sum(one.end - one.start for one in small) // RECORDS_PER_TASK)
        return large + [small[number::tasks] for number in range(tasks)]


class Replicator:
    """Folds the log into the tables until it is stopped.

    >>> pipeline = Replicator(load_config("everlog-data"))  # doctest: +SKIP
    >>> pipeline.start(); pipeline.wait_until_replicated(60); pipeline.stop()  # doctest: +SKIP
    """

    def __init__(
        self,
        config: Config,
        *,
        accept_loss: bool = False,
        session: SparkSession | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._accept_loss = accept_loss
        self._session = session
        self._context = None if session is None else session.sparkContext
        self._own_session = session is None
        self._clock = clock or SystemClock()
        self._meter = Meter(self._clock)
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        self._start = Start()
        # The next offset to read of every partition.
        self._next_offsets: LogOffsets = {}
        self._looked = 0.0
        # Whether the log may hold more than was replicated.
        self._arrived = True
        self.failure: ReplicationFailed | None = None

    def start(self) -> None:
        """Start Spark and the loop; returns once it runs."""
        self._portal = Portal()
        try:
            parts = self._portal.call(open_parts(self._config, clock=self._clock))
            self._log, self._store = parts.log, parts.store
            self._meter.enter("starting")
            self._portal.call(self._save_status())
            if self._context is None:
                output = self._config.folder / SPARK_OUTPUT
                self._context = open_context(self._config, output=output, daemon=DAEMON)
            self._jobs = SparkJobs(self._context, JOBS)
            # The first task is the slowest: it starts what the others use.
            self._warming = threading.Thread(target=self._warm_up, name="everlog-pipeline-warm-up", daemon=True)
            self._warming.start()
            self._portal.call(self._start_heartbeat())
            self._portal.call(self._begin())
        except BaseException:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="everlog-pipeline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish or give up the cycle under way, and let go of everything."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(GRACE_S)
            while self._thread.is_alive():  # it may be about to begin a job
                self._jobs.cancel()
                self._thread.join(CANCEL_S)
            if self._warming.is_alive():  # no worker of Spark was free
                self._jobs.cancel()
            self._thread = None
            self._release()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it is stopped; False if the time ran out."""
        return self._stopping.wait(timeout_s)

    @property
    def session(self) -> SparkSession:
        """Spark's session, once it is started: others may run their queries on it. It is made when it is asked for."""
        assert self._context is not None
        if self._session is None:
            self._session = make_session(self._context)
        return self._session

    @property
    def status(self) -> PipelineStatus:
        return self._meter.status()

    def wait_until_replicated(self, timeout: float | None = None) -> bool:
        """Wait until all that is in the log now is in the tables; False if it is stopped or the time runs out first."""
        ends = self._portal.call(self._log_ends())
        with self._progress:
            self._progress.wait_for(lambda: self._stopping.is_set() or self._reached(ends), timeout)
            return self._reached(ends)

    async def _log_ends(self) -> LogOffsets:
        journal, passed = self._config.journal, self._meter.left_out.keys() | self._start.retired
        return {
            partition_name(topic.name, partition): (await self._log.bounds(topic, partition)).end
            for topic in await self._log.topics()
            if journal.includes(topic.name) and topic.name not in passed
            for partition in range(topic.partitions)
        }

    def _reached(self, ends: LogOffsets) -> bool:
        return all(self._next_offsets.get(name, 0) >= end for name, end in ends.items())

    # The loop

    def _warm_up(self) -> None:
        with suppress(Exception):  # what is wrong with Spark shows in the first cycle
            self._jobs.run(warm_up, 1)

    def _run(self) -> None:
        """The thread. It gives up only if Spark is gone, or if it cannot even say what went wrong."""
        try:
            self._replicate()
        except Exception as error:
            logger.exception("the pipeline cannot go on")
            self._give_up(error)
        finally:
            self._end()

    def _replicate(self) -> None:
        """One cycle after the other; after an error, begin again from pointer2, with pauses that grow."""
        while self._warming.is_alive() and not self._stopping.is_set():
            self._warming.join(IDLE_S)  # a task beside it would start a worker of its own
        pause = Backoff(self._config.pipeline.min_retry_s, self._config.pipeline.max_retry_s)
        begun, checked = True, self._clock.monotonic()
        while not self._stopping.is_set():
            try:
                if not begun:
                    self._portal.call(self._begin())
                begun = True
                if self._run_cycle():
                    pause.reset()
                elif self._clock.monotonic() - checked > LOOK_S:
                    checked = self._clock.monotonic()
                    self._check_spark()
            except Exception as error:
                if self._stopping.is_set():
                    return  # its job was cancelled
                begun = False
                self._note(error)
                if not self._jobs.alive:
                    self._give_up(error)
                    return
                self._stopping.wait(pause.next())

    def _check_spark(self) -> None:
        if not self._jobs.alive:
            raise ReplicationFailed("Spark ended while there was nothing to replicate")

    async def _begin(self) -> None:
        """Begin right after pointer2, with all topics that there are now."""
        start = await find_start(self._log, self._store, self._config, self._clock, accept_loss=self._accept_loss)
        self._start, self._looked, self._arrived = start, self._clock.monotonic(), True
        self._task_config = for_tasks(self._config)  # it may read files: not in every cycle
        self._meter.left_out = start.left_out
        self._advance(start.offsets)
        self._planner = OrderPlanner(self._store, self._config.tags, self._clock)
        await self._publish_watermark()  # what the pipeline before this one did not get to
        self._meter.enter("running")  # before a cycle can be done: what is replicated was replicated by one that runs
        await self._save_status()

    def _advance(self, offsets: LogOffsets) -> None:
        with self._progress:
            self._next_offsets |= offsets
            self._progress.notify_all()

    def _run_cycle(self) -> bool:
        """One cycle: decide the order, apply everywhere, then publish. False if there is nothing to do."""
        started, watch = self._clock.monotonic(), Stopwatch(self._clock.monotonic)
        cycle = self._portal.call(self._plan())
        if cycle is None:
            return False
        if self._stopping.is_set():
            return False
        watch.lap("plan")
        failpoint("cycle.planned")
        topics = {name: self._start.topics[name] for name in cycle.topics}
        shares = cycle.shares()
        found = self._jobs.run(ApplyTask(self._task_config, topics, shares, cycle.orders), len(shares))
        reports = {name: _decode_report(report) for name, report in found}
        watch.split(longest(report.phases for report in reports.values()), rest="spark")
        self._meter.wrote(reports.values())
        raise_failures(reports)
        failpoint("cycle.applied")
        self._portal.call(self._publish(cycle))
        watch.lap("publish")
        failpoint("cycle.published")
        self._portal.call(self._publish_watermark())
        watch.lap("watermark")
        failpoint("cycle.watermark")
        seconds = self._clock.monotonic() - started
        self._meter.cycle(reports.values(), seconds, watch.seconds, self._slowest(reports.values()))
        self._advance(cycle.ends)
        if self._meter.due():
            self._portal.call(self._save_status())
        return True

    async def _plan(self) -> Cycle | None:
        """What the next cycle takes, with its order. None, after a moment's wait, if there is nothing."""
        await self._look_at_topics()
        if not self._arrived:
            self._arrived = await self._log.wait_for_records(self._waited_for(), IDLE_S)
            if not self._arrived:
                return None
        starts = dict(self._next_offsets)
        ends = next_ends(starts, await self._find_ends(), self._config.pipeline.max_cycle_records)
        self._arrived = bool(ends)
        if not ends:
            return None
        failpoint("cycle.started")
        ranges = [LogRange(*self._partition(name), starts[name], end) for name, end in ends.items()]
        await self._check_topics({one.topic.name: one.topic for one in ranges})
        return Cycle(ranges, await self._planner.prepare(ends, starts))

    async def _look_at_topics(self) -> None:
        """Begin anew if topics came, went or were retired; looked at now and then."""
        now = self._clock.monotonic()
        if now - self._looked >= min(LOOK_S, self._log.listing_s):
            # Also what no arrival tells of is looked for: a transaction's end takes an offset, and is no record.
            self._looked, self._arrived = now, True
            if await has_changed(self._start, self._log, self._store, self._config):
                await self._begin()

    def _waited_for(self) -> dict[LogTopic, list[int]]:
        """The next offset to read of every partition, by topic."""
        return {
            topic: [self._next_offsets[partition_name(topic.name, number)] for number in range(topic.partitions)]
            for topic in self._start.found.values()
        }

    def _partition(self, name: str) -> tuple[LogTopic, int]:
        topic, partition = parse_partition_name(name)
        return self._start.found[topic], partition

    async def _find_ends(self) -> LogOffsets:
        """Where the partitions end. LogTruncated unless each of them still holds the next offset to read."""
        names = list(self._start.offsets)
        found = await asyncio.gather(*(self._log.bounds(*self._partition(name)) for name in names))
        ends: LogOffsets = {}
        for name, bounds in zip(names, found, strict=True):
            (topic, partition), place = self._partition(name), self._next_offsets[name]
            end = bounds.end
            if end < place:  # it may only be a leader that has just been elected
                end = await self._log.end(topic, partition, reach=place)
            check_truncation(topic.name, partition, Bounds(bounds.start, end), place - 1)
            ends[name] = end
        return ends

    async def _check_topics(self, topics: Mapping[str, LogTopic]) -> None:
        """One that was made again must not be folded, nor one that was retired: nothing waits for its events."""
        found, retired = await asyncio.gather(self._log.find_topics(topics.keys()), retired_topics(self._store))
        for name, topic in topics.items():
            now = found.get(name) or await look_again(self._log, name)
            if now is None or now.id != topic.id:
                happened = "deleted" if now is None else "made again"
                raise TopicReplaced(f"the topic {name} was {happened} while it was being replicated")
            if name in retired:
                raise TopicRetired(self._config.journal.short(name))

    async def _publish(self, cycle: Cycle) -> None:
        """All of the cycle is in the tables: pointer2 says so, if the topics are still the same."""
        await self._check_topics(cycle.topics)
        pointers = {(one.topic.name, one.partition): one.end - 1 for one in cycle.ranges}
        await self._store.publish(pointers, self._clock.now_ms())

    async def _publish_watermark(self) -> None:
        await self._planner.publish()
        notify(watermark_notice(self._config.where))
        self._meter.tags_wait_for = self._planner.holding

    def _slowest(self, reports: Iterable[Applied]) -> list[SlowKey]:
        """The cycle's slowest journals, with the names of their topics as people know them."""
        found = slowest(key for report in reports for key in report.slowest)
        return [msgspec.structs.replace(key, topic=self._config.journal.short(key.topic)) for key in found]

    # What others see of it

    def _note(self, error: Exception) -> None:
        self._meter.error(explain(error))
        logger.error("%s; trying again", self._meter.status().last_error)
        self._portal.call(self._save_status())

    def _give_up(self, error: Exception) -> None:
        where = self._config.folder / SPARK_OUTPUT
        self.failure = ReplicationFailed(
            f"Spark is gone ({explain(error)}): see {where}, then start the pipeline again"
        )
        logger.error("%s", self.failure)
        self._meter.error(str(self.failure))
        self._stopping.set()

    def _end(self) -> None:
        with self._progress:
            self._progress.notify_all()
        self._meter.enter("stopped")
        self._portal.call(self._save_status())

    async def _start_heartbeat(self) -> None:
        self._loops = LoopSupervisor(clock=self._clock, logger=logger)
        self._loops.start("pipeline status", self._beat)

    async def _beat(self) -> None:
        """Also in a long cycle others must see that the pipeline is alive."""
        while True:
            await asyncio.sleep(HEARTBEAT_S / 5)
            if self._meter.age() > HEARTBEAT_S:
                await self._save_status()

    async def _save_status(self) -> None:
        """Save the status. A slow or broken store must not hold up the pipeline."""
        status = self._meter.status()
        saving = save_pipeline_status(self._store, status, status.updated_ms)
        try:
            await asyncio.wait_for(saving, STATUS_S)
        except Exception as error:
            logger.warning("the status could not be saved: %s", str(error) or "no answer in time")

    def _release(self) -> None:
        with ExitStack() as stack:  # all of it, even if some of it fails
            stack.callback(self._portal.close)
            if self._own_session and self._context is not None:
                if self.failure is None:  # else there is nothing left to stop
                    stack.callback(self._context.stop)
                self._session = self._context = None
            if hasattr(self, "_store"):
                stack.callback(lambda: self._portal.call(self._log.close()))
                stack.callback(lambda: self._portal.call(self._store.close()))
            if hasattr(self, "_loops"):
                stack.callback(lambda: self._portal.call(self._loops.stop()))


def raise_failures(reports: Mapping[str, Applied]) -> None:
    """A cycle counts only as a whole: name the first journal that failed, and how many more there are."""
    failed = [
        f"{name} {journal_id}".rstrip() + f": {reason}"
        for name, report in reports.items()
        for journal_id, reason in report.failed.items()
    ]
    if failed:
        raise ReplicationFailed(failed[0] + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""))
