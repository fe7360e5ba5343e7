"""What every store of queues must do when jobs are removed by the queue, or the queue itself."""

from __future__ import annotations

import asyncio

import pytest

from everlog.config.queue_options import make_options
from everlog.errors import JobsRunning, LeaseLost, QueueNotFound
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from everlog.queues.operations import (
    AskStats,
    Claim,
    FireSchedules,
    JobLease,
    ListDead,
    ListFlags,
    ListSchedules,
    Pause,
    Peek,
    PurgeJobs,
)
from everlog.queues.queue import Queue
from everlog.testing.queue_desk import HOUR, VirtualQueue


class QueueRemovalSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_a_purge_removes_what_waits(self, desk: VirtualQueue) -> None:
        """Due or not, of every priority; what runs goes on, and no dead letter tells of it."""
        await desk.enq("runs")
        lease = await desk.one()
        for number in range(5):
            await desk.enq(f"k{number}", pri=number, proc=HOUR if number % 2 else None)
        assert await desk.do(PurgeJobs()) == 5
        stats = await desk.stats()
        assert (stats.ready, stats.delayed, stats.running, stats.dead) == (0, 0, 1, 0)
        assert await desk.peek() == []
        assert await desk.do(PurgeJobs()) == 0
        assert await desk.done(lease) == "OK"
        assert (await desk.enq("k1")).result == "CREATED"

    async def test_a_purge_goes_on_where_it_stopped(self, desk: VirtualQueue) -> None:
        for number in range(5):
            await desk.enq(f"k{number}", pri=number)
        assert await desk.do(PurgeJobs(2)) == 2
        assert [row.image.priority for row in await desk.peek()] == [2, 3, 4]
        assert await desk.do(PurgeJobs(2)) == 2
        assert await desk.do(PurgeJobs(2)) == 1

    @pytest.mark.parametrize("on_busy", ["successor", "restart"])
    async def test_a_purge_removes_what_waits_behind_a_running_job(self, desk: VirtualQueue, on_busy: str) -> None:
        """Also where that has told the running job to stop: there is nothing to stop for any more."""
        await desk.declare(on_busy=on_busy)
        await desk.enq("a")
        lease = await desk.one()
        await desk.enq("a", data=2)
        assert await desk.do(PurgeJobs()) == 1
        assert (await desk.beat(lease)).stop is None
        assert await desk.done(lease) == "OK"
        assert (await desk.stats()).ready == 0

    async def test_a_purge_removes_a_job_whose_lease_is_over(self, desk: VirtualQueue) -> None:
        """It would be given out again: so it waits."""
        await desk.enq("a")
        lease = await desk.one(lease=1000)
        desk.wait(1001)
        assert await desk.do(PurgeJobs()) == 1
        assert await desk.done(lease) == "LEASE_LOST"
        assert await desk.claim() == []

    async def test_a_purge_may_take_what_runs(self, desk: VirtualQueue) -> None:
        """Its worker hears with the next heartbeat that the job is not its own any more."""
        await desk.enq("a")
        lease = await desk.one()
        await desk.enq("a", data=2)
        await desk.enq("b")
        assert await desk.do(PurgeJobs(running=True)) == 3
        assert (await desk.beat(lease)).ack == "LEASE_LOST"
        stats = await desk.stats()
        assert (stats.ready, stats.delayed, stats.running, stats.dead) == (0, 0, 0, 0)

    async def test_a_purge_leaves_dead_letters(self, desk: VirtualQueue) -> None:
        await desk.enq("a")
        await desk.fail(await desk.one(), "no", retry=False)
        await desk.enq("a")
        assert await desk.do(PurgeJobs()) == 1
        assert [letter.reason for letter in await desk.dead()] == ["no"]

    async def test_a_deleted_queue_is_gone_with_all_that_it_held(self, desk: VirtualQueue) -> None:
        await _fill(desk)
        assert await desk.store.delete(desk.name) == 3
        assert desk.name not in await desk.store.names()
        assert await desk.store.declared(desk.name) is None
        for operation in (AskStats(), Claim("w"), Peek(), ListDead(), ListFlags(), ListSchedules(), FireSchedules()):
            with pytest.raises(QueueNotFound):
                await desk.do(operation)
        with pytest.raises(QueueNotFound):
            await desk.store.delete(desk.name)
        await desk.declare(keep_done="1h")
        await _check_new(desk)

    async def test_a_queue_with_running_jobs_is_deleted_only_if_that_is_wanted(self, desk: VirtualQueue) -> None:
        """It goes on as it was if not; a lease that is over is no running job."""
        await desk.enq("a")
        lease = await desk.one()
        await desk.enq("a", data=2)
        await desk.enq("b")
        with pytest.raises(JobsRunning) as refused:
            await desk.store.delete(desk.name)
        assert (refused.value.queue, refused.value.running) == (desk.name, 1)
        assert not (await desk.stats()).paused
        assert (await desk.beat(lease)).ack == "OK"
        assert await desk.store.delete(desk.name, running=True) == 3
        await desk.declare()
        assert (await desk.beat(lease)).ack == "LEASE_LOST"
        await desk.enq("c")
        await desk.one(lease=1000)
        desk.wait(1001)
        assert await desk.store.delete(desk.name) == 1

    async def test_a_paused_queue_that_is_not_deleted_stays_paused(self, desk: VirtualQueue) -> None:
        await desk.enq("a")
        await desk.one()
        await desk.do(Pause(True))
        with pytest.raises(JobsRunning):
            await desk.store.delete(desk.name)
        assert (await desk.stats()).paused

    async def test_no_handle_of_a_deleted_queue_fits_a_later_one(self, desk: VirtualQueue) -> None:
        old: list[JobLease] = []
        for turn in range(3):
            await desk.enq("a")
            await desk.enq("b")
            leases = await desk.claim(2)
            for lease in old:
                assert await desk.done(lease) == "LEASE_LOST"
                assert (await desk.beat(lease)).ack == "LEASE_LOST"
            assert min(lease.row.entry for lease in leases) > max((one.row.entry for one in old), default=0)
            old += leases
            assert (await desk.stats()).running == 2, turn
            await desk.store.delete(desk.name, running=True)
            await desk.declare()

    async def test_a_queue_is_made_again_as_another_one(self, desk: VirtualQueue) -> None:
        """Its key columns, its options and its versions are those of the new declaration alone."""
        old = ColumnSchema(1, ("page",), (Column("page", "bigint"), Column("edit", "text")))
        new = ColumnSchema(1, ("user", "day"), (Column("user", "text"), Column("day", "text")))
        for turn in range(3):
            await desk.store.delete(desk.name)
            found = await desk.declare(old if turn % 2 else new, max_wait="1m" if turn % 2 else "0s")
            assert found == await desk.store.declared(desk.name)
            assert (found.version, found.schema) == (1, old if turn % 2 else new)
            assert found.options.settings.max_wait_ms == (60_000 if turn % 2 else 0)
            await desk.enq(f"k{turn}")

    async def test_a_put_makes_a_deleted_queue_anew(self, desk: VirtualQueue) -> None:
        queue = Queue(desk.name, desk.store, make_options(max_in_flight=1))
        await queue.put("a")
        (job,) = await queue.claim()
        assert await queue.delete(running=True) == 1
        with pytest.raises(LeaseLost):
            await job.done()
        with pytest.raises(LeaseLost):
            await job.heartbeat()
        receipt = await queue.put("a")
        assert (receipt.result, receipt.entry > job.entry) == ("CREATED", True)
        assert (await queue.declaration()).options.max_in_flight == 1
        assert await queue.delete() == 1
        assert [one.result for one in await queue.put_many([("a", 1), ("b", 2)])] == ["CREATED", "CREATED"]

    @pytest.mark.parametrize("placement", ["dedicated", "shared"])
    async def test_a_put_that_meets_a_deletion_comes_before_or_after_it(
        self, desk: VirtualQueue, placement: str
    ) -> None:
        """Each job was there when its queue went, or is in the one that came next."""
        queue = Queue(desk.name, desk.store, make_options(placement=placement))
        went, number = 0, 0

        async def put(count: int) -> None:
            nonlocal number
            for _ in range(count):
                number += 1
                await queue.put(f"k{number}")

        for _ in range(5):
            putting = [asyncio.create_task(put(8)) for _ in range(3)]
            for _ in range(3):
                try:
                    went += await queue.delete()
                except QueueNotFound:
                    await asyncio.sleep(0)
            await asyncio.gather(*putting)
        left = (await queue.stats()).ready if desk.name in await desk.store.names() else 0
        assert (went + left, went, left) == (number, went, left)

    async def test_other_queues_keep_what_is_theirs(self, desk: VirtualQueue) -> None:
        other = VirtualQueue(desk.store, desk.clock, f"{desk.name}-2")
        await other.declare(keep_done="1h")
        await _fill(other, jobs=2)
        await _fill(desk)
        before = await other.stats()
        assert await desk.store.delete(desk.name) == 3
        assert await other.stats() == before
        assert (len(await other.dead()), len(await other.history())) == (1, 2)
        assert [row.name for row in await other.do(ListSchedules())] == ["tick"]
        assert await other.store.delete(other.name) == 2


