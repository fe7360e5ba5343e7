"""Notices within a process."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everlog.runtime import notices
from everlog.runtime.notices import noticing, notify


async def waits(what: str, woken: list[str], ready: threading.Event | None = None) -> None:
    with noticing(what) as notice:
        if ready is not None:
            ready.set()
        await notice.wait(60)
        woken.append(what)


async def test_those_who_wait_for_it_are_told() -> None:
    """And no others; whoever comes later is not told of what was before."""
    woken: list[str] = []
    async with asyncio.timeout(30):
        waiting = [asyncio.create_task(waits(what, woken)) for what in ("a", "a", "b")]
        await asyncio.sleep(0)
        notify("a")
        await asyncio.gather(*waiting[:2])
        assert woken == ["a", "a"]
        notify("b")
        await waiting[2]
    with noticing("a") as notice:
        started = asyncio.get_running_loop().time()
        await notice.wait(0.02)
        assert asyncio.get_running_loop().time() - started >= 0.015
    assert notices._waiting == {}


async def test_a_notice_between_two_waits_counts() -> None:
    with noticing("a") as notice:
        notify("a")
        async with asyncio.timeout(30):
            await notice.wait(60)


def test_a_notice_comes_from_any_thread_into_any_loop() -> None:
    woken: list[str] = []
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(waits("a", woken, ready)))
    thread.start()
    assert ready.wait(30)
    notify("a")
    thread.join(30)
    assert woken == ["a"]


def test_a_loop_that_is_closed_harms_no_one() -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        noticing("a").__enter__()

    loop.run_until_complete(begin())
    loop.close()
    notify("a")
    notices._waiting.clear()


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    assert notices._waiting == {}
