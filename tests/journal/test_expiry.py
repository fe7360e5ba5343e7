"""Expiry: journals whose time has come are purged through the log."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from random import Random, randrange

import msgspec
import pytest

from everlog.client import connect
from everlog.config import PipelineConfig
from everlog.core.events import Event
from everlog.core.values import head_segment
from everlog.errors import InvalidInput
from everlog.journal.expiry import Expiry
from everlog.testing import replicate
from everlog.testing.journal_support import keys, read
from tests.journal.expiry_support import check_expiry
from tests.support import examples, small_config

DAY = 86_400


def today(clock) -> date:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).date()


async def ends(log) -> int:
    return sum(partition.end for partition in (await log.status()).partitions)


@pytest.mark.case("kafka-journal", 50)
async def test_expired_journals_vanish(small_log, clock):
    """Two ids in two head segments expire today: two purges, both gone after replication; others stay."""
    journal = small_log.journal("t")
    assert head_segment("a") != head_segment("b")
    for journal_id, days in (("a", 1), ("b", 1), ("later", 5)):
        await journal.append(journal_id, Event(1), expire_after=timedelta(days=days))
    await journal.append("forever", Event(1))
    await replicate(small_log)
    assert (await small_log.expire()).purged == {"t": 0}
    clock.advance(DAY)
    before = await ends(small_log)
    report = await small_log.expire()
    assert report.purged == {"t": 2}
    assert report.until == datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    assert await ends(small_log) == before + 2
    assert await keys(journal) == ["forever", "later"], "readers fold the purges from the tail"
    await replicate(small_log)
    assert await keys(journal) == ["forever", "later"]
    assert await journal.pointer("a") is None
    assert (await small_log.expire()).purged == {"t": 0}


@pytest.mark.case("kafka-journal", 50)
async def test_a_journal_extended_meanwhile_is_kept(small_log, clock):
    """Extended before the run, but not replicated: no purge. Extended while the purge is on its way: the fold keeps
    it, because the purge carries its day."""
    journal = small_log.journal("t")
    for journal_id in ("before", "between", "gone"):
        await journal.append(journal_id, Event(1), expire_after=timedelta(days=1))
    await replicate(small_log)
    clock.advance(DAY)
    await journal.append("before", Event(2), expire_after=timedelta(days=1))
    produce = small_log.parts.writer.produce

    async def extend_first(ref, action, *rest, **more):
        if ref.id == "between":
            small_log.parts.writer.produce = produce
            await journal.append("between", Event(2), expire_after=timedelta(days=1))
        return await produce(ref, action, *rest, **more)

    small_log.parts.writer.produce = extend_first
    assert (await small_log.expire()).purged == {"t": 2}
    for _ in range(2):
        assert await keys(journal) == ["before", "between"]
        assert await read(journal, "between") == [1, 2]
        await replicate(small_log)


@pytest.mark.case("kafka-journal", 50)
async def test_missed_days_are_caught_up(small_log, clock):
    """Nobody ran for ten days: journals of all those days go in one run."""
    journal = small_log.journal("t")
    for days in range(1, 9):
        await journal.append(f"day-{days}", Event(1), expire_after=timedelta(days=days))
    await journal.append("day-20", Event(1), expire_after=timedelta(days=20))
    await replicate(small_log)
    clock.advance(10 * DAY)
    assert (await small_log.expire()).purged == {"t": 8}
    await replicate(small_log)
    assert await keys(journal) == ["day-20"]


async def test_23_hours_are_23_hours(small_log, clock):
    """Not a day that begins earlier: nothing is lost before its time, and nothing stays a day longer."""
    journal = small_log.journal("t")
    clock.advance(DAY - clock.now_ms() // 1000 % DAY + 600)
    assert datetime.fromtimestamp(clock.now_ms() / 1000, UTC).hour == 0
    await journal.append("k", Event(1), expire_after=timedelta(hours=23))
    await journal.snapshots.save("k", seq_nr=1, payload="state")
    await replicate(small_log)
    for seconds, purged in ((3600, 0), (22 * 3600 - 0.001, 0), (0.001, 1)):
        clock.advance(seconds)
        assert (await small_log.expire()).purged == {"t": purged}
    await replicate(small_log)
    assert await journal.pointer("k") is None
    await journal.append("k", Event("a new life"))
    assert (await journal.recover("k")).snapshot is None


async def test_an_extension_by_a_millisecond_is_enough(small_log, clock):
    journal = small_log.journal("t")
    await journal.append("k", Event(1), expire_after=timedelta(hours=1))
    await replicate(small_log)
    clock.advance(3600)
    await journal.append("k", Event(2), expire_after=timedelta(milliseconds=1))
    assert (await small_log.expire()).purged == {"t": 0}
    await replicate(small_log)
    clock.advance(0.001)
    assert (await small_log.expire()).purged == {"t": 1}


async def test_a_journal_is_purged_when_its_time_has_come_and_not_before(small_log, clock):
    seed = randrange(10**6)
    print(f"seed {seed}")
    await small_log.journal("t").mark("first")
    await check_expiry(small_log, clock, Random(seed), runs=examples(40), appends=15)


async def test_a_head_that_was_taken_over_expires_with_its_day(small_log, clock):
    """kafka-journal stores the day and no time."""
    journal = small_log.journal("t")
    await journal.append("k", Event(1), expire_after=timedelta(days=2, hours=1))
    await replicate(small_log)
    with closing(sqlite3.connect(small_log.config.folder / "store.db", isolation_level=None)) as connection:
        connection.execute("UPDATE metajournal SET expire_at = NULL")
    assert (await small_log.expire(day=today(clock) + timedelta(days=1))).purged == {"t": 0}
    clock.advance(2 * DAY - clock.now_ms() // 1000 % DAY)
    assert (await small_log.expire()).purged == {"t": 1}
    assert await journal.pointer("k") is None


async def test_a_day_is_its_end(small_log, clock):
    """`day=` means before that day is over: also what expires later on it."""
    journal = small_log.journal("t")
    rest = DAY - clock.now_ms() // 1000 % DAY
    await journal.append("last second", Event(1), expire_after=timedelta(seconds=rest - 1))
    await journal.append("midnight", Event(1), expire_after=timedelta(seconds=rest))
    await replicate(small_log)
    assert (await small_log.expire()).purged == {"t": 0}
    report = await small_log.expire(day=today(clock))
    assert (report.purged, report.until.time().isoformat()) == ({"t": 1}, "23:59:59.999000")
    assert await keys(journal) == ["midnight"]
    assert (await small_log.expire(day=date.max)).purged == {"t": 1}
    assert (await small_log.expire(day=date.min)).purged == {"t": 0}


async def test_a_day_and_topics_can_be_chosen(small_log, clock):
    for topic in ("t", "u"):
        await small_log.journal(topic).append("k", Event(1), expire_after=timedelta(days=3))
    await replicate(small_log)
    assert (await small_log.expire(day=today(clock) + timedelta(days=2))).purged == {"t": 0, "u": 0}
    assert (await small_log.expire(day=today(clock) + timedelta(days=3), topics=["u"])).purged == {"u": 1}
    with pytest.raises(InvalidInput, match="no topic 'x'"):
        await small_log.expire(topics=["x"])


async def test_a_run_that_is_repeated_adds_nothing(small_log, clock):
    """The pipeline is stopped: the purge of the first run is in the tail, so a second run needs none."""
    await small_log.journal("t").append("k", Event(1), expire_after=timedelta(days=1))
    await replicate(small_log)
    clock.advance(2 * DAY)
    await small_log.expire()
    before = await ends(small_log)
    assert (await small_log.expire()).purged == {"t": 0}
    assert await ends(small_log) == before


async def test_old_purge_markers_are_dropped(small_log, clock):
    """A marker guards against late repeats for ten days; then it goes, if it is replicated."""
    journal = small_log.journal("t")
    await journal.append("k", Event(1))
    await journal.purge("k")
    await replicate(small_log)
    clock.advance(9 * DAY)
    assert (await small_log.expire()).markers == {"t": 0}
    assert await small_log.parts.store.head("journal-t", "k") is not None
    clock.advance(2 * DAY)
    assert (await small_log.expire()).markers == {"t": 1}
    assert await small_log.parts.store.head("journal-t", "k") is None
    await journal.append("k", Event("again"), expected=0)
    await replicate(small_log)
    assert await read(journal) == [1]


async def test_a_topic_that_fails_does_not_stop_the_others(small_log, clock):
    """One topic was made again under its name: the report says so, the other one is done."""
    for topic in ("a", "b"):
        await small_log.journal(topic).append("k", Event(1), expire_after=timedelta(days=1))
    await replicate(small_log)
    clock.advance(2 * DAY)
    with closing(sqlite3.connect(small_log.config.folder / "log.db", isolation_level=None)) as connection:
        connection.execute("UPDATE topic SET id = 'another' WHERE name = 'journal-a'")
    report = await small_log.expire()
    assert report.purged == {"b": 1}
    assert "made again" in report.failed["a"]
    assert "failed" in str(report)


async def test_the_service_runs_until_it_is_stopped(tmp_path, clock):
    """It runs at once, then again and again; an error is kept and does not end it; its status is in the store."""
    config = msgspec.structs.replace(small_config(tmp_path), pipeline=PipelineConfig(expire_interval_s=0.001))
    async with connect(config, clock=clock) as log:
        await log.journal("t").append("k", Event(1), expire_after=timedelta(days=1))
        await replicate(log)
        clock.advance(2 * DAY)
        service = Expiry(log.parts)
        assert not service.status().running
        service.start()
        service.start()
        await service.ran(3)
        assert service.status().running
        await service.stop()
        await service.stop()
        status = service.status()
        assert not status.running
        assert (status.failures, status.last_error) == (0, None)
        assert await log.journal("t").pointer("k") is None
        assert (await log.status()).services["expiry"]["runs"] == status.runs
        runs = status.runs
        service.start()
        await service.ran(runs + 1)
        await service.stop()
