"""What the real pipeline must do, on real Spark, whatever the log and the store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.api import Everlog
from everlog.config import Config
from everlog.core.record import NewRecord
from everlog.core.values import partition_of
from everlog.errors import JournalHalted
from everlog.journal.reader import Ref
from everlog.pipeline import replicator as replicate_module
from everlog.pipeline.phases import PHASES
from everlog.pipeline.status import PipelineStatus
from everlog.testing.replication import replicate
from everlog.testing.tag_support import check_order
from tests.conftest import Pipeline
from tests.lap_support import check_laps, note_laps
from tests.pipeline.backends import Backend, Tables
from tests.waiting import until

WAIT = 120
TOPIC = "orders"


async def fill(config: Config) -> None:
    """A bit of everything: appends, deletes, purges, second lives, expiry, snapshots, conflicts, bad records."""
    async with everlog.connect(config) as log:
        journal = log.journal(TOPIC)
        for number in range(120):
            key = f"order-{number % 8}"
            await journal.append(key, [Event({"n": number}), Event(f"text {number}", tags={"eu"})])
            if number % 9 == 4:
                await journal.delete(key, to=number // 8 + 1)
            if number % 31 == 30:
                await journal.snapshots.save(key, seq_nr=1, payload={"state": number})
                await journal.purge(key)
            if number % 13 == 5:
                await journal.mark(key)
        await journal.append("expiring", Event(b"\x00\x01"), expire_after=timedelta(days=1), headers={"trace": "ü"})
        await journal.append("order-1", Event("late", seq_nr=1_000), verdict=False)
        await journal.append("order-1", Event("fork", seq_nr=1), verdict=False)
        ref = await journal.ref("broken")
        assert ref is not None
        bad = NewRecord(ref.partition, 1, ref.key, b'{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}', b"{")
        await log.parts.log.append(ref.log_topic, bad)
        misplaced = NewRecord(1 - ref.partition, 1, ref.key, b'{"purge":{}}', None)
        await log.parts.log.append(ref.log_topic, misplaced)
        await journal.append("order-2", Event("after the broken one"))


def append_of(ref: Ref, text: str) -> NewRecord:
    """The first event of a journal, by hand."""
    action = b'{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}'
    event = {"seqNr": 1, "tags": [], "payloadType": "text", "payload": text}
    return NewRecord(ref.partition, 1, ref.key, action, msgspec.json.encode({"events": [event]}))


async def journal_append(log: Everlog, key: str) -> None:
    """Past the reader's own look at the journal, which a refused head would stop."""
    ref = await log.journal(TOPIC).ref(key)
    assert ref is not None
    await log.parts.log.append(ref.log_topic, append_of(ref, "1"))


async def uninterrupted(backend: Backend) -> Tables:
    """The tables that the same log gives when it is folded in one go, without Spark."""
    twin = backend.twin()
    async with everlog.connect(twin.config) as log:
        await replicate(log)
    return await twin.tables()


async def check_tables(backend: Backend) -> None:
    """The tables are those that the log gives without any pipeline; one table after the other, to see what differs."""
    found, right = await backend.tables(), await uninterrupted(backend)
    assert found.keys() == right.keys()
    for name, rows in right.items():
        assert found[name] == rows, name
    await check_view(backend.config, len([row for row in found["tag_views"] if row[0] == "eu"]))


async def check_view(config: Config, events: int) -> None:
    """The whole view is below the watermark, and in order: each journal's numbers count from 1."""
    async with everlog.connect(config) as log:
        seen = [event async for event in log.tag("eu").current()]
    assert len(seen) == events
    check_order(seen)


def check_measures(status: PipelineStatus, tables: Tables) -> None:
    """Every row is counted once, also by a pipeline that had to try again; a batch's phases are within the batch.

    Of the other tables more was written than is there: heads again and again, events that were deleted later.
    """
    for name in ("tag_views", "rejected", "quarantine"):
        assert status.rows[name] == len(tables[name]), name
    assert status.rows["journal"] == status.events >= len(tables["journal"])
    assert status.rows["metajournal"] >= len(tables["metajournal"])
    assert 0 < len(status.recent) <= status.cycles
    for batch in status.recent:
        assert batch.phases.keys() <= {phase.name for phase in PHASES}, "a batch without records has no tasks"
        assert min(batch.phases.values()) >= 0
        assert 0 < sum(batch.phases.values()) <= batch.ms + 0.001, batch
    assert 0 < sum(status.phase_ms.values()) <= status.cycle_ms + 0.001


