"""The driver: back-pressure, cancelling, closing."""

from __future__ import annotations

import asyncio

import pytest

from everlog.pekko.port import ReadRows, RowPage, TaggedRow
from tests.pekko.support import TAG, MemoryTables, World, label


class SlowTables(MemoryTables):
    """Answers only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_now = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def rows(self, query: ReadRows) -> RowPage[TaggedRow]:
        page = await super().rows(query)
        self.asked_now.set()
        await self.may_answer.wait()
        return page


async def test_a_cancelled_wait_loses_nothing():
    """The consumer gives up in the middle of a query, again and again, and then gets every event once."""
    world = World()
    slow = world.tables = SlowTables()
    for number in range(1, 8):
        world.write("p", number, number - 60_000)
    stream = world.reader().tag(TAG).live()
    found = []
    while len(found) < 7:
        slow.may_answer.clear()
        slow.asked_now.clear()
        waiting = asyncio.create_task(anext(stream))
        asked = asyncio.create_task(slow.asked_now.wait())
        await asyncio.wait([waiting, asked], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if waiting.done():
            found.append(label(waiting.result()))
            continue
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        slow.may_answer.set()
        found.append(label(await anext(stream)))
    assert found == [f"p{number}" for number in range(1, 8)]


async def test_nothing_is_read_before_somebody_asks():
    """One page is held; the next one is read when that is used up, not before."""
    world = World()
    for number in range(1, 10):
        world.write("p", number, number - 60_000)
    stream = world.reader().tag(TAG).live()
    await asyncio.sleep(0)
    assert world.tables.asked == []
    for _ in range(3):
        await anext(stream)
    pages = len(world.tables.asked)
    await asyncio.sleep(0)
    assert len(world.tables.asked) == pages
    await anext(stream)
    assert len(world.tables.asked) == pages + 1


async def test_two_may_ask_at_a_time_and_each_gets_another_event():
    world = World()
    slow = world.tables = SlowTables()
    for number in range(1, 5):
        world.write("p", number, number - 60_000)
    stream = world.reader().tag(TAG).live()
    asking = [asyncio.create_task(anext(stream)) for _ in range(4)]
    await slow.asked_now.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    slow.may_answer.set()
    found = await asyncio.gather(*asking)
    assert [label(event) for event in found] == ["p1", "p2", "p3", "p4"]


async def test_a_closed_stream_ends():
    world = World()
    for number in range(1, 5):
        world.write("p", number, number - 60_000)
    stream = world.reader().tag(TAG).live()
    await anext(stream)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_an_end_stays_an_end():
    world = World()
    stream = world.reader().tag(TAG).current()
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
