"""One reader for all streams of a tag: whoever joins, leaves or lags, every stream gets every event once, in order."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from everlog.api import Everlog
from everlog.core.events import Event
from everlog.core.timeuuid import TimeUuid, start_of
from everlog.server import fanout as module
from everlog.server.fanout import Fanout
from everlog.server.sse import Checkpoint
from everlog.tags.tag import BEGINNING, TaggedEvent
from everlog.testing.replication import replicate
from tests.waiting import until


class Follower:
    """A stream that stands still while its gate is closed."""

    def __init__(self, fanout: Fanout, log: Everlog, start: TimeUuid) -> None:
        self.start = start
        self.seen: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self.task = asyncio.create_task(self._run(fanout, log))

    async def _run(self, fanout: Fanout, log: Everlog) -> None:
        last = self.start
        async for item in fanout.follow("t", log.tag("t"), self.start):
            self.arrived.set()
            await self.gate.wait()
            if isinstance(item, Checkpoint):
                place = TimeUuid.parse(item.id)
                assert place >= last, "a checkpoint never goes back"
            else:
                self.seen += [frame.id for frame in item]
                place = TimeUuid.parse(item[-1].id)
            last = place

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def all_events(log: Everlog) -> list[TaggedEvent]:
    return [event async for event in log.tag("t").current()]


@pytest.mark.parametrize("seed", range(8))
async def test_every_stream_gets_everything_once(small_log: Everlog, monkeypatch, seed: int) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    monkeypatch.setattr(module, "WATERMARK_INTERVAL_S", 0.0)
    chance, fanout, followers = random.Random(seed), Fanout(), list[Follower]()
    orders = small_log.journal("orders")

    async def join() -> None:
        known = [event.place for event in await all_events(small_log)]
        # Also from an offset that the view has not reached yet: that must not make others miss what lies before it.
        beyond = start_of(small_log.parts.clock.now_ms() + 1_000_000)
        followers.append(Follower(fanout, small_log, chance.choice([BEGINNING, beyond, *known])))

    for number in range(80):
        act = chance.random()
        if act < 0.45:
            tags = {"t"} if chance.random() < 0.8 else {"other"}
            await orders.append(f"o-{chance.randrange(3)}", [Event(number, tags=tags)] * chance.randrange(1, 4))
        elif act < 0.75:
            await replicate(small_log, batch=chance.choice([1, 100]))
        elif act < 0.85:
            await join()
        elif followers and act < 0.93:
            gate = chance.choice(followers).gate
            gate.clear() if gate.is_set() else gate.set()
        elif followers:
            await followers.pop(chance.randrange(len(followers))).leave()
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice([0, 0.02]))
    await join()
    await orders.append("o-0", [Event("last", tags={"t"})])
    await replicate(small_log)
    for follower in followers:
        follower.gate.set()
    places = [event.place for event in await all_events(small_log)]
    async with asyncio.timeout(60):
        for follower in followers:
            wanted = [str(place) for place in places if place > follower.start]
            while len(follower.seen) < len(wanted) and not follower.task.done():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert follower.seen == wanted
    for follower in followers:
        await follower.leave()
    assert fanout._feeds == {}, "nobody follows, so nobody reads"


async def test_a_feed_that_began_while_a_stream_still_read_on_its_own(small_log: Everlog) -> None:
    """The slow stream's own read ends before the place where the feed of the other one began."""
    fanout, orders = Fanout(), small_log.journal("orders")
    await orders.append("o", [Event(0, tags={"t"})])
    await replicate(small_log)
    slow = Follower(fanout, small_log, BEGINNING)
    slow.gate.clear()
    async with asyncio.timeout(60):
        await slow.arrived.wait()
        await orders.append("o", [Event(1, tags={"t"})])
        await replicate(small_log)
        quick = Follower(fanout, small_log, BEGINNING)
        while len(quick.seen) < 2 or not fanout._feeds:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        slow.gate.set()
        while len(slow.seen) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert slow.seen == quick.seen
    for follower in (slow, quick):
        await follower.leave()


async def test_rows_are_read_once_for_all(small_log: Everlog, monkeypatch) -> None:
    """Twenty streams, one reader: the tables are asked as often as for one."""
    fanout = Fanout()
    orders = small_log.journal("orders")
    await orders.append("o", [Event(0, tags={"t"})])
    await replicate(small_log)
    followers = [Follower(fanout, small_log, BEGINNING) for _ in range(20)]

    async def reached(count: int) -> None:
        async with asyncio.timeout(60):
            while any(len(one.seen) < count for one in followers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    await reached(1)
    await until(lambda: "t" in fanout._feeds and len(fanout._feeds["t"].subscribers) == len(followers))
    await asyncio.sleep(0.1)  # those that joined last read once more on their own
    tables = small_log.parts.store.tags
    assert tables is not None
    asked: list[Any] = []
    rows = tables.rows

    async def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        return await rows(*arguments, **options)

    monkeypatch.setattr(tables, "rows", counted)
    for number in range(1, 6):
        await orders.append("o", [Event(number, tags={"t"})])
        await replicate(small_log)
        await reached(number + 1)
    assert 0 < len(asked) <= 15
    for follower in followers:
        await follower.leave()
