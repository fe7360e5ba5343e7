"""The fenced log of queues, on a model of its store: nothing acknowledged is lost, nothing done comes back.

The real protocol and the real owner run; four compete, stop anywhere, and lose answers. Each protection is left out
once, to see that the checks notice.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from everlog.config.queue_options import QueueSettings, Rate
from everlog.errors import Deposed, EverlogError, IntegrityViolated
from everlog.queues.cassandra.blobs import INLINE_BYTES, Blobs
from everlog.queues.cassandra.owner import BATCH_BYTES, BATCH_ROWS, WHOLE, ShardOwner, ShardTable
from everlog.queues.cassandra.shard_log import ShardLog
from everlog.queues.keys import decode_key, encode_key, hash_key
from everlog.queues.operations import Claim, Done, Fail, Handle, Heartbeat, Pause, Put
from everlog.queues.rows import EndedRow, Packet
from tests.models.queue_log import ModelBackend, Scheduler, World, switch

SETTINGS = QueueSettings(processing_timeout_ms=100_000, max_timeouts=255, max_buckets=2)
STEPS = 1500
LARGE = INLINE_BYTES + 1


class Ledger:
    """What was acknowledged, over all owners."""

    def __init__(self) -> None:
        self.put: set[bytes] = set()
        self.done: set[bytes] = set()
        self.maybe_done: set[bytes] = set()
        self.handles: set[Handle] = set()
        self.takeovers = 0
        self.found: list[str] = []


def packet(name: str, now: int, size: int = 1) -> Packet:
    key = encode_key(name)
    return Packet(key, hash_key(key), b"x" * size, 128, now)


async def own(
    name: str, world: World, scheduler: Scheduler, ledger: Ledger, kind: type[ShardLog], owner: type[ShardOwner]
):
    """A process that takes the shard whenever it can, works on it, and begins again when it is deposed."""
    number = 0
    while True:
        await switch()
        log = kind(ModelBackend(world), owner=name)
        try:
            seen = await ModelBackend(world).read_shard()
            for _ in range(scheduler.chance.choice([0, 20, 100, 200])):
                await switch()  # so that owners get some work done
            if not await log.take_over(seen):
                continue
            ledger.takeovers += 1
            mine = owner(log, SETTINGS, segment_records=12)
            await mine.load(scheduler.steps)
            if world.shard.epoch == log.shard.epoch:  # else an owner after us may have acknowledged more by now
                check(name, mine, ledger)
            for _ in range(scheduler.chance.randint(1, 20)):
                number += 1
                await work(f"{name}-{number}", mine, scheduler, ledger)
                await switch()
            if scheduler.chance.random() < 0.3:
                await log.resign()
        except IntegrityViolated as error:
            ledger.found.append(f"{name}: {error}")
        except EverlogError:
            continue


def check(name: str, mine: ShardOwner, ledger: Ledger) -> None:
    """A new owner has all that was acknowledged, and nothing that was done."""
    keys = {row.key for row in mine.table.rows.values()}
    if back := keys & ledger.done:
        ledger.found.append(f"{name}: {back} were done and are back")
    if lost := ledger.put - ledger.maybe_done - keys:
        ledger.found.append(f"{name}: {lost} were put and are gone")


async def work(name: str, mine: ShardOwner, scheduler: Scheduler, ledger: Ledger) -> None:
    now = scheduler.steps
    new = packet(name, now, scheduler.chance.choice([1, 1, LARGE]))
    (created,) = await mine.execute([Put(new)], now)
    assert created.result == "CREATED"
    ledger.put.add(new.key)
    (leases,) = await mine.execute([Claim(name, scheduler.chance.randint(1, 3))], now)
    for lease in leases:
        handle = Handle(lease.row.entry, lease.row.token)
        if handle in ledger.handles:
            ledger.found.append(f"{name}: {handle} was given twice")
        if len(lease.row.image.data) not in (1, LARGE):
            ledger.found.append(f"{name}: the data of {handle} are gone")
        ledger.handles.add(handle)
        if scheduler.chance.random() < 0.8:
            ledger.maybe_done.add(lease.row.key)
            await mine.execute([Heartbeat(handle), Done(handle)], now)
            ledger.done.add(lease.row.key)
        else:
            await mine.execute([Fail(handle, delay_ms=0)], now)
    await mine.tidy()


def run(seed: int, *, kind=ShardLog, owner=ShardOwner, **world_options) -> Ledger:
    scheduler = Scheduler(seed)
    world = World(scheduler.chance, **world_options)
    ledger = Ledger()
    for name in "abcd":
        scheduler.start(own(name, world, scheduler, ledger, kind, owner))
    scheduler.run(STEPS)
    return ledger


@pytest.mark.case("journal-tables", 46)
def test_nothing_is_lost_and_nothing_comes_back():
    """Owners that are paused past a takeover, and answers that get lost: each batch is in the log once, or not."""
    total = Ledger()
    for seed in range(600):
        ledger = run(seed)
        assert not ledger.found, (seed, ledger.found)
        total.takeovers += ledger.takeovers
        total.put |= {b"%d" % seed + key for key in ledger.put}
        total.done |= {b"%d" % seed + key for key in ledger.done}
    assert total.takeovers > 2000
    assert len(total.put) > 8000
    assert len(total.done) > 8000


class HighTooEarly(ShardLog):
    """Opens a segment without moving the beat: who takes over then may have read too early which one is the newest."""

    async def rotate(self) -> None:
        mine = self._mine()
        wanted = mine._replace(high=mine.high + 1)
        if not await self._change(mine, wanted):
            self._lose()
        self.shard = wanted
        self._tail = (await self._fence(wanted.high)).tail


class Unconfirmed(ShardLog):
    """Does not look at the epoch again when it has fenced a segment."""

    async def confirm(self) -> None:
        return


class NoCarry(ShardOwner):
    async def _carry(self, living):
        return


def findings(**options) -> int:
    """In how many runs something is found: by the ledger, or by an assertion of the protocol itself."""
    count = 0
    for seed in range(400):
        try:
            count += bool(run(seed, **options).found)
        except (AssertionError, KeyError):
            count += 1
        if count:
            break
    return count


@pytest.mark.parametrize(
    "broken",
    [{"ignore_fence": True}, {"kind": HighTooEarly}, {"owner": NoCarry}],
    ids=["fence ignored", "high read before the epoch", "no carry"],
)
def test_each_protection_is_needed(broken):
    assert findings(**broken)


@pytest.mark.parametrize(("kind", "fooled"), [(ShardLog, False), (Unconfirmed, True)])
def test_who_sleeps_before_it_fences_does_not_wake_up_in_a_dropped_segment(kind, fooled):
    """It raised the epoch and slept; others took over, filled segments and dropped the one that it wants to fence."""
    drive = Drive()
    world = World(drive.chance, lossy=0)
    drive.do(drive.own(world, "first"), [Put(packet("a", 0))])
    sleeper = kind(ModelBackend(world), owner="sleeper")
    taking = sleeper.take_over(world.shard)
    while world.shard.owner != "sleeper":
        taking.send(None)  # its epoch counts; now it sleeps
    other = drive.own(world, "other", records=5)
    for number in range(40):
        drive.do(other, [Put(packet(f"k{number}", 0))])
        drive.tidy(other)
    assert 0 in world.dropped
    world.statics.pop(0, None)
    world.records.pop(0, None)
    if fooled:
        assert drive.run(taking)
    else:
        with pytest.raises(Deposed):
            drive.run(taking)


async def test_a_paused_owner_finds_out_at_its_next_write():
    """Its batch does not get in, and it steps down; the new owner has all that was acknowledged."""
    drive = Drive()
    world = World(drive.chance, lossy=0)
    old = drive.own(world, "old")
    drive.do(old, [Put(packet("a", 0))])
    new = drive.own(world, "new")
    with pytest.raises(Deposed):
        drive.do(old, [Put(packet("b", 0))])
    with pytest.raises(Deposed):
        drive.do(old, [Put(packet("b", 0))])
    assert [row.key for row in new.table.rows.values()] == [encode_key("a")]
    assert drive.do(new, [Put(packet("c", 0))])


@pytest.mark.case("journal-tables", 46)
def test_a_lost_answer_applies_once():
    """Every conditional write's answer may get lost: each job is there once all the same."""
    drive = Drive()
    world = World(drive.chance, lossy=0.5)
    mine = drive.own(world, "me")
    for number in range(50):
        drive.do(mine, [Put(packet(f"k{number}", 0))])
    again = drive.own(world, "other")
    assert len(again.table.rows) == 50
    assert sum(map(len, world.records.values())) == 50 + 2  # and what each owner says of itself


