"""Queues on a real Cassandra: the suite for stores, takeovers, and what they write."""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Any

import pytest
from acsylla import Consistency

from everlog.cassandra.session import rows_of
from everlog.config.queue_options import MAX_PAYLOAD_BYTES
from everlog.errors import Deposed, OwnedElsewhere, PayloadTooLarge
from everlog.queues.cassandra.backend import CassandraBackend
from everlog.queues.cassandra.blobs import INLINE_BYTES
from everlog.queues.cassandra.queue_store import CassandraQueueStore
from everlog.queues.operations import Done, FireSchedules, JobResult
from everlog.queues.queue import Queue
from everlog.queues.upkeep import QueueUpkeep
from everlog.testing.queue_desk import HOUR, T, VirtualClock, VirtualQueue, keys
from tests.models.queue_cases import QueueCases
from tests.queues.test_upkeep import NoStatus
from tests.waiting import until

pytestmark = pytest.mark.cluster


@pytest.fixture
def keyspace(cluster_config):
    """The configuration of a keyspace of this test's own."""
    return cluster_config().cassandra


class TestCassandraStore(QueueCases):
    @pytest.fixture
    def make_store(self, shared_config):
        async def make(clock, *, sweep=200):
            return CassandraQueueStore(shared_config().cassandra, clock=clock, sweep=sweep, beat_s=0.5)

        return make

    @pytest.fixture
    def queue_name(self) -> str:
        """Rows are found by it, so that all tests have the tables in common."""
        return f"jobs-{secrets.token_hex(4)}"


@pytest.fixture
async def two(keyspace):
    """Two processes' stores on one keyspace, with clocks of their own."""
    clocks = [VirtualClock(), VirtualClock()]
    stores = [
        CassandraQueueStore(keyspace, clock=clock, name=name, beat_s=0.2, takeover_s=8, segment_records=50)
        for clock, name in zip(clocks, ("one", "two"), strict=True)
    ]
    yield [VirtualQueue(store, clock) for store, clock in zip(stores, clocks, strict=True)]
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


async def test_the_history_outlives_owners_and_segments(two):
    """They stand in the log: carried when their segment is dropped, read again by the next owner."""
    one, other = two
    await one.declare(keep_done="7d", max_done=20, max_buckets=2)
    for n in range(120):  # over several segments
        await one.enq(f"k{n}")
        await one.done(await one.one(), JobResult(b"%d" % n))
    before = await one.history()
    assert [row.result for row in before] == [b"%d" % n for n in range(119, 99, -1)]
    assert one.store._shards["jobs", 0]._owner.log.low > 0
    for n in range(60):  # others fill more segments, and are not kept
        await one.enq(f"x{n}", exp=1)
    one.wait(2000)
    await one.store.tend("jobs")
    await one.store.close()
    assert await other.history() == before
    other.wait(8 * 24 * HOUR)
    await other.store.tend("jobs")
    assert await other.history() == []


async def test_upkeep_takes_over_what_no_process_owns(two):
    """After a round's time for workers; while another process owns the queue, it is left to that one."""
    one, other = two
    await one.declare(max_timeouts=1)
    await one.enq()
    await one.one()
    upkeep = QueueUpkeep(lambda: other.store, clock=other.clock, store=NoStatus())
    assert (await other.store.is_unowned("jobs"), await upkeep.tend_all()) == (False, "0 queues")
    await one.store.close()
    assert (await other.store.is_unowned("jobs"), await upkeep.tend_all()) == (True, "0 queues")
    other.wait(HOUR + 1)
    assert await upkeep.tend_all() == "1 queues"
    other.wait(HOUR + 1)  # the new owner gave the lease its whole time again
    assert await upkeep.tend_all() == "1 queues"
    assert not await other.store.is_unowned("jobs")
    (letter,) = await other.dead()
    assert (letter.cause, letter.attempts[0].started_ms) == ("max_timeouts", T)


async def test_schedules_are_carried_from_segment_to_segment(two):
    """The next owner knows them, how far they are, and which were removed."""
    one, other = two
    await one.declare(max_buckets=2, merge=False)
    schedules = Queue("jobs", one.store).schedules
    await schedules.set("hourly", every="1h", data="d")
    await schedules.set("gone", every="1h")
    one.wait(HOUR)
    assert await schedules.fire() == 2
    await schedules.remove("gone")
    for n in range(300):
        await one.enq(f"k{n}")
        for lease in await one.claim(10):
            await one.done(lease)
    assert one.store._shards["jobs", 0]._owner.log.low > 0, "the segment that had the schedule is dropped"
    await one.store.close()
    other.wait(HOUR)
    again = Queue("jobs", other.store).schedules
    assert [info.name for info in await again.list()] == ["hourly"]
    assert await again.fire() == 0
    other.wait(HOUR)
    assert (await again.fire(), await again.fire()) == (1, 0)
    (job,) = await Queue("jobs", other.store).claim()
    assert (job.key, job.data) == ("hourly", "d")


