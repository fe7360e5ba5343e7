"""Projections of events that Pekko Persistence writes, on tables as it and Pekko Projection make them."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

import everlog
from everlog import Projection, Restart, at_least_once, at_most_once, exactly_once, flow, grouped, pekko_tag
from everlog.config import Config, PekkoConfig
from everlog.errors import StorageFailed
from everlog.pekko.events import PekkoEvent
from everlog.projections.cassandra.offset_store import CassandraOffsetStore
from everlog.projections.port import View
from everlog.projections.recovery import Recovery
from everlog.projections.save_window import OffsetProgress
from everlog.runtime.lease import Lease
from tests.cli.test_cli_cluster import write_toml
from tests.cli_support import Cli
from tests.fixtures.keyspaces import own_keyspace, truncated
from tests.pekko.test_reader_cluster import SCHEMA, Writer
from tests.projections.test_takeover_cluster import Pekko
from tests.waiting import until

pytestmark = pytest.mark.cluster

TABLES = [SCHEMA.split(";")[index] for index in (0, 2)]  # the keyspace and the views by tag


class TagWriter(Writer):
    """Writes views only."""

    async def event(self, pid: str, number: int, ms: int, **options: Any) -> uuid.UUID:
        return await super().event(pid, number, ms, row=False, **options)


@pytest.fixture(scope="module")
def theirs() -> str:
    """The keyspace of events, for all tests; each has tags of its own."""
    return f"a{secrets.token_hex(5)}"


@pytest.fixture(scope="module")
def pekko_config(theirs) -> PekkoConfig:
    return PekkoConfig(
        keyspace=theirs,
        bucket_size="Minute",  # and the first bucket in 2015
        hold="journal",
        eventual_consistency_delay=0.2,
        refresh_interval=0.1,
        back_track_interval=0.2,
        back_track_long_interval=0.5,
        gap_timeout=60.0,
    )


@pytest.fixture
async def config(shared_config, pekko_config) -> Config:
    return msgspec.structs.replace(shared_config(), pekko=pekko_config)


@pytest.fixture
async def writer(config, theirs) -> AsyncIterator[Writer]:
    async with truncated(msgspec.structs.replace(config.cassandra, keyspace=theirs)) as session:
        for statement in TABLES:
            await session.change_schema(statement.format(ks=theirs))
        yield TagWriter(session, theirs, bucket_ms=60_000)


class Totals:
    """A table of a view, with statements for it."""

    def __init__(self) -> None:
        table = f"totals{secrets.token_hex(3)}"
        self.name = table
        self.create = (
            f"CREATE TABLE IF NOT EXISTS {table} (grp text, journal text, events text, everlog_mark text static, "
            "PRIMARY KEY (grp, journal))"
        )
        self.get = f"SELECT events FROM {table} WHERE grp = ? AND journal = ?"
        self.put = f"INSERT INTO {table} (grp, journal, events) VALUES (?, ?, ?)"
        self.all = f"SELECT grp, journal, events FROM {table}"

    async def add(self, view: View, group: str, journal: str, text: str) -> None:
        rows = await view.fetch(self.get, group, journal)
        await view.execute(self.put, group, journal, f"{rows[0][0] if rows else ''}{text}")


@pytest.fixture
def totals() -> Totals:
    return Totals()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def names(seen: list[PekkoEvent]) -> list[str]:
    return [event.payload.data.decode() for event in seen]


@pytest.fixture
async def own_config(cluster_config, pekko_config) -> Config:
    return msgspec.structs.replace(cluster_config(), pekko=pekko_config)


@pytest.fixture
async def pekko(own_config) -> AsyncIterator[Pekko]:
    """Everlog's keyspace is the one in which Pekko Projection keeps its offsets."""
    async with own_keyspace(own_config.cassandra) as session:
        found = Pekko(session)
        await found.create_tables()
        yield found


async def test_a_projection_goes_on_where_pekkos_stopped_and_back(own_config, writer, pekko, tmp_path):
    """Each of two tags is a key with its own offset; what waits is counted while nothing runs; letters come back."""
    start, offsets = now_ms() - 10_000, {}
    for tag in ("carts-0", "carts-1"):
        offsets[tag] = [await writer.event(f"{tag}-a", number, start + number, tag=tag) for number in range(1, 5)]
        await pekko.save(tag, str(offsets[tag][1]), "TBU")
    seen: list[PekkoEvent] = []

    async def take(event: PekkoEvent) -> None:
        if event.seq_nr == 4 and event.persistence_id not in names(seen):
            raise ValueError("poison")
        seen.append(event)

    carts = Projection(
        "carts",
        source=pekko_tag("carts-0", "carts-1"),
        handler=take,
        strategy=at_least_once(save_every=1),
        recovery=Recovery.skip(),
    )
    async with everlog.connect(own_config) as log:
        lags = {one.key: (one.offset, one.lag) for one in await log.projections.list("carts")}
        assert lags == {tag: (offsets[tag][1], None) for tag in offsets}, "nothing has said yet what it reads"
        async with log.projections.run(carts) as runner:
            await runner.owns("carts", 2)
            await until(lambda: sum(one.skipped for one in runner.status()["carts"].values()) == 2)
            assert sorted(names(seen)) == ["carts-0-a/3", "carts-1-a/3"]
        for tag in offsets:
            assert await pekko.read(tag) == offsets[tag][3]
        await writer.event("carts-0-a", 5, now_ms() - 1000, tag="carts-0")
        found = {one.key: one for one in await log.projections.list("carts")}
        assert {key: one.lag.events for key, one in found.items()} == {"carts-0": 1, "carts-1": 0}
        assert {one.state for one in found.values()} == {"stopped"}
        file = write_toml(own_config, tmp_path / "everlog.toml")
        listed = await asyncio.to_thread(Cli(tmp_path).lines, "projections", "list", "--config", str(file))
        assert [(one["key"], one["offset"], one["lag"]["events"]) for one in listed] == [
            ("carts-0", str(offsets["carts-0"][3]), 1),
            ("carts-1", str(offsets["carts-1"][3]), 0),
        ]

        (letter,) = [one for one in await log.projections.dead_letters("carts") if one.key == "carts-1"]
        assert letter.offset == str(offsets["carts-1"][3])
        seen.append(msgspec.structs.replace(seen[0], payload=seen[0].payload._replace(data=b"carts-1-a")))
        await log.projections.replay("carts", "carts-1")
        await pekko.save("carts-1", str(offsets["carts-1"][2]), "TBU")
        async with log.projections.run(carts):
            await until(lambda: "carts-0-a/5" in names(seen) and names(seen).count("carts-1-a/4") == 2)


