"""`queue.job(entry)`: what users see of one job, and the sentences about why it does not run."""

from __future__ import annotations

import pytest

from everlog.errors import InvalidInput, QueueNotFound
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.operations import FoundJob, WaitCause
from everlog.queues.queue import Queue
from everlog.queues.rows import Attempt, DeadLetter, EndedRow, Image, JobRow
from everlog.queues.wait_reasons import explain_job
from everlog.testing.queue_desk import VirtualClock

NOW = 1_700_000_000_000


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def queue(clock):
    return Queue("jobs", MemoryQueueStore(clock))


@pytest.mark.asyncio
async def test_a_job_in_every_state(queue, clock):
    await queue.declare(keep_done="7d")
    entry = (await queue.put("a", {"n": 1}, priority=7, delay="10s", expires="1h")).entry
    waiting = await queue.job(entry)
    assert (waiting.state, waiting.key, waiting.data, waiting.priority) == ("waiting", "a", {"n": 1}, 7)
    assert (waiting.due - waiting.inserted).total_seconds() == 10
    assert waiting.expires is not None
    assert [reason.code for reason in waiting.why] == ["not_due"]
    clock.now += 10_000
    (job,) = await queue.claim(owner="me", lease="1m")
    await queue.put("a", {"n": 2}, delay="1m")
    running = await queue.job(entry)
    assert (running.state, running.owner, running.token) == ("running", "me", job.token)
    assert (running.claimed, (running.deadline - running.claimed).total_seconds()) == (job.claimed, 60)
    assert (running.successor - running.claimed).total_seconds() == 60
    assert [reason.code for reason in running.why] == ["running", "successor"]
    clock.now += 60_001
    late = await queue.job(entry)
    assert (late.state, late.owner, late.deadline) == ("waiting", "me", running.deadline)
    assert late.why[0].code == "overdue"
    await job.done({"pages": 3})
    assert [end.result for end in (await queue.job(entry)).ends] == [{"pages": 3}]
    (job,) = await queue.claim()
    await queue.fail(job, "broken", retry=False)
    dead = await queue.job(entry)
    assert (dead.state, dead.how, dead.reason, dead.data) == ("dead", "failed", "broken", {"n": 2})
    assert [one.reason for one in dead.attempts] == ["broken"]
    await queue.revive(entry)
    ended = await queue.job(entry)
    assert (ended.state, ended.how, len(ended.ends)) == ("ended", "failed", 2)


@pytest.mark.asyncio
async def test_a_job_that_is_not_there(queue):
    with pytest.raises(QueueNotFound):
        await queue.job(1)
    await queue.declare()
    assert await queue.job(1) is None
    for entry in (-1, 2**63, 1.0, True, None, "1", b"1", [1]):
        with pytest.raises(InvalidInput, match="number of a job"):
            await queue.job(entry)


def row(**more) -> JobRow:
    return JobRow(1, b"k", b"h", Image(128, NOW, NOW, 0, NOW, 1, b"n"), **more)


def texts(*causes, **found):
    reasons = explain_job(FoundJob(NOW, causes=tuple(map(WaitCause._make, causes)), **found))
    return " ".join(one.what for one in reasons)


def test_the_sentences():
    assert texts() == ""
    assert "paused" in texts(("paused", None, None), row=row())
    assert "not due: it may start in 5.0 s" in texts(("not_due", None, NOW + 5000), row=row())
    assert "first in line" in texts(("next", None, None), row=row())
    assert "no worker claims" in texts(("unclaimed", None, None), row=row())
    assert "due: 3 jobs before it" in texts(("behind", 3, None), row=row())
    assert "at least 1,000 jobs" in texts(("behind", 1000, None), row=row())
    assert "max_in_flight is 1,200" in texts(("in_flight", 1200, None), row=row())
    assert "rate limit is reached" in texts(("rate", 2, NOW + 1000), row=row())
    assert "max_in_flight_per_group is 3" in texts(("group_in_flight", 3, None), row=row())
    assert "rate limit of the group" in texts(("group_rate", 2, NOW + 1000), row=row())
    assert "slow_threshold is 200" in texts(("slow", 200, None), row=row())
    failed = row(timeouts=2, attempts=(Attempt(NOW - 2, NOW - 90_000, "w", "failed", "no route"),))
    assert "failed 2 times since the last put, last 90 s ago: no route" in texts(("next", None, None), row=failed)
    running = {"status": "P", "owner": "w-1", "lease_ms": 10_000}
    assert "w-1 has it for another 10 s" in texts(row=row(**running, start_ms=NOW))
    late = row(**running, start_ms=NOW - 15_000)
    assert "its lease ended 5.0 s ago" in texts(("overdue", None, NOW - 5000), row=late)
    assert "told to stop" in texts(row=row(**running, start_ms=NOW, stop="cancel", slot=row().image))
    assert "waits behind it" in texts(row=row(**running, start_ms=NOW, slot=row().image))
    letter = DeadLetter(1, b"k", b"h", row().image, "failed", "bad <b>", NOW - 1000, 1, 1)
    assert "dead letter for 1.0 s (failed): bad <b>" in texts(letter=letter)
    end = EndedRow(1, 1, b"k", b"h", "done", None, NOW, NOW, NOW - 1000, "w")
    assert "done 1.0 s ago" in texts(ended=(end,))
