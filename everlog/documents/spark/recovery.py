"""The stale pass of recovery as a Spark job: the grid of minutes and partitions of the outbox, then the documents.

The first tasks look for rows that are not completed, minute by minute; then the rows of a document come together in one
task, which completes it. An error of a document holds only the checkpoint of its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from everlog.config import Config
from everlog.documents.paths import partition_of_uri
from everlog.documents.port import WaitingTransaction
from everlog.documents.recovery import RecoveredTransactions, StaleWindow
from everlog.documents.spark.tasks import opened, rows_of, session_of, tasks_for
from everlog.spark.process import for_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES_PER_TASK = 60
DOCUMENT_TASKS = 8
_FOUND = pa.schema([("uri", pa.string()), ("uuid", pa.string()), ("revision", pa.int64())])
FOUND = "uri string, uuid string, revision long"
_DONE = pa.schema(
    [(name, pa.int64()) for name in ("partition", "stuck", "completed", "abandoned", "failed")]
)  # `stuck`: the first minute with a failure, null if there is none
DONE = "partition long, stuck long, completed long, abandoned long, failed long"


@dataclass(frozen=True, slots=True)
class FindTask:
    """Rows of some minutes that are not completed: where they are, not what is in them."""

    config: Config
    window: StaleWindow

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        minutes = sorted(minute for (minute,) in rows_of(batches))
        if minutes:
            found = asyncio.run(self._find(minutes))
            columns = [pa.array(column) for column in zip(*found, strict=True)]
            if columns:
                yield pa.RecordBatch.from_arrays(columns, schema=_FOUND)

    async def _find(self, minutes: list[int]) -> list[WaitingTransaction]:
        async with opened(self.config) as parts:
            return [
                one
                for first, last in runs(minutes)
                async for page in parts.store.incomplete(first, last, self.window.starts)
                for one in page
                if self.window.has(one)
            ]


def runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Numbers in order, as pieces without holes.

    >>> runs([1, 2, 3, 7, 9, 10])
    [(1, 3), (7, 7), (9, 10)]
    """
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


@dataclass(frozen=True, slots=True)
class CompleteTask:
    """Completes some documents, or abandons what never happened."""

    config: Config
    abandon_ms: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        by_partition: dict[int, list[WaitingTransaction]] = {}
        for row in rows_of(batches):
            one = WaitingTransaction(*row)
            by_partition.setdefault(partition_of_uri(one.uri), []).append(one)
        if by_partition:
            done = asyncio.run(self._complete(by_partition))
            columns = [pa.array(column, pa.int64()) for column in zip(*done, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=_DONE)

    async def _complete(
        self, by_partition: Mapping[int, list[WaitingTransaction]]
    ) -> list[tuple[int, int | None, int, int, int]]:
        done = []
        async with opened(self.config) as parts:
            for partition, rows in by_partition.items():
                found, stuck = RecoveredTransactions(), dict[int, int]()
                await parts.recovery.recover(rows, self.abandon_ms, found, stuck)
                done.append((partition, stuck.get(partition), found.completed, found.abandoned, found.failed))
        return done


def recover(config: Config, *, session: SparkSession | None = None) -> RecoveredTransactions:
    """Complete what is older than the hot window, from the checkpoints on. Safe while servers run, and to repeat."""
    window = asyncio.run(_window(config))
    total, stuck = RecoveredTransactions(), dict[int, int]()
    with session_of(config, session) as spark:
        minutes = window.last + 1 - window.first
        grid = spark.range(window.first, window.last + 1, 1, tasks_for(minutes, MINUTES_PER_TASK))
        found = grid.mapInArrow(FindTask(for_tasks(config), window), FOUND)
        done = found.repartition(DOCUMENT_TASKS, "uri").mapInArrow(
            CompleteTask(for_tasks(config), window.abandon_ms), DONE
        )
        for row in done.collect():
            total.completed += row.completed
            total.abandoned += row.abandoned
            total.failed += row.failed
            if row.stuck is not None:
                stuck[row.partition] = min(row.stuck, stuck.get(row.partition, row.stuck))
    total.forgotten = asyncio.run(_conclude(config, window.reached(stuck)))
    return total


async def _window(config: Config) -> StaleWindow:
    async with opened(config) as parts:
        return await parts.recovery.window()


async def _conclude(config: Config, reached: Mapping[int, int]) -> int:
    async with opened(config) as parts:
        await parts.store.save_checkpoints(reached)
        return await parts.recovery.forget()
