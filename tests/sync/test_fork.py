"""A process that is forked while a log is open: no call hangs there, none is lost, and each error says what to do."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

import everlog
from everlog import Event, sync
from everlog.errors import ForkedProcess
from tests.http_support import server_in_thread
from tests.support import small_config

# Python itself says that forks of processes with threads are risky: this is what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def in_child(work: Callable[[], object]) -> Any:
    """What came of this in a fork: the name of the error and its text, or the result. One that hangs is an error."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run() -> None:
        there.send(_outcome(work))

    child = context.Process(target=run, daemon=True)
    child.start()
    try:
        assert here.poll(60), "the child hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()


def _outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def refused(found: object) -> bool:
    return (
        isinstance(found, str)
        and found.startswith("ForkedProcess: ")
        and f"process {os.getpid()}" in found
        and "connect again" in found
    )


def test_every_call_in_a_fork_says_what_to_do(tmp_path):
    with sync.connect(small_config(tmp_path)) as log:
        journal, tag, documents = log.journal("t"), log.tag("eu"), log.documents
        queue = log.queue("q")
        journal.append("k", [Event(1, tags={"eu"}), Event(2)])
        pages = journal.read("k")
        assert next(pages).payload == 1
        calls: dict[str, Callable[[], Any]] = {
            "append": lambda: journal.append("k", Event(3)),
            "read": lambda: list(journal.read("k")),
            "read on": lambda: list(pages),
            "pointer": lambda: journal.pointer("k"),
            "keys": lambda: list(journal.keys()),
            "tag": lambda: list(tag.current()),
            "document": lambda: documents.get("a/b"),
            "job": lambda: queue.put("m"),
            "status": log.status,
            "topics": log.topics,
            "new queue": lambda: log.queue("p"),
        }
        outcomes = in_child(lambda: {name: _outcome(call) for name, call in calls.items()})
        assert {name for name, outcome in outcomes.items() if not refused(outcome)} == set()
        assert in_child(log.close) is None, "there is nothing to close in a fork"
        assert journal.pointer("k") == 2
        assert [event.payload for event in pages] == [2]


@pytest.mark.parametrize("spelling", ["data", "link", "data/../data"])
def test_a_fork_cannot_open_the_files_again(tmp_path, spelling):
    """Its locks would not count: what it appends would be lost when the other process closes the log."""
    (tmp_path / "link").symlink_to("data")

    def append() -> object:
        with sync.connect(small_config(tmp_path / spelling)) as other:
            return other.journal("t").append("k", Event("of the child")).range.first

    with sync.connect(small_config(tmp_path / "data")) as log:
        log.journal("t").append("k", Event(1))
        assert refused(in_child(append))
    assert in_child(append) == 2, "closed before the fork"
    with sync.connect(small_config(tmp_path / "data")) as log:
        assert [event.payload for event in log.journal("t").read("k")] == [1, "of the child"]


async def test_an_asynchronous_log_is_not_used_in_a_fork(tmp_path):
    async with everlog.connect(small_config(tmp_path)) as log:
        journal = log.journal("t")
        await journal.append("k", Event(1))
        connection = log.parts.log._reader
        assert refused(in_child(lambda: asyncio.run(journal.append("k", Event(2)))))
        assert refused(in_child(lambda: asyncio.run(journal.pointer("k"))))
        assert refused(in_child(lambda: log.journal("u")))
        assert refused(in_child(lambda: connection.executemany("DELETE FROM record", [])))
        assert in_child(lambda: asyncio.run(log.close())) is None
        assert in_child(connection.close) is None
        assert await journal.pointer("k") == 1


def test_an_error_of_a_fork_carries_the_process():
    with pytest.raises(ForkedProcess) as caught:
        raise ForkedProcess("this log", 17)
    assert caught.value.pid == 17


def test_what_sqlite_does_with_files_that_a_fork_opens_again(tmp_path):
    """Why the files are refused: if this fails, SQLite has learned about forks, and they need not be."""
    path = tmp_path / "a.db"
    first = sqlite3.connect(path, isolation_level=None)
    first.execute("PRAGMA journal_mode = WAL")
    first.execute("CREATE TABLE t (a)")
    closed, child_may_go = multiprocessing.get_context("fork").Pipe(duplex=False)
    ready, child_is_ready = multiprocessing.get_context("fork").Pipe(duplex=False)

    def write() -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("INSERT INTO t VALUES (1)")
        child_is_ready.send(1)
        closed.recv()
        other.execute("INSERT INTO t VALUES (2)")
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=write, daemon=True)
    child.start()
    assert ready.poll(60)
    first.close()
    child_may_go.send(1)
    child.join(60)
    after = sqlite3.connect(path)
    assert after.execute("SELECT count(*) FROM t").fetchone() == (1,), "the second insert was acknowledged and is lost"
    after.close()


def test_a_fork_may_connect_to_a_server_again(tmp_path):
    with server_in_thread(small_config(tmp_path)) as url, sync.connect(url) as log:
        journal = log.journal("t")
        journal.append("k", Event(1))

        def read() -> object:
            with sync.connect(url) as other:
                return other.journal("t").pointer("k")

        assert refused(in_child(lambda: journal.pointer("k")))
        assert in_child(read) == 1
