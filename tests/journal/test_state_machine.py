"""Random histories of a real embedded folder against a naive model of dictionaries and lists.

After every step each journal reads as the model says, from the store and the tail together; pointers never move
back; and once everything is replicated the tables alone hold exactly the model's events, and a replay changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import everlog
from everlog import Conflict, Event, InvalidInput, JournalNotFound
from everlog.core.values import MAX_SEQ_NR
from everlog.testing.replication import replicate
from tests.support import ManualClock, examples, small_config

IDS = ("a", "b", "c")  # two of them share a partition
SLOTS = 3
PAYLOADS = st.sampled_from(["text", "", {"k": [1, None]}, b"\x00\xff", b"", None, 17])

ids = st.sampled_from(IDS)
events = st.lists(PAYLOADS, min_size=1, max_size=4)


@dataclass
class Life:
    """A journal as one would write it down."""

    seq_nr: int = 0
    events: dict[int, object] = field(default_factory=dict)
    snapshots: dict[int, tuple[int, object]] = field(default_factory=dict)


class Journals(RuleBasedStateMachine):
    """Every rule does one thing to the folder and the same to the model."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="everlog-test-"))
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.model: dict[str, Life] = {}
        self.token: everlog.Position | None = None
        self.pointers: dict[int, int] = {}
        self.connect()

    def connect(self) -> None:
        config = small_config(self.folder, max_snapshots=SLOTS)
        self.log = everlog.connect(config, clock=self.clock)
        self.run(self.log.__aenter__())
        self.orders = self.log.journal("orders")

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.run(self.log.close())
            self.run(self.loop.shutdown_asyncgens())
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)

    async def read(self, journal_id: str, **how) -> list[tuple[int, object]]:
        return [(event.seq_nr, event.payload) async for event in self.orders.read(journal_id, **how)]

    # Writing

    def append_to_model(self, journal_id: str, numbered: list[tuple[int, object]]) -> None:
        life = self.model.setdefault(journal_id, Life())
        life.events.update(numbered)
        life.seq_nr = numbered[-1][0]

    def seq_nr(self, journal_id: str) -> int:
        return self.model[journal_id].seq_nr if journal_id in self.model else 0

    @rule(journal_id=ids, payloads=events)
    def append(self, journal_id, payloads) -> None:
        first = self.seq_nr(journal_id) + 1
        self.token = self.run(self.orders.append(journal_id, [Event(payload) for payload in payloads]))
        assert self.token.range == (first, first + len(payloads) - 1)
        self.append_to_model(journal_id, list(enumerate(payloads, first)))

    @rule(journal_id=ids, payloads=events, off=st.sampled_from([0, 0, -1, 1, 5]))
    def append_expecting(self, journal_id, payloads, off) -> None:
        seq_nr = self.seq_nr(journal_id)
        expected = max(0, seq_nr + off)
        appending = self.orders.append(journal_id, [Event(payload) for payload in payloads], expected=expected)
        if expected != seq_nr:
            with pytest.raises(Conflict) as caught:
                self.run(appending)
            assert (caught.value.expected, caught.value.actual) == (expected, seq_nr)
            return
        self.token = self.run(appending)
        self.append_to_model(journal_id, list(enumerate(payloads, seq_nr + 1)))

    @rule(
        journal_id=ids,
        payloads=events,
        start=st.integers(-2, 4),
        step=st.integers(1, 4),
        verdict=st.booleans(),
    )
    def append_numbered(self, journal_id, payloads, start, step, verdict) -> None:
        """Explicit seqNrs, with gaps, some of which fork. Without a verdict the loser is lost silently."""
        seq_nr = self.seq_nr(journal_id)
        first = max(1, seq_nr + start)
        numbered = [(first + at * step, payload) for at, payload in enumerate(payloads)]
        made = [Event(payload, seq_nr=number) for number, payload in numbered]
        appending = self.orders.append(journal_id, made, verdict=verdict)
        if first <= seq_nr and verdict:
            with pytest.raises(Conflict):
                self.run(appending)
            return
        self.token = self.run(appending)
        if first > seq_nr:
            self.append_to_model(journal_id, numbered)

    @rule(journal_id=ids, payloads=events, stale=st.booleans())
    def two_append_at_once(self, journal_id, payloads, stale) -> None:
        """Two processes expect the same: exactly one of them wins."""
        seq_nr = self.seq_nr(journal_id)

        async def race() -> list[object]:
            async with everlog.connect(self.log.config, clock=self.clock) as other:
                second = other.journal("orders")
                if stale:
                    await second.pointer(journal_id)
                return await asyncio.gather(
                    self.orders.append(journal_id, [Event(p) for p in payloads], expected=seq_nr),
                    second.append(journal_id, [Event("other")], expected=seq_nr),
                    return_exceptions=True,
                )

        mine, others = self.run(race())
        assert [isinstance(result, Conflict) for result in (mine, others)].count(True) == 1, (mine, others)
        won = list(enumerate(["other"] if isinstance(mine, Conflict) else payloads, seq_nr + 1))
        self.append_to_model(journal_id, won)

    @rule(journal_id=ids, to=st.integers(1, 20))
    def delete(self, journal_id, to) -> None:
        position = self.run(self.orders.delete(journal_id, to=to))
        assert (position is None) == (journal_id not in self.model)
        if position is not None:
            self.token = position
            life = self.model[journal_id]
            life.events = {number: payload for number, payload in life.events.items() if number > to}

    @rule(journal_id=ids)
    def purge(self, journal_id) -> None:
        self.token = self.run(self.orders.purge(journal_id))
        self.model.pop(journal_id, None)

    @rule(journal_id=ids)
    def mark(self, journal_id) -> None:
        self.token = self.run(self.orders.mark(journal_id))

    @rule(seconds=st.integers(0, 5))
    def time_passes(self, seconds) -> None:
        self.clock.advance(seconds)

    # Snapshots

    @rule(journal_id=ids, seq_nr=st.integers(1, 12), payload=PAYLOADS)
    def save_snapshot(self, journal_id, seq_nr, payload) -> None:
        saving = self.orders.snapshots.save(journal_id, seq_nr=seq_nr, payload=payload)
        if seq_nr > self.seq_nr(journal_id):
            with pytest.raises((JournalNotFound, InvalidInput)):
                self.run(saving)
            return
        self.run(saving)
        kept = self.model[journal_id].snapshots
        if seq_nr not in kept and len(kept) == SLOTS:
            del kept[min(kept, key=lambda number: (number, kept[number][0]))]
        kept[seq_nr] = (self.clock.now_ms(), payload)

    @rule(journal_id=ids)
    def recover(self, journal_id) -> None:
        life = self.model.get(journal_id, Life())

        async def recover():
            found = await self.orders.recover(journal_id)
            return found, [event.seq_nr async for event in found.events]

        found, numbers = self.run(recover())
        newest = max(life.snapshots, default=0)
        assert found.seq_nr == life.seq_nr
        assert (0 if found.snapshot is None else found.snapshot.seq_nr) == newest
        assert numbers == [number for number in sorted(life.events) if number > newest]

    # The pipeline

    @rule(batch=st.integers(1, 5), batches=st.integers(1, 3))
    def replicate_some(self, batch, batches) -> None:
        self.run(replicate(self.log, batch=batch, batches=batches))

    @rule()
    def replicate_all(self) -> None:
        self.run(replicate(self.log))

    @rule(batch=st.integers(1, 5))
    def crash_before_publishing(self, batch) -> None:
        self.run(replicate(self.log, batch=batch, batches=1, publish=False))

    @rule(start=st.integers(0, 10), batch=st.integers(1, 5), publish=st.booleans())
    def replay(self, start, batch, publish) -> None:
        """A zombie, or a second pipeline, applies old records again."""
        self.run(replicate(self.log, start=start, batch=batch, batches=2, publish=publish))

    @rule()
    def restart(self) -> None:
        """All that was remembered in memory is gone."""
        self.run(self.log.close())
        self.connect()

    # Reading

    @rule(
        journal_id=ids,
        first=st.integers(1, 14),
        length=st.integers(0, 8) | st.just(MAX_SEQ_NR - 20),
        limit=st.none() | st.integers(1, 6),
        reverse=st.booleans(),
        after=st.booleans(),
    )
    def read_some(self, journal_id, first, length, limit, reverse, after) -> None:
        token = self.token if after else None
        how = {"from_seq": first, "to_seq": first + length, "limit": limit, "reverse": reverse, "after": token}
        found = self.run(self.read(journal_id, **how))
        kept = self.model.get(journal_id, Life()).events
        wanted = [(n, kept[n]) for n in sorted(kept, reverse=reverse) if first <= n <= first + length]
        assert found == wanted[:limit]

    @invariant()
    def journals_read_as_the_model_says(self) -> None:
        for journal_id in IDS:
            life = self.model.get(journal_id)
            found = self.run(self.read(journal_id))
            assert found == ([] if life is None else sorted(life.events.items(), key=lambda item: item[0]))
            assert self.run(self.orders.pointer(journal_id)) == (None if life is None else life.seq_nr)

    @invariant()
    def snapshots_are_those_of_the_life(self) -> None:
        for journal_id in IDS:
            kept = self.model.get(journal_id, Life()).snapshots
            newest = self.run(self.orders.snapshots.load(journal_id))
            if not kept:
                assert newest is None
            else:
                assert newest is not None
                assert (newest.seq_nr, newest.payload) == (max(kept), kept[max(kept)][1])

    @invariant()
    def keys_are_those_that_exist(self) -> None:
        async def keys() -> list[str]:
            return [key async for key in self.orders.keys()]  # noqa: SIM118

        assert sorted(self.run(keys())) == sorted(self.model)

    @invariant()
    def pointers_never_move_back(self) -> None:
        now = self.run(self.log.parts.store.pointers("journal-orders"))
        assert all(now[partition] >= offset for partition, offset in self.pointers.items())
        self.pointers = now

    @precondition(lambda self: self.model or self.token)
    @rule()
    def tables_alone_hold_the_same(self) -> None:
        """Everything replicated: the rows are exactly the model's events, and a full replay changes no table."""
        self.run(replicate(self.log))
        tables = self.tables()
        stored = {(row[0], row[3]) for row in tables["journal"]}
        assert stored == {(key, number) for key, life in self.model.items() for number in life.events}
        assert len(tables["journal"]) == len(stored)
        assert {(row[0], row[3]) for row in tables["snapshot_buffer"]} <= {
            (key, number) for key, life in self.model.items() for number in life.snapshots
        }
        self.run(replicate(self.log, start=0, batch=2))
        again = self.tables()
        assert again == tables

    def tables(self) -> dict[str, list[tuple[object, ...]]]:
        connection = sqlite3.connect(self.folder / "store.db")
        try:
            names = ("journal", "metajournal", "pointer2", "snapshot_buffer", "rejected", "quarantine", "verdict")
            return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3, 4").fetchall() for name in names}
        finally:
            connection.close()


TestJournals = Journals.TestCase
TestJournals.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestJournals = pytest.mark.case("kafka-journal", 26, 30, 35, 40, 42, 43)(TestJournals)
