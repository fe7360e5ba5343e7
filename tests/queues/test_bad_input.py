"""What is no argument is refused by every call with an error of ours, here and over HTTP; nothing is stored then."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta

import pytest

import everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.errors import EverlogError
from everlog.queues.job_function import GiveUp
from everlog.queues.operations import Handle
from everlog.queues.worker import Worker
from tests.support import small_config
from tests.waiting import until

LONE = "a\ud800"
COUNTS = (0, -1, 10**30, True, "5", 1.5, None, math.nan, [1])
TEXTS = (LONE, 5, b"x", ["x"], "x" * 2000)
KEYS = (
    LONE,
    math.nan,
    math.inf,
    1.5,
    None,
    {},
    {"a": LONE},
    {"a": 1},
    [],
    (),
    ("a", LONE),
    10**30,
    "x" * 5000,
    object(),
)
DATA = (LONE, {"a": LONE}, {LONE: 1}, math.nan, [math.inf], object(), {(1, 2): 3})
TIMES = (LONE, "soon", math.nan, math.inf, -1, 10**30, True, [1], timedelta(days=-1), object())
MOMENTS = (LONE, "soon", 5, True, [1], timedelta.max, timedelta.min)
NUMBERS = (0.5, -1, 10**30, "5", LONE, True, None, math.nan, [1])
HANDLES = (
    None,
    5,
    "1/1",
    (1, 1),
    Handle(-1, 1),
    Handle(10**30, 1),
    Handle(1, 10**30),
    Handle("1", 1),
    Handle(True, True),
)
NAMES = (LONE, "", 5, None, b"x", "a/b", "x" * 300, "a b\n", ["x"])

CALLS = {
    "put key": (KEYS, lambda q, bad: q.put(bad, 1)),
    "put data": (DATA, lambda q, bad: q.put("k", bad)),
    "put priority": ((-1, 256, 10**30, "5", True, None, 1.5, LONE), lambda q, bad: q.put("k", priority=bad)),
    "put at": (MOMENTS, lambda q, bad: q.put("k", at=bad)),
    "put delay": (TIMES, lambda q, bad: q.put("k", delay=bad)),
    "put expires": ((*TIMES[:-2], object(), timedelta.max, timedelta.min), lambda q, bad: q.put("k", expires=bad)),
    "put kind": ((*TEXTS, "a b"), lambda q, bad: q.put("k", kind=bad)),
    "put group": (TEXTS, lambda q, bad: q.put("k", group=bad)),
    "put_many": (
        (5, None, [5], ["ab", 3], [("k", 1), (LONE, 1)], [("k", 1, 2, 3, 4, 5, 6, 7, 8)], [()], "ab"),
        lambda q, bad: q.put_many(bad),
    ),
    "claim limit": (COUNTS, lambda q, bad: q.claim(bad)),
    "claim owner": (TEXTS, lambda q, bad: q.claim(owner=bad)),
    "claim lease": ((*TIMES, 0), lambda q, bad: q.claim(lease=bad)),
    "claim fast_only": ((5, "yes", LONE), lambda q, bad: q.claim(fast_only=bad)),
    "done handle": (HANDLES, lambda q, bad: q.done(bad)),
    "fail handle": (HANDLES, lambda q, bad: q.fail(bad)),
    "release handle": (HANDLES, lambda q, bad: q.release(bad)),
    "heartbeat handle": (HANDLES, lambda q, bad: q.heartbeat(bad)),
    "fail reason": ((5, b"x", ["x"]), lambda q, bad: q.fail(Handle(1, 1), bad)),
    "fail delay": (TIMES, lambda q, bad: q.fail(Handle(1, 1), delay=bad)),
    "fail retry": ((5, "no", None), lambda q, bad: q.fail(Handle(1, 1), retry=bad)),
    "get": (KEYS, lambda q, bad: q.get(bad)),
    "job": (NUMBERS, lambda q, bad: q.job(bad)),
    "peek limit": (COUNTS, lambda q, bad: q.peek(bad)),
    "peek after": ((5, "x", (1, 2), (1, 2, "x", 4), (10**30, 1, b"", 1)), lambda q, bad: q.peek(after=bad)),
    "leases limit": (COUNTS, lambda q, bad: q.leases(bad)),
    "cancel key": (KEYS, lambda q, bad: q.cancel(bad)),
    "cancel reason": ((5, b"x", ["x"]), lambda q, bad: q.cancel("a", bad)),
    "purge": ((5, "yes", None, LONE), lambda q, bad: q.purge(running=bad)),
    "delete": ((5, "yes", None, LONE), lambda q, bad: q.delete(running=bad)),
    "dead limit": (COUNTS, lambda q, bad: q.dead(bad)),
    "dead before": ((5, "x", (1,), ("x", 1), (10**30, 1)), lambda q, bad: q.dead(before=bad)),
    "history limit": (COUNTS, lambda q, bad: q.history(bad)),
    "history before": ((5, "x", (1,), ("x", 1, 1), (10**30, 1, 1)), lambda q, bad: q.history(before=bad)),
    "history key": ((LONE, math.nan, 1.5, 10**30, object()), lambda q, bad: q.history(key=bad)),
    "revive": (NUMBERS, lambda q, bad: q.revive(bad)),
    "ack_flag": ((LONE, 5, None, b"x", ["x"], "x" * 2000), lambda q, bad: q.ack_flag(bad)),
    "wait seconds": (("5", None, math.nan, -1, 10**30, [1], True), lambda q, bad: q.wait(bad)),
    "wait listener": (TEXTS, lambda q, bad: q.wait(0, listener=bad)),
    "declare description": ((LONE, 5, None, ["x"]), lambda q, bad: q.declare(description=bad)),
    "declare schema": ((5, "x", LONE), lambda q, bad: q.declare(schema=bad)),
    "declare option": ((LONE, "x", -1, 10**30, True, math.nan, [1]), lambda q, bad: q.declare(max_timeouts=bad)),
    "declare time": ((LONE, "x", -1, 10**30, True, math.nan, [1]), lambda q, bad: q.declare(max_wait=bad)),
    "declare rate": ((LONE, "x", 5, "0/s", "1/0s", True, [1]), lambda q, bad: q.declare(rate_limit=bad)),
    "schedule name": (NAMES[:5] + NAMES[6:], lambda q, bad: q.schedules.set(bad, every="1h")),
    "schedule every": ((*TIMES, 0), lambda q, bad: q.schedules.set("s", every=bad)),
    "schedule cron": (
        (LONE, "", "x", 5, "* * * *", "99 * * * *", b"x", "* " * 5000),
        lambda q, bad: q.schedules.set("s", cron=bad),
    ),
    "schedule timezone": (
        (LONE, "", "x", 5, "../etc", b"x", "\0"),
        lambda q, bad: q.schedules.set("s", cron="@daily", timezone=bad),
    ),
    "schedule catch_up": ((LONE, "x", 5, None, ["one"]), lambda q, bad: q.schedules.set("s", every="1h", catch_up=bad)),
    "schedule data": (DATA, lambda q, bad: q.schedules.set("s", every="1h", data=bad)),
    "schedule priority": ((-1, 256, "5", None, True), lambda q, bad: q.schedules.set("s", every="1h", priority=bad)),
    "schedule get": (NAMES, lambda q, bad: q.schedules.get(bad)),
    "schedule pause": (NAMES, lambda q, bad: q.schedules.pause(bad)),
    "schedule remove": (NAMES, lambda q, bad: q.schedules.remove(bad)),
}


@pytest.fixture(params=["local", "http"])
async def log(request, tmp_path):
    async with connect(small_config(tmp_path / "data")) as local:
        if request.param == "local":
            yield local
        else:
            async with (
                serving(local, host="127.0.0.1", port=0, writable=True) as address,
                connect(address) as remote,
            ):
                yield remote


async def state(queue):
    """All that one can see of a queue."""
    declaration = await queue.declaration()
    waiting = [(info.key, info.row) async for info in queue.jobs()]
    schedules = [schedule.row for schedule in await queue.schedules.list()]
    kept = (await queue.dead(), await queue.history(), await queue.flags())
    return declaration, waiting, await queue.leases(), await queue.stats(), schedules, *kept


@pytest.mark.parametrize("name", CALLS)
async def test_what_is_no_argument_is_an_error_of_ours(log, name):
    values, call = CALLS[name]
    queue = log.queue("jobs")
    await queue.declare(keep_done="1h")
    await queue.put("waits")
    before = await state(queue)
    wrong = []
    for bad in values:
        try:
            found = await call(queue, bad)
        except EverlogError:
            pass
        except Exception as error:
            wrong.append(f"{bad!r:.60}: {type(error).__name__}: {error!s:.80}")
        else:
            wrong.append(f"{bad!r:.60} was taken: {found!r:.60}")
    assert not wrong, "\n" + "\n".join(wrong)
    assert await state(queue) == before


@pytest.mark.parametrize("bad", NAMES)
async def test_the_name_of_a_queue(log, bad):
    with pytest.raises(EverlogError):
        await log.queue(bad).put("a")
    assert await log.queues.names() == []


@pytest.mark.parametrize(
    "options",
    [
        *({"concurrency": bad} for bad in COUNTS),
        *({"poll_s": bad} for bad in ("5", None, math.nan, -1, True)),
        *({"grace_s": bad} for bad in ("5", None, math.nan, -1, True)),
        *({"name": bad} for bad in TEXTS),
    ],
    ids=repr,
)
async def test_what_a_worker_is_told(log, options):
    @everlog.job(queue="jobs")
    async def work(job): ...

    with pytest.raises(EverlogError):
        Worker(log.queues, [work], **options)
    assert await log.queues.names() == []


@pytest.mark.parametrize("text", [LONE, "x" * 100_000 + LONE, "\0"], ids=["lone", "long", "nul"])
async def test_an_error_whose_text_cannot_be_written_is_reported(log, text):
    """The attempt fails with a readable reason; it is not left to run out of its lease."""

    @everlog.job(queue="jobs")
    async def work(job):
        raise ValueError(text) if job.key == "error" else GiveUp(text)

    queue = log.queue("jobs")
    await queue.declare(max_timeouts=1)
    await queue.put("error")
    await queue.put("give up")
    worker = log.worker([work])
    running = asyncio.create_task(worker.run())

    await until(lambda: worker.counted["failed"] + worker.counted["unreported"] == 2)
    assert len(await queue.dead()) == 2
    assert all(len(letter.reason) <= 1000 for letter in await queue.dead())
    worker.stop()
    await running


async def test_a_reason_that_cannot_be_written_is_made_readable(log):
    queue = log.queue("jobs")
    await queue.put("a")
    (job,) = await queue.claim()
    await queue.fail(job, LONE, retry=False)
    assert [letter.reason for letter in await queue.dead()] == ["a\\ud800"]
    await queue.put("b")
    (job,) = await queue.claim()
    assert await queue.cancel("b", LONE * 600) == 1
    assert len((await queue.heartbeat(job)).reason) == 1000


async def test_a_worker_with_no_places(log):
    @everlog.job(queue="jobs")
    async def work(job): ...

    with pytest.raises(EverlogError):
        log.worker([work], concurrency=0)


@pytest.mark.parametrize("jobs", [[], None, 5, [5], [lambda job: None], "jobs"], ids=repr)
async def test_what_a_worker_runs(log, jobs):
    with pytest.raises(EverlogError):
        log.worker(jobs)
