"""Processes that share queues, on a model of Cassandra, with real calls between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import TypeVar

import pytest

from everlog.errors import AnswerLost, EverlogError, InvalidInput, QueueNotFound, StorageFailed
from everlog.queues.cassandra.calls import Call, NoAnswer, NotSent
from everlog.queues.keys import encode_key, hash_key
from everlog.queues.operations import AskStats, FireSchedules, Pause, Put, SetSchedule
from everlog.queues.queue import Queue
from everlog.queues.rows import Packet
from everlog.queues.shards import shard_of
from everlog.queues.wire import decode_outcomes
from everlog.testing.queue_desk import HOUR, T, VirtualClock
from tests.models.queue_cases import QueueCases
from tests.models.queue_cluster import ModelQueueStore, Tables
from tests.models.queue_log import World
from tests.models.queue_shards import check_shards

HOST = "127.0.0.1"
Answer = TypeVar("Answer")


class TestOwner(QueueCases):
    """The suite for stores, where every fifth conditional write loses its answer."""

    @pytest.fixture
    def make_store(self):
        async def make(clock, *, sweep=200):
            return ModelQueueStore(Tables(lossy=0.2), "me", clock=clock, sweep=sweep)

        return make


class Follower(ModelQueueStore):
    """Lets another process have every queue before it asks for anything."""

    owner: ModelQueueStore
    may_own = False

    async def declare(self, wanted):
        found = await self.owner.declare(wanted)
        self.forget(wanted.name)
        await self.owner.execute(wanted.name, AskStats())
        return found

    async def delete(self, name, *, running=False):
        self.may_own = True  # the owner lets go of it
        return await super().delete(name, running=running)

    def counted(self, name):
        return self.owner.counted(name)

    async def close(self):
        assert self.may_own or all(shard._owner is None for shard in self._shards.values())
        await super().close()
        await self.owner.close()


class TestPassedOn(QueueCases):
    """The suite by a process that never owns anything, over sockets."""

    @pytest.fixture
    def make_store(self):
        async def make(clock, *, sweep=200):
            tables = Tables()
            store = Follower(tables, "follower", clock=clock, sweep=sweep, host=HOST)
            store.owner = ModelQueueStore(tables, "owner", clock=clock, sweep=sweep, host=HOST)
            return store

        return make


class Peer(ModelQueueStore):
    """Loses calls and answers now and then."""

    chance: random.Random
    lossy = 0.0

    async def send(self, address, call):
        if self.chance.random() < self.lossy:
            raise NotSent("lost on the way")
        reply = await super().send(address, call)
        if self.chance.random() < self.lossy:
            raise NoAnswer("lost on the way back")
        return reply


def peers(tables: Tables, chance: random.Random, names: str) -> list[Peer]:
    found = [Peer(tables, name, host=HOST, beat_s=0.05, takeover_s=0.4, segment_records=30) for name in names]
    for peer in found:
        peer.chance = chance
    return found


async def churn(queue: Queue, numbers: Iterator[int], ledger: dict[str, set]) -> None:
    for _ in range(40):
        key = f"k{next(numbers)}"
        ledger["putting"].add(key)
        await queue.put(key)
        ledger["put"].add(key)
        for job in await queue.claim(2, owner=queue.store.name):
            assert job.handle not in ledger["handles"], "a handle was given twice"
            ledger["handles"].add(job.handle)
            ledger["finishing"].add(job.key)
            await job.done()
            ledger["done"].add(job.key)


@pytest.mark.case("journal-tables", 46)
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_between_processes(seed):
    """Four processes; conditional writes, calls and answers get lost, owners leave and are deposed all the time."""
    chance = random.Random(seed)
    tables = Tables(lossy=0.05)
    stores = peers(tables, chance, "abcd")
    await Queue("jobs", stores[0]).declare()
    ledger: dict[str, set] = {kind: set() for kind in ("putting", "put", "finishing", "done", "handles")}
    errors, numbers = [], count()

    async def work(store: Peer) -> None:
        queue = Queue("jobs", store)
        for _ in range(4):
            try:
                await churn(queue, numbers, ledger)
            except EverlogError as error:
                errors.append(error)

    async def disturb() -> None:
        while True:
            await asyncio.sleep(0.02 + chance.random() * 0.05)
            for store in stores:
                store.lossy = chance.choice([0.0, 0.02, 0.1])
                shard = store._shards.get(("jobs", 0))
                if shard is not None and shard._owner is not None and chance.random() < 0.3:
                    await asyncio.wait_for(shard._owner.log.resign(), 5) if chance.random() < 0.5 else None
                    shard._owner = None  # as if it had died: its next write finds out

    disturbing = asyncio.create_task(disturb())
    async with asyncio.timeout(60):
        await asyncio.gather(*(work(store) for store in stores))
    disturbing.cancel()
    assert all(error.retriable for error in errors), errors
    for store in stores:
        store.lossy = 0
    try:
        await judge(Queue("jobs", stores[0]), ledger)
    finally:
        for store in stores:
            await store.close()


async def judge(queue: Queue, ledger: dict[str, set]) -> None:
    there = {key for key in ledger["putting"] if await patiently(lambda: queue.get(key))}  # noqa: B023  # called at once
    stats = await patiently(queue.stats)
    assert len(there) == stats.ready + stats.running
    assert not ledger["put"] - there - ledger["finishing"], "acknowledged and gone"
    assert not there & ledger["done"], "done and back"
    assert len(ledger["done"]) > 50


async def patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask again where the error says so: calls have little time here, and the machine may take longer."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except EverlogError as error:
                if not error.retriable:
                    raise


async def test_an_owner_that_dies_without_a_word():
    """Calls wait until its beat has stood still for long enough; then the caller takes over, and nothing is lost."""
    one, two = peers(Tables(), random.Random(1), "ab")
    await Queue("jobs", one).declare()
    await Queue("jobs", one).put("k")
    queue = Queue("jobs", two)
    assert (await queue.stats()).ready == 1
    shard = one._shards.pop(("jobs", 0))
    shard._task.cancel()
    await one._server.stop()
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert (await queue.put("k2")).result == "CREATED"
    assert loop.time() - started >= 0.1  # not at once; the beat may have been watched before
    assert (await queue.stats()).ready == 2
    await two.close()
    await one.close()


async def test_an_owner_that_never_answers():
    """Reads go to the next owner; whether a write was done nobody can say."""
    one, two = peers(Tables(), random.Random(1), "ab")
    await Queue("jobs", one).declare()
    queue = Queue("jobs", two)
    await queue.put("k")

    awake = asyncio.Event()

    async def silence(call):
        await awake.wait()

    one._server._serve = silence
    one._shards["jobs", 0]._owner.log.beat = _stands_still
    with pytest.raises(AnswerLost):
        await queue.put("k2")
    assert (await queue.stats()).ready == 1
    awake.set()
    await two.close()
    await one.close()


async def _stands_still():
    return None


async def test_what_administrators_do_is_noted():
    tables = Tables()
    (store,) = peers(tables, random.Random(1), "a")
    queue = Queue("jobs", store)
    await queue.put("k")
    await queue.pause()
    await queue.pause()  # changes nothing
    await queue.cancel("k")
    await queue.cancel("k")
    noted = tables.admins["jobs", 0].audited
    assert [type(operation).__name__ for operation in noted] == ["Pause", "Cancel"]
    assert noted[0] == Pause(True)
    await store.close()


@pytest.fixture
async def stores():
    """Three processes; the first owns what it declares."""
    tables = Tables()
    names = ("one", "two", "three")
    found = [ModelQueueStore(tables, name, host=HOST, beat_s=0.2, takeover_s=6.0) for name in names]
    yield found
    for store in found:
        await store.close()


async def test_waiting_elsewhere_is_woken(stores, monkeypatch):
    """By a datagram when something is due, by a timer when something will be, not by the fall-back poll."""
    monkeypatch.setattr("everlog.queues.port.POLL_S", 100.0)
    one, two, three = (Queue("jobs", store) for store in stores)
    await one.declare()
    await one.put("first")
    await one.done((await one.claim())[0])
    for put, kwargs in ((one.put, {}), (three.put, {}), (one.put, {"delay": "300ms"}), (two.put, {"delay": "200ms"})):
        waiting = asyncio.create_task(two.wait(100, listener="w"))
        async with asyncio.timeout(60):
            while "w" not in two.store.waker("jobs").listeners._idle:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # it has asked the owner
        await put("k", **kwargs)
        assert await asyncio.wait_for(waiting, 60)
        (job,) = await two.claim(owner="w")
        await job.done()


async def test_a_call_is_done_once(stores):
    """The same number again gets the first answer; an older one, or one for another owner, is refused."""
    one, two, _ = stores
    await Queue("jobs", one).declare(merge=False)
    await one.execute("jobs", AskStats())
    key = encode_key("k")
    put = [Put(Packet(key, hash_key(key), b"n", 1, 1))]

    async def call(number, owner="one", sender="other"):
        return await one._serve_call(Call(owner, "jobs", 0, sender, number, "", put, 1))

    first, again, second = await call(1), await call(1), await call(2)
    assert decode_outcomes(first.outcomes, put) == decode_outcomes(again.outcomes, put)
    assert decode_outcomes(second.outcomes, put) != decode_outcomes(first.outcomes, put)
    assert await call(1) is None
    assert await call(3, owner="somebody else") is None
    assert (await call(1, sender="third")) is not None
    assert (await Queue("jobs", two).stats()).ready == 3


async def test_an_answer_that_is_lost_is_asked_for_again(stores, monkeypatch):
    """While the owner lives the call is done once, and answered; if it is gone, a write's outcome is unknown."""
    one, two, _ = stores
    await Queue("jobs", one).declare(merge=False)
    await one.execute("jobs", AskStats())
    queue, send, lost = Queue("jobs", two), two.send, []
    await queue.stats()

    async def lose(address, call):
        reply = await send(address, call)
        if len(lost) < 2:
            lost.append(call.number)
            raise NoAnswer("lost")
        return reply

    monkeypatch.setattr(two, "send", lose)
    assert (await queue.put("k")).result == "CREATED"
    assert len(set(lost)) == 1
    assert (await queue.stats()).ready == 1

    async def die(address, call):
        if len(lost) == 2:
            lost.append(call.number)
            await send(address, call)
            await one.close()
        raise NoAnswer("dead")

    monkeypatch.setattr(two, "send", die)
    with pytest.raises(AnswerLost):
        await queue.put("k2")
    assert (await queue.stats()).ready == 2  # it had been done; two owns the queue now


