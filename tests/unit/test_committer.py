"""Group commit: on the spot while it is quick, in a thread when the file is held, unknown when it takes too long."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

import everlog
from everlog import Event
from everlog.config import Config, JournalConfig
from everlog.errors import OutcomeUnknown, StorageFailed
from everlog.log import committer as module
from everlog.sqlite import Connection


async def test_what_is_ready_together_is_one_transaction(tmp_path) -> None:
    """Concurrent appends share a commit; one after another they do not."""
    statements: list[str] = []
    async with everlog.connect(tmp_path, trace=lambda sql, _: statements.append(sql)) as log:
        orders = log.journal("orders")
        await orders.append("first", Event(0))
        statements.clear()
        await asyncio.gather(*[orders.append(f"key-{number}", Event(number)) for number in range(50)])
        assert statements.count("COMMIT") == 1
        await orders.append("a", Event(1))
        await orders.append("b", Event(2))
        assert statements.count("COMMIT") == 3


async def test_a_held_file_does_not_hold_the_event_loop(tmp_path) -> None:
    """While another process writes, appends wait in a thread and others go on; then they are stored."""
    async with everlog.connect(tmp_path) as log:
        orders = log.journal("orders")
        await orders.append("k", Event(1))
        other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        appending = asyncio.create_task(orders.append("k", Event(2)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert await orders.pointer("k") == 1
        assert not appending.done()
        other.execute("ROLLBACK")
        other.close()
        assert (await appending).range.first == 2


async def test_slow_commits_go_to_the_thread(tmp_path, monkeypatch) -> None:
    """When the disk is slow the thread takes over, and the answers are the same."""
    monkeypatch.setattr(module, "QUICK_SECONDS", 0.0)
    async with everlog.connect(tmp_path) as log:
        orders = log.journal("orders")
        tokens = await asyncio.gather(*[orders.append("k", Event(number)) for number in range(10)])
        assert sorted(token.range.first for token in tokens) == list(range(1, 11))
        assert sorted([event.payload async for event in orders.read("k")]) == list(range(10))


async def test_no_answer_in_time_is_an_unknown_outcome(tmp_path) -> None:
    """The append may still happen; repeated with its id it is stored once."""
    config = Config(data=str(tmp_path), journal=JournalConfig(append_timeout=0.05))
    async with everlog.connect(config) as log:
        orders = log.journal("orders")
        await orders.append("k", Event("before"))
        other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutcomeUnknown) as unknown:
            await orders.append("k", Event("once"))
        other.execute("ROLLBACK")
        other.close()
        while await orders.pointer("k") != 2:  # noqa: ASYNC110 - the thread stores it, and tells nobody any more
            await asyncio.sleep(0)
        token = await orders.append("k", Event("once"), append_id=unknown.value.append_id)
        assert token.range.first == 2
        assert [event.payload async for event in orders.read("k")] == ["before", "once"]


async def test_appends_of_another_process_are_noticed(tmp_path) -> None:
    """What is remembered about the log's end counts only until somebody else writes."""
    async with everlog.connect(tmp_path) as here, everlog.connect(tmp_path) as there:
        for number in range(6):
            log = (here, there)[number % 2]
            await log.journal("orders").append("k", Event(number))
        assert [event.payload async for event in here.journal("orders").read("k")] == list(range(6))


@pytest.mark.parametrize("quick", [True, False])
async def test_a_failed_commit_leaves_no_hole_in_the_log(tmp_path, monkeypatch, quick) -> None:
    """Rolled back is as if never stored: the next append gets the offset that the failed one would have had."""
    if not quick:
        monkeypatch.setattr(module, "QUICK_SECONDS", 0.0)
    failing = []
    execute = Connection.execute

    def execute_or_fail(self, sql, parameters=(), /):
        if failing and sql == "COMMIT":
            raise failing.pop()
        return execute(self, sql, parameters)

    async with everlog.connect(tmp_path) as log:
        orders = log.journal("orders")
        before = await orders.append("k", Event("before"))
        monkeypatch.setattr(Connection, "execute", execute_or_fail)
        failing.append(sqlite3.OperationalError("no space, says the test"))
        with pytest.raises(StorageFailed):
            await orders.append("k", Event("lost"))
        after = await orders.append("k", Event("after"))
        assert after.offset == before.offset + 1
        assert [event.payload async for event in orders.read("k")] == ["before", "after"]
