"""Queues under random schedules, compared with an oracle after every step; a failure names its seed."""

from __future__ import annotations

import random

import pytest

from everlog.queues import engine, rules
from everlog.queues.options import QueueOptions, make_options
from everlog.queues.sqlite.store import SqliteQueueStore
from everlog.queues.store import MemoryStore
from everlog.testing.queue_desk import VirtualClock
from tests.unit.models.queue_simulation import Simulation

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
}


async def simulate(options: QueueOptions, seed: int, steps: int) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    await Simulation(store, clock, options, random.Random(seed)).run(steps)


@pytest.mark.parametrize("name", VARIANTS)
async def test_in_memory(name):
    """Ten thousand steps of each kind of queue."""
    for seed in range(10):
        await simulate(VARIANTS[name], seed, 1000)


@pytest.mark.parametrize("bucket", ["none", "hour"])
@pytest.mark.parametrize("name", ["defaults", "impatient", "limits", "parallel"])
async def test_in_files(name, bucket, tmp_path):
    """The same in SQLite files, which are closed and opened again all the time; with many buckets, too."""
    import msgspec

    clock = VirtualClock()
    options = msgspec.structs.replace(VARIANTS[name], bucket=bucket)

    def open_store() -> SqliteQueueStore:
        return SqliteQueueStore(tmp_path, synchronous="NORMAL", clock=clock)

    async def reopen(store):
        await store.close()
        if bucket == "hour":
            clock.now += 1_800_000
        return open_store()

    simulation = Simulation(open_store(), clock, options, random.Random(1), reopen=reopen)
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
        for seed in range(20):
            await simulate(VARIANTS["impatient"], seed, 1000)
