"""A consumer that stands still for minutes while a look back is under way, by seeds, in virtual time."""

from __future__ import annotations

import random

import pytest

from everlog.errors import Unreachable
from everlog.pekko.port import ReadKeys
from tests.pekko.support import TAG, World, label

MINUTE = 60_000

# In these, a look back began in one bucket and ended when the read was in another one. In the last, the read went on by
# three buckets after a pause, past a late event that no look back had seen.
SEEDS = (15, 20, 29, 32, 34, 36, 39, 40, 112)


def busy_world(chance: random.Random) -> tuple[World, list[str]]:
    """Journals that write now and then for ten minutes, in buckets of a minute; every query takes some time."""
    world = World(
        bucket_ms=MINUTE,
        page_size=chance.randint(1, 3),
        seed=chance.randrange(1 << 30),
        bucket_size="Minute",
        first_time_bucket="20231114T22:12",
        hold=chance.choice(["tag", "journal"]),
        back_track_long_interval=chance.choice([2.0, 6.0]),
        gap_timeout=40.0,
        new_persistence_id_scan_timeout=40.0,
    )
    numbers: dict[str, int] = {}
    time, written = 0, []
    while time < 10 * MINUTE:
        time += chance.choice([1, 50, 400, 3000, 15_000])
        pid = chance.choice("pqrstuvw")
        numbers[pid] = numbers.get(pid, 0) + 1
        late = chance.choice([0, 0, 0, 4000, 9000])  # some after their delay: a look back or a gap finds them
        world.write(pid, numbers[pid], time, seen=time + late)
        written.append(f"{pid}{numbers[pid]}")

    def take_time(query: object) -> None:
        world.pass_time(chance.choice([0, 1, 5, 40, 900]))

    world.tables.failing = take_time
    return world, written


async def read_with_pauses(seed: int) -> tuple[list[str], list[str]]:
    chance = random.Random(seed)
    world, written = busy_world(chance)
    stream, found = world.reader().tag(TAG).live(), []
    while more := await world.gather_one(stream, max(world.now, 10 * MINUTE) + 4 * MINUTE):
        found.append(label(more[0]))
        if chance.random() < 0.05:
            world.pass_time(chance.randint(1, 4 * MINUTE))
    return found, written


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_event_comes_once_and_each_journal_in_order(seed):
    found, written = await read_with_pauses(seed)
    assert sorted(found) == sorted(written)
    for pid in "pqrstuvw":
        own = [int(name[1:]) for name in found if name[0] == pid]
        assert own == sorted(own)


async def test_after_a_pause_a_look_back_that_fails_is_waited_for():
    """The read goes on once the look back is through, and nothing spins meanwhile."""
    world = World(bucket_ms=MINUTE, bucket_size="Minute", first_time_bucket="20231114T22:12")
    world.write("p", 1, 1)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 10_000) == ["p1"]
    world.write("p", 2, 10_100)
    world.write("q", 1, 3 * MINUTE)
    world.pass_time(4 * MINUTE)
    world.tables.asked.clear()
    world.tables.failures = [Unreachable("no node answers")] * 3
    assert await world.until(stream, 5 * MINUTE) == ["p2", "q1"]
    assert isinstance(world.tables.asked[0], ReadKeys)
    assert len(world.tables.asked) < 200
