"""Projections over the events of a topic that count: what comes, when, and from where it goes on."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from random import Random
from typing import Any

import msgspec
import pytest

import everlog
from everlog import (
    Event,
    Projection,
    Recovery,
    at_least_once,
    at_most_once,
    events,
    exactly_once,
    flow,
    grouped,
    records,
)
from everlog.api import Everlog
from everlog.client import connect
from everlog.config import LogConfig
from everlog.errors import Conflict, InvalidOffset, InvalidProjection, LogTruncated
from everlog.log.sqlite import log as sqlite_log
from everlog.projections import event_source
from everlog.projections.lifecycle import Restart
from everlog.projections.offsets import RecordPlace, encode, mirrored, parse_place
from everlog.projections.spark.feeds import feed_of
from everlog.server.routes.projections import read_offset as read_json_offset
from everlog.store.sqlite import task as sqlite_task
from everlog.testing import replicate
from everlog.testing.topic_events import (
    TopicEventsConformance,
    TopicHistory,
    TopicReader,
    check,
    log_ends,
    settle_randomly,
)
from tests.support import small_config
from tests.waiting import until

QUICK = Restart(min_s=0.01, max_s=0.01)
TABLE = "CREATE TABLE owed (id TEXT PRIMARY KEY, cents INTEGER NOT NULL)"
ADD = "INSERT INTO owed VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET cents = cents + ?2"


class TestEmbeddedTopicEvents(TopicEventsConformance):
    @pytest.fixture
    async def everlog(self, tmp_path, clock) -> AsyncIterator[Everlog]:
        async with connect(small_config(tmp_path / "data"), clock=clock) as log:
            yield log


@pytest.fixture
async def aging(tmp_path, clock) -> AsyncIterator[Everlog]:
    """Keeps replicated records for an hour; one partition."""
    config = small_config(tmp_path / "data")
    kept = LogConfig(partitions=1, synchronous="NORMAL", retention_hours=1)
    async with connect(msgspec.structs.replace(config, log=kept), clock=clock) as log:
        yield log


async def owed(event, view) -> None:
    await view.execute(ADD, event.id, event.payload["cents"])


def counting(**settings: Any) -> Projection:
    settings = {"source": events("invoices"), "handler": owed, "strategy": exactly_once(), **settings}
    return Projection("owed", tables=["owed"], **settings)


def collecting(seen: list, **settings: Any) -> Projection:
    async def handler(event) -> None:
        seen.append((event.id, event.seq_nr, event.payload))

    return Projection("seen", source=events("orders", **settings), handler=handler)


# What counts


@pytest.mark.parametrize("replicated", [False, True])
async def test_an_append_that_lost_is_not_counted(small_log, replicated):
    """Two writers charge a customer at once; one of them is refused, and the view says what was charged."""
    view, invoices = small_log.projections.view("owed"), small_log.journal("invoices")
    await view.execute(TABLE)
    async with connect(small_log.config) as other:
        charges = [(invoices, 250), (other.journal("invoices"), 250)]
        results = await asyncio.gather(
            *(journal.append("bob", Event({"cents": cents}), expected=0) for journal, cents in charges),
            return_exceptions=True,
        )
    assert [isinstance(result, Conflict) for result in results].count(True) == 1
    token = await invoices.append("bob", [Event({"cents": 50}), Event({"cents": 50})])
    if replicated:
        await replicate(small_log)
    async with small_log.projections.run(counting()):
        assert await view.fetch("SELECT * FROM owed", after=token) == [("bob", 350)]


async def test_an_event_says_what_a_tagged_one_says(small_log):
    seen: list[Any] = []

    async def handler(event) -> None:
        seen.append(event)

    token = await small_log.journal("orders").append(
        "o-1", Event({"n": 1}, tags={"eu"}, type="placed"), metadata={"by": "me"}, headers={"trace": "7"}
    )
    async with small_log.projections.run(Projection("seen", source=events("orders"), handler=handler)):
        await small_log.projections.wait("seen", token)
    await replicate(small_log)
    (event,) = seen
    (tagged,) = [one async for one in small_log.tag("eu").current()]
    for name in ("topic", "id", "seq_nr", "payload", "tags", "timestamp", "time", "metadata", "headers", "type"):
        assert getattr(event, name) == getattr(tagged, name), name
    assert (event.topic, event.id, event.seq_nr, event.payload) == ("orders", "o-1", 1, {"n": 1})
    assert (event.tags, event.headers) == ({"eu"}, {"trace": "7"})
    assert (event.type, event.type_version) == (tagged.type, tagged.type_version) == ("placed", 1)
    assert event.position == everlog.Position.parse(str(token))


async def test_verdicts_are_not_bounded_by_what_is_shown(small_log, monkeypatch):
    """Of appends that lost, the newest are listed; what counts is known of all of them."""
    monkeypatch.setattr(sqlite_task, "MAX_REJECTED", 2)
    history = await TopicHistory.begin(small_log)
    for number in range(1, 6):
        await history.append("a", number)
        await history.append("a", number)
    await replicate(small_log, batch=3)
    assert len(await small_log.parts.store.rejected("journal-t")) == 2
    await check(history, TopicReader(small_log.parts))


class Jitter:
    """Other tasks may run before and after every call."""

    def __init__(self, inner: Any, random: Random) -> None:
        self._inner = inner
        self._random = random

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("floor", "reader"):
            return found

        async def call(*values: Any, **named: Any) -> Any:
            await self._pause()
            answer = await found(*values, **named)
            await self._pause()
            return answer

        return call

    async def _pause(self) -> None:
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(8))
async def test_beside_a_pipeline_that_works(tmp_path, clock, monkeypatch, seed):
    """Readers that stop and go on, writers and a pipeline at once, with pages of any size."""
    random = Random(seed)
    monkeypatch.setattr(sqlite_log, "PAGE", random.choice([2, 5, 500]))
    monkeypatch.setattr(sqlite_log, "MAX_POLL_S", 0.002)
    monkeypatch.setattr(event_source, "PAGE", random.choice([1, 3, 500]))
    config = small_config(tmp_path / "data", max_known_journals=random.choice([1, 2, 100]))
    async with connect(config, clock=clock) as log:
        history, parts, done = await TopicHistory.begin(log), log.parts, False
        slow = dataclasses.replace(parts, store=Jitter(parts.store, random), log=Jitter(parts.log, random))
        readers = [TopicReader(slow) for _ in range(2)]

        async def go_on(reader: TopicReader) -> None:
            while not done:
                await reader.read(await log_ends(log), limit=random.choice([1, 5, 20, None]))
                await asyncio.sleep(0)

        async def work() -> None:
            while not done:
                await settle_randomly(log, random)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(one) for one in (*map(go_on, readers), work())]
        for _ in range(60):
            await history.step(random)
            await asyncio.sleep(0)
        done = True
        await asyncio.gather(*tasks)
        for reader in readers:
            await check(history, reader)


# Offsets


async def test_an_offset_between_two_events_of_an_append(small_log):
    """The handler fails at the second of three events: the first is done, and is not handled again."""
    seen: list[int] = []

    async def handler(event) -> None:
        if event.seq_nr == 2 and seen.count(2) < 2:
            seen.append(2)
            raise ValueError("not yet")
        seen.append(event.seq_nr)

    projection = Projection("seen", source=events("orders"), handler=handler, restart=QUICK)
    projection.strategy = at_least_once(save_every=1)
    token = await small_log.journal("orders").append("o-1", [Event(n) for n in range(3)])
    place = f"journal-orders-{token.partition}"
    async with small_log.projections.run(projection):
        await until(lambda: seen.count(2))
        assert await small_log.projections.offset("seen") == {place: RecordPlace(0, 0)}
        assert (await small_log.projections.get("seen")).lag.events == 1
        await small_log.projections.wait("seen", token)
    assert seen == [1, 2, 2, 2, 3]
    assert await small_log.projections.offset("seen") == {place: 0}
    await small_log.projections.set("seen", None, {place: parse_place("0/1")})
    async with small_log.projections.run(projection):
        await small_log.projections.wait("seen", token)
    assert seen[5:] == [3]


async def test_at_most_once_repeats_nothing(small_log):
    """What was begun is not handled again, though its append goes on."""
    seen: list[int] = []

    async def handler(event) -> None:
        seen.append(event.seq_nr)
        if event.seq_nr == 2:
            raise ValueError("lost")

    projection = Projection("seen", source=events("orders"), handler=handler, strategy=at_most_once(), restart=QUICK)
    token = await small_log.journal("orders").append("o-1", [Event(n) for n in range(3)])
    async with small_log.projections.run(projection):
        await small_log.projections.wait("seen", token)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("size", [1, 2, 100])
async def test_exactly_once_inside_appends(small_log, size):
    """Transactions end anywhere in an append, and handlers fail after their rows: each event counts once."""
    view, calls = small_log.projections.view("owed"), 0
    await view.execute(TABLE)

    async def sometimes(event, view) -> None:
        nonlocal calls
        calls += 1
        await owed(event, view)
        if calls % 7 == 0:
            raise ValueError("after its rows were written")

    tokens = [
        await small_log.journal("invoices").append(f"c-{key}", [Event({"cents": 1}) for _ in range(5)])
        for _ in range(3)
        for key in range(3)
    ]
    async with small_log.projections.run(counting(handler=sometimes, strategy=exactly_once(size=size), restart=QUICK)):
        for token in tokens:
            await small_log.projections.wait("owed", token)
    assert await view.fetch("SELECT id, cents FROM owed ORDER BY id") == [(f"c-{key}", 15) for key in range(3)]


async def pass_on(items) -> AsyncIterator[Any]:
    async for item in items:
        pass_on.seen.append(item.envelope)
        yield item


@pytest.mark.parametrize(
    "strategy", [at_least_once(save_every=3), at_least_once(parallelism=4), grouped(size=4), flow(save_every=3)]
)
async def test_every_strategy_goes_on_where_it_was(small_log, strategy):
    """Two runs, the second from the stored offsets: each event that counts once, in the order of its journal."""
    seen: list[Any] = []

    async def one(event) -> None:
        seen.append(event)

    async def many(group) -> None:
        seen.extend(group)

    pass_on.seen = seen
    handler = {"Grouped": many, "Flow": pass_on}.get(type(strategy).__name__, one)
    projection = Projection("seen", source=events("orders"), handler=handler, strategy=strategy)
    orders = small_log.journal("orders")
    for run in range(2):
        for key in range(4):
            await orders.append(f"o-{key}", [Event(n) for n in range(3)])
            await orders.append(f"o-{key}", Event("lost", seq_nr=1), verdict=False)
        if run == 0:
            await replicate(small_log, leave=3)
        async with small_log.projections.run(projection):
            await until(lambda: len(seen) >= 12 * (run + 1))  # noqa: B023
    for key in range(4):
        assert [one.seq_nr for one in seen if one.id == f"o-{key}"] == [1, 2, 3, 4, 5, 6]
    assert len(seen) == 24


async def test_a_topic_may_be_divided_anew(small_log):
    seen: list = []
    orders = small_log.journal("orders")
    for number in range(10):
        await orders.append(f"o-{number}", [Event(1), Event(2)])
    async with small_log.projections.run(collecting(seen)):
        await until(lambda: len(seen) == 20)
    for number in range(10):
        await orders.append(f"o-{number}", Event(3))
    async with small_log.projections.run(collecting(seen, split=2)) as runner:
        await runner.owns("seen", 2)
        await until(lambda: len(seen) == 30)
    assert Counter(seen) == Counter((f"o-{number}", seq_nr, seq_nr) for number in range(10) for seq_nr in (1, 2, 3))


async def test_an_offset_of_records_serves_events_and_not_always_the_reverse(small_log):
    token = await small_log.journal("orders").append("o-1", [Event(1), Event(2)])
    place = f"journal-orders-{token.partition}"
    for stored, wanted in (({place: 0}, []), ({place: RecordPlace(0, 0)}, [2]), (None, [1, 2])):
        reader = TopicReader(small_log.parts, "orders")
        reader.stored = stored
        await reader.read({token.partition: 1})
        assert [one.seq_nr for one in reader.came] == wanted
    feed = records("orders").open(small_log.parts)
    with pytest.raises(InvalidOffset):
        await feed.lag("journal-orders", {place: RecordPlace(0, 0)})
    await feed.close()
    feed = events("orders").open(small_log.parts)
    for wrong in ("text", {place: "text"}):
        with pytest.raises(InvalidOffset):
            await feed.lag("journal-orders", wrong)
    await feed.close()


# The log's retention


async def test_verdicts_stay_as_long_as_their_records(aging, clock):
    """What the log still holds is judged as ever; what it does not hold leaves the store, too."""
    history = await TopicHistory.begin(aging)
    await history.append("a", 1, 2)
    await history.append("a", 1)
    await history.halt("b")
    await history.append("b", 1)
    clock.advance(2 * 3600)
    await history.append("a", 2)
    await history.resume("b", skip=True)  # takes up a record that is trimmed below
    await history.append("a", 3)
    await replicate(aging)
    assert await aging.trim() == {("journal-t", 0): 4}
    with closing(sqlite3.connect(aging.config.folder / "store.db")) as connection:
        rows = connection.execute("SELECT offset, kind FROM verdict ORDER BY 1").fetchall()
    assert rows == [(4, "rejected"), (5, "resumed")]
    reader = TopicReader(aging.parts)
    reader.stored = {"journal-t-0": 3}
    await reader.read({0: 7})
    assert [(one.offset, one.id, one.seq_nr) for one in reader.came] == [(5, "b", 1), (6, "a", 3)]


async def test_what_has_left_the_log_is_named(aging, clock):
    """A view that misses events says so, with the remedy; one that may be partial begins where the log does."""
    history = await TopicHistory.begin(aging)
    await history.append("a", 1)
    await history.append("a", 2)
    clock.advance(2 * 3600)
    await replicate(aging)
    await aging.trim()
    await history.append("a", 3)
    for stored, gone in ((None, "0 to 1"), ({"journal-t-0": 0}, "1 to 1")):
        reader = TopicReader(aging.parts)
        reader.stored = stored
        with pytest.raises(LogTruncated, match=f"records {gone} are gone.*journal-t-0=1"):
            await reader.read({0: 3})
    reader.stored = {"journal-t-0": 1}
    await reader.read({0: 3})
    assert [one.seq_nr for one in reader.came] == [3]
    feed = events("t", partial=True).open(aging.parts)
    pages = feed.read("journal-t", None)
    assert [one.envelope.seq_nr for one in await anext(pages)] == [3]
    await pages.aclose()
    await feed.close()


async def test_a_log_that_is_trimmed_under_the_read(aging, clock):
    """The verdicts went with the records while a page was judged: it is not guessed."""
    history = await TopicHistory.begin(aging)
    await history.append("a", 1)
    await history.append("a", 1)
    await replicate(aging)
    clock.advance(2 * 3600)

    class Trimming(Jitter):
        def __getattr__(self, name: str) -> Any:
            found = getattr(self._inner, name)
            if name != "verdicts":
                return found

            async def call(*values: Any) -> Any:
                await aging.trim()
                return await found(*values)

            return call

    reader = TopicReader(dataclasses.replace(aging.parts, store=Trimming(aging.parts.store, Random(0))))
    with pytest.raises(LogTruncated):
        await reader.read({0: 2})
    assert reader.came == []


# In the runner


async def test_lag_is_known_while_no_instance_runs(small_log):
    seen: list = []
    orders = small_log.journal("orders")
    token = await orders.append("o-1", Event(1))
    async with small_log.projections.run(collecting(seen)):
        await small_log.projections.wait("seen", token)
    await orders.append("o-1", Event(2))
    await orders.append("o-1", Event("lost", seq_nr=2), verdict=False)
    (status,) = await small_log.projections.list()
    assert (status.state, status.lag.events) == ("stopped", 2)
    token = await orders.mark("o-1")
    async with small_log.projections.run(collecting(seen)):
        await small_log.projections.wait("seen", token)
    assert (await small_log.projections.get("seen")).lag.events == 0
    assert seen == [("o-1", 1, 1), ("o-1", 2, 2)]


async def test_a_dead_letter_comes_back_as_it_was(small_log):
    """Binary and JSON payloads, and a place inside an append in its name."""
    seen: list = []
    broken = True

    async def handler(event) -> None:
        if broken and event.seq_nr < 3:
            raise ValueError("no")
        seen.append((event.id, event.seq_nr, event.payload, event.position.offset))

    projection = Projection("seen", source=events("orders"), handler=handler, recovery=Recovery.skip())
    orders, projections = small_log.journal("orders"), small_log.projections
    token = await orders.append("o-1", [Event(b"\x00\xff"), Event({"n": 2}), Event("three")])
    async with projections.run(projection):
        await projections.wait("seen", token)
    place = f"journal-orders-{token.partition}"
    assert sorted(one.offset for one in await projections.dead_letters("seen")) == [f"{place}=0/0", f"{place}=0/1"]
    broken = False
    assert await projections.replay("seen") == 2
    async with projections.run(projection):
        await until(lambda: len(seen) == 3)
    assert sorted(seen) == [("o-1", 1, b"\x00\xff", 0), ("o-1", 2, {"n": 2}, 0), ("o-1", 3, "three", 0)]


def test_the_originals_are_told_of_whole_records():
    assert [mirrored(encode(one)) for one in (RecordPlace(17, 2), 17)] == [encode(16), encode(17)]


async def test_verify_and_rebuild(small_log):
    view, invoices = small_log.projections.view("owed"), small_log.journal("invoices")
    await view.execute(TABLE)
    for _ in range(3):
        for customer in "ab":
            token = await invoices.append(customer, [Event({"cents": 1}), Event({"cents": 2})])
    await invoices.append("a", Event({"cents": 100}, seq_nr=1), verdict=False)  # it loses
    projections, projection = small_log.projections, counting()
    async with projections.run(projection):
        await projections.wait("owed", token)
        await projections.wait("owed", await invoices.append("b", Event({"cents": 4})))
    (difference,) = await projections.verify(projection)
    assert (difference.rows, difference.missing, difference.surplus) == (2, 0, 0)
    assert await projections.rebuild(projection) == 1
    await projections.switch("owed")
    assert await projections.view("owed").fetch("SELECT * FROM owed ORDER BY id") == [("a", 9), ("b", 13)]


def test_the_blocking_twin(tmp_path):
    with everlog.sync.connect(tmp_path / "data") as log:
        seen: list = []
        orders = log.journal("orders")
        with log.projections.run(collecting(seen)):
            log.projections.wait("seen", orders.append("o-1", Event("x")))
            assert seen == [("o-1", 1, "x")]


def test_bad_sources(tmp_path):
    for make in (lambda: events(""), lambda: events(7), lambda: events("orders", split=0)):
        with pytest.raises(InvalidProjection):
            make()
    with pytest.raises(InvalidProjection):
        events("orders").open(None)
    with pytest.raises(InvalidProjection, match="slices"):
        feed_of(small_config(tmp_path), events("orders"), 100)


def test_a_place_inside_an_append_as_text():
    assert read_json_offset({"a": 3, "b": "17/2", "c": "4"}, "map") == {"a": 3, "b": RecordPlace(17, 2), "c": 4}
    for wrong in ("", "x", "1/", "/1", "1/2/3", "-1/2"):
        with pytest.raises(InvalidOffset):
            parse_place(wrong)
        with pytest.raises(InvalidOffset):
            read_json_offset({"a": wrong}, "map")


@everlog.event("paid", version=2)
@dataclasses.dataclass
class Paid:
    cents: int


@everlog.upcast(Paid, 1)
def in_cents(old: Any) -> Any:
    return {"cents": 100 * old["euros"]}


async def test_events_come_as_their_classes(tmp_path) -> None:
    """Old versions are made new ones, and what is of no class comes as it is; dead letters remember the type, too."""
    found: list[tuple[str | None, Any]] = []

    @everlog.projection("paid", source=events("invoices", Paid), strategy=at_least_once())
    async def paid(event: Any) -> None:
        found.append((event.type, event.payload))

    async with connect(small_config(tmp_path / "data")) as log:
        invoices = log.journal("invoices", Paid)
        await log.journal("invoices").append("i-1", Event({"euros": 3}, type="paid"))
        await invoices.append("i-1", [Paid(150)])
        token = await log.journal("invoices").append("i-1", Event({"raw": True}))
        async with log.projections.run(paid):
            await log.projections.wait("paid", token)
        feed = paid.source.open(log.parts)
        read = feed.read("journal-invoices", None)
        delivery = (await anext(read))[0]
        written = feed.write_down(delivery.envelope)
        assert written is not None
        assert feed.read_back(written).payload == Paid(300)
        await read.aclose()
        await feed.close()
    assert found == [("paid", Paid(300)), ("paid", Paid(150)), (None, {"raw": True})]
