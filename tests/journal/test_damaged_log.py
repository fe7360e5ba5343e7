"""A log that lost its end: what is appended to it would never count, so nobody may be told that it did."""

from __future__ import annotations

import asyncio

import pytest

import everlog
from everlog import Event
from everlog.errors import LogTruncated, StorageFailed, TopicReplaced
from everlog.journal.writer import LOOK_S, PointerCache
from everlog.testing.replication import replicate
from tests.http_support import through_server
from tests.journal.copy_support import empty, make_again
from tests.support import ManualClock


@pytest.mark.parametrize("known", [False, True], ids=["by another process", "by one that appended before"])
@pytest.mark.parametrize(
    "append",
    [{"verdict": False, "event": Event(1, seq_nr=9)}, {"verdict": False}, {"expected": 1}, {}],
    ids=["unchecked", "no verdict", "expected", "anywhere"],
)
async def test_an_append_to_it_is_refused(small_log, append, known) -> None:
    orders = small_log.journal("orders")
    await orders.append("o-1", Event(1))
    await replicate(small_log)
    if not known:
        small_log.parts.writer._known.clear()
    empty(small_log, "orders")
    options = {**append}
    with pytest.raises(LogTruncated, match=r"journal copy \w+ NEW") as refused:
        await orders.append("o-1", options.pop("event", Event("lost")), **options)
    assert not refused.value.retriable


@pytest.mark.parametrize(("damage", "kind"), [(empty, LogTruncated), (make_again, TopicReplaced)])
async def test_a_client_of_a_server_gets_the_same_error(small_log, damage, kind) -> None:
    await small_log.journal("orders").append("o-1", Event(1))
    await replicate(small_log)
    damage(small_log, "orders")
    async with everlog.connect(small_log.config) as local, through_server(local) as remote:
        with pytest.raises(kind, match=r"journal copy \w+ NEW"):
            await remote.journal("orders").append("o-1", Event("lost"))


async def test_appends_without_a_verdict_go_on_as_the_log_is_replicated_and_trimmed(small_log, clock) -> None:
    """The pointer may be right behind the writer, and everything below it may be gone."""
    orders = small_log.journal("orders")
    for number in range(1, 9):
        await orders.append("o-1", Event(number, seq_nr=number), verdict=False)
        await replicate(small_log)
        if number == 4:
            await small_log.trim()
        clock.advance(LOOK_S)
    assert [event.seq_nr async for event in orders.read("o-1")] == list(range(1, 9))


class Store:
    """A pointer that can be taken away."""

    def __init__(self) -> None:
        self.pointer = 5
        self.looks = 0
        self.fails = False

    async def look(self, topic: str, partition: int) -> int:
        self.looks += 1
        if self.fails:
            raise StorageFailed("the store is down")
        return self.pointer


async def test_a_pointer_is_looked_up_now_and_then() -> None:
    clock, store = ManualClock(), Store()
    pointers = PointerCache(store.look, clock)
    assert [await pointers.at_least("t", 0) for _ in range(3)] == [5, 5, 5]
    assert store.looks == 1
    store.pointer = 8
    clock.advance(LOOK_S + 1)
    assert [await pointers.at_least("t", 0) for _ in range(3)] == [8, 8, 8]
    assert await pointers.at_least("t", 1) == 8
    assert store.looks == 3


async def test_a_store_that_is_down_holds_nobody_up() -> None:
    clock, store = ManualClock(), Store()
    pointers = PointerCache(store.look, clock)
    store.fails = True
    assert [await pointers.at_least("t", 0) for _ in range(3)] == [-1, -1, -1]
    assert store.looks == 1
    store.fails = False
    clock.advance(LOOK_S + 1)
    assert await pointers.at_least("t", 0) == 5
    store.fails = True
    clock.advance(LOOK_S + 1)
    assert await pointers.at_least("t", 0) == 5


async def test_a_store_that_says_nothing_holds_nobody_up_for_long(monkeypatch) -> None:
    monkeypatch.setattr("everlog.journal.writer.ANSWER_S", 0.01)

    async def silent(topic: str, partition: int) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    pointers = PointerCache(silent, ManualClock())
    assert await pointers.at_least("t", 0) == -1
