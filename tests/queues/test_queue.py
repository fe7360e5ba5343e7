"""The client of queues: bad input is refused before anything is sent, keys and data come back as they were given."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import pytest

import everlog
from everlog.core.events import Json
from everlog.errors import (
    Busy,
    DeclarationRefused,
    InvalidConfig,
    InvalidHandle,
    InvalidInput,
    InvalidKey,
    InvalidPriority,
    KeyBusy,
    LeaseLost,
    NotTransactional,
    PayloadTooLarge,
    QueueNotFound,
)
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from everlog.queues.job import NewJob
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.queue import Queue
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from everlog.testing.queue_desk import T, VirtualClock
from tests.waiting import until


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def store(clock):
    return MemoryQueueStore(clock)


@pytest.fixture
async def queue(store):
    queue = Queue("jobs", store)
    await queue.declare(max_payload_bytes=100)
    return queue


class Untouched(MemoryQueueStore):
    """A store that nobody may write to."""

    async def execute(self, name, operation):
        raise AssertionError(f"{operation} was sent")


@pytest.mark.case("journal-tables", 11)
@pytest.mark.parametrize(
    ("error", "arguments", "options"),
    [
        (InvalidPriority, ("k",), {"priority": 256}),
        (InvalidPriority, ("k",), {"priority": -1}),
        (InvalidKey, (None,), {}),
        (InvalidKey, ("k" * 5000,), {}),
        (PayloadTooLarge, ("k", "x" * 101), {}),
        (InvalidInput, ("k", object()), {}),
        (InvalidInput, ("k", {"price": float("nan")}), {}),
        (InvalidInput, ("k", [float("inf")]), {}),
        (InvalidInput, ("k", Json("\ud800")), {}),
        (InvalidInput, ("k", json.loads("[" * 200 + "]" * 200)), {}),
        (InvalidInput, ("k",), {"at": datetime(2030, 1, 1)}),  # noqa: DTZ001
        (InvalidInput, ("k",), {"at": timedelta(1), "delay": 5}),
        (InvalidInput, ("k",), {"delay": "soon"}),
        (InvalidInput, ("k",), {"expires": "never"}),
    ],
)
async def test_bad_input_is_refused_before_any_io(error, arguments, options, clock):
    """A wrong priority, key, payload or date: a named error, and nothing was sent."""
    store = Untouched(clock)
    queue = Queue("jobs", store)
    await queue.declare(max_payload_bytes=100)
    with pytest.raises(error):
        await queue.put(*arguments, **options)


async def test_several_callers_may_wait_at_once(queue):
    """Under one name: a job wakes one of them, and the others go on waiting."""
    await queue.ensure()
    waiting = [asyncio.create_task(queue.wait(60)) for _ in range(3)]
    await until(lambda: queue.store.waker(queue.name).listeners.idle == 3)
    await queue.put("k")
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [True]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert queue.store.waker(queue.name).listeners.idle == 0


async def test_a_claim_is_bounded(queue):
    for wrong in (0, -1, 1001):
        with pytest.raises(InvalidInput):
            await queue.claim(wrong)
    with pytest.raises(InvalidInput):
        await queue.claim(lease=0)
    for wrong in ("", "a b", "../x", "x" * 101, 5):
        with pytest.raises(InvalidInput):
            Queue(wrong, queue.store)


async def test_a_handle_of_another_queue_is_refused_before_any_io(store):
    one, two = Queue("one", store), Queue("two", store)
    await one.put("k")
    await two.put("k")
    (job,) = await one.claim()
    with pytest.raises(InvalidHandle, match="'one'"):
        await two.done(job)
    await job.done()
    with pytest.raises(LeaseLost):
        await job.done()


async def test_an_unknown_queue_is_a_named_error(store):
    queue = Queue("nothing", store)
    for call in (
        queue.claim(),
        queue.peek(),
        queue.stats(),
        queue.pause(),
        queue.dead(),
        queue.get("k"),
        queue.wait(1),
    ):
        with pytest.raises(QueueNotFound):
            await call
    assert await store.names() == []


@pytest.mark.parametrize("data", [None, "text", "", b"\x00\xff", {"a": [1, None]}, [1, 2], 5, Json("text"), Json(None)])
@pytest.mark.parametrize("key", ["k", "", b"\x00", -5, ("page", 7, b"x")])
async def test_keys_and_data_come_back(queue, key, data):
    receipt = await queue.put(key, data, priority=3)
    (info,) = await queue.get(key)
    assert (info.key, info.data, info.priority) == (key, data.value if isinstance(data, Json) else data, 3)
    (job,) = await queue.claim()
    assert (job.key, job.data, job.entry, job.attempt) == (info.key, info.data, receipt.entry, 1)
    assert job.running
    await job.done()
    assert await queue.get(key) == []


async def test_dates_are_moments_or_how_long_from_now(queue, clock):
    moment = datetime.fromtimestamp(T / 1000, UTC) + timedelta(minutes=5)
    for at in ({"at": moment}, {"at": timedelta(minutes=5)}, {"delay": "5m"}, {"delay": 300}):
        await queue.put("k", **at, expires=timedelta(hours=1))
        (info,) = await queue.get("k")
        assert (info.due, info.expires) == (moment, moment + timedelta(minutes=55))
        await queue.cancel("k")
    await queue.put("k", expires=0.5)
    (info,) = await queue.get("k")
    assert info.expires == datetime.fromtimestamp(T // 1000 + 1, UTC)  # never earlier than it was told


async def test_one_bad_job_among_many_keeps_all_of_them_out(queue, store):
    for bad in (NewJob("b", priority=256), NewJob("b", "x" * 200), NewJob("b", at="soon"), (1.5, 0)):
        with pytest.raises(InvalidInput):
            await queue.put_many([("a", 1), bad, ("c", 1)])
    assert await queue.peek() == []
    assert await queue.put_many([]) == []


async def test_a_busy_key_among_many_does_not_hold_up_the_others(queue):
    await queue.declare(on_busy="reject")
    first = await queue.put("b", 1)
    assert await queue.claim()
    receipts = await queue.put_many([("a", 1), NewJob("b", 2), NewJob("c", delay="1m")])
    assert [receipt.result for receipt in receipts] == ["CREATED", "REJECTED", "CREATED"]
    assert receipts[1].entry == first.entry
    assert (await queue.stats()).delayed == 1


async def test_reject_is_an_error_and_drop_is_not(store):
    queue = Queue("jobs", store)
    await queue.declare(on_busy="reject")
    await queue.put("k")
    (job,) = await queue.claim()
    with pytest.raises(KeyBusy):
        await queue.put("k")
    await queue.declare(on_busy="drop")
    assert (await queue.put("k")).result == "DROPPED"
    await job.done()


@pytest.mark.parametrize("on_busy", ["reject", "drop"])
async def test_a_dead_job_is_kept_while_its_key_is_busy(queue, on_busy):
    """What cannot go back into the queue now stays a dead letter."""
    await queue.declare(on_busy=on_busy)
    await queue.put("k", 1)
    (job,) = await queue.claim()
    await queue.fail(job, "broken", retry=False)
    await queue.put("k", 2)
    (job,) = await queue.claim()
    (dead,) = await queue.dead()
    with pytest.raises(KeyBusy):
        await queue.revive(dead.entry)
    assert [letter.data for letter in await queue.dead()] == [1]
    await job.done()
    assert (await queue.revive(dead.entry)).result == "CREATED"
    assert await queue.dead() == []


async def test_a_dead_job_is_revived(queue, clock):
    await queue.put("k", {"n": 1})
    (job,) = await queue.claim()
    await queue.fail(job, "broken", retry=False)
    (dead,) = await queue.dead()
    assert (dead.key, dead.data, dead.cause, dead.reason) == ("k", {"n": 1}, "failed", "broken")
    assert (await queue.revive(dead.entry)).result == "CREATED"
    assert (await queue.dead(), await queue.revive(dead.entry)) == ([], None)
    (job,) = await queue.claim()
    assert (job.data, job.attempt) == ({"n": 1}, 1)
    assert [flag.reason for flag in await queue.flags()] == ["failed"]
    assert await queue.ack_flag("failed")
    assert not await queue.ack_flag("failed")


async def test_all_that_waits_can_be_walked(queue):
    for number in range(7):
        await queue.put(number, delay=number)
    assert [info.key async for info in queue.jobs(page=3)] == list(range(7))


PAGES = ColumnSchema(
    1, ("site", "page"), (Column("site", "string"), Column("page", "uint32"), Column("title", "string"))
)


async def test_declared_columns_are_checked_before_any_io(store):
    queue = Queue("pages", store)
    await queue.declare(schema=PAGES)
    await queue.put({"site": "a", "page": 7}, {"title": "x"})
    assert (await queue.put(("a", 7), {"title": "y"})).result == "MERGED"
    (info,) = await queue.get(("a", 7))
    assert (info.key, info.data) == (("a", 7), {"title": "y"})
    for key, data in (
        (("a", -1), None),
        (("a",), None),
        ({"site": "a"}, None),
        (("a", 7), {"title": 5}),
        (("a", 7), {"name": "x"}),
        (("a", 7), "text"),
    ):
        with pytest.raises(InvalidInput):
            await queue.put(key, data)


@pytest.mark.case("journal-tables", 42)
async def test_data_are_read_with_the_columns_that_they_were_written_with(store):
    queue = Queue("pages", store)
    await queue.declare(schema=PAGES)
    await queue.put(("a", 1), {"title": "old"})
    await queue.put(("a", 2), {"title": "old"})
    wider = ColumnSchema(1, PAGES.key, (*PAGES.columns[:2], Column("size", "int64"), PAGES.columns[2]))
    await queue.declare(schema=wider)
    await queue.put(("a", 2), {"title": "new", "size": 5})
    found = {info.key: (info.schema, info.data) for info in await queue.peek()}
    assert found == {("a", 1): (1, {"title": "old"}), ("a", 2): (2, {"title": "new", "size": 5})}
    with pytest.raises(DeclarationRefused):
        await queue.declare(schema=ColumnSchema(1, ("page",), PAGES.columns))


@pytest.fixture
async def app(tmp_path, clock):
    """An application's own database, and a queue in it."""
    store = SqliteQueueStore(tmp_path / "data", synchronous="NORMAL", clock=clock)
    queue = Queue("jobs", store)
    file = tmp_path / "app.db"
    await queue.declare(bucket="none", file=str(file))
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE orders (id TEXT)")
    connection.commit()
    yield connection, queue
    connection.close()
    await store.close()


