"""`everlog.connect`: from a folder or a config file to journals."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack
from datetime import date
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from everlog.config import Config, load_config
from everlog.core.events import EventRecord
from everlog.core.tag_names import SLICES
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.documents.node_status import read_nodes
from everlog.errors import InvalidConfig, InvalidPosition
from everlog.journal.expiry import ExpireReport, expire
from everlog.journal.journal import Journal, Parts
from everlog.journal.live_events import check_range, current_events, live_events, live_ids
from everlog.journal.parts import make_reader_and_writer
from everlog.journal.quarantine import Quarantine
from everlog.journal.retired_topics import Retired, retire, retired_topics
from everlog.journal.writer import Origin
from everlog.log.port import Log
from everlog.log.sqlite.trimmer import trim
from everlog.pekko.reader import ForeignReader, open_reader
from everlog.pipeline.status import Status, read_status
from everlog.projections.projections import Projections
from everlog.queues.factory import open_queues
from everlog.queues.job import JobFunction
from everlog.queues.port import QueueStore
from everlog.queues.queue import Queue
from everlog.queues.worker import Worker
from everlog.runtime.clock import Clock, SystemClock
from everlog.sqlite.connection import Trace
from everlog.store.factory import open_parts
from everlog.store.port import Store
from everlog.tags.tag import Tag, TagInfo, Tags
from everlog.version import __version__

if TYPE_CHECKING:
    from everlog.documents.documents import Documents


MAX_TOPICS = 1000


class Everlog:
    """An open event log. Made by `everlog.connect`; used as `async with`."""

    def __init__(self, config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._trace = trace
        self._parts: Parts | None = None
        self._journals: dict[str, Journal] = {}
        self._tags: Tags | None = None
        self._foreign: ForeignReader | None = None
        self._open = AsyncExitStack()
        self._queues: QueueStore | None = None
        self._documents: Documents | None = None
        self._projections: Projections | None = None

    async def __aenter__(self) -> Self:
        if self._parts is None:
            log, store = await open_parts(self.config, clock=self._clock, trace=self._trace)
            self._parts = make_parts(self.config, log, store, self._clock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def parts(self) -> Parts:
        """The log, the store, and what reads and writes them."""
        if self._parts is None:
            raise RuntimeError("not open: use 'async with everlog.connect(…) as log'")
        return self._parts

    def journal(self, topic: str) -> Journal:
        """The journals of a topic; the topic is created by the first append."""
        journal = self._journals.get(topic)
        if journal is None:
            journal = self._keep(topic, Journal(topic, self.parts))
        return journal

    def _keep(self, topic: str, journal: Journal) -> Journal:
        """Remember it, but not any number of them: whoever asks a server for topics may make up their names."""
        if len(self._journals) >= MAX_TOPICS:
            del self._journals[next(iter(self._journals))]
        self._journals[topic] = journal
        return journal

    def tag(self, name: str) -> Tag:
        """The events that carry a tag, over all journals: `log.tag("eu").live()`."""
        return self._all_tags.tag(name)

    def slices(self, first: int = 0, last: int = SLICES - 1) -> Tag:
        """The events of all journals whose slice is in this range, of topics with `slices = true`."""
        return self._all_tags.slices(first, last)

    async def tags(self, *, token: Position | str | None = None) -> list[TagInfo]:
        """All tags, with the number of their events and the last one; `token`: a position that they must include."""
        return await self._all_tags.list(token)

    async def foreign(self) -> ForeignReader:
        """Views by tag, journals and ids that Akka or Pekko Persistence Cassandra writes, where `[foreign]` says."""
        if self.config.cassandra is None:
            raise InvalidConfig("[foreign] reads tables in Cassandra: add [cassandra] and [kafka] to the configuration")
        if self._foreign is None:
            reader = open_reader(self.config.cassandra, self.config.foreign, clock=self._clock, trace=self._trace)
            self._foreign = await self._open.enter_async_context(reader)
        return self._foreign

    @property
    def _all_tags(self) -> Tags:
        if self._tags is None:
            self._tags = Tags(self.parts)
        return self._tags

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
        check_range(journal_id, from_seq, to_seq)
        journal = self.journal(topic)
        if not live:
            return current_events(journal, journal_id, from_seq, to_seq, gap_free=gap_free)
        interval = self.config.tags.poll_interval
        return live_events(journal, journal_id, from_seq, to_seq, gap_free=gap_free, interval=interval)

    def persistence_ids(self, topic: str, *, live: bool = False) -> AsyncIterator[str]:
        """The ids of all journals of a topic, each once; `live`: also those that come later."""
        journal = self.journal(topic)
        return live_ids(journal, self.config.tags.poll_interval) if live else journal.keys()

    async def topics(self) -> list[str]:
        """The names of all journal topics, also of retired ones that are gone from the log."""
        journal = self.config.journal
        names = {topic.name for topic in await self.parts.log.topics()} | await retired_topics(self.parts.store)
        return [journal.short(name) for name in sorted(names) if journal.includes(name)]

    async def retire(self, topic: str, *, force: bool = False) -> Retired:
        """Retire a topic whose log is gone or another one, for good: it can be read, and nothing waits for it any more.

        `force`: or one whose log is sound, if all of it is in the tables. 'everlog journal copy' saves its journals.
        """
        return await retire(self.parts, topic, force=force)

    @property
    def queues(self) -> QueueStore:
        """Where the work queues are kept; opened when it is first needed."""
        assert self.parts is not None
        if self._queues is None:
            self._queues = open_queues(self.config, clock=self._clock, trace=self._trace)
        return self._queues

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
            poll=queue.poll,
            grace=queue.grace,
            options=self.config.queues,
        )

    @property
    def documents(self) -> Documents:
        """JSON documents and collections; their changes are events of the topic `documents`."""
        if self._documents is None:
            from everlog.documents.factory import make_documents

            self._documents = make_documents(self.parts, trace=self._trace)
        return self._documents

    @property
    def quarantine(self) -> Quarantine:
        """Records that could not be applied, and how their journals go on."""
        return Quarantine(self.parts)

    @property
    def projections(self) -> Projections:
        """Views that handlers make of events: running them, looking at them, commands."""
        if self._projections is None:
            self._projections = Projections(self.parts, trace=self._trace)
        return self._projections

    async def status(self, *, after: Position | str | None = None) -> Status:
        """How far the tables are behind the log, and what the pipeline and the servers say.

        `after` counts, too: no lag means that the tables have what was written there.
        """
        if after is not None:
            await self._check_reached(Position.parse(after) if isinstance(after, str) else after)
        found = await read_status(self.parts)
        nodes = await read_nodes(self.parts)
        return msgspec.structs.replace(found, nodes=[msgspec.to_builtins(node) for node in nodes])

    async def _check_reached(self, position: Position) -> None:
        """The log ends behind this position, or InvalidPosition."""
        journal, log, reach = self.config.journal, self.parts.log, position.offset + 1
        name = journal.topic_prefix + position.topic
        topic = await log.topic(name) if journal.includes(name) else None
        if (
            topic is None
            or position.partition >= topic.partitions
            or await log.end(topic, position.partition, reach=reach) < reach
        ):
            raise InvalidPosition(f"{position} is beyond the end of the log: is it from another log?")

    async def expire(self, *, day: date | None = None, topics: Collection[str] | None = None) -> ExpireReport:
        """Purge the journals that have expired on this day (today, UTC) or earlier."""
        return await expire(self.parts, day=day, topics=topics)

    async def trim(self) -> dict[tuple[str, int], int]:
        """Remove replicated records from the log as `[log] retention_…` says; how many, by (topic, partition)."""
        return await trim(self.parts)

    async def close(self) -> None:
        """Finish open writes and let go of the files."""
        if self._documents is not None:
            documents, self._documents = self._documents, None
            await documents.close()
        if self._parts is not None:
            parts, self._parts = self._parts, None
            self._journals.clear()
            if self._tags is not None:
                await self._tags.watermarks.close()
                self._tags = None
            self._foreign = None
            await self._open.aclose()
            queues, self._queues = self._queues, None
            if queues is not None:
                await queues.close()
            if self._projections is not None:
                await self._projections.close()
                self._projections = None
            await parts.log.close()
            await parts.store.close()


async def _each(pages: AsyncIterator[list[EventRecord]]) -> AsyncIterator[EventRecord]:
    async for page in pages:
        for event in page:
            yield event


def connect(
    target: str | os.PathLike[str] | Config = "everlog-data",
    *,
    clock: Clock | None = None,
    trace: Trace | None = None,
    token: str | None = None,
) -> Everlog:
    """Open a folder (embedded), what a TOML file says, or a server (`http://…`; its token, or EVERLOG_TOKEN).

    >>> log = connect("everlog-data")
    """
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        from everlog.remote.everlog import RemoteEverlog

        return RemoteEverlog(target, token=token, clock=clock)
    if token is not None:
        raise InvalidConfig("a token is for a server: http://…")
    return Everlog(target if isinstance(target, Config) else load_config(target), clock=clock, trace=trace)


def make_parts(config: Config, log: Log, store: Store, clock: Clock) -> Parts:
    """Put a log and a store together."""
    origin = Origin(socket.gethostname(), __version__)
    reader, writer = make_reader_and_writer(config.journal, log, store, clock, origin)
    return Parts(config, log, store, reader, writer, clock, origin)
