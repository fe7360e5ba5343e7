"""Turns: one at a time per name, in order, and nobody is forgotten when somebody gives up."""

from __future__ import annotations

import asyncio

import pytest

from everlog.runtime.keyed_lock import KeyedLock


async def test_one_at_a_time_in_the_order_of_asking() -> None:
    turns, seen, inside = KeyedLock(), [], 0

    async def work(number: int) -> None:
        nonlocal inside
        await turns.acquire("k")
        inside += 1
        assert inside == 1
        seen.append(number)
        await asyncio.sleep(0)
        inside -= 1
        turns.release("k")

    await asyncio.gather(*[work(number) for number in range(20)])
    assert seen == list(range(20))
    assert turns._waiting == {}


async def test_other_names_do_not_wait() -> None:
    turns = KeyedLock()
    await turns.acquire("a")
    await asyncio.wait_for(turns.acquire("b"), 60)


@pytest.mark.parametrize("granted", [False, True])
async def test_who_gives_up_passes_the_turn_on(granted: bool) -> None:
    """Cancelled while waiting, or in the very moment the turn came: the next one gets it."""
    turns = KeyedLock()
    await turns.acquire("k")
    second, third = asyncio.create_task(turns.acquire("k")), asyncio.create_task(turns.acquire("k"))
    await asyncio.sleep(0)
    if granted:
        turns.release("k")
    second.cancel()
    if not granted:
        await asyncio.sleep(0)
        turns.release("k")
    await asyncio.wait_for(third, 60)
    turns.release("k")
    assert turns._waiting == {}