def in_batches(config: Config, most: int) -> Config:
    return msgspec.structs.replace(config, pipeline=msgspec.structs.replace(config.pipeline, max_cycle_records=most))


class PipelineSuite:
    """Needs a fixture `backend`: two partitions, segments of three events."""

    async def test_the_tables_are_the_fold_of_the_log(self, backend: Backend, pipeline: Pipeline) -> None:
        """Spark in small batches and a plain fold in one go give the same tables, pointers included."""
        await fill(backend.config)
        with pipeline(in_batches(backend.config, 70)) as running:
            assert running.wait_until_replicated(WAIT), running.status
            assert running.status.cycles > 1
            assert (running.status.rejected, running.status.quarantined) == (1, 2)
        await check_tables(backend)
        check_measures(running.status, await backend.tables())
        assert {key.topic for key in running.status.slowest} == {TOPIC}

    @pytest.mark.case("kafka-journal", 30)
    async def test_two_pipelines_at_once(self, backend: Backend, pipeline: Pipeline) -> None:
        """Two pipelines, each replaying what the other did, give the tables that one gives; also under load."""
        await fill(backend.config)
        config = in_batches(backend.config, 50)
        with pipeline(config) as first, pipeline(config) as second:
            async with everlog.connect(config) as log:
                for number in range(60):
                    await log.journal(TOPIC).append(f"order-{number % 3}", Event(number))
                    if number % 20 == 10:
                        await log.journal(TOPIC).purge(f"order-{number % 3}")
            assert first.wait_until_replicated(WAIT), first.status
            assert second.wait_until_replicated(WAIT), second.status
            assert first.status.last_error is None
            assert second.status.last_error is None
        await check_tables(backend)

    @pytest.mark.case("kafka-journal", 5, 27, 32)
    async def test_marks_and_foreign_records_move_the_pointer_only(self, backend: Backend, pipeline: Pipeline) -> None:
        """Marks, and records that are no actions, write nothing but pointer2; its creation time stays."""
        topic = backend.topic(TOPIC)
        async with everlog.connect(backend.config) as log:
            journal = log.journal(TOPIC)
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
            with pipeline(backend.config) as running:
                assert running.wait_until_replicated(WAIT), running.status
                found = await backend.tables()
                assert (topic, token.partition, token.offset + 4) in found.pop("pointer2")
                assert not any(found.values())
                before = await backend.pointer_times(topic, token.partition)
                assert before[0] == before[1]
                await journal.mark("watched")
                assert running.wait_until_replicated(WAIT), running.status
                after = await backend.pointer_times(topic, token.partition)
                assert after[0] == before[0] <= after[1]
            assert await journal.pointer("watched") is None

    @pytest.mark.case("kafka-journal", 33)
    async def test_topics_of_the_prefix_are_found_while_it_runs(self, backend: Backend, pipeline: Pipeline) -> None:
        """Topics outside the prefix are not replicated; one that is created later is picked up by itself, from its
        beginning."""
        async with everlog.connect(backend.config) as log:
            await log.journal("early").append("a", Event(1))
            other = await log.parts.log.create_topic(f"other-{backend.topic(TOPIC)}")
            await log.parts.log.append(other, NewRecord(0, 1, b"a", b'{"purge":{}}', None))
            with pipeline(backend.config) as running:
                assert running.wait_until_replicated(WAIT), running.status
                for number in range(10):
                    token = await log.journal("late").append("b", Event(number))
                assert running.wait_until_replicated(WAIT), running.status
                assert running.status.last_error is None
                assert await log.parts.store.pointer(backend.topic("late"), token.partition) == token.offset
            assert await log.parts.store.pointer(other.name, 0) == -1
            assert await log.parts.store.head(backend.topic("late"), "b") is not None

    async def test_it_starts_without_any_topic(self, backend: Backend, pipeline: Pipeline) -> None:
        async with everlog.connect(backend.config) as log:
            with pipeline(backend.config) as running:
                token = await log.journal("first").append("a", Event(1))
                assert running.wait_until_replicated(WAIT), running.status
                assert running.status.state == "running"
                assert running.status.last_error is None
                assert await log.parts.store.pointer(backend.topic("first"), token.partition) == token.offset

    async def test_a_status_that_cannot_be_saved_stops_nothing(
        self, backend: Backend, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever is raised: the loop goes on, also while it says what went wrong, and it can be stopped."""

        async def refuse(*_: object) -> None:
            raise ValueError("no room for words")

        async with everlog.connect(backend.config) as log:
            await log.journal(TOPIC).append("a", Event(1))
            monkeypatch.setattr(replicate_module, "save_pipeline_status", refuse)
            with pipeline(backend.config) as running:
                assert running.wait_until_replicated(WAIT), running.status
                await backend.refuse(backend.topic(TOPIC), "bad")
                await journal_append(log, "bad")

                async def complains() -> bool:
                    return " bad: " in (running.status.last_error or "")

                await until(complains, seconds=WAIT, every=0.05)
                await backend.allow(backend.topic(TOPIC), "bad")
                assert running.wait_until_replicated(WAIT), running.status
            assert running.status.state == "stopped"

    async def test_readers_beside_the_pipeline_need_no_poll(self, backend: Backend, pipeline: Pipeline) -> None:
        """A live reader of a tag in the pipeline's own process is told that the watermark moved."""
        tags = msgspec.structs.replace(backend.config.tags, poll_interval_s=3600.0)
        config = msgspec.structs.replace(backend.config, tags=tags)
        async with everlog.connect(config) as log:
            await log.journal(TOPIC).append("a", Event(1, tags={"eu"}))
            with pipeline(config) as running:
                assert running.wait_until_replicated(WAIT), running.status
                async with asyncio.timeout(WAIT), aclosing(log.tag("eu").live()) as events:
                    assert (await anext(events)).event.payload == 1
                    waiting = asyncio.ensure_future(anext(events))
                    await asyncio.sleep(0)
                    await log.journal(TOPIC).append("a", Event(2, tags={"eu"}))
                    assert (await waiting).event.payload == 2

    @pytest.mark.case("kafka-journal", 29)
    async def test_a_failing_journal_holds_back_only_the_pointer(self, backend: Backend, pipeline: Pipeline) -> None:
        """The others of its batch are written, pointer2 stays; when the cause is gone, it goes on by itself."""
        topic = backend.topic(TOPIC)
        async with everlog.connect(backend.config) as log:
            journal, store = log.journal(TOPIC), log.parts.store
            with pipeline(backend.config) as running:
                for number in range(8):
                    await journal.append(f"early-{number}", Event(0))
                assert running.wait_until_replicated(WAIT), running.status
                await backend.refuse(topic, "bad")
                ref = await journal.ref("bad")
                assert ref is not None
                names = [f"good-{number}" for number in range(20)]
                good = next(name for name in names if partition_of(name.encode(), 2) == ref.partition)
                bad = (await log.parts.log.append(ref.log_topic, append_of(ref, "1"))).offset
                token = await journal.append(good, Event(3))

                async def complains() -> bool:
                    return " bad: " in (running.status.last_error or "")

                async def good_is_written() -> bool:
                    return await store.head(topic, good) is not None

                await until(complains, seconds=WAIT, every=0.05)
                await until(good_is_written, seconds=WAIT, every=0.05)
                assert await store.pointer(topic, ref.partition) < bad
                assert not running.wait_until_replicated(0.1)
                await backend.allow(topic, "bad")
                assert running.wait_until_replicated(WAIT), running.status
                assert running.status.state == "running"
            assert await store.pointer(topic, ref.partition) >= token.offset
            tables = await backend.tables()
            check_measures(running.status, tables)
            assert running.status.rows["journal"] == len(tables["journal"]) == 10, (
                "each row once, however often it tried"
            )
            assert running.status.rows["metajournal"] == 10
            assert [event.payload async for event in journal.read("bad")] == ["1"]

    @pytest.mark.case("kafka-journal", 54)
    async def test_a_bad_record_halts_its_journal_only(self, backend: Backend, pipeline: Pipeline) -> None:
        """It is kept with its bytes; other journals go on; skip and retry take up what waits."""
        async with everlog.connect(backend.config) as log:
            journal = log.journal(TOPIC)
            await journal.append("sick", Event("before"))
            ref = await journal.ref("sick")
            assert ref is not None
            bad = NewRecord(ref.partition, 1, ref.key, b'{"append":', b"?", (("trace", b"7"),))
            offset = (await log.parts.log.append(ref.log_topic, bad)).offset
            after = b'{"append":{"range":{"from":2,"to":2},"payloadType":"json"}}'
            value = b'{"events":[{"seqNr":2,"tags":[],"payloadType":"text","payload":"after"}]}'
            await log.parts.log.append(ref.log_topic, NewRecord(ref.partition, 2, ref.key, after, value))
            with pipeline(backend.config) as running:
                await journal.append("well", Event("fine"))
                assert running.wait_until_replicated(WAIT), running.status
                assert [event.payload async for event in journal.read("well")] == ["fine"]
                with pytest.raises(JournalHalted):
                    assert [event.payload async for event in journal.read("sick")] == ["before"]
                with pytest.raises(JournalHalted):
                    await journal.append("sick", Event("more"))
                shown = await log.quarantine.show(TOPIC, ref.partition, offset)
                assert shown.value == b"?"
                assert shown.headers == (("trace", b"7"),)
                await log.quarantine.skip(TOPIC, "sick")
                assert [event.payload async for event in journal.read("sick")] == ["before", "after"]
                assert running.wait_until_replicated(WAIT), running.status
                assert [event.payload async for event in journal.read("sick")] == ["before", "after"]
                assert not (await backend.tables())["quarantine"]

    @pytest.mark.case("kafka-journal", 40)
    async def test_a_new_life_after_a_purge(self, backend: Backend, pipeline: Pipeline) -> None:
        """Events 1 to 3 are in the tables, a purge and a new event 1 are not: only the new one is read, before and
        after they are replicated."""
        async with everlog.connect(backend.config) as log:
            journal = log.journal(TOPIC)
            await journal.append("k", [Event("old") for _ in range(3)])
            with pipeline(backend.config) as running:
                assert running.wait_until_replicated(WAIT), running.status
            await journal.purge("k")
            await journal.append("k", Event("new"), expected=0)
            assert [(event.seq_nr, event.payload) async for event in journal.read("k")] == [(1, "new")]
            assert await journal.pointer("k") == 1
            with pipeline(backend.config) as running:
                assert running.wait_until_replicated(WAIT), running.status
            assert [(event.seq_nr, event.payload) async for event in journal.read("k")] == [(1, "new")]
            assert [row["seq_nr"] for row in (await backend.tables())["journal"]] == [1]

    @pytest.mark.case("kafka-journal", 43)
    async def test_gaps_and_deletes_that_go_down(self, backend: Backend, pipeline: Pipeline) -> None:
        """A gap at the end of a segment hides nothing; of two deletes the larger one counts, in one batch or two."""
        async with everlog.connect(backend.config) as log:
            journal = log.journal(TOPIC)
            await journal.append("gap", [Event(n, seq_nr=n) for n in (1, 4, 5)])
            for name in ("one batch", "two batches"):
                await journal.append(name, [Event(n) for n in range(1, 7)])
                await journal.delete(name, to=4)
            await journal.delete("one batch", to=3)
            with pipeline(backend.config) as running:
                assert running.wait_until_replicated(WAIT), running.status
                await journal.delete("two batches", to=3)
                assert running.wait_until_replicated(WAIT), running.status
            assert [event.seq_nr async for event in journal.read("gap")] == [1, 4, 5]
            for name in ("one batch", "two batches"):
                assert [event.seq_nr async for event in journal.read(name)] == [5, 6]
                head = await log.parts.store.head(backend.topic(TOPIC), name)
                assert head is not None
                assert head.delete_to == 4

    async def test_the_status_is_kept_in_the_store(
        self, backend: Backend, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the pipeline does can be seen from another process, also after it stopped; also where its time went."""
        noted = note_laps(monkeypatch, replicate_module)
        async with everlog.connect(backend.config) as log:
            await log.journal(TOPIC).append("a", [Event(1), Event(2)])
            assert (await log.status()).lag == 1
            with pipeline(backend.config) as running:
                assert running.wait_until_replicated(WAIT), running.status
                assert (await log.status()).lag == 0
            status = await log.status()
            assert status.pipeline is not None
            assert (status.pipeline.state, status.pipeline.events, status.pipeline.records) == ("stopped", 2, 1)
            check_measures(status.pipeline, await backend.tables())
            assert [(one.topic, one.id, one.records, one.events) for one in status.pipeline.slowest] == [
                (TOPIC, "a", 1, 2)
            ]
            check_laps(noted)
            assert [phase for phase in noted if phase[0] == "="][:4] == ["=plan", "=spark", "=publish", "=watermark"]
