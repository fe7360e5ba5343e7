"""What an open log can do, wherever it is: a folder, a cluster, or a server. `everlog.connect` opens one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import date
from types import TracebackType
from typing import TYPE_CHECKING, Self

from everlog.config import Config
from everlog.core.events import EventRecord
from everlog.core.tag_names import SLICES
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.errors.storage import needs_storage
from everlog.journal.expiry import ExpireReport
from everlog.journal.journal import Journal
from everlog.journal.parts import Parts
from everlog.journal.quarantine import Quarantine
from everlog.journal.topic_registry import Retired
from everlog.pekko.reader import PekkoReader
from everlog.pipeline.status import Status
from everlog.projections.api import Projections
from everlog.queues.job_function import JobFunction
from everlog.queues.port import QueueStore
from everlog.queues.queue import Queue
from everlog.queues.worker import Worker
from everlog.tags.tag import Tag, TagInfo

if TYPE_CHECKING:
    from everlog.documents.api import Documents


class Everlog(ABC):
    """An open event log. Made by `everlog.connect`; used as `async with`."""

    config: Config

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Finish open writes, and close files and connections."""

    @abstractmethod
    def journal(self, topic: str) -> Journal:
        """The journals of a topic; the topic is created by the first append."""

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
    ) -> AsyncIterator[EventRecord]:
        """A journal's events, both ends included; `live`: also those that come later.

        `gap_free`: raise MissingEvent where a seqNr is left out.
        """
        pages = self.pages_by_persistence_id(topic, journal_id, from_seq, to_seq, live=live, gap_free=gap_free)
        return _each(pages)

    @abstractmethod
    def pages_by_persistence_id(
        self,
        topic: str,
        journal_id: str,
        from_seq: int = 0,
        to_seq: int = MAX_SEQ_NR,
        *,
        live: bool = False,
        gap_free: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        """Like `events_by_persistence_id`, a list of events at a time."""

    @abstractmethod
    def persistence_ids(self, topic: str, *, live: bool = False) -> AsyncIterator[str]:
        """The ids of all journals of a topic, each once; `live`: also those that come later."""

    @abstractmethod
    def tag(self, name: str) -> Tag:
        """The events that carry a tag, over all journals: `log.tag("eu").live()`."""

    @abstractmethod
    def slices(self, first: int = 0, last: int = SLICES - 1) -> Tag:
        """The events of all journals whose slice is in this range, of topics with `slices = true`."""

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
        return Queue(name, self.queues, self.config.queues.get(name))

    def worker(self, jobs: Sequence[JobFunction] | JobFunction, *, concurrency: int | None = None) -> Worker:
        """A worker that runs these functions; each is made by `everlog.job`."""
        queue = self.config.queue
        return Worker(
            self.queues,
            jobs,
            concurrency=concurrency or queue.concurrency,
            poll_s=queue.poll_interval_s,
            grace_s=queue.grace_s,
            options=self.config.queues,
        )

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
    def parts(self) -> Parts:
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
        """Purge the journals that have expired on this day (today, UTC) or earlier."""
        raise needs_storage()

    async def trim(self) -> dict[tuple[str, int], int]:
        """Remove replicated records from the log as `[log] retention_…` says; how many, by (topic, partition)."""
        raise needs_storage()


async def _each(pages: AsyncIterator[list[EventRecord]]) -> AsyncIterator[EventRecord]:
    async for page in pages:
        for event in page:
            yield event
