"""Rules of upkeep that random schedules seldom need, each in the shortest schedule that does."""

from __future__ import annotations

from random import Random

import pytest

from everlog.core.actions import Purge
from everlog.core.duration import LAST_MS
from tests.models.processes import Pipeline
from tests.models.scheduler import Process, run_alone
from tests.models.switches import HintsOfNewDays, drop_any_marker, store_with
from tests.models.upkeep import ExpiryDouble, check_hints, drop_markers, look_up
from tests.models.world import World, append, plain


def new_world(**options: object) -> World:
    world = World(Random(1), ["a"], **options)  # type: ignore[arg-type]
    world.oldest = lambda: len(world.log.records)
    return world


def batch(world: World, first: int, last: int) -> Process:
    coroutine = Pipeline(world).replicate(world.log.records[first : last + 1], last)
    return Process("pipeline", coroutine, world.trace)


def test_an_expiry_that_comes_back_to_its_day_has_a_hint() -> None:
    """A day, another one, and the first again. One pipeline has done the second head, and its day was looked up: no
    head held the hint on the first day. Another pipeline, which has read the first head, comes with the third."""
    world = new_world()
    come_back(world)
    assert world.findings == []
    assert run_alone(look_up(world, ExpiryDouble, LAST_MS)) == ["a"]


def test_without_a_hint_of_its_own_it_is_lost() -> None:
    world = new_world(store_class=store_with(HintsOfNewDays))
    come_back(world)
    assert world.findings
    assert run_alone(look_up(world, ExpiryDouble, LAST_MS)) == []


def come_back(world: World) -> None:
    for number, days in enumerate((1, 2, 1), 1):
        world.say("a", append([number], days=days))
    batch(world, 0, 0).finish()
    slow = batch(world, 1, 2)
    slow.until("write row")
    batch(world, 1, 1).finish()
    assert run_alone(look_up(world, ExpiryDouble, LAST_MS)) == ["a"]
    head = world.tables.head("a")
    assert head is not None
    assert [world.tables.hints(day) for day in world.tables.hint_days()] == [["a"]], "the second day"
    slow.finish()
    check_hints(world)


@pytest.mark.parametrize(("drop", "left"), [(drop_markers, []), (drop_any_marker, [1, 2])])
def test_a_marker_stays_until_what_it_removes_is_gone(drop, left) -> None:
    """A pipeline dies between the marker and the deletions; if the marker went, none would look for them again."""
    world = new_world()
    world.say("a", append([1, 2]))
    batch(world, 0, 0).finish()
    world.say("a", plain(Purge()))
    dying = batch(world, 1, 1)
    dying.until("delete rows")
    dying.kill()
    run_alone(drop(world))
    batch(world, 1, 1).finish()
    assert [event.seq_nr for event in world.tables.all_events("a")] == left
    run_alone(drop_markers(world))
    assert world.tables.head("a") is None
