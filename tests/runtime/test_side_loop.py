"""Long work in a thread of its own: functions, coroutines and generators, their errors, and callers that give up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pytest

from everlog.runtime.side_loop import SideLoop
from tests.waiting import until


@pytest.fixture
async def side() -> AsyncIterator[SideLoop]:
    made = SideLoop()
    yield made
    await made.aclose()


async def test_work_is_done_in_one_other_thread(side: SideLoop) -> None:
    threads = set(await asyncio.gather(*[side.call(threading.get_ident) for _ in range(20)]))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    with pytest.raises(ZeroDivisionError):
        await side.call(lambda: 1 // 0)


async def numbers(count: int, seen: list[int], *, fail: bool = False) -> AsyncGenerator[Sequence[int], None]:
    try:
        for number in range(count):
            seen.append(number)
            yield [number]
        if fail:
            raise ValueError("at the end")
    finally:
        seen.append(-1)


@pytest.mark.parametrize("count", [0, 1, 2, 50])
@pytest.mark.parametrize("fail", [False, True])
async def test_a_stream_is_whole_and_in_order(side: SideLoop, count: int, fail: bool) -> None:
    """Also where an error comes behind the last item."""
    seen: list[int] = []
    found: list[int] = []
    try:
        async for page in side.stream(lambda: numbers(count, seen, fail=fail)):
            found += page
            if len(found) % 3:
                await asyncio.sleep(0)
    except ValueError:
        assert fail
    else:
        assert not fail
    assert found == list(range(count))
    assert seen[-1] == -1


async def test_a_reader_that_stops_ends_the_generator_which_is_not_far_ahead(side: SideLoop) -> None:
    seen: list[int] = []
    stream = side.stream(lambda: numbers(10**9, seen))
    assert [await anext(stream) for _ in range(3)] == [[0], [1], [2]]
    assert max(seen) <= 6
    await stream.aclose()

    async def ended() -> bool:
        return seen[-1] == -1

    await until(ended)


async def test_a_caller_that_gives_up_cancels_its_work(side: SideLoop) -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    asking = asyncio.create_task(side.run(work()))
    await side.call(lambda: None)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(ended.wait, 30)
