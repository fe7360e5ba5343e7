"""`everlog.connect`: from a folder or a config file to journals."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from datetime import date
from typing import TYPE_CHECKING, Self

import msgspec

from everlog.api import Everlog
from everlog.config import Config, load_config
from everlog.core.arguments import check_expire, check_flag, check_text
from everlog.core.bounded_map import BoundedMap
from everlog.core.events import EventRecord
from everlog.core.values import Position, check_position, shown
from everlog.documents.node_status import read_nodes
from everlog.errors import ForkedProcess, InvalidConfig, InvalidPosition
from everlog.journal.expiry import ExpireReport, expire
from everlog.journal.journal import LocalJournal, check_topic
from everlog.journal.live_events import check_range, current_events, live_events, live_ids
from everlog.journal.parts import JournalParts, open_parts
from everlog.journal.quarantine import Quarantine
from everlog.journal.retention import trim
from everlog.journal.topic_registry import Retired, retire, retired_topics
from everlog.pekko.reader import PekkoReader, open_reader
from everlog.pekko.source import described_source
from everlog.pipeline.status import Status, read_status
from everlog.projections.projections import LocalProjections
from everlog.queues.factory import open_queues
from everlog.queues.port import QueueStore
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.process import PROCESS
from everlog.runtime.trace import Trace
from everlog.tags.tag import Tag, TagInfo, Tags

if TYPE_CHECKING:
    from everlog.documents.documents import LocalDocuments


class LocalEverlog(Everlog):
    """A log on files of a folder, or on the servers of a cluster."""

    def __init__(self, config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._trace = trace
        self._parts: JournalParts | None = None
        self._pid = PROCESS.pid
        self._journals: BoundedMap[str, LocalJournal] = BoundedMap()
        self._tags: Tags | None = None
        self._pekko: PekkoReader | None = None
        self._open = AsyncExitStack()
        self._queues: QueueStore | None = None
        self._documents: LocalDocuments | None = None
        self._projections: LocalProjections | None = None

    async def __aenter__(self) -> Self:
        if self._parts is None:
            self._parts = await open_parts(self.config, clock=self._clock, trace=self._trace)
            self._pid = PROCESS.pid
        return await super().__aenter__()

    @property
    def parts(self) -> JournalParts:
        if self._parts is None:
            raise RuntimeError("not open: use 'async with everlog.connect(…) as log'")
        if self._pid != PROCESS.pid:
            raise ForkedProcess("this log", self._pid)
        return self._parts

    def _journal(self, topic: str) -> LocalJournal:
        journal = self._journals.get(topic) if isinstance(topic, str) else None
        if journal is None:
            journal = LocalJournal(topic, self.parts)
            self._journals.put(topic, journal)
        return journal

    def _tag(self, name: str) -> Tag:
        return self._all_tags.tag(name)

    def _slices(self, first: int, last: int) -> Tag:
        return self._all_tags.slices(first, last)

    async def tags(self, *, token: Position | str | None = None) -> list[TagInfo]:
        return await self._all_tags.list(token)

    async def pekko(self) -> PekkoReader:
        if self.config.cassandra is None:
            raise InvalidConfig("[pekko] reads tables in Cassandra: add [cassandra] and [kafka] to the configuration")
        if self._pekko is None:
            reader = open_reader(self.config.cassandra, self.config.pekko, clock=self._clock, trace=self._trace)
            self._pekko = await self._open.enter_async_context(reader)
        return self._pekko

    @property
    def _all_tags(self) -> Tags:
        if self._tags is None:
            self._tags = Tags(self.parts)
        return self._tags

    def _pages_by_persistence_id(
        self, topic: str, journal_id: str, from_seq: int, to_seq: int, *, live: bool, gap_free: bool
    ) -> AsyncIterator[list[EventRecord]]:
        check_range(journal_id, from_seq, to_seq)
        check_flag("live", live)
        check_flag("gap_free", gap_free)
        journal = self._journal(topic)
        if not live:
            return current_events(journal, journal_id, from_seq, to_seq, gap_free=gap_free)
        interval_s = self.config.tags.poll_interval_s
        return live_events(journal, journal_id, from_seq, to_seq, gap_free=gap_free, interval_s=interval_s)

    def persistence_ids(self, topic: str, *, live: bool = False) -> AsyncIterator[str]:
        check_flag("live", live)
        journal = self._journal(topic)
        return live_ids(journal, self.config.tags.poll_interval_s) if live else journal.keys()

    async def topics(self) -> list[str]:
        journal = self.config.journal
        names = {topic.name for topic in await self.parts.log.topics()} | await retired_topics(self.parts.store)
        return [journal.short(name) for name in sorted(names) if journal.includes(name)]

    async def retire(self, topic: str, *, force: bool = False) -> Retired:
        check_topic(topic)
        check_flag("force", force)
        return await retire(self.parts, topic, force=force)

    @property
    def queues(self) -> QueueStore:
        assert self.parts is not None
        if self._queues is None:
            self._queues = open_queues(self.config, clock=self._clock, trace=self._trace)
            self.show_loops(self._queues)
        return self._queues

    @property
    def documents(self) -> LocalDocuments:
        if self._documents is None:
            from everlog.documents.factory import make_documents

            self._documents = make_documents(self.parts, trace=self._trace)
        return self._documents

    @property
    def quarantine(self) -> Quarantine:
        return Quarantine(self.parts)

    @property
    def projections(self) -> LocalProjections:
        if self._projections is None:
            self._projections = LocalProjections(self.parts, trace=self._trace, described=[described_source])
        return self._projections

    async def status(self, *, after: Position | str | None = None) -> Status:
        if after is not None:
            await self._check_reached(check_position(after))
        found = await read_status(self.parts)
        nodes = await read_nodes(self.parts)
        return msgspec.structs.replace(found, nodes=[msgspec.to_builtins(node) for node in nodes], loops=self._loops())

    async def _check_reached(self, position: Position) -> None:
        """Raise InvalidPosition unless the log ends behind this position."""
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
        check_expire(day, topics)
        return await expire(self.parts, day=day, topics=topics)

    async def trim(self) -> dict[tuple[str, int], int]:
        return await trim(self.parts)

    async def close(self) -> None:
        if self._pid != PROCESS.pid:
            return  # a fork has nothing of its own to close
        if self._documents is not None:
            documents, self._documents = self._documents, None
            await documents.close()
        if self._parts is not None:
            parts, self._parts = self._parts, None
            self._journals.clear()
            if self._tags is not None:
                await self._tags.watermarks.close()
                self._tags = None
            self._pekko = None
            await self._open.aclose()
            queues, self._queues = self._queues, None
            if queues is not None:
                await queues.close()
            if self._projections is not None:
                await self._projections.close()
                self._projections = None
            await parts.close()


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
    if not isinstance(target, str | os.PathLike | Config):
        raise InvalidConfig(f"connect takes a folder, a file or an address, not {shown(target)}")
    if token is not None:
        check_text("token", token)
    if isinstance(target, str) and target.startswith(("http://", "https://")):
        from everlog.remote.everlog import RemoteEverlog

        return RemoteEverlog(target, token=token, clock=clock)
    if token is not None:
        raise InvalidConfig("a token is for a server: http://…")
    return LocalEverlog(target if isinstance(target, Config) else load_config(target), clock=clock, trace=trace)
