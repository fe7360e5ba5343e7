"""Recovery of documents and the build of their indexes as the Spark jobs that they are."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everlog
from everlog.config import Config, DocumentsConfig
from everlog.documents.factory import document_journal, make_documents
from everlog.documents.ids import time_uuid
from everlog.documents.indexes import IndexNew, IndexSortItem, IndexStatus
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import partition_of_uri, quantum_of
from everlog.documents.publisher import JournalPublisher, NotPublished
from everlog.documents.recovery import RecoveredTransactions
from everlog.documents.spark.indexes import BuiltIndexes, build_indexes
from everlog.documents.spark.recovery import recover
from everlog.errors import DocumentNotFound
from tests.cli_support import Cli
from tests.support import ManualClock, small_config

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000


class _Down(JournalPublisher):
    async def publish(self, transaction: DocumentTransaction) -> None:
        raise NotPublished("the log is down")


async def leave(config: Config, ages_ms: list[int]) -> None:
    """Writes of some time ago whose events did not go out, and one that never happened."""
    now = int(time.time() * 1000)
    clock = ManualClock(now)
    async with everlog.connect(config, clock=clock) as log:
        docs = make_documents(log.parts)
        docs._make_publisher = lambda: _Down(document_journal(log.parts))
        for number, age in enumerate(ages_ms):
            clock._now_ms = now - age
            await docs.put(f"d{number % 7}", number)
        orphan = DocumentTransaction("never", str(time_uuid(now - 2 * HOUR_MS, 5)), 1, "", "{}")
        await (await docs.open()).store.add_transaction(orphan)
        await docs.close()


async def look(config: Config) -> tuple[dict[str, list[int]], dict[int, int], int]:
    """The events that are in the log, the checkpoints, and what is still incomplete."""
    async with everlog.connect(config) as log:
        parts = await log.documents.open()
        journal = document_journal(log.parts)
        events = {f"d{n}": [event.seq_nr async for event in journal.read(f"d{n}")] for n in range(7)}
        with pytest.raises(DocumentNotFound):
            await log.documents.get("never")
        now = quantum_of(log.parts.clock.now_ms())
        left = sum([len(page) async for page in parts.store.incomplete(0, now)])
        return events, await parts.store.checkpoints(), left


@pytest.mark.case("hyperstorage", 67, 68)
def test_the_stale_pass(spark: Any, tmp_path) -> None:
    """All minutes and partitions, two days back: completed in order, abandoned, and the checkpoints follow."""
    config = small_config(tmp_path / "data")
    ages = [hours * HOUR_MS for hours in (47, 46, 30, 25, 23, 5, 4, 3, 3, 2, 2, 1, 1, 1)]
    asyncio.run(leave(config, ages))
    found = asyncio.run(_set_back(config))
    assert recover(config, session=spark) == RecoveredTransactions(completed=14, abandoned=1)
    events, checkpoints, left = asyncio.run(look(config))
    assert events == {f"d{n}": [1, 2] for n in range(7)}
    assert left == 0
    oldest = quantum_of(int(time.time() * 1000)) - 1440
    assert checkpoints.keys() == set(range(1024))
    assert oldest - 5 <= checkpoints[partition_of_uri("d0")] <= oldest
    assert found < checkpoints[partition_of_uri("d0")]
    assert recover(config, session=spark) == RecoveredTransactions()


def test_the_commands(spark: Any, tmp_path, monkeypatch) -> None:
    """`everlog docs recover --spark` and `everlog docs index build --spark` start a session, and end it."""
    ended: list[bool] = []

    class _Session:
        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            ended.append(True)

    monkeypatch.setattr("everlog.documents.spark.tasks.open_session", lambda config, output: _Session())
    cli = Cli(tmp_path / "data")
    cli.run("docs", "put", "c~/1", '{"n": 1}')
    assert cli.json("docs", "recover", "--spark") == msgspec.to_builtins(RecoveredTransactions())
    asyncio.run(_define(tmp_path / "data"))
    assert cli.json("docs", "index", "build", "d~", "--spark") == {"ready": 0, "failed": 0, "tasks": 0}
    assert cli.json("docs", "index", "build", "c~", "--spark") == {"ready": 1, "failed": 0, "tasks": 1}
    assert ended == [True, True]


async def _define(folder: Path) -> None:
    config = msgspec.structs.replace(Config(data=str(folder)), documents=DocumentsConfig(index_spark_above=1))
    async with everlog.connect(config) as log:
        await log.documents.put("c~/2", {"n": 2})
        await log.documents.create_index("c~", IndexNew("by-n", (IndexSortItem("n"),)))


async def _set_back(config: Config) -> int:
    """Nobody has looked after the outbox for two days."""
    async with everlog.connect(config) as log:
        quantum = quantum_of(log.parts.clock.now_ms()) - 2 * 1440
        await (await log.documents.open()).store.save_checkpoints(dict.fromkeys(range(1024), quantum))
        return quantum


async def fill(config: Config, count: int) -> None:
    async with everlog.connect(config) as log:
        docs = log.documents
        for number in range(count):
            await docs.put(f"c~/{number:04}", {"n": -number, "even": number % 2 == 0})
        await docs.put("c~/long", {"text": "x" * 20_000, "even": False})
        await docs.settle("c~")
        await docs.create_index("c~", IndexNew("by-n", (IndexSortItem("n"),), "even"))
        await docs.create_index("c~", IndexNew("broken", (IndexSortItem("text"),)))
        assert await docs.build_indexes() == 0


async def indexes(config: Config) -> dict[str, IndexStatus]:
    async with everlog.connect(config) as log:
        return {one.index_id: one.status for one in await log.documents.indexes("c~")}


async def query(config: Config) -> tuple[str | None, list[str]]:
    async with everlog.connect(config) as log:
        await log.documents.patch("c~/0004", {"n": 1})
        await log.documents.settle("c~")
        page = await log.documents.list("c~", filter="even", sort="n", size=1000, explain=True)
        assert page.explanation is not None
        return page.explanation.index, [one["id"] for one in page.elements]


@pytest.mark.case("hyperstorage", 54)
def test_indexes_of_large_collections_are_left_to_a_job(spark: Any, tmp_path) -> None:
    """The servers leave them alone; the job divides the ids, and an index that cannot be built says why."""
    documents = DocumentsConfig(index_spark_above=50, index_step=16)
    config = msgspec.structs.replace(small_config(tmp_path / "data"), documents=documents)
    asyncio.run(fill(config, 200))
    assert asyncio.run(indexes(config))["by-n"] is IndexStatus.INDEXING
    told: list[tuple[int, int]] = []
    done = build_indexes(config, session=spark, per_task=64, progress=lambda *now: told.append(now))
    assert done == BuiltIndexes(ready=1, failed=1, tasks=8)
    assert told == [(1, 2), (2, 2)]
    found = asyncio.run(indexes(config))
    assert (found["by-n"], found["broken"]) == (IndexStatus.READY, IndexStatus.FAILED)
    expected = sorted((-n if n != 4 else 1, f"{n:04}") for n in range(0, 200, 2))
    assert asyncio.run(query(config)) == ("by-n", [name for _, name in expected])
    assert build_indexes(config, session=spark) == BuiltIndexes()