async def test_a_job_in_the_callers_transaction_shares_its_fate(app):
    connection, queue = app
    for fate, jobs in (("rollback", []), ("commit", ["o-1"])):
        connection.execute("INSERT INTO orders VALUES ('o-1')")
        assert queue.put_in(connection, "o-1", {"send": "invoice"}, priority=5).result == "CREATED"
        getattr(connection, fate)()
        assert [info.key for info in await queue.peek()] == jobs
    assert queue.put_in(connection, "o-1", 2).result == "MERGED"
    connection.commit()
    (job,) = await queue.claim()
    assert (job.data, job.priority) == (2, 5)
    await job.done()
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    with pytest.raises(InvalidPriority):
        queue.put_in(connection, "k", priority=999)


async def test_a_transaction_that_read_too_early_is_told_so(app):
    """Another process wrote since: waiting cannot help, only a new transaction can."""
    connection, queue = app
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM orders").fetchone()
    await queue.put("other")
    with pytest.raises(Busy, match="BEGIN IMMEDIATE"):
        queue.put_in(connection, "mine")
    connection.rollback()
    assert queue.put_in(connection, "mine").result == "CREATED"
    connection.commit()
    assert sorted(info.key for info in await queue.peek()) == ["mine", "other"]


async def test_a_queue_elsewhere_is_not_transactional(app, tmp_path, store):
    connection, queue = app
    other = Queue("other", queue.store)
    await other.declare()
    with pytest.raises(NotTransactional, match="bucket='none'"):
        other.put_in(connection, "k")
    with pytest.raises(NotTransactional):
        Queue("jobs", store).put_in(connection, "k")
    itself = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    with pytest.raises(NotTransactional, match="BEGIN"):
        queue.put_in(itself, "k")
    itself.close()
    with pytest.raises(InvalidConfig):
        await other.declare(file="x.db", bucket="none")
    await queue.put("k")
    with pytest.raises(DeclarationRefused):
        await queue.declare(bucket="none")


