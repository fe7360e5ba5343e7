"""Retention of the embedded log: only replicated records go, and nobody notices."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config, LogConfig
from everlog.core.events import Event
from everlog.errors import Conflict, Overtaken
from everlog.journal.retention import Retention
from everlog.log.sqlite import trimmer as trimmer_module
from everlog.testing import replicate
from everlog.testing.journal_support import events, keys, read
from tests.support import small_config

HOUR = 3600


def config_for(folder, partitions: int = 1, **settings: object) -> Config:
    log = LogConfig(partitions=partitions, synchronous="NORMAL", **settings)
    return msgspec.structs.replace(small_config(folder), log=log)


@pytest.fixture
async def aging(tmp_path, clock) -> AsyncIterator[Everlog]:
    """Keeps replicated records for an hour."""
    async with connect(config_for(tmp_path, retention_hours=1), clock=clock) as log:
        yield log


async def start_and_end(log: Everlog) -> tuple[int, int]:
    (partition,) = (await log.status()).partitions
    return partition.start, partition.end


def sizes(log: Everlog) -> list[int]:
    """What each record holds, oldest first."""
    columns = " + ".join(f"coalesce(length({name}), 0)" for name in ("key", "action", "value", "headers"))
    with closing(sqlite3.connect(log.config.folder / "log.db")) as connection:
        return [size for (size,) in connection.execute(f"SELECT {columns} FROM record ORDER BY offset")]


async def test_without_settings_everything_stays(tmp_path, clock):
    async with connect(config_for(tmp_path), clock=clock) as log:
        await log.journal("t").append("k", events(1, 3))
        await replicate(log)
        clock.advance(10_000 * HOUR)
        assert await log.trim() == {}
        assert await start_and_end(log) == (0, 1)


async def test_young_records_stay(aging, clock):
    journal = aging.journal("t")
    for number in range(1, 6):
        await journal.append("k", Event(number))
        clock.advance(HOUR / 2)
    await replicate(aging)
    assert await aging.trim() == {("journal-t", 0): 3}
    assert await start_and_end(aging) == (3, 5)
    assert await read(journal) == [1, 2, 3, 4, 5]
    assert await aging.trim() == {}


async def test_a_young_record_keeps_what_follows_it(aging, clock):
    """A log has no holes: an old record behind a young one stays, as when a writer's clock is late."""
    journal = aging.journal("t")
    await journal.append("k", Event(1))
    clock.advance(5 * HOUR)
    await journal.append("k", Event(2))
    clock.advance(-5 * HOUR)
    await journal.append("k", Event(3))
    await replicate(aging)
    clock.advance(5 * HOUR)
    assert await aging.trim() == {("journal-t", 0): 1}
    assert await start_and_end(aging) == (1, 3)


async def test_what_is_not_replicated_stays_whatever_its_age(aging, clock):
    journal = aging.journal("t")
    for number in range(1, 8):
        await journal.append("k", Event(number))
    clock.advance(100 * HOUR)
    assert await aging.trim() == {}
    await replicate(aging, leave=3)
    assert await aging.trim() == {("journal-t", 0): 4}
    assert await start_and_end(aging) == (4, 7)
    assert await aging.trim() == {}
    assert await read(journal) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("chunk", [1, 2, 3, 1000])
async def test_the_newest_bytes_stay(tmp_path, clock, monkeypatch, chunk):
    """At least `retention_bytes` are kept, and no record more than needed; measured anew only where records are new."""
    monkeypatch.setattr(trimmer_module, "RECORDS_PER_TRANSACTION", chunk)
    async with connect(config_for(tmp_path, retention_bytes=1000), clock=clock) as log:
        journal = log.journal("t")
        for number in range(1, 40):
            await journal.append("k", Event("x" * (number * 7 % 50)))
            if number % 3 == 0:
                await journal.delete("k", to=number - 2)  # a record without a value
            await replicate(log)
            before = sizes(log)
            removed = sum((await log.trim()).values())
            kept = sizes(log)
            assert kept == before[removed:]
            assert sum(before) <= 1000 or sum(kept) >= 1000
            assert sum(kept[1:]) < 1000
        start, _ = await start_and_end(log)
        assert start > 20
    async with connect(config_for(tmp_path, retention_bytes=1000), clock=clock) as fresh:
        assert await fresh.trim() == {}, "another process measures the same"
        assert await read(fresh.journal("t")) == [38, 39]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
async def test_chunks_change_nothing(aging, clock, monkeypatch, chunk):
    monkeypatch.setattr(trimmer_module, "RECORDS_PER_TRANSACTION", chunk)
    journal = aging.journal("t")
    for number in range(1, 11):
        await journal.append("k", Event(number))
    await replicate(aging, leave=1)
    clock.advance(2 * HOUR)
    assert await aging.trim() == {("journal-t", 0): 9}
    assert await start_and_end(aging) == (9, 10)


