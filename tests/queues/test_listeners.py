"""Wake-ups: as many as there is work, at the moment it is due, and none is missed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.queues import port
from everlog.queues.listeners import Listeners, listener_name
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from tests.waiting import until


@pytest.fixture(params=["memory", "files"])
async def queue(request, tmp_path):
    store = MemoryQueueStore() if request.param == "memory" else SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    await queue.declare()
    yield queue
    await store.close()


@pytest.mark.case("journal-tables", 37)
def test_as_many_are_woken_as_there_is_work():
    """One due job and fifty listeners: one is woken. Fifty at once: all are."""
    listeners = Listeners()
    for number in range(50):
        listeners.listen(f"w{number}")
    assert listeners.wake(0, 0) == []
    assert listeners.wake(1, 0) == ["w0"]
    assert listeners.wake(1, 0) == []  # that one is on its way
    assert listeners.wake(50, 0) == [f"w{number}" for number in range(1, 50)]
    assert listeners.wake(50, 0) == []


def test_listeners_take_turns():
    listeners = Listeners()
    for name in "abc":
        listeners.listen(name)
    woken = []
    for _ in range(6):
        (name,) = listeners.wake(1, 0)
        woken.append(name)
        listeners.claimed(name)
        listeners.listen(name)
    assert woken == list("abcabc")


def test_a_busy_listener_does_not_keep_work_from_others():
    """`a` was woken, claimed, and works on it; what comes now is for `b`, though `a` has not come back."""
    listeners = Listeners()
    listeners.listen("a")
    listeners.listen("b")
    assert listeners.wake(1, 0) == ["a"]
    listeners.claimed("a")
    assert listeners.wake(1, 0) == ["b"]


def test_a_dead_listener_holds_up_nothing():
    listeners = Listeners(grace_ms=100)
    listeners.listen("dead")
    listeners.listen("b")
    assert listeners.wake(1, 0) == ["dead"]
    assert listeners.wake(1, 100) == []
    assert listeners.wake(1, 101) == ["b"]


def test_a_claim_counts_for_all_that_its_owner_waits_with():
    """Requests over HTTP have names of their own: what one was woken for is looked after by its owner's next claim."""
    listeners = Listeners()
    for name in (listener_name("me", "1"), listener_name("me", "2"), listener_name("other", "3")):
        listeners.listen(name)
    assert listeners.wake(2, 0) == [listener_name("me", "1"), listener_name("me", "2")]
    assert listeners.wake(1, 0) == []
    assert listeners.pending
    listeners.claimed("m")
    assert listeners.wake(1, 0) == []
    listeners.claimed("me")
    assert listeners.wake(1, 0) == [listener_name("other", "3")]
    assert not listeners.pending


async def test_one_that_was_woken_and_never_claims_keeps_nobody_waiting(queue, monkeypatch):
    """Its second is over long before the fall-back poll, which comes after an hour here."""
    monkeypatch.setattr(port, "POLL_S", 3600.0)
    waiting = [asyncio.create_task(queue.wait(60, listener=name)) for name in "ab"]
    await until(lambda: queue.store.waker(queue.name).listeners.idle == 2)
    await queue.put("k")
    assert await asyncio.gather(*waiting) == [True, True]


@given(
    st.lists(st.tuples(st.sampled_from(["listen", "leave", "claimed", "wake"]), st.integers(0, 4), st.integers(0, 5)))
)
def test_no_wake_up_is_missed(steps):
    """Whenever there is more work than listeners on their way, either nobody is idle or somebody is woken."""
    listeners = Listeners()
    for action, name, due in steps:
        if action == "wake":
            before = listeners.idle
            on_their_way = listeners.wanted(0) - before
            woken = listeners.wake(due, 0)
            assert len(woken) == max(0, min(due - on_their_way, before))
        else:
            getattr(listeners, action)(f"w{name}")


@pytest.mark.case("journal-tables", 35)
async def test_a_listener_is_woken_when_a_job_is_due_and_not_before(queue):
    """Enqueued for 200 ms later: one wake-up, not before that, and without any poll."""
    started = time.time()
    waiting = asyncio.create_task(queue.wait(60))
    await asyncio.sleep(0)
    receipt = await queue.put("k", delay=0.2)
    assert receipt.result == "CREATED"
    assert await waiting is True
    assert time.time() - started >= 0.199
    assert len(await queue.claim()) == 1


@pytest.mark.case("journal-tables", 36)
async def test_a_merge_that_pushes_a_job_back_pushes_the_wake_up_back(queue):
    waiting = asyncio.create_task(queue.wait(60))
    await queue.put("k", delay=0.1)
    await queue.put("k", delay=0.4)
    (info,) = await queue.get("k")
    assert await waiting is True
    assert time.time() >= info.due.timestamp() - 0.001
    assert len(await queue.claim()) == 1


@pytest.mark.case("journal-tables", 37)
async def test_one_job_wakes_one_of_fifty(queue):
    listeners = queue.store.waker(queue.name).listeners = Listeners(grace_ms=60_000)  # longer than any pause
    waiting = [asyncio.create_task(queue.wait(60, listener=f"w{number}")) for number in range(50)]
    await until(lambda: listeners.idle == 50)
    assert not any(task.done() for task in waiting)
    await queue.put("one")
    done, idle = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.05)
    assert [task.result() for task in done] == [True]
    assert not any(task.done() for task in idle)
    assert len(await queue.claim(owner="w0")) == 1
    await asyncio.gather(*(queue.put(number) for number in range(49)))
    assert await asyncio.gather(*idle) == [True] * 49


@pytest.mark.case("journal-tables", 38)
async def test_who_listens_late_is_woken_at_once(queue):
    await queue.put("k")
    for _ in range(3):  # and again, after a reconnect
        assert await queue.wait(60) is True


async def test_nothing_to_do_is_said_after_a_while(queue):
    assert await queue.wait(0.01) is False
    await queue.put("k")
    await queue.pause()
    assert await queue.wait(0.01) is False
    waiting = asyncio.create_task(queue.wait(60))
    await asyncio.sleep(0.02)
    await queue.resume()
    assert await waiting is True


async def test_what_comes_back_wakes(queue):
    """Released, failed, timed out: each is a reason to look."""
    await queue.put("k")
    for end in ("release", "fail", "time out"):
        (job,) = await queue.claim(lease=0.1 if end == "time out" else None)
        waiting = asyncio.create_task(queue.wait(60))
        await asyncio.sleep(0.01)
        if end != "time out":
            await getattr(job, end)()
        assert await waiting is True


PUTTER = """
import asyncio, sys, everlog
async def main():
    async with everlog.connect(sys.argv[1]) as log:
        print("ready", flush=True)
        for number in range(20):
            sys.stdin.readline()
            await log.queue("jobs").put(number)
asyncio.run(main())
"""


@pytest.mark.case("journal-tables", 39)
async def test_another_process_wakes_us(tmp_path):
    """Twenty jobs from a second process: each wakes the listener long before its fall-back poll; the times of 1.9 are
    measured in bench/."""
    store = SqliteQueueStore(tmp_path, synchronous="NORMAL")
    queue = Queue("jobs", store)
    await queue.declare()
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", PUTTER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
    for number in range(20):
        waiting = asyncio.create_task(queue.wait(60))
        await asyncio.sleep(0)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert await waiting is True
        (job,) = await queue.claim()
        assert job.key == number
        await job.done()
    process.stdin.close()
    assert await asyncio.to_thread(process.wait) == 0
    process.stdout.close()
    await store.close()