async def test_shards_have_owners_of_their_own(stores):
    await Queue("jobs", stores[0]).declare(shards=3)
    await check_shards(stores)


async def test_schedules_are_in_the_shards_of_their_keys(stores):
    """Each is fired once, whichever process asks; only `all` needs one shard, because its keys are many."""
    queues = [Queue("jobs", store) for store in stores]
    await queues[0].declare(shards=3, merge=False)
    for number in range(9):
        await queues[number % 3].schedules.set(f"s{number}", every="1ms", data=number)
    homes = {shard_of(SetSchedule(info.row), 3) for info in await queues[0].schedules.list()}
    assert homes == {0, 1, 2}
    for queue in queues:
        assert [info.name for info in await queue.schedules.list()] == [f"s{number}" for number in range(9)]
    await queues[1].schedules.pause("s4")
    await queues[2].schedules.remove("s5")
    before = {(info.key, info.due) async for info in queues[0].jobs()}
    await asyncio.gather(*(queue.store.execute("jobs", FireSchedules()) for queue in queues for _ in range(5)))
    places = [(info.key, info.due) async for info in queues[0].jobs()]
    assert len(places) == len(set(places)), "a time was put twice"
    assert {key for key, _ in set(places) - before} == {f"s{number}" for number in range(9)} - {"s4", "s5"}
    with pytest.raises(InvalidInput, match="one shard"):
        await queues[0].schedules.set("x", every="1h", catch_up="all")