async def test_offsets_go_on_after_everything_went(aging, clock):
    """An empty log still knows where it ends: positions stay valid and new ones are higher."""
    journal = aging.journal("t")
    old = await journal.append("k", events(1, 3))
    await replicate(aging)
    clock.advance(2 * HOUR)
    await aging.trim()
    assert await start_and_end(aging) == (1, 1)
    new = await journal.append("k", Event(4), expected=3)
    assert new.offset == 1
    for token in (old, new):
        assert await read(journal, after=token) == [1, 2, 3, 4]
    assert await keys(journal) == ["k"]


@pytest.mark.parametrize("expected", [None, 1])
async def test_a_writer_that_slept_gets_its_verdict(aging, clock, expected):
    """What the writer remembers of the journal is older than the log's beginning by the time it appends again."""
    journal = aging.journal("t")
    await journal.append("slow", Event(1))
    for number in range(5):
        await journal.append("other", Event(number))
    await replicate(aging)
    clock.advance(2 * HOUR)
    await aging.trim()
    token = await journal.append("slow", Event(2), expected=expected)
    assert token.range == (2, 2)
    assert await read(journal, "slow") == [1, 2]


async def test_a_writer_that_slept_learns_that_it_lost(tmp_path, clock):
    """Meanwhile another process appended, and that record is gone from the log, too."""
    config = config_for(tmp_path, retention_hours=1)
    async with connect(config, clock=clock) as one, connect(config, clock=clock) as two:
        await one.journal("t").append("k", Event("first"))
        await two.journal("t").append("k", Event("second"))
        await replicate(two)
        clock.advance(2 * HOUR)
        await two.trim()
        with pytest.raises(Conflict) as conflict:
            await one.journal("t").append("k", Event("lost"), expected=1)
        assert (conflict.value.expected, conflict.value.actual) == (1, 2)
        token = await one.journal("t").append("k", Event("third"))
        assert token.range == (3, 3)
        await replicate(one)
        payloads = [event.payload async for event in two.journal("t").read("k")]
        assert payloads == ["first", "second", "third"]


async def read_again(journal, journal_id: str) -> list[int]:
    """As a user does: an overtaken read is repeated."""
    while True:
        try:
            return await read(journal, journal_id)
        except Overtaken:
            continue


async def test_readers_and_writers_race_with_trims(tmp_path, clock, monkeypatch):
    """Three writers, three readers, replication in small batches and a trim all the time, in pages of four records:
    every append gets its verdict, every read has all that was acknowledged before it."""
    monkeypatch.setattr(trimmer_module, "RECORDS_PER_TRANSACTION", 3)
    async with connect(config_for(tmp_path, partitions=2, retention_hours=1), clock=clock) as log:
        journal = log.journal("t")
        acknowledged = dict.fromkeys(("a", "b", "c"), 0)
        writing = set(acknowledged)

        async def write(journal_id: str) -> None:
            number = 0
            while number < 120 or removed <= 100:
                number += 1
                token = await journal.append(journal_id, Event(number), expected=number - 1 if number % 2 else None)
                assert token.range == (number, number)
                acknowledged[journal_id] = number
            writing.discard(journal_id)

        async def check(journal_id: str) -> None:
            while writing:
                before = acknowledged[journal_id]
                found = await read_again(journal, journal_id)
                assert found == list(range(1, len(found) + 1))
                assert len(found) >= before
                assert (await journal.pointer(journal_id) or 0) >= before
                assert set(await keys(journal)) >= {key for key, number in acknowledged.items() if number > 1}
                await asyncio.sleep(0)

        removed = 0

        async def churn() -> None:
            nonlocal removed
            while writing:
                clock.advance(2 * HOUR)
                await replicate(log, batch=5, batches=2)
                removed += sum((await log.trim()).values())
                await asyncio.sleep(0)  # with nothing to do, none of this ever waits

        await asyncio.gather(*map(write, acknowledged), *map(check, acknowledged), churn())
        assert removed > 100
        for journal_id, number in acknowledged.items():
            assert await read(journal, journal_id) == list(range(1, number + 1))


async def test_two_trims_at_once_agree(aging, clock, monkeypatch):
    monkeypatch.setattr(trimmer_module, "RECORDS_PER_TRANSACTION", 2)
    journal = aging.journal("t")
    for number in range(1, 51):
        await journal.append("k", Event(number))
    await replicate(aging)
    clock.advance(2 * HOUR)
    done = await asyncio.gather(*(aging.trim() for _ in range(3)))
    assert sum(count for removed in done for count in removed.values()) == 50
    assert await start_and_end(aging) == (50, 50)


async def test_the_service_trims(aging, clock):
    await aging.journal("t").append("k", events(1, 2))
    await replicate(aging)
    clock.advance(2 * HOUR)
    service = Retention(aging.parts)
    service.start()
    await service.ran(1)
    await service.stop()
    assert service.status().last_result == "1 records removed"
    assert await start_and_end(aging) == (1, 1)
