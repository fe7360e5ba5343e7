"""What users call: `log.tag("eu")`, `log.slices(0, 511)`, `log.tags()`."""

from __future__ import annotations

import asyncio
import logging
import operator
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec

from everlog.core.events import EventEnvelope, EventRecord
from everlog.core.plan import Watermark
from everlog.core.tag_names import PER_SLICE_TAG, check_slices, check_tag, is_built_in, slice_of, slice_tag
from everlog.core.timeuuid import FUTURE_MS, MIN_RANK, TimeUuid, before_time
from everlog.core.values import Position, check_id, check_position, shown
from everlog.errors import InvalidInput, InvalidOffset, InvalidPosition, NotReplicated
from everlog.errors.storage import needs_storage
from everlog.journal.journal import check_topic
from everlog.journal.parts import JournalParts
from everlog.runtime.pages import each
from everlog.store.tag_port import TagRow, TagTables
from everlog.tags.read_retry import RetryingRead
from everlog.tags.tag_status import TagStatus, known_soon, read_tag_status
from everlog.tags.upkeep import JournalRefs, Verified, all_journals, drop_rows, verify_journal
from everlog.tags.view_reader import read_range
from everlog.tags.watermarks import Watermarks

log = logging.getLogger("everlog.tags")
behind_log = logging.getLogger("everlog.tags.behind")

BEGINNING = TimeUuid(-1, MIN_RANK)

TagOffset = TimeUuid | uuid.UUID | Position | str | None


class TaggedEvent(EventEnvelope, msgspec.Struct, frozen=True, gc=False):
    """An event in a view by tag. `number` counts the events of its journal that carry the tag, from 1."""

    place: TimeUuid
    topic: str
    id: str
    number: int
    event: EventRecord

    @property
    def offset(self) -> uuid.UUID:
        """Where the event stands in the order of all tagged events: read on with `after=` this."""
        return self.place.uuid


class TagInfo(msgspec.Struct, frozen=True):
    """A tag at one glance: its events, the journals that they are of, and the last one's offset and time."""

    tag: str
    events: int
    journals: int
    last_offset: uuid.UUID
    last_time: datetime


