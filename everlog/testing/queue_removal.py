"""What every store of queues must do when jobs are removed by the queue."""

from __future__ import annotations

import pytest

from everlog.queues.operations import PurgeJobs
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
