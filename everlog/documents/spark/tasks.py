"""What the Spark jobs on documents share: documents open inside a task, and a session that ends with the job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from everlog.config import Config
from everlog.documents.documents import OpenDocuments
from everlog.documents.factory import make_documents
from everlog.journal.parts import opened_parts
from everlog.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_OUTPUT = "spark-documents.log"
MAX_TASKS = 64


@asynccontextmanager
async def opened(config: Config) -> AsyncIterator[OpenDocuments]:
    """The documents, as long as the block lasts."""
    async with opened_parts(config) as parts:
        documents = make_documents(parts)
        try:
            yield await documents.open()
        finally:
            await documents.close()


@contextmanager
def session_of(config: Config, session: SparkSession | None) -> Iterator[SparkSession]:
    """The given session, or one for this job alone."""
    if session is not None:
        yield session
        return
    own = open_session(config, output=Path(config.data) / SPARK_OUTPUT)
    try:
        yield own
    finally:
        own.stop()


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    """What a task was given, as rows."""
    return [row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]


def tasks_for(items: int, per_task: int) -> int:
    """Over how many tasks to spread this many items."""
    return max(1, min(-(-items // per_task), MAX_TASKS))