@pytest.mark.case("journal-tables", 48)
def test_a_new_owner_gives_every_lease_its_time_again():
    """100 live leases: after a takeover none is given again within its time, and every done is heard."""
    drive = Drive()
    world = World(drive.chance, lossy=0)
    old = drive.own(world, "old")
    drive.do(old, [Put(packet(f"k{number}", 0)) for number in range(100)])
    (leases,) = drive.do(old, [Claim("w", 100)])
    new = drive.own(world, "new", now=99_000)
    (again,) = drive.do(new, [Claim("w", 100)], now=99_000 + 100_000)
    assert again == []
    handles = [Handle(lease.row.entry, lease.row.token) for lease in leases]
    assert drive.do(new, [Done(handle) for handle in handles], now=120_000) == ["OK"] * 100
    assert new.table.rows == {}


@pytest.mark.case("journal-tables", 47)
def test_what_a_hundred_thousand_jobs_would_cost():
    """10,000 jobs here: no row is ever deleted, segments are dropped in order, few conditional writes, no heartbeats.

    Jobs go through in groups of 50, as group commit makes them.
    """
    drive = Drive()
    world = World(drive.chance, lossy=0)
    mine = drive.own(world, "me", records=2000)
    before = world.conditional
    for first in range(0, 10_000, 50):
        drive.do(mine, [Put(packet(f"k{number}", 0)) for number in range(first, first + 50)])
        (leases,) = drive.do(mine, [Claim("w", 50)])
        handles = [Handle(lease.row.entry, lease.row.token) for lease in leases]
        written = world.conditional
        drive.do(mine, [Heartbeat(handle) for handle in handles])
        assert world.conditional == written
        drive.do(mine, [Done(handle) for handle in handles])
        drive.tidy(mine)
    assert world.conditional - before <= 3 * 10_000 / 50 + 5 * len(world.dropped)
    assert world.dropped == list(range(len(world.dropped)))
    assert len(world.dropped) >= 10
    # A segment that comes back from the dead is not looked at.
    world.records[0] = world.records.get(0, []) or [b"garbage"]
    again = drive.own(world, "other")
    assert again.table.rows == {}
    assert again.table.last_entry == 10_000


