"""What every store of queues must do, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from everlog.errors import DeclarationRefused, QueueNotFound
from everlog.queues.columns import Column
from everlog.queues.declaration import Declaration, Schema
from everlog.queues.keys import decode_key, encode_key, hash_key
from everlog.queues.operations import (
    AckFlag,
    AskDue,
    AskStats,
    BeatAnswer,
    Cancel,
    Claim,
    Done,
    DueAnswer,
    Fail,
    Forget,
    Get,
    Handle,
    Heartbeat,
    Lease,
    ListDead,
    ListFlags,
    Operation,
    Pause,
    Peek,
    Put,
    PutAnswer,
    Release,
    Revive,
    Stats,
    Sweep,
)
from everlog.queues.options import make_options
from everlog.queues.rows import DeadLetter, Flag, Packet, Row
from everlog.queues.store import QueueStore

T = 1_700_000_000_000
"""The moment at which virtual time begins, ms."""
HOUR = 3_600_000


class VirtualClock:
    """Time that passes only when it is told to."""

    def __init__(self, now_ms: int = T) -> None:
        self.now = now_ms
        self._ids = itertools.count(1)

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"


class Desk:
    """One queue of a store, with short words for what tests do to it."""

    def __init__(self, store: QueueStore, clock: VirtualClock, name: str = "jobs") -> None:
        self.store = store
        self.clock = clock
        self.name = name

    async def declare(self, schema: Schema | None = None, **options: Any) -> Declaration:
        wanted = Declaration(self.name, make_options(**options), () if schema is None else (schema,))
        return await self.store.declare(wanted)

    async def do(self, operation: Operation) -> Any:
        return await self.store.execute(self.name, operation)

    async def enq(
        self,
        key: str = "a",
        pri: int = 128,
        proc: int | None = None,
        exp: int = 0,
        data: object = 1,
        *,
        ins: int | None = None,
        schema: int = 1,
        key_hash: bytes | None = None,
    ) -> PutAnswer:
        """`proc` and `ins` in ms after T, `exp` in s after T."""
        encoded = encode_key(key)
        packet = Packet(
            encoded,
            key_hash or hash_key(encoded),
            str(data).encode(),
            pri,
            self.clock.now if ins is None else T + ins,
            None if proc is None else T + proc,
            T // 1000 + exp if exp else 0,
            schema,
        )
        answer: PutAnswer = await self.do(Put(packet))
        return answer

    async def claim(
        self, limit: int = 1, *, owner: str = "w", lease: int | None = None, fast: bool = False
    ) -> list[Lease]:
        leases: list[Lease] = await self.do(Claim(owner, limit, lease, fast))
        return leases

    async def one(self, **options: Any) -> Lease:
        (lease,) = await self.claim(**options)
        return lease

    async def done(self, lease: Lease) -> str:
        answer: str = await self.do(Done(handle(lease)))
        return answer

    async def fail(self, lease: Lease, reason: str | None = None, delay: int | None = None, retry: bool = True) -> str:
        answer: str = await self.do(Fail(handle(lease), reason, delay, retry))
        return answer

    async def release(self, lease: Lease) -> str:
        answer: str = await self.do(Release(handle(lease)))
        return answer

    async def beat(self, lease: Lease) -> BeatAnswer:
        answer: BeatAnswer = await self.do(Heartbeat(handle(lease)))
        return answer

    async def cancel(self, key: str = "a", reason: str | None = None) -> int:
        encoded = encode_key(key)
        count: int = await self.do(Cancel(encoded, hash_key(encoded), reason))
        return count

    async def rows(self, key: str = "a") -> list[Row]:
        encoded = encode_key(key)
        rows: list[Row] = await self.do(Get(encoded, hash_key(encoded)))
        return rows

    async def row(self, key: str = "a") -> Row:
        (row,) = await self.rows(key)
        return row

    async def peek(self, limit: int = 10, after: tuple[int, int, bytes, int] | None = None) -> list[Row]:
        rows: list[Row] = await self.do(Peek(limit, after))
        return rows

    async def dead(self) -> list[DeadLetter]:
        letters: list[DeadLetter] = await self.do(ListDead())
        return letters

    async def flags(self) -> dict[str, Flag]:
        flags: list[Flag] = await self.do(ListFlags())
        return {flag.reason: flag for flag in flags}

    async def stats(self) -> Stats:
        stats: Stats = await self.do(AskStats())
        return stats

    async def due(self, limit: int = 1000) -> DueAnswer:
        answer: DueAnswer = await self.do(AskDue(limit))
        return answer

    def counted(self, kind: str) -> int:
        return self.store.counted(self.name)[kind]

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.clock.now += ms


def handle(lease: Lease) -> Handle:
    return Handle(lease.row.entry, lease.row.token)


def keys(leases: Sequence[Lease]) -> list[Any]:
    return [decode_key(lease.row.key) for lease in leases]


def number(row: Row) -> int:
    return int(row.image.data)


class QueueConformance:
    """Subclass it and provide the fixture `make_store`: a function from a clock to an open, empty store.

    It takes `sweep`, how many rows a claim turns over first, and passes it to the engine.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def clock(self) -> VirtualClock:
        return VirtualClock()

    @pytest.fixture
    async def store(self, make_store: Callable[..., Any], clock: VirtualClock) -> AsyncIterator[QueueStore]:
        store = await make_store(clock)
        yield store
        await store.close()

    @pytest.fixture
    async def desk(self, store: QueueStore, clock: VirtualClock) -> Desk:
        desk = Desk(store, clock)
        await desk.declare()
        return desk

    @pytest.mark.case("journal-tables", 1)
    async def test_a_new_key_makes_a_row(self, desk: Desk) -> None:
        """An empty queue: an enqueue makes a waiting row with counter 0, without a start."""
        answer = await desk.enq("a", 20, 0)
        assert answer.result == "CREATED"
        row = await desk.row()
        assert (row.entry, row.status, row.timeouts, row.start_ms) == (answer.entry, "W", 0, None)
        assert (row.image.priority, row.image.process_ms, row.image.inserted_ms) == (20, T, T)

    @pytest.mark.case("journal-tables", 2)
    async def test_an_arrival_merges_into_the_waiting_row(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 3)
    async def test_never_beats_every_expiration(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 4)
    async def test_a_merge_forgives_failures_but_not_a_lifetime(self, desk: Desk) -> None:
        await desk.enq()
        for _ in range(3):
            assert await desk.fail(await desk.one(), "no") == "OK"
        assert (await desk.row()).timeouts == 3
        await desk.enq()
        row = await desk.row()
        assert (row.timeouts, row.lifetime) == (0, 3)

    @pytest.mark.case("journal-tables", 6)
    async def test_packets_in_any_order_give_the_same_row(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 7)
    async def test_max_wait_ends_a_burst(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 8)
    async def test_dates_that_cannot_be(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 9)
    async def test_keys_with_the_same_hash_are_two_jobs(self, desk: Desk) -> None:
        """An injected collision: two rows, both run, neither merges into the other."""
        same = b"h" * 16
        for key in ("a", "b", "a"):
            await desk.enq(key, key_hash=same)
        leases = await desk.claim(10)
        assert sorted(keys(leases)) == ["a", "b"]
        assert [await desk.done(lease) for lease in leases] == ["OK", "OK"]

    @pytest.mark.case("journal-tables", 10)
    async def test_without_merging_every_arrival_is_a_job(self, desk: Desk) -> None:
        await desk.declare(merge=False)
        answers = [await desk.enq(data=n) for n in range(2)]
        assert [answer.result for answer in answers] == ["CREATED", "CREATED"]
        assert answers[0].entry != answers[1].entry
        leases = await desk.claim(10)
        assert sorted(number(lease.row) for lease in leases) == [0, 1]
        assert await desk.done(leases[1]) == "OK"
        assert [row.entry for row in await desk.rows()] == [leases[0].row.entry]

    @pytest.mark.case("journal-tables", 12)
    async def test_an_arrival_for_a_running_key_waits_behind_it(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 13)
    async def test_many_arrivals_for_a_running_key_are_one_run(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 14)
    async def test_a_timed_out_run_merges_with_its_successor(self, desk: Desk) -> None:
        await desk.enq(data=1)
        await desk.one()
        await desk.enq(data=2)
        desk.wait(HOUR + 1)
        assert await desk.do(Sweep()) == 1
        row = await desk.row()
        assert (row.status, number(row), row.timeouts, row.lifetime) == ("W", 2, 0, 1)

    @pytest.mark.case("journal-tables", 15)
    async def test_a_killed_run_leaves_its_successor(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 16)
    async def test_only_parallel_gives_a_second_lease_on_a_key(self, desk: Desk) -> None:
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

    async def test_in_parallel_mode_arrivals_still_merge_with_what_waits(self, desk: Desk) -> None:
        await desk.declare(on_busy="parallel")
        await desk.enq(data=1)
        first = await desk.one()
        assert (await desk.enq(data=2)).result == "CREATED"
        assert (await desk.enq(data=3)).result == "MERGED"
        second = await desk.one()
        assert number(second.row) == 3
        assert [await desk.done(lease) for lease in (second, first)] == ["OK", "OK"]

    @pytest.mark.case("journal-tables", 18)
    async def test_the_order_of_claims(self, desk: Desk) -> None:
        """Priority, then Process Date, then hash; claim(10) returns all, each with a token of its own."""
        desk.wait(100)
        for key, pri, proc in (("x", 10, 5), ("y", 10, 3), ("p", 5, 9), ("q", 5, 9)):
            await desk.enq(key, pri, proc, ins=0)
        first, second = sorted(("p", "q"), key=lambda key: hash_key(encode_key(key)))
        peeked = [decode_key(row.key) for row in await desk.peek()]
        leases = await desk.claim(10)
        assert keys(leases) == peeked == [first, second, "y", "x"]
        assert len({handle(lease) for lease in leases}) == 4

    @pytest.mark.case("journal-tables", 19)
    async def test_a_delayed_job_does_not_hold_up_others(self, desk: Desk) -> None:
        await desk.enq("later", 0, HOUR)
        await desk.enq("now", 255)
        assert keys(await desk.claim(10)) == ["now"]
        desk.wait(HOUR)
        assert keys(await desk.claim(10)) == ["later"]

    @pytest.mark.case("journal-tables", 21)
    async def test_slow_jobs_wait_for_a_pass_without_others(self, desk: Desk) -> None:
        """One worker gets 50, then nothing in this pass, then 230 in the next; a batch does not mix them either."""
        await desk.declare(slow_threshold=200)
        await desk.enq("slow", 230)
        await desk.enq("fast", 50)
        assert keys(await desk.claim(10)) == ["fast"]
        assert await desk.claim(10, fast=True) == []
        assert keys(await desk.claim(10)) == ["slow"]

    @pytest.mark.case("journal-tables", 22)
    async def test_a_lease_ends_strictly_after_its_last_moment(self, desk: Desk) -> None:
        await desk.enq()
        first = await desk.one()
        desk.clock.now = first.deadline_ms
        assert desk.clock.now == T + HOUR
        assert await desk.claim() == []
        desk.wait(1)
        again = await desk.one()
        assert (again.row.timeouts, again.row.token, again.attempt) == (1, first.row.token + 1, 2)

    @pytest.mark.case("journal-tables", 23)
    async def test_heartbeats_keep_a_lease(self, desk: Desk) -> None:
        await desk.enq()
        lease = await desk.one()
        for _ in range(30):
            desk.wait(HOUR // 3)
            assert await desk.claim(owner="other") == []
            assert (await desk.beat(lease)).ack == "OK"
        assert (await desk.row()).timeouts == 0

    @pytest.mark.case("journal-tables", 24)
    async def test_an_old_handle_changes_nothing(self, desk: Desk) -> None:
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

    async def test_a_key_that_is_gone_and_back_accepts_no_old_handle(self, desk: Desk) -> None:
        await desk.enq()
        old = await desk.one()
        await desk.done(old)
        await desk.enq()
        new = await desk.one()
        assert new.row.entry != old.row.entry
        assert await desk.done(old) == "LEASE_LOST"
        assert await desk.done(new) == "OK"

    @pytest.mark.case("journal-tables", 26)
    async def test_late_is_better_than_again(self, desk: Desk) -> None:
        """Overdue, but nobody has looked: done and heartbeat still count."""
        await desk.enq("a")
        await desk.enq("b")
        first, second = await desk.claim(2)
        desk.wait(2 * HOUR)
        assert await desk.done(first) == "OK"
        assert (await desk.beat(second)).ack == "OK"
        assert (await desk.stats()).running == 1
        assert await desk.claim() == []

    @pytest.mark.case("journal-tables", 28)
    async def test_five_dead_attempts_make_a_dead_letter(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 28)
    async def test_the_counter_never_wraps(self, desk: Desk) -> None:
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

    async def test_the_limit_of_a_lifetime_raises_a_flag_and_nothing_else(self, desk: Desk) -> None:
        await desk.declare(lifetime_timeouts=3)
        for n in range(4):
            await desk.enq()
            await desk.fail(await desk.one(), delay=0)
            assert ("lifetime_timeouts" in await desk.flags()) == (n >= 2)
        assert (await desk.flags())["lifetime_timeouts"].count == 2
        assert await desk.dead() == []

    @pytest.mark.case("journal-tables", 29)
    async def test_a_released_job_waits_again_and_nothing_is_counted(self, desk: Desk) -> None:
        await desk.enq()
        await desk.fail(await desk.one(), delay=0)
        assert await desk.release(await desk.one()) == "OK"
        row = await desk.row()
        assert (row.status, row.timeouts, row.start_ms, row.owner) == ("W", 1, None, None)
        assert (await desk.one()).attempt == 2

    @pytest.mark.case("journal-tables", 29)
    async def test_a_cancelled_job_is_gone_or_told_to_stop(self, desk: Desk) -> None:
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

    async def test_what_arrives_after_a_cancel_runs(self, desk: Desk) -> None:
        await desk.enq(data=1)
        lease = await desk.one()
        await desk.enq(data=2)
        await desk.cancel()
        assert (await desk.enq(data=3)).result == "SUCCESSOR"
        assert await desk.fail(lease) == "OK"
        assert number((await desk.one()).row) == 3
        assert [letter.image.data for letter in await desk.dead()] == [b"1"]

    async def test_a_failure_waits_as_long_as_it_is_told(self, desk: Desk) -> None:
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

    async def test_backoff_doubles(self, desk: Desk) -> None:
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

    async def test_dead_letters_are_forgotten_after_a_while(self, desk: Desk) -> None:
        await desk.declare(dead_letter_ttl="1d")
        for n in range(2):
            await desk.enq(f"k{n}")
            await desk.fail(await desk.one(), retry=False)
            desk.wait(20 * HOUR)
        assert [decode_key(letter.key) for letter in await desk.dead()] == ["k1"]
        await desk.enq("k2")
        await desk.fail(await desk.one(), retry=False)
        assert (await desk.stats()).dead == 2

    @pytest.mark.case("journal-tables", 31)
    async def test_what_has_expired_is_not_there(self, make_store: Callable[..., Any], clock: VirtualClock) -> None:
        """At its last moment it is there; one ms later nobody sees it, even if nothing sweeps."""
        store = await make_store(clock, sweep=0)
        desk = Desk(store, clock)
        await desk.declare()
        await desk.enq(exp=100)
        clock.now = T + 100_000
        assert len(await desk.rows()) == len(await desk.peek()) == (await desk.stats()).ready == 1
        assert (await desk.due()).due == 1
        clock.now += 1
        assert (await desk.rows(), await desk.peek(), await desk.claim(10)) == ([], [], [])
        assert (await desk.stats()).ready == (await desk.due()).due == 0
        await store.close()

    @pytest.mark.case("journal-tables", 32)
    async def test_an_arrival_for_an_expired_key_begins_anew(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 33)
    async def test_a_job_that_expires_while_it_runs(self, desk: Desk) -> None:
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

    async def test_a_sweep_removes_what_has_expired(self, desk: Desk) -> None:
        for n in range(5):
            await desk.enq(f"k{n}", exp=10 + n)
        desk.wait(12_001)
        assert await desk.do(Sweep()) == 3
        assert desk.counted("EXPIRED") == 3
        assert (await desk.due()).next_ms == T + 13_001
        await desk.enq("k3", exp=0)
        desk.wait(HOUR)
        assert keys(await desk.claim(10)) == ["k3"]

    async def test_an_expired_successor_is_dropped(self, desk: Desk) -> None:
        await desk.enq(data=1)
        lease = await desk.one()
        await desk.enq(data=2, exp=10)
        desk.wait(10_001)
        assert await desk.done(lease) == "OK"
        assert await desk.rows() == []

    async def test_a_pause_stops_claims_and_nothing_else(self, desk: Desk) -> None:
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

    async def test_a_claim_may_ask_for_its_own_lease(self, desk: Desk) -> None:
        await desk.declare(max_processing_timeout="2h")
        await desk.enq("a")
        await desk.enq("b")
        assert (await desk.one(lease=5)).deadline_ms == T + 5
        assert (await desk.one(lease=99 * HOUR)).deadline_ms == T + 2 * HOUR

    async def test_aging_lifts_what_waits_for_long(self, desk: Desk) -> None:
        await desk.declare(aging="1s")
        await desk.enq("old", 100)
        desk.wait(60_000)
        await desk.enq("new", 50)
        await desk.enq("newer", 39)
        assert keys(await desk.claim(10)) == ["newer", "old", "new"]

    async def test_max_in_flight(self, desk: Desk) -> None:
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
        assert len(await desk.claim(10)) == 3

    async def test_the_rate_limit_holds_in_every_window(self, desk: Desk) -> None:
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

    async def test_late_packets_can_be_ignored(self, desk: Desk) -> None:
        await desk.declare(late_packets="ignore")
        desk.wait(100)
        await desk.enq(pri=50, ins=50, data=1)
        assert (await desk.enq(pri=1, ins=49, data=2)).result == "IGNORED_LATE"
        assert (await desk.enq(pri=2, ins=50, data=3)).result == "MERGED"
        row = await desk.row()
        assert (row.image.priority, number(row)) == (2, 3)

    async def test_late_packets_keep_older_data(self, desk: Desk) -> None:
        desk.wait(100)
        await desk.enq(pri=50, ins=50, data=1)
        assert (await desk.enq(pri=1, ins=49, data=2)).result == "MERGED"
        row = await desk.row()
        assert (row.image.priority, number(row), row.image.data_date) == (1, 1, T + 50)

    async def test_peek_goes_on_where_a_page_ended(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 35, 36)
    async def test_the_next_moment_to_look(self, desk: Desk) -> None:
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

    @pytest.mark.case("journal-tables", 43)
    async def test_queues_in_one_table_do_not_meet(self, store: QueueStore, clock: VirtualClock) -> None:
        """Equal keys, shared files: they neither merge nor order against each other, and pause alone."""
        desks = [Desk(store, clock, name) for name in ("one", "two")]
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
        assert await store.names() == ["one", "two"]

    @pytest.mark.case("journal-tables", 42)
    async def test_columns_change_by_versions(self, desk: Desk) -> None:
        """Rows keep the version they were written with, a merge writes the new one; the key's columns stay."""
        page, title = Column("page", "string"), Column("title", "string")
        await desk.declare(Schema(1, ("page",), (page, title)))
        old, new = (await desk.store.declared(desk.name)), None
        assert old is not None
        await desk.enq("a", schema=old.version)
        await desk.enq("b", schema=old.version)
        new = await desk.declare(Schema(1, ("page",), (page, title, Column("size", "uint32"))))
        assert new.version == old.version + 1
        await desk.enq("b", schema=new.version)
        await desk.enq("c", schema=new.version)
        assert [(await desk.row(key)).image.schema - old.version for key in "abc"] == [0, 1, 1]
        with pytest.raises(DeclarationRefused):
            await desk.declare(Schema(1, ("title",), (page, title)))
        assert await desk.store.declared(desk.name) == new
        assert await desk.declare(Schema(1, ("page",), (page, title, Column("size", "uint32")))) == new
        assert len(await desk.claim(10)) == 3

    async def test_an_unknown_queue_is_an_error_that_names_the_known(self, desk: Desk) -> None:
        with pytest.raises(QueueNotFound, match=r"'nothing'.*jobs"):
            await desk.store.execute("nothing", Claim("w"))
        with pytest.raises(QueueNotFound):
            await desk.store.execute("nothing", AskStats())
        assert await desk.store.declared("nothing") is None

    async def test_operations_at_once(self, desk: Desk) -> None:
        """However they are grouped, each happens once."""
        answers = await asyncio.gather(*(desk.enq(f"k{n % 50}", data=n) for n in range(200)))
        results = [answer.result for answer in answers]
        assert (results.count("CREATED"), results.count("MERGED")) == (50, 150)
        claims = await asyncio.gather(*(desk.claim(3, owner=f"w{n}") for n in range(20)))
        leases = [lease for found in claims for lease in found]
        assert len({handle(lease) for lease in leases}) == len(leases) == 50
        assert await asyncio.gather(*(desk.done(lease) for lease in leases)) == ["OK"] * 50
        assert (await desk.stats()).running == 0

    async def test_a_sibling_sees_the_same(self, desk: Desk) -> None:
        await desk.enq()
        twin = Desk(desk.store.sibling(), desk.clock, desk.name)
        lease = await twin.one()
        assert await desk.done(lease) == "OK"
        await twin.store.close()
