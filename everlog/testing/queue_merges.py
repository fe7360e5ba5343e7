"""What every store of queues must do. Arrivals: new keys, merges, busy keys."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from everlog.errors import InvalidInput
from everlog.queues.operations import PutAnswer, Sweep
from everlog.queues.queue import Queue
from everlog.testing.queue_desk import HOUR, T, VirtualQueue, handle, keys, number


class QueueMergeSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_a_new_key_makes_a_row(self, desk: VirtualQueue) -> None:
        """An empty queue: an enqueue makes a waiting row with counter 0, without a start."""
        answer = await desk.enq("a", 20, 0)
        assert answer.result == "CREATED"
        row = await desk.row()
        assert (row.entry, row.status, row.timeouts, row.start_ms) == (answer.entry, "W", 0, None)
        assert (row.image.priority, row.image.process_ms, row.image.inserted_ms) == (20, T, T)

    async def test_an_arrival_merges_into_the_waiting_row(self, desk: VirtualQueue) -> None:
        """Smallest priority, latest Process Date, newest data; the Insertion Date stays."""
        first = await desk.enq("a", 50, 1000)
        desk.wait(10)
        assert await desk.enq("a", 20, 5000, data=2) == PutAnswer("MERGED", first.entry)
        row = await desk.row()
        assert (row.image.priority, row.image.process_ms, number(row)) == (20, T + 5000, 2)
        assert row.image.inserted_ms == T
        desk.wait(10)
        assert (await desk.enq("a", 200, 1000, data=3)).result == "MERGED"
        row = await desk.row()
        assert (row.image.priority, row.image.process_ms, number(row)) == (20, T + 5000, 3)
        assert (await desk.stats()).delayed == 1

    async def test_jobs_put_together_are_as_if_they_came_one_after_the_other(self, desk: VirtualQueue) -> None:
        """More than one transaction takes; keys come again, soon and late, and the newest data stay."""
        await desk.enq("key-7", data="before")
        numbers = [*range(1100), 7, 1099, 7]
        queue = Queue(desk.name, desk.store)
        receipts = await queue.put_many((f"key-{at % 1090}", place) for place, at in enumerate(numbers))
        again = {7, *range(1090, 1103)}
        assert [at for at, receipt in enumerate(receipts) if receipt.result == "MERGED"] == sorted(again)
        assert {receipt.result for receipt in receipts} == {"CREATED", "MERGED"}
        assert (await desk.stats()).ready == 1090
        assert [info.data for info in await queue.get("key-7")] == [1102]
        assert [info.data for info in await queue.get("key-9")] == [1101]
        assert receipts[7].entry == receipts[1100].entry == receipts[1102].entry

    async def test_kind_and_group_go_with_the_data(self, desk: VirtualQueue) -> None:
        """The newest put says them: for what waits, for a successor, for a dead letter, and for one put back."""
        queue = Queue(desk.name, desk.store)
        receipt = await queue.put("a", 1, kind="welcome", group="tenant-7")
        [info] = await queue.get("a")
        assert (info.kind, info.group) == ("welcome", "tenant-7")
        desk.wait(10)
        await queue.put("a", 2, kind="goodbye")
        [info] = await queue.get("a")
        assert (info.data, info.kind, info.group) == (2, "goodbye", None)
        [job] = await queue.claim()
        assert (job.kind, job.group) == ("goodbye", None)
        desk.wait(10)
        await queue.put("a", 3, group="tenant-8")
        await job.done()
        [info] = await queue.get("a")
        assert (info.data, info.kind, info.group) == (3, None, "tenant-8")
        desk.wait(10)
        await queue.put("a", 4, kind="last", group="tenant-9")
        [job] = await queue.claim()
        await queue.fail(job, retry=False)
        [letter] = await queue.dead()
        assert (letter.entry, letter.kind, letter.group) == (receipt.entry, "last", "tenant-9")
        await queue.revive(letter.entry)
        [info] = await queue.get("a")
        assert (info.data, info.kind, info.group) == (4, "last", "tenant-9")

    @pytest.mark.parametrize("label", [{"kind": "no spaces"}, {"kind": 7}, {"group": "x" * 201}, {"group": "a\nb"}])
    async def test_a_label_that_does_not_fit_is_refused(self, desk: VirtualQueue, label: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput, match=next(iter(label))):
            await Queue(desk.name, desk.store).put("a", **label)
        assert (await desk.stats()).ready == 0

    async def test_never_beats_every_expiration(self, desk: VirtualQueue) -> None:
        """0 with 100 stays 0 in both orders; of two dates the later one stays."""
        for key, first, second, expected in (
            ("a", 0, 100, 0),
            ("b", 100, 0, 0),
            ("c", 100, 50, 100),
            ("d", 50, 100, 100),
        ):
            await desk.enq(key, exp=first)
            await desk.enq(key, exp=second)
            expires = (await desk.row(key)).image.expires_s
            assert expires == (T // 1000 + expected if expected else 0)

    async def test_a_merge_forgives_failures_but_not_a_lifetime(self, desk: VirtualQueue) -> None:
        await desk.enq()
        for _ in range(3):
            assert await desk.fail(await desk.one(), "no") == "OK"
        assert (await desk.row()).timeouts == 3
        await desk.enq()
        row = await desk.row()
        assert (row.timeouts, row.lifetime) == (0, 3)

    async def test_packets_in_any_order_give_the_same_row(self, desk: VirtualQueue) -> None:
        """Three packets with distinct dates: the rows are equal in all but the Insertion Date."""
        packets = [
            {"pri": 50, "proc": 900, "exp": 70, "data": 1, "ins": 1},
            {"pri": 20, "proc": 100, "exp": 90, "data": 2, "ins": 2},
            {"pri": 90, "proc": 500, "exp": 80, "data": 3, "ins": 3},
        ]
        desk.wait(10)
        images = set()
        for number_of_order, order in enumerate(itertools.permutations(packets)):
            key = f"order-{number_of_order}"
            for packet in order:
                await desk.enq(key, **packet)  # type: ignore[arg-type]
            row = await desk.row(key)
            assert row.image.inserted_ms == T + int(order[0]["ins"])
            image = row.image
            images.add((image.priority, image.process_ms, image.expires_s, image.data_date, image.data))
        assert images == {(20, T + 900, T // 1000 + 90, T + 3, b"3")}

    async def test_max_wait_ends_a_burst(self, desk: VirtualQueue) -> None:
        """An enqueue every 10 s, each asking for 30 s later: due exactly 60 s after the first."""
        await desk.declare(max_wait="60s")
        for _ in range(6):
            await desk.enq(proc=desk.clock.now - T + 30_000)
            assert await desk.claim() == []
            desk.wait(10_000)
        assert desk.clock.now == T + 60_000
        desk.clock.now = T + 59_999
        assert await desk.claim() == []
        assert (await desk.due()).next_ms == T + 60_000
        desk.clock.now = T + 60_000
        assert len(await desk.claim()) == 1

    async def test_dates_that_cannot_be(self, desk: VirtualQueue) -> None:
        """A Process Date before the Insertion Date is that date; a clock 10 s ahead is not believed, and counted."""
        await desk.enq("early", proc=-5000)
        assert (await desk.row("early")).image.process_ms == T
        await desk.enq("near", ins=5000)
        assert (await desk.row("near")).image.inserted_ms == T + 5000
        assert "clock_skew" not in await desk.flags()
        await desk.enq("ahead", ins=10_000, proc=3000)
        image = (await desk.row("ahead")).image
        assert (image.inserted_ms, image.process_ms, image.data_date) == (T, T + 3000, T)
        assert desk.counted("FLAG_clock_skew") == 1
        assert (await desk.flags())["clock_skew"].count == 1

    async def test_keys_with_the_same_hash_are_two_jobs(self, desk: VirtualQueue) -> None:
        """An injected collision: two rows, both run, neither merges into the other."""
        same = b"h" * 16
        for key in ("a", "b", "a"):
            await desk.enq(key, key_hash=same)
        leases = await desk.claim(10)
        assert sorted(keys(leases)) == ["a", "b"]
        assert [await desk.done(lease) for lease in leases] == ["OK", "OK"]

    async def test_without_merging_every_arrival_is_a_job(self, desk: VirtualQueue) -> None:
        await desk.declare(merge=False)
        answers = [await desk.enq(data=n) for n in range(2)]
        assert [answer.result for answer in answers] == ["CREATED", "CREATED"]
        assert answers[0].entry != answers[1].entry
        leases = await desk.claim(10)
        assert sorted(number(lease.row) for lease in leases) == [0, 1]
        assert await desk.done(leases[1]) == "OK"
        assert [row.entry for row in await desk.rows()] == [leases[0].row.entry]

    async def test_an_arrival_for_a_running_key_waits_behind_it(self, desk: VirtualQueue) -> None:
        """The running row is unchanged and nothing is claimable; done makes the successor the row."""
        await desk.enq(data=1)
        lease = await desk.one()
        assert await desk.enq(data=2) == PutAnswer("SUCCESSOR", lease.row.entry)
        row = await desk.row()
        assert (row.status, row.token, number(row)) == ("P", lease.row.token, 1)
        assert await desk.claim() == []
        desk.wait(5)
        assert await desk.done(lease) == "OK"
        row = await desk.row()
        assert (row.status, number(row), row.timeouts, row.slot) == ("W", 2, 0, None)
        again = await desk.one()
        assert handle(again) > handle(lease)
        assert await desk.done(again) == "OK"
        assert await desk.rows() == []

    async def test_many_arrivals_for_a_running_key_are_one_run(self, desk: VirtualQueue) -> None:
        await desk.enq()
        lease = await desk.one()
        results = []
        for n, (pri, proc) in enumerate([(30, 10), (20, 50), (40, 20), (25, 5), (90, 40)]):
            results.append((await desk.enq(pri=pri, proc=proc, data=n)).result)
            desk.wait(1)
        assert results == ["SUCCESSOR", *["SUCCESSOR_MERGED"] * 4]
        await desk.done(lease)
        row = await desk.row()
        assert (row.image.priority, row.image.process_ms, number(row)) == (20, T + 50, 4)
        desk.clock.now = T + 50
        assert await desk.done(await desk.one()) == "OK"
        assert await desk.claim() == []

    async def test_a_late_arrival_for_a_running_key_leaves_the_newest_data(self, desk: VirtualQueue) -> None:
        """It is run for, but the data that run last are not older than those that ran before."""
        desk.wait(100)
        await desk.enq(ins=50, data=1)
        lease = await desk.one()
        assert (await desk.enq(pri=7, ins=49, data=2)).result == "SUCCESSOR"
        await desk.done(lease)
        row = await desk.row()
        assert (row.status, row.image.priority, number(row), row.image.data_date) == ("W", 7, 1, T + 50)
        again = await desk.one()
        assert (await desk.enq(ins=60, data=3)).result == "SUCCESSOR"
        assert (await desk.enq(ins=55, data=4)).result == "SUCCESSOR_MERGED"
        await desk.done(again)
        assert number(await desk.row()) == 3

    async def test_a_late_arrival_brings_no_data_back_that_must_not_run(self, desk: VirtualQueue) -> None:
        """Cancelled, or expired while they ran: what comes late runs with its own data."""
        desk.wait(100)
        await desk.enq("cancelled", ins=50, data=1)
        lease = await desk.one()
        await desk.cancel("cancelled")
        await desk.enq("cancelled", ins=49, data=2)
        await desk.done(lease)
        assert number(await desk.row("cancelled")) == 2
        await desk.enq("expired", ins=50, exp=1, data=3)
        leases = {key: lease for lease in await desk.claim(10) for key in keys([lease])}
        desk.wait(2000)
        await desk.enq("expired", ins=49, data=4)
        await desk.done(leases["expired"])
        assert number(await desk.row("expired")) == 4

    async def test_a_timed_out_run_merges_with_its_successor(self, desk: VirtualQueue) -> None:
        await desk.enq(data=1)
        await desk.one()
        await desk.enq(data=2)
        desk.wait(HOUR + 1)
        assert await desk.do(Sweep()) == 1
        row = await desk.row()
        assert (row.status, number(row), row.timeouts, row.lifetime) == ("W", 2, 0, 1)

    async def test_a_killed_run_leaves_its_successor(self, desk: VirtualQueue) -> None:
        """Dead letter with the old data, one flag, and a row with the successor's."""
        await desk.declare(max_timeouts=2)
        await desk.enq(data=1)
        await desk.fail(await desk.one())
        lease = await desk.one()
        await desk.enq(data=2)
        desk.wait(HOUR + 1)
        again = await desk.one()
        assert (number(again.row), again.attempt) == (2, 1)
        assert handle(again) != handle(lease)
        (letter,) = await desk.dead()
        assert (letter.image.data, letter.cause, letter.timeouts) == (b"1", "max_timeouts", 2)
        assert (await desk.flags())["max_timeouts"].count == 1

    async def test_only_parallel_gives_a_second_lease_on_a_key(self, desk: VirtualQueue) -> None:
        for mode, result in (
            ("parallel", "CREATED"),
            ("successor", "SUCCESSOR"),
            ("restart", "SUCCESSOR"),
            ("reject", "REJECTED"),
            ("drop", "DROPPED"),
        ):
            await desk.declare(on_busy=mode)
            await desk.enq(mode, data=1)
            (first,) = await desk.claim(10)
            assert (await desk.enq(mode, data=2)).result == result
            second = await desk.claim(10)
            assert len(second) == (1 if mode == "parallel" else 0)
            stop = (await desk.beat(first)).stop
            assert stop == ("restart" if mode == "restart" else None)
            for lease in [first, *second]:
                assert await desk.done(lease) == "OK"
            left = await desk.claim(10)
            assert [number(lease.row) for lease in left] == ([2] if result == "SUCCESSOR" else [])
            for lease in left:
                await desk.done(lease)

    async def test_in_parallel_mode_arrivals_still_merge_with_what_waits(self, desk: VirtualQueue) -> None:
        await desk.declare(on_busy="parallel")
        await desk.enq(data=1)
        first = await desk.one()
        assert (await desk.enq(data=2)).result == "CREATED"
        assert (await desk.enq(data=3)).result == "MERGED"
        second = await desk.one()
        assert number(second.row) == 3
        assert [await desk.done(lease) for lease in (second, first)] == ["OK", "OK"]
