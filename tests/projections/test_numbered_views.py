"""Exactly-once on Cassandra for a source whose events do not come by their offsets, as late ones do not.

After a crash, what was not stored comes again in another order; only each journal's numbers ascend.
"""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("acsylla")

from everlog.core.resume_point import ResumePoint
from everlog.core.timeuuid import start_of
from everlog.errors import OwnershipLost
from everlog.projections.cassandra.marks import Commands, PartitionMark, StoredOffset, read_mark
from everlog.projections.cassandra.views import CassandraTransaction, ViewTables
from everlog.projections.offsets import JournalNumber, encode
from everlog.projections.port import ViewChanged
from everlog.runtime.lease import Lease
from tests.projections.test_cassandra_views import GET, PUT, Crash, Node, outcomes_given

START = start_of(1_700_000_000_000).uuid
Written = tuple[str, int, tuple[str, ...]]


def place(seconds: int) -> uuid.UUID:
    return start_of(1_700_000_000_000 + seconds * 1000).uuid


def event_of(journal: str, number: int) -> JournalNumber:
    return JournalNumber(journal, number, start_of(1_700_000_001_000 + number).uuid)


class Owners:
    """Owners that come and go; `done` is what the stored offset says of each journal."""

    def __init__(self, events: dict[str, list[tuple[str, ...]]], outcomes: list[str], seed: int) -> None:
        self.events = events
        self.node = Node(outcomes)
        self.done = dict.fromkeys(events, 0)
        self.epoch = 0
        self.chance = random.Random(seed)

    def _remaining(self) -> list[Written]:
        left = {journal: list(enumerate(groups, 1))[self.done[journal] :] for journal, groups in self.events.items()}
        order: list[Written] = []
        while journals := [journal for journal, rest in left.items() if rest]:
            journal = self.chance.choice(journals)
            number, groups = left[journal].pop(0)
            order.append((journal, number, groups))
        return order

    def _stored(self) -> StoredOffset:
        return StoredOffset(*encode(ResumePoint(START, self.done)))

    async def run(self, window: int) -> None:
        """One owner, from the stored offset to the end."""
        self.epoch += 1
        tables, lease = ViewTables(self.node), Lease("p", "tag", "me", self.epoch)
        rest = self._remaining()
        while rest:
            running = CassandraTransaction(tables, lease, Commands(), {}, self._stored())
            for journal, number, groups in rest[:window]:
                running.savepoint(None, event_of(journal, number))
                for group in groups:
                    rows = await running.view.fetch(GET, group, "n")
                    name = f"{journal}{number}"
                    await running.view.execute(PUT, f"{rows[0][0]}|{name}" if rows else name, group, "n")
                running.keep()
            assert not running.full
            await running.commit()
            self.done |= {journal: number for journal, number, _ in rest[:window]}
            rest = rest[window:]

    def check(self) -> None:
        for group in "abc":
            found = [name for name in self.node.rows.get((group, "n"), "").split("|") if name]
            mine = [
                f"{journal}{number}"
                for journal, written in self.events.items()
                for number, groups in enumerate(written, 1)
                if group in groups
            ]
            assert sorted(found) == sorted(mine)
            for journal in self.events:
                own = [int(name[1:]) for name in found if name[0] == journal]
                assert own == sorted(own)


groups_given = st.sets(st.sampled_from("abc"), max_size=2).map(sorted).map(tuple)
journals_given = st.fixed_dictionaries({journal: st.lists(groups_given, max_size=5) for journal in "xyz"})


@given(journals_given, outcomes_given, st.integers(1, 4), st.integers(0, 1000))
def test_each_partition_has_each_event_once_whatever_dies_and_in_whatever_order_they_come(
    events, outcomes, window, seed
):
    async def run() -> None:
        owners = Owners(events, list(outcomes), seed)
        while True:
            try:
                await owners.run(window)
                break
            except (Crash, ViewChanged):
                continue
        owners.check()

    asyncio.run(run())


def test_a_mark_remembers_no_more_journals_than_can_come_again():
    async def run() -> None:
        owners = Owners({f"{chr(97 + number)}": [("a",)] * 3 for number in range(26)}, [], 1)
        await owners.run(5)
        owners.check()
        mark = read_mark(owners.node.marks["a"])
        assert mark.nr == 78
        assert len(mark.journals["p:tag"].last) <= 5
        assert mark.at == {}

    asyncio.run(run())


def test_a_late_event_stays_known_as_long_as_its_transaction_may_be_repeated():
    """It lies behind the stored offset, which therefore seems to cover it; but it was written since."""
    late, later, last = (JournalNumber(*one) for one in (("p", 2, place(20)), ("q", 3, place(40)), ("q", 4, place(50))))
    stored = StoredOffset(str(place(30)), "TBU")
    mark = PartitionMark().noted("p:tag", late, 1, stored).noted("p:tag", later, 1, stored)
    assert mark.has("p:tag", late, 0)
    assert mark.has("p:tag", later, 0)
    mark = mark.noted("p:tag", last, 1, StoredOffset(str(place(40)), "TBU"))
    assert list(mark.journals["p:tag"].last) == ["q"]


def test_a_command_lets_events_count_again_and_a_stale_owner_is_refused():
    async def run() -> None:
        node = Node([])

        async def put(epoch: int, number: int, since: int = 0, journal: str = "x") -> None:
            lease = Lease("p", "tag", "me", epoch)
            running = CassandraTransaction(ViewTables(node), lease, Commands(own=since), {})
            running.savepoint(None, event_of(journal, number))
            await running.view.execute(PUT, f"{epoch}:{number}", "a", f"{journal}{number}")
            await running.commit()

        await put(1, 1)
        await put(1, 1, journal="y")
        await put(2, 1)
        assert node.rows["a", "x1"] == "1:1", "it is there already"
        await put(3, 1, since=3)
        await put(3, 1, since=3, journal="y")
        assert node.rows["a", "x1"] == node.rows["a", "y1"] == "3:1", "they were set back by a command"
        with pytest.raises(OwnershipLost):
            await put(2, 2)

    asyncio.run(run())
