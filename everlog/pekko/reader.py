"""The queries: by tag, by journal, and the ids of journals, on tables that Akka or Pekko writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from everlog.config import CassandraConfig, PekkoConfig
from everlog.core.tag_names import MAX_TAG_BYTES
from everlog.core.values import MAX_SEQ_NR
from everlog.errors import EverlogError, InvalidId, InvalidOffset, InvalidRange, InvalidTag, NotEnabled
from everlog.pekko.events import PekkoEvent, ResumePoint
from everlog.pekko.forward_scan import ForwardScan
from everlog.pekko.journal_stage import IdsStage, JournalStage, partition_of
from everlog.pekko.port import ListBuckets, PekkoTables, ReadDeletedTo, Stage
from everlog.pekko.settings import StageSettings
from everlog.pekko.stream import Sleep, StageStream, now_of, run_query
from everlog.pekko.tag_stage import TagStage
from everlog.pekko.time_buckets import check_offset, first_place, offset_of, unix_ms
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.trace import Trace

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PekkoReader:
    """Reads what Akka or Pekko Persistence Cassandra wrote. Many queries may run at a time.

    >>> async def follow():
    ...     async with open_reader(CassandraConfig(), PekkoConfig(keyspace="akka")) as reader:
    ...         async for event in reader.tag("carts").live(after=None):
    ...             print(event.persistence_id, event.payload.data)
    """

    def __init__(
        self,
        tables: PekkoTables,
        config: PekkoConfig,
        *,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
        chance: random.Random | None = None,
    ) -> None:
        self._config = config
        self._settings = StageSettings.of(config)
        self._settings.warn()
        self._tables = tables
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._chance = chance or random.Random()

    def tag(self, name: str) -> PekkoTag:
        """The events that carry a tag."""
        if not self._config.enabled:
            raise NotEnabled("events by tag are off: set [pekko] enabled = true if the views are kept")
        if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_TAG_BYTES:
            raise InvalidTag(f"a tag is text of 1 to {MAX_TAG_BYTES} bytes")
        return PekkoTag(self, name)

    def events(
        self, persistence_id: str, first: int = 0, last: int = MAX_SEQ_NR, *, live: bool = False
    ) -> StageStream[PekkoEvent]:
        """The events of one journal from `first` to `last`, both included, that are not deleted."""
        _check_id(persistence_id)
        if not 0 <= first <= last <= MAX_SEQ_NR:
            raise InvalidRange(f"from {first} to {last} is no range of seqNrs")
        now = now_of(self._clock)
        stage = JournalStage(
            persistence_id, self._settings, now, live=live, first=first, last=last, chance=self._chance
        )
        return self.stream(stage)

    def persistence_ids(self, *, live: bool = False) -> StageStream[str]:
        """The ids of all journals, each once, in any order. They are all kept in memory as long as this runs."""
        if not self._config.support_all_persistence_ids:
            raise NotEnabled("the ids are not kept: set [pekko] support_all_persistence_ids = true if they are")
        return self.stream(IdsStage(self._settings, now_of(self._clock), live=live, chance=self._chance))

    async def highest_seq_nr(self, persistence_id: str) -> int:
        """The last seqNr that a journal used, also if that event is deleted; 0 if there never was one."""
        _check_id(persistence_id)
        highest: int = (await self._tables.deleted_to(ReadDeletedTo(persistence_id))).items[0]
        partition = partition_of(max(highest, 1), self._settings.partition_size)
        empty = 0
        # An atomic write may leave one partition empty, not two.
        while empty < 2:
            found = await self._tables.last_seq_nr(persistence_id, partition)
            highest, empty = (highest, empty + 1) if found is None else (max(highest, found), 0)
            partition += 1
        return highest

    async def count(self, tag: str, after: UUID | ResumePoint | None, *, limit: int) -> tuple[int, int | None]:
        """How many events wait behind an offset, as far as a reader may go now, and the time of the first.

        At once, without the waits of a query: events that are missing or late are not looked for. From `limit` on it
        is not counted further.
        """
        now = now_of(self._clock)
        resume = after if isinstance(after, ResumePoint) else ResumePoint(after) if after is not None else None
        origin = first_place(self._settings.first_bucket) if resume is None else check_offset(resume.after, now.wall)
        scan = ForwardScan(tag, self._settings, now, origin=origin, skip=resume is None, live=True, chance=self._chance)
        last = {} if resume is None else resume.last
        events, first = 0, None
        while events < limit and (query := scan.query(now)) is not None:
            try:
                scan.told(query, await run_query(self._tables, query))
            except EverlogError:
                if not isinstance(query, ListBuckets):
                    raise
                scan.give_up_list()
            while scan.pending:
                key = scan.take().key
                if key.tag_seq_nr > last.get(key.persistence_id, 0):
                    events += 1
                    first = unix_ms(key.place) if first is None else first
        return events, first

    def tagged(self, tag: str, after: UUID | ResumePoint | None, *, live: bool) -> StageStream[PekkoEvent]:
        now = now_of(self._clock)
        resume = after if isinstance(after, ResumePoint) else None
        offset = after if resume is None else resume.after
        stage = TagStage(
            tag,
            self._settings,
            now,
            live=live,
            after=None if offset is None else check_offset(offset, now.wall),
            last=() if resume is None else resume.last.items(),
            chance=self._chance,
        )
        return self.stream(stage)

    def stream(self, stage: Stage[Any]) -> StageStream[Any]:
        page_size = self._settings.page_size
        return StageStream(stage, self._tables, clock=self._clock, page_size=page_size, sleep=self._sleep)


class PekkoTag:
    """One tag. `after` is exclusive: the offset of an event, or better its `resume`; `since` is a time, inclusive.

    Without either, a query begins at the first event.
    """

    def __init__(self, reader: PekkoReader, name: str) -> None:
        self._reader = reader
        self.name = name

    def current(
        self, after: UUID | ResumePoint | None = None, *, since: datetime | None = None
    ) -> StageStream[PekkoEvent]:
        """What is there now; ends once the delay has passed, so that nothing visible late is left out."""
        return self._reader.tagged(self.name, _start(after, since), live=False)

    def live(
        self, after: UUID | ResumePoint | None = None, *, since: datetime | None = None
    ) -> StageStream[PekkoEvent]:
        """What is there and what will come; does not end."""
        return self._reader.tagged(self.name, _start(after, since), live=True)


@asynccontextmanager
async def open_reader(
    cassandra: CassandraConfig, pekko: PekkoConfig, *, clock: Clock | None = None, trace: Trace | None = None
) -> AsyncIterator[PekkoReader]:
    """A reader on a Cassandra cluster: `async with open_reader(cassandra, pekko) as reader: …`."""
    from everlog.cassandra.session import connect
    from everlog.pekko.tables import CassandraTables

    StageSettings.of(pekko)  # raises before anything is connected
    session = await connect(cassandra, trace)
    try:
        yield PekkoReader(CassandraTables(session, pekko), pekko, clock=clock)
    finally:
        await session.close()


def _check_id(persistence_id: str) -> None:
    if not isinstance(persistence_id, str) or not persistence_id:
        raise InvalidId("a journal's id is text and not empty")


def _start(after: UUID | ResumePoint | None, since: datetime | None) -> UUID | ResumePoint | None:
    if since is None:
        return after
    if after is not None or since.tzinfo is None:
        raise InvalidOffset("pass either `after` or `since`, and `since` as a datetime with its time zone")
    return offset_of(first_place((since - EPOCH) // timedelta(milliseconds=1)))
