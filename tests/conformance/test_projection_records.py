"""Projections over the records of a real embedded log: offsets, positions, lag, reading one's own writes."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

import everlog
from everlog import Event
from everlog.config import ProjectionsConfig
from everlog.errors import InvalidProjection, LogTruncated, StillBehind, UnknownProjection
from everlog.log.sqlite.log import SqliteReader
from everlog.projections.ids import ProjectionId
from everlog.projections.lifecycle import Restart
from everlog.projections.port import Desired, KnownProjection, Report
from everlog.projections.projection import Projection
from everlog.projections.projections import _passed
from everlog.projections.record_source import Records, records
from everlog.projections.save_window import OffsetProgress
from everlog.projections.source import Delivery, Feed, Source
from everlog.projections.strategies import at_least_once, exactly_once
from everlog.runtime.lease import Lease
from tests.support import small_config
from tests.waiting import until

QUICK = Restart(first=0.01, most=0.01)


def collect(seen: list, **settings) -> Projection:
    async def handler(record) -> None:
        seen.extend((record.key, event.seq_nr, event.data) for event in record.events)

    return Projection("seen", source=records("orders", **settings), handler=handler)


async def fill(log, keys: int = 5, events: int = 4) -> list[tuple[str, int, str]]:
    orders, expected = log.journal("orders"), []
    for number in range(1, events + 1):
        for key in range(keys):
            await orders.append(f"o-{key}", Event(f"e{number}"))
            expected.append((f"o-{key}", number, f"e{number}"))
    return expected


async def test_every_record_is_handled_in_the_order_of_its_partition(small_log):
    expected, seen = await fill(small_log), []
    async with small_log.projections.run(collect(seen)):
        await until(lambda: len(seen) == len(expected))
        later = await small_log.journal("orders").append("o-9", Event("later"))
        await small_log.projections.wait("seen", later)
        assert seen[-1] == ("o-9", 1, "later")
    assert Counter(seen) == Counter([*expected, ("o-9", 1, "later")])
    for key in {one[0] for one in expected}:
        assert [one[1] for one in seen if one[0] == key] == [1, 2, 3, 4]
    offset = await small_log.projections.offset("seen")
    bounds = [await small_log.parts.log.bounds(await small_log.parts.log.topic("journal-orders"), nr) for nr in (0, 1)]
    assert offset == {f"journal-orders-{nr}": one.end - 1 for nr, one in enumerate(bounds)}


async def test_it_goes_on_where_it_was(small_log):
    expected, seen = await fill(small_log), []
    async with small_log.projections.run(collect(seen)):
        await until(lambda: len(seen) == len(expected))
    token = await small_log.journal("orders").append("o-1", Event("more"))
    async with small_log.projections.run(collect(seen)):
        await small_log.projections.wait("seen", str(token))
    assert Counter(seen) == Counter([*expected, ("o-1", 5, "more")])


async def test_a_topic_that_does_not_exist_yet_is_waited_for(small_log):
    seen: list = []
    async with small_log.projections.run(collect(seen)):
        await small_log.journal("orders").append("o-1", Event("first"))
        await until(lambda: seen)


async def test_a_topic_may_be_divided_anew(small_log):
    """One key, then two: the two go on where the one was, and nothing is read twice."""
    expected, seen = await fill(small_log), []
    async with small_log.projections.run(collect(seen)):
        await until(lambda: len(seen) == len(expected))
    more = await fill(small_log, events=1)
    async with small_log.projections.run(collect(seen, split=2)) as runner:
        await runner.owns("seen", 2)
        await until(lambda: len(seen) == len(expected) + len(more))
        for key in range(5):  # in both partitions
            token = await small_log.journal("orders").append(f"o-{key}", Event("new"))
            await small_log.projections.wait("seen", token)
            assert seen[-1] == (f"o-{key}", 6, "new")
    assert len(seen) == len(set(seen)) == len(expected) + len(more) + 5


async def test_records_that_are_gone_are_named(small_log):
    """The log was trimmed behind the projection's back: it says so instead of going on with a hole."""
    await fill(small_log)
    seen: list = []
    async with small_log.projections.run(collect(seen)):
        await until(lambda: len(seen) == 20)
    topic = await small_log.parts.log.topic("journal-orders")
    await small_log.projections.set("seen", None, {"journal-orders-0": 1, "journal-orders-1": 1})
    connection = everlog.sqlite.connect(small_log.parts.log.path)
    with everlog.sqlite.transaction(connection):
        connection.execute("DELETE FROM record WHERE partition = 0 AND offset < 4")
        connection.execute("UPDATE partition SET start_offset = 4 WHERE partition = 0")
    connection.close()
    feed = records("orders").open(small_log.parts)
    with pytest.raises(LogTruncated):
        async for _ in feed.read("journal-orders", {"journal-orders-0": 1}):
            pass
    reader = SqliteReader(small_log.parts.log)
    with pytest.raises(LogTruncated):  # it happened after the start
        async for _ in reader.read(topic, {0: 3}):
            pass
    await reader.close()
    pages = feed.read("journal-orders", None)
    first = await anext(pages)
    assert first[0].envelope.offset == 4, "whoever begins now begins where the log does"
    await pages.aclose()
    await feed.close()


