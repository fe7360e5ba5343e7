"""What every store of queues must do. Order, leases, failures, dead letters, cancelling."""

from __future__ import annotations

from collections import Counter

import pytest

from everlog.queues.keys import JobKey, decode_key, encode_key, hash_key
from everlog.queues.operations import AckFlag, Forget, ListDead, Revive
from everlog.queues.wait_histogram import bucket_of, is_wait
from everlog.testing.queue_desk import HOUR, T, VirtualQueue, handle, keys, number


class QueueLeaseSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_the_order_of_claims(self, desk: VirtualQueue) -> None:
        """Priority, then Process Date, then hash; claim(10) returns all, each with a token of its own."""
        desk.wait(100)
        for key, pri, proc in (("x", 10, 5), ("y", 10, 3), ("p", 5, 9), ("q", 5, 9)):
            await desk.enq(key, pri, proc, ins=0)
        first, second = sorted(("p", "q"), key=lambda key: hash_key(encode_key(key)))
        peeked = [decode_key(row.key) for row in await desk.peek()]
        leases = await desk.claim(10)
        assert keys(leases) == peeked == [first, second, "y", "x"]
        assert len({handle(lease) for lease in leases}) == 4

    async def test_a_delayed_job_does_not_hold_up_others(self, desk: VirtualQueue) -> None:
        await desk.enq("later", 0, HOUR)
        await desk.enq("now", 255)
        assert keys(await desk.claim(10)) == ["now"]
        desk.wait(HOUR)
        assert keys(await desk.claim(10)) == ["later"]

    async def test_slow_jobs_wait_for_a_pass_without_others(self, desk: VirtualQueue) -> None:
        """One worker gets 50, then nothing in this pass, then 230 in the next; a batch does not mix them either."""
        await desk.declare(slow_threshold=200)
        await desk.enq("slow", 230)
        await desk.enq("fast", 50)
        assert keys(await desk.claim(10)) == ["fast"]
        assert await desk.claim(10, fast=True) == []
        assert keys(await desk.claim(10)) == ["slow"]

    async def test_a_lease_ends_strictly_after_its_last_moment(self, desk: VirtualQueue) -> None:
        await desk.enq()
        first = await desk.one()
        desk.clock.now = first.deadline_ms
        assert desk.clock.now == T + HOUR
        assert await desk.claim() == []
        desk.wait(1)
        again = await desk.one()
        assert (again.row.timeouts, again.row.token, again.attempt) == (1, first.row.token + 1, 2)

    async def test_heartbeats_keep_a_lease(self, desk: VirtualQueue) -> None:
        await desk.enq()
        lease = await desk.one()
        for _ in range(30):
            desk.wait(HOUR // 3)
            assert await desk.claim(owner="other") == []
            assert (await desk.beat(lease)).ack == "OK"
        assert (await desk.row()).timeouts == 0

    async def test_heartbeats_do_not_move_the_beginning_of_an_attempt(self, desk: VirtualQueue) -> None:
        """It is the moment of the claim, while the job runs and in the note of the attempt; a retry has its own."""
        await desk.enq()
        assert (await desk.row()).claimed_ms is None
        desk.wait(1000)
        first = await desk.one()
        assert first.row.claimed_ms == T + 1000
        for _ in range(3):
            desk.wait(HOUR // 2)
            assert (await desk.beat(first)).deadline_ms == desk.clock.now + HOUR
        assert (await desk.row()).claimed_ms == T + 1000
        await desk.fail(first, "no", delay=0)
        failed_ms = desk.clock.now
        row = await desk.row()
        assert (row.claimed_ms, row.image.inserted_ms) == (None, T)
        assert [(one.started_ms, one.ended_ms) for one in row.attempts] == [(T + 1000, failed_ms)]
        desk.wait(7)
        second = await desk.one()
        assert second.row.claimed_ms == failed_ms + 7
        await desk.enq(data=2)
        await desk.done(second)
        row = await desk.row()
        assert (row.claimed_ms, row.image.inserted_ms) == (None, failed_ms + 7)
        desk.wait(1)
        assert (await desk.one()).row.claimed_ms == failed_ms + 8

    async def test_an_old_handle_changes_nothing(self, desk: VirtualQueue) -> None:
        """A timed out and B has the job: whatever A says, B's row is untouched."""
        await desk.enq()
        old = await desk.one(owner="A")
        desk.wait(HOUR + 1)
        new = await desk.one(owner="B")
        before = await desk.row()
        assert await desk.done(old) == "LEASE_LOST"
        assert (await desk.beat(old)).ack == "LEASE_LOST"
        assert await desk.fail(old, "no") == "LEASE_LOST"
        assert await desk.release(old) == "LEASE_LOST"
        assert await desk.row() == before
        assert await desk.done(new) == "OK"
        assert await desk.done(new) == "LEASE_LOST"

    async def test_a_key_that_is_gone_and_back_accepts_no_old_handle(self, desk: VirtualQueue) -> None:
        await desk.enq()
        old = await desk.one()
        await desk.done(old)
        await desk.enq()
        new = await desk.one()
        assert new.row.entry != old.row.entry
        assert await desk.done(old) == "LEASE_LOST"
        assert await desk.done(new) == "OK"

    async def test_late_is_better_than_again(self, desk: VirtualQueue) -> None:
        """Overdue, but no operation has looked: done and heartbeat still count."""
        await desk.enq("a")
        await desk.enq("b")
        first, second = await desk.claim(2)
        desk.wait(2 * HOUR)
        assert await desk.done(first) == "OK"
        assert (await desk.beat(second)).ack == "OK"
        assert (await desk.stats()).running == 1
        assert await desk.claim() == []

    async def test_five_dead_attempts_make_a_dead_letter(self, desk: VirtualQueue) -> None:
        """The row is gone, one letter with the history, one open flag; revived, it begins at counter 0."""
        answer = await desk.enq(data=7)
        for n in range(5):
            assert (await desk.one(owner=f"w{n}")).attempt == n + 1
            desk.wait(HOUR + 1)
        assert await desk.claim() == []
        assert await desk.rows() == []
        (letter,) = await desk.dead()
        assert (letter.entry, letter.image.data, letter.timeouts) == (answer.entry, b"7", 5)
        assert [attempt.owner for attempt in letter.attempts] == ["w0", "w1", "w2", "w3", "w4"]
        assert {attempt.how for attempt in letter.attempts} == {"timeout"}
        flag = (await desk.flags())["max_timeouts"]
        assert (flag.count, flag.dead_entry) == (1, answer.entry)
        assert (await desk.do(Revive(letter.entry))).result == "CREATED"
        assert await desk.do(Forget(letter.entry)) is True
        assert await desk.dead() == []
        row = await desk.row()
        assert (row.timeouts, row.lifetime, number(row)) == (0, 5, 7)
        assert await desk.do(AckFlag("max_timeouts")) is True
        assert await desk.flags() == {}
        assert await desk.do(Revive(letter.entry)) is None

    async def test_the_counter_never_wraps(self, desk: VirtualQueue) -> None:
        await desk.declare(max_timeouts=255, lifetime_timeouts=1000)
        await desk.enq()
        for n in range(254):
            lease = await desk.one()
            assert lease.attempt == n + 1
            await desk.fail(lease, delay=0)
        await desk.fail(await desk.one(), delay=0)
        (letter,) = await desk.dead()
        assert letter.timeouts == 255
        assert len(letter.attempts) == 16

    async def test_the_limit_of_a_lifetime_raises_a_flag_and_nothing_else(self, desk: VirtualQueue) -> None:
        await desk.declare(lifetime_timeouts=3)
        for n in range(4):
            await desk.enq()
            await desk.fail(await desk.one(), delay=0)
            assert ("lifetime_timeouts" in await desk.flags()) == (n >= 2)
        assert (await desk.flags())["lifetime_timeouts"].count == 2
        assert await desk.dead() == []

    async def test_a_released_job_waits_again_and_nothing_is_counted(self, desk: VirtualQueue) -> None:
        await desk.enq()
        await desk.fail(await desk.one(), delay=0)
        lease = await desk.one()
        assert await desk.release(lease) == "OK"
        assert await desk.done(lease) == "LEASE_LOST", "a worker that gave it back cannot end it"
        row = await desk.row()
        assert (row.status, row.timeouts, row.start_ms, row.owner) == ("W", 1, None, None)
        assert (await desk.one()).attempt == 2

    async def test_a_release_may_wait_and_raise_a_flag(self, desk: VirtualQueue) -> None:
        """A worker that has no function for the job: uncounted, not before the delay is over, and seen by operators."""
        await desk.enq("a", proc=100)
        desk.wait(200)
        assert await desk.release(await desk.one(owner="old"), 1000, "unknown_kind") == "OK"
        assert await desk.claim() == []
        assert (await desk.due()).next_ms == desk.clock.now + 1000
        desk.wait(999)
        assert await desk.claim() == []
        desk.wait(1)
        lease = await desk.one()
        assert (lease.attempt, lease.row.attempts, lease.row.lifetime) == (1, (), 0)
        flag = (await desk.flags())["unknown_kind"]
        assert (flag.count, flag.key, flag.owner, flag.dead_entry) == (1, encode_key("a"), "old", None)
        await desk.release(lease, 0, "unknown_kind")
        assert (await desk.flags())["unknown_kind"].count == 2
        assert keys(await desk.claim()) == ["a"]

    async def test_a_successor_waits_as_long_as_its_job_was_released_for(self, desk: VirtualQueue) -> None:
        """Whichever is later: what it was released for, or what came meanwhile."""
        await desk.enq(data=1)
        lease = await desk.one()
        await desk.enq(data=2)
        await desk.release(lease, 1000, "unknown_kind")
        row = await desk.row()
        assert (row.image.process_ms, number(row)) == (T + 1000, 2)
        assert "unknown_kind" in await desk.flags()

    async def test_what_ended_for_good_is_released_without_a_flag(self, desk: VirtualQueue) -> None:
        await desk.enq("cancelled")
        await desk.enq("expires", exp=10)
        cancelled, expires = await desk.claim(2)
        if keys([cancelled]) != ["cancelled"]:
            cancelled, expires = expires, cancelled
        await desk.cancel("cancelled")
        desk.wait(11_000)
        for lease in (cancelled, expires):
            assert await desk.release(lease, 1000, "unknown_kind") == "OK"
        assert (await desk.peek(), await desk.flags()) == ([], {})

    async def test_a_cancelled_job_is_gone_or_told_to_stop(self, desk: VirtualQueue) -> None:
        """Waiting: absent at once. Running: the next heartbeat tells, and it is not tried again, however it ends."""
        await desk.enq("waiting")
        assert await desk.cancel("waiting", "not needed") == 1
        assert await desk.rows("waiting") == []
        assert (await desk.dead())[0].cause == "cancelled"
        for ending in ("fail", "release", "time out", "done"):
            await desk.enq(ending)
            lease = await desk.one()
            assert await desk.cancel(ending, "why not") == 1
            assert (await desk.beat(lease))[2:] == ("cancel", "why not")
            if ending == "fail":
                assert await desk.fail(lease) == "OK"
            elif ending == "release":
                assert await desk.release(lease) == "OK"
            elif ending == "done":
                assert await desk.done(lease) == "OK"
            else:
                desk.wait(2 * HOUR)
            assert await desk.claim() == []
            assert await desk.rows(ending) == []
        assert await desk.cancel("never there") == 0
        assert await desk.flags() == {}

    async def test_one_job_of_a_key_is_cancelled_by_its_number(self, desk: VirtualQueue) -> None:
        """The others of its key stay; a number that is not of this key is none."""
        await desk.declare(merge=False)
        first, second = [(await desk.enq()).entry for _ in range(2)]
        other = (await desk.enq("b")).entry
        assert await desk.cancel("a", "not this one", entry=other) == 0
        assert await desk.cancel("a", "this one", entry=second) == 1
        assert [row.entry for row in await desk.rows()] == [first]
        assert [letter.entry for letter in await desk.dead()] == [second]
        assert await desk.cancel("a", "again", entry=second) == 0

    async def test_how_long_jobs_waited_to_start_is_counted(self, desk: VirtualQueue) -> None:
        """From the moment when a job was due; what failed waits since then, or since its next date."""
        await desk.enq("at once")
        await desk.enq("later", proc=1000)
        desk.wait(10)
        lease = await desk.one()
        desk.wait(7)
        await desk.fail(lease, delay=3)
        desk.wait(5)
        await desk.one()
        desk.wait(978)
        await desk.one()
        waited = {name: number for name, number in (await desk.totals()).items() if is_wait(name)}
        assert waited == Counter(f"WAITED_{bucket_of(ms)}" for ms in (10, 2, 0))
        assert desk.counted("CLAIMED") == 3

    async def test_what_timed_out_waits_since_then(self, desk: VirtualQueue) -> None:
        """Not since it was first due: the time in which it ran is no waiting."""
        await desk.enq()
        await desk.one(lease=1000)
        desk.wait(1001)
        await desk.one()
        assert (await desk.totals())["WAITED_0"] == 2

    async def test_what_arrives_after_a_cancel_runs(self, desk: VirtualQueue) -> None:
        await desk.enq(data=1)
        lease = await desk.one()
        await desk.enq(data=2)
        await desk.cancel()
        assert (await desk.enq(data=3)).result == "SUCCESSOR"
        assert await desk.fail(lease) == "OK"
        assert number((await desk.one()).row) == 3
        assert [letter.image.data for letter in await desk.dead()] == [b"1"]

    async def test_a_failure_waits_as_long_as_it_is_told(self, desk: VirtualQueue) -> None:
        await desk.enq()
        await desk.fail(await desk.one(), "later", delay=500)
        desk.wait(499)
        assert await desk.claim() == []
        desk.wait(1)
        lease = await desk.one()
        assert lease.row.attempts[-1].reason == "later"
        assert await desk.fail(lease, "never", retry=False) == "OK"
        assert await desk.claim() == []
        assert [(letter.cause, letter.reason) for letter in await desk.dead()] == [("failed", "never")]
        assert (await desk.flags())["failed"].count == 1

    async def test_a_job_that_failed_too_often_has_failed(self, desk: VirtualQueue) -> None:
        """The cause of a dead letter is how its last attempt ended."""
        await desk.declare(max_timeouts=2)
        await desk.enq()
        for _ in range(2):
            await desk.fail(await desk.one(), "no such address", delay=0)
        (letter,) = await desk.dead()
        assert (letter.cause, letter.reason, letter.timeouts) == ("failed", "no such address", 2)
        assert list(await desk.flags()) == ["failed"]

    async def test_a_failure_that_must_wait_does_so_behind_a_successor_too(self, desk: VirtualQueue) -> None:
        """The later of the two times counts: what the attempt was told, or what came for its key meanwhile."""
        for proc, wait in ((None, 500), (900, 900)):
            desk.clock.now = T
            await desk.enq(data=1)
            lease = await desk.one()
            await desk.enq(data=2, proc=proc)
            await desk.fail(lease, "later", delay=500)
            desk.wait(wait - 1)
            assert await desk.claim() == []
            desk.wait(1)
            lease = await desk.one()
            assert number(lease.row) == 2
            await desk.done(lease)

    async def test_max_wait_bounds_puts_and_no_retry(self, desk: VirtualQueue) -> None:
        """What an attempt was told holds, whatever is put behind it or merged with it later."""
        await desk.declare(max_wait="1m")
        for ending in ("fail", "release"):
            desk.clock.now = T
            await desk.enq(data=1)
            desk.wait(120_000)
            lease = await desk.one()
            await desk.enq(data=2)
            await (desk.fail(lease, "later", delay=600_000) if ending == "fail" else desk.release(lease, 600_000))
            assert (await desk.row()).image.process_ms == desk.clock.now + 600_000
            desk.wait(1000)
            assert (await desk.enq(data=3)).result == "MERGED"
            desk.wait(598_999)
            assert await desk.claim() == []
            desk.wait(1)
            lease = await desk.one()
            assert number(lease.row) == 3
            await desk.done(lease)

    async def test_max_wait_of_a_successor_counts_from_its_own_first_put(self, desk: VirtualQueue) -> None:
        """It waits as long as it was put for, although the job before it has failed."""
        await desk.declare(max_wait="1m")
        await desk.enq(data=1)
        desk.wait(120_000)
        lease = await desk.one()
        await desk.enq(data=2, proc=120_000 + 30_000)
        await desk.fail(lease, "broken")
        desk.wait(29_999)
        assert await desk.claim() == []
        desk.wait(1)
        assert number((await desk.one()).row) == 2

    @pytest.mark.parametrize("how", ["fail", "time out"])
    async def test_the_backoff_of_a_queue_counts_behind_a_successor_too(self, desk: VirtualQueue, how: str) -> None:
        """Else a key that always fails, and is put all the time, would run without a pause."""
        await desk.declare(retry_backoff="10s", processing_timeout="1s")
        await desk.enq(data=1)
        lease = await desk.one()
        await desk.enq(data=2)
        if how == "fail":
            await desk.fail(lease)
        else:
            desk.wait(1001)
            assert await desk.claim() == []
        desk.wait(9_999)
        assert await desk.claim() == []
        desk.wait(1)
        assert number((await desk.one()).row) == 2

    async def test_a_dead_letter_past_its_end_can_be_revived(self, desk: VirtualQueue) -> None:
        """It is wanted although its time is over: it runs, whenever that is."""
        answer = await desk.enq(exp=100)
        await desk.fail(await desk.one(), "no", retry=False)
        desk.wait(200_000)
        assert (await desk.do(Revive(answer.entry))).result == "CREATED"
        assert await desk.do(Forget(answer.entry)) is True
        desk.wait(HOUR)
        assert (await desk.one()).row.image.expires_s == 0

    async def test_backoff_doubles(self, desk: VirtualQueue) -> None:
        await desk.declare(retry_backoff="1s", max_retry_backoff="3s", processing_timeout="10s")
        await desk.enq()
        for pause in (1000, 2000, 3000):
            lease = await desk.one()
            if pause == 2000:
                desk.wait(10_001)
                assert await desk.claim() == []
            else:
                await desk.fail(lease)
            desk.wait(pause - 1)
            assert await desk.claim() == []
            desk.wait(1)
        assert (await desk.one()).attempt == 4

    async def test_the_last_to_die_is_the_first_in_the_list(self, desk: VirtualQueue) -> None:
        """Whichever came first; page by page, though the letters of the last page are gone meanwhile."""
        for n in range(5):
            await desk.enq(f"k{n}", pri=n)
        leases = await desk.claim(5)
        for at in (3, 0, 4, 1, 2):
            desk.wait(at % 2)  # some at the same moment
            await desk.fail(leases[at], retry=False)
        found: list[JobKey] = []
        place = None
        while page := await desk.do(ListDead(2, place)):
            found += [decode_key(letter.key) for letter in page]
            place = page[-1].place
            for letter in page:
                await desk.do(Forget(letter.entry))
        assert found == ["k2", "k1", "k4", "k3", "k0"]

    async def test_dead_letters_are_forgotten_after_a_while(self, desk: VirtualQueue) -> None:
        await desk.declare(dead_letter_ttl="1d")
        for n in range(2):
            await desk.enq(f"k{n}")
            await desk.fail(await desk.one(), retry=False)
            desk.wait(20 * HOUR)
        assert [decode_key(letter.key) for letter in await desk.dead()] == ["k1"]
        await desk.enq("k2")
        await desk.fail(await desk.one(), retry=False)
        assert (await desk.stats()).dead == 2
