"""Group commit: on the spot while it is quick, in a thread when the file is held, unknown when it takes too long."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sqlite3
import weakref
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog import Event
from everlog.config import Config, JournalConfig
from everlog.core.record import NewRecord
from everlog.errors import OutcomeUnknown, StorageFailed, Unacknowledged
from everlog.sqlite import group_commit as module
from everlog.sqlite.connection import Connection
from everlog.sqlite.group_commit import Committed, GroupCommitter
from tests.waiting import blocking_until, until


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
    monkeypatch.setattr(module, "QUICK_S", 0.0)
    async with everlog.connect(tmp_path) as log:
        orders = log.journal("orders")
        tokens = await asyncio.gather(*[orders.append("k", Event(number)) for number in range(10)])
        assert sorted(token.range.first for token in tokens) == list(range(1, 11))
        assert sorted([event.payload async for event in orders.read("k")]) == list(range(10))


async def test_no_answer_in_time_is_an_unknown_outcome(tmp_path) -> None:
    """The append may still happen; repeated with its id it is stored once."""
    config = Config(data=str(tmp_path), journal=JournalConfig(append_timeout_s=0.05))
    async with everlog.connect(config) as log:
        orders = log.journal("orders")
        await orders.append("k", Event("before"))
        other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutcomeUnknown) as unknown:
            await orders.append("k", Event("once"))
        other.execute("ROLLBACK")
        other.close()

        async def stored() -> bool:
            return await orders.pointer("k") == 2

        await until(stored)  # by the thread, which tells nobody any more
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
        monkeypatch.setattr(module, "QUICK_S", 0.0)
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


# The committer itself, with files that are held, slow or broken as the test says.


class Shelf:
    """What is committed, group by group. While `held`, only who is patient gets at it, and waits; while `slow`, too."""

    def __init__(self) -> None:
        self.groups: list[list[object]] = []
        self.threaded: list[bool] = []
        self.opened: list[Place] = []
        self.held = self.slow = False
        self.error: Exception | None = None
        self.seconds = 0.0

    def committer(self, **settings) -> GroupCommitter:
        return GroupCommitter(Path("shelf"), lambda patient: Place(self, patient), Place.commit, **settings)


class Place:
    def __init__(self, shelf: Shelf, patient: bool) -> None:
        self._shelf = shelf
        self._patient = patient
        self.closed = False
        shelf.opened.append(self)

    def commit(self, items) -> Committed:
        if self._shelf.held and not self._patient:
            raise named(sqlite3.OperationalError("database is locked"), "SQLITE_BUSY")
        if self._patient:
            blocking_until(lambda: not self._shelf.held and not self._shelf.slow)
        if self._shelf.error is not None:
            raise self._shelf.error
        self._shelf.groups.append(list(items))
        self._shelf.threaded.append(self._patient)
        return Committed([f"done {item}" for item in items], self._shelf.seconds)

    def close(self) -> None:
        self.closed = True


def named(error: sqlite3.Error, name: str) -> sqlite3.Error:
    error.sqlite_errorname = name
    return error


async def test_groups_have_something_in_common_and_a_limit():
    shelf = Shelf()
    committer = shelf.committer(group_by=lambda item: item[0], max_group=3)
    items = [(name, number) for number in range(4) for name in "ab"]
    answers = await asyncio.gather(*(committer.execute(item) for item in items))
    assert answers == [f"done {item}" for item in items]
    assert shelf.groups == [
        [("a", 0), ("a", 1), ("a", 2)],
        [("a", 3)],
        [("b", 0), ("b", 1), ("b", 2)],
        [("b", 3)],
    ]
    await committer.close()


async def test_nothing_overtakes_what_the_thread_has():
    """Even when the file is free again: all that comes later goes behind it; then the loop commits again."""
    shelf = Shelf()
    committer = shelf.committer()
    shelf.held = shelf.slow = True
    tasks = []
    for number in range(5):
        tasks.append(asyncio.create_task(committer.execute(number)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        shelf.held = False
    assert not any(task.done() for task in tasks)
    shelf.slow = False
    assert await asyncio.gather(*tasks) == [f"done {number}" for number in range(5)]
    assert [item for group in shelf.groups for item in group] == list(range(5))
    assert await committer.execute(5) == "done 5"
    await committer.close()
    assert [place.closed for place in shelf.opened] == [True, True]


async def test_slow_commits_are_the_threads_until_they_are_quick_again():
    shelf = Shelf()
    committer = shelf.committer()
    for shelf.seconds in [0.0, 1.0, 1.0, *[0.0] * 50]:
        await committer.execute("item")
    assert shelf.threaded[:4] == [False, False, True, True]
    back = shelf.threaded.index(False, 3)
    assert shelf.threaded[2:] == [True] * (back - 2) + [False] * (53 - back)
    await committer.close()


async def test_closing_finishes_what_was_accepted():
    shelf = Shelf()
    committer = shelf.committer()
    shelf.held = True
    first = asyncio.create_task(committer.execute("held"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.create_task(committer.execute("gathered"))
    closing = asyncio.create_task(committer.close())  # in the same turn of the loop
    await asyncio.sleep(0)
    with pytest.raises(StorageFailed, match="closed"):
        await committer.execute("late")
    shelf.held = False
    async with asyncio.timeout(60):
        await closing
    assert (first.done(), second.done()) == (True, True)
    assert (await first, await second) == ("done held", "done gathered")
    assert all(place.closed for place in shelf.opened)


@pytest.mark.parametrize("slow", [False, True], ids=["here", "in the thread"])
@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (named(sqlite3.OperationalError("disk I/O error"), "SQLITE_IOERR_FSYNC"), Unacknowledged),
        (named(sqlite3.OperationalError("no such table"), "SQLITE_ERROR"), StorageFailed),
        (ValueError("a mistake of ours"), StorageFailed),
    ],
    ids=["disk", "statement", "mistake"],
)
async def test_all_of_a_group_fails(error, verdict, slow, monkeypatch):
    """Only a disk that fails while it writes leaves the outcome open; afterwards all goes on."""
    if slow:
        monkeypatch.setattr(module, "QUICK_S", 0.0)
    shelf = Shelf()
    committer = shelf.committer()
    shelf.error = error
    failed = await asyncio.gather(*(committer.execute(number) for number in range(3)), return_exceptions=True)
    assert [type(one) for one in failed] == [verdict] * 3
    shelf.error = None
    assert await committer.execute("after") == "done after"
    assert shelf.groups == [["after"]]
    await committer.close()


async def test_what_waits_is_bounded(monkeypatch):
    """Whoever comes when all places are taken waits outside, and gets in when there is room."""
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    shelf = Shelf()
    committer = shelf.committer()
    shelf.held = True
    tasks = [asyncio.create_task(committer.execute(number)) for number in range(10)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert committer._waiting == 3
    shelf.held = False
    assert await asyncio.gather(*tasks) == [f"done {number}" for number in range(10)]
    assert max(map(len, shelf.groups)) <= 3
    await committer.close()


class Heavy:
    """An item that is worth letting go of."""


async def test_nothing_is_kept_of_what_was_answered(monkeypatch):
    """Not even by the timer that would have given up on it."""
    monkeypatch.setattr(module, "QUICK_S", 0.0)
    shelf = Shelf()
    committer = shelf.committer(timeout_s=3600.0)
    item = Heavy()
    kept = weakref.ref(item)
    await committer.execute(item)
    del item
    shelf.groups.clear()
    await committer.execute("next")  # the thread has put the last one down
    gc.collect()
    assert kept() is None
    await committer.close()


@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_item_that_cannot_be_stored_fails_alone(tmp_path, monkeypatch, in_thread) -> None:
    """A record that no file takes, past all checks: the others of its commit are stored, in their order."""
    if in_thread:
        monkeypatch.setattr(module, "QUICK_S", 0.0)
    async with everlog.connect(tmp_path) as log:
        orders = log.journal("orders")
        await orders.append("k", Event(0))
        ref = await orders.ref("k")

        def record(**wrong: Any) -> NewRecord:
            sound = {"partition": ref.partition, "timestamp": 1, "key": b"x", "action": None, "value": b""}
            return NewRecord(**{**sound, **wrong})

        wrong = [
            record(headers=(("\ud800", b""),)),
            record(timestamp=2**70),
            record(value=object()),
            record(partition=99),
        ]
        appends = [log.parts.log.append(ref.log_topic, one) for one in wrong]
        innocent = [orders.append(f"key-{number}", Event(number)) for number in range(10)]
        mixed = [found for pair in itertools.zip_longest(innocent, appends) for found in pair if found is not None]
        answers = await asyncio.gather(*mixed, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        assert [type(answer) for answer in failed] == [StorageFailed] * len(wrong)
        assert len({str(answer) for answer in failed}) == len(wrong), "each has its own reason"
        for number in range(10):
            assert [event.payload async for event in orders.read(f"key-{number}")] == [number]
        assert await orders.append("k", Event(1), expected=1)
