"""Views by tag in the embedded store: what failures leave behind, and how much is read."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest

from everlog import sync
from everlog.client import connect
from everlog.core.events import Event
from everlog.core.values import partition_of
from everlog.errors import InvalidInput, ReplicationFailed, StorageFailed
from everlog.journal.topic_registry import pin_topic
from everlog.pipeline.planner import OrderPlanner
from everlog.tags import view_reader
from everlog.testing.replication import replicate
from everlog.testing.tag_support import CountingTables, configured, everything, payloads, tag_through
from tests.support import ManualClock, small_config


def execute(log, statement: str) -> list[tuple]:
    with closing(sqlite3.connect(log.config.folder / "store.db", isolation_level=None)) as connection:
        return connection.execute(statement).fetchall()


@pytest.mark.case("tags-and-projections", 12, 22, 23)
async def test_a_view_that_cannot_be_written(small_log) -> None:
    """The append is not touched by that: the journal has the event. Nothing is published past it, however often it
    is tried; when the store takes it, it gets the number and the place that it had from the start."""
    orders = small_log.journal("orders")
    await orders.append("a", [Event(1, tags={"t"})])
    await replicate(small_log)
    pointers, before = await small_log.parts.store.pointers("journal-orders"), await everything(small_log.tag("t"))
    execute(
        small_log,
        "CREATE TRIGGER refuse BEFORE INSERT ON tag_views WHEN new.tag_name = 'slow' "
        "BEGIN SELECT raise(ABORT, 'refused'); END",
    )
    await orders.append("a", [Event(2, tags={"t", "slow"})])
    for _ in range(3):
        with pytest.raises(ReplicationFailed, match="refused"):
            await replicate(small_log)
    assert [event.payload async for event in orders.read("a")] == [1, 2]
    assert await small_log.parts.store.pointers("journal-orders") == pointers
    assert await everything(small_log.tag("t")) == before
    plans = execute(small_log, "SELECT nr FROM tag_plan")
    execute(small_log, "DROP TRIGGER refuse")
    await replicate(small_log)
    assert [(event.payload, event.number) for event in await everything(small_log.tag("t"))] == [(1, 1), (2, 2)]
    assert [(event.payload, event.number) for event in await everything(small_log.tag("slow"))] == [(2, 1)]
    assert execute(small_log, "SELECT nr FROM tag_plan") == plans, "its place was decided before the first try"


@pytest.mark.case("tags-and-projections", 24)
async def test_views_that_are_switched_off(tmp_path) -> None:
    """Nothing is written into the tables of tags, and reading by tag fails at once. Journals are as ever."""
    async with connect(small_config(tmp_path / "data"), clock=ManualClock()) as log:
        off = configured(log, enabled=False)
        await off.journal("orders").append("a", [Event(1, tags={"t"})])
        await replicate(off)
        for table in ("tag_views", "tag_write_progress", "tag_buckets", "tag_watermark", "tag_plan"):
            assert execute(log, f"SELECT * FROM {table}") == []
        with pytest.raises(InvalidInput, match="enabled"):
            off.tag("t")
        with pytest.raises(InvalidInput, match="enabled"):
            await off.tags()
        assert [event.payload async for event in off.journal("orders").read("a")] == [1]


async def test_a_thousand_days(tmp_path) -> None:
    """Two events on each of a thousand days, years apart from today: only buckets that exist are read, each once."""
    clock = ManualClock()
    async with connect(small_config(tmp_path / "data"), clock=clock) as log:
        daily = configured(log, bucket="day")
        for day in range(1000):
            await daily.journal("orders").append("a", [Event(2 * day, tags={"t"}), Event(2 * day + 1, tags={"t"})])
            await replicate(daily)
            clock.advance(86_400 * 3)
        clock.advance(86_400 * 5_000)
        counting = CountingTables(log.parts.store.tags)
        assert await payloads(tag_through(log, counting)) == list(range(2000))
        assert counting.calls == {"watermark": 1, "buckets": 1, "rows": 1000}


@pytest.mark.case("tags-and-projections", 48)
async def test_a_journal_over_many_segments(tmp_path) -> None:
    """Segments of fifteen, and appends of ten, five, two, fourteen and one event: by journal they come from 1 to 32,
    from the log and from the tables. (Each row is in the segment of its own seqNr, so nothing moves with its append.)
    """
    config = small_config(tmp_path / "data", segment_size=15)
    async with connect(config, clock=ManualClock()) as log:
        for count in (10, 5, 2, 14, 1):
            await log.journal("orders").append("a", [Event(0) for _ in range(count)])
        for settle in (False, True):
            if settle:
                await replicate(log)
            found = [event.seq_nr async for event in log.events_by_persistence_id("orders", "a")]
            assert found == list(range(1, 33))
        segments = execute(log, "SELECT segment, min(seq_nr), max(seq_nr) FROM journal GROUP BY 1 ORDER BY 1")
        assert segments == [(0, 1, 15), (1, 16, 30), (2, 31, 32)]


async def test_an_event_without_tags_costs_no_statement(tmp_path) -> None:
    """A topic without tags is written as it always was: nothing is said to the tables of views by its tasks."""
    statements: list[str] = []
    async with connect(
        small_config(tmp_path / "data"), clock=ManualClock(), trace=lambda statement, _: statements.append(statement)
    ) as log:
        await log.journal("orders").append("a", [Event(1), Event(2)])
        await replicate(log)
    written = {statement.split()[2] for statement in statements if statement.startswith("INSERT INTO")}
    assert "journal" in written
    assert not written & {"tag_views", "tag_buckets", "tag_write_progress"}


async def test_the_status_says_what_the_watermark_waits_for(tmp_path) -> None:
    """A topic whose batch was planned and never finished holds the views, also those of others, and is named."""
    async with connect(small_config(tmp_path / "data"), clock=ManualClock()) as log:
        await log.journal("lost").append("a", [Event(1, tags={"t"})])
        await replicate(log, publish=False)
        other = configured(log)
        await log.journal("orders").append("b", [Event(2, tags={"t"})])
        planner = OrderPlanner(log.parts.store, other.config.tags, log.parts.clock)
        partition = partition_of(b"b", 2)
        await pin_topic(log.parts.store, await log.parts.log.topic("journal-orders"), other.config, log.parts.clock)
        await planner.prepare({f"journal-orders/{partition}": 1}, {})
        await log.parts.store.publish({("journal-orders", partition): 0}, 0)
        await planner.publish()
        assert planner.holding == [f"journal-lost/{partition_of(b'a', 2)}"]
        assert planner.watermark.nr == 0
        assert await everything(log.tag("t")) == []
        # Nobody waits for a topic that is retired; nor for one that goes on after all.
        await log.parts.store.tags.pin("retired:journal-lost", "", 0)
        patient = OrderPlanner(log.parts.store, other.config.tags, log.parts.clock)
        await patient.publish()
        assert (patient.holding, patient.watermark.nr) == ([], 2)
        await log.parts.store.publish({("journal-lost", partition_of(b"a", 2)): 0}, 0)
        await planner.publish()
        assert (planner.holding, planner.watermark.nr) == ([], 2)


async def test_a_log_that_is_closed_wakes_its_readers(tmp_path) -> None:
    log = connect(small_config(tmp_path / "data"), clock=ManualClock())
    await log.__aenter__()
    view_reader = asyncio.ensure_future(anext(log.tag("t").live()))
    await asyncio.sleep(0.05)
    await log.close()
    with pytest.raises(StorageFailed, match="closed"):
        await asyncio.wait_for(view_reader, 60)


def test_the_blocking_twin(tmp_path) -> None:
    """The same without `await`: a live iterator gives each event as it comes, and does not wait for a page to fill."""
    config = small_config(tmp_path / "data", partitions=1)
    with sync.connect(config, clock=ManualClock()) as log:

        def append(*payloads: object) -> None:
            for payload in payloads:
                log.journal("orders").append("a", [Event(payload, tags={"t"})])
            log._portal.call(replicate(log._inner))

        append(1, 2)
        assert [event.payload for event in log.tag("t").current()] == [1, 2]
        assert [len(page) for page in log.tag("t").current_pages()] == [2]
        live = log.tag("t").live()
        assert [next(live).payload, next(live).payload] == [1, 2]
        append(3)
        assert next(live).payload == 3
        assert [info.tag for info in log.tags()] == ["t"]
        assert log.tag("t").verify().right
        assert [event.seq_nr for event in log.events_by_persistence_id("orders", "a", 2)] == [2, 3]
        assert list(log.persistence_ids("orders")) == ["a"]
        assert next(log.persistence_ids("orders", live=True)) == "a"
        assert list(log.slices().current()) == []
        assert log.tag("t").drop() == 3


async def test_a_page_is_bounded_in_bytes(tmp_path, monkeypatch) -> None:
    """Large events come in small pages, small ones in pages of the size that was asked for."""
    monkeypatch.setattr(view_reader, "PAGE_BYTES", 10_000)
    monkeypatch.setattr(view_reader, "FIRST_ROWS", 3)
    async with connect(small_config(tmp_path / "data", partitions=1), clock=ManualClock()) as log:
        for number in range(20):
            await log.journal("orders").append("a", [Event("x" * (4_000 if number < 8 else 10), tags={"t"})])
        await replicate(log)
        pages = [page async for page in log.tag("t").current_pages()]
        assert [event.seq_nr for page in pages for event in page] == list(range(1, 21))
        assert [len(page) for page in pages[:3]] == [3, 2, 2]
        assert all(sum(len(event.payload) for event in page) <= 12_000 for page in pages)