# Lag


async def test_lag_is_known_while_nobody_runs(small_log, clock):
    expected, seen = await fill(small_log), []
    projections = small_log.projections
    async with projections.run(collect(seen)):
        await until(lambda: len(seen) == len(expected))
    (status,) = await projections.list()
    assert (status.state, status.lag.events, status.lag.seconds) == ("stopped", 0, 0.0)
    await fill(small_log, events=2)
    clock.advance(7)
    status = await projections.get("seen")
    assert (status.lag.events, status.lag.seconds) == (10, 7.0)
    assert (status.name, status.key, status.owner, status.handled) == ("seen", "journal-orders", None, 20)


async def test_a_provider_without_lag_says_nothing(small_log):
    class Own:
        async def source(self, read_offset):
            yield 1

        def extract_offset(self, envelope):
            return envelope

    async def handler(envelope) -> None: ...

    async with small_log.projections.run(Projection("own", source=Own(), handler=handler)) as runner:
        await runner.ended()
    assert (await small_log.projections.get("own")).lag is None


# Exactly once, and reading one's own writes


async def count_words(record, view) -> None:
    for event in record.events:
        await view.execute(
            "INSERT INTO counts (key, n) VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET n = n + 1", record.key
        )
        assert event.seq_nr >= 1


def counting(**settings) -> Projection:
    return Projection("counts", source=records("orders"), handler=count_words, strategy=exactly_once(), **settings)


async def make_counts(log) -> None:
    await log.projections.view("counts").execute("CREATE TABLE counts (key TEXT PRIMARY KEY, n INTEGER NOT NULL)")


async def test_a_read_after_a_token_sees_the_write(small_log):
    await make_counts(small_log)
    view = small_log.projections.view("counts")
    async with small_log.projections.run(counting()):
        for number in range(1, 30):
            token = await small_log.journal("orders").append("o-1", Event("x"))
            assert await view.fetch("SELECT n FROM counts WHERE key = ?", "o-1", after=token) == [(number,)]


async def test_what_is_no_event_moves_the_view_too(small_log):
    """A mark changes no row; the projection still passes it."""
    await make_counts(small_log)
    await fill(small_log)
    async with small_log.projections.run(counting()):
        token = await small_log.journal("orders").mark("o-1")
        await small_log.projections.view("counts").wait(token)


async def test_a_wait_that_is_too_long_is_named(small_log):
    token = await small_log.journal("orders").append("o-1", Event("x"))
    with pytest.raises(StillBehind):
        await small_log.projections.wait("counts", token, seconds=0.05)


async def test_a_wait_is_woken_before_the_offset_is_saved(small_log):
    """The window of an hour is still open: what is handled counts."""
    seen: list = []
    projection = collect(seen)
    projection.strategy = at_least_once(save_every=10**6, within=3600.0)
    async with small_log.projections.run(projection):
        token = await small_log.journal("orders").append("o-1", Event("x"))
        await small_log.projections.wait("seen", token)
        assert seen == [("o-1", 1, "x")]
        assert await small_log.projections.offset("seen") is None


