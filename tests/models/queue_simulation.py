"""Clients and workers of one queue in virtual time, under a seeded schedule: crashes, lost replies, clock jumps.

After every step the store is compared with the oracle, and the invariants of queues are checked from outside: what
was acknowledged, which leases were given.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from everlog.config.queue_options import QueueOptions
from everlog.queues.declaration import Declaration
from everlog.queues.keys import encode_key, hash_key
from everlog.queues.operations import (
    AskDue,
    Cancel,
    Claim,
    Done,
    Fail,
    Get,
    Handle,
    Heartbeat,
    JobLease,
    ListDead,
    ListFlags,
    Operation,
    Pause,
    Peek,
    Put,
    Release,
    Sweep,
)
from everlog.queues.port import QueueStore
from everlog.queues.rows import JobRow, Packet
from everlog.testing.queue_desk import VirtualClock
from tests.models.queue_oracle import Entry, Oracle

NAME = "jobs"
KEYS = [encode_key(f"k{number}") for number in range(6)]
Reopen = Callable[[QueueStore], Awaitable[QueueStore]]


def row_facts(row: JobRow) -> tuple[Any, ...]:
    image = row.image
    return (
        row.key,
        row.status,
        row.token,
        image.priority,
        image.process_ms,
        image.inserted_ms,
        image.expires_s,
        image.data,
        image.group,
        row.start_ms,
        row.timeouts,
        row.lifetime,
        row.stop,
        None if row.slot is None else (row.slot.priority, row.slot.process_ms, row.slot.data),
    )


def entry_facts(row: Entry) -> tuple[Any, ...]:
    slot = row["slot"]
    return (
        row["key"],
        row["status"],
        row["token"],
        row["priority"],
        row["process"],
        row["inserted"],
        row["expires"],
        row["data"],
        row["group"],
        row["start"],
        row["timeouts"],
        row["lifetime"],
        row["stop"],
        None if slot is None else (slot["priority"], slot["process"], slot["data"]),
    )


class Simulation:
    """One run. `reopen` closes a store and opens it again, as a crash of the whole process would.

    `groups`: those that jobs may have, "" for none. `sweeps`: whether claims of the store turn over what is overdue.
    `pace`: milliseconds between two steps; a few round ones meet the ends of windows.
    """

    def __init__(
        self,
        store: QueueStore,
        clock: VirtualClock,
        options: QueueOptions,
        chance: random.Random,
        reopen: Reopen | None = None,
        groups: Sequence[str] = ("",),
        sweeps: bool = True,
        pace: Sequence[int] = range(60),
    ) -> None:
        self.store = store
        self.clock = clock
        self.options = options
        self.chance = chance
        self.oracle = Oracle(options.settings, sweeps=sweeps)
        self.reopen = reopen
        self.groups = groups
        self.pace = pace
        self.steps = 0
        self.latest = 0
        self.held: list[JobLease] = []  # leases that some worker believes it has, alive or not
        self.by_handle: dict[Handle, Entry] = {}
        self.issued: set[Handle] = set()
        # I4: work that was accepted and not yet covered by an attempt that started later, by key.
        self.uncovered: dict[bytes, int] = {}
        self.sent = 0

    async def run(self, steps: int) -> None:
        await self.store.declare(Declaration(NAME, self.options))
        for self.steps in range(steps):
            await self.step()
        await self.drain()

    async def step(self) -> None:
        chance = self.chance.random()
        self.latest = max(self.latest, self.clock.now)
        if chance < 0.05:
            self.clock.now += self.chance.choice([1, 50, 999, 1000, 1001, 20_000, -7000])
        elif chance < 0.06 and self.reopen is not None:
            self.store = await self.reopen(self.store)
        elif chance < 0.08 and self.held:
            self.held.pop(self.chance.randrange(len(self.held)))  # a worker dies and says nothing
        else:
            self.clock.now += self.chance.choice(self.pace)
            await self.act(self.choose())
            await self.compare()
            if self.steps % 4 == 0:
                await self.compare_due()

    def choose(self) -> Operation:
        chance = self.chance.random()
        key = self.chance.choice(KEYS)
        if chance < 0.40:
            return Put(self.packet(key))
        if chance < 0.62:
            limit, lease = self.chance.choice([1, 1, 2, 5]), self.chance.choice([None, None, 100])
            return Claim(f"w{self.chance.randrange(3)}", limit, lease, self.chance.random() < 0.2)
        if chance < 0.94:
            handle = self.chance.choice([*(self.handle(lease) for lease in self.held), Handle(1, 1)])
            kinds = [Heartbeat, Done, Done, Done, Release]
            kind = self.chance.choice([*kinds, Fail])
            if kind is Fail:
                return Fail(handle, "no", self.chance.choice([None, 0, 40]), self.chance.random() < 0.9)
            if kind is Release and handle.entry % 4 == 0:  # a kind that the worker does not know
                return Release(handle, (0, 40, 700)[handle.token % 3], "unknown_kind")
            return kind(handle)
        if chance < 0.96:
            return Cancel(key, hash_key(key), "why not")
        return Sweep() if chance < 0.98 else Pause(self.chance.random() < 0.3)

    def packet(self, key: bytes) -> Packet:
        self.sent += 1
        now = self.clock.now
        return Packet(
            key,
            hash_key(key),
            str(self.sent).encode(),
            self.chance.choice([0, 20, 128, 200, 255]),
            now + self.chance.choice([0, 0, 0, -100, -1, 4000, 6000]),
            self.chance.choice([None, None, now - 10, now + 30, now + 500]),
            self.chance.choice([0, 0, 0, now // 1000 + 1, now // 1000 + 30]),
            group=self.chance.choice(self.groups) if len(self.groups) > 1 else "",
        )

    def handle(self, lease: JobLease) -> Handle:
        return Handle(lease.row.entry, lease.row.token)

    async def act(self, operation: Operation) -> None:
        """Do it for real and in the oracle; some answers never reach whoever asked."""
        now = self.clock.now
        answer: Any = await self.store.execute(NAME, operation)
        handle = getattr(operation, "handle", None)
        entry = self.by_handle.get(handle) if handle is not None else None
        if entry is not None and (
            entry not in self.oracle.rows or entry["status"] != "P" or entry["token"] != handle.token
        ):
            entry = None
        expected = self.oracle.apply(operation, now, entry)
        lost = self.chance.random() < 0.05
        if isinstance(operation, Put):
            assert answer.result == expected, self.say(operation, answer, expected)
            if expected not in ("REJECTED", "DROPPED", "IGNORED_LATE"):
                self.uncovered[operation.packet.key] = self.steps
        elif isinstance(operation, Claim):
            self.check_claim(answer, expected, now)
            if not lost:
                self.held += answer
        elif isinstance(operation, Heartbeat):
            assert (answer.stop if answer.ack == "OK" else answer.ack) == expected, self.say(
                operation, answer, expected
            )
        elif isinstance(operation, Done | Fail | Release):
            assert answer == expected, self.say(operation, answer, expected)
            if not lost:
                self.held = [lease for lease in self.held if self.handle(lease) != handle]
        elif isinstance(operation, Cancel):
            assert answer == expected, self.say(operation, answer, expected)

    def check_claim(self, leases: list[JobLease], expected: list[Entry], now: int) -> None:
        """I2: no handle twice. I6, I7: the first ones in order, never early, never expired."""
        found = [row_facts(lease.row) for lease in leases]
        assert found == [entry_facts(row) for row in expected], self.say("claim", found, expected)
        for lease, row in zip(leases, expected, strict=True):
            handle = self.handle(lease)
            assert handle not in self.issued, self.say("issued twice", handle, None)
            self.issued.add(handle)
            self.by_handle[handle] = row
            assert lease.row.image.process_ms <= now
            self.uncovered.pop(lease.row.key, None)
            assert lease.deadline_ms == now + lease.row.lease_ms

    async def compare(self) -> None:
        """The store holds what the oracle holds; I1: one row per key, and so one live lease."""
        now = self.clock.now
        merging = self.options.merge and self.options.on_busy != "parallel"
        seen = self.oracle.seen(now)  # what is overdue is shown as it will wait
        for key in KEYS:
            rows: Any = await self.store.execute(NAME, Get(key, hash_key(key)))
            expected = seen.get(key, now)
            assert sorted(map(row_facts, rows)) == sorted(map(entry_facts, expected)), self.say("get", rows, expected)
            assert not merging or len(rows) <= 1
        peeked: Any = await self.store.execute(NAME, Peek(100))
        waiting = seen.waiting(now)
        assert [row_facts(row) for row in peeked] == [entry_facts(row) for row in waiting[:100]]
        letters: Any = await self.store.execute(NAME, ListDead(1000))
        assert sorted((letter.image.data, letter.cause) for letter in letters) == sorted(
            (letter["data"], letter["cause"]) for letter in self.oracle.dead[-1000:]
        )
        flags: Any = await self.store.execute(NAME, ListFlags())
        assert {flag.reason: flag.count for flag in flags} == self.oracle.flags

    async def compare_due(self) -> None:
        """Listeners are told as many as a claim would get, and nothing starts before the moment that they are told.

        What becomes of an overdue row is known when it is swept: it may count too much, never too little.
        """
        now = self.clock.now
        answer: Any = await self.store.execute(NAME, AskDue(100))
        late = any(self.oracle.overdue(row, now) for row in self.oracle.rows)
        possible = len(self.oracle.copy().claim("w", 100, None, False, now))
        assert answer.due >= min(1, possible) if late else answer.due == possible, self.say("due", answer, possible)
        if not answer.due and now >= self.latest:  # a clock that went back is told no moment that it has seen
            before = now + 10_000_000 if answer.next_ms is None else answer.next_ms - 1
            earlier = self.oracle.copy().claim("w", 100, None, False, before)
            assert not earlier, self.say("next", answer, earlier)

    async def drain(self) -> None:
        """I3: in the end all that was accepted was run later, or expired, was cancelled or is a dead letter."""
        await self.act(Pause(False))
        while self.oracle.rows:
            self.clock.now += 100_000
            await self.act(Sweep())
            for _ in range(20):
                answer: Any = await self.store.execute(NAME, Claim("last", 100))
                self.check_claim(answer, self.oracle.apply(Claim("last", 100), self.clock.now), self.clock.now)
                for lease in answer:
                    await self.act(Done(self.handle(lease)))
        await self.compare()

    def say(self, what: object, found: object, expected: object) -> str:
        return f"step {self.steps}: {what}: {found} instead of {expected}"
