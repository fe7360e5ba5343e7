"""What every store of queues must do with jobs of groups: turns, limits per group, and what is said about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from everlog.errors import InvalidConfig
from everlog.queues.keys import encode_key, hash_key
from everlog.queues.operations import AskHead, Claim, FindJob, FoundJob, JobLease, ListLeases, Pause, PurgeJobs
from everlog.queues.port import QueueStore
from everlog.queues.rows import Packet
from everlog.testing.queue_desk import HOUR, T, VirtualClock, VirtualQueue, keys

MINUTE = 60_000


def groups(leases: Sequence[JobLease]) -> list[str]:
    return [lease.row.image.group for lease in leases]


def packets(group: str, count: int, *, priority: int = 128, at: int = T, first: int = 0) -> list[Packet]:
    encoded = [encode_key(f"{group}-{number}") for number in range(first, first + count)]
    return [Packet(key, hash_key(key), b"1", priority, at, group=group) for key in encoded]


async def put(desk: VirtualQueue, group: str, count: int = 1, *, priority: int = 128, first: int = 0) -> None:
    found = packets(group, count, priority=priority, at=desk.clock.now, first=first)
    await desk.store.put_all(desk.name, found)


async def find(desk: VirtualQueue, entry: int) -> FoundJob:
    found: FoundJob = await desk.do(FindJob(entry))
    return found


class QueueGroupSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_a_group_that_floods_the_queue_holds_up_no_other(self, desk: VirtualQueue) -> None:
        """Ten thousand jobs of one group, then one of another: that one is the next but one, at the latest."""
        await put(desk, "flood", 10_000)
        assert groups(await desk.claim(3)) == ["flood"] * 3
        desk.wait(1000)
        await put(desk, "small")
        assert groups(await desk.claim(2)) == ["small", "flood"]
        await put(desk, "small", first=1)
        assert groups(await desk.claim(2)) == ["small", "flood"]
        assert groups(await desk.claim(2)) == ["flood"] * 2

    async def test_groups_take_turns(self, desk: VirtualQueue) -> None:
        """Within a claim, and from one claim to the next; within a group the order is what it is without groups."""
        for group, count in (("a", 4), ("b", 2), ("c", 3)):
            await put(desk, group, count)
        found = await desk.claim(4)
        first = groups(found)[:3]
        assert (sorted(first), groups(found)[3]) == (["a", "b", "c"], first[0])
        found += await desk.claim(1) + await desk.claim(10)
        assert Counter(groups(found)[3:6]) == Counter("abc")
        assert sorted(groups(found)[6:]) == ["a", "a", "c"]
        for group in "abc":
            mine = [lease.row for lease in found if lease.row.image.group == group]
            assert [row.order for row in mine] == sorted(row.order for row in mine)

    async def test_jobs_without_a_group_are_one_group(self, desk: VirtualQueue) -> None:
        await desk.declare(max_in_flight_per_group=2)
        for number in range(5):
            await desk.enq(f"k{number}")
        await put(desk, "a", 3)
        found = groups(await desk.claim(10))
        assert [sorted(found[:2]), sorted(found[2:4]), found[4:]] == [["", "a"], ["", "a"], [""] * 3]

    async def test_a_job_without_a_group_behind_many_with_one(self, desk: VirtualQueue) -> None:
        await put(desk, "a", 300)
        await put(desk, "b", 300)
        desk.wait(1)
        await desk.enq("alone")
        assert "" in groups(await desk.claim(3))

    async def test_the_priority_comes_before_the_turn(self, desk: VirtualQueue) -> None:
        await put(desk, "a", 3, priority=10)
        await put(desk, "b", 3, priority=20)
        await put(desk, "c", 1, priority=10)
        found = groups(await desk.claim(10))
        assert (sorted(found[:2]), found[2:]) == (["a", "c"], ["a", "a", "b", "b", "b"])

    async def test_an_idle_group_earns_nothing(self, desk: VirtualQueue) -> None:
        """One that comes back after a while goes first once, then takes turns as before."""
        await put(desk, "a", 20)
        await put(desk, "b", 1)
        assert groups(await desk.claim(10)).count("b") == 1
        desk.wait(HOUR // 2)
        await put(desk, "b", 5, first=1)
        assert groups(await desk.claim(4)) == ["b", "a", "b", "a"]

    async def test_turns_with_aging(self, desk: VirtualQueue) -> None:
        """The priority that a job has by now, over all rows, comes before the turn."""
        await desk.declare(aging="1s")
        await put(desk, "a", 2, priority=100)
        await put(desk, "b", 2, priority=100)
        desk.wait(60_000)
        await put(desk, "c", 1, priority=40)
        await put(desk, "d", 1, priority=39)
        await put(desk, "e", 1, priority=41)
        found = groups(await desk.claim(10))
        assert (found[0], sorted(found[1:4]), sorted(found[4:6]), found[6]) == ("d", ["a", "b", "c"], ["a", "b"], "e")

    async def test_slow_jobs_of_groups_wait_for_a_quiet_pass(self, desk: VirtualQueue) -> None:
        await desk.declare(slow_threshold=200)
        await put(desk, "a", 2, priority=200)
        await put(desk, "b", 2, priority=100)
        assert await desk.claim(10, fast=True)
        assert await desk.claim(10, fast=True) == []
        await put(desk, "b", 1, priority=100, first=2)
        assert groups(await desk.claim(10)) == ["b"]
        assert groups(await desk.claim(10)) == ["a", "a"]

    async def test_in_flight_per_group(self, desk: VirtualQueue) -> None:
        """A group at its limit holds up no other; a job that ends makes room, however it does."""
        await desk.declare(max_in_flight_per_group=2)
        await put(desk, "a", 10)
        await put(desk, "b", 1)
        found = await desk.claim(10)
        assert sorted(groups(found)) == ["a", "a", "b"]
        assert (await desk.claim(10), (await desk.due()).due, await desk.do(AskHead())) == ([], 0, None)
        mine = [lease for lease in found if lease.row.image.group == "a"]
        for end in (desk.done, desk.release, desk.fail):
            await end(mine.pop())
            assert (await desk.due()).due == 1
            assert await desk.do(AskHead()) is not None
            mine += await desk.claim(10)
            assert groups(mine) == ["a"] * 2

    async def test_an_overdue_lease_counts_until_it_is_swept(
        self, make_store: Callable[..., Any], clock: VirtualClock, queue_name: str
    ) -> None:
        store = await make_store(clock, sweep=1)
        desk = VirtualQueue(store, clock, queue_name)
        await desk.declare(max_in_flight_per_group=2)
        await put(desk, "a", 5)
        first = await desk.claim(10)
        assert len(first) == 2
        desk.wait(HOUR + 1)
        assert (await desk.due()).due == 1
        assert len(await desk.claim(10)) == 1
        (kept,) = [lease for lease in first if (await desk.beat(lease)).ack == "OK"]
        assert await desk.claim(10) == []
        assert await desk.done(kept) == "OK"
        assert len(await desk.claim(10)) == 1
        await store.close()

    async def test_the_rate_of_each_group_holds_in_every_window(self, desk: VirtualQueue) -> None:
        await desk.declare(rate_limit_per_group="5/s")
        await put(desk, "a", 30)
        await put(desk, "b", 30)
        starts: dict[str, list[int]] = {"a": [], "b": []}
        while sum(map(len, starts.values())) < 60:
            for group in groups(await desk.claim(3)):
                starts[group].append(desk.clock.now)
            desk.wait(73)
        for mine in starts.values():
            assert all(sum(first <= start < first + 1000 for start in mine) <= 5 for first in mine)
            assert mine[-1] - T < 7000

    async def test_the_window_of_a_group_to_the_millisecond(self, desk: VirtualQueue) -> None:
        """Workers are told when the first group that is held up may go on, and not before."""
        await desk.declare(rate_limit_per_group="2/s", processing_timeout="1d")
        await put(desk, "a", 9)
        assert len(await desk.claim(1)) == 1
        desk.wait(300)
        await put(desk, "b", 9)
        assert sorted(groups(await desk.claim(9))) == ["a", "b", "b"]
        desk.wait(699)
        assert (await desk.due()).due == 0
        assert (await desk.due()).next_ms == T + 1000
        assert (await desk.claim(9), await desk.do(AskHead())) == ([], None)
        desk.wait(1)
        assert (await desk.due()).due == 1
        assert groups(await desk.claim(9)) == ["a"]
        assert (await desk.due()).next_ms == T + 1300
        desk.wait(300)
        assert Counter(groups(await desk.claim(9))) == Counter(["a", "b", "b"])

    async def test_limits_of_the_queue_hold_beside_those_of_groups(self, desk: VirtualQueue) -> None:
        await desk.declare(max_in_flight=3, max_in_flight_per_group=2, rate_limit="4/s", rate_limit_per_group="3/s")
        await put(desk, "a", 9)
        await put(desk, "b", 9)
        found = await desk.claim(9)
        assert sorted(Counter(groups(found)).values()) == [1, 2]
        for lease in found:
            await desk.done(lease)
        assert len(await desk.claim(9)) == 1

    async def test_no_wake_up_for_a_group_at_its_limit(self, desk: VirtualQueue) -> None:
        """Else idle workers would claim in vain, over and over: also where a lease of the group is overdue."""
        await desk.declare(max_in_flight_per_group=1, rate_limit_per_group="1/1h", processing_timeout="1m")
        await put(desk, "a", 5)
        await desk.one()
        assert await desk.due() == (0, T + MINUTE + 1)
        desk.wait(MINUTE + 1)
        assert await desk.due() == (0, T + HOUR)
        await desk.enq("alone")
        assert (await desk.due()).due == 1

    async def test_a_merge_may_change_the_group(self, desk: VirtualQueue) -> None:
        """The group of the newer data counts. What runs counts for the group under which it was claimed."""
        await desk.declare(max_in_flight_per_group=1)
        await desk.enq("k", group="a")
        desk.wait(1)
        await desk.enq("k", group="b")
        await desk.enq("k", group="a", ins=0)
        lease = await desk.one()
        assert groups([lease]) == ["b"]
        desk.wait(1)
        await desk.enq("k", group="c")
        await put(desk, "b")
        await put(desk, "c")
        assert groups(await desk.claim(9)) == ["c"]
        await desk.done(lease)
        assert groups(await desk.claim(9)) == ["b"]
        await desk.enq("other", group="d")
        desk.wait(1)
        await desk.enq("other")
        assert groups(await desk.claim(9)) == [""]

    async def test_turns_and_limits_in_many_files(self, desk: VirtualQueue) -> None:
        """Jobs of several buckets are one queue."""
        await desk.declare(bucket="hour", max_in_flight_per_group=2, processing_timeout="1d")
        for number in range(3):
            await put(desk, "a", 2, first=2 * number)
            await desk.enq(f"b{number}", group="b", pri=200)
            await desk.enq(f"k{number}", pri=200)
            desk.wait(HOUR)
        found = await desk.claim(6)
        assert (groups(found)[:2], Counter(groups(found)[2:])) == (["a", "a"], Counter({"b": 2, "": 2}))
        assert groups(await desk.claim(9)) == [""]
        assert (await desk.stats()).ready == 5
        assert len(await desk.peek(100)) == 5

    async def test_looks_at_a_queue_with_groups(self, desk: VirtualQueue) -> None:
        """Counts, pages, leases, pauses and a purge know no difference."""
        await put(desk, "a", 3)
        await desk.enq("k", pri=1, proc=MINUTE)
        await desk.enq("late", group="b", proc=2 * MINUTE)
        stats = await desk.stats()
        assert (stats.ready, stats.delayed) == (3, 2)
        assert (await desk.due()).next_ms == T + MINUTE
        pages = [row for place in (None, (await desk.peek(2))[-1].order) for row in await desk.peek(2, place)]
        everything = await desk.peek(10)
        assert pages == everything[:4]
        assert [row.order for row in everything] == sorted(row.order for row in everything)
        assert await desk.do(Pause(True))
        assert await desk.claim() == []
        await desk.do(Pause(False))
        assert await desk.do(AskHead()) == everything[1].order
        (lease,) = await desk.claim()
        assert await desk.do(ListLeases()) == [lease.row]
        assert await desk.do(PurgeJobs()) == 4
        assert (await desk.peek(), (await desk.due()).due) == ([], 0)

    async def test_expired_jobs_of_groups_are_not_given_out(
        self, make_store: Callable[..., Any], clock: VirtualClock, queue_name: str
    ) -> None:
        store = await make_store(clock, sweep=0)
        desk = VirtualQueue(store, clock, queue_name)
        await desk.declare()
        for number in range(150):
            await desk.enq(f"a{number}", group="a", exp=1)
        desk.wait(1001)
        await put(desk, "a")
        await put(desk, "b")
        assert sorted(groups(await desk.claim(9))) == ["a", "b"]
        await store.close()

    async def test_why_a_job_of_a_group_waits(self, desk: VirtualQueue) -> None:
        """Its group is at its limit, or others come first by their turns: those that cannot start do not."""
        await desk.declare(max_in_flight_per_group=2, rate_limit_per_group="2/1m", processing_timeout="30s")
        await put(desk, "a", 5)
        desk.wait(1)
        await put(desk, "b", 1)
        found = await desk.claim(3)
        assert sorted(groups(found)) == ["a", "a", "b"]
        last = (await desk.peek())[-1].entry
        assert [cause[:2] for cause in (await find(desk, last)).causes] == [
            ("group_in_flight", 2),
            ("group_rate", 2),
            ("behind", 2),
        ]
        for lease in found:
            await desk.done(lease)
        assert (await find(desk, last)).causes[0] == ("group_rate", 2, T + 1 + MINUTE)
        own = (await desk.enq("own", group="c")).entry
        assert [cause.code for cause in (await find(desk, own)).causes] == ["unclaimed"]
        desk.wait(MINUTE)
        assert [cause[:2] for cause in (await find(desk, last)).causes] == [("behind", 3), ("unclaimed", None)]
        order = [row.row.entry for row in await desk.claim(9)]
        assert order[0] == own

    async def test_the_place_of_an_overdue_job_is_that_of_its_turn(self, desk: VirtualQueue) -> None:
        await put(desk, "a", 3)
        lease = await desk.one(lease=1000)
        await put(desk, "b", 5)
        desk.wait(1001)
        assert (await find(desk, lease.row.entry)).causes[1][:2] == ("behind", 1)
        assert keys(await desk.claim(2))[1] == keys([lease])[0]

    async def test_a_place_behind_a_flood(self, desk: VirtualQueue) -> None:
        await put(desk, "flood", 500)
        desk.wait(1)
        await desk.claim(1)
        entry = (await desk.enq("small", group="small")).entry
        assert [cause.code for cause in (await find(desk, entry)).causes] == ["next"]

    async def test_claims_of_many_at_once(self, desk: VirtualQueue) -> None:
        """Several stores on one queue: together they keep the limits, and take turns."""
        await desk.declare(max_in_flight_per_group=3)
        for number in range(4):
            await put(desk, f"g{number}", 10)
        stores: list[QueueStore] = [desk.store, desk.store.sibling(), desk.store.sibling()]
        found: list[JobLease] = []
        for number in range(9):
            answer: Any = await stores[number % 3].execute(desk.name, Claim(f"w{number}", 2))
            found += answer
        assert Counter(groups(found)) == {f"g{number}": 3 for number in range(4)}
        assert all(len(set(groups(found)[first : first + 4])) == 4 for first in (0, 4, 8))
        for store in stores[1:]:
            await store.close()

    @pytest.mark.parametrize("option", [{"max_in_flight_per_group": 1}, {"rate_limit_per_group": "1/s"}])
    async def test_limits_of_groups_need_one_shard(self, desk: VirtualQueue, option: dict[str, Any]) -> None:
        with pytest.raises(InvalidConfig, match="shards = 1"):
            await desk.declare(shards=2, **option)