async def _fill(desk: VirtualQueue, jobs: int = 3) -> None:
    """Something of everything that a queue may hold, and no job that runs."""
    await desk.declare(keep_done="1h", rate_limit="5/h")
    for name in ("done", "dead"):
        await desk.enq(name)
        lease = await desk.one()
        await (desk.done(lease) if name == "done" else desk.fail(lease, "no", retry=False))
    for number in range(jobs):
        await desk.enq(f"k{number}", proc=HOUR if number % 2 else None)
    await Queue(desk.name, desk.store).schedules.set("tick", every="1h")
    await desk.do(Pause(True))
    assert await desk.flags()


async def _check_new(desk: VirtualQueue) -> None:
    """Nothing is left of an earlier queue of this name."""
    stats = await desk.stats()
    assert (stats.ready, stats.delayed, stats.running, stats.dead, stats.paused) == (0, 0, 0, 0, False)
    assert (await desk.peek(), await desk.dead(), await desk.history(), await desk.flags()) == ([], [], [], {})
    assert await desk.do(ListSchedules()) == []
    desk.wait(2 * HOUR)
    assert await desk.do(FireSchedules()) == 0
    await desk.declare(rate_limit="5/h", keep_done="1h")
    for number in range(6):
        assert (await desk.enq(f"k{number}")).result == "CREATED"
