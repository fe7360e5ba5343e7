"""The ring of snapshots: which slot is taken, and whose snapshots count."""

from __future__ import annotations

import itertools

import pytest

import everlog
from everlog import Criteria, Event, InvalidInput, JournalNotFound
from everlog.store.port import ring_slot
from everlog.testing.replication import replicate
from tests.support import small_config


@pytest.fixture
async def log(tmp_path, clock):
    async with everlog.connect(small_config(tmp_path, max_snapshots=3), clock=clock) as log:
        yield log


async def seq_nrs(log, journal_id="k") -> list[int]:
    return [snapshot.seq_nr for snapshot in await log.journal("orders").snapshots.list(journal_id)]


def test_the_slot_of_a_snapshot() -> None:
    """Its own, else the lowest free one, else that of the smallest seqNr and time; the dead go first."""
    assert ring_slot({}, 5, 3) == 0
    assert ring_slot({0: (True, 1, 0), 2: (True, 3, 0)}, 5, 3) == 1
    full = {0: (True, 4, 9), 1: (True, 2, 7), 2: (True, 3, 1)}
    assert ring_slot(full, 3, 3) == 2
    assert ring_slot(full, 9, 3) == 1
    assert ring_slot({0: (True, 1, 0), 1: (True, 2, 0), 2: (False, 99, 9)}, 3, 3) == 2
    # The same seqNr of another life is another snapshot.
    assert ring_slot({0: (False, 3, 0)}, 3, 3) == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(1, 5))))
async def test_the_oldest_goes(log, order) -> None:
    """Of four snapshots in a ring of three, the one with the smallest seqNr makes room for the last."""
    orders = log.journal("orders")
    await orders.append("k", [Event(n) for n in range(4)])
    for seq_nr in order:
        await orders.snapshots.save("k", seq_nr=seq_nr, payload=seq_nr)
    assert await seq_nrs(log) == sorted({*order} - {min(order[:3])})


async def test_the_same_seq_nr_is_overwritten(log, clock) -> None:
    orders = log.journal("orders")
    await orders.append("k", [Event(1), Event(2)])
    for payload in ("first", "second"):
        await orders.snapshots.save("k", seq_nr=2, payload=payload, metadata={"by": payload})
        clock.advance(1)
    (found,) = await orders.snapshots.list("k")
    assert (found.payload, found.metadata) == ("second", {"by": "second"})


@pytest.mark.parametrize("replicated", [True, False])
async def test_an_ended_life_does_not_crowd_out_the_next(log, replicated) -> None:
    """Its snapshots fill the ring until the pipeline comes to the purge; the new life's must not pay for that."""
    orders = log.journal("orders")
    await orders.append("k", [Event(n) for n in range(12)])
    for seq_nr in (10, 11, 12):
        await orders.snapshots.save("k", seq_nr=seq_nr, payload="old")
    await orders.purge("k")
    if replicated:
        await replicate(log)
    await orders.append("k", [Event(n) for n in range(12)])
    assert await seq_nrs(log) == []
    for seq_nr in (3, 2, 11):
        await orders.snapshots.save("k", seq_nr=seq_nr, payload="new")
    assert await seq_nrs(log) == [2, 3, 11]
    await replicate(log)
    assert await seq_nrs(log) == [2, 3, 11]


async def test_criteria_and_deletion(log, clock) -> None:
    orders = log.journal("orders")
    await orders.append("k", [Event(n) for n in range(3)])
    start = clock.now_ms()
    for seq_nr in (1, 2, 3):
        await orders.snapshots.save("k", seq_nr=seq_nr, payload=seq_nr)
        clock.advance(1)
    snapshots = orders.snapshots
    assert (await snapshots.load("k", Criteria(max_seq_nr=2))).seq_nr == 2
    assert (await snapshots.load("k", Criteria(max_timestamp=start))).seq_nr == 1
    assert await snapshots.load("k", Criteria(min_seq_nr=4)) is None
    assert await snapshots.delete("k", seq_nr=2) == 1
    assert await snapshots.delete("k", seq_nr=2) == 0
    assert await seq_nrs(log) == [1, 3]
    assert await snapshots.delete("k") == 2
    assert await snapshots.load("k") is None


async def test_a_delete_of_events_keeps_the_snapshots(log) -> None:
    """With all events gone the newest snapshot is the state; without one it is the zero state at the seqNr."""
    orders = log.journal("orders")
    await orders.append("k", [Event(n) for n in range(3)])
    await orders.snapshots.save("k", seq_nr=2, payload="state")
    await orders.delete("k", to=3)
    await replicate(log)
    found = await orders.recover("k")
    assert (found.seq_nr, found.snapshot.payload) == (3, "state")
    assert [event async for event in found.events] == []
    await orders.snapshots.delete("k")
    found = await orders.recover("k")
    assert (found.seq_nr, found.snapshot) == (3, None)


async def test_a_snapshot_needs_a_journal_that_has_come_so_far(log) -> None:
    orders = log.journal("orders")
    with pytest.raises(JournalNotFound):
        await orders.snapshots.save("k", seq_nr=1, payload="x")
    await orders.append("k", [Event(1)])
    with pytest.raises(InvalidInput):
        await orders.snapshots.save("k", seq_nr=2, payload="x")
