"""Server-sent events: ids, checkpoints by time and by what was passed over, and how a stream ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from everlog.errors import Unreachable
from everlog.server.request_watch import HttpCounters
from everlog.server.sse import MAX_SKIPPED, Checkpoint, Frame, Items, event_stream


class Source:
    """Items that are given by hand."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[object] = asyncio.Queue()
        self.closed = False

    async def items(self) -> Items:
        try:
            while True:
                item = await self.queue.get()
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item  # type: ignore[misc]
        finally:
            self.closed = True


@pytest.fixture
def source() -> Source:
    return Source()


def stream(source: Source, *, interval_s: float = 60.0, begin: str | None = None, **options) -> AsyncIterator[bytes]:
    given = {"stopping": asyncio.Event(), "counters": HttpCounters(), **options}
    return event_stream(
        source.items(), checkpoint=lambda place: f'"{place}"', interval_s=interval_s, begin=begin, **given
    )


async def chunk(found: AsyncIterator[bytes]) -> list[str]:
    return (await asyncio.wait_for(anext(found), 60)).decode().split("\n\n")[:-1]


async def test_frames_of_an_item_go_out_together(source):
    found = stream(source)
    source.queue.put_nowait([Frame("1", "event", "a"), Frame("2", "event", "b")])
    assert await chunk(found) == ["id: 1\nevent: event\ndata: a", "id: 2\nevent: event\ndata: b"]
    await found.aclose()
    assert source.closed


async def test_a_checkpoint_comes_at_once_and_then_in_time(source):
    found = stream(source, interval_s=0.05, begin="0")
    for _ in range(3):
        assert await chunk(found) == ['id: 0\nevent: checkpoint\ndata: "0"']
    source.queue.put_nowait([Frame("7", "event", "a")])
    while (await chunk(found))[0].startswith("id: 0"):
        pass
    assert await chunk(found) == ['id: 7\nevent: checkpoint\ndata: "7"'], "its id is that of the last event"
    await found.aclose()


async def test_passing_over_many_events_is_told(source):
    found = stream(source)
    source.queue.put_nowait(Checkpoint("1"))
    assert (await chunk(found))[0].startswith("id: 1\nevent: checkpoint")
    for place in range(2, 12):
        source.queue.put_nowait(Checkpoint(str(place), skipped=MAX_SKIPPED // 5))
    assert (await chunk(found))[0].startswith("id: 6\n")
    assert (await chunk(found))[0].startswith("id: 11\n")
    await found.aclose()


async def test_a_checkpoint_is_due_while_events_flow(source):
    """A reader that gets events all the time still gets its checkpoints."""
    found = stream(source, interval_s=0.5)
    seen: list[str] = []
    async with asyncio.timeout(60):
        for place in range(1000):
            source.queue.put_nowait([Frame(str(place), "event", "x")])
            seen += await chunk(found)
            await asyncio.sleep(0.01)
            if any("checkpoint" in one for one in seen):
                break
    assert any("checkpoint" in one for one in seen)
    await found.aclose()


async def test_the_ends(source):
    counters, stopping = HttpCounters(), asyncio.Event()
    found = stream(source, begin="3", counters=counters, stopping=stopping)
    await chunk(found)
    assert counters.streams == 1
    stopping.set()
    assert [one async for one in found] == []
    assert (counters.streams, source.closed) == (0, True)


async def test_an_error_is_the_last_frame(source):
    found = stream(source, begin="3")
    await chunk(found)
    source.queue.put_nowait(Unreachable("no\nanswer"))
    (frame,) = await chunk(found)
    assert frame.startswith("id: 3\nevent: failed\ndata: {")
    assert json.loads(frame.partition("data: ")[2])["description"] == "no\nanswer"
    assert [one async for one in found] == []


async def test_a_source_that_ends(source):
    found = stream(source, begin="3")
    await chunk(found)
    source.queue.put_nowait(None)
    assert [one async for one in found] == []
