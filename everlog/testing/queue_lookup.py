"""What every store of queues must say of one job that is asked for by its number."""

from __future__ import annotations

from everlog.queues.operations import FindJob, FoundJob, JobResult, Pause
from everlog.queues.priority import DEFAULT_PRIORITY
from everlog.testing.queue_desk import HOUR, T, VirtualQueue

MINUTE = 60_000


async def find(desk: VirtualQueue, entry: int) -> FoundJob:
    found: FoundJob = await desk.do(FindJob(entry))
    return found


async def codes(desk: VirtualQueue, entry: int) -> list[str]:
    return [cause.code for cause in (await find(desk, entry)).causes]


class QueueLookupSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_a_job_is_found_wherever_it_is(self, desk: VirtualQueue) -> None:
        """Waiting, running, waiting again after a failure, dead, and in the history of its end."""
        await desk.declare(keep_done="7d", max_timeouts=2)
        entry = (await desk.enq(data=7)).entry
        found = await find(desk, entry)
        assert (found.now_ms, found.letter, found.ended) == (T, None, ())
        assert found.row == await desk.row()
        lease = await desk.one(owner="w1")
        found = await find(desk, entry)
        assert found.row is not None
        assert (found.row.owner, found.row.deadline_ms, found.causes) == ("w1", lease.deadline_ms, ())
        await desk.fail(lease, "no", delay=0)
        assert await codes(desk, entry) == ["unclaimed"]
        await desk.fail(await desk.one(), "no more")
        found = await find(desk, entry)
        assert found.row is None
        assert found.letter is not None
        assert (found.letter.cause, found.letter.reason, len(found.letter.attempts)) == ("failed", "no more", 2)
        assert [(one.how, one.token) for one in found.ended] == [("failed", 2)]
        desk.wait(91 * 24 * HOUR)
        assert await find(desk, entry) == FoundJob(desk.clock.now)

    async def test_a_job_that_is_done_is_found_if_it_is_kept(self, desk: VirtualQueue) -> None:
        """The successor lives on under the same number: both are there."""
        await desk.declare(keep_done="7d")
        entry = (await desk.enq(data=1)).entry
        lease = await desk.one()
        await desk.enq(data=2, proc=MINUTE)
        found = await find(desk, entry)
        assert found.row is not None
        assert found.row.slot is not None
        assert found.row.slot.process_ms == T + MINUTE
        await desk.done(lease, JobResult(b"1"))
        found = await find(desk, entry)
        assert found.row is not None
        assert found.row.image.data == b"2"
        assert [(one.how, one.result) for one in found.ended] == [("done", b"1")]
        desk.wait(MINUTE)
        await desk.done(await desk.one())
        found = await find(desk, entry)
        assert found.row is None
        assert [one.token for one in found.ended] == [2, 1]
        desk.wait(7 * 24 * HOUR - MINUTE)
        assert [one.token for one in (await find(desk, entry)).ended] == [2]

    async def test_what_is_not_there_is_not_found(self, desk: VirtualQueue) -> None:
        """Never put, done in a queue that keeps nothing, expired; and a job of another queue."""
        other = VirtualQueue(desk.store, desk.clock, f"{desk.name}-other")
        await other.declare()
        done = (await desk.enq("done")).entry
        await desk.done(await desk.one())
        expired = (await desk.enq("expired", exp=1)).entry
        assert (await find(desk, expired)).row is not None
        desk.wait(1001)
        nothing = FoundJob(desk.clock.now)
        for entry in (done, expired, 2**62, 0):
            assert await find(desk, entry) == nothing
        kept = (await desk.enq("kept")).entry
        assert (await find(desk, kept)).row is not None
        assert await find(other, kept) == nothing

    async def test_a_running_job_may_have_expired_since(self, desk: VirtualQueue) -> None:
        entry = (await desk.enq(exp=1)).entry
        await desk.one()
        desk.wait(2000)
        found = await find(desk, entry)
        assert found.row is not None
        assert found.causes == ()
        desk.wait(HOUR)
        assert await find(desk, entry) == FoundJob(desk.clock.now)

    async def test_why_a_job_waits(self, desk: VirtualQueue) -> None:
        """Paused, not due, behind others, first in line, not claimed at all, overdue."""
        first = (await desk.enq("first")).entry
        second = (await desk.enq("second", pri=DEFAULT_PRIORITY + 1)).entry
        later = (await desk.enq("later", proc=MINUTE)).entry
        assert await codes(desk, first) == ["unclaimed"]
        assert await codes(desk, second) == ["behind", "unclaimed"]
        (cause,) = (await find(desk, later)).causes
        assert cause == ("not_due", None, T + MINUTE)
        await desk.do(Pause(True))
        assert await codes(desk, first) == ["paused"]
        assert await codes(desk, later) == ["paused", "not_due"]
        await desk.do(Pause(False))
        await desk.one(lease=1000)
        assert await codes(desk, second) == ["next"]
        desk.wait(1001)
        assert await codes(desk, first) == ["overdue", "unclaimed"]
        assert [cause.number for cause in (await find(desk, second)).causes if cause.code == "behind"] == []

    async def test_a_limit_is_a_cause(self, desk: VirtualQueue) -> None:
        await desk.declare(max_in_flight=1, rate_limit="2/1m")
        for key in "abc":
            await desk.enq(key)
        lease = await desk.one()
        rest = [row.entry for row in await desk.peek()]
        assert [cause[:2] for cause in (await find(desk, rest[0])).causes] == [("in_flight", 1)]
        assert [cause[:2] for cause in (await find(desk, rest[1])).causes] == [("in_flight", 1), ("behind", 1)]
        await desk.done(lease)
        desk.wait(10)
        await desk.done(await desk.one())
        (cause,) = (await find(desk, rest[1])).causes
        assert cause == ("rate", 2, T + MINUTE)
        desk.wait(MINUTE)
        assert await codes(desk, rest[1]) == ["unclaimed"]

    async def test_a_slow_job_waits_for_a_quiet_pass(self, desk: VirtualQueue) -> None:
        await desk.declare(slow_threshold=200)
        slow = (await desk.enq("slow", pri=200)).entry
        await desk.enq("fast")
        await desk.one()
        assert await codes(desk, slow) == ["slow", "next"]
