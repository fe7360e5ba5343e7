"""Queues on a real Cassandra: the suite for stores, takeovers, and what they write."""

from __future__ import annotations

import asyncio

import pytest

from everlog.errors import Deposed, OwnedElsewhere, PayloadTooLarge
from everlog.queues.cassandra.store import CassandraQueueStore
from everlog.queues.queue import Queue
from everlog.testing.queue_desk import Desk, VirtualClock, keys
from tests.unit.models.queue_cases import QueueCases

pytestmark = pytest.mark.cluster


@pytest.fixture
def keyspace(cluster_config):
    """The configuration of a keyspace of this test's own."""
    return cluster_config().cassandra


class TestCassandraStore(QueueCases):
    @pytest.fixture
    def make_store(self, keyspace):
        async def make(clock, *, sweep=200):
            return CassandraQueueStore(keyspace, clock=clock, sweep=sweep, beat_seconds=0.5)

        return make


@pytest.fixture
async def two(keyspace):
    """Two processes' stores on one keyspace, with clocks of their own."""
    clocks = [VirtualClock(), VirtualClock()]
    stores = [
        CassandraQueueStore(keyspace, clock=clock, name=name, beat_seconds=0.2, takeover_seconds=8, segment_records=50)
        for clock, name in zip(clocks, ("one", "two"), strict=True)
    ]
    yield [Desk(store, clock) for store, clock in zip(stores, clocks, strict=True)]
    for store in stores:
        await store.close()


@pytest.mark.case("journal-tables", 46, 48)
async def test_an_owner_that_stands_still_is_taken_over(two):
    """The second takes over after 8 s of its own clock; the first finds out, and no lease is given twice."""
    one, other = two
    await one.declare()
    await asyncio.gather(*(one.enq(f"k{n}") for n in range(150)))
    leases = await one.claim(100)
    with pytest.raises(OwnedElsewhere, match="one"):
        await other.claim(1)
    one.store._shards["jobs", 0]._owner.log.beat = _nothing  # as if it were paused: it does not beat any more
    with pytest.raises(OwnedElsewhere):
        await other.claim(1)
    other.wait(8000)
    assert len(await other.claim(1000)) == 50
    with pytest.raises((Deposed, OwnedElsewhere)):
        await one.enq("lost")
    assert [await other.done(lease) for lease in leases] == ["OK"] * 100
    assert len(await other.rows("lost")) == 0


async def _nothing():
    return None


async def test_an_owner_that_leaves_is_followed_at_once(two):
    one, other = two
    await one.declare(max_buckets=2)
    for n in range(300):  # over several segments, with carried rows
        await one.enq(f"k{n}", proc=10_000_000 if n % 7 == 0 else None)
        for lease in await one.claim(10):
            await one.done(lease)
    await one.store.close()
    assert (await other.stats()).delayed == 43
    other.wait(10_000_000)
    found = [lease for _ in range(5) for lease in await other.claim(10)]
    assert sorted(keys(found)) == sorted(f"k{n}" for n in range(0, 300, 7))


async def written(session, table: str) -> int:
    """How many mutations of a table the server has applied: a conditional batch is one."""
    cql = "SELECT count FROM system_views.local_write_latency WHERE keyspace_name = ? AND table_name = ?"
    ((count,),) = await session.fetch(cql, session.config.keyspace, table)
    return count


async def tombstones(session, table: str) -> float:
    """The most that a read of this table had to skip; the server's histogram begins at 1, which also stands for 0."""
    cql = "SELECT max FROM system_views.tombstones_per_read WHERE keyspace_name = ? AND table_name = ?"
    ((most,),) = await session.fetch(cql, session.config.keyspace, table)
    return most


async def work_through(desk: Desk, jobs: int) -> None:
    for first in range(0, jobs, 250):
        await asyncio.gather(*(desk.enq(f"k{n}") for n in range(first, first + 250)))
        leases = await desk.claim(250)
        await asyncio.gather(*(desk.beat(lease) for lease in leases))
        assert set(await asyncio.gather(*(desk.done(lease) for lease in leases))) == {"OK"}


@pytest.mark.case("journal-tables", 47)
@pytest.mark.parametrize(
    "jobs", [5000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["some", "many"]
)
async def test_what_jobs_cost_the_server(keyspace, jobs):
    """As the server counts: few conditional writes, none for heartbeats, and no reader ever meets a tombstone."""
    deletes: list[str] = []
    clock = VirtualClock()

    def trace(text, _):
        if text.startswith("DELETE"):
            deletes.append(text)

    store = CassandraQueueStore(keyspace, clock=clock, trace=trace, segment_records=4000)
    desk = Desk(store, clock)
    await desk.declare()
    await desk.enq("stays", proc=10_000_000)
    session = await store.session()
    before = await written(session, "jq_log") + await written(session, "jq_shard")
    await work_through(desk, jobs)
    cost = await written(session, "jq_log") + await written(session, "jq_shard") - before
    assert 0 < cost <= 0.06 * jobs, f"{cost} conditional writes for {jobs} jobs"
    # Only whole segments are deleted, and their blobs.
    assert len(deletes) <= 2 * (3 * jobs // 4000 + 1)
    assert all("seq" not in text and "item" not in text for text in deletes)
    await asyncio.gather(*(desk.enq(f"held{n}") for n in range(100)))
    leases = await desk.claim(100)
    before = await written(session, "jq_log")
    for _ in range(10):
        await asyncio.gather(*(desk.beat(lease) for lease in leases))
    assert await written(session, "jq_log") == before
    await store.close()
    again = CassandraQueueStore(keyspace, clock=clock)
    found = await Desk(again, clock).stats()
    assert (found.delayed, found.running, found.ready) == (1, 100, 0)
    assert await tombstones(await again.session(), "jq_log") <= 1
    await again.close()


async def test_large_data_and_the_audit(two):
    """3 MiB go beside the log in chunks and survive a change of owners; more than a row holds is refused."""
    one, other = two
    await one.declare()
    large = b"x" * (3 * 1024 * 1024 + 17)
    first, second = Queue("jobs", one.store), Queue("jobs", other.store)
    await first.put("large", large)
    await first.put("small", b"y")
    with pytest.raises(PayloadTooLarge):
        await first.put("larger", b"x" * (12 * 1024 * 1024 + 1))
    (job,) = [job for job in await first.claim(2) if job.key == "large"]
    await first.fail(job, "no", retry=False)
    assert await first.cancel("small") == 1
    await first.pause()
    await first.put("again", large)
    await one.store.close()
    other.wait(1)  # the ids of two virtual clocks are the same; the time is not
    (dead,) = [dead for dead in await second.dead() if dead.key == "large"]
    assert dead.data == large
    assert await second.resume()
    (job,) = await second.claim()
    assert job.data == large
    await job.done()
    kinds = [type(one.operation).__name__ for one in await other.store.audited("jobs")]
    assert sorted(kinds) == ["Cancel", "Pause", "Pause"]
