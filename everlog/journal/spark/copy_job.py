"""`everlog journal copy`: the journals of a topic into another one, a Spark job, some journals per task.

Works on a topic whose log is gone, cut off or replaced: then what is in the tables is copied, and what its log still
holds above them. Killed at any point and run again, it goes on where it was: see `everlog.journal.copy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from everlog.config import Config
from everlog.errors import EverlogError, InvalidInput, ReplicationFailed, TopicRetired
from everlog.journal.copy import Copier, Original
from everlog.journal.damaged_log import Damage
from everlog.journal.journal import LocalJournal
from everlog.journal.parts import open_parts, opened_parts
from everlog.journal.topic_registry import is_retired
from everlog.runtime.failpoints import failpoint
from everlog.runtime.portal import Portal
from everlog.spark.process import for_tasks
from everlog.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A job of Spark gets this many journals at a time; progress is reported in between.
JOURNALS_PER_JOB = 2_000
PER_TASK = 50
# A task copies this many journals at once, each with a page of events in memory.
AT_ONCE = 16
# A report names at most this many; the others are counted.
MAX_NAMED = 100
SPARK_OUTPUT = "spark-copy.log"
_REPORT = pa.schema([("report", pa.binary())])
REPORT = "report binary"

CopyProgress = Callable[[int, int], None]


@dataclass(slots=True)
class CopyFailure:
    """A journal that was not copied, and why: the name of the error, what it says, and whether trying again helps."""

    id: str
    error: str
    reason: str
    retriable: bool


@dataclass(slots=True)
class CopyReport:
    """What a run did. `events`: written now (in a dry run: that would be); `present`: there already.

    `halted` journals are copied up to the record that halts them, `failed` ones are not equal yet; of both the first
    are named. `gaps`: what the log of the original lacks, by partition.
    """

    journals: int = 0
    events: int = 0
    present: int = 0
    halted: int = 0
    halted_ids: list[str] = field(default_factory=list)
    failed: int = 0
    failures: list[CopyFailure] = field(default_factory=list)
    gaps: dict[int, str] = field(default_factory=dict)

    def add(self, other: CopyReport) -> None:
        """Count another part of the same run."""
        self.journals += other.journals
        self.events += other.events
        self.present += other.present
        self.halted += other.halted
        self.failed += other.failed
        self.halted_ids = (self.halted_ids + other.halted_ids)[:MAX_NAMED]
        self.failures = (self.failures + other.failures)[:MAX_NAMED]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CopyReport).decode


@dataclass(frozen=True, slots=True)
class CopyTask:
    """What a task needs; travels to the workers."""

    config: Config
    source: str
    target: str
    damage: Damage
    dry_run: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ids = [journal_id for batch in batches for journal_id in batch.columns[0].to_pylist()]
        if ids:
            report = asyncio.run(self._copy(ids))
            yield pa.RecordBatch.from_arrays([pa.array([_encode(report)], pa.binary())], schema=_REPORT)

    async def _copy(self, ids: Sequence[str]) -> CopyReport:
        async with opened_parts(self.config) as parts:
            original = await Original.find(parts, self.source, self.damage)
            copier = Copier(original, LocalJournal(self.target, parts), dry_run=self.dry_run)
            report, left = CopyReport(), iter(ids)
            await asyncio.gather(*(_copy_some(copier, left, report) for _ in range(AT_ONCE)))
            return report


async def _copy_some(copier: Copier, ids: Iterator[str], report: CopyReport) -> None:
    """One of several that share the ids. An error of a journal does not keep the others from being copied."""
    for journal_id in ids:
        failpoint("copy.journal")
        try:
            found = await copier.copy(journal_id)
        except EverlogError as error:
            failure = CopyFailure(journal_id, type(error).__name__, str(error), error.retriable)
            report.add(CopyReport(failed=1, failures=[failure]))
            continue
        if found is not None:
            report.add(CopyReport(1, found.written, found.present))
            if found.halted:
                report.add(CopyReport(halted=1, halted_ids=[journal_id]))


def copy(
    config: Config,
    source: str,
    target: str,
    *,
    dry_run: bool = False,
    session: SparkSession | None = None,
    progress: CopyProgress | None = None,
) -> CopyReport:
    """Copy all journals of a topic into another one, with their seqNrs; repeat it until nothing fails.

    `dry_run`: only count. `progress(done, known)` is called now and then.
    """
    if source == target:
        raise InvalidInput(f"{source!r} cannot be copied into itself: name another topic")
    with ExitStack() as stack:
        portal = Portal()
        stack.callback(portal.close)
        driver = _Driver(config, source, target, dry_run=dry_run)
        portal.call(driver.open())
        stack.callback(lambda: portal.call(driver.close()))
        known = portal.call(driver.count()) if progress is not None else 0
        damage = driver.original.damaged.damage
        task = CopyTask(for_tasks(config), source, target, damage, dry_run)
        report = CopyReport(gaps=damage.gaps)
        done = 0
        for ids in iter(lambda: portal.call(driver.next_chunk()), []):
            if session is None:
                session = open_session(config, output=config.folder / SPARK_OUTPUT)
                stack.callback(session.stop)
            report.add(_copy_chunk(session, task, ids))
            done += len(ids)
            if progress is not None:
                progress(done, max(known, done))
        return report


def _copy_chunk(session: SparkSession, task: CopyTask, ids: Sequence[str]) -> CopyReport:
    frame = session.createDataFrame([(journal_id,) for journal_id in ids], "id string")
    spread = frame.repartition(max(1, min(len(ids) // PER_TASK, 64)))
    report = CopyReport()
    try:
        rows = spread.mapInArrow(task, REPORT).collect()
    except Exception as error:
        raise ReplicationFailed(f"Spark could not copy ({_reason(error)}): run it again, it goes on there") from error
    for row in rows:
        report.add(_decode(row.report))
    return report


def _reason(error: Exception) -> str:
    """The first line of a Spark exception that says something."""
    lines = [line.strip(" :") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (telling or lines or [repr(error)])[0]


class _Driver:
    """The log and the store, and how far the ids of the original's journals were taken."""

    def __init__(self, config: Config, source: str, target: str, *, dry_run: bool) -> None:
        self._config = config
        self._source = source
        self._target = target
        self._dry_run = dry_run
        self._left: list[str] = []

    async def open(self) -> None:
        """Find both topics; the target is made, unless that is only tried."""
        parts = self._parts = await open_parts(self._config)
        try:
            self.original = await Original.find(parts, self._source)
            target = LocalJournal(self._target, parts)
            if await is_retired(parts.store, target.log_name):
                raise TopicRetired(self._target)
            await target.ref("any", create=not self._dry_run)
            self._pages = self.original.ids()
        except BaseException:
            await self._parts.close()
            raise

    async def count(self) -> int:
        """How many journals there are to look at."""
        return sum([len(page) async for page in self.original.ids()])

    async def next_chunk(self) -> list[str]:
        """The next ids; none at the end."""
        while len(self._left) < JOURNALS_PER_JOB:
            page = await anext(self._pages, None)
            if page is None:
                break
            self._left += page
        chunk, self._left = self._left[:JOURNALS_PER_JOB], self._left[JOURNALS_PER_JOB:]
        return chunk

    async def close(self) -> None:
        await self._pages.aclose()
        await self._parts.close()
