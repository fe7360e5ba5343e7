"""The blocking twin: the same API without `await`.

    with everlog.sync.connect("everlog-data") as log:
        log.journal("orders").append("o-1", [Event({"placed": 3})])
        for event in log.journal("orders").read("o-1"): ...

No second implementation: every call runs the asynchronous one in an event loop of its own thread. A twin may be used
by any number of threads; their appends then share commits.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, overload

from everlog import api, client
from everlog.config import Config
from everlog.core.event_types import EventClasses
from everlog.core.events import EventRecord
from everlog.core.tag_names import SLICES
from everlog.core.values import Position, Version
from everlog.journal import journal as asynchronous
from everlog.journal import quarantine, snapshots
from everlog.journal.aggregate import A
from everlog.journal.aggregate_update import MAX_RETRIES, check_decision
from everlog.pekko import reader
from everlog.projections import api as projections
from everlog.projections.projection import Projection
from everlog.projections.runner import Runner
from everlog.queues import job_sender as senders
from everlog.queues import queue as queues
from everlog.queues import schedules
from everlog.queues import worker as workers
from everlog.queues.job import Receipt
from everlog.queues.job_function import JobFunction
from everlog.queues.middleware import JobMiddleware
from everlog.runtime.clock import Clock
from everlog.runtime.portal import Portal
from everlog.runtime.supervisor import LoopStatus
from everlog.runtime.trace import Trace
from everlog.runtime.twin import FETCH, Twin, blocking, flattening, items_of, iterating
from everlog.store.port import Snapshot
from everlog.tags import tag

if TYPE_CHECKING:
    from everlog.documents.sync import SyncDocuments


@dataclass(frozen=True, slots=True)
class SyncRecovered:
    """As `everlog.Recovered`, with plain events."""

    seq_nr: Version
    snapshot: Snapshot | None
    events: Iterator[EventRecord]


class SyncSnapshots(Twin[snapshots.Snapshots]):
    """The snapshots of one topic's journals."""

    save = blocking(snapshots.Snapshots.save)
    load = blocking(snapshots.Snapshots.load)
    list = blocking(snapshots.Snapshots.list)
    delete = blocking(snapshots.Snapshots.delete)


class SyncQuarantine(Twin[quarantine.Quarantine]):
    """All quarantined records."""

    list = iterating(quarantine.Quarantine.list)
    show = blocking(quarantine.Quarantine.show)
    retry = blocking(quarantine.Quarantine.retry)
    skip = blocking(quarantine.Quarantine.skip)


class SyncJournal(Twin[asynchronous.Journal]):
    """The journals of one topic, by id."""

    append = blocking(asynchronous.Journal.append)
    read = flattening(asynchronous.Journal.read_pages)
    read_pages = iterating(asynchronous.Journal.read_pages)
    pointer = blocking(asynchronous.Journal.pointer)
    expiry = blocking(asynchronous.Journal.expiry)
    head = blocking(asynchronous.Journal.head)
    delete = blocking(asynchronous.Journal.delete)
    purge = blocking(asynchronous.Journal.purge)
    mark = blocking(asynchronous.Journal.mark)
    keys = iterating(asynchronous.Journal.keys)
    pinned = blocking(asynchronous.Journal.pinned)
    pinned_pages = iterating(asynchronous.Journal.pinned_pages)

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def snapshots(self) -> SyncSnapshots:
        return SyncSnapshots(self._inner.snapshots, self._portal)

    def recover(self, journal_id: str) -> SyncRecovered:
        """The newest snapshot, the events after it, and the seqNr that they lead to (0: no journal)."""
        found = self._portal.call(self._inner.recover(journal_id))
        return SyncRecovered(found.seq_nr, found.snapshot, items_of(self._portal, found.events, FETCH))


class SyncTypedJournal(SyncJournal):
    """The journals of one topic, with the classes of their events."""

    def append(self, journal_id: str, events: Any, **options: Any) -> asynchronous.Token:
        """Append one instance or several, each alone or in an `Event` that adds tags."""
        return self._portal.call(self._inner.append(journal_id, events, **options))


