"""Queues that are deleted and made again between processes, on a model of Cassandra, with real calls between them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from everlog.errors import Busy, InvalidInput, JobsRunning, QueueNotFound, Unreachable
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from everlog.queues.operations import AskStats, Claim
from everlog.queues.queue import Queue
from tests.models.queue_cluster import ModelQueueStore, Tables

HOST = "127.0.0.1"


@pytest.fixture
async def stores():
    tables = Tables()
    found = [ModelQueueStore(tables, name, host=HOST, beat_s=0.1, takeover_s=6.0) for name in ("one", "two")]
    yield found
    for store in found:
        await store.close()


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 2)])
async def test_the_next_queue_may_have_other_shards(stores, before, after):
    """In the process that owned the shards of the first one: each entry is in the shard that its number says."""
    one, _ = stores
    queue = Queue("jobs", one)
    await queue.declare(shards=before)
    await queue.put("old")
    await queue.delete()
    await queue.declare(shards=after)
    for number in range(12):
        await queue.put(f"k{number}")
    jobs = await queue.claim(12)
    assert len({job.entry for job in jobs}) == len(jobs) == 12
    for job in jobs:
        await job.done()
    assert (await queue.stats()).running == 0


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
async def test_a_process_that_knows_of_the_queue_before_puts_into_the_right_shards(stores, before, after):
    """What it has cached of that one is refused by the owner, so it looks again."""
    one, two = stores
    first, second = Queue("jobs", one), Queue("jobs", two)
    await first.declare(shards=before)
    await second.put("old")
    await first.delete()
    await first.declare(shards=after)
    await first.put("k0")
    for number in range(12):
        await second.put(f"k{number}")
    for index in range(after):
        table = one._shards["jobs", index]._owner.table
        for row in table.rows.values():
            assert (int.from_bytes(row.hash[:8], "big") % after, row.entry % after) == (index, index)
    jobs = await second.claim(20)
    assert Counter(job.key for job in jobs) == Counter(f"k{number}" for number in range(12))
    assert len({job.handle for job in jobs}) == 12
    owned = {index for (_, index), world in one.tables.worlds.items() if world.shard.owner}
    assert owned == set(range(after)), "a shard that the queue does not have gets no owner"


async def test_nothing_that_was_packed_for_the_queue_before_comes_into_the_next_one(stores):
    """Its key has other columns there; the shards are the same."""
    one, two = stores
    first, second = Queue("jobs", one), Queue("jobs", two)
    await first.declare(schema=ColumnSchema(1, ("page",), (Column("page", "int64"),)))
    await second.put({"page": 7})
    await first.delete()
    await first.declare(schema=ColumnSchema(1, ("user",), (Column("user", "string"),)))
    assert (await first.stats()).ready == 0
    assert (await second.declaration()).schema.key == ("page",), "it does not know yet"
    with pytest.raises(InvalidInput, match="user is missing"):
        await second.put({"page": 7})
    assert (await first.stats()).ready == 0
    await second.put({"user": "u"})
    assert [job.key for job in await first.claim(9)] == ["u"]


async def test_what_is_asked_of_two_lives_at_once_is_answered_each_by_its_own(stores):
    one, _ = stores
    queue = Queue("jobs", one)
    await queue.put("old")
    await queue.delete()
    await queue.put("new")
    shard = one._shards["jobs", 0]
    asked = [shard.execute(AskStats(), life) for life in (2, 1, 2)]
    first, stale, last = await asyncio.gather(*asked, return_exceptions=True)
    assert (first.ready, last.ready, type(stale)) == (1, 1, QueueNotFound)


async def test_an_owner_that_slept_over_a_deletion_serves_the_next_queue_to_no_one(stores):
    """Another process has had the shard meanwhile: it finds that out, and passes on what it is asked for."""
    one, two = stores
    first, second = Queue("jobs", one), Queue("jobs", two)
    await first.put("old")
    asleep = one._shards["jobs", 0]._owner
    await asleep.log._backend.change_shard(asleep.log.shard, asleep.log.shard._replace(owner="", address=""))
    one._shards["jobs", 0]._owner.log.beat = _stands_still
    assert await second.delete() == 1
    await second.put("new")
    one.forget("jobs")
    assert (await first.stats()).ready == 1
    assert [job.key for job in await first.claim(9)] == ["new"]


async def _stands_still():
    return None


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("operation", ["AskStats", "Clear"])
async def test_a_deletion_that_fails_leaves_no_queue_paused(stores, monkeypatch, operation, cancelled):
    """Nor is it left to another deletion: the next put finishes it, or it has not begun."""
    one, _ = stores
    queue = Queue("jobs", one)
    await queue.put("a")
    shard = one._shards["jobs", 0]
    execute, reached = shard.execute, asyncio.Event()

    async def fail(asked, *rest, **named):
        if type(asked).__name__ == operation:
            reached.set()
            if cancelled:
                await asyncio.Event().wait()
            raise Unreachable("an outage")
        return await execute(asked, *rest, **named)

    monkeypatch.setattr(shard, "execute", fail)
    deleting = asyncio.create_task(queue.delete())
    await reached.wait()
    if cancelled:
        deleting.cancel()
    with pytest.raises((Unreachable, asyncio.CancelledError)):
        await deleting
    monkeypatch.undo()
    await queue.put("b")
    stats = await queue.stats()
    assert (stats.ready, stats.paused) == (2 if operation == "AskStats" else 1, False)
    assert [job.key for job in await queue.claim(9)][-1] == "b"


async def test_a_deletion_whose_row_is_changed_by_others_leaves_no_queue_paused(stores, monkeypatch):
    """A write of the row that loses, once or each time."""
    one, _ = stores
    queue = Queue("jobs", one)
    await queue.put("a")
    register, losses = one.tables.register, [1]
    replace = register.replace

    async def lose(before, changed):
        if losses:
            losses.pop()
            return False
        return await replace(before, changed)

    monkeypatch.setattr(register, "replace", lose)
    assert await queue.delete() == 1
    await queue.put("b")
    losses += [1] * 1000
    with pytest.raises(Busy, match="try again"):
        await queue.delete()
    losses.clear()
    assert not (await queue.stats()).paused
    assert [job.key for job in await queue.claim(9)] == ["b"]


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_job_that_begins_while_its_queue_is_deleted_keeps_it(stores, monkeypatch, shards):
    """Between the look and the row: no shard is cleared, the queue goes on, and its job too."""
    one, two = stores
    first, second = Queue("jobs", one), Queue("jobs", two)
    await first.declare(shards=shards)
    for number in range(9):
        await first.put(f"k{number}")
    looked, jobs = one._refuse_running, []

    async def look(name):
        await looked(name)
        if not jobs:
            jobs.extend(await second.claim(1))

    monkeypatch.setattr(one, "_refuse_running", look)
    with pytest.raises(JobsRunning) as refused:
        await first.delete()
    assert refused.value.running == 1
    stats = await second.stats()
    assert (stats.ready, stats.running, stats.paused) == (8, 1, False)
    await jobs[0].done()
    assert await second.delete() == 8


@pytest.mark.parametrize("wanted", ["delete", "delete running", "put"])
async def test_a_deletion_that_was_cut_off_before_it_was_decided(stores, monkeypatch, wanted):
    """What finishes it looks whether something runs, too, unless it takes that along."""
    one, two = stores
    first, second = Queue("jobs", one), Queue("jobs", two)
    await first.put("a")
    await first.put("b")

    async def look(name):
        await one.execute(name, Claim("w"))

    monkeypatch.setattr(one, "_refuse_running", look)
    monkeypatch.setattr(one, "_finish", _cut_off)
    with pytest.raises(Unreachable):
        await first.delete()
    assert await two.names() == []
    if wanted == "delete running":
        assert await second.delete(running=True) == 2
        return
    if wanted == "delete":
        with pytest.raises(JobsRunning):
            await second.delete()
    else:
        await second.put("b")
    stats = await second.stats()
    assert (stats.ready, stats.running, stats.paused) == (1, 1, False)


async def _cut_off(found):
    raise Unreachable("an outage")


async def test_a_shard_of_a_queue_that_is_being_deleted_gets_no_owner(stores, monkeypatch):
    """But the one that clears it: any other would hold it without a beat."""
    one, two = stores
    first, second = Queue("jobs", one), Queue("jobs", two)
    await first.put("a")
    await second.stats()  # it knows the queue
    await one._shards["jobs", 0]._owner.log.resign()
    one._shards["jobs", 0]._owner = None
    monkeypatch.setattr(one, "_refuse_running", _stands_still_for)
    monkeypatch.setattr(one, "_finish", _cut_off)
    with pytest.raises(Unreachable):
        await first.delete()
    before = one.tables.worlds["jobs", 0].shard
    with pytest.raises(QueueNotFound):
        await second.stats()
    assert one.tables.worlds["jobs", 0].shard == before


async def _stands_still_for(name):
    return None


async def test_an_owner_lets_go_of_a_queue_that_is_not_there(stores, monkeypatch):
    """It hears of the deletion from the row, before it is asked to clear its shard."""
    one, two = stores
    first, second = Queue("jobs", one), Queue("jobs", two)
    await first.put("a")
    monkeypatch.setattr(two, "_finish", _cut_off)
    with pytest.raises(Unreachable):
        await second.delete()
    service = one._shards["jobs", 0]
    life = service._life
    one.forget("jobs")
    with pytest.raises(QueueNotFound):
        await service.execute(AskStats(), life)
    assert one.tables.worlds["jobs", 0].shard.owner == ""
    assert service._owner is None


async def test_a_declaration_that_meets_a_deletion_makes_the_queue_anew(stores, monkeypatch):
    one, two = stores
    await Queue("jobs", one).put("a")
    empty, deleted = two._is_empty, []

    async def delete_first(name):
        if not deleted:
            deleted.append(await Queue("jobs", one).delete())
        return await empty(name)

    monkeypatch.setattr(two, "_is_empty", delete_first)
    assert (await Queue("jobs", two).declare(max_in_flight=3)).options.max_in_flight == 3
    assert deleted == [1]
    assert (await Queue("jobs", two).stats()).ready == 0
