"""Rebuild views by tag from the journals' rows: a Spark job, some journals per task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from everlog.config import Config
from everlog.spark.process import for_tasks
from everlog.spark.session import open_session
from everlog.store.factory import open_store
from everlog.store.port import Store
from everlog.tags.upkeep import JournalRef, JournalRefs, all_journals, rebuild_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Journals of one Spark job; the progress is told after each.
JOURNALS_PER_JOB = 20_000
PER_TASK = 500
SPARK_OUTPUT = "spark-rebuild.log"
_COLUMNS = pa.schema([("journals", pa.int64()), ("rows", pa.int64())])
COLUMNS = "journals long, rows long"

RebuildProgress = Callable[[int, int], None]


@dataclass(slots=True)
class Rebuilt:
    """How many journals were looked at, and how many rows were put back."""

    journals: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class RebuildTask:
    """What a task needs; travels to the workers."""

    config: Config
    tags: tuple[str, ...] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places = [place for batch in batches for place in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
        if places:
            rows = asyncio.run(self._rebuild(places))
            yield pa.RecordBatch.from_arrays([pa.array([len(places)]), pa.array([rows])], schema=_COLUMNS)

    async def _rebuild(self, places: Sequence[tuple[str, str]]) -> int:
        store = await open_store(self.config)
        try:
            refs = JournalRefs(store)
            return sum([await self._rebuild_one(store, await refs.of(*place)) for place in places])
        finally:
            await store.close()

    async def _rebuild_one(self, store: Store, ref: JournalRef | None) -> int:
        return 0 if ref is None else await rebuild_journal(store, self.config, ref, self.tags)


def rebuild(
    config: Config,
    *,
    tags: Sequence[str] | None = None,
    topics: Sequence[str] | None = None,
    session: SparkSession | None = None,
    progress: RebuildProgress | None = None,
) -> Rebuilt:
    """Put back what views by tag lack, of all journals; safe while the pipeline runs, and to be repeated.

    `tags` and `topics`: only these. `progress(done, known)` is called now and then.
    """
    done = Rebuilt()
    todo = asyncio.run(_places(config, topics))
    if not todo:
        return done
    own = session is None
    session = session or open_session(config, output=Path(config.data) / SPARK_OUTPUT)
    try:
        for start in range(0, len(todo), JOURNALS_PER_JOB):
            chunk = todo[start : start + JOURNALS_PER_JOB]
            frame = session.createDataFrame(chunk, "topic string, id string")
            task = RebuildTask(for_tasks(config), None if tags is None else tuple(tags))
            spread = frame.repartition(max(1, min(len(chunk) // PER_TASK, 64)))
            for row in spread.mapInArrow(task, COLUMNS).collect():
                done.journals += row.journals
                done.rows += row.rows
            if progress is not None:
                progress(done.journals, len(todo))
    finally:
        if own:
            session.stop()
    return done


async def _places(config: Config, topics: Sequence[str] | None) -> list[tuple[str, str]]:
    store = await open_store(config)
    try:
        return [place async for place in all_journals(store, config, topics)]
    finally:
        await store.close()