def test_a_pause_and_entries_outlive_owners_and_segments():
    drive = Drive()
    world = World(drive.chance, lossy=0)
    mine = drive.own(world, "one", records=5)
    drive.do(mine, [Pause(True)])
    for number in range(40):
        drive.do(mine, [Put(packet(f"k{number}", 0))])
        drive.tidy(mine)
    again = drive.own(world, "two")
    assert again.table.paused()
    assert len(again.table.rows) == 40
    (answer,) = drive.do(again, [Put(packet("new", 0))])
    assert answer.entry == 41


def test_large_data_are_beside_the_log_and_move_with_their_rows():
    """Written once for each segment that names them; a merge replaces them; a carry takes them along."""
    drive = Drive()
    world = World(drive.chance, lossy=0)
    mine = drive.own(world, "one", records=5)
    drive.do(mine, [Put(packet("large", 0, LARGE))])
    assert [len(data) for data in world.blobs.values()] == [LARGE]
    assert all(len(record) < 1000 for record in world.records[0])
    (leases,) = drive.do(mine, [Claim("w", 1)])
    drive.do(mine, [Fail(Handle(leases[0].row.entry, leases[0].row.token), delay_ms=0)])
    assert len(world.blobs) == 1  # the same data are not written again
    drive.do(mine, [Put(packet("large", 0, LARGE + 1))])
    drive.do(mine, [Claim("w", 1), Put(packet("large", 0, LARGE + 2))])
    for number in range(40):
        drive.do(mine, [Put(packet(f"k{number}", 0))])
        drive.tidy(mine)
    assert world.dropped
    assert not {segment for segment, _ in world.blobs} & set(world.dropped)
    again = drive.own(world, "two")
    (row,) = [row for row in again.table.rows.values() if row.key == encode_key("large")]
    assert (len(row.image.data), len(row.slot.data)) == (LARGE + 1, LARGE + 2)
    drive.do(again, [Done(Handle(row.entry, row.token))])
    third = drive.own(world, "three")
    (row,) = [row for row in third.table.rows.values() if row.key == encode_key("large")]
    assert (len(row.image.data), row.slot) == (LARGE + 2, None)


