"""Queues on a real Cassandra: the suite for stores, takeovers, and what they write."""

from __future__ import annotations

import asyncio

import pytest

from everlog.errors import Deposed, OwnedElsewhere
from everlog.queues.cassandra.store import CassandraQueueStore
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
    one.store._shards["jobs"]._owner.log.beat = _nothing  # as if it were paused: it does not beat any more
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


@pytest.mark.case("journal-tables", 47)
async def test_no_row_is_ever_deleted(keyspace):
    """2,000 jobs: conditional batches shared by many, no delete but whole segments, nothing for heartbeats."""
    statements: list[str] = []
    clock = VirtualClock()
    store = CassandraQueueStore(
        keyspace, clock=clock, trace=lambda text, _: statements.append(text), segment_records=1000
    )
    desk = Desk(store, clock)
    await desk.declare()
    await desk.enq("first")
    await desk.done(await desk.one())
    statements.clear()
    for first in range(0, 2000, 100):
        await asyncio.gather(*(desk.enq(f"k{n}") for n in range(first, first + 100)))
        leases = await desk.claim(100)
        await asyncio.gather(*(desk.beat(lease) for lease in leases))
        await asyncio.gather(*(desk.done(lease) for lease in leases))
    conditional = [text for text in statements if " IF " in text]
    deletes = [text for text in statements if text.startswith("DELETE")]
    assert len(conditional) <= 0.06 * 2000
    assert 0 < len(deletes) <= 10
    assert all("jq_log" in text and "seq" not in text for text in deletes)
    await store.close()
