"""The pipeline: log → Spark → fold → tables.

    source (all topics) → foreachBatch → plan → mapInArrow(apply) → reports → publish pointer2 → tag watermark

`pointer2` is the only authority on progress: every start uses a fresh, throw-away checkpoint and begins right
after it. A batch that fails publishes nothing and is tried again, with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from everlog.config import Config
from everlog.core.head import Topic
from everlog.core.values import LogOffsets, parse_partition_name, partition_name
from everlog.errors import EverlogError, LogTruncated, ReplicationFailed, TopicReplaced, TopicRetired
from everlog.errors.storage import rescue
from everlog.journal.parts import open_parts
from everlog.journal.reader import check_truncation
from everlog.journal.topic_registry import look_again, pin_topic, retired_topics
from everlog.log.factory import make_stream
from everlog.log.port import Log, LogTopic
from everlog.pipeline.apply import Applied
from everlog.pipeline.meter import Meter
from everlog.pipeline.phases import SlowKey, longest, slowest
from everlog.pipeline.planner import OrderPlanner
from everlog.pipeline.status import PipelineStatus, save_pipeline_status
from everlog.pipeline.task import REPORT_SCHEMA, ApplyTask, OffsetRange
from everlog.runtime.clock import Clock, Stopwatch, SystemClock
from everlog.runtime.failpoints import failpoint
from everlog.runtime.portal import Portal
from everlog.runtime.retry import Backoff
from everlog.spark.process import for_tasks
from everlog.spark.session import open_session
from everlog.store.port import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("everlog.pipeline")

HEARTBEAT_S = 5.0
# How long it may take until a topic that was retired is left out.
LOOK_S = 2.0
CHECK_S = 0.2
STATUS_S = 3.0
# A batch of at most this many records is small.
SMALL_BATCH = 2_000
SPARK_OUTPUT = "spark.log"

_decode_report = msgspec.json.Decoder(Applied).decode


@dataclass(slots=True)
class Start:
    """The first offset to read of every partition, the pinned topics, those that are retired, and why others are left
    out."""

    offsets: LogOffsets = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)

    @property
    def passed(self) -> set[str]:
        """Topics of which nothing is read."""
        return self.retired | self.left_out.keys()


async def find_start(log: Log, store: Store, config: Config, clock: Clock, *, accept_loss: bool) -> Start:
    """Begin right after pointer2; a topic that was truncated, replaced or deleted is left out with its reason."""
    start = Start(retired=await retired_topics(store))
    present = {topic.name: topic for topic in await log.topics() if config.journal.includes(topic.name)}
    pinned = [topic.name for topic in await store.pinned() if config.journal.includes(topic.name)]
    missing = [name for name in pinned if name not in present.keys() | start.retired]
    for name, late in zip(missing, await asyncio.gather(*(look_again(log, name) for name in missing)), strict=True):
        if late is None:
            start.left_out[name] = f"it is not in the log any more: {rescue(config.journal.short(name))}"
        else:  # it was made and pinned since we looked
            present[name] = late
    for name, found in present.items():
        if name in start.retired:
            continue
        try:
            topic = await pin_topic(store, found, config, clock)
            start.offsets |= await _offsets(log, store, found, topic, clock, accept_loss=accept_loss)
            start.topics[name] = topic
        except (LogTruncated, TopicReplaced) as error:
            start.left_out[name] = str(error)
    return start


async def _offsets(
    log: Log, store: Store, found: LogTopic, topic: Topic, clock: Clock, *, accept_loss: bool
) -> LogOffsets:
    offsets: LogOffsets = {}
    for partition in range(found.partitions):
        bounds = await log.bounds(found, partition)
        pointer = await store.pointer(topic.name, partition)
        if accept_loss and bounds.start > pointer + 1:
            lost = {"topic": topic.name, "partition": partition, "from": pointer + 1, "to": bounds.start - 1}
            name = f"loss {topic.name}/{partition} {pointer + 1}"
            await store.save_status(name, msgspec.json.encode(lost), clock.now_ms())
            pointer = bounds.start - 1
            await store.publish({(topic.name, partition): pointer}, clock.now_ms())
        check_truncation(topic.name, partition, bounds, pointer)
        offsets[partition_name(topic.name, partition)] = pointer + 1
    return offsets


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
        self._source = make_stream(config)
        self._accept_loss = accept_loss
        self._session = session
        self._own_session = session is None
        self._clock = clock or SystemClock()
        self._meter = Meter(self._clock)
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._supervisor: threading.Thread | None = None
        self._query: StreamingQuery | None = None
        self._ends: LogOffsets = {}
        self._retired: set[str] = set()
        self._looked = 0.0
        self._checkpoint = Path()
        self._error: Exception | None = None
        self.failure: ReplicationFailed | None = None

    def start(self) -> None:
        """Start Spark and the query; returns once it runs."""
        self._portal = Portal()
        try:
            parts = self._portal.call(open_parts(self._config, clock=self._clock))
            self._log, self._store = parts.log, parts.store
            self._meter.enter("starting")
            self._save_status()
            if self._session is None:
                self._session = open_session(self._config, output=self._config.folder / SPARK_OUTPUT)
            self._begin()
        except BaseException:
            self._release()
            raise
        self._supervisor = threading.Thread(target=self._supervise, name="everlog-pipeline", daemon=True)
        self._supervisor.start()

    def stop(self) -> None:
        """Finish or give up the batch under way, and let go of everything."""
        self._stopping.set()
        if self._supervisor is not None:
            self._supervisor.join()
            self._supervisor = None
            self._release()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until it is stopped; False if the time ran out."""
        return self._stopping.wait(timeout_s)

    @property
    def session(self) -> SparkSession:
        """Spark's session, once it is started: others may run their queries on it."""
        assert self._session is not None
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
        journal, passed = self._config.journal, self._meter.left_out.keys() | self._retired
        return {
            partition_name(topic.name, partition): (await self._log.bounds(topic, partition)).end
            for topic in await self._log.topics()
            if journal.includes(topic.name) and topic.name not in passed
            for partition in range(topic.partitions)
        }

    def _reached(self, ends: LogOffsets) -> bool:
        return all(self._ends.get(place, 0) >= end for place, end in ends.items())

    def _begin(self) -> None:
        """A new query on a fresh checkpoint, from pointer2."""
        start: Start = self._portal.call(
            find_start(self._log, self._store, self._config, self._clock, accept_loss=self._accept_loss)
        )
        self._meter.left_out, self._retired = start.left_out, start.retired
        self._looked = self._clock.monotonic()
        with self._progress:
            self._ends = dict(start.offsets)
            self._progress.notify_all()
        self._planner = OrderPlanner(self._store, self._config.tags, self._clock)
        self._publish_watermark()  # what the pipeline before this one did not get to
        self._checkpoint = Path(tempfile.mkdtemp(prefix="everlog-checkpoint-"))
        assert self._session is not None
        stream = self._source.stream(self._session, start.offsets, start.passed)
        self._meter.enter("running")  # before a batch can be done: what is replicated was replicated by one that runs
        self._query = (
            stream.writeStream.foreachBatch(self._replicate)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .trigger(processingTime="0 seconds")
            .start()
        )
        self._save_status()

    def _replicate(self, batch: DataFrame, number: int) -> None:
        """One micro-batch, as Spark calls it. The error is kept here: Spark's own copy of it may get lost."""
        try:
            self._replicate_batch(batch, number)
        except Exception as error:
            self._error = error
            raise ReplicationFailed(f"batch {number} was not replicated") from None

    def _replicate_batch(self, batch: DataFrame, number: int) -> None:
        """Decide the order, apply everywhere, then publish."""
        failpoint("batch.started")
        started, watch = self._clock.monotonic(), Stopwatch(self._clock.monotonic)
        ends = self._source.ends(written_offset(self._checkpoint, number))
        moved = {place: end for place, end in ends.items() if end > self._ends.get(place, 0)}
        topics = self._portal.call(self._pinned({parse_partition_name(place)[0] for place in moved}))
        ranges = {place: OffsetRange(self._ends.get(place, 0), end) for place, end in moved.items()}
        orders = self._portal.call(self._planner.prepare(moved, self._ends))
        watch.lap("plan")
        failpoint("batch.planned")
        job = ApplyTask(for_tasks(self._config), topics, self._source.decoder, ranges, orders)
        records = sum(end - start for start, end in ranges.values())
        rows = self._in_tasks(batch, records).mapInArrow(job, REPORT_SCHEMA).collect()
        reports = {partition_name(row.topic, row.partition): _decode_report(row.report) for row in rows}
        watch.split(longest(report.phases for report in reports.values()), rest="spark")
        self._meter.wrote(reports.values())
        raise_failures(reports)
        failpoint("batch.applied")
        pointers = {parse_partition_name(place): end - 1 for place, end in moved.items()}
        self._portal.call(self._store.publish(pointers, self._clock.now_ms()))
        watch.lap("publish")
        failpoint("batch.published")
        self._publish_watermark()
        watch.lap("watermark")
        failpoint("batch.watermark")
        seconds = self._clock.monotonic() - started
        self._meter.batch(reports.values(), seconds, watch.seconds, self._slowest(reports.values()))
        with self._progress:
            self._ends |= moved
            self._progress.notify_all()
        if self._meter.due():
            self._save_status()

    def _slowest(self, reports: Iterable[Applied]) -> list[SlowKey]:
        """The batch's slowest journals, with the names of their topics as people know them."""
        found = slowest(key for report in reports for key in report.slowest)
        return [msgspec.structs.replace(key, topic=self._config.journal.short(key.topic)) for key in found]

    def _in_tasks(self, batch: DataFrame, records: int) -> DataFrame:
        """A task costs far more than a few records do: a small batch is spread over no more than can run at once."""
        assert self._session is not None
        if records > SMALL_BATCH or not self._source.mixes:
            return batch
        return batch.coalesce(self._session.sparkContext.defaultParallelism)

    def _publish_watermark(self) -> None:
        self._portal.call(self._planner.publish())
        self._meter.tags_wait_for = self._planner.holding

    async def _pinned(self, names: Collection[str]) -> dict[str, Topic]:
        """The batch's topics. One that appeared meanwhile is pinned now; one that was made again must not be folded,
        nor one that was retired: nothing waits for its events any more."""
        pinning = asyncio.gather(*map(self._pin, names))
        retired, topics = await asyncio.gather(retired_topics(self._store), pinning)
        for name in retired.intersection(names):
            raise TopicRetired(self._config.journal.short(name))
        return dict(zip(names, topics, strict=True))

    async def _pin(self, name: str) -> Topic:
        found = await look_again(self._log, name)
        if found is None:
            raise TopicReplaced(f"the topic {name} was deleted while it was being replicated")
        return await pin_topic(self._store, found, self._config, self._clock)

    def _supervise(self) -> None:
        """The supervisor's thread. What it cannot repair is that Spark itself is gone."""
        try:
            self._keep_going()
            self._stop_query()
        except Exception as error:
            logger.exception("the pipeline cannot go on")
            self._give_up(error)

    def _keep_going(self) -> None:
        """Watch the query; start another one when it fails, after a pause that grows."""
        pause = Backoff(self._config.pipeline.min_retry_s, self._config.pipeline.max_retry_s)
        batches = self._meter.batches
        while not self._stopping.wait(CHECK_S):
            assert self._query is not None
            if self._query.isActive:
                if self._meter.batches > batches:
                    batches = self._meter.batches
                    pause.reset()
                if self._meter.age() > HEARTBEAT_S:
                    self._save_status()
                if self._clock.monotonic() - self._looked > LOOK_S:
                    self._leave_retired()
                continue
            self._meter.error(explain(self._error or self._query.exception()))
            self._error = None
            self._save_status()
            logger.error("%s; trying again", self._meter.status().last_error)
            self._drop_checkpoint()
            if not self._stopping.wait(pause.next()):
                self._begin_again()

    def _leave_retired(self) -> None:
        """A topic that was retired meanwhile: begin again without it, and without waiting for it."""
        self._looked = self._clock.monotonic()
        try:
            retired = self._portal.call(asyncio.wait_for(retired_topics(self._store), STATUS_S))
        except (EverlogError, TimeoutError):
            return
        if retired != self._retired:
            assert self._query is not None
            self._query.stop()
            self._drop_checkpoint()
            self._error = None
            self._begin_again()

    def _begin_again(self) -> None:
        try:
            self._begin()
        except EverlogError as error:
            # The query is still the dead one: the next round finds it so and pauses longer.
            self._error = error

    def _stop_query(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None
        self._end()

    def _give_up(self, error: Exception) -> None:
        where = self._config.folder / SPARK_OUTPUT
        self.failure = ReplicationFailed(
            f"Spark is gone ({explain(error)}): see {where}, then start the pipeline again"
        )
        self._meter.error(str(self.failure))
        self._stopping.set()
        self._end()

    def _end(self) -> None:
        self._drop_checkpoint()
        with self._progress:
            self._progress.notify_all()
        self._meter.enter("stopped")
        self._save_status()

    def _drop_checkpoint(self) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _save_status(self) -> None:
        """Save the status. A slow store must not hold up the pipeline."""
        status = self._meter.status()
        saving = save_pipeline_status(self._store, status, status.updated_ms)
        try:
            self._portal.call(asyncio.wait_for(saving, STATUS_S))
        except (EverlogError, TimeoutError) as error:
            logger.warning("the status could not be saved: %s", str(error) or "no answer in time")

    def _release(self) -> None:
        with ExitStack() as stack:  # all of it, even if some of it fails
            stack.callback(self._portal.close)
            if self._own_session and self._session is not None:
                if self.failure is None:  # else there is nothing left to stop
                    stack.callback(self._session.stop)
                self._session = None
            if hasattr(self, "_store"):
                stack.callback(lambda: self._portal.call(self._log.close()))
                stack.callback(lambda: self._portal.call(self._store.close()))


def raise_failures(reports: Mapping[str, Applied]) -> None:
    """A batch counts only as a whole: name the first journal that failed, and how many more there are."""
    failed = [
        f"{place} {journal_id}".rstrip() + f": {reason}"
        for place, report in reports.items()
        for journal_id, reason in report.failed.items()
    ]
    if failed:
        raise ReplicationFailed(failed[0] + (f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""))


def written_offset(checkpoint: Path, number: int) -> str:
    """Where a batch ends, as its source says it: Spark writes that down first (version, metadata, then the offset)."""
    return (checkpoint / "offsets" / str(number)).read_text().splitlines()[2]


def explain(error: BaseException | None) -> str:
    """The line of a Spark exception that says what went wrong."""
    if error is None:
        return "the query ended"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in reversed(lines):
        name, colon, rest = line.partition(": ")
        if colon and name.rpartition(".")[2] in ("ReplicationFailed", "RuntimeError") and rest:
            return rest
    return lines[0] if lines else repr(error)
