"""The blocking twin: the same calls, the same results, no event loop in sight."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import everlog
from everlog import Event, sync
from everlog.api import Everlog
from everlog.errors import Conflict, InvalidId, InvalidInput, JournalHalted, NotWritable
from everlog.journal.journal import Journal
from everlog.journal.quarantine import Quarantine
from everlog.journal.snapshots import Snapshots
from everlog.queues.job_sender import JobSender
from everlog.queues.queue import Queue
from everlog.queues.worker import Worker
from everlog.runtime.twin import blocking
from everlog.testing.journal_support import BROKEN, produce
from tests.support import small_config


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("everlog")]


@pytest.fixture
def log(tmp_path):
    with everlog.sync.connect(small_config(tmp_path)) as log:
        yield log
    assert threads() == [], "closing ends the threads"


def test_the_story_of_a_journal(log):
    orders = log.journal("orders")
    token = orders.append("o-1", [Event({"placed": 3}, tags={"eu"}), Event("text")], expected=0)
    assert token.range == (1, 2)
    assert [event.payload for event in orders.read("o-1", after=token)] == [{"placed": 3}, "text"]
    assert [event.seq_nr for event in orders.read("o-1", from_seq=2)] == [2]
    assert orders.pointer("o-1") == 2
    assert orders.head("o-1").seq_nr == 2
    orders.snapshots.save("o-1", seq_nr=1, payload={"sum": 3})
    assert orders.snapshots.load("o-1").payload == {"sum": 3}
    assert len(orders.snapshots.list("o-1")) == 1
    recovered = orders.recover("o-1")
    assert (recovered.seq_nr, recovered.snapshot.seq_nr) == (2, 1)
    assert [event.seq_nr for event in recovered.events] == [2]
    assert orders.snapshots.delete("o-1", seq_nr=1) == 1
    assert orders.delete("o-1", to=1).offset == 1
    assert [event.seq_nr for event in orders.read("o-1")] == [2]
    assert list(orders.keys()) == ["o-1"]
    assert log.topics() == ["orders"]
    orders.mark("o-1", "m")
    orders.purge("o-1")
    assert orders.pointer("o-1") is None
    assert log.status().lag == 4
    assert log.expire().purged == {"orders": 0}
    assert log.trim() == {}


@pytest.mark.parametrize(
    ("twin", "original"),
    [
        (sync.SyncEverlog, Everlog),
        (sync.SyncJournal, Journal),
        (sync.SyncSnapshots, Snapshots),
        (sync.SyncQuarantine, Quarantine),
        (sync.SyncQueue, Queue),
        (sync.SyncWorker, Worker),
        (sync.SyncJobSender, JobSender),
    ],
)
def test_nothing_is_missing(twin, original):
    """Every public method and property of the original has a twin with the same arguments."""
    internal = {"log_name", "parts", "queues", "recent_keys", "ref", "show_loops"}
    for name, member in inspect.getmembers(original):
        if name.startswith("_") or name in internal:
            continue
        assert hasattr(twin, name), f"{twin.__name__}.{name} is missing"
        if inspect.isfunction(member):
            ours, theirs = inspect.signature(getattr(twin, name)), inspect.signature(member)
            assert list(ours.parameters.values())[1:] == list(theirs.parameters.values())[1:], name


def test_errors_come_as_they_are(log):
    journal = log.journal("t")
    journal.append("k", Event(1))
    with pytest.raises(Conflict):
        journal.append("k", Event(1), expected=7)
    with pytest.raises(InvalidId):
        journal.append("", Event(1))
    with pytest.raises(InvalidId):
        next(journal.read(""))


def test_an_error_comes_after_the_items_before_it(log):
    journal = log.journal("t")
    journal.append("k", [Event(n) for n in range(10)])
    log._portal.call(produce(log._inner, "k", BROKEN))
    events = journal.read("k")
    assert [next(events).seq_nr for _ in range(10)] == list(range(1, 11))
    with pytest.raises(JournalHalted):
        next(events)
    (item,) = log.quarantine.list()
    assert log.quarantine.show("t", item.partition, item.offset) == item
    log.quarantine.retry("t", "k")
    log.quarantine.skip("t", "k")
    assert len(list(journal.read("k"))) == 10


def test_a_read_fetches_page_by_page(log, monkeypatch):
    """Nothing is fetched before it is asked for, and a read that is given up has fetched one page (of four)."""
    journal = log.journal("t")
    for number in range(10):
        journal.append("k", Event(number))
    calls = []
    call = log._portal.call
    monkeypatch.setattr(log._portal, "call", lambda work: calls.append(work) or call(work))
    events = journal.read("k")
    assert calls == []
    assert [next(events).seq_nr for _ in range(4)] == [1, 2, 3, 4]
    events.close()
    assert len(calls) == 1
    assert len(list(journal.read("k"))) == 10


def test_threads_share_one_twin(log):
    journal = log.journal("t")
    with ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(lambda at: journal.append("k", Event(at)), range(100)))
    assert sorted(token.range.first for token in tokens) == list(range(1, 101))
    assert len(list(journal.read("k"))) == 100


def test_it_must_be_open(tmp_path):
    log = sync.connect(small_config(tmp_path))
    with pytest.raises(RuntimeError, match="not open"):
        log.topics()
    with log:
        journal = log.journal("t")
        journal.append("k", Event(1))
        events = journal.read("k")
        next(events)
    with pytest.raises(RuntimeError, match="not open"):
        log.topics()
    with pytest.raises(RuntimeError, match="closed"):
        journal.pointer("k")
    events.close()
    log.close()
    with log:
        assert log.journal("t").pointer("k") == 1, "it can be opened again"


def test_an_opening_that_fails_leaves_no_thread(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritable), sync.connect(tmp_path / "file" / "folder"):
        pass
    assert threads() == []


@pytest.mark.parametrize("seen_by", ["the process", "another thread"])
def test_ctrl_c_interrupts_a_call(tmp_path, monkeypatch, seen_by):
    """The call that waits is given up, and the twin still closes. A signal that another thread gets, or this one just
    before it waits, does not end the wait by itself."""
    reached = threading.Event()

    async def stuck(self, name):
        reached.set()
        await asyncio.Event().wait()

    def interrupt():
        reached.wait(30)
        if seen_by == "the process":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with sync.connect(small_config(tmp_path)) as log:
        journal = log.journal("t")
        journal.append("k", Event(1))
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "pointer", stuck)
            patch.setattr(sync.SyncJournal, "pointer", blocking(Journal.pointer))
            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                journal.pointer("k")
            thread.join()
        assert journal.pointer("k") == 1
    assert threads() == []


def test_jobs_by_their_functions(log):
    """Put without await, run by a worker of this log, which a job's own puts reach, too; inside middleware."""
    ran, around = [], []

    async def note(job, call_next):
        around.append(job.kind)
        return await call_next(job)

    @everlog.job("jobs", kind="first", key="n")
    async def first(n: int):
        await second.put(n=n + 1)

    @everlog.job("jobs", kind="second")
    def second(n: int):
        ran.append(n)
        if len(ran) == 2:
            threading.Thread(target=worker.stop).start()

    receipts = first.on(log).put_many([{"n": 1}, {"n": 5}])
    assert [one.result for one in receipts] == ["CREATED", "CREATED"]
    assert first.on(log).options(priority=3).put(n=1).result == "MERGED"
    with pytest.raises(InvalidInput, match="'n' is missing"):
        log.job_sender(first).put()
    worker = log.worker([first, second], middleware=[note])
    worker.run()
    assert (sorted(ran), sorted(around)) == ([2, 6], ["first", "first", "second", "second"])