@pytest.mark.parametrize("seed", range(2))
async def test_each_time_is_put_once_between_processes(seed):
    """Calls, answers and conditional writes get lost, owners are deposed: no time comes twice, none is left out."""
    chance = random.Random(seed)
    stores = peers(Tables(lossy=0.05), chance, "abc")
    await Queue("jobs", stores[0]).declare(merge=False)
    await Queue("jobs", stores[0]).schedules.set("tick", every="20ms", catch_up="all")

    async def fire(store: Peer) -> None:
        for _ in range(60):
            with suppress(EverlogError):
                await store.execute("jobs", FireSchedules())
            await asyncio.sleep(0.005)

    async def disturb() -> None:
        while True:
            await asyncio.sleep(0.02 + chance.random() * 0.05)
            for store in stores:
                store.lossy = chance.choice([0.0, 0.02, 0.1])
                shard = store._shards.get(("jobs", 0))
                if shard is not None and shard._owner is not None and chance.random() < 0.2:
                    shard._owner.log.depose()

    disturbance = asyncio.create_task(disturb())
    await asyncio.gather(*(fire(store) for store in stores))
    disturbance.cancel()
    for store in stores:
        store.lossy = 0.0
    places = [round(info.due.timestamp() * 1000) async for info in Queue("jobs", stores[0]).jobs()]
    assert len(places) > 5
    assert sorted(places) == list(range(min(places), max(places) + 1, 20))
    for store in stores:
        await store.close()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("steps", range(1, 40, 3))