async def test_an_owner_that_was_deposed_fires_nothing(two):
    """It slept over a time that its successor has put: the job is there once."""
    one, other = two
    await one.declare(merge=False)
    await Queue("jobs", one.store).schedules.set("hourly", every="1h")
    one.store._shards["jobs", 0]._owner.log.beat = _nothing
    with pytest.raises(OwnedElsewhere):
        await other.do(FireSchedules())
    other.wait(HOUR)
    assert await other.do(FireSchedules()) == 1
    one.wait(HOUR)
    with pytest.raises((Deposed, OwnedElsewhere)):
        await one.do(FireSchedules())
    assert len(await other.claim(10)) == 1


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
async def test_a_deleted_queue_is_made_again_with_other_shards(two, before, after):
    """Here and by the next owner each entry is in the shard that its number says."""
    one, other = two
    first, second = Queue("jobs", one.store), Queue("jobs", other.store)
    await first.declare(shards=before)
    await first.put("old")
    assert await first.delete() == 1
    await first.declare(shards=after)
    for number in range(12):
        await first.put(f"k{number}")
    jobs = await first.claim(6)
    await one.store.close()
    jobs += await second.claim(12)
    assert len({job.handle for job in jobs}) == len({job.key for job in jobs}) == 12
    for job in jobs:
        assert await other.do(Done(job.handle)) == "OK"
    stats = await second.stats()
    assert (stats.ready, stats.running) == (0, 0)


async def written(session, table: str) -> int:
    """How many mutations of a table the server has applied: a conditional batch is one."""
    cql = "SELECT count FROM system_views.local_write_latency WHERE keyspace_name = ? AND table_name = ?"
    ((count,),) = await session.fetch(cql, session.config.keyspace, table)
    return count


READ = re.compile(r"Read (\d+) live rows and (\d+) tombstone cells")


async def tombstones(session, cql: str, *values) -> int:
    """How many tombstones of rows, ranges and cells the server meets while it reads this, by its own trace.

    Its histogram `tombstones_per_read` cannot tell: the lowest bucket stands for none and for one, and it forgets. What
    a whole partition's deletion hides is not counted.
    """
    found, state = 0, None
    while True:
        statement = (await session.prepare(cql)).bind(list(values), page_size=1000, page_state=state)
        statement.set_tracing(True)
        result = await session.execute(statement, cql)
        reads = await until(lambda trace=result.tracing_id: reads_of(session, trace))
        found += sum(dead for _, dead in reads)
        if not result.has_more_pages():
            return found
        state = result.page_state()


async def reads_of(session, trace: str) -> list[tuple[int, int]]:
    """Live rows and tombstones of every read in a trace; empty as long as it is not written to its end."""
    ended = await fetch_trace(session, "SELECT duration FROM system_traces.sessions WHERE session_id = ?", trace)
    if not ended or ended[0] is None:
        return []
    lines = await fetch_trace(session, "SELECT activity FROM system_traces.events WHERE session_id = ?", trace)
    return [(int(match[1]), int(match[2])) for line in lines if (match := READ.search(line))]


async def fetch_trace(session, cql: str, trace: str) -> list[Any]:
    # Traces have two copies; a single node has but one.
    statement = (await session.prepare(cql)).bind([trace], consistency=Consistency.ONE)
    return [value for (value,) in rows_of(await session.execute(statement, cql))]


SEGMENT = "SELECT * FROM {keyspace}.jq_log WHERE journal = ? AND shard = ? AND segment = ?"
TABLES = ("jq_log", "jq_blob", "jq_shard", "jq_queue", "jq_dead", "jq_letter", "jq_flag", "jq_audit")


def watch_dropped(monkeypatch, found: list[int]) -> None:
    """Count the tombstones of every segment right before it is dropped: afterwards nobody could."""
    drop = CassandraBackend.drop_segment

    async def count_and_drop(self, segment):
        cql = SEGMENT.format(keyspace=self._session.config.keyspace)
        found.append(await tombstones(self._session, cql, *self._key, segment))
        await drop(self, segment)

    monkeypatch.setattr(CassandraBackend, "drop_segment", count_and_drop)


async def all_tombstones(session) -> dict[str, int]:
    """Those of all tables of queues that have any."""
    keyspace = session.config.keyspace
    counts = {table: await tombstones(session, f"SELECT * FROM {keyspace}.{table}") for table in TABLES}
    return {table: count for table, count in counts.items() if count}


async def work_through(desk: VirtualQueue, jobs: int) -> None:
    for first in range(0, jobs, 250):
        await asyncio.gather(*(desk.enq(f"k{n}") for n in range(first, first + 250)))
        leases = await desk.claim(250)
        await asyncio.gather(*(desk.beat(lease) for lease in leases))
        assert set(await asyncio.gather(*(desk.done(lease) for lease in leases))) == {"OK"}


