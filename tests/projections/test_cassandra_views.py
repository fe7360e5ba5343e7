"""Exactly-once on Cassandra, against a double of its conditional batches: crashes, unknown outcomes, stale owners.

The double keeps partitions with a mark and rows, applies a batch as a whole or not at all, and may die before or after,
or not say which. The statements, the tables and the transactions are the real ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.errors import HandlerFailed, InvalidInput, OwnershipLost
from everlog.projections.offsets import SerializedOffset, is_ordered, is_reached

pytest.importorskip("acsylla")

from everlog.projections.cassandra.cql import read
from everlog.projections.cassandra.marks import (
    MAX_LETTERS,
    Commands,
    PartitionMark,
    read_mark,
    write_mark,
)
from everlog.projections.cassandra.views import MAX_STATEMENTS, CassandraTransaction, ViewTables
from everlog.projections.port import ProjectionDeadLetter, ViewChanged
from everlog.projections.save_window import OffsetProgress
from everlog.runtime.lease import Lease
from everlog.testing.projections import letter

GET = "SELECT text FROM words WHERE grp = ? AND word = ?"
SWEEP = "DELETE FROM words WHERE grp = ?"
PUT = "UPDATE words SET text = ? WHERE grp = ? AND word = ?"


class Crash(Exception):
    """The process dies here."""


class Node:
    """A node's session, and what it stores."""

    def __init__(self, outcomes: list[str]) -> None:
        self.config = SimpleNamespace(keyspace="k")
        self.marks: dict[str, str | None] = {}
        self.rows: dict[tuple[str, str], str] = {}
        self.outcomes = outcomes
        self.writes = 0

    async def fetch(self, cql, *values, serial=False):
        await asyncio.sleep(0)
        if "system_schema" in cql:
            return [
                ("grp", "partition_key", 0),
                ("word", "clustering", 0),
                ("text", "regular", -1),
                ("everlog_mark", "static", -1),
            ]
        if "everlog_mark" in cql:
            return [(self.marks[values[0]],)] if values[0] in self.marks else []
        found = self.rows.get(tuple(values))
        return [] if found is None else [(found,)]

    async def batch_if(self, statements):
        await asyncio.sleep(0)
        outcome = self.outcomes.pop() if self.outcomes else "done"
        if outcome == "dies before":
            raise Crash
        (_, (after, group, before)), *rows = statements
        applied = self.marks.get(group) == before
        if applied and outcome != "lost":
            self.writes += 1
            self.marks[group] = after
            assert len({(group, word) for _, (_, group, word) in rows}) == len(rows), "one time for all: no row twice"
            for _, (text, one, word) in rows:
                assert one == group, "a batch is of one partition"
                self.rows[one, word] = text
        if outcome == "dies after":
            raise Crash
        return None if outcome in ("lost", "unknown") else applied

    async def together(self, work):
        await asyncio.gather(*work)


class World:
    """The node, the stored offset with its epoch, and owners that come and go."""

    def __init__(
        self, events: list[tuple[str, ...]], outcomes: list[str], window: int, *, ordered: bool = True
    ) -> None:
        self.place = int if ordered else str  # of two texts nobody can tell which one comes first
        self.node = Node(outcomes)
        self.events = events
        self.window = window
        self.offset = 0
        self.epoch = 0

    def take_over(self) -> Lease:
        self.epoch += 1
        return Lease("p", "all", f"owner-{self.epoch}", self.epoch)

    async def run(self, lease: Lease, *, sleep: tuple[int, asyncio.Event, asyncio.Event] | None = None) -> None:
        """What an owner does: window by window, again if others were in the way. The offset comes last."""
        tables = ViewTables(self.node)
        while self.offset < len(self.events):
            if lease.epoch != self.epoch:
                raise OwnershipLost("p-all", lease.epoch)
            try:
                await self._window(tables, lease, sleep)
            except ViewChanged:
                continue

    async def _window(self, tables, lease, sleep) -> None:
        running = CassandraTransaction(tables, lease, Commands(), {})
        first = self.offset + 1
        last = min(self.offset + self.window, len(self.events))
        for offset in range(first, last + 1):
            if running.full:
                last = offset - 1
                break
            running.savepoint(self.place(offset))
            for group in self.events[offset - 1]:
                rows = await running.view.fetch(GET, group, "n")
                text = f"{rows[0][0]}|{offset}" if rows else str(offset)
                await running.view.execute(PUT, text, group, "n")
                await running.view.execute(PUT, str(offset), group, f"e{offset}")
            running.keep()
            if sleep is not None and offset == sleep[0]:
                sleep[1].set()
                await sleep[2].wait()
        await running.commit()
        running.save(OffsetProgress(self.place(last)))
        if lease.epoch != self.epoch:
            raise OwnershipLost("p-all", lease.epoch)
        self.offset = last

    def check(self) -> None:
        """Every partition has exactly its events, in their order."""
        for group in "abc":
            mine = [str(number) for number, groups in enumerate(self.events, 1) if group in groups]
            assert self.node.rows.get((group, "n"), "") == "|".join(mine)
            assert all(self.node.rows[group, f"e{number}"] == number for number in mine)


