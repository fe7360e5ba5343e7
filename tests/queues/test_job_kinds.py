"""Several functions for one queue: each does the jobs of its kind, with its own retries, and puts jobs by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

import everlog
from everlog import RetryPolicy
from everlog.console.server import serving
from everlog.errors import InvalidInput, InvalidKey
from everlog.queues import job_runner
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from everlog.queues.job_function import find_jobs
from everlog.queues.open_logs import innermost_log
from everlog.queues.operations import Claim, Fail, Release
from everlog.queues.worker import Worker
from tests.support import small_config
from tests.waiting import until


@pytest.fixture(params=["files", "HTTP"])
async def log(request, tmp_path):
    """A folder, and the same over HTTP: workers know no difference."""
    async with everlog.connect(small_config(tmp_path / "data")) as local:
        if request.param == "files":
            yield local
        else:
            async with (
                serving(local, host="127.0.0.1", port=0, writable=True) as address,
                everlog.connect(address) as remote,
            ):
                yield remote


@asynccontextmanager
async def working(log, *functions, **options):
    worker = log.worker(functions, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await task


@pytest.fixture
def operations(log, monkeypatch):
    """What the worker asks of the store."""
    found, execute = [], log.queues.execute

    async def noted(name, operation):
        found.append(operation)
        return await execute(name, operation)

    monkeypatch.setattr(log.queues, "execute", noted)
    return found


async def test_each_kind_has_its_function(log):
    """In order of the queue, from one loop of claims; a plain function among them."""
    ran = []

    @everlog.job("mails", kind="welcome")
    async def welcome(job, to: str, retries: int = 3):
        ran.append(("welcome", job.kind, to, retries))

    @everlog.job("mails", kind="goodbye")
    def goodbye(to: str):
        ran.append(("goodbye", to))

    @everlog.job("mails")
    async def other(job):
        ran.append(("other", job.kind, job.data))

    @everlog.job("reports", kind="welcome")
    async def report():
        ran.append(("report",))

    mails = log.queue("mails")
    await mails.put("a", {"to": "eve"}, kind="welcome")
    await mails.put("b", {"to": "bob"}, kind="goodbye")
    await mails.put("c", b"raw")
    await welcome.on(log).put(to="adam", retries=5)
    await report.on(log).put()
    async with working(log, welcome, goodbye, other, report) as worker:
        await until(lambda: worker.counted["done"] == 5)
        names = {loop.name for loop in worker.status()}
        assert {name for name in names if name.startswith("claims")} == {"claims of mails", "claims of reports"}
    assert sorted(ran) == [
        ("goodbye", "bob"),
        ("other", None, b"raw"),
        ("report",),
        ("welcome", "welcome", "adam", 5),
        ("welcome", "welcome", "eve", 3),
    ]


async def test_concurrency_counts_per_queue(log):
    running, most = set(), []

    async def work(job):
        running.add(job.key)
        most.append(len(running))
        await asyncio.sleep(0.01)
        running.discard(job.key)

    kinds = ["a", "b", "c"]
    await log.queue("jobs").put_many([everlog.NewJob(n, kind=kinds[n % 3]) for n in range(12)])
    async with working(log, *(everlog.job("jobs", kind=kind)(work) for kind in kinds), concurrency=2) as worker:
        await until(lambda: worker.counted["done"] == 12)
    assert max(most) == 2


def test_two_functions_of_one_kind_are_refused():
    def function(name="work", **options):
        def work(job): ...

        work.__name__ = name
        return everlog.job("mails", **options)(work)

    assert len(find_jobs([function(), function(kind="a"), function(kind="b")])) == 3
    with pytest.raises(InvalidInput, match="two functions do the jobs of the kind 'a' of the queue 'mails'"):
        find_jobs([function(kind="a"), function(kind="a")])
    with pytest.raises(InvalidInput, match="two functions do the jobs without a kind of the queue 'mails'"):
        find_jobs([function(), function(kind="")])
    with pytest.raises(InvalidInput, match="two functions 'work' declare a schedule of the queue 'mails'"):
        find_jobs([function(kind="a", every="1h"), function(kind="b", every="1h")])
    for wrong in ("no blanks", 7, b"a"):
        with pytest.raises(InvalidInput, match="a kind is"):
            function(kind=wrong)


async def test_a_schedule_of_a_function_puts_jobs_of_its_kind(log):
    ran = []

    @everlog.job("reports", kind="daily", every="20ms", data={"since": UUID(int=7)}, priority=9)
    async def daily(job, since: UUID, full: bool = False):
        ran.append((job.key, job.kind, job.priority, since, full))

    async with working(log, daily):
        await until(lambda: ran)
    assert ran[0] == ("daily", "daily", 9, UUID(int=7), False)
    (info,) = await log.queue("reports").schedules.list()
    assert (info.kind, info.data) == ("daily", {"since": str(UUID(int=7))})


@pytest.mark.parametrize("data", [None, {"to": 5}, {"too": "e"}, "text"])
def test_a_schedule_whose_data_do_not_fit(data):
    @everlog.job("mails", every="1h", data=data)
    async def mail(to: str): ...

    with pytest.raises(InvalidInput, match="mail"):
        find_jobs(mail)


# Unknown kinds.


async def test_an_unknown_kind_waits_for_a_worker_that_knows_it(log, monkeypatch, operations, caplog):
    """Given back uncounted, later each time, with a flag; the other jobs go on."""
    monkeypatch.setattr(job_runner, "MIN_UNKNOWN_S", 0.01)
    monkeypatch.setattr(job_runner, "MAX_UNKNOWN_S", 0.04)
    ran = []

    @everlog.job("mails", kind="known")
    async def known(job):
        ran.append(job.key)

    @everlog.job("mails", kind="new")
    async def new(job):
        ran.append((job.key, job.attempt))

    mails = log.queue("mails")
    await mails.put("n", kind="new")
    await mails.put("k", kind="known")
    async with working(log, known) as worker:
        await until(lambda: worker.counted["unknown_kind"] >= 4)
        assert ran == ["k"]
        (flag,) = await mails.flags()
        assert (flag.reason, flag.owner) == ("unknown_kind", worker.name)
        assert flag.count >= 4
    delays = [one.delay_ms for one in operations if isinstance(one, Release) and one.flag]
    assert delays[:5] == [10, 20, 40, 40, 40][: len(delays)]
    assert "no function here does job" in caplog.text
    async with working(log, new):
        await until(lambda: ran == ["k", ("n", 1)])


async def test_a_job_without_a_kind_is_unknown_where_all_functions_have_one(log):
    @everlog.job("mails", kind="known")
    async def known(job): ...

    await log.queue("mails").put("k")
    async with working(log, known) as worker:
        await until(lambda: worker.counted["unknown_kind"] == 1)
    assert (await log.queue("mails").stats()).delayed == 1


async def test_many_unknown_jobs_are_no_busy_loop(log, monkeypatch, operations):
    """More than a worker remembers: those wait for long at once."""
    monkeypatch.setattr(job_runner, "MAX_UNKNOWN_KEPT", 2)

    @everlog.job("mails")
    async def known(job): ...

    await log.queue("mails").put_many([everlog.NewJob(n, kind="new") for n in range(5)])
    async with working(log, known, concurrency=1) as worker:
        await until(lambda: worker.counted["unknown_kind"] == 5)
    assert sorted(one.delay_ms for one in operations if isinstance(one, Release)) == [1000, 1000, 60000, 60000, 60000]


# Retries and leases of a kind.


def test_a_retry_policy_doubles_up_to_its_limit():
    chance = random.Random(7)
    policy = RetryPolicy(backoff="10s", max_backoff="1m")
    assert [policy.delay_ms(n, chance) for n in (1, 2, 3, 4, 255)] == [10_000, 20_000, 40_000, 60_000, 60_000]
    assert RetryPolicy(max_attempts=3).delay_ms(1, chance) is None
    assert [RetryPolicy(max_attempts=3).allows(n) for n in (1, 2, 3, 4)] == [True, True, False, False]
    jittered = RetryPolicy(backoff=timedelta(seconds=10), max_backoff="11s", jitter=0.2)
    found = [jittered.delay_ms(1, chance) for _ in range(200)]
    assert (min(found) < 8_500, max(found)) == (True, 11_000)
    assert all(8_000 <= one <= 11_000 for one in found)
    assert RetryPolicy() == RetryPolicy()
    assert [RetryPolicy(backoff="3d").delay_ms(n, chance) for n in (1, 2)] == [3 * 86_400_000] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 256},
        {"max_attempts": True},
        {"max_attempts": 2.0},
        {"backoff": "soon"},
        {"backoff": -1},
        {"backoff": b"1s"},
        {"backoff": float("nan")},
        {"backoff": True},
        {"backoff": "1s", "max_backoff": "11 years ago"},
        {"backoff": "1s", "jitter": 1.1},
        {"backoff": "1s", "jitter": float("nan")},
        {"backoff": "1s", "jitter": "some"},
        {"jitter": 0.5},
        {"max_backoff": "1h"},
        {"backoff": "10s", "max_backoff": "1s"},
    ],
    ids=str,
)
def test_a_policy_that_is_none(options):
    with pytest.raises(InvalidInput):
        RetryPolicy(**options)


def test_bad_options_of_a_function():
    for options in (
        {"retries": 5},
        {"retries": {"max_attempts": 3}},
        {"key": 5},
        {"key": "no_argument"},
        {"priority": 256},
        {"timeout": 0},
    ):
        with pytest.raises(InvalidInput):

            @everlog.job("mails", **options)
            async def mail(to: str): ...


async def test_each_kind_is_tried_again_as_its_policy_says(log, operations):
    """An explicit Retry(delay=…) wins; so does GiveUp."""

    @everlog.job("jobs", kind="thrice", retries=RetryPolicy(max_attempts=3, backoff="10ms", max_backoff="1s"))
    async def thrice(job):
        raise KeyError("no")

    @everlog.job("jobs", kind="told", retries=RetryPolicy(max_attempts=2, backoff="1h"))
    async def told(job):
        raise everlog.Retry("busy", delay="30ms")

    @everlog.job("jobs", kind="never", retries=RetryPolicy(max_attempts=5, backoff="1h"))
    async def never(job):
        raise everlog.GiveUp("no use")

    @everlog.job("jobs")
    async def once(job):
        raise KeyError("as the queue says")

    queue = log.queue("jobs")
    await queue.declare(max_timeouts=4)
    for kind in ("thrice", "told", "never", None):
        await queue.put(kind or "once", kind=kind)
    async with working(log, thrice, told, never, once) as worker:
        await until(lambda: worker.counted["failed"] == 3 + 2 + 1 + 4)
    letters = {letter.key: letter for letter in await queue.dead()}
    assert {key: (letter.cause, len(letter.attempts)) for key, letter in letters.items()} == {
        "thrice": ("failed", 3),
        "told": ("failed", 2),
        "never": ("failed", 1),
        "once": ("failed", 4),
    }
    fails = [(one.reason, one.delay_ms, one.retry) for one in operations if isinstance(one, Fail)]
    assert [one for one in fails if "'no'" in one[0]] == [
        ("KeyError: 'no'", 10, True),
        ("KeyError: 'no'", 20, True),
        ("KeyError: 'no'", 40, False),
    ]
    assert [one for one in fails if one[0] == "busy"] == [("busy", 30, True), ("busy", 30, False)]


def test_jitter_makes_pauses_longer_and_shorter():
    """By up to its share, and never beyond the longest pause."""
    chance = random.Random(1)
    found = [RetryPolicy(backoff="10s", jitter=0.2).delay_ms(1, chance) for _ in range(300)]
    assert 8_000 <= min(found) < 8_500
    assert 11_500 < max(found) <= 12_000
    bounded = RetryPolicy(backoff="10s", max_backoff="10s", jitter=1.0)
    found = [bounded.delay_ms(9, chance) for _ in range(300)]
    assert min(found) < max(found) == 10_000
    assert {RetryPolicy(backoff="10s").delay_ms(1, chance) for _ in range(10)} == {10_000}


async def test_jitter_comes_from_the_given_source(log, operations):
    @everlog.job("jobs", retries=RetryPolicy(max_attempts=2, backoff="10ms", jitter=1.0))
    async def work(job):
        raise KeyError

    await log.queue("jobs").put("k")
    worker = Worker(log.queues, work, chance=random.Random(7))
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.counted["failed"] == 2)
    worker.stop()
    await running
    policy, chance = work.retries, random.Random(7)
    assert [one.delay_ms for one in operations if isinstance(one, Fail)] == [policy.delay_ms(n, chance) for n in (1, 2)]


async def test_more_attempts_than_the_queue_allows_are_a_warning(log, caplog):
    @everlog.job("jobs", retries=RetryPolicy(max_attempts=9))
    async def work(job): ...

    with caplog.at_level(logging.WARNING):
        async with working(log, work) as worker:
            await until(lambda: worker.ready)
    assert "work asks for 9 attempts, but the queue jobs gives up after 5: declare it with" in caplog.text


@pytest.mark.parametrize(
    ("timeouts", "lease_ms"),
    [
        (["1m", "2m"], 120_000),
        (["1m", None], 300_000),
        (["10m", None], 600_000),
        ([None, None], None),
    ],
)
async def test_a_claim_leases_for_the_longest_time_that_a_function_asks_for(log, operations, timeouts, lease_ms):
    async def work(job): ...

    await log.queue("jobs").declare(processing_timeout="5m")
    functions = [everlog.job("jobs", kind=f"k{n}", timeout=one)(work) for n, one in enumerate(timeouts)]
    async with working(log, *functions):
        await until(lambda: any(isinstance(one, Claim) for one in operations))
    assert {one.lease_ms for one in operations if isinstance(one, Claim)} == {lease_ms}


# Puts by a function.


@everlog.job("mails", kind="welcome", key="to", priority=7)
async def welcome(job, to: str, again: bool = False): ...


@everlog.job("mails")
async def raw(job): ...


async def test_a_put_by_the_function(log):
    mails = log.queue("mails")
    sender = welcome.on(log)
    assert (await sender.put(to="eve")).result == "CREATED"
    assert (await sender.put(to="eve", again=True)).result == "MERGED", "the argument is the key"
    (job,) = await mails.peek()
    assert (job.key, job.kind, job.priority, job.data) == (
        "welcome:eve",
        "welcome",
        7,
        {"to": "eve", "again": True},
    )
    options = {"key": "u-7", "delay": "10m", "expires": "1h", "priority": 3, "group": "g"}
    at = datetime.now(UTC) + timedelta(days=1)  # one time replaces another
    await sender.options(at=at, priority=5).options(**options).put(to="bob")
    (job,) = await mails.get("welcome:u-7")
    assert (job.priority, job.group, job.due - job.inserted) == (3, "g", timedelta(minutes=10))
    assert job.expires is not None
    receipts = await sender.put_many([{"to": "a"}, {"to": "b"}, {"to": "a"}])
    assert [one.result for one in receipts] == ["CREATED", "CREATED", "MERGED"]
    for wrong in ([5], ["text"], 5):
        with pytest.raises(InvalidInput):
            await sender.put_many(wrong)
    for wrong in (5, None, log.queue("mails")):
        with pytest.raises(InvalidInput, match="takes an open log"):
            welcome.on(wrong)
        with pytest.raises(InvalidInput, match=r"with @everlog.job"):
            log.job_sender(wrong)
    await raw.on(log).put(data=b"\0")
    await raw.on(log).put()
    assert sorted(str(job.data) for job in await mails.peek() if job.kind is None) == ["None", "b'\\x00'"]
    with pytest.raises(InvalidInput, match="raw has no argument 'to': it takes data"):
        await raw.on(log).put(to="eve")


async def test_without_a_key_each_put_is_a_job_of_its_own(log):
    @everlog.job("jobs")
    async def work(n: int): ...

    receipts = await work.on(log).put_many([{"n": 1}, {"n": 1}])
    assert [one.result for one in receipts] == ["CREATED", "CREATED"]


async def test_a_key_made_of_arguments(log):
    @everlog.job("jobs", key=lambda arguments: (arguments["site"], arguments["page"].int))
    async def work(page: UUID, site: str = "home"): ...

    @everlog.job("jobs", kind="page", key="page")
    async def by_page(page: UUID): ...

    @everlog.job("jobs", kind="float", key="n")
    async def by_number(n: float): ...

    await work.on(log).put(page=UUID(int=7))
    await by_page.on(log).put(page=UUID(int=7))
    assert {job.key for job in await log.queue("jobs").peek()} == {("home", 7), f"page:{UUID(int=7)}"}
    with pytest.raises(InvalidKey):
        await by_number.on(log).put(n=1.5)


async def test_kinds_do_not_swallow_each_other(log):
    """The same argument is the key of two kinds, or one key is given to both: each kind has its jobs."""
    ran = []

    @everlog.job("letters", kind="welcome", key="to")
    async def first(to: str):
        ran.append(("welcome", to))

    @everlog.job("letters", kind="survey", key="to")
    async def second(to: str):
        ran.append(("survey", to))

    @everlog.job("letters", key="to")
    async def third(to: str):
        ran.append((None, to))

    for function in (first, second, third):
        assert (await function.on(log).put(to="eve")).result == "CREATED"
    for function in (first, second):
        sender = function.on(log)
        for key in ("k", 7, b"k", ("k", 7)):
            assert (await sender.options(key=key).put(to="bob")).result == "CREATED"
            assert (await sender.options(key=key).put(to="bob")).result == "MERGED"
    letters = log.queue("letters")
    assert await letters.cancel("welcome:k") == 1
    assert await letters.cancel(("welcome", "k", 7)) == 1
    async with working(log, first, second, third) as worker:
        await until(lambda: worker.counted["done"] == 9)
    assert Counter(ran) == {
        ("welcome", "eve"): 1,
        ("survey", "eve"): 1,
        (None, "eve"): 1,
        ("welcome", "bob"): 2,
        ("survey", "bob"): 4,
    }


async def test_the_key_of_declared_columns_is_theirs_alone(log):
    """There is no room for a kind in it: what merges is what the columns say."""
    columns = (Column("site", "string"), Column("page", "int64"), Column("size", "int64"))
    await log.queue("pages").declare(schema=ColumnSchema(1, ("site", "page"), columns))

    @everlog.job("pages", kind="index")
    async def index(size: int): ...

    await index.on(log).options(key={"site": "home", "page": 7}).put(size=1)
    (job,) = await log.queue("pages").peek()
    assert job.key == ("home", 7)


async def test_arguments_of_any_name(log):
    """No option of a put is in their way."""

    @everlog.job("jobs")
    async def work(key: str, delay: int, self: int, kind: str, queue: str, options: str): ...

    given = {"key": "k", "delay": 1, "self": 2, "kind": "x", "queue": "q", "options": "o"}
    await work.on(log).put(**given)
    await work.put(**given)
    assert [job.data for job in await log.queue("jobs").peek()] == [given, given]


async def test_a_put_into_the_log_that_is_open(tmp_path):
    with pytest.raises(InvalidInput, match=r"welcome.on\(log\)"):
        await welcome.put(to="eve")
    outer, inner = everlog.connect(tmp_path / "outer"), everlog.connect(tmp_path / "inner")
    async with outer:
        async with inner:
            await welcome.put(to="inner")
            await asyncio.create_task(welcome.put_many([{"to": "task"}]))
            await welcome.options(priority=1).put(to="options")
            await welcome.on(outer).put(to="named")
            found = sorted(str(job.key) for job in await inner.queue("mails").peek())
        await welcome.put(to="outer")
        assert sorted(str(job.key) for job in await outer.queue("mails").peek()) == ["welcome:named", "welcome:outer"]
    assert found == ["welcome:inner", "welcome:options", "welcome:task"]
    assert innermost_log() is None
    with pytest.raises(InvalidInput, match="no log is open here"):
        await welcome.put(to="eve")


async def test_logs_that_close_in_another_order_or_context(tmp_path):
    """As fixtures do: each step runs in a context of its own."""
    first, second = everlog.connect(tmp_path / "a"), everlog.connect(tmp_path / "b")
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    await welcome.put(to="second")
    await asyncio.create_task(second.__aexit__(None, None, None))
    with pytest.raises(RuntimeError, match="not open"):
        await welcome.put(to="eve")
    async with second:
        assert [job.key for job in await second.queue("mails").peek()] == ["welcome:second"]


async def test_a_job_puts_another_one(log, tmp_path):
    """Into the log of its worker, wherever that was begun."""
    ran = []

    @everlog.job("jobs", kind="first")
    async def first(n: int):
        await second.put(n=n + 1)

    @everlog.job("jobs", kind="second")
    async def second(n: int):
        ran.append(n)

    await first.on(log).put(n=1)
    async with everlog.connect(tmp_path / "another"), working(log, first, second):
        await until(lambda: ran == [2])


async def test_a_worker_leaves_the_context_as_it_was(log):
    @everlog.job("jobs")
    async def work(job):
        worker.stop()

    before = innermost_log()
    await log.queue("jobs").put("k")
    worker = log.worker(work)
    await worker.run()
    assert innermost_log() == before
