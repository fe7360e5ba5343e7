"""Groups of jobs in files: what outlives a restart, what is shared by processes, what is forgotten, what it costs."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter

import pytest

import everlog
from everlog.queues import memory
from everlog.queues.memory import MemoryTable
from everlog.queues.operations import AskDue, Claim
from everlog.queues.sqlite import table as sqlite_table
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.testing.queue_desk import T, VirtualClock, VirtualQueue
from everlog.testing.queue_groups import groups, packets, put
from tests.queues.test_processes import go, lines, processes

pytestmark = pytest.mark.asyncio


@pytest.fixture
def clock():
    return VirtualClock()


def open_desk(folder, clock):
    return VirtualQueue(SqliteQueueStore(folder, synchronous="OFF", clock=clock), clock)


async def test_a_restart_keeps_turns_and_windows(tmp_path, clock):
    desk = open_desk(tmp_path, clock)
    await desk.declare(rate_limit_per_group="3/s", bucket="none")
    for group in "abc":
        await put(desk, group, 9)
    found = groups(await desk.claim(4))
    await desk.store.close()
    desk = open_desk(tmp_path, clock)
    found += groups(await desk.claim(2))
    await desk.store.close()
    desk = open_desk(tmp_path, clock)
    found += groups(await desk.claim(9))
    assert Counter(found) == Counter("aaabbbccc")
    assert [len(set(found[first : first + 3])) for first in (0, 3, 6)] == [3, 3, 3]
    assert await desk.due() == (0, T + 1000)
    await desk.store.close()


async def test_starts_of_groups_are_forgotten(tmp_path, clock):
    """Also those of groups that never start again."""
    desk = open_desk(tmp_path, clock)
    await desk.declare(rate_limit_per_group="3/s", bucket="none")
    for number in range(50):
        await put(desk, f"g{number}")
        assert len(await desk.claim(1)) == 1
        desk.wait(1000)
    await desk.store.close()
    with sqlite3.connect(tmp_path / "queues" / "main.db") as main:
        assert main.execute("SELECT count(*) FROM everlog_queue_group_start").fetchone() == (1,)
    table = MemoryTable()
    for number in range(50):
        table.add_group_starts(number * 1000, {f"g{number}": 2}, (number - 1) * 1000)
    assert list(table._group_starts) == ["g49"]


async def test_only_the_last_turns_are_remembered(tmp_path, clock, monkeypatch):
    """A group that is forgotten counts as one that never started."""
    monkeypatch.setattr(sqlite_table, "MAX_TURNS", 3)
    monkeypatch.setattr(memory, "MAX_TURNS", 3)
    for store in (SqliteQueueStore(tmp_path, synchronous="OFF", clock=clock), memory.MemoryQueueStore(clock)):
        desk = VirtualQueue(store, clock)
        await desk.declare(bucket="none")
        for group in "abcde":
            await put(desk, group)
            await desk.claim(1)
        for group in "edcba":
            await put(desk, group, first=1)
        found = groups(await desk.claim(9))
        assert (sorted(found[:2]), found[2:]) == (["a", "b"], ["c", "d", "e"])
        await store.close()


async def test_turns_are_written_only_where_groups_wait(tmp_path, clock):
    desk = open_desk(tmp_path, clock)
    await desk.declare(max_in_flight_per_group=3, rate_limit_per_group="3/s", bucket="none")
    for number in range(5):
        await desk.enq(f"k{number}")
    assert len(await desk.claim(3)) == 3
    await desk.store.close()
    with sqlite3.connect(tmp_path / "queues" / "main.db") as main:
        for table in ("turn", "group_start"):
            assert main.execute(f"SELECT count(*) FROM everlog_queue_{table}").fetchone() == (0,)


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_job_is_in_the_indexes_of_its_kind_only(tmp_path, clock, grouped):
    """A job without a group has one entry for its place, as it had before there were groups."""
    desk = open_desk(tmp_path, clock)
    await desk.declare(bucket="none")
    await desk.enq("k", group="g" if grouped else "")
    await desk.store.close()
    (file,) = [path for path in (tmp_path / "queues").glob("*.db") if path.name != "main.db"]
    with sqlite3.connect(file) as bucket:
        found = {
            name: bucket.execute(f"SELECT count(*) FROM everlog_queue_item INDEXED BY {name} WHERE {where}").fetchone()
            for name, where in bucket.execute(
                "SELECT name, substr(sql, instr(sql, 'WHERE') + 6) FROM sqlite_master WHERE sql LIKE '%WHERE%'"
            ).fetchall()
        }
    assert "everlog_queue_ready" not in found
    own = {"everlog_queue_grouped", "everlog_queue_group"} if grouped else {"everlog_queue_plain"}
    assert {name for name, (count,) in found.items() if count} == own


async def test_every_statement_of_groups_uses_its_index(tmp_path, clock):
    """Nothing is sorted, and nothing is read from end to end."""
    desk = open_desk(tmp_path, clock)
    await desk.declare(bucket="none")
    files = desk.store._reader
    (opened,) = files.live(files.known("jobs"))
    for name in ("due", "due_grouped", "due_of_group", "some_grouped", "heads", "groups_wait", "page", "page_grouped"):
        text = sqlite_table.ITEM[name]
        count = text.count("?") if "?1" not in text else 3
        plan = opened.connection.execute(f"EXPLAIN QUERY PLAN {text}", (1,) * count).fetchall()
        steps = " | ".join(row[-1] for row in plan)
        assert "TEMP B-TREE" not in steps, f"{name}: {steps}"
        assert "SCAN everlog_queue_item" not in steps, f"{name}: {steps}"
    heads = opened.connection.execute(f"EXPLAIN QUERY PLAN {sqlite_table.ITEM['heads']}", (1, 1, 1)).fetchall()
    assert sum("grp>?" in row[-1] for row in heads) == 1
    await desk.store.close()


async def test_many_groups_and_many_priorities(tmp_path, clock):
    """The two ways to find the first of each group give the same: by all due jobs if they are few, else by seeks."""
    stores = [SqliteQueueStore(tmp_path, synchronous="OFF", clock=clock), memory.MemoryQueueStore(clock)]
    orders = []
    for store in stores:
        desk = VirtualQueue(store, clock)
        await desk.declare(bucket="none", max_in_flight_per_group=4, processing_timeout="1d")
        for number in range(60):
            await put(desk, f"g{number}", 1 + number % 7, priority=number % 3)
        taken = []
        while leases := await desk.claim(7):
            taken += [lease.row.key for lease in leases]
        orders.append(taken)
        assert (await desk.due(100)).due == 0
    assert orders[0] == orders[1]
    for store in stores:
        await store.close()


async def test_limits_of_groups_are_exact_over_processes(tmp_path):
    """Three processes with five workers each: never three jobs of a group at once, never a sixth start in a second."""
    async with everlog.connect(tmp_path) as log:
        queue = log.queue("jobs")
        await queue.declare(max_in_flight_per_group=2, rate_limit_per_group="5/s")
        await queue.put_many(
            [everlog.NewJob(f"{group}-{number}", group=group) for group in "abc" for number in range(9)]
        )
    with processes(tmp_path, "limited_groups", [5] * 3) as started:
        go(started)
        said = await asyncio.to_thread(lambda: [line for process in started for line in lines(process)])
    assert Counter(group for _, group, _, _ in said) == {"a": 9, "b": 9, "c": 9}
    for one in "abc":
        spans = sorted((began, ended) for _, group, began, ended in said if group == one)
        for began, _ in spans:
            assert sum(first <= began < last for first, last in spans) <= 2
            assert sum(began <= first < began + 1000 for first, _ in spans) <= 5


async def test_an_idle_worker_sleeps_while_all_groups_are_at_their_limit(tmp_path, clock):
    """It is woken by the end of a window, and not before: it looks no more often than that."""
    store = memory.MemoryQueueStore(clock)
    desk = VirtualQueue(store, clock)
    await desk.declare(rate_limit_per_group="1/10s")
    await store.put_all("jobs", packets("a", 5))
    assert len(await desk.claim(9)) == 1
    asked = []
    whole = store.execute

    async def count(name, operation):
        asked.append(type(operation))
        return await whole(name, operation)

    store.execute = count
    waiting = asyncio.create_task(store.wait("jobs", "w", 0.2))
    assert await waiting is False
    assert (asked.count(AskDue) <= 3, Claim in asked) == (True, False)
    await store.close()
