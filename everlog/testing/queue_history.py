"""What every store of queues must keep of jobs that have ended, if it is told to."""

from __future__ import annotations

from everlog.queues.keys import decode_key
from everlog.queues.operations import JobResult
from everlog.testing.queue_desk import HOUR, T, VirtualQueue

DAY = 24 * HOUR


class QueueHistorySuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_without_the_option_nothing_is_kept(self, desk: VirtualQueue) -> None:
        await desk.enq()
        await desk.done(await desk.one(), JobResult(b"1"))
        assert await desk.history() == []
        await desk.declare(keep_done="7d")
        assert await desk.history() == []

    async def test_a_job_that_is_done_is_kept(self, desk: VirtualQueue) -> None:
        """With its times, its worker, its result, and the attempts before: their errors are cut."""
        await desk.declare(keep_done="7d")
        answer = await desk.enq()
        desk.wait(10)
        await desk.fail(await desk.one(owner="w1"), "x" * 1000, delay=0)
        desk.wait(10)
        lease = await desk.one(owner="w2")
        desk.wait(10)
        assert (await desk.beat(lease)).ack == "OK"
        assert await desk.done(lease, JobResult(b'{"pages":3}')) == "OK"
        assert await desk.done(lease) == "LEASE_LOST"
        (ended,) = await desk.history()
        assert (ended.entry, ended.token, decode_key(ended.key)) == (answer.entry, lease.row.token, "a")
        assert (ended.inserted_ms, ended.claimed_ms, ended.ended_ms) == (T, T + 20, T + 30)
        assert (ended.how, ended.owner, ended.reason) == ("done", "w2", None)
        assert (ended.result, ended.result_left_out) == (b'{"pages":3}', False)
        (attempt,) = ended.attempts
        assert (attempt.started_ms, attempt.ended_ms, attempt.owner, attempt.how) == (T + 10, T + 10, "w1", "failed")
        assert attempt.reason == "x" * 200
        assert await desk.rows() == []

    async def test_all_ends_are_kept(self, desk: VirtualQueue) -> None:
        """Given up, timed out, cancelled while it waits and while it runs; what has expired and what goes on is not."""
        await desk.declare(keep_done="7d", max_timeouts=1)
        for key in ("given up", "timed out", "cancelled", "stopped"):
            await desk.enq(key, exp=0)
        await desk.cancel("cancelled", "not needed")
        leases = {decode_key(lease.row.key): lease for lease in await desk.claim(10)}
        await desk.fail(leases["given up"], "no", retry=False)
        await desk.cancel("stopped", "enough")
        await desk.fail(leases["stopped"], "cancelled", retry=False)
        await desk.enq("expired", exp=10)
        await desk.enq("released")
        await desk.release((await desk.claim(1, owner="w"))[0])
        desk.wait(HOUR + 1)
        await desk.store.tend(desk.name)
        assert {decode_key(row.key): (row.how, row.reason) for row in await desk.history()} == {
            "given up": ("failed", "no"),
            "timed out": ("max_timeouts", "timeout"),
            "cancelled": ("cancelled", "not needed"),
            "stopped": ("cancelled", "enough"),
        }

    async def test_a_row_that_lives_on_is_kept_for_each_end(self, desk: VirtualQueue) -> None:
        """In the same millisecond, too: the token tells them apart."""
        await desk.declare(keep_done="7d")
        await desk.enq()
        for n in range(3):
            lease = await desk.one()
            await desk.enq(data=n)
            await desk.done(lease)
        assert [row.token for row in await desk.history()] == [3, 2, 1]

    async def test_the_history_is_read_in_pages(self, desk: VirtualQueue) -> None:
        """The last first; of one key alone, too."""
        await desk.declare(keep_done="7d")
        for n in range(25):
            await desk.enq(f"k{n % 3}", data=n)
            await desk.done(await desk.one())
            desk.wait(n % 2)
        pages, before = [], None
        while page := await desk.history(4, before):
            pages.append(page)
            before = page[-1].place
        rows = [row for page in pages for row in page]
        assert [row.place for row in rows] == sorted((row.place for row in rows), reverse=True)
        assert [len(page) for page in pages] == [4] * 6 + [1]
        ones = [row for row in rows if decode_key(row.key) == "k1"]
        assert await desk.history(key="k1") == ones
        assert await desk.history(3, ones[1].place, "k1") == ones[2:5]
        assert await desk.history(key="none") == []

    async def test_the_history_is_bounded(self, desk: VirtualQueue) -> None:
        """In number at once, in time by the upkeep; and gone when the option is taken back."""
        await desk.declare(keep_done="7d", max_done=5)
        for n in range(8):
            await desk.enq(f"k{n}")
            await desk.done(await desk.one())
            desk.wait(DAY)
        kept = [decode_key(row.key) for row in await desk.history()]
        assert kept == ["k7", "k6", "k5", "k4", "k3"]
        desk.wait(4 * DAY)
        assert [decode_key(row.key) for row in await desk.history()] == ["k7", "k6"]
        await desk.store.tend(desk.name)
        await desk.declare(keep_done="70d", max_done=5)
        assert [decode_key(row.key) for row in await desk.history()] == ["k7", "k6"]
        await desk.declare()
        assert await desk.history() == []
        await desk.store.tend(desk.name)
        await desk.declare(keep_done="70d")
        assert await desk.history() == []