class SyncTag(Twin[tag.Tag]):
    """The events of a tag, over all journals."""

    current = flattening(tag.Tag.current_pages)
    current_pages = iterating(tag.Tag.current_pages, 1)
    live = flattening(tag.Tag.live_pages)
    live_pages = iterating(tag.Tag.live_pages, 1)
    verify = blocking(tag.Tag.verify)
    drop = blocking(tag.Tag.drop)
    status = blocking(tag.Tag.status)


class SyncPekkoTag(Twin[reader.PekkoTag]):
    """The events of a tag, in a view that others write."""

    current = iterating(reader.PekkoTag.current, 1)
    live = iterating(reader.PekkoTag.live, 1)


class SyncPekkoReader(Twin[reader.PekkoReader]):
    """Tables that others write."""

    events = iterating(reader.PekkoReader.events, 1)
    persistence_ids = iterating(reader.PekkoReader.persistence_ids, 1)
    highest_seq_nr = blocking(reader.PekkoReader.highest_seq_nr)

    def tag(self, name: str) -> SyncPekkoTag:
        """The events that carry a tag."""
        return SyncPekkoTag(self._inner.tag(name), self._portal)


class SyncSchedules(Twin[schedules.QueueSchedules]):
    """The schedules of a queue."""

    set = blocking(schedules.QueueSchedules.set)
    list = blocking(schedules.QueueSchedules.list)
    get = blocking(schedules.QueueSchedules.get)
    pause = blocking(schedules.QueueSchedules.pause)
    resume = blocking(schedules.QueueSchedules.resume)
    remove = blocking(schedules.QueueSchedules.remove)
    fire = blocking(schedules.QueueSchedules.fire)


class SyncQueue(Twin[queues.Queue]):
    """A work queue."""

    @property
    def schedules(self) -> SyncSchedules:
        return SyncSchedules(self._inner.schedules, self._portal)

    declare = blocking(queues.Queue.declare)
    ensure = blocking(queues.Queue.ensure)
    declaration = blocking(queues.Queue.declaration)
    put = blocking(queues.Queue.put)
    put_many = blocking(queues.Queue.put_many)
    claim = blocking(queues.Queue.claim)
    done = blocking(queues.Queue.done)
    fail = blocking(queues.Queue.fail)
    release = blocking(queues.Queue.release)
    heartbeat = blocking(queues.Queue.heartbeat)
    get = blocking(queues.Queue.get)
    job = blocking(queues.Queue.job)
    peek = blocking(queues.Queue.peek)
    leases = blocking(queues.Queue.leases)
    jobs = iterating(queues.Queue.jobs)
    cancel = blocking(queues.Queue.cancel)
    purge = blocking(queues.Queue.purge)
    delete = blocking(queues.Queue.delete)
    pause = blocking(queues.Queue.pause)
    resume = blocking(queues.Queue.resume)
    stats = blocking(queues.Queue.stats)
    dead = blocking(queues.Queue.dead)
    history = blocking(queues.Queue.history)
    revive = blocking(queues.Queue.revive)
    flags = blocking(queues.Queue.flags)
    ack_flag = blocking(queues.Queue.ack_flag)
    wait = blocking(queues.Queue.wait)

    @property
    def name(self) -> str:
        return self._inner.name

    @functools.wraps(queues.Queue.put_in)
    def put_in(self, *args: Any, **kwargs: Any) -> Receipt:
        """In the caller's thread, where its connection must be used; so with files of its own."""
        store = self._inner.store.sibling()
        try:
            return queues.Queue(self._inner.name, store).put_in(*args, **kwargs)
        finally:
            self._portal.call(store.close())


class SyncJobSender(Twin[senders.JobSender]):
    """Puts jobs for one function."""

    put = blocking(senders.JobSender.put)
    put_many = blocking(senders.JobSender.put_many)

    @functools.wraps(senders.JobSender.options)
    def options(self, **options: Any) -> SyncJobSender:
        """The same with options for the jobs that it puts."""
        return SyncJobSender(self._inner.options(**options), self._portal)