events_given = st.lists(st.sets(st.sampled_from("abc"), max_size=2).map(sorted).map(tuple), min_size=1, max_size=8)
outcomes_given = st.lists(st.sampled_from(["done", "dies before", "dies after", "lost", "unknown"]), max_size=8)


@given(events_given, outcomes_given, st.integers(1, 4), st.booleans())
def test_each_partition_has_each_event_once_whatever_dies(events, outcomes, window, ordered):
    """Owners that die at any write, or do not learn what became of it; the next one begins at the stored offset."""

    async def run() -> None:
        world = World(events, list(outcomes), window, ordered=ordered)
        while world.offset < len(events):
            try:
                await world.run(world.take_over())
            except Crash:
                continue
        world.check()

    asyncio.run(run())


@given(events_given, st.integers(1, 4), st.integers(1, 8), st.integers(0, 8), st.booleans())
def test_a_stale_owner_changes_nothing(events, window, sleeps_at, others, first_dies):
    """It sleeps in the middle of a window; others do some or all of the rest; then it goes on."""

    async def run() -> None:
        world = World(events, [], window)
        asleep, awake = asyncio.Event(), asyncio.Event()
        stale = asyncio.create_task(world.run(world.take_over(), sleep=(sleeps_at, asleep, awake)))
        waiting = asyncio.create_task(asleep.wait())
        await asyncio.wait({stale, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not stale.done():
            world.node.outcomes = ["dies after" if first_dies else "done", *["done"] * others]
            lease = world.take_over()
            successor = asyncio.create_task(world.run(lease))
            for _ in range(others * 5):
                await asyncio.sleep(0)
            awake.set()
            results = await asyncio.gather(stale, successor, return_exceptions=True)
            assert all(one is None or isinstance(one, OwnershipLost | Crash) for one in results), results
        world.node.outcomes = []
        await world.run(world.take_over())
        world.check()

    asyncio.run(run())


@given(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=2, max_size=3), st.lists(st.integers(0, 3), max_size=20))
def test_projections_that_share_a_partition_overwrite_nothing(window, counts, pauses):
    """They have the same epochs and the same process, and each adds to what it has read."""

    async def run() -> None:
        node, waits = Node([]), list(pauses)
        tables = ViewTables(node)

        async def add(name: str, count: int) -> None:
            done = 0
            while done < count:
                last = min(done + window, count)
                running = CassandraTransaction(tables, Lease(name, "all", "me", 1), Commands(), {})
                try:
                    for offset in range(done + 1, last + 1):
                        running.savepoint(offset)
                        rows = await running.view.fetch(GET, "a", "sum")
                        for _ in range(waits.pop() if waits else 0):
                            await asyncio.sleep(0)
                        await running.view.execute(PUT, str(int(rows[0][0]) + 1 if rows else 1), "a", "sum")
                        running.keep()
                    await running.commit()
                except ViewChanged:
                    continue
                done = last

        await asyncio.gather(*(add(f"p{number}", count) for number, count in enumerate(counts)))
        assert node.rows["a", "sum"] == str(sum(counts))

    asyncio.run(run())


def test_a_stale_owner_is_refused_where_its_successor_has_written():
    """Also with an event that its successor has not come to: a command may have set that one back."""

    async def run() -> None:
        node = Node([])
        tables = ViewTables(node)
        for epoch, offset in ((2, 5), (1, 9)):
            running = CassandraTransaction(tables, Lease("p", "all", "me", epoch), Commands(), {})
            running.savepoint(offset)
            await running.view.execute(PUT, str(offset), "a", "n")
            running.keep()
            if epoch == 2:
                await running.commit()
        with pytest.raises(OwnershipLost):
            await running.commit()
        assert node.rows["a", "n"] == "5"

    asyncio.run(run())


def test_a_replayed_letter_counts_once():
    """Its rows were stored, its removal was not: the second replay finds it, though its offset is long passed."""

    async def run() -> None:
        node = Node([])
        tables, lease = ViewTables(node), Lease("p", "all", "me", 1)

        async def add(offset: int, dead: ProjectionDeadLetter | None = None) -> None:
            running = CassandraTransaction(tables, lease, Commands(), {})
            if dead is None:
                running.savepoint(offset)
            rows = await running.view.fetch(GET, "a", "n")
            await running.view.execute(PUT, f"{rows[0][0]}|{offset}" if rows else str(offset), "a", "n")
            if dead is not None:
                running.forget(dead)
            await running.commit()

        for offset in (1, 2, 4):
            await add(offset)
        for _ in range(2):
            await add(3, letter("3"))
        await add(5)
        await add(3, letter("3.5"))
        assert node.rows["a", "n"] == "1|2|4|3|5|3"

    asyncio.run(run())


def test_an_error_that_a_handler_swallows_still_counts():
    async def run() -> None:
        node = Node([])
        tables = ViewTables(node)
        running = CassandraTransaction(tables, Lease("p", "all", "me", 1), Commands(), {})
        running.savepoint(1)
        await running.view.fetch(GET, "a", "n")
        await running.view.execute(PUT, "1", "a", "n")
        running.keep()
        node.marks["a"] = write_mark(PartitionMark(nr=9))  # somebody else
        running.savepoint(2)
        with contextlib.suppress(ViewChanged):
            await running.view.fetch(GET, "a", "n")
        running.keep()
        with pytest.raises(ViewChanged):
            await running.commit()
        assert node.rows == {}

    asyncio.run(run())


def test_what_may_change_the_same_row_is_a_write_of_its_own():
    async def run() -> None:
        node = Node([])
        running = CassandraTransaction(ViewTables(node), Lease("p", "all", "me", 1), Commands(), {})
        batches: list[int] = []

        async def batch_if(statements) -> bool:
            batches.append(len(statements) - 1)
            node.marks["a"] = statements[0][1][0]
            return True

        node.batch_if = batch_if
        fixed = "UPDATE words SET text = ? WHERE grp = ? AND word = 'x'"
        writes = [(PUT, "1", "a", "n"), (SWEEP, "a"), (PUT, "2", "a", "m"), (fixed, "3", "a"), (PUT, "4", "a", "x")]
        for offset, (statement, *values) in enumerate([*writes, (PUT, "5", "a", "y")], 1):
            running.savepoint(offset)
            await running.view.execute(statement, *values)
            running.keep()
        await running.commit()
        assert batches == [1, 1, 1, 1, 2]
        running.savepoint(7)
        await running.view.execute(PUT, "1", "a", "n")
        with pytest.raises(HandlerFailed):
            await running.view.execute(SWEEP, "a")
        await running.view.execute(PUT, "2", "a", "n")
        with pytest.raises(HandlerFailed):
            await running.view.execute("DELETE FROM words WHERE grp = ? AND word = ?", "a", "n")

    asyncio.run(run())


def test_events_of_a_window_share_a_write_where_they_can():
    async def run() -> None:
        node = Node([])
        running = CassandraTransaction(ViewTables(node), Lease("p", "all", "me", 1), Commands(), {})
        for offset in range(1, 251):
            running.savepoint(offset)
            await running.view.execute(PUT, str(offset), "a", f"w{offset}")
            running.keep()
        await running.commit()
        assert (node.writes, len(node.rows)) == (3, 250), "a hundred rows each"
        for offset in (251, 252):
            running.savepoint(offset)
            await running.view.execute(PUT, str(offset), "a", "same")
            running.keep()
        await running.commit()
        assert (node.writes, node.rows["a", "same"]) == (5, "252"), "the order of two writes to one row is kept"

    asyncio.run(run())


def test_marks_from_before_a_command_say_nothing():
    mark = PartitionMark().moved({"p:all": 7}, epoch=3)
    assert mark.covers({"p:all": 7}, Commands())
    assert mark.covers({"p:all": 6}, Commands(3, {"p:all": 3}))
    assert not mark.covers({"p:all": 8}, Commands())
    for commands in (Commands(4), Commands(0, {"p:all": 4})):
        assert not mark.covers({"p:all": 6}, commands), "set back since"
    assert not mark.covers({"p:other": 6}, Commands())
    assert not mark.covers({}, Commands()), "without an offset nothing is known"
    assert read_mark(write_mark(mark)) == mark
    assert read_mark(None) == PartitionMark()


def test_replayed_letters_are_remembered_up_to_a_bound():
    mark = PartitionMark()
    for number in range(100):
        mark = mark.moved({}, 1, f"p:all:{number}")
    assert mark.letters == tuple(f"p:all:{number}" for number in range(100 - MAX_LETTERS, 100))
    assert mark.nr == 100


V1 = [uuid.UUID(text) for text in ("49225740-2019-11ea-a752-ffae2393b6e4", "49225741-2019-11ea-8052-ffae2393b6e4")]
V4 = uuid.UUID("f81d4fae-7dec-4d11-a765-00a0c91e6bf6")


def test_offsets_are_compared_where_they_have_an_order():
    assert [is_reached(5, one) for one in (4, 5, 6)] == [True, True, False]
    assert [is_reached(V1[0], one) for one in V1] == [True, False]
    assert is_reached(V1[1], V1[0])
    assert [is_reached("b", one) for one in ("a", "b", "c")] == [False, True, False]
    assert not is_reached("5", 5)
    assert [is_ordered(one) for one in (5, V1[0], V4, "a", SerializedOffset(1, "m", b""))] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [is_reached(V4, one) for one in (V4, V1[0])] == [True, False]


@pytest.mark.parametrize(
    ("text", "kind", "table", "bound", "conditional"),
    [
        ("SELECT a FROM owed WHERE k = ? AND c > ? AND d = ?", "select", "owed", {"k": 0, "d": 2}, False),
        ("select a from shop.Owed where k=?", "select", "owed", {"k": 0}, False),
        ('UPDATE "Owed" USING TTL ? SET v = ?, w = w + ? WHERE k = ?', "update", "Owed", {"k": 3}, False),
        ("UPDATE owed SET v = '? WHERE k = ?' WHERE k = ?", "update", "owed", {"k": 0}, False),
        ("UPDATE owed USING TIMESTAMP 5 SET v = 1 WHERE k = ?", "update", "owed", {"k": 0}, True),
        ("DELETE v FROM owed WHERE k = ? IF v = ?", "delete", "owed", {"k": 0, "v": 1}, True),
        ("DELETE FROM owed -- of k = ?\n WHERE k = ?", "delete", "owed", {"k": 0}, False),
        ("INSERT INTO owed (k, \"C\", v) VALUES (?, 'a,?', ?)", "insert", "owed", {"k": 0, "v": 1}, False),
        ("INSERT INTO owed (k, l, m, v) VALUES (?, [?, ?], f(?, 1), ?)", "insert", "owed", {"k": 0, "v": 4}, False),
        ("INSERT INTO owed (k) VALUES (?) IF NOT EXISTS", "insert", "owed", {"k": 0}, True),
        ("INSERT INTO owed JSON ?", "insert", "owed", {}, False),
        ("SELECT * FROM owed", "select", "owed", {}, False),
        ("CREATE TABLE IF NOT EXISTS owed (k text PRIMARY KEY)", "schema", "owed", {}, True),
        ("CREATE INDEX owed_v ON owed (v)", "schema", "owed", {}, False),
        ("TRUNCATE owed", "schema", "owed", {}, False),
        ("ALTER TABLE owed ADD everlog_mark text static", "schema", "owed", {}, False),
    ],
)
def test_statements_are_read(text, kind, table, bound, conditional):
    found = read(text, "k")
    assert (found.kind, found.table, found.bound, found.conditional) == (kind, table, bound, conditional)
    if "shop" not in text:
        assert f'"k"."{table}"' in found.text
    copied = read(text, "k", (("owed", "owed__2"), ("Owed", "Owed__2")))
    assert f'."{table}__2"' in copied.text


@pytest.mark.parametrize("text", ["", "BEGIN BATCH", "DROP KEYSPACE k", "GRANT ALL", "SELECT 1"])
def test_what_a_view_does_not_take_is_named(text):
    with pytest.raises(InvalidInput, match="not understood"):
        read(text, "k")


def test_values_are_bound_not_written_into_statements():
    tables = ViewTables(Node([]))
    for number in range(MAX_STATEMENTS):
        tables.read(f"SELECT text FROM words WHERE grp = '{number}'", {})
    with pytest.raises(InvalidInput, match=r"write \?"):
        tables.read(GET, {})