class InOldSegments(Blobs):
    """Does not write data again that an older segment has."""

    def take_out(self, row, inline=INLINE_BYTES):
        stored = {place: found._replace(segment=self._log.high) for place, found in self._stored.items()}
        self._stored.update(stored)
        return super().take_out(row, inline)


def test_data_must_be_in_the_segment_of_their_record(monkeypatch):
    monkeypatch.setattr("everlog.queues.cassandra.owner.Blobs", InOldSegments)
    assert findings()


class Batches(ModelBackend):
    """Notes how large the appends are."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.rows: list[int] = []
        self.sizes: list[int] = []

    async def append(self, segment, epoch, tail, records):
        self.rows.append(len(records))
        self.sizes.append(sum(map(len, records)))
        return await super().append(segment, epoch, tail, records)


@pytest.mark.parametrize("size", [1, 9000, INLINE_BYTES])
def test_no_append_is_more_than_a_store_takes(size):
    """However many operations come at once, however much each of them changes: one mutation has 16 MiB at most."""
    drive = Drive()
    world = World(drive.chance, lossy=0)
    backend = Batches(world)
    mine = drive.own(world, "one", backend=backend)
    count = 3000 if size < INLINE_BYTES else 600
    for first in range(0, count, 50):
        drive.do(mine, [Put(packet(f"k{number}", 0, size)) for number in range(first, first + 50)])
    claimed = drive.do(mine, [Claim("w", 100) for _ in range(count // 100)])
    handles = [Handle(lease.row.entry, lease.row.token) for leases in claimed for lease in leases]
    assert len(handles) == count
    drive.do(mine, [Fail(handle, delay_ms=0) for handle in handles])
    drive.do(mine, [Claim("w", 100) for _ in range(count // 100)])
    drive.do(mine, [Claim("w", 100) for _ in range(5)], now=10_000_000)  # every lease is overdue
    assert max(backend.rows) < BATCH_ROWS + 500
    assert max(backend.sizes) < 2 * BATCH_BYTES
    again = drive.own(world, "two")
    assert {len(row.image.data) for row in again.table.rows.values()} == {size}
    assert sorted(again.table.rows) == sorted(mine.table.rows)
    assert [row.timeouts for row in again.table.rows.values()] == [row.timeouts for row in mine.table.rows.values()]


def test_a_new_owner_counts_the_window_of_a_rate_limit_as_full():
    """It does not know what the last one started: nothing starts for a window, then as many as ever."""
    settings = QueueSettings(rate_limit=Rate(3, 1000))
    drive = Drive()
    world = World(drive.chance, lossy=0)
    old = drive.own(world, "old", settings=settings)
    drive.do(old, [Put(packet(f"k{number}", 0)) for number in range(9)])
    (leases,) = drive.do(old, [Claim("w", 9)], now=1000)
    assert len(leases) == 3
    new = drive.own(world, "new", now=1100, settings=settings)
    assert [drive.do(new, [Claim("w", 9)], now=now) for now in (1100, 2099)] == [[[]], [[]]]
    (leases,) = drive.do(new, [Claim("w", 9)], now=2100)
    assert len(leases) == 3


def test_a_new_owner_counts_the_window_of_every_group_as_full():
    """Also of groups that have never started, and of those that begin to start beside them."""
    settings = QueueSettings(rate_limit_per_group=Rate(2, 1000), max_in_flight_per_group=3)
    drive = Drive()
    world = World(drive.chance, lossy=0)
    old = drive.own(world, "old", settings=settings)
    jobs = [packet(f"{group}{number}", 0) for group in "ab" for number in range(9)]
    drive.do(old, [Put(msgspec.structs.replace(one, group=decode_key(one.key)[0])) for one in jobs])
    drive.do(old, [Put(packet("alone", 0))])

    def claimed(owner: Any, now: int) -> list[str]:
        (leases,) = drive.do(owner, [Claim("w", 9)], now=now)
        return sorted(lease.row.image.group for lease in leases)

    assert claimed(old, 1000) == ["", "a", "a", "b", "b"]
    new = drive.own(world, "new", now=1100, settings=settings)
    assert [claimed(new, now) for now in (1100, 2099)] == [[], []]
    assert claimed(new, 2100) == ["a", "b"]  # the leases of before count, too
    drive.do(new, [Put(msgspec.structs.replace(packet("c", 0), group="c"))])
    assert claimed(new, 2101) == ["c"]


def test_owners_that_come_and_go_raise_a_flag():
    """Three takeovers by force within ten minutes; who lets go by itself does not count, nor who came long ago."""
    drive = Drive()
    world = World(drive.chance, lossy=0)

    def flags(now: int, by: str | None) -> list[str]:
        mine = drive.own(world, "next", now=now, forced_by=by)
        return [flag.owner for flag in mine.table.flags() if flag.reason == "owner_flap"]

    minute = 60_000
    assert [flags(at * minute, by) for at, by in ((0, "a"), (1, None), (6, "b"), (11, "c"))] == [[]] * 4
    assert flags(12 * minute, None) == []
    assert flags(13 * minute, "d") == ["d"]


class Drive:
    """Owners one after the other, without a scheduler."""

    def __init__(self) -> None:
        import random

        self.chance = random.Random(1)

    def run(self, work):
        while True:
            try:
                work.send(None)
            except StopIteration as end:
                return end.value

    def own(
        self,
        world: World,
        name: str,
        *,
        now: int = 0,
        records: int = 200_000,
        settings=SETTINGS,
        forced_by=None,
        backend: ModelBackend | None = None,
    ) -> ShardOwner:
        backend = backend or ModelBackend(world)
        log = ShardLog(backend, owner=name)
        assert self.run(log.take_over(self.run(backend.read_shard())))
        mine = ShardOwner(log, settings, segment_records=records)
        self.run(mine.load(now, forced_by=forced_by))
        return mine

    def do(self, mine: ShardOwner, operations, now: int = 0):
        return self.run(mine.execute(operations, now))

    def tidy(self, mine: ShardOwner) -> None:
        self.run(mine.tidy())


def test_a_history_that_was_carried_is_in_order_again():
    """A record that was carried stands behind newer ones: the newest are kept, whichever came last from the log."""
    table = ShardTable(WHOLE)
    rows = [EndedRow(entry, 1, b"k", b"h" * 16, "done", None, 0, 0, 1000 + entry, None) for entry in range(40)]
    for row in [*rows[:10], *rows[20:30], *rows[10:20], *rows[30:]]:
        table.restore_ended(row, 1, 15)
    table.order_ended(15)
    assert table.history(None, None, 100) == rows[:24:-1]
    table.keep_ended(EndedRow(40, 1, b"k", b"h" * 16, "done", None, 0, 0, 1040, None), 15)
    assert [row.entry for row in table.history(None, None, 100)] == list(range(40, 25, -1))