class SyncWorker(Twin[workers.Worker]):
    """Runs jobs: `run` blocks until another thread says `stop`."""

    run = blocking(workers.Worker.run)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def running(self) -> int:
        """How many jobs run now."""
        return self._inner.running

    def status(self) -> list[LoopStatus]:
        """The loops of this worker."""
        return self._inner.status()

    def stop(self) -> None:
        """Take no more jobs; `run` returns when those under way have ended."""
        self._portal.call(_stop(self._inner))


class SyncProjections(Twin[projections.Projections]):
    """The projections of a log. Handlers run in the twin's own thread."""

    list = blocking(projections.Projections.list)
    get = blocking(projections.Projections.get)
    offset = blocking(projections.Projections.offset)
    set = blocking(projections.Projections.set)
    clear = blocking(projections.Projections.clear)
    pause = blocking(projections.Projections.pause)
    resume = blocking(projections.Projections.resume)
    skip = blocking(projections.Projections.skip)
    dead_letters = blocking(projections.Projections.dead_letters)
    replay = blocking(projections.Projections.replay)
    forget = blocking(projections.Projections.forget)
    wait = blocking(projections.Projections.wait)
    verify = blocking(projections.Projections.verify)
    copies = blocking(projections.Projections.copies)
    rebuild = blocking(projections.Projections.rebuild)
    switch = blocking(projections.Projections.switch)
    abort = blocking(projections.Projections.abort)

    @contextmanager
    def run(self, *projections: Projection) -> Iterator[Runner]:
        """Run them as long as the block lasts."""
        runner = self._portal.call(self._inner.runner(*projections))
        self._portal.call(_started(runner))
        try:
            yield runner
        finally:
            self._portal.call(runner.stop())

    def fetch(self, name: str, statement: str, *values: Any, after: Position | str | None = None) -> Any:
        """Rows of the view that a projection fills in the store."""
        return self._portal.call(self._inner.view(name).fetch(statement, *values, after=after))

    def execute(self, name: str, statement: str, *values: Any) -> int:
        """A statement on that view, such as one that makes its tables."""
        return self._portal.call(self._inner.view(name).execute(statement, *values))


async def _started(runner: Runner) -> None:
    runner.start()


