"""A world in virtual time: tables filled from a list, writes that become visible when their time comes."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec

from everlog.config import PekkoConfig
from everlog.errors import EverlogError
from everlog.pekko.events import PekkoEvent
from everlog.pekko.port import (
    EventContent,
    EventKey,
    FetchRows,
    FindBuckets,
    JournalRow,
    ListBuckets,
    ReadDeletedTo,
    ReadEvents,
    ReadIds,
    ReadKeys,
    ReadRows,
    RowPage,
    SerializedPayload,
    TableQuery,
    TaggedRow,
)
from everlog.pekko.reader import PekkoReader
from everlog.pekko.time_buckets import first_place, unix_ms
from tests.support import START_MS, ManualClock

HOUR = 3_600_000
BUCKET = START_MS - START_MS % HOUR  # the current bucket's start, 800 s ago
TAG = "t"


class TimeUp(Exception):
    """The test does not want to wait any longer."""


class MemoryTables:
    """The tables as lists. A cursor is the last key of its page, so rows that come between pages act as on a server."""

    def __init__(self, bucket_ms: int = HOUR, page_size: int = 3, partition_size: int = 15) -> None:
        self.bucket_ms = bucket_ms
        self.page_size = page_size
        self.partition_size = partition_size
        self.views: dict[EventKey, TaggedRow] = {}
        self.journals: dict[tuple[str, int], dict[int, JournalRow]] = {}
        self.other_buckets: set[int] = set()
        self.deleted: dict[str, int] = {}
        self.known_ids: list[str] = []
        self.asked: list[TableQuery] = []
        self.failures: list[EverlogError] = []
        self.failing: Callable[[TableQuery], EverlogError | None] = lambda query: None

    def _note(self, query: TableQuery) -> None:
        self.asked.append(query)
        failure = self.failing(query)
        if failure is not None:
            raise failure
        if self.failures:
            raise self.failures.pop(0)

    def _keys(self, bucket: int, low: int, high: int, cursor: bytes | None) -> tuple[list[EventKey], bytes | None]:
        begin = None if cursor is None else msgspec.json.decode(cursor, type=EventKey)
        found = sorted(
            key
            for key in self.views
            if bucket <= unix_ms(key.place) < bucket + self.bucket_ms
            if low < key.place <= high and (begin is None or key > begin)
        )
        page = found[: self.page_size]
        return page, msgspec.json.encode(page[-1]) if len(found) > len(page) else None

    async def rows(self, query: ReadRows) -> RowPage[TaggedRow]:
        self._note(query)
        keys, cursor = self._keys(query.bucket, query.after, query.before - 1, query.cursor)
        return RowPage([self.views[key] for key in keys], cursor)

    async def buckets(self, query: FindBuckets) -> RowPage[int]:
        self._note(query)
        assert len(query.buckets) <= 100
        there = {unix_ms(key.place) - unix_ms(key.place) % self.bucket_ms for key in self.views}
        return RowPage([bucket for bucket in query.buckets if bucket in there])

    async def all_buckets(self, query: ListBuckets) -> RowPage[int]:
        """In the order of a hash, a hundred to a page, those of other tags among them."""
        self._note(query)
        there = {unix_ms(key.place) - unix_ms(key.place) % self.bucket_ms for key in self.views} | self.other_buckets
        listed = sorted(there, key=lambda bucket: hash((bucket, "tag")))
        first = 0 if query.cursor is None else int(query.cursor)
        cursor = str(first + 100).encode() if first + 100 < len(listed) else None
        return RowPage([one for one in listed[first : first + 100] if one not in self.other_buckets], cursor)

    async def keys(self, query: ReadKeys) -> RowPage[EventKey]:
        self._note(query)
        return RowPage(*self._keys(query.bucket, query.after, query.upto, query.cursor))

    async def fetch(self, query: FetchRows) -> RowPage[TaggedRow]:
        self._note(query)
        assert len(query.keys) <= self.page_size
        assert all(query.bucket <= unix_ms(key.place) < query.bucket + self.bucket_ms for key in query.keys)
        return RowPage([self.views[key] for key in query.keys if key in self.views])

    async def events(self, query: ReadEvents) -> RowPage[JournalRow]:
        self._note(query)
        rows = self.journals.get((query.persistence_id, query.partition), {})
        first = query.first if query.cursor is None else int(query.cursor)
        numbers = sorted(number for number in rows if first <= number <= query.last)
        more = numbers[self.page_size :]
        return RowPage([rows[number] for number in numbers[: self.page_size]], str(more[0]).encode() if more else None)

    async def last_seq_nr(self, persistence_id: str, partition: int) -> int | None:
        return max(self.journals.get((persistence_id, partition), {}), default=None)

    async def deleted_to(self, query: ReadDeletedTo) -> RowPage[int]:
        self._note(query)
        return RowPage([self.deleted.get(query.persistence_id, 0)])

    async def ids(self, query: ReadIds) -> RowPage[str]:
        self._note(query)
        first = 0 if query.cursor is None else int(query.cursor)
        more = first + self.page_size < len(self.known_ids)
        return RowPage(
            self.known_ids[first : first + self.page_size], str(first + self.page_size).encode() if more else None
        )


class World:
    """Time passes only while somebody sleeps; scheduled writes happen at their time."""

    def __init__(self, *, bucket_ms: int = HOUR, page_size: int = 3, seed: int = 1, **settings: Any) -> None:
        self.clock = ManualClock()
        self.tables = MemoryTables(bucket_ms, page_size)
        self.config = PekkoConfig(
            **{"first_time_bucket": "20231114T20:00", "page_size": page_size, "target_partition_size": 15, **settings}
        )
        self.seed = seed
        self.limit = START_MS + 10 * 24 * HOUR
        self._plan: list[tuple[int, int, Callable[[], None]]] = []
        self._ids = itertools.count(1)

    @property
    def now(self) -> int:
        """Milliseconds since the start."""
        return self.clock.now_ms() - START_MS

    def reader(self, **changed: Any) -> PekkoReader:
        config = msgspec.structs.replace(self.config, **changed)
        return PekkoReader(self.tables, config, clock=self.clock, sleep=self.sleep, chance=random.Random(self.seed))

    def at(self, ms: int, what: Callable[[], None]) -> None:
        """Do this so many ms after the start; at once if that is over."""
        heapq.heappush(self._plan, (ms, next(self._ids), what))
        self._catch_up(self.now)

    def _catch_up(self, ms: int) -> None:
        while self._plan and self._plan[0][0] <= ms:
            when, _, what = heapq.heappop(self._plan)
            self.clock.advance(max(0, when - self.now) / 1000)
            what()

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0, "nobody waits for the past"
        target = self.now + max(1, round(seconds * 1000))
        stop = min(target, self.limit - START_MS)
        self._catch_up(stop)
        self.clock.advance((stop - self.now) / 1000)
        if target > stop:
            raise TimeUp

    def pass_time(self, ms: int) -> None:
        """Let time pass while a query runs."""
        target = self.now + ms
        self._catch_up(target)
        self.clock.advance((target - self.now) / 1000)

    async def sleep_through(self, ms: int) -> None:
        """Let time pass while nobody reads."""
        self.limit = START_MS + ms
        await self.sleep((ms - self.now) / 1000)

    def write(
        self, pid: str, number: int, time: int, *, seen: int | None = None, seq_nr: int | None = None
    ) -> TaggedRow:
        """An event of `TAG` with its time in ms since the start, visible from `seen` on; without that, at once."""
        place = first_place(START_MS + time) + (1 << 64) + next(self._ids)
        seq_nr = number if seq_nr is None else seq_nr
        row = TaggedRow(EventKey(place, pid, number), seq_nr, content(f"{pid}:{number}"))

        def insert() -> None:
            self.tables.views[row.key] = row

        insert() if seen is None else self.at(seen, insert)
        return row

    def store(self, pid: str, first: int, last: int | None = None, *, partition: int | None = None) -> None:
        """One atomic write into `messages`; it goes where its last event belongs."""
        last = first if last is None else last
        nr = (last - 1) // self.tables.partition_size if partition is None else partition
        rows = self.tables.journals.setdefault((pid, nr), {})
        for number in range(first, last + 1):
            rows[number] = JournalRow(number, first_place(START_MS + number) + 1, content(f"{pid}:{number}"))

    async def gather_one(self, stream: Any, ms: int) -> list[Any]:
        """The next event, unless the time comes first; the stream goes on afterwards."""
        self.limit = START_MS + ms
        try:
            return [await anext(stream)]
        except (TimeUp, StopAsyncIteration):
            return []

    async def gather(self, stream: Any, ms: int) -> list[Any]:
        """What arrives up to that time."""
        found: list[Any] = []
        while more := await self.gather_one(stream, ms):
            found += more
        return found

    async def until(self, stream: Any, ms: int) -> list[str]:
        return [label(event) for event in await self.gather(stream, ms)]


def content(text: str) -> EventContent:
    return EventContent("writer", "", SerializedPayload(17, "text", text.encode()))


def label(event: Any) -> str:
    if isinstance(event, PekkoEvent):
        name = f"{event.persistence_id}{event.seq_nr if event.tag_seq_nr is None else event.tag_seq_nr}"
        assert event.payload.data.decode() == name[0] + ":" + name[1:]
        return name
    return str(event)


async def everything(stream: Any) -> list[str]:
    return [label(event) async for event in stream]
