"""The real pipeline on a real Spark session."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import everlog
from everlog import Event
from everlog.config import load_config
from everlog.errors import JournalHalted
from everlog.log.base import NewRecord
from everlog.testing.replication import replicate
from tests.faults.test_pipeline_kills import fill
from tests.spark.conftest import Pipeline
from tests.spark.tables import tables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WAIT = 120


async def test_the_tables_are_the_fold_of_the_log(tmp_path: Path, pipeline: Pipeline) -> None:
    """Spark in small batches and a plain fold in one go give the same tables, pointers included."""
    folder, copy = tmp_path / "data", tmp_path / "copy"
    folder.mkdir()
    await fill(folder)
    shutil.copytree(folder, copy)
    (folder / "everlog.toml").write_text((folder / "everlog.toml").read_text() + "[pipeline]\nmax_batch_records = 70\n")
    with pipeline(load_config(folder)) as running:
        assert running.wait_until_replicated(WAIT)
        assert running.status.batches > 1
        assert running.status.rejected == 1
    async with everlog.connect(copy) as log:
        await replicate(log)
    assert tables(folder) == tables(copy)


@pytest.mark.case("kafka-journal", 30)
async def test_two_pipelines_at_once(tmp_path: Path, pipeline: Pipeline) -> None:
    """Two pipelines on one folder, each replaying what the other did, give the tables that one gives."""
    folder, copy = tmp_path / "data", tmp_path / "copy"
    folder.mkdir()
    await fill(folder)
    shutil.copytree(folder, copy)
    (folder / "everlog.toml").write_text((folder / "everlog.toml").read_text() + "[pipeline]\nmax_batch_records = 50\n")
    config = load_config(folder)
    with pipeline(config) as first, pipeline(config) as second:
        assert first.wait_until_replicated(WAIT)
        assert second.wait_until_replicated(WAIT)
        async with everlog.connect(config) as log:
            for number in range(20):
                await log.journal("orders").append(f"order-{number % 3}", Event(number))
            assert first.wait_until_replicated(WAIT)
            assert second.wait_until_replicated(WAIT)
        assert first.status.last_error is None
        assert second.status.last_error is None
    (copy / "log.db").unlink()
    for name in ("log.db", "log.db-wal"):
        if (folder / name).exists():
            shutil.copy(folder / name, copy / name)
    async with everlog.connect(copy) as log:
        await replicate(log)
    assert tables(folder) == tables(copy)


@pytest.mark.case("kafka-journal", 5, 27, 32)
async def test_marks_and_foreign_records_move_the_pointer_only(tmp_path: Path, pipeline: Pipeline) -> None:
    """Marks, and records that are no actions, write nothing but pointer2; its creation time stays."""
    config = load_config(tmp_path)
    async with everlog.connect(config) as log:
        journal = log.journal("orders")
        token = await journal.mark("watched", "m-1")
        ref = await journal.ref("watched")
        assert ref is not None
        for action, key, value in [
            (b'{"new":{}}', ref.key, None),
            (None, ref.key, b"x"),
            (b'{"purge":{}}', None, None),
            (b'{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}', ref.key, None),
        ]:
            await log.parts.log.append(ref.log_topic, NewRecord(ref.partition, 1, key, action, value))
        with pipeline(config) as running:
            assert running.wait_until_replicated(WAIT)
            found = tables(tmp_path)
            assert ("journal-orders", token.partition, token.offset + 4) in found.pop("pointer2")
            assert not any(found.values())
            before = pointer_times(tmp_path, token.partition)
            assert before[0] == before[1]
            await journal.mark("watched")
            assert running.wait_until_replicated(WAIT)
            after = pointer_times(tmp_path, token.partition)
            assert after[0] == before[0] <= after[1]
        assert await journal.pointer("watched") is None


def pointer_times(folder: Path, partition: int) -> tuple[int, int]:
    connection = sqlite3.connect(folder / "store.db")
    try:
        row = connection.execute("SELECT created, updated FROM pointer2 WHERE partition = ?", (partition,)).fetchone()
    finally:
        connection.close()
    return (row[0], row[1])


@pytest.mark.case("kafka-journal", 33)
async def test_topics_of_the_prefix_are_found_while_it_runs(tmp_path: Path, pipeline: Pipeline) -> None:
    """Topics outside the prefix are not replicated; one that is created later is picked up by itself."""
    config = load_config(tmp_path)
    async with everlog.connect(config) as log:
        await log.journal("early").append("a", Event(1))
        other = await log.parts.log.create_topic("other")
        await log.parts.log.append(other, NewRecord(0, 1, b"a", b'{"purge":{}}', None))
        with pipeline(config) as running:
            assert running.wait_until_replicated(WAIT)
            token = await log.journal("late").append("b", Event(2))
            assert running.wait_until_replicated(WAIT)
            assert await log.parts.store.pointer("journal-late", token.partition) == token.offset
        assert await log.parts.store.pointers("other") == {}


@pytest.mark.case("kafka-journal", 29)
async def test_a_failing_journal_holds_back_only_the_pointer(tmp_path: Path, pipeline: Pipeline) -> None:
    """The others of its batch are written, pointer2 stays; when the cause is gone the pipeline goes on by itself."""
    config = load_config(tmp_path)
    async with everlog.connect(config) as log:
        journal = log.journal("orders")
        with pipeline(config) as running:
            await journal.append("first", Event(0))
            assert running.wait_until_replicated(WAIT)
            refuse(
                tmp_path,
                "CREATE TRIGGER refuse BEFORE INSERT ON journal WHEN new.id = 'bad' "
                "BEGIN SELECT raise(ABORT, 'refused by the test'); END",
            )
            bad = await journal.append("bad", Event(1))
            good = await journal.append("good", Event(2))
            await wait_for(lambda: "refused by the test" in (running.status.last_error or ""))
            assert await log.parts.store.pointer("journal-orders", bad.partition) < bad.offset
            await wait_for_row(tmp_path, "good")
            assert [event.payload async for event in journal.read("bad")] == [1]
            assert not running.wait_until_replicated(0.1)
            refuse(tmp_path, "DROP TRIGGER refuse")
            assert running.wait_until_replicated(WAIT)
            assert running.status.state == "running"
        assert await log.parts.store.pointer("journal-orders", bad.partition) >= bad.offset
        assert await log.parts.store.pointer("journal-orders", good.partition) >= good.offset
        assert [event.payload async for event in journal.read("bad")] == [1]


def refuse(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "store.db", timeout=60)
    try:
        connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


async def wait_for(condition: Callable[[], object]) -> None:
    """Ask again and again; the pipeline has no hook for its errors."""
    event = threading.Event()
    for _ in range(WAIT * 20):
        if condition():
            return
        event.wait(0.05)
    raise AssertionError("it did not happen in time")


async def wait_for_row(folder: Path, journal_id: str) -> None:
    connection = sqlite3.connect(folder / "store.db")
    try:
        sql = "SELECT count(*) FROM journal WHERE id = ?"
        await wait_for(lambda: connection.execute(sql, (journal_id,)).fetchone()[0])
    finally:
        connection.close()


@pytest.mark.case("kafka-journal", 54)
async def test_a_bad_record_halts_its_journal_only(tmp_path: Path, pipeline: Pipeline) -> None:
    """It is kept with its bytes; other journals go on; skip and retry take up what waits."""
    config = load_config(tmp_path)
    async with everlog.connect(config) as log:
        journal = log.journal("orders")
        await journal.append("sick", Event("before"))
        ref = await journal.ref("sick")
        assert ref is not None
        bad = NewRecord(ref.partition, 1, ref.key, b'{"append":', b"?", (("trace", b"7"),))
        offset = (await log.parts.log.append(ref.log_topic, bad)).offset
        after = b'{"append":{"range":{"from":2,"to":2},"payloadType":"json"}}'
        value = b'{"events":[{"seqNr":2,"tags":[],"payloadType":"text","payload":"after"}]}'
        await log.parts.log.append(ref.log_topic, NewRecord(ref.partition, 2, ref.key, after, value))
        with pipeline(config) as running:
            await journal.append("well", Event("fine"))
            assert running.wait_until_replicated(WAIT)
            assert [event.payload async for event in journal.read("well")] == ["fine"]
            with pytest.raises(JournalHalted):
                assert [event.payload async for event in journal.read("sick")] == ["before"]
            with pytest.raises(JournalHalted):
                await journal.append("sick", Event("more"))
            shown = await log.quarantine.show("orders", ref.partition, offset)
            assert shown.value == b"?"
            assert shown.headers == (("trace", b"7"),)
            await log.quarantine.skip("orders", "sick")
            assert [event.payload async for event in journal.read("sick")] == ["before", "after"]
            assert running.wait_until_replicated(WAIT)
            assert [event.payload async for event in journal.read("sick")] == ["before", "after"]
            assert not tables(tmp_path)["quarantine"]


async def test_a_replaced_log_is_left_out(tmp_path: Path, pipeline: Pipeline) -> None:
    """A log that was deleted and made anew is not folded into the old tables; the status says why."""
    config = load_config(tmp_path)
    async with everlog.connect(config) as log:
        await log.journal("orders").append("a", Event(1))
        with pipeline(config) as running:
            assert running.wait_until_replicated(WAIT)
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    async with everlog.connect(config) as log:
        await log.parts.log.create_topic("journal-orders")
        await log.journal("others").append("b", Event(2))
        before = tables(tmp_path)["journal"]
        with pipeline(config) as running:
            assert running.wait_until_replicated(WAIT)
            assert "made again" in running.status.left_out["journal-orders"]
        assert set(before) < set(tables(tmp_path)["journal"])


async def test_the_status_is_kept_in_the_store(tmp_path: Path, pipeline: Pipeline) -> None:
    """What the pipeline does can be seen from another process, also after it stopped."""
    config = load_config(tmp_path)
    async with everlog.connect(config) as log:
        await log.journal("orders").append("a", [Event(1), Event(2)])
        assert (await log.status()).lag == 1
        with pipeline(config) as running:
            assert running.wait_until_replicated(WAIT)
            assert (await log.status()).lag == 0
        status = await log.status()
        assert status.pipeline is not None
        assert (status.pipeline.state, status.pipeline.events, status.pipeline.records) == ("stopped", 2, 1)