def test_the_blocking_twin(tmp_path):
    with everlog.sync.connect(tmp_path) as log:
        queue = log.queue("jobs")
        assert queue.put("k", 1).result == "CREATED"
        assert queue.put("k", 2).result == "MERGED"
        assert [info.data for info in queue.jobs()] == [2]
        (job,) = queue.claim()
        queue.done(job)
        assert queue.stats().ready == 0
        assert queue.name == "jobs"


def test_the_blocking_worker(tmp_path):
    ran = []

    @everlog.job("jobs")
    def work(job):
        ran.append(job.key)
        if len(ran) == 3:
            threading.Thread(target=worker.stop).start()

    with everlog.sync.connect(tmp_path) as log:
        for number in range(3):
            log.queue("jobs").put(number)
        worker = log.worker(work, concurrency=1)
        worker.run()
        assert sorted(ran) == [0, 1, 2]
        assert log.queue("jobs").stats().ready == 0


def test_the_blocking_twin_puts_into_a_transaction(tmp_path):
    file = tmp_path / "app.db"
    with everlog.sync.connect(tmp_path / "data") as log:
        queue = log.queue("jobs")
        queue.declare(bucket="none", file=str(file))
        connection = sqlite3.connect(file)
        with connection:
            assert queue.put_in(connection, "k").result == "CREATED"
        connection.close()
        assert [info.key for info in queue.peek()] == ["k"]


