"""Several processes on one queue on a real Cassandra: one owns it, the others reach it there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import msgspec
import pytest

from everlog.errors import InvalidConfig, OwnedElsewhere
from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.operations import AskStats
from everlog.queues.queue import Queue
from tests.models.queue_cases import QueueCases
from tests.models.queue_shards import check_shards

pytestmark = pytest.mark.cluster
HOST = "127.0.0.1"


@pytest.fixture
def keyspace(cluster_config):
    return cluster_config().cassandra


@pytest.fixture
async def stores(keyspace):
    """Three processes' stores, as far as the network is concerned; the first owns what it declares."""
    found = [
        CassandraQueueStore(keyspace, name=name, host=HOST, beat_s=0.2, takeover_s=15, segment_records=100)
        for name in ("one", "two", "three")
    ]
    yield found
    for store in found:
        await store.close()


async def test_all_use_one_queue(stores):
    """Puts, claims and ends through any of them; an error comes back as what it is."""
    one, two, three = (Queue("jobs", store) for store in stores)
    await one.declare(on_busy="reject")
    for number in range(30):
        await (one, two, three)[number % 3].put(number, {"n": number})
    jobs = [job for queue in (two, three, one) for job in await queue.claim(10, owner=queue.store.name)]
    assert sorted(job.data["n"] for job in jobs) == list(range(30))
    assert len({job.handle for job in jobs}) == 30
    await asyncio.gather(*(three.done(job.handle) for job in jobs[:20]))
    assert (await two.stats()).running == 10
    await jobs[25].heartbeat()
    assert [store._shards["jobs", 0]._owner is not None for store in stores] == [True, False, False]
    # The owner leaves: the next one that is asked takes over, and nobody's call fails.
    await stores[0].close()
    await asyncio.gather(*(two.done(job.handle) for job in jobs[20:]), three.put("last"))
    assert (await three.stats()).ready == 1
    assert sum(store._shards["jobs", 0]._owner is not None for store in stores[1:]) == 1


async def test_shards_have_owners_of_their_own(stores):
    await Queue("jobs", stores[0]).declare(shards=3)
    with pytest.raises(Exception, match="shards"):
        await Queue("jobs", stores[1]).declare(shards=2)
    await check_shards(stores)


def test_other_machines_need_a_token(keyspace):
    async def use(**options):
        store = CassandraQueueStore(keyspace, **options)
        try:
            await store.names()
        finally:
            await store.close()

    with pytest.raises(InvalidConfig, match="cluster_token"):
        asyncio.run(use(host="192.0.2.1"))
    with pytest.raises(InvalidConfig, match="address"):
        asyncio.run(use(host="0.0.0.0", token="a" * 20))


async def test_a_wrong_token_reaches_nobody(keyspace):
    one = CassandraQueueStore(keyspace, name="one", host=HOST, token="right" * 5, takeover_s=2.0)
    two = CassandraQueueStore(keyspace, name="two", host=HOST, token="wrong" * 5, takeover_s=2.0)
    one.beat_s = 0.1
    await Queue("jobs", one).put("k")
    with pytest.raises(OwnedElsewhere, match="401"):
        await Queue("jobs", two).put("k")
    await two.close()
    await one.close()


def start(config, mode: str, name: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.queues.peer_process", msgspec.json.encode(config).decode(), mode, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.case("journal-tables", 50)
async def test_limits_are_exact_over_processes(keyspace):
    """Four processes with five workers each: never four jobs at once, never an eleventh start within a second."""
    first = CassandraQueueStore(keyspace, name="first", host=HOST)
    queue = Queue("jobs", first)
    await queue.declare(max_in_flight=3, rate_limit="10/s")
    await asyncio.gather(*(queue.put(number) for number in range(30)))
    await first.close()
    peers = [start(keyspace, "limited", f"p{number}") for number in range(4)]
    try:
        for peer in peers:
            assert await asyncio.to_thread(peer.stdout.readline) == b'["ready"]\n'
        outputs = await asyncio.gather(*(asyncio.to_thread(peer.communicate, b"\n", 120) for peer in peers))
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()
    said = [[json.loads(line) for line in output.splitlines()] for output, _ in outputs]
    spans = sorted((began, ended) for lines in said for _, began, ended in lines)
    assert len(spans) == 30
    assert sum(bool(lines) for lines in said) >= 2  # they shared the work
    for began, _ in spans:
        assert sum(first <= began < last for first, last in spans) <= 3
        assert sum(began <= first < began + 1000 for first, _ in spans) <= 10


@pytest.mark.soak
class TestPassedOn(QueueCases):
    """The suite for stores, by a process that never owns anything. It makes tables for minutes; the same suite runs so
    on a model of the tables every time (test_peers.py)."""

    @pytest.fixture
    async def make_store(self, keyspace):
        opened = []

        async def make(clock, *, sweep=200):
            owner = CassandraQueueStore(keyspace, clock=clock, sweep=sweep, beat_s=0.5, host=HOST, name="owner")
            store = Follower(keyspace, clock=clock, sweep=sweep, beat_s=0.5, host=HOST, name="follower")
            store.owner = owner
            opened.append(owner)
            return store

        yield make
        for owner in opened:
            await owner.close()


class Follower(CassandraQueueStore):
    """Lets another process have every queue before it asks for anything."""

    owner: CassandraQueueStore

    async def declare(self, wanted):
        found = await self.owner.declare(wanted)
        await self.owner.execute(wanted.name, AskStats())
        self._known.pop(wanted.name, None)
        return found

    def counted(self, name):
        return self.owner.counted(name)
