"""The engine against the oracle: every short history of one key, and histories that Hypothesis makes and shrinks."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.config.queue_options import QueueSettings, Rate
from everlog.queues.engine import Engine
from everlog.queues.keys import encode_key, hash_key
from everlog.queues.memory import MemoryQueueStore, MemoryTable
from everlog.queues.operations import (
    AskDue,
    AskHead,
    Cancel,
    Claim,
    Done,
    Fail,
    Get,
    Handle,
    Heartbeat,
    ListFlags,
    Pause,
    Put,
    Release,
    Sweep,
)
from everlog.queues.rows import Packet
from everlog.testing.queue_desk import VirtualClock
from tests.models.queue_oracle import Oracle
from tests.models.queue_simulation import Simulation, entry_facts, row_facts
from tests.queues.test_simulation import VARIANTS

NOW = 1_000_000_000
LEASE = 1000
KEY = encode_key("k")
EVENTS = ("put", "put expiring", "claim", "done", "old done", "fail", "give up", "release", "beat", "cancel", "wait")


class Pair:
    """An engine and an oracle that see the same history."""

    def __init__(self, settings: QueueSettings) -> None:
        self.engine = Engine(MemoryTable(), settings)
        self.oracle = Oracle(settings)
        self.now = NOW
        self.handles: list[Handle] = []
        self.entries: dict[Handle, Any] = {}
        self.sent = 0

    def play(self, event: str) -> None:
        self.now += 1
        if event == "wait":
            self.now += LEASE + 1
            self.both(Sweep())
        elif event.startswith("put"):
            self.sent += 1
            expires = (self.now + LEASE // 2) // 1000 + 1 if event == "put expiring" else 0
            packet = Packet(KEY, hash_key(KEY), b"%d" % self.sent, self.sent % 3, self.now, None, expires)
            answer, expected = self.both(Put(packet))
            assert answer.result == expected
        elif event == "claim":
            leases, expected = self.both(Claim("w", 2))
            assert [row_facts(lease.row) for lease in leases] == [entry_facts(row) for row in expected]
            for lease, row in zip(leases, expected, strict=True):
                handle = Handle(lease.row.entry, lease.row.token)
                assert handle not in self.entries
                self.handles.append(handle)
                self.entries[handle] = row
        elif event == "cancel":
            answer, expected = self.both(Cancel(KEY, hash_key(KEY)))
            assert answer == expected
        else:
            self.play_end(event)
        found = self.engine.apply(Get(KEY, hash_key(KEY)), self.now)
        assert sorted(map(row_facts, found)) == sorted(map(entry_facts, self.oracle.get(KEY, self.now)))
        assert len(self.engine.table._dead) == len(self.oracle.dead)

    def play_end(self, event: str) -> None:
        """Something that needs a handle: the newest one, or the oldest."""
        handle = Handle(99, 1) if not self.handles else self.handles[0 if event == "old done" else -1]
        kinds = {"done": Done, "old done": Done, "release": Release, "beat": Heartbeat}
        operation = kinds[event](handle) if event in kinds else Fail(handle, "no", 0, event == "fail")
        answer, expected = self.both(operation)
        if event == "beat":
            answer = answer.stop if answer.ack == "OK" else answer.ack
        assert answer == expected

    def both(self, operation) -> tuple[Any, Any]:
        handle = getattr(operation, "handle", None)
        entry = self.entries.get(handle)
        if entry is not None and (
            not any(row is entry for row in self.oracle.rows)
            or entry["status"] != "P"
            or entry["token"] != handle.token
        ):
            entry = None
        return self.engine.apply(operation, self.now), self.oracle.apply(operation, self.now, entry)


@pytest.mark.parametrize("on_busy", ["successor", "restart", "parallel"])
def test_every_history_of_four_events(on_busy):
    """A put, and then all 14,641 ways in which four events can follow it."""
    chosen = QueueSettings(processing_timeout_ms=LEASE, max_timeouts=2, on_busy=on_busy)
    for history in itertools.product(EVENTS, repeat=4 if on_busy == "successor" else 3):
        pair = Pair(chosen)
        try:
            for event in ("put", *history):
                pair.play(event)
        except AssertionError as error:
            raise AssertionError(f"{history}: {error}") from error


@pytest.mark.parametrize("opening", [("claim", "put"), ("claim", "put", "cancel"), ("claim", "put expiring", "wait")])
def test_every_history_behind_a_busy_key(opening):
    """The same where a successor waits already."""
    chosen = QueueSettings(processing_timeout_ms=LEASE, max_timeouts=2)
    for history in itertools.product(EVENTS, repeat=3):
        pair = Pair(chosen)
        for event in ("put", *opening, *history):
            pair.play(event)


@settings(max_examples=60)
@given(st.sampled_from(sorted(VARIANTS)), st.randoms(use_true_random=False))
def test_any_history(name, chance):
    """As the simulation, with choices that Hypothesis makes: a failure is shrunk to a short history."""

    async def run() -> None:
        clock = VirtualClock()
        await Simulation(MemoryQueueStore(clock), clock, VARIANTS[name], chance).run(40)

    asyncio.run(run())


def put(engine: Engine, name: str, now: int, priority: int = 128) -> None:
    key = encode_key(name)
    engine.apply(Put(Packet(key, hash_key(key), b"n", priority, now)), now)


def test_the_window_of_a_rate_limit_to_the_millisecond():
    """Three starts in any second: the fourth is a second after the first, not earlier and not later."""
    engine = Engine(MemoryTable(), QueueSettings(rate_limit=Rate(3, 1000)))
    for number in range(9):
        put(engine, f"k{number}", NOW)

    def started(at: int) -> int:
        return len(engine.apply(Claim("w", 9), NOW + at))

    assert started(0) == 3
    assert (started(999), engine.apply(AskDue(9), NOW + 999)) == (0, (0, NOW + 1000))
    assert engine.apply(AskHead(), NOW + 999) is None
    assert engine.apply(AskDue(9), NOW + 1000).due == 3
    engine.apply(Claim("w", 1), NOW + 1000)
    assert engine.apply(AskDue(9), NOW + 1001).due == 2
    assert started(1500) == 2
    assert started(1999) == 0
    assert engine.apply(AskDue(9), NOW + 1999).next_ms == NOW + 2000
    assert started(2000) == 1
    assert (started(2499), started(2500)) == (0, 2)


def test_starts_outside_the_window_are_forgotten():
    engine = Engine(MemoryTable(), QueueSettings(rate_limit=Rate(3, 1000)))
    for number in range(300):
        put(engine, f"k{number}", NOW)
        engine.apply(Claim("w", 1), NOW + number * 1000)
    assert len(engine.table._starts) <= 3


def test_a_claim_and_its_head_agree():
    """The head is the place of what a claim takes first, also where that is overdue, slow or paused."""
    engine = Engine(MemoryTable(), QueueSettings(processing_timeout_ms=LEASE, slow_threshold=200))
    assert engine.apply(AskHead(), NOW) is None
    put(engine, "slow", NOW, 200)
    put(engine, "b", NOW, 7)
    put(engine, "a", NOW, 5)
    head = engine.apply(AskHead(), NOW)
    (lease,) = engine.apply(Claim("w", 1), NOW)
    assert (head, lease.row.image.priority) == (lease.row.order, 5)
    later = NOW + LEASE + 1
    assert engine.apply(AskHead(), later)[0] == 5
    engine.apply(Pause(True), later)
    assert engine.apply(AskHead(), later) is None
    engine.apply(Pause(False), later)
    for _ in range(2):
        (lease,) = engine.apply(Claim("w", 1), later)
        engine.apply(Done(Handle(lease.row.entry, lease.row.token)), later)
    assert engine.apply(AskHead(fast_only=True), later) is None
    assert engine.apply(AskHead(), later)[0] == 200


def test_a_backlog_raises_a_flag():
    """A job that is due for longer than `backlog` is worth a flag, with claims or without, once in a minute."""
    engine = Engine(MemoryTable(), QueueSettings(backlog_ms=10_000))
    put(engine, "a", NOW)
    put(engine, "b", NOW + 10_000)
    assert engine.apply(ListFlags(), NOW + 10_000) == []
    put(engine, "c", NOW + 10_001)
    (flag,) = engine.apply(ListFlags(), NOW + 10_001)
    assert (flag.reason, flag.count, flag.key) == ("backlog", 1, encode_key("a"))
    assert [one.reason for one in engine.raised] == ["backlog"]
    put(engine, "d", NOW + 60_000)
    assert engine.apply(ListFlags(), NOW + 60_000)[0].count == 1
    engine.apply(Claim("w", 1), NOW + 90_000)
    assert engine.apply(ListFlags(), NOW + 90_000)[0].count == 2
    assert len(engine.raised) == 1  # it was open already


def test_a_backlog_is_seen_among_puts_that_come_together():
    engine = Engine(MemoryTable(), QueueSettings(backlog_ms=10_000, merge=False))
    put(engine, "a", NOW)
    keys = [encode_key(name) for name in "bcd"]
    engine.apply_all([Put(Packet(key, hash_key(key), b"n", 128, NOW)) for key in keys], NOW + 10_001)
    assert [one.reason for one in engine.raised] == ["backlog"]