async def test_options_come_from_the_configuration(tmp_path):
    (tmp_path / "everlog.toml").write_text('[queues.jobs]\nmax_wait = "1m"\nmax_timeouts = 2\n')
    async with everlog.connect(tmp_path) as log:
        await log.queue("jobs").put("k")
        options = (await log.queue("jobs").declaration()).options
        assert (options.max_wait, options.max_timeouts) == ("1m", 2)
        await log.queue("jobs").declare(max_timeouts=3)
        options = (await log.queue("jobs").declaration()).options
        assert (options.max_wait, options.max_timeouts) == ("1m", 3)
    (tmp_path / "everlog.toml").write_text('[queues.jobs]\nmax_wait = "2m"\n')
    async with everlog.connect(tmp_path) as log:  # a change of the file counts from the next start on
        await log.queue("jobs").put("k")
        options = (await log.queue("jobs").declaration()).options
        assert (options.max_wait, options.max_timeouts) == ("2m", 5)
    (tmp_path / "everlog.toml").write_text('[queues.jobs]\nmax_wait = "1 parsec"\n')
    with pytest.raises(InvalidConfig, match="max_wait"):
        everlog.connect(tmp_path)


def test_every_option_is_documented_with_its_default():
    import json
    from pathlib import Path

    from everlog.config.queue_options import QueueOptions

    page = (Path(__file__).parents[2] / "docs" / "queues-operating.md").read_text()
    table = page[page.index("## Options") : page.index("## Declared columns")]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines() if line.startswith("| `")]
    written = {}
    for names, defaults in rows:
        for name, default in zip(names.split(", "), defaults.split(", "), strict=True):
            written[name.strip("`")] = None if default == "none" else json.loads(default.strip("`"))
    default = QueueOptions()
    assert written == {name: getattr(default, name) for name in QueueOptions.__struct_fields__}