@pytest.mark.parametrize("said_again", [True, False], ids=["said again", "by the next put"])
async def test_a_deletion_that_was_cut_off_is_finished(shards, steps, said_again):
    """At any write: from its first one on there is no such queue, and what is left of it comes to no later one."""
    tables = Tables()
    first, second, third = peers(tables, random.Random(1), "abc")
    queue = Queue("jobs", first)
    await queue.declare(shards=shards, keep_done="1h")
    for number in range(9):
        await queue.put(f"k{number}")
    jobs = await queue.claim(3)
    await jobs[0].done()
    await queue.fail(jobs[1], "no", retry=False)
    await queue.release(jobs[2])
    await queue.schedules.set("tick", every="1h")
    cut = _Cut(tables, steps)
    with suppress(EverlogError, _CutOff):
        await second.delete("jobs")
    reached = cut.end()
    names = await third.names()
    if not names:
        with pytest.raises(EverlogError):
            await Queue("jobs", second).stats()
    again = Queue("jobs", third)
    if names or (reached and said_again):
        with suppress(QueueNotFound):
            assert await again.delete() == 7
    assert "jobs" not in await third.names()
    await again.put("new")
    assert [job.key for job in await again.claim(9)] == ["new"]
    assert (await again.job(jobs[0].entry), await again.dead(), await again.history()) == (None, [], [])
    assert (await again.flags(), await again.schedules.list()) == ([], [])
    assert (await again.leases())[0].entry > max(job.entry for job in jobs)
    assert (await again.declaration()).options.shards == 1
    assert not any(admin.letters or admin.flags for admin in tables.admins.values())
    await asyncio.gather(*(peer.close() for peer in (first, second, third)))


class _CutOff(Exception):
    """The process is gone."""


class _Cut:
    """After some conditional writes, all further ones fail, until `end`."""

    def __init__(self, tables, steps):
        self.left = steps
        self._worlds = tables
        self._register = tables.register._write
        self._write_if = World.write_if
        tables.register._write = self._count(self._register)
        World.write_if = self._count(self._write_if)

    def _count(self, write):
        def counted(*arguments):
            self.left -= 1
            if self.left < 0:
                raise _CutOff
            return write(*arguments)

        return counted

    def end(self):
        self._worlds.register._write = self._register
        World.write_if = self._write_if
        return self.left < 0


async def test_a_mark_of_a_schedule_is_short():
    """That times have passed is written without the data of the schedules: those of all would not fit into an append.
    The next owner knows both."""
    count, tables, clock = 60, Tables(), VirtualClock()
    one = ModelQueueStore(tables, "one", clock=clock)
    schedules = Queue("jobs", one).schedules
    await Queue("jobs", one).declare()
    for number in range(count):
        await schedules.set(f"s{number}", every="1h", catch_up="none", data="x" * 10_000)

    def written() -> int:
        segments = (segment for world in tables.worlds.values() for segment in world.records.values())
        return sum(len(record) for segment in segments for record in segment)

    before = written()
    clock.now += 5 * HOUR + HOUR // 2
    assert await schedules.fire() == 0
    moved = [info.row.done_ms for info in await schedules.list()]
    assert min(moved) > T + 4 * HOUR
    assert 0 < written() - before < count * 200
    await one.close()
    other = ModelQueueStore(tables, "other", clock=clock)
    found = await Queue("jobs", other).schedules.list()
    assert [info.row.done_ms for info in found] == moved
    assert {info.data for info in found} == {"x" * 10_000}
    await other.close()


async def test_an_answer_that_makes_no_sense_ends_no_shard():
    """The callers hear of it, and the shard goes on."""
    tables = Tables()
    owner, other = peers(tables, random.Random(1), "ab")
    await Queue("jobs", owner).put("a")
    send, garbage = other.send, [True]

    async def garbled(address, call):
        reply = await send(address, call)
        return reply.__class__(reply.now_ms, b"\x91\x00") if garbage else reply

    other.send = garbled
    for _ in range(2):
        async with asyncio.timeout(20):
            with pytest.raises(StorageFailed):
                await Queue("jobs", other).stats()
    garbage.clear()
    assert (await Queue("jobs", other).stats()).ready == 1
    await asyncio.gather(owner.close(), other.close())
