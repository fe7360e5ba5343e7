"""Events by journal, and the ids of journals, in virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.errors import SeqNrMissing, Unreachable
from everlog.pekko.port import ReadEvents
from tests.pekko.support import World, everything
from tests.support import examples


def events(first: int, last: int) -> list[str]:
    return [f"p{number}" for number in range(first, last + 1)]


def partitioned(world: World) -> None:
    for first, last in ((1, 10), (11, 15), (16, 17), (18, 31), (32, 32)):
        world.store("p", first, last)


@pytest.mark.case("tags-and-projections", 48)
async def test_partitions_are_read_one_after_the_other():
    """Size 15 and the writes of the vector: 18 to 31 are all in partition 2; read by id, 1 to 32 come in order."""
    world = World()
    partitioned(world)
    assert sorted(world.tables.journals["p", 2]) == list(range(18, 33))
    assert await everything(world.reader().events("p")) == events(1, 32)
    for first in range(1, 32):
        assert await everything(world.reader().events("p", first, 31)) == events(first, 31)
    assert await world.reader().highest_seq_nr("p") == 32


async def test_an_atomic_write_may_leave_a_partition_empty():
    world = World()
    world.store("p", 1, 15)
    world.store("p", 16, 31)
    assert ("p", 1) not in world.tables.journals
    assert await everything(world.reader().events("p")) == events(1, 31)
    assert await world.until(world.reader().events("p", live=True), 10_000) == events(1, 31)
    assert await world.reader().highest_seq_nr("p") == 31


async def test_a_live_query_sees_what_is_written_later():
    """Also beyond the end of a partition; it ends at the last number that was asked for."""
    world = World()
    world.store("p", 1, 15)
    stream = world.reader().events("p", 2, 40, live=True)
    assert await world.until(stream, 4000) == events(2, 15)
    world.store("p", 16, 31)
    assert await world.until(stream, 8000) == events(16, 31)
    world.store("p", 32, 50)
    assert await world.until(stream, 60_000) == events(32, 40)
    assert world.now < 12_000
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.case("tags-and-projections", 49)
async def test_a_gap_in_a_journal_is_waited_for():
    """1, 2, 4, 5 and 3 within the time-out: 1 to 5 in order. Without 3 the stream fails and names it."""
    for live in (True, False):
        world = World()
        for number in (1, 2, 4, 5):
            world.store("p", number)
        stream = world.reader().events("p", live=live)
        assert await world.until(stream, 5000) == events(1, 2)
        world.store("p", 3)
        assert await world.until(stream, 5200) == events(3, 5)

        world = World()
        for number in (1, 2, 4, 5):
            world.store("p", number)
        stream = world.reader().events("p", live=live)
        assert await world.until(stream, 9999) == events(1, 2)
        with pytest.raises(SeqNrMissing) as raised:
            await world.until(stream, 10_001)
        assert (raised.value.persistence_id, raised.value.expected, raised.value.seen) == ("p", 3, 4)
        looks = [
            query for query in world.tables.asked if isinstance(query, ReadEvents) and query.first == query.last == 3
        ]
        assert len(looks) == 2 * 51  # every 200 ms, in two partitions


async def test_a_gap_at_the_edge_of_a_partition():
    world = World()
    world.store("p", 1, 15)
    world.store("p", 17, 18)
    stream = world.reader().events("p")
    assert await world.until(stream, 1000) == events(1, 15)
    world.store("p", 16)
    assert await world.until(stream, 2000) == events(16, 18)


async def test_gaps_may_be_accepted():
    """Then empty partitions are skipped, and six of them in a row are the end, also of a live query."""
    for live in (True, False):
        world = World()
        for first, last in ((2, 3), (7, 7), (15 * 5 + 1, 15 * 5 + 2), (15 * 12 + 1, 15 * 12 + 1)):
            world.store("p", first, last)
        stream = world.reader(gap_free_sequence_numbers=False).events("p", live=live)
        assert await everything(stream) == ["p2", "p3", "p7", "p76", "p77"]
        assert world.now == 0


@pytest.mark.case("tags-and-projections", 50)
async def test_deleted_events_are_not_read():
    """50 events deleted to 48: 49 and 50. All deleted: nothing, and the next write is 51."""
    world = World()
    world.store("p", 1, 50, partition=3)
    world.tables.deleted["p"] = 48
    assert await everything(world.reader().events("p", 0)) == events(49, 50)
    world.tables.deleted["p"] = 50
    world.tables.journals.clear()
    assert await everything(world.reader().events("p", 0)) == []
    assert await world.reader().highest_seq_nr("p") + 1 == 51
    assert await world.reader().highest_seq_nr("nobody") == 0


async def test_a_delete_under_a_reader_is_no_gap():
    world = World()
    world.store("p", 1, 3)
    stream = world.reader().events("p", live=True)
    assert await world.until(stream, 1000) == events(1, 3)
    world.store("p", 9, 12)
    world.tables.deleted["p"] = 8
    assert await world.until(stream, 5000) == events(9, 12)


async def test_a_number_that_two_writers_used_comes_once(caplog):
    world = World()
    world.store("p", 1, 3)
    world.store("p", 3, 4, partition=1)
    with caplog.at_level(logging.WARNING):
        assert await everything(world.reader().events("p")) == events(1, 4)


async def test_a_failed_read_of_a_journal_is_tried_again():
    world = World()
    partitioned(world)
    tries: dict[object, int] = {}

    def fail(query: object) -> Unreachable | None:
        tries[query] = tries.get(query, 0) + 1
        return Unreachable("no answer") if tries[query] <= 1 else None

    world.tables.failing = fail
    assert await everything(world.reader().events("p")) == events(1, 32)


@pytest.mark.case("tags-and-projections", 51)
async def test_each_id_comes_once():
    """The current query gives a and b and ends; the live one goes on with c, and gives none twice."""
    world = World()
    world.tables.known_ids = ["a", "b", "a"]
    assert await everything(world.reader().persistence_ids()) == ["a", "b"]
    stream = world.reader().persistence_ids(live=True)
    assert await world.until(stream, 10_000) == ["a", "b"]
    world.tables.known_ids = ["c", "b", "d", "e", "a"]
    assert await world.until(stream, 14_000) == ["c", "d", "e"]
    world.tables.failures = [Unreachable("no answer")]
    assert await world.until(stream, 60_000) == []


@settings(max_examples=examples(50))
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4000)), min_size=1, max_size=12),
    st.integers(1, 7),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_any_writes_are_read_once_and_in_order(writes, page_size, first, length):
    """Atomic writes of any size that become visible at any time, one after the other; bounds anywhere; both queries."""

    async def run() -> None:
        world = World(page_size=page_size)
        done, time = 0, 0
        for size, pause in writes:
            begin, end = done + 1, done + size
            if (end - 1) // 15 - (begin - 1) // 15 > 1:  # they refuse a write over more than two partitions
                continue
            time, done = time + pause, end
            world.at(time, lambda begin=begin, end=end: world.store("p", begin, end))
        wanted = events(max(first, 1), min(first + length, done))
        live = world.reader().events("p", first, first + length, live=True)
        assert await world.until(live, time + 10_000) == wanted
        await world.sleep_through(time + 20_000)
        assert await everything(world.reader().events("p", first, first + length)) == wanted
        assert await world.reader().highest_seq_nr("p") == done

    asyncio.run(run())


@settings(max_examples=examples(40))
@given(st.lists(st.integers(0, 9000), min_size=2, max_size=12), st.integers(1, 4))
def test_rows_that_appear_out_of_order_are_read_in_order(lates, page_size):
    """Each row becomes visible within the time-out after the others, in any order."""

    async def run() -> None:
        world = World(page_size=page_size)
        for number, late in enumerate(lates, 9):
            world.at(late, lambda number=number: world.store("p", number))
        assert await world.until(world.reader().events("p", 9, live=True), 30_000) == events(9, 8 + len(lates))

    asyncio.run(run())
