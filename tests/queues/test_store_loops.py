"""Loops of stores of queues: whatever is raised in one, its callers hear of it, and the loop goes on."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from everlog.errors import AnswerLost, StorageFailed
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import AskDue, Peek
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.remote.queues import RemoteQueueStore
from everlog.testing.queue_desk import VirtualClock
from tests.models.queue_cluster import ModelQueueStore, Tables
from tests.models.queue_log import ModelBackend
from tests.queues.test_loops import FOREIGN, Breakage
from tests.waiting import until

FOREIGN_ERRORS = pytest.mark.parametrize("error", FOREIGN, ids=lambda one: type(one).__name__)


def loop(store, name):
    (found,) = [one for one in store.status() if one.name == name]
    return found


@FOREIGN_ERRORS
async def test_a_shard_goes_on(monkeypatch, caplog, error):
    """On Cassandra: the operation ends with an error of ours, the next one goes well, and no job is lost."""
    broken = []

    async def append(backend, *given):
        if broken:
            raise broken.pop()
        return await whole(backend, *given)

    whole = ModelBackend.append
    monkeypatch.setattr(ModelBackend, "append", append)
    store = ModelQueueStore(Tables(), "me")
    queue = Queue("jobs", store)
    await queue.put("before")
    broken.append(error)
    async with asyncio.timeout(60):
        with pytest.raises(StorageFailed, match="broken"):
            await queue.put("refused")
        await queue.put("after")
        assert {job.key for job in await queue.peek()} == {"before", "after"}
        found = loop(store, "shard 0 of jobs")
        await store.close()
    assert (found.state, found.failures) == ("running", 1)
    assert "broken" in found.last_error
    assert "broken" in caplog.text


@FOREIGN_ERRORS
async def test_a_beat_that_fails_ends_no_shard(monkeypatch, caplog, error):
    """The shard is read again, by whoever uses it next."""
    broken = [error]

    async def change(backend, before, after):
        if before.owner == after.owner and before.beat != after.beat and broken:
            raise broken.pop()
        return await whole(backend, before, after)

    whole = ModelBackend.change_shard
    monkeypatch.setattr(ModelBackend, "change_shard", change)
    store = ModelQueueStore(Tables(), "me", beat_s=0.01)
    queue = Queue("jobs", store)
    await queue.put("before")
    await until(lambda: not broken)
    async with asyncio.timeout(60):
        await queue.put("after")
        assert {job.key for job in await queue.peek()} == {"before", "after"}
        await store.close()
    assert "broken" in caplog.text


@pytest.mark.parametrize("kind", ["memory", "files"])
@FOREIGN_ERRORS
async def test_those_who_wait_are_woken_when_the_store_works_again(tmp_path, monkeypatch, caplog, kind, error):
    store = MemoryQueueStore() if kind == "memory" else SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    await queue.declare()
    broken = Breakage(monkeypatch, store, error, AskDue)
    broken.left = 1
    waiting = asyncio.create_task(store.wait("jobs", "me", 3600))
    await until(lambda: broken.raised)
    await queue.put("k")
    assert await asyncio.wait_for(waiting, 60)
    assert "broken" in caplog.text
    await store.close()


@FOREIGN_ERRORS
async def test_a_look_for_changes_that_fails_is_made_again(monkeypatch, caplog, error):
    """Those who wait need not wait to the end of their time."""
    store = MemoryQueueStore()
    queue = Queue("jobs", store)
    await queue.declare()
    broken = [error]

    def changes(name):
        if broken:
            raise broken.pop()

    monkeypatch.setattr(store, "changes", changes)
    waiting = asyncio.create_task(store.wait("jobs", "me", 3600))
    await until(lambda: not broken)
    await queue.put("k")
    assert await asyncio.wait_for(waiting, 60)
    assert "broken" in caplog.text
    found = loop(store, "wake-ups of jobs")
    assert (found.failures, found.restarts) == (1, 1)
    await store.close()


@FOREIGN_ERRORS
async def test_a_request_that_fails_is_an_answer(monkeypatch, caplog, error):
    """Over HTTP: callers hear that the outcome is unknown."""
    store = RemoteQueueStore(httpx.AsyncClient(base_url="http://127.0.0.1:9"), VirtualClock(), owns_client=True)

    async def fail(*_, **__):
        raise error

    monkeypatch.setattr(store, "_call", fail)
    async with asyncio.timeout(60):
        with pytest.raises(AnswerLost, match="broken"):
            await store.execute("jobs", Peek())
    assert "a request about the queue jobs failed" in caplog.text
    await store.close()
