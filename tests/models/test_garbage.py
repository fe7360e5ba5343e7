"""Rule 2 step by step: deletions are in the head before they are carried out, and survive a crash between the two."""

from __future__ import annotations

from random import Random

import pytest

from everlog.core.actions import Delete, Purge
from tests.models.processes import Pipeline
from tests.models.scheduler import Process, run_alone
from tests.models.world import World, append, plain


@pytest.fixture
def world() -> World:
    return World(Random(1), ["a"])


def replicate(world: World, first: int, last: int) -> None:
    """One batch, applied and published."""
    run_alone(Pipeline(world).replicate(world.log.records[first : last + 1], last))


def die_before(world: World, first: int, last: int, label: str) -> None:
    """One batch that dies before the step with this label."""
    process = Process("dying", Pipeline(world).replicate(world.log.records[first : last + 1], last), world.trace)
    process.until(label)
    process.kill()


def rows(world: World) -> list[int]:
    return [event.seq_nr for event in world.tables.all_events("a")]


def garbage(world: World) -> list[int]:
    """The offsets of the deletions that the stored head lists."""
    head = world.tables.head("a")
    assert head is not None
    return [deletion.offset for deletion in head.garbage]


@pytest.fixture
def interrupted(world: World) -> World:
    """Events 1 to 4; a delete up to 3 that got as far as the head, no deletion done, nothing published."""
    world.say("a", append([1, 2, 3, 4]))
    replicate(world, 0, 0)
    world.say("a", plain(Delete(to=3)))
    die_before(world, 1, 1, "delete rows")
    assert (rows(world), garbage(world), world.tables.pointer()) == ([1, 2, 3, 4], [1], 0)
    return world


def test_garbage_is_deleted_again_though_the_guard_skips_every_action(interrupted) -> None:
    """The batch is repeated; its only action is in the head already, and yet the deletions must be carried out."""
    replicate(interrupted, 1, 1)
    assert (rows(interrupted), interrupted.tables.pointer()) == ([4], 1)


def test_garbage_is_carried_into_the_next_head(interrupted) -> None:
    """Another batch goes on from that head and dies as well: now the new head knows of both."""
    interrupted.say("a", append([5]))
    interrupted.say("a", plain(Purge()))
    die_before(interrupted, 2, 3, "delete rows")
    assert garbage(interrupted) == [1, 3]
    replicate(interrupted, 1, 3)
    assert rows(interrupted) == []


def test_garbage_ends_when_the_pointer_has_passed_the_head(interrupted) -> None:
    """What was published is carried out: the next head starts with nothing to delete."""
    replicate(interrupted, 1, 1)
    interrupted.say("a", append([5]))
    replicate(interrupted, 2, 2)
    assert (rows(interrupted), garbage(interrupted)) == ([4, 5], [])


def test_garbage_covers_rows_of_appends_that_the_batch_itself_folded_away(world) -> None:
    """A pipeline sleeps with rows in its hands; another folds the append and its purge in one batch, without any row.
    When the sleeper wakes up, its rows are hidden by deletions that happened before they came."""
    world.say("a", append([1, 2]))
    sleeper = Process("sleeper", Pipeline(world).replicate(world.log.records[0:1], 0), world.trace)
    sleeper.until("write row")
    world.say("a", plain(Purge()))
    replicate(world, 0, 1)
    sleeper.finish()
    assert world.tables._events, "the sleeper wrote nothing"
    assert rows(world) == []
    head = world.tables.head("a")
    assert head is not None
    assert (head.offset, head.purged, world.tables.pointer()) == (1, True, 1)