async def test_every_strategy_has_every_event_though_one_is_late(config, writer, totals):
    """Late behind the position, and behind a gap; exactly once into a view whose partitions all journals share."""
    start = now_ms() - 10_000
    for number in (1, 3):
        await writer.event("a", number, start + 10 * number)
    for number in range(1, 4):
        await writer.event("b", number, start + 100 + number)
    seen: dict[str, Counter[str]] = {}

    def note(name: str, event: PekkoEvent) -> None:
        seen.setdefault(name, Counter())[event.payload.data.decode()] += 1

    async def one(event: PekkoEvent) -> None:
        note("at least once", event)

    async def many(events: list[PekkoEvent]) -> None:
        for event in events:
            note("grouped", event)

    async def once(event: PekkoEvent) -> None:
        note("at most once", event)

    async def through(items: Any) -> AsyncIterator[Any]:
        async for item in items:
            note("flow", item.envelope)
            yield item

    async def count(event: PekkoEvent, view: View) -> None:
        for group in ("all", f"journal {event.persistence_id}"):
            await totals.add(view, group, event.persistence_id, str(event.seq_nr))
        note("exactly once", event)

    def declare(name: str, handler: Any, strategy: Any) -> Projection:
        return Projection(f"{name} {totals.name}", source=pekko_tag("carts"), handler=handler, strategy=strategy)

    projections = [
        declare("one", one, at_least_once()),
        declare("many", many, grouped(size=3)),
        declare("once", once, at_most_once()),
        declare("through", through, flow()),
        declare("count", count, exactly_once(size=4)),
    ]

    async def complete(total: int) -> None:
        try:
            await until(lambda: len(seen) == 5 and all(len(found) == total for found in seen.values()))
        except TimeoutError:
            statuses = [(one.name, one.state, str(one.offset), one.error) for one in await log.projections.list()]
            raise AssertionError(f"not all have {total} events: {seen}; {statuses}") from None

    async with everlog.connect(config) as log:
        view = log.projections.view(projections[-1].name)
        await view.execute(totals.create)
        async with log.projections.run(*projections):
            await complete(4)  # a/1 and all of b; a/3 waits
            await writer.event("a", 2, start + 20)
            await complete(6)
            await writer.event("b", 4, start + 50)  # with a clock that is off: behind what has gone out
            await complete(7)
        await writer.event("a", 4, now_ms() - 1000)
        async with log.projections.run(*projections):
            await complete(8)
        assert all(set(found.values()) == {1} for found in seen.values()), seen
        assert sorted(await view.fetch(totals.all)) == [
            ("all", "a", "1234"),
            ("all", "b", "1234"),
            ("journal a", "a", "1234"),
            ("journal b", "b", "1234"),
        ]
        (difference,) = await log.projections.verify(projections[-1], totals.name)
        assert (difference.missing, difference.surplus) == (0, 0)


async def test_what_appears_between_a_crash_and_the_next_start_counts_once(config, writer, totals, monkeypatch):
    """The rows of two events were stored, their offset was not; when they come again, another one is before them."""
    start, seen = now_ms() - 10_000, Counter[str]()
    await writer.event("a", 1, start + 10)
    await writer.event("c", 1, start + 30)
    save, failed = CassandraOffsetStore.save, False

    async def fail_once(store: CassandraOffsetStore, lease: Lease, progress: OffsetProgress) -> None:
        nonlocal failed
        if not failed:
            failed = True
            await writer.event("b", 1, start + 20)
            raise StorageFailed("the process dies here")
        await save(store, lease, progress)

    async def count(event: PekkoEvent, view: View) -> None:
        await totals.add(view, "all", "all", event.persistence_id)
        seen[event.persistence_id] += 1

    source, restart = pekko_tag("carts"), Restart(0.1, 0.1)
    counted = Projection(totals.name, source=source, handler=count, strategy=exactly_once(), restart=restart)
    monkeypatch.setattr(CassandraOffsetStore, "save", fail_once)
    async with everlog.connect(config) as log:
        view = log.projections.view(totals.name)
        await view.execute(totals.create)
        async with log.projections.run(counted):
            await until(lambda: seen == {"a": 2, "b": 1, "c": 2})
        assert await view.fetch(totals.get, "all", "all") == [("acb",)]