@pytest.mark.case("journal-tables", 47)
@pytest.mark.parametrize(
    "jobs", [5000, pytest.param(100_000, marks=[pytest.mark.faults, pytest.mark.timeout(1800)])], ids=["some", "many"]
)
async def test_what_jobs_cost_the_server(keyspace, jobs, monkeypatch):
    """As the server counts: few conditional writes, none for heartbeats, and no row is ever deleted."""
    deletes: list[str] = []
    dropped: list[int] = []
    watch_dropped(monkeypatch, dropped)
    clock = VirtualClock()

    def trace(text, _):
        if text.startswith("DELETE") and ".jq_" in text:
            deletes.append(text)

    store = CassandraQueueStore(keyspace, clock=clock, trace=trace, segment_records=max(600, jobs // 25))
    desk = VirtualQueue(store, clock)
    await desk.declare(max_buckets=4)
    await desk.enq("stays", proc=10_000_000)  # it is carried from segment to segment
    session = await store.session()
    before = await written(session, "jq_log") + await written(session, "jq_shard")
    await work_through(desk, jobs)
    cost = await written(session, "jq_log") + await written(session, "jq_shard") - before
    print(f"{jobs} jobs: {cost} conditional writes, {cost / jobs:.4f} per job; {len(dropped)} segments dropped")
    assert 0 < cost <= 0.06 * jobs, f"{cost} conditional writes for {jobs} jobs"
    # Only whole segments are deleted, and their blobs.
    assert len(dropped) >= 10
    await until(lambda: len(deletes) == 2 * len(dropped))  # the last drop may still be under way
    assert all("seq" not in text and "item" not in text for text in deletes)
    await asyncio.gather(*(desk.enq(f"held{n}") for n in range(100)))
    leases = await desk.claim(100)
    before = await written(session, "jq_log")
    for _ in range(10):
        await asyncio.gather(*(desk.beat(lease) for lease in leases))
    assert await written(session, "jq_log") == before
    await store.close()
    again = CassandraQueueStore(keyspace, clock=clock)
    found = await VirtualQueue(again, clock).stats()
    assert (found.delayed, found.running, found.ready) == (1, 100, 0)
    session = await again.session()
    assert sum(dropped) == 0
    assert await all_tombstones(session) == {}
    await check_that_tombstones_show(session, again)
    await again.close()


async def check_that_tombstones_show(session, store) -> None:
    """The same count, after one row was deleted and one cell emptied on purpose."""
    place = "WHERE journal = 'jobs' AND shard = 0 AND segment ="
    high = store._shards["jobs", 0]._owner.log.high
    table = f"{session.config.keyspace}.jq_log"
    await session.write(f"DELETE FROM {table} {place} {high} AND seq = 1")
    assert await all_tombstones(session) == {"jq_log": 1}
    await session.write(f"UPDATE {table} SET body = null {place} {high} AND seq = 2")
    assert await all_tombstones(session) == {"jq_log": 2}


async def test_much_at_once(two):
    """300 jobs of 64 KiB change at the same moment, more than one mutation of the server holds; none is lost."""
    one, other = two
    await one.declare()
    first, second = Queue("jobs", one.store), Queue("jobs", other.store)
    data = b"x" * (INLINE_BYTES - 1)
    await asyncio.gather(*(first.put(f"k{number}", data) for number in range(300)))
    jobs = await first.claim(300)
    await asyncio.gather(*(first.fail(job, "all of them", delay="1h") for job in jobs))
    await one.store.close()
    assert (await second.stats()).delayed == 300
    other.wait(3_600_000)
    assert {(len(job.data), job.attempt) for job in await second.claim(300)} == {(len(data), 2)}


async def test_large_data_and_the_audit(two, keyspace):
    """16 MiB, more than a row holds, go beside the log in chunks and survive a change of owners; more is refused."""
    one, other = two
    await one.declare()
    large = bytes(range(256)) * (MAX_PAYLOAD_BYTES // 256)
    first, second = Queue("jobs", one.store), Queue("jobs", other.store)
    await first.put("large", large)
    await first.put("small", b"y")
    with pytest.raises(PayloadTooLarge):
        await first.put("larger", large + b"x")
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
    session = await other.store.session()
    chunks = f"SELECT chunk FROM {session.config.keyspace}.jq_letter"
    assert len(await session.fetch(chunks)) == 65  # the last one has a byte: which kind of data it is
    assert await second.revive(dead.entry) is not None
    assert await session.fetch(chunks) == []
    (job,) = await second.claim()
    assert job.data == large
    kinds = [type(one.operation).__name__ for one in await other.store.audited("jobs")]
    assert sorted(kinds) == ["Cancel", "Forget", "Pause", "Pause", "Revive"]
    await second.fail(job, "again", retry=False)
    assert len(await second.dead()) == 1
    place = (
        f"journal = 'jobs' AND dead_ms = {(await second.dead())[0].time.timestamp() * 1000:.0f} AND entry = {job.entry}"
    )
    await session.write(f"DELETE FROM {keyspace.keyspace}.jq_letter WHERE {place} AND chunk = 7")
    await other.store.close()
    third = CassandraQueueStore(keyspace, clock=other.clock, name="three")
    assert await Queue("jobs", third).dead() == [], "a letter without its data is no letter, and stops nobody"
    await third.close()
