"""What an open log can do, wherever it is: a folder, a cluster, or a server. `everlog.connect` opens one."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import date
from types import TracebackType
from typing import TYPE_CHECKING, Self, overload
from weakref import WeakSet

from everlog.config import Config
from everlog.config.queue_options import check_name
from everlog.core.event_types import EventClasses, EventTypes
from everlog.core.events import EventRecord
from everlog.core.tag_names import SLICES
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.errors import InvalidInput
from everlog.errors.storage import needs_storage
from everlog.journal.aggregate import A, definition_of
from everlog.journal.aggregate_update import MAX_RETRIES, AggregateUpdate, check_decision
from everlog.journal.aggregate_update import load as load_aggregate
from everlog.journal.expiry import ExpireReport
from everlog.journal.journal import Journal
from everlog.journal.parts import JournalParts
from everlog.journal.quarantine import Quarantine
from everlog.journal.topic_registry import Retired
from everlog.journal.typed_journal import TypedJournal
from everlog.pekko.reader import PekkoReader
from everlog.pipeline.status import Status
from everlog.projections.api import Projections
from everlog.queues.job_function import JobFunction
from everlog.queues.job_sender import JobSender
from everlog.queues.middleware import JobMiddleware
from everlog.queues.open_logs import enter_log, leave_log
from everlog.queues.port import QueueStore
from everlog.queues.queue import Queue
from everlog.queues.worker import Worker
from everlog.runtime.keyed_lock import KeyedLock
from everlog.runtime.pages import each
from everlog.runtime.supervisor import LoopOwner, LoopStatus
from everlog.tags.tag import Tag, TagInfo
from everlog.tags.typed_tag import TypedTag

if TYPE_CHECKING:
    from everlog.documents.api import Documents


class Everlog(ABC):
    """An open event log. Made by `everlog.connect`; used as `async with`."""

    config: Config
    _turns: KeyedLock | None = None
    _loop_owners: WeakSet[LoopOwner] | None = None

    async def __aenter__(self) -> Self:
        enter_log(self.queue)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_log(self.queue)
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Finish open writes, and close files and connections."""

    @overload
    def journal(self, topic: str) -> Journal: ...

    @overload
    def journal(self, topic: str, types: EventClasses) -> TypedJournal: ...

    def journal(self, topic: str, types: EventClasses | None = None) -> Journal:
        """The journals of a topic; the topic is created by the first append.

        `types`: the classes of its events, as `OrderPlaced | OrderPaid`; without them payloads are plain JSON.
        """
        found = self._journal(topic)
        return found if types is None else TypedJournal(found, EventTypes.of(types))

    @abstractmethod
    def _journal(self, topic: str) -> Journal:
        """The journals of a topic, without classes."""

    async def load(self, kind: type[A], journal_id: str) -> A:
        """An aggregate as of now: `await log.load(Order, "o-1")`; a fresh one, at version 0, if nothing is stored."""
        return await load_aggregate(self._journal_of(kind), kind, journal_id)

    async def update(
        self, kind: type[A], journal_id: str, function: Callable[[A], object], *, retries: int = MAX_RETRIES
    ) -> A:
        """Load an aggregate, let the function decide, store what it emits, and return the aggregate.

        If another writer was faster, all of it is repeated with the state as it is then, up to `retries` times,
        before Conflict is raised. So the function, plain or asynchronous, may be called more than once; an error that
        it raises ends the update, and nothing is stored. If it emits nothing, nothing is written.
        """
        running = self._begin_update(kind, journal_id, function, retries)
        try:
            while True:
                aggregate = await running.begin()
                decision = function(aggregate)
                check_decision(decision)
                if inspect.isawaitable(decision):
                    await decision
                if await running.commit(aggregate):
                    return aggregate
        finally:
            await running.end()

    def _begin_update(
        self, kind: type[A], journal_id: str, function: Callable[[A], object], retries: int
    ) -> AggregateUpdate[A]:
        """An update, step by step; the caller calls the function."""
        if not callable(function):
            raise InvalidInput(f"an update needs a function that takes the aggregate, not {function!r}")
        if self._turns is None:
            self._turns = KeyedLock()
        return AggregateUpdate(self._journal_of(kind), kind, journal_id, retries, self._turns)

    def _journal_of(self, kind: type[A]) -> Journal:
        found = definition_of(kind)
        journal = self._journal(found.topic)
        return journal if found.types is None else TypedJournal(journal, found.types)

    @abstractmethod
    async def topics(self) -> list[str]:
        """The names of all journal topics, also of retired ones that are gone from the log."""

    def events_by_persistence_id(
        self,
        topic: str,
        journal_id: str,
        from_seq: int = 0,
        to_seq: int = MAX_SEQ_NR,
        *,
        live: bool = False,
        gap_free: bool = False,
        types: EventClasses | None = None,
    ) -> AsyncIterator[EventRecord]:
        """A journal's events, both ends included; `live`: also those that come later.

        `gap_free`: raise MissingEvent where a seqNr is left out. `types`: the classes of the events.
        """
        options = {"live": live, "gap_free": gap_free}
        return each(self.pages_by_persistence_id(topic, journal_id, from_seq, to_seq, **options, types=types))

    def pages_by_persistence_id(
        self,
        topic: str,
        journal_id: str,
        from_seq: int = 0,
        to_seq: int = MAX_SEQ_NR,
        *,
        live: bool = False,
        gap_free: bool = False,
        types: EventClasses | None = None,
    ) -> AsyncIterator[list[EventRecord]]:
        """Like `events_by_persistence_id`, a list of events at a time."""
        known = None if types is None else EventTypes.of(types)
        pages = self._pages_by_persistence_id(topic, journal_id, from_seq, to_seq, live=live, gap_free=gap_free)
        return pages if known is None else _typed(pages, known)

    @abstractmethod
    def _pages_by_persistence_id(
        self, topic: str, journal_id: str, from_seq: int, to_seq: int, *, live: bool, gap_free: bool
    ) -> AsyncIterator[list[EventRecord]]:
        """A journal's events, without classes."""

    @abstractmethod
    def persistence_ids(self, topic: str, *, live: bool = False) -> AsyncIterator[str]:
        """The ids of all journals of a topic, each once; `live`: also those that come later."""

    def tag(self, name: str, types: EventClasses | None = None) -> Tag:
        """The events that carry a tag, over all journals: `log.tag("eu").live()`; `types`: their classes."""
        found = self._tag(name)
        return found if types is None else TypedTag(found, EventTypes.of(types))

    @abstractmethod
    def _tag(self, name: str) -> Tag:
        """The events of a tag, without classes."""

    def slices(self, first: int = 0, last: int = SLICES - 1, types: EventClasses | None = None) -> Tag:
        """The events of all journals whose slice is in this range, of topics with `slices = true`."""
        found = self._slices(first, last)
        return found if types is None else TypedTag(found, EventTypes.of(types))

    @abstractmethod
    def _slices(self, first: int, last: int) -> Tag:
        """The events of slices, without classes."""

    @abstractmethod
    async def tags(self, *, token: Position | str | None = None) -> list[TagInfo]:
        """All tags, with the number of their events and the last one; `token`: a position that they must include."""

    @property
    @abstractmethod
    def projections(self) -> Projections:
        """Views that handlers make of events: running them, looking at them, commands."""

    @property
    @abstractmethod
    def queues(self) -> QueueStore:
        """Where the work queues are kept; opened when it is first needed."""

    def queue(self, name: str) -> Queue:
        """A work queue; it is made by the first put, with the options that the configuration has for it."""
        return Queue(name, self.queues, self.config.queues.get(check_name(name)))

    def job_sender(self, function: JobFunction) -> JobSender:
        """What puts jobs for a function into this log: `await log.job_sender(welcome).put(to="eve@example.org")`."""
        return JobSender(function, self.queue)

    def worker(
        self,
        jobs: Sequence[JobFunction] | JobFunction,
        *,
        concurrency: int | None = None,
        middleware: Sequence[JobMiddleware] = (),
    ) -> Worker:
        """A worker that runs these functions; each is made by `everlog.job`. `middleware`: called around every job."""
        queue = self.config.queue
        worker = Worker(
            self.queues,
            jobs,
            concurrency=queue.concurrency if concurrency is None else concurrency,
            poll_s=queue.poll_interval_s,
            grace_s=queue.grace_s,
            options=self.config.queues,
            middleware=middleware,
        )
        self.show_loops(worker)
        return worker

    def show_loops(self, owner: LoopOwner) -> None:
        """Let the status of this log show the loops of a worker or a server, as long as that exists."""
        if self._loop_owners is None:
            self._loop_owners = WeakSet()
        self._loop_owners.add(owner)

    def _loops(self) -> list[LoopStatus]:
        found = [one for owner in self._loop_owners or () for one in owner.status()]
        return sorted(found, key=lambda one: one.name)

    @property
    @abstractmethod
    def documents(self) -> Documents:
        """JSON documents and collections; their changes are events of the topic `documents`."""

    @abstractmethod
    async def status(self, *, after: Position | str | None = None) -> Status:
        """How far the tables are behind the log, and what the pipeline and the servers say.

        `after` counts, too: no lag means that the tables have what was written there.
        """

    # What needs the log and the store themselves: a server does not hand these out.

    @property
    def parts(self) -> JournalParts:
        """The log, the store, and what reads and writes them."""
        raise needs_storage()

    @property
    def quarantine(self) -> Quarantine:
        """Records that could not be applied, and how their journals go on."""
        raise needs_storage()

    async def pekko(self) -> PekkoReader:
        """Views by tag, journals and ids that Akka or Pekko Persistence Cassandra writes, where `[pekko]` says."""
        raise needs_storage()

    async def retire(self, topic: str, *, force: bool = False) -> Retired:
        """Retire a topic whose log is gone or another one, for good: it can be read, and nothing waits for it any more.

        `force`: or one whose log is sound, if all of it is in the tables. 'everlog journal copy' saves its journals.
        """
        raise needs_storage()

    async def expire(self, *, day: date | None = None, topics: Collection[str] | None = None) -> ExpireReport:
        """Purge the journals that have expired by now; with `day`, those that expire before that day (UTC) is over."""
        raise needs_storage()

    async def trim(self) -> dict[tuple[str, int], int]:
        """Remove replicated records from the log as `[log] retention_…` says; how many, by (topic, partition)."""
        raise needs_storage()


async def _typed(pages: AsyncIterator[list[EventRecord]], types: EventTypes) -> AsyncIterator[list[EventRecord]]:
    async for page in pages:
        yield [types.typed(event) for event in page]
