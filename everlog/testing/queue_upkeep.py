"""What every store of queues must do by itself as time passes, while nothing is claimed."""

from __future__ import annotations

from everlog.queues.operations import Pause
from everlog.testing.queue_desk import HOUR, VirtualQueue

DAY = 24 * HOUR


class QueueUpkeepSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_upkeep_of_a_paused_queue(self, desk: VirtualQueue) -> None:
        """What is overdue ends with a flag and a dead letter, what has expired goes; nothing is given out."""
        await desk.declare(max_timeouts=1)
        await desk.enq("overdue")
        await desk.one()
        await desk.enq("expired", exp=10)
        await desk.enq("stays")
        await desk.do(Pause(True))
        desk.wait(HOUR + 1)
        await desk.store.tend(desk.name)
        assert [letter.cause for letter in await desk.dead()] == ["max_timeouts"]
        assert list(await desk.flags()) == ["max_timeouts"]
        stats = await desk.stats()
        assert (stats.ready, stats.running, stats.dead, stats.paused) == (1, 0, 1, True)
        assert await desk.claim(10) == []

    async def test_upkeep_removes_old_dead_letters(self, desk: VirtualQueue) -> None:
        """Also if no other job dies after them."""
        for n in range(300):
            await desk.enq(f"k{n}")
        for lease in await desk.claim(300):
            await desk.fail(lease, "no", retry=False)
        desk.wait(13 * DAY)
        await desk.enq("young")
        await desk.cancel("young")
        await desk.store.tend(desk.name)
        assert (await desk.stats()).dead == 301
        desk.wait(DAY)
        await desk.store.tend(desk.name)
        assert (await desk.stats()).dead == 1

    async def test_upkeep_notices_a_backlog(self, desk: VirtualQueue) -> None:
        """A queue whose last put is long ago, and that no worker looks at."""
        await desk.declare(backlog="1m")
        await desk.enq()
        await desk.store.tend(desk.name)
        assert await desk.flags() == {}
        desk.wait(60_001)
        await desk.store.tend(desk.name)
        assert (await desk.flags())["backlog"].count == 1
        await desk.store.tend(desk.name)
        assert (await desk.flags())["backlog"].count == 1