async def test_exactly_once_survives_failures_in_the_middle(small_log):
    await make_counts(small_log)
    await fill(small_log, events=10)
    calls = 0

    async def sometimes(record, view) -> None:
        nonlocal calls
        calls += 1
        await count_words(record, view)
        if calls % 7 == 0:
            raise ValueError("after its rows were written")

    projection = Projection(
        "counts", source=records("orders"), handler=sometimes, strategy=exactly_once(size=5), restart=QUICK
    )
    async with small_log.projections.run(projection):
        for key in range(5):  # in both partitions
            token = await small_log.journal("orders").append(f"o-{key}", Event("last"))
            await small_log.projections.wait("counts", token)
    counts = {f"o-{key}": 11 for key in range(5)}
    rows = await small_log.projections.view("counts").fetch("SELECT key, n FROM counts")
    assert dict(rows) == counts
    assert calls > sum(counts.values()), "some were tried again"


async def test_a_wait_does_not_trust_what_was_before_a_clear(small_log):
    """The offset was cleared while the projection is paused: the view is no longer where it was."""
    seen: list = []
    projections = small_log.projections
    async with projections.run(collect(seen)):
        token = await small_log.journal("orders").append("o-1", Event("x"))
        await projections.wait("seen", token)
        await projections.pause("seen", wait=10)
        store = await projections.store()
        await store.set_offset(ProjectionId("seen", "journal-orders"), None)  # as another process would
        with pytest.raises(StillBehind):
            await projections.wait("seen", token, seconds=0.05)
        await projections.resume("seen")
        await projections.wait("seen", token)
        assert len(seen) == 2


# Commands


async def test_commands_through_the_log(small_log):
    expected, seen = await fill(small_log), []
    projections = small_log.projections
    with pytest.raises(UnknownProjection):
        await projections.pause("seen")
    async with projections.run(collect(seen)):
        await until(lambda: len(seen) == len(expected))
        await projections.pause("seen", wait=10)
        assert (await projections.get("seen")).state == "paused"
        seen.clear()
        await projections.clear("seen")
        assert await projections.offset("seen") is None
        await projections.resume("seen", wait=10)
        await until(lambda: len(seen) == len(expected))
        with pytest.raises(everlog.InvalidInput):
            await projections.skip("seen")
        assert await projections.dead_letters("seen") == []
        assert await projections.replay("seen") == 0
    with pytest.raises(UnknownProjection):
        await projections.get("seen", "other")
    with pytest.raises(UnknownProjection):
        await projections.dead_letters("nobody")


async def test_a_key_must_be_named_if_there_are_many(small_log):
    async with small_log.projections.run(collect([], split=2)) as runner:
        await runner.owns("seen", 2)
        with pytest.raises(InvalidProjection):
            await small_log.projections.get("seen")
        assert (await small_log.projections.get("seen", "journal-orders/1of2")).key == "journal-orders/1of2"


def test_bad_topics():
    for make in (lambda: Records(""), lambda: Records(7), lambda: records("orders", split=0)):
        with pytest.raises(InvalidProjection):
            make()
    with pytest.raises(InvalidProjection):
        records("orders").open(None)


async def test_an_offset_of_another_source_is_named(small_log):
    await fill(small_log)
    store = await small_log.projections.store()
    lease = await store.take(ProjectionId("seen", "journal-orders"), "x", None)
    await store.save(lease, OffsetProgress("some text"))
    await store.release(lease, Report())
    async with small_log.projections.run(collect([])) as runner:
        await until(lambda: (runner.status()["seen"].get("journal-orders") or Report()).error)
        assert "InvalidOffset" in runner.status()["seen"]["journal-orders"].error


def test_the_blocking_twin(tmp_path):
    with everlog.sync.connect(tmp_path / "data") as log:
        seen: list = []
        orders = log.journal("orders")
        with log.projections.run(collect(seen)):
            token = orders.append("o-1", Event("x"))
            log.projections.wait("seen", token)
            assert seen == [("o-1", 1, "x")]
        assert log.projections.offset("seen") is not None
        assert log.projections.fetch("seen", "SELECT 1") == [(1,)]


async def test_two_logs_share_the_work(small_log, clock):
    """Two open logs on one folder, as two processes: each takes a key, both together handle each record once."""
    expected, seen = await fill(small_log), []
    async with (
        everlog.connect(small_log.config) as other,
        small_log.projections.run(collect(seen, split=2)) as first,
        other.projections.run(collect(seen, split=2)) as second,
    ):
        await asyncio.gather(first.owns("seen", 1), second.owns("seen", 1))
        await until(lambda: len(seen) >= len(expected))
        token = await other.journal("orders").append("o-3", Event("x"))
        await small_log.projections.wait("seen", token)
    assert set(seen) == {*expected, ("o-3", 5, "x")}