class SyncEverlog(Twin[api.Everlog]):
    """An open event log. Made by `everlog.sync.connect`; used as `with`."""

    tags = blocking(api.Everlog.tags)
    events_by_persistence_id = flattening(api.Everlog.pages_by_persistence_id)
    pages_by_persistence_id = iterating(api.Everlog.pages_by_persistence_id, 1)
    persistence_ids = iterating(api.Everlog.persistence_ids, 1)
    load = blocking(api.Everlog.load)
    topics = blocking(api.Everlog.topics)
    status = blocking(api.Everlog.status)
    expire = blocking(api.Everlog.expire)
    trim = blocking(api.Everlog.trim)
    retire = blocking(api.Everlog.retire)

    def __init__(self, inner: api.Everlog) -> None:
        self._inner = inner
        self._opened: Portal | None = None

    @property
    def _portal(self) -> Portal:  # type: ignore[override]
        if self._opened is None:
            raise RuntimeError("not open: use 'with everlog.sync.connect(…) as log'")
        return self._opened

    def __enter__(self) -> Self:
        if self._opened is None:
            self._opened = Portal()
            try:
                self._opened.call(self._inner.__aenter__())
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish open writes, let go of the files, end the thread. In a fork there is nothing to finish."""
        portal, self._opened = self._opened, None
        if portal is not None and not portal.forked:
            try:
                portal.call(self._inner.close())
            finally:
                portal.close()

    @overload
    def journal(self, topic: str) -> SyncJournal: ...

    @overload
    def journal(self, topic: str, types: EventClasses) -> SyncTypedJournal: ...

    def journal(self, topic: str, types: EventClasses | None = None) -> SyncJournal:
        """The journals of a topic; the topic is created by the first append. `types`: the classes of its events."""
        if types is None:
            return SyncJournal(self._inner.journal(topic), self._portal)
        return SyncTypedJournal(self._inner.journal(topic, types), self._portal)

    def update(
        self, kind: type[A], journal_id: str, function: Callable[[A], object], *, retries: int = MAX_RETRIES
    ) -> A:
        """As `Everlog.update`. The function runs in the caller's thread."""
        running = self._inner._begin_update(kind, journal_id, function, retries)
        try:
            while True:
                aggregate = self._portal.call(running.begin())
                decision = function(aggregate)
                check_decision(decision)
                if inspect.isawaitable(decision):
                    self._portal.call(_awaited(decision))
                if self._portal.call(running.commit(aggregate)):
                    return aggregate
        finally:
            self._portal.call(running.end())

    def tag(self, name: str, types: EventClasses | None = None) -> SyncTag:
        """The events that carry a tag, over all journals; `types`: their classes."""
        return SyncTag(self._inner.tag(name, types), self._portal)

    def slices(self, first: int = 0, last: int = SLICES - 1, types: EventClasses | None = None) -> SyncTag:
        """The events of all journals whose slice is in this range, of topics with `slices = true`."""
        return SyncTag(self._inner.slices(first, last, types), self._portal)

    def pekko(self) -> SyncPekkoReader:
        """Views by tag, journals and ids that Akka or Pekko Persistence Cassandra writes, where `[pekko]` says."""
        return SyncPekkoReader(self._portal.call(self._inner.pekko()), self._portal)

    def queue(self, name: str) -> SyncQueue:
        """A work queue; it is made by the first put."""
        return SyncQueue(self._portal.call(_queue(self._inner, name)), self._portal)

    def job_sender(self, function: JobFunction) -> SyncJobSender:
        """What puts jobs for a function into this log: `log.job_sender(welcome).put(to="eve@example.org")`."""
        return SyncJobSender(self._portal.call(_sender(self._inner, function)), self._portal)

    def worker(
        self,
        jobs: Sequence[JobFunction] | JobFunction,
        *,
        concurrency: int | None = None,
        middleware: Sequence[JobMiddleware] = (),
    ) -> SyncWorker:
        """A worker that runs these functions; each is made by `everlog.job`. `middleware`: called around every job."""
        return SyncWorker(self._portal.call(_worker(self._inner, jobs, concurrency, middleware)), self._portal)

    @property
    def documents(self) -> SyncDocuments:
        """JSON documents and collections."""
        from everlog.documents.sync import SyncDocuments

        return SyncDocuments(self._inner.documents, self._portal)

    @property
    def config(self) -> Config:
        return self._inner.config

    @property
    def quarantine(self) -> SyncQuarantine:
        """Records that could not be applied, and how their journals go on."""
        return SyncQuarantine(self._inner.quarantine, self._portal)

    @property
    def projections(self) -> SyncProjections:
        """Views that handlers make of events."""
        return SyncProjections(self._inner.projections, self._portal)


async def _awaited(decision: Awaitable[object]) -> None:
    await decision


async def _queue(inner: api.Everlog, name: str) -> queues.Queue:
    """In the loop's thread, because the files of queues are opened there."""
    return inner.queue(name)


async def _sender(inner: api.Everlog, function: JobFunction) -> senders.JobSender:
    return inner.job_sender(function)


async def _worker(
    inner: api.Everlog,
    jobs: Sequence[JobFunction] | JobFunction,
    concurrency: int | None,
    middleware: Sequence[JobMiddleware],
) -> workers.Worker:
    return inner.worker(jobs, concurrency=concurrency, middleware=middleware)


async def _stop(inner: workers.Worker) -> None:
    inner.stop()


def connect(
    target: str | os.PathLike[str] | Config = "everlog-data",
    *,
    clock: Clock | None = None,
    trace: Trace | None = None,
    token: str | None = None,
) -> SyncEverlog:
    """Open a folder (embedded), what a TOML file says, or a server (`http://…`; its token, or EVERLOG_TOKEN).

    >>> log = connect("everlog-data")
    """
    return SyncEverlog(client.connect(target, clock=clock, trace=trace, token=token))
