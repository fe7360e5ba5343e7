"""What every store of queues must do. Expiry, limits, pauses, pages, versions, several queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from everlog.errors import DeclarationRefused, QueueNotFound
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from everlog.queues.keys import decode_key, encode_key
from everlog.queues.operations import AskStats, Claim, DueAnswer, FindJob, ListLeases, Pause, Sweep
from everlog.queues.port import QueueStore
from everlog.queues.rows import JobRow
from everlog.testing.queue_desk import HOUR, T, VirtualClock, VirtualQueue, handle, keys, number


class QueueRetentionSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_what_has_expired_is_not_there(
        self, make_store: Callable[..., Any], clock: VirtualClock, queue_name: str
    ) -> None:
        """At its last moment it is there; one ms later it is not seen, even if nothing sweeps."""
        store = await make_store(clock, sweep=0)
        desk = VirtualQueue(store, clock, queue_name)
        await desk.declare()
        await desk.enq(exp=100)
        clock.now = T + 100_000
        assert len(await desk.rows()) == len(await desk.peek()) == (await desk.stats()).ready == 1
        assert (await desk.due()).due == 1
        clock.now += 1
        assert (await desk.rows(), await desk.peek(), await desk.claim(10)) == ([], [], [])
        assert (await desk.stats()).ready == (await desk.due()).due == 0
        await store.close()

    async def test_an_arrival_for_an_expired_key_begins_anew(self, desk: VirtualQueue) -> None:
        await desk.enq(pri=1, exp=100)
        await desk.fail(await desk.one(), delay=0)
        desk.wait(100_001)
        answer = await desk.enq(pri=50)
        assert answer.result == "CREATED"
        row = await desk.row()
        assert (row.entry, row.image.priority, row.timeouts, row.image.inserted_ms) == (
            answer.entry,
            50,
            0,
            T + 100_001,
        )

    async def test_a_job_that_expires_while_it_runs(self, desk: VirtualQueue) -> None:
        """Done is success; a time-out removes it, without another run and without a flag."""
        await desk.enq("done", exp=100)
        await desk.enq("time out", exp=100)
        leases = dict(zip(keys(found := await desk.claim(2)), found, strict=True))
        desk.wait(100_001)
        assert await desk.done(leases["done"]) == "OK"
        assert (await desk.stats()).running == 1
        desk.wait(HOUR)
        assert await desk.claim() == []
        assert (await desk.stats()).running == 0
        assert (await desk.flags(), await desk.dead()) == ({}, [])
        assert await desk.done(leases["time out"]) == "LEASE_LOST"

    async def test_a_sweep_removes_what_has_expired(self, desk: VirtualQueue) -> None:
        for n in range(5):
            await desk.enq(f"k{n}", exp=10 + n)
        desk.wait(12_001)
        assert await desk.do(Sweep()) == 3
        assert desk.counted("EXPIRED") == 3
        assert (await desk.due()).next_ms == T + 13_001
        await desk.enq("k3", exp=0)
        desk.wait(HOUR)
        assert keys(await desk.claim(10)) == ["k3"]

    async def test_upkeep_needs_no_claim(self, desk: VirtualQueue) -> None:
        """A queue that no worker looks at: what is over is turned over or gone, and a dead letter raises its flag."""
        await desk.declare(max_timeouts=1)
        await desk.enq("overdue")
        await desk.one()
        for n in range(450):
            await desk.enq(f"k{n}", exp=10)
        desk.wait(HOUR + 1)
        await desk.store.tend(desk.name)
        assert [letter.cause for letter in await desk.dead()] == ["max_timeouts"]
        assert list(await desk.flags()) == ["max_timeouts"]
        assert (await desk.due()).next_ms is None

    async def test_an_expired_successor_is_dropped(self, desk: VirtualQueue) -> None:
        await desk.enq(data=1)
        lease = await desk.one()
        await desk.enq(data=2, exp=10)
        desk.wait(10_001)
        assert await desk.done(lease) == "OK"
        assert await desk.rows() == []

    async def test_a_pause_stops_claims_and_nothing_else(self, desk: VirtualQueue) -> None:
        await desk.enq("a")
        lease = await desk.one()
        await desk.enq("b")
        assert await desk.do(Pause(True)) is True
        assert await desk.do(Pause(True)) is False
        assert await desk.claim() == []
        assert ((await desk.due()).due, (await desk.stats()).paused) == (0, True)
        assert (await desk.enq("c")).result == "CREATED"
        assert await desk.done(lease) == "OK"
        await desk.do(Pause(False))
        assert len(await desk.claim(10)) == 2

    async def test_a_claim_may_ask_for_its_own_lease(self, desk: VirtualQueue) -> None:
        await desk.declare(max_processing_timeout="2h")
        await desk.enq("a")
        await desk.enq("b")
        assert (await desk.one(lease=5)).deadline_ms == T + 5
        assert (await desk.one(lease=99 * HOUR)).deadline_ms == T + 2 * HOUR

    async def test_aging_lifts_what_waits_for_long(self, desk: VirtualQueue) -> None:
        await desk.declare(aging="1s")
        await desk.enq("old", 100)
        desk.wait(60_000)
        await desk.enq("new", 50)
        await desk.enq("newer", 39)
        assert keys(await desk.claim(10)) == ["newer", "old", "new"]

    async def test_max_in_flight(self, desk: VirtualQueue) -> None:
        await desk.declare(max_in_flight=3)
        for n in range(5):
            await desk.enq(f"k{n}")
        leases = await desk.claim(10)
        assert len(leases) == 3
        assert (await desk.claim(10), (await desk.due()).due) == ([], 0)
        await desk.done(leases[0])
        assert (await desk.due()).due == 1
        assert len(await desk.claim(10)) == 1
        desk.wait(HOUR + 1)
        assert (await desk.due()).due == 3
        assert len(await desk.claim(10)) == 3

    async def test_max_in_flight_counts_what_no_sweep_has_seen(
        self, make_store: Callable[..., Any], clock: VirtualClock, queue_name: str
    ) -> None:
        """More leases are overdue than a claim turns over: the workers of the others may still keep theirs."""
        store = await make_store(clock, sweep=2)
        desk = VirtualQueue(store, clock, queue_name)
        await desk.declare(max_in_flight=5)
        for n in range(10):
            await desk.enq(f"k{n}")
        first = await desk.claim(10)
        assert len(first) == 5
        desk.wait(HOUR + 1)
        assert (await desk.due()).due == 2
        second = await desk.claim(10)
        assert len(second) == 2
        kept = [lease for lease in first if (await desk.beat(lease)).ack == "OK"]
        assert len(kept) == 3
        assert (await desk.stats()).running == 5
        assert await desk.claim(10) == []
        await store.close()

    async def test_what_is_overdue_waits(self, desk: VirtualQueue) -> None:
        """For everyone who looks: the counts, the list of what waits, and the list of what runs agree."""
        for key in ("a", "b"):
            await desk.enq(key)
        await desk.claim(1, lease=1000)
        await desk.claim(1, lease=HOUR)
        desk.wait(1001)
        stats = await desk.stats()
        assert (stats.ready, stats.running) == (1, 1)
        (waits,) = await desk.peek()
        (runs,) = await desk.do(ListLeases())
        assert {waits.key, runs.key} == {encode_key("a"), encode_key("b")}
        assert (waits.status, waits.timeouts, [attempt.how for attempt in waits.attempts]) == ("W", 1, ["timeout"])
        assert await desk.peek(after=waits.order) == []
        assert keys(await desk.claim(10)) == [decode_key(waits.key)]

    async def test_the_views_agree_on_any_number_of_overdue_jobs(self, desk: VirtualQueue) -> None:
        """More than a claim turns over: counts, pages, leases, and each job by its key and by its number."""
        for n in range(700):
            await desk.enq(f"late{n}", pri=n % 3, data=n)
        await desk.claim(700, lease=1000)
        for n in range(5):
            await desk.enq(f"live{n}")
        live = sorted(map(str, keys(await desk.claim(5, lease=HOUR))))
        desk.wait(1001)
        await desk.enq("new", pri=1)
        stats = await desk.stats()
        assert (stats.ready, stats.running) == (701, 5)
        assert sorted(str(decode_key(row.key)) for row in await desk.do(ListLeases(100))) == live
        whole = await desk.peek(1000)
        assert len(whole) == 701
        assert [row.order for row in whole] == sorted(row.order for row in whole)
        paged: list[JobRow] = []
        while page := await desk.peek(200, paged[-1].order if paged else None):
            paged += page
        assert [row.entry for row in paged] == [row.entry for row in whole]
        for row in whole[::100]:
            (found,) = await desk.rows(str(decode_key(row.key)))
            assert (found.status, found.order) == ("W", row.order)
            assert (await desk.do(FindJob(row.entry))).causes != ()

    async def test_what_is_overdue_for_the_last_time_waits_until_it_is_swept(self, desk: VirtualQueue) -> None:
        """In all views, for until then its worker may still end it well; then it is a dead letter."""
        await desk.declare(max_timeouts=1)
        await desk.enq()
        lease = await desk.one(lease=1000)
        desk.wait(1001)
        (row,) = await desk.peek()
        assert [row] == await desk.rows()
        assert (row.status, row.timeouts, await desk.dead()) == ("W", 1, [])
        assert ((await desk.stats()).ready, await desk.do(ListLeases())) == (1, [])
        assert await desk.claim() == []
        assert (await desk.peek(), await desk.rows(), len(await desk.dead())) == ([], [], 1)
        assert await desk.done(lease) == "LEASE_LOST"

    async def test_what_is_overdue_keeps_its_place_while_pages_are_read(self, desk: VirtualQueue) -> None:
        """It waits from the end of its lease on, whenever it is looked at: else a walk over all jobs would not end."""
        await desk.declare(retry_backoff="10s", processing_timeout="1m")
        for key in ("a", "b"):
            await desk.enq(key)
            await desk.one()
        desk.wait(60_001)
        await desk.enq("c")
        seen: list[str] = []
        after = None
        for _ in range(4):
            page = await desk.peek(1, after)
            seen += [str(decode_key(row.key)) for row in page]
            after = page[-1].order if page else after
            desk.wait(5)
        assert sorted(seen) == ["a", "b", "c"]

    async def test_a_paused_queue_keeps_nothing_that_is_over(self, desk: VirtualQueue) -> None:
        await desk.declare(max_timeouts=1)
        await desk.enq("overdue")
        await desk.one()
        await desk.enq("expired", exp=10)
        await desk.do(Pause(True))
        desk.wait(HOUR + 1)
        assert await desk.claim() == []
        assert [letter.cause for letter in await desk.dead()] == ["max_timeouts"]
        assert desk.counted("EXPIRED") == 1

    async def test_the_rate_limit_holds_in_every_window(self, desk: VirtualQueue) -> None:
        await desk.declare(rate_limit="10/s")
        for n in range(60):
            await desk.enq(f"k{n}")
        starts: list[int] = []
        while len(starts) < 60:
            starts += [desk.clock.now] * len(await desk.claim(7))
            desk.wait(73)
        for first in starts:
            assert sum(first <= start < first + 1000 for start in starts) <= 10
        assert starts[-1] - T < 6500
        for n in range(11):
            await desk.enq(f"more{n}")
        desk.wait(2000)
        assert len(await desk.claim(100)) == 10
        answer = await desk.due()
        assert (answer.due, answer.next_ms) == (0, desk.clock.now + 1000)

    async def test_late_packets_can_be_ignored(self, desk: VirtualQueue) -> None:
        await desk.declare(late_packets="ignore")
        desk.wait(100)
        await desk.enq(pri=50, ins=50, data=1)
        assert (await desk.enq(pri=1, ins=49, data=2)).result == "IGNORED_LATE"
        assert (await desk.enq(pri=2, ins=50, data=3)).result == "MERGED"
        row = await desk.row()
        assert (row.image.priority, number(row)) == (2, 3)

    async def test_late_packets_keep_older_data(self, desk: VirtualQueue) -> None:
        desk.wait(100)
        await desk.enq(pri=50, ins=50, data=1)
        assert (await desk.enq(pri=1, ins=49, data=2)).result == "MERGED"
        row = await desk.row()
        assert (row.image.priority, number(row), row.image.data_date) == (1, 1, T + 50)

    async def test_peek_goes_on_where_a_page_ended(self, desk: VirtualQueue) -> None:
        for n in range(25):
            await desk.enq(f"k{n}", pri=n % 3, proc=n % 5 * 1000)
        pages, after = [], None
        while page := await desk.peek(4, after):
            pages.append(page)
            after = page[-1].order
        rows = [row for page in pages for row in page]
        assert [row.order for row in rows] == sorted(row.order for row in rows)
        assert len(rows) == 25
        assert [len(page) for page in pages] == [4] * 6 + [1]

    async def test_the_next_moment_to_look(self, desk: VirtualQueue) -> None:
        """Nothing is due before 500 ms, then one; a merge that pushes it back pushes the timer back."""
        await desk.enq(proc=500)
        assert await desk.due() == DueAnswer(0, T + 500)
        desk.wait(499)
        assert await desk.due() == DueAnswer(0, T + 500)
        desk.wait(1)
        assert await desk.due() == DueAnswer(1, None)
        await desk.enq(proc=3000)
        assert await desk.due() == DueAnswer(0, T + 3000)
        desk.clock.now = T + 3000
        lease = await desk.one()
        assert await desk.due() == DueAnswer(0, T + 3000 + HOUR + 1)
        desk.clock.now = lease.deadline_ms + 1
        assert (await desk.due()).due == 1

    async def test_queues_in_one_table_do_not_meet(
        self, store: QueueStore, clock: VirtualClock, queue_name: str
    ) -> None:
        """Equal keys, shared files: they neither merge nor order against each other, and pause alone."""
        desks = [VirtualQueue(store, clock, name) for name in (f"{queue_name}-one", f"{queue_name}-two")]
        for desk in desks:
            await desk.declare(placement="shared")
        first, second = desks
        assert (await first.enq(pri=9, data=1)).result == "CREATED"
        assert (await second.enq(pri=1, data=2)).result == "CREATED"
        await first.do(Pause(True))
        assert await first.claim(10) == []
        assert [number(lease.row) for lease in await second.claim(10)] == [2]
        await first.do(Pause(False))
        assert [number(lease.row) for lease in await first.claim(10)] == [1]
        names = [desk.name for desk in desks]
        assert [name for name in await store.names() if name.startswith(queue_name)] == names

    async def test_columns_change_by_versions(self, desk: VirtualQueue) -> None:
        """Rows keep the version they were written with, a merge writes the new one; the key's columns stay."""
        page, title = Column("page", "string"), Column("title", "string")
        await desk.declare(ColumnSchema(1, ("page",), (page, title)))
        old, new = (await desk.store.declared(desk.name)), None
        assert old is not None
        await desk.enq("a", schema=old.version)
        await desk.enq("b", schema=old.version)
        new = await desk.declare(ColumnSchema(1, ("page",), (page, title, Column("size", "uint32"))))
        assert new.version == old.version + 1
        await desk.enq("b", schema=new.version)
        await desk.enq("c", schema=new.version)
        assert [(await desk.row(key)).image.schema - old.version for key in "abc"] == [0, 1, 1]
        with pytest.raises(DeclarationRefused):
            await desk.declare(ColumnSchema(1, ("title",), (page, title)))
        assert await desk.store.declared(desk.name) == new
        assert await desk.declare(ColumnSchema(1, ("page",), (page, title, Column("size", "uint32")))) == new
        assert len(await desk.claim(10)) == 3

    async def test_an_unknown_queue_is_an_error_that_names_the_known(self, desk: VirtualQueue) -> None:
        with pytest.raises(QueueNotFound, match="'nothing'; there are: ") as found:
            await desk.store.execute("nothing", Claim("w"))
        assert desk.name in found.value.known
        with pytest.raises(QueueNotFound):
            await desk.store.execute("nothing", AskStats())
        assert await desk.store.declared("nothing") is None

    async def test_operations_at_once(self, desk: VirtualQueue) -> None:
        """However they are grouped, each happens once."""
        answers = await asyncio.gather(*(desk.enq(f"k{n % 50}", data=n) for n in range(200)))
        results = [answer.result for answer in answers]
        assert (results.count("CREATED"), results.count("MERGED")) == (50, 150)
        claims = await asyncio.gather(*(desk.claim(3, owner=f"w{n}") for n in range(20)))
        leases = [lease for found in claims for lease in found]
        assert len({handle(lease) for lease in leases}) == len(leases) == 50
        assert await asyncio.gather(*(desk.done(lease) for lease in leases)) == ["OK"] * 50
        assert (await desk.stats()).running == 0

    async def test_a_sibling_sees_the_same(self, desk: VirtualQueue) -> None:
        await desk.enq()
        twin = VirtualQueue(desk.store.sibling(), desk.clock, desk.name)
        lease = await twin.one()
        assert await desk.done(lease) == "OK"
        await twin.store.close()
