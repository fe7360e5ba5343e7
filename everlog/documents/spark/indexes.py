"""Indexes of large collections built by a Spark job: each task takes a range of element ids.

Writes go on meanwhile, and so may a server's own build: an entry is a function of the element's newest content, no
matter which process writes it, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from everlog.config import Config
from everlog.documents.evaluator import Evaluator
from everlog.documents.indexes import Index, IndexStatus
from everlog.documents.paths import DocumentPlace, parse_collection
from everlog.documents.port import PendingIndex
from everlog.documents.spark.tasks import opened, rows_of, session_of
from everlog.errors import InvalidDocument
from everlog.spark.process import for_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ELEMENTS_PER_TASK = 20_000
_DONE = pa.schema([("steps", pa.int64()), ("failure", pa.string())])
DONE = "steps long, failure string"

BuildProgress = Callable[[int, int], None]
Ranges = list[tuple[str, str | None]]
"""`(after, to)`: the elements behind an id up to another one, or to the end."""


@dataclass(slots=True)
class BuiltIndexes:
    """How many indexes are ready now, how many could not be built, and over how many tasks the work was spread."""

    ready: int = 0
    failed: int = 0
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class BuildTask:
    """Puts the elements of some ranges into an index. An element that no index can hold is the task's answer."""

    config: Config
    uri: str
    index: Index
    ranges: Ranges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = [self.ranges[number] for (number,) in rows_of(batches)]
        if mine:
            steps, failure = asyncio.run(self._build(mine))
            yield pa.RecordBatch.from_arrays(
                [pa.array([steps], pa.int64()), pa.array([failure], pa.string())], schema=_DONE
            )

    async def _build(self, ranges: Ranges) -> tuple[int, str | None]:
        steps, limit = 0, self.config.documents.index_step
        evaluator = Evaluator.of(self.config.documents)
        async with contextlib.aclosing(evaluator), opened(self.config) as parts:
            for after, to in ranges:
                place: str | None = after
                while place is not None:
                    try:
                        place = await parts.store.build_part(
                            self.uri, self.index, evaluator.locate, after=place, to=to, limit=limit
                        )
                    except InvalidDocument as error:
                        return steps, str(error)
                    steps += 1
        return steps, None


def build_indexes(
    config: Config,
    *,
    path: str | None = None,
    session: SparkSession | None = None,
    per_task: int = ELEMENTS_PER_TASK,
    progress: BuildProgress | None = None,
) -> BuiltIndexes:
    """Build the indexes that wait for it, of one collection or of all; safe to be repeated.

    `progress(done, known)` is called after every index.
    """
    built = BuiltIndexes()
    waiting = asyncio.run(_waiting(config, None if path is None else parse_collection(path)))
    if not waiting:
        return built
    with session_of(config, session) as spark:
        for number, (uri, index) in enumerate(waiting, 1):
            revision, ranges = asyncio.run(_divide(config, uri, per_task))
            task = BuildTask(for_tasks(config), uri, index, ranges)
            done = spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(task, DONE).collect()
            built.tasks += len(done)
            failure = next((row.failure for row in done if row.failure is not None), None)
            ready = asyncio.run(_conclude(config, uri, index, revision, failure))
            built.ready += ready
            built.failed += failure is not None
            if progress is not None:
                progress(number, len(waiting))
    return built


async def _waiting(config: Config, uri: str | None) -> list[PendingIndex]:
    async with opened(config) as parts:
        found = await parts.store.pending_indexes()
    return [one for one in found if one.definition.status is IndexStatus.INDEXING and uri in (None, one.uri)]


async def _divide(config: Config, uri: str, per_task: int) -> tuple[int, Ranges]:
    """The collection's revision, read before its elements are; and ranges of their ids, the last one without an end."""
    async with opened(config) as parts:
        head, _, _ = await parts.store.load(DocumentPlace(uri))
        cuts = await parts.store.cut(uri, per_task)
    ends: list[str | None] = [*cuts, None]
    return 0 if head is None else head.revision, list(zip(["", *cuts], ends, strict=True))


async def _conclude(config: Config, uri: str, index: Index, revision: int, failure: str | None) -> bool:
    async with opened(config) as parts:
        if failure is None:
            return await parts.store.finish(uri, index, revision)
        await parts.store.mark_index(uri, index, IndexStatus.FAILED, failure)
        return False