class Tag(ABC):
    """The events of a tag, or of several at once, over all journals and topics, in one order that never changes."""

    names: list[str]

    def current(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncIterator[TaggedEvent]:
        """What the view holds as of now; it ends there.

        `after`: an offset, exclusive, or a token. `since`: a time instead. `token`: once the view holds what was
        written at this position of the log; NotReplicated if it does not get there in time.
        """
        return each(self.current_pages(after=after, since=since, token=token))

    def live(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncIterator[TaggedEvent]:
        """Like `current`, but it does not end: new events come as soon as they are in the view."""
        return each(self.live_pages(after=after, since=since, token=token))

    def current_pages(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent], None]:
        """Like `current`, a list of events at a time."""
        return self._current(*parse_start(after, since, token))

    def live_pages(
        self, *, after: TagOffset = None, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent], None]:
        """Like `live`, a list of events at a time."""
        return self._live(*parse_start(after, since, token))

    @abstractmethod
    def _current(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        """Pages behind `start` as of now, once the view holds `token`."""

    @abstractmethod
    def _live(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        """Pages behind `start` without end, once the view holds `token`."""

    @abstractmethod
    async def status(self) -> TagStatus:
        """How far the views are behind the log, and what to do about it: the pipeline must run to fill them.

        found = await log.tag("eu").status()
        print(found.records, found.seconds, found.remedy)
        """

    # What needs the log and the store themselves: a server does not hand these out.

    def steps(
        self, after: TagOffset = None, *, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent] | Watermark, None]:
        """Like `live_pages`, and the watermark each time that all up to it was given, events or not."""
        raise needs_storage()

    async def verify(self) -> Verified:
        """Count again: every event that journals hold with this tag must be in the view, once, with its number."""
        raise needs_storage()

    async def drop(self, *, topic: str | None = None, journal_id: str | None = None) -> int:
        """Remove the view, or a topic's or a journal's events from it; a rebuild brings back what journals still hold.

        The events themselves stay. What is appended from now on gets into the view as ever.
        """
        raise needs_storage()


class Tags:
    """All views by tag of an open log; their readers share one poll of the watermark."""

    def __init__(self, parts: JournalParts) -> None:
        tables = parts.store.tags
        if tables is None or not parts.config.tags.enabled:
            raise InvalidInput("no views by tag are kept here: set [tags] enabled = true, and run the pipeline")
        self.parts = parts
        self.tables: TagTables = tables
        self.watermarks = Watermarks(tables, parts.config.tags, parts.config.where)
        self._warned = False

    def tag(self, name: str) -> LocalTag:
        return LocalTag(self, [check_tag(name)])

    def slices(self, first: int, last: int, *, starts: Mapping[str, TimeUuid] | None = None) -> LocalTag:
        """A range of slices. `starts`: built-in tags among them that are read from a later place on than the others."""
        check_slices(first, last)
        tags = [slice_tag(number) for number in range(first - first % PER_SLICE_TAG, last + 1, PER_SLICE_TAG)]
        whole = first % PER_SLICE_TAG == 0 and (last + 1) % PER_SLICE_TAG == 0
        wanted = None if whole else lambda row: first <= slice_of(row.id) <= last
        return LocalTag(self, tags, wanted, starts)

    async def covers(self, token: Position) -> Watermark:
        """The watermark, once the views hold what was written at this position of the log."""
        name = self.parts.config.journal.topic_prefix + token.topic
        place = f"{name}/{token.partition}"
        if place not in self.watermarks.seen.positions:
            await self._check_partition(name, token)
        seconds = self.parts.config.tags.token_timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await self.watermarks.until(lambda found: found.positions.get(place, 0) > token.offset)
        except TimeoutError:
            status = await known_soon(self.status())
            why = (status and status.warning) or "is the pipeline running? 'everlog status' tells"
            raise NotReplicated(f"the views by tag do not hold {token} after {seconds:g} s: {why}") from None

    async def _check_partition(self, name: str, token: Position) -> None:
        """What a token of this log names is pinned: for another one, readers would wait forever."""
        found = [topic.partitions for topic in await self.parts.store.pinned() if topic.name == name]
        if not found or token.partition >= found[0]:
            raise InvalidPosition(f"{token} is in no partition of this log: is it from another log?")

    async def status(self) -> TagStatus:
        return await read_tag_status(self.parts, self.tables)

    async def warn_behind(self) -> None:
        """Log once that live readers of these views would wait forever, or for long."""
        if self._warned:
            return
        self._warned = True
        status = await known_soon(self.status())
        self._warned = status is not None
        if status is not None and status.warning is not None:
            behind_log.warning("%s", status.warning)

    async def list(self, token: Position | str | None = None) -> list[TagInfo]:
        if token is not None:
            position = check_position(token)
            await self.watermarks.now()
            await self.covers(position)
        return [
            TagInfo(
                found.tag,
                found.events,
                found.journals,
                found.last.uuid,
                datetime.fromtimestamp(found.last.ms / 1000, UTC),
            )
            async for found in self.tables.summaries()
            if not is_built_in(found.tag)
        ]


class LocalTag(Tag):
    """The events of a tag in the store's views."""

    def __init__(
        self,
        all_tags: Tags,
        names: Sequence[str],
        wanted: Callable[[TagRow], bool] | None = None,
        starts: Mapping[str, TimeUuid] | None = None,
    ) -> None:
        self.names = list(names)
        self._tags = all_tags
        self._config = all_tags.parts.config.tags
        self._wanted = wanted
        self._starts = starts
        self._retry = RetryingRead(self._config)

    def steps(
        self, after: TagOffset = None, *, since: datetime | None = None, token: Position | str | None = None
    ) -> AsyncGenerator[list[TaggedEvent] | Watermark, None]:
        return self._steps(*parse_start(after, since, token))

    async def status(self) -> TagStatus:
        return await self._tags.status()

    async def verify(self) -> Verified:
        store, config = self._tags.parts.store, self._tags.parts.config
        (tag,) = self.names
        report, refs = Verified(tag), JournalRefs(store)
        async for place in all_journals(store, config):
            ref = await refs.of(*place)
            if ref is not None and report.right:
                await verify_journal(store, config, ref, tag, report)
        return report

    async def drop(self, *, topic: str | None = None, journal_id: str | None = None) -> int:
        if journal_id is not None:
            check_id(journal_id)
        name = None if topic is None else self._tags.parts.config.journal.topic_prefix + check_topic(topic)

        def wanted(row: TagRow) -> bool:
            return (name is None or row.topic == name) and (journal_id is None or row.id == journal_id)

        everything = topic is None and journal_id is None
        (tag,) = self.names
        return sum([count async for count in drop_rows(self._tags.tables, tag, None if everything else wanted)])

    async def _current(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        watermark = await self._begin(start, token)
        async with aclosing(self._read(start, watermark.end)) as pages:
            async for page in pages:
                yield page

    async def _live(self, start: TimeUuid, token: Position | None) -> AsyncGenerator[list[TaggedEvent], None]:
        async with aclosing(self._steps(start, token)) as steps:
            async for found in steps:
                if not isinstance(found, Watermark):
                    yield found

    async def _steps(
        self, start: TimeUuid, token: Position | None
    ) -> AsyncGenerator[list[TaggedEvent] | Watermark, None]:
        watermark = await self._begin(start, token)
        await self._tags.warn_behind()
        while True:
            if watermark.end > start:
                async with aclosing(self._read(start, watermark.end)) as pages:
                    async for page in pages:
                        yield page
                start = watermark.end  # nothing can appear below it any more
            yield watermark
            nr = watermark.nr
            watermark = await self._tags.watermarks.until(lambda found: found.nr > nr)  # noqa: B023

    async def _read(self, after: TimeUuid, upto: TimeUuid) -> AsyncGenerator[list[TaggedEvent], None]:
        size, short = self._config.page_size, self._tags.parts.config.journal.short
        names: dict[str, str] = {}
        found = read_range(
            self._tags.tables,
            self.names,
            after=after,
            upto=upto,
            page_size=size,
            retry=self._retry,
            starts=self._starts,
        )
        async with aclosing(found) as pages:
            async for rows in pages:
                places = [row.offset for row in rows]
                assert after < places[0], "out of order"
                assert places[-1] <= upto, "beyond the watermark"
                assert all(map(operator.lt, places, places[1:])), "out of order"
                after = places[-1]
                for topic in {row.topic for row in rows} - names.keys():
                    names[topic] = short(topic)
                kept = rows if self._wanted is None else list(filter(self._wanted, rows))
                if kept:
                    yield [TaggedEvent(row.offset, names[row.topic], row.id, row.number, row.event) for row in kept]

    async def _begin(self, start: TimeUuid, token: Position | None) -> Watermark:
        """The watermark to read up to, once it covers the token."""
        watermarks, clock = self._tags.watermarks, self._tags.parts.clock
        watermark = await watermarks.now()
        if start > watermark.end and start.ms > clock.now_ms() + FUTURE_MS:
            raise InvalidOffset(f"the offset {start} lies in the future: no event has it; was it taken from this log?")
        return watermark if token is None else await self._tags.covers(token)


def parse_start(
    after: TagOffset, since: datetime | None, token: Position | str | None
) -> tuple[TimeUuid, Position | None]:
    """Where to read from, and which position must have been reached. Nothing is read yet."""
    position = None if token is None else check_position(token)
    if isinstance(after, str) and ":" in after:
        after = Position.parse(after)
    if isinstance(after, Position):
        if position is not None:
            raise InvalidInput("two tokens were given: only one can be waited for")
        after, position = None, after
    if since is not None and after is not None:
        raise InvalidInput("give an offset (after=) or a time (since=), not both")
    if since is not None:
        if not isinstance(since, datetime):
            raise InvalidOffset(f"since is a datetime, not {shown(since)}")
        return before_time(since), position
    if after is None:
        return BEGINNING, position
    if isinstance(after, str):
        return TimeUuid.parse(after), position
    if isinstance(after, uuid.UUID):
        return TimeUuid.of(after), position
    if not isinstance(after, TimeUuid) or not all(isinstance(number, int) for number in after):
        raise InvalidOffset(f"an offset is a time-UUID, not {shown(after)}")
    return after, position