def _report(tracks_all: bool, keys: int) -> Report:
    return Report(state="running", tracks_all=tracks_all, keys=keys)


def test_nothing_is_passed_before_all_have_said_what_they_read():
    """An instance that has just been taken may read every partition: nobody knows yet."""
    known = KnownProjection("n", "a", Lease("n", "a", "me", 1), Report(), None, None, Desired(), 0)
    assert not _passed([known], {"a": 7}, 7)


@pytest.mark.parametrize(
    ("keys", "reached", "passed"),
    [
        # Each key has its own partitions: who owns one now counts.
        ([("a", "me", False, 1)], {}, False),
        ([("a", "me", False, 1)], {"a": 6}, False),
        ([("a", "me", False, 1)], {"a": 7}, True),
        ([("old", None, False, 1), ("a", "me", False, 2)], {"old": 3, "a": 7}, True),
        ([("old", None, False, 1), ("a", "me", False, 2)], {"old": 9, "a": 3}, False),
        ([("old", None, False, 1), ("a", "me", False, 2)], {"old": 9}, True),
        ([("a", None, False, 1)], {"a": 7}, True),
        # Every key passes everything: all of them count, also one that has not begun.
        ([("a", "me", True, 2), ("b", "me", True, 2)], {"a": 7, "b": 7}, True),
        ([("a", "me", True, 2), ("b", "me", True, 2)], {"a": 7, "b": 6}, False),
        ([("a", "me", True, 2), ("b", "me", True, 2)], {"a": 7}, False),
        ([("a", "me", True, 2)], {"a": 7}, False),
    ],
)
def test_who_must_have_passed_a_position(keys, reached, passed):
    known = [
        KnownProjection("n", key, Lease("n", key, owner, 1), _report(all_, count), None, None, Desired(), 0)
        for key, owner, all_, count in keys
    ]
    assert _passed(known, reached, 7) is passed


class Everything(Source):
    """A source of which every key passes everything, as tags do; it holds one key back until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    def open(self, parts):
        source = self

        class Passing(Feed):
            tracks_all = True

            async def keys(self):
                return ["a", "b"]

            async def read(self, key, stored):
                if key == "b":
                    await source.go.wait()
                yield [Delivery(5, passed=True, positions={("orders", 0): 5})]
                await asyncio.get_running_loop().create_future()

        return Passing()


async def test_of_a_source_that_all_keys_pass_all_are_waited_for(small_log):
    """Filtered events count; and one key that is behind is enough to wait for."""
    source = Everything()

    async def handler(envelope) -> None: ...

    async with small_log.projections.run(Projection("passing", source=source, handler=handler)) as runner:
        await runner.owns("passing", 2)
        with pytest.raises(StillBehind):
            await small_log.projections.wait("passing", "orders:0:5", seconds=0.2)
        source.go.set()
        await small_log.projections.wait("passing", "orders:0:5")
        with pytest.raises(StillBehind):
            await small_log.projections.wait("passing", "orders:0:6", seconds=0.1)
    assert await small_log.projections.offset("passing", "a") == 5


async def test_a_runner_can_be_started_again(small_log):
    expected, seen = await fill(small_log), []
    runner = await small_log.projections.runner(collect(seen))
    for _ in range(2):
        runner.start()
        runner.start()
        await until(lambda: len(seen) == len(expected))
        await runner.stop()
        await runner.stop()
        expected.extend(await fill(small_log, keys=1, events=1))
    runner.start()
    await until(lambda: len(seen) == len(expected))
    await runner.stop()


async def test_a_pause_does_not_wait_for_the_dead(tmp_path):
    """The owner was killed: nobody obeys, and nobody handles anything either."""
    config = msgspec.structs.replace(small_config(tmp_path / "data"), projections=ProjectionsConfig(lease_s=0.3))
    async with everlog.connect(config) as log:
        store = await log.projections.store()
        lease = await store.take(ProjectionId("seen", "journal-orders"), "dead", None)
        async with asyncio.timeout(20):
            await log.projections.pause("seen", wait=10)
        assert (await store.leases("seen"))["journal-orders"] == lease
        await store.renew(lease, Report())
        with pytest.raises(StillBehind):
            await log.projections.resume("seen", wait=0.1)
