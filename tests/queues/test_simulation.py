"""Queues under random schedules, compared with an oracle after every step; a failure names its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from everlog.config.queue_options import QueueOptions, make_options
from everlog.queues import engine, rules
from everlog.queues.claim_order import ClaimOrder
from everlog.queues.declaration import Declaration
from everlog.queues.keys import encode_key, hash_key
from everlog.queues.memory import MemoryQueueStore, MemoryTable
from everlog.queues.operations import AskStats, Claim, Done, Fail, Handle, ListFlags, Peek, Put, Release
from everlog.queues.rows import Packet
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.testing.queue_desk import VirtualClock
from tests.models.queue_simulation import Simulation

FAST = {"processing_timeout": "1s", "dead_letter_ttl": "1000d", "bucket": "none"}
VARIANTS: dict[str, QueueOptions] = {
    "defaults": make_options(**FAST),
    "impatient": make_options(**FAST, max_timeouts=2, lifetime_timeouts=4, retry_backoff="30ms"),
    "max_wait": make_options(**FAST, max_wait="200ms"),
    "no_merge": make_options(**FAST, merge=False),
    "parallel": make_options(**FAST, on_busy="parallel"),
    "restart": make_options(**FAST, on_busy="restart"),
    "reject": make_options(**FAST, on_busy="reject"),
    "drop": make_options(**FAST, on_busy="drop"),
    "late": make_options(**FAST, late_packets="ignore"),
    "slow": make_options(**FAST, slow_threshold=200),
    "limits": make_options(**FAST, max_in_flight=2, rate_limit="5/s"),
    "groups": make_options(**FAST, merge=False),
    "groups_merge": make_options(**FAST, max_in_flight_per_group=2),
    "groups_limits": make_options(
        **FAST,
        merge=False,
        max_in_flight=5,
        rate_limit="9/100ms",
        max_in_flight_per_group=2,
        rate_limit_per_group="2/100ms",
    ),
    "groups_aging": make_options(**FAST, merge=False, aging="20ms", rate_limit_per_group="1/100ms"),
    "groups_slow": make_options(**FAST, on_busy="parallel", slow_threshold=128, max_in_flight_per_group=2),
}
# More jobs without a group than of any other.
GROUPS = ("", "", "a", "b", "c")


SEEDS = 4
SEEDS_IN_A_SOAK = 1000


async def simulate(name: str, seed: int, steps: int, *, sweeps: bool = True) -> None:
    clock = VirtualClock()
    store = MemoryQueueStore(clock, sweep=500 if sweeps else 0)
    chance = random.Random(seed)
    await Simulation(store, clock, VARIANTS[name], chance, sweeps=sweeps, **world_of(name)).run(steps)


def world_of(name: str) -> dict[str, Sequence[Any]]:
    return {"groups": GROUPS, "pace": (0, 0, 1, 9, 10, 40)} if name.startswith("groups") else {}


@pytest.mark.parametrize("name", VARIANTS)
async def test_in_memory(name):
    """Four thousand steps of each kind of queue: every broken rule below is noticed in fewer."""
    for seed in range(SEEDS):
        await simulate(name, seed, 1000)


@pytest.mark.parametrize("name", ["limits", "groups_limits", "groups_slow"])
async def test_what_no_claim_sweeps_counts_as_in_flight(name):
    for seed in range(SEEDS):
        await simulate(name, seed, 500, sweeps=False)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", VARIANTS)
async def test_in_memory_for_long(name):
    for seed in range(SEEDS, SEEDS_IN_A_SOAK):
        await simulate(name, seed, 1000)


@pytest.mark.parametrize("bucket", ["none", "hour"])
@pytest.mark.parametrize("name", ["defaults", "impatient", "limits", "parallel", "groups_limits", "groups_aging"])
async def test_in_files(name, bucket, tmp_path):
    """The same in SQLite files, which are closed and opened again all the time; with many buckets, too."""
    clock = VirtualClock()
    options = msgspec.structs.replace(VARIANTS[name], bucket=bucket)

    def open_store() -> SqliteQueueStore:
        return SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)

    async def reopen(store):
        await store.close()
        if bucket == "hour":
            clock.now += 1_800_000
        return open_store()

    simulation = Simulation(open_store(), clock, options, random.Random(1), reopen=reopen, **world_of(name))
    await simulation.run(600)
    await simulation.store.close()


BREAKAGES = {
    "any token holds": (rules, "holds", lambda row, token: row is not None and row.status == "P"),
    "never overdue": (rules, "is_overdue", lambda row, now: False),
    "expires one ms early": (rules, "is_expired", lambda image, now: image.expires_s and now >= image.expires_s * 1000),
    "the successor is lost": (rules, "live_slot", lambda row, now: (None, 0)),
    "dead letters are lost": (engine.Engine, "_change", None),
}


@pytest.mark.parametrize("name", BREAKAGES)
async def test_the_simulation_finds_what_it_is_for(name, monkeypatch):
    """Each rule broken in turn is noticed."""
    target, attribute, broken = BREAKAGES[name]
    if broken is None:
        whole = engine.Engine._change

        def broken(self, row, change, now):
            whole(self, row, change._replace(dead=None), now)

    monkeypatch.setattr(target, attribute, broken)
    with pytest.raises(AssertionError):  # noqa: PT012
        for seed in range(SEEDS):
            for variant in ("impatient", "defaults"):
                await simulate(variant, seed, 1000)


def live_leases(order, group):
    rows = order._table.rows.values()
    return sum(row.status == "P" and row.image.group == group and row.deadline_ms >= order._now for row in rows)


def choose_without_a_turn(order, group):
    order._rooms[group] -= 1


def choose_without_room(order, group):
    order._turns[group] = order._next_turn
    order._next_turn += 1


def shifted(ms):
    whole = MemoryTable.group_starts
    return lambda table, group, since: whole(table, group, since + ms)


GROUP_BREAKAGES = {
    "the turn stays within a claim": (ClaimOrder, "_choose", choose_without_a_turn),
    "the turn is forgotten after a claim": (MemoryTable, "add_turns", lambda table, groups: None),
    "the room stays within a claim": (ClaimOrder, "_choose", choose_without_room),
    "overdue leases do not count": (ClaimOrder, "in_flight", live_leases),
    "starts do not count": (MemoryTable, "add_group_starts", lambda table, now, counts, since: None),
    "the window is a ms too short": (MemoryTable, "group_starts", shifted(1)),
    "the window is a ms too long": (MemoryTable, "group_starts", shifted(-1)),
    "a blocked group says no moment": (ClaimOrder, "window_ends", lambda order, group: None),
    "a blocked group says a late moment": (
        ClaimOrder,
        "window_ends",
        lambda order, group: order._now + 5000,
    ),
}


@pytest.mark.parametrize("name", GROUP_BREAKAGES)
async def test_the_simulation_finds_what_is_wrong_with_groups(name, monkeypatch):
    target, attribute, broken = GROUP_BREAKAGES[name]
    monkeypatch.setattr(target, attribute, broken)
    with pytest.raises(AssertionError):  # noqa: PT012
        for seed in range(SEEDS):
            for variant in ("groups", "groups_merge", "groups_limits", "groups_aging"):
                await simulate(variant, seed, 500, sweeps=seed % 2 == 0)


def some_packet(source: random.Random, number: int, now: int) -> Packet:
    """Some come late or from a clock that is ahead, some expire soon; a third of the smaller keys share a hash."""
    at = now + source.choice([0, 0, 0, -500, 3_600_000])
    process_ms, expires_s = source.choice([None, at + 300]), source.choice([0, 0, now // 1000 + 1])
    key, alike = encode_key(number), encode_key(number % 40 if number < 60 else number)
    return Packet(key, hash_key(alike), b"t%d" % at, source.choice([20, 128]), at, process_ms, expires_s)


def some_operations(source: random.Random, now: int, handles: list[Handle]) -> list:
    """Runs of the same kind, as they come from many tasks at once; some handles are old, some come twice."""
    found: list = []
    for _ in range(source.randrange(1, 5)):
        kind, count = source.choice("PPDDCFR"), source.randrange(1, 30)
        if kind == "P":
            most = source.choice([60, 60, 1_000_000])  # keys that meet, or new ones only
            found += [Put(some_packet(source, source.randrange(most), now)) for _ in range(count)]
        elif kind == "C":
            found.append(Claim("w", count))
        else:
            make = {"D": Done, "F": Fail, "R": Release}[kind]
            found += [make(source.choice(handles[-40:])) for _ in range(count if kind == "D" else 1)]
    return found


@pytest.mark.parametrize("bucket", ["none", "hour"])
@pytest.mark.parametrize("name", ["defaults", "no_merge", "parallel", "reject", "late", "limits", "backlog"])
async def test_what_comes_together_is_done_as_if_one_by_one(name, bucket, tmp_path):
    """Operations that share a transaction, some of them written in one go, against a store that knows no groups."""
    source, clock = random.Random(f"{name} {bucket}"), VirtualClock()
    options = make_options(**FAST, backlog="1s") if name == "backlog" else VARIANTS[name]
    declaration = Declaration("jobs", msgspec.structs.replace(options, bucket=bucket))
    alone = MemoryQueueStore(clock)
    together = SqliteQueueStore(tmp_path, synchronous="OFF", clock=clock)
    files = together._open_files(patient=True)  # one thread's, as entry ids come from its block
    try:
        for store in (alone, together):
            await store.declare(declaration)
        handles = [Handle(1, 1)]
        for _ in range(40):
            clock.now += source.choice([0, 1, 400, 900, 1_500, 1_900_000])
            operations = some_operations(source, clock.now, handles)
            expected = [await alone.execute("jobs", operation) for operation in operations]
            assert together._work(files, "jobs", operations) == expected
            leases = [lease for answer in expected if isinstance(answer, list) for lease in answer]
            handles += [Handle(lease.row.entry, lease.row.token) for lease in leases]
            for look in (Peek(1000), AskStats(), ListFlags()):
                assert await together.execute("jobs", look) == await alone.execute("jobs", look)
        assert together.counted("jobs") == alone.counted("jobs")
    finally:
        files.close()
        await together.close()
