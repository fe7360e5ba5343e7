"""What random schedules have found, each as the shortest schedule that shows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from random import Random

import pytest

from everlog.core.actions import Delete, Purge
from everlog.core.events import Event
from everlog.errors import Conflict, JournalHalted, OutcomeDeleted, OutcomeUnknown
from everlog.journal.reader import Reader, Span
from everlog.journal.writer import Draft
from tests.models.oracle import facts_of
from tests.models.processes import ModelWriter, Pipeline
from tests.models.scheduler import Process, run_alone
from tests.models.world import World, append, bad, plain, ref_of, without


@pytest.fixture
def world() -> World:
    return new_world()


def new_world() -> World:
    world = World(Random(1), ["a"])
    world.log.forgets = 1
    return world


def batch(world: World, first: int, last: int) -> Process:
    """A pipeline that replicates these records."""
    coroutine = Pipeline(world).replicate(world.log.records[first : last + 1], last)
    return Process("pipeline", coroutine, world.trace)


def replicate(world: World, first: int, last: int) -> None:
    batch(world, first, last).finish()


def new_writer(world: World, *, page_size: int = 100) -> ModelWriter:
    writer = ModelWriter(world, "client", Reader(world.log, world.store))
    writer.loses_record = writer.loses_answer = 0
    writer._page_size = page_size
    return writer


def appending(world: World, writer: ModelWriter, draft: Draft, append_id: str | None = None) -> Process:
    coroutine = writer.append(ref_of("a"), draft, verdict=True, append_id=append_id)
    return Process("client", coroutine, world.trace)


def lose_the_answer(world: World, writer: ModelWriter, draft: Draft) -> str:
    """An append that is in the log, without its writer knowing; returns its id."""
    writer.loses_answer = 1
    with pytest.raises(OutcomeUnknown) as caught:
        appending(world, writer, draft).finish()
    writer.loses_answer = 0
    return caught.value.append_id


def after_each_step(start: Callable[[World], Process], disturb: Callable[[World], None]) -> list[tuple[World, Process]]:
    """Every way to let something happen between two steps of a process; each in a world of its own."""
    runs = []
    while True:
        world = new_world()
        process = start(world)
        for _ in range(len(runs)):
            if not process.finished:
                process.step()
        if process.finished:
            return runs
        disturb(world)
        runs.append((world, process))


@pytest.mark.parametrize("page_size", [1, 2, 3])
def test_an_append_that_lost_says_so_though_its_record_fills_the_last_page(world, page_size) -> None:
    """The verdict was looked for on the page behind the last record, where nothing is ever rejected."""
    world.say("a", append([1]))
    client = appending(world, new_writer(world, page_size=page_size), Draft([Event("late")], expected=1))
    client.until("append")
    world.say("a", append([2]))
    with pytest.raises(Conflict):
        client.finish()


def test_an_append_that_waits_has_not_lost_though_the_log_is_trimmed(world) -> None:
    """Another event stands at its place, but a purge waits before it, and a Resume may still let it in."""
    world.say("a", append([1], days=1))
    client = appending(world, new_writer(world), Draft([Event("waits", seq_nr=2)]))
    client.until("append")
    world.say("a", append([2], days=1))
    world.say("a", bad())
    world.say("a", plain(Purge(expire_on=date.max)))
    client.step()
    replicate(world, 0, 4)
    world.log.trim(5)
    with pytest.raises(JournalHalted):
        client.finish()
    world.say("a", without(world, 2))
    assert 4 in world.journals.now["a"].accepted


def test_a_repeated_append_is_found_whole_though_its_first_events_are_deleted(world) -> None:
    writer, draft = new_writer(world), Draft([Event("one"), Event("two")])
    append_id = lose_the_answer(world, writer, draft)
    world.say("a", plain(Delete(to=1)))
    client = appending(world, writer, draft, append_id)
    client.finish()
    assert client.result is not None
    assert (client.result.offset, client.result.range) == (0, (1, 2))


def test_a_repeated_append_is_stored_once_whenever_its_events_are_deleted() -> None:
    """Deleted between the search for it and the look at the head, it was taken for one that never arrived."""

    def start(world: World) -> Process:
        writer, draft = new_writer(world), Draft([Event("once")])
        return appending(world, writer, draft, lose_the_answer(world, writer, draft))

    runs = after_each_step(start, lambda world: world.say("a", plain(Delete(to=1))))
    assert len(runs) > 5
    for world, client in runs:
        try:
            client.finish()
        except OutcomeDeleted:
            pass
        else:
            assert (client.result.offset, client.result.range) == (0, (1, 1))
        assert list(world.journals.now["a"].accepted) == [0]


def test_what_waits_is_read_with_the_head_that_it_belongs_to() -> None:
    """Two pipelines take up the same quarantined records. The slower one found none left and wrote a head without them,
    with the same write timestamp as the right one."""

    def start(world: World) -> Process:
        world.say("a", bad())
        world.say("a", append([1, 2]))
        replicate(world, 0, 1)
        world.say("a", without(world, 0))
        return batch(world, 2, 2)

    runs = after_each_step(start, lambda world: replicate(world, 2, 2))
    assert len(runs) > 5
    for world, slow in runs:
        slow.finish()
        right = world.journals.now["a"].state()
        assert facts_of(world.tables.head("a")) == right.facts
        assert [(event.seq_nr, event.offset) for event in world.tables.all_events("a")] == list(right.events)
        assert world.tables.waiting("a") == []
        assert world.store.lost == set()


def test_a_record_that_the_head_has_not_seen_yet_does_not_wait_twice(world) -> None:
    """Set aside by a pipeline that died before the head, and then met again in the log: the second one 'lost'."""
    world.say("a", bad())
    replicate(world, 0, 0)
    world.say("a", append([1]))
    dying = batch(world, 1, 1)
    dying.until("write head")
    dying.kill()
    world.say("a", without(world, 0))
    replicate(world, 1, 2)
    assert world.store.won == {("a", 1)}
    assert world.store.lost == set()


def test_a_record_that_was_released_does_not_come_back_with_the_next_halt(world) -> None:
    """Released, but a pipeline died before it was removed; then another record halts the journal."""
    world.say("a", bad())
    world.say("a", append([1]))
    replicate(world, 0, 1)
    world.say("a", without(world, 0))
    world.say("a", bad())
    for offset in (2, 3):
        dying = batch(world, offset, offset)
        dying.until("delete what waits")
        dying.kill()
    assert len(world.tables.waiting("a")) == 3
    world.say("a", without(world, 3))
    replicate(world, 2, 4)
    assert world.store.lost == set()
    assert world.tables.waiting("a") == []
    assert facts_of(world.tables.head("a")) == world.journals.now["a"].state().facts


def test_a_row_of_the_next_life_in_the_same_place_makes_a_read_start_over(world) -> None:
    """Rows are stored by seqNr and record time. A purge and an append within the same millisecond put the new row where
    the old one was, before the head says so: a read must not return the old life without that event."""

    async def events() -> list[tuple[int, int]]:
        reader = Reader(world.log, world.store)
        return [(event.seq_nr, event.offset) async for page in reader.read(ref_of("a"), Span()) for event in page]

    world.tick = lambda: world.now_ms  # type: ignore[method-assign]
    world.say("a", append([1, 2]))
    replicate(world, 0, 0)
    reading = Process("reader", events(), world.trace)
    reading.until("read segment")
    world.say("a", plain(Purge()))
    world.say("a", append([1]))
    dying = batch(world, 1, 2)
    dying.until("write head")
    dying.kill()
    reading.finish()
    assert reading.result == [(1, 2)]
    assert run_alone(events()) == [(1, 2)]
