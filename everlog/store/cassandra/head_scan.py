"""Walking over all heads of a topic: keys, old purge markers, and which of kafka-journal's expire.

A topic's heads lie in many partitions. They are read in groups of these, a few groups at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, TypeVar

from everlog.cassandra.session import CassandraRow, Session
from everlog.cassandra.values import timestamp
from everlog.core.duration import DAY_MS
from everlog.core.head import Topic
from everlog.core.values import head_segment
from everlog.store.cassandra.heads import HeadPlaces, date_from, listed, may_drop

MERGE_WIDTH = 8

T = TypeVar("T")


class HeadScan:
    """The heads of topics, wherever they lie."""

    def __init__(self, session: Session, cql: Mapping[str, str], places: HeadPlaces) -> None:
        self._session = session
        self._cql = cql
        self._places = places

    def _groups(self, name: str, topic: Topic, *, page: int) -> AsyncIterator[list[CassandraRow]]:
        return merged(
            self._session.pages(self._cql[name], topic.name, group, page=page)
            for group in self._places.groups(topic.partitions)
        )

    def ids(self, topic: Topic, *, page: int) -> AsyncIterator[list[str]]:
        """Pages of the ids of existing journals."""
        return merged(self._ids(topic.name, group, page) for group in self._places.groups(topic.partitions))

    async def _ids(self, topic: str, group: list[int], page: int) -> AsyncIterator[list[str]]:
        taken_over = self._places.taken_over
        elsewhere = await self._in_old_segment(topic, group[0], page) if taken_over else {}
        async for rows in self._session.pages(self._cql["listed_heads"], topic, group, page=page):
            found = []
            for segment, journal_id, cell, theirs in rows:
                offset, purged = _listed(cell, theirs)
                if taken_over and (segment != head_segment(journal_id) or not _wins(elsewhere, journal_id, offset)):
                    continue
                if not purged:
                    found.append(journal_id)
            if found:
                yield found
        rest = [journal_id for journal_id, (_, purged) in elsewhere.items() if not purged]
        for start in range(0, len(rest), page):
            yield rest[start : start + page]

    async def _in_old_segment(self, topic: str, old: int, page: int) -> dict[str, tuple[int, bool]]:
        """Heads that lie in this old segment and would lie elsewhere today: offset, and whether purged."""
        return {
            journal_id: _listed(cell, theirs)
            async for rows in self._session.pages(self._cql["listed_heads"], topic, [old], page=page)
            for _, journal_id, cell, theirs in rows
            if head_segment(journal_id) != old
        }

    async def taken_over_days(self, topic: Topic, *, page: int) -> AsyncIterator[list[tuple[str, date]]]:
        """Pages of ids and days on which they expire, as kafka-journal left them: what came later is not looked at."""
        async for rows in self._groups("taken_over_expiry", topic, page=page):
            found = [(journal_id, date_from(day)) for journal_id, day in rows if day is not None]
            if found:
                yield found

    async def drop_markers(self, topic: Topic, before_ms: int, pointers: Mapping[int, int]) -> int:
        """Remove purge markers older than this that no replay can need; looks at all heads, so once a day is enough."""
        key = f"markers:{topic.name}"
        rows = await self._session.fetch(self._cql["setting"], key)
        if rows and 0 <= before_ms - int(rows[0][0]) < DAY_MS:
            return 0
        dropped = 0
        async for rows in self._groups("listed_heads", topic, page=1000):
            old = [
                (topic.base + head.offset, segment, journal_id, head.partition)
                for segment, journal_id, cell, _ in rows
                if cell is not None and may_drop(head := listed(cell), before_ms, pointers)
            ]
            # Gaps first: without the marker no task would look for them again. The marker last: what kafka-journal left
            # in the other segment must not come to light.
            await self._delete("delete_all_gaps", [(at, journal_id, topic.name) for at, _, journal_id, _ in old])
            others = [
                (at, topic.name, other, journal_id)
                for at, segment, journal_id, partition in old
                for other in self._places.of(journal_id, partition)
                if other != segment
            ]
            await self._delete("delete_head", others)
            own = [(at, topic.name, segment, journal_id) for at, segment, journal_id, _ in old]
            await self._delete("delete_head", own)
            dropped += len(old)
        await self._remember(key, str(before_ms))
        return dropped

    async def _delete(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        cql = self._cql[name]
        prepared = await self._session.prepare(cql)
        requests = [("", prepared.bind(list(values)), cql) for values in rows]
        for error in (await self._session.run_all(requests, len(requests))).values():
            raise error

    async def _remember(self, key: str, value: str) -> None:
        now = timestamp(int(time.time() * 1000))
        await self._session.write(self._cql["put_setting"], key, value, now)


def _listed(cell: str | None, theirs: int | None) -> tuple[int, bool]:
    """A listed head's offset, and whether it is purged; one of kafka-journal's is not."""
    if cell is None:
        return -1 if theirs is None else theirs, False
    head = listed(cell)
    return head.offset, head.purged


def _wins(elsewhere: dict[str, tuple[int, bool]], journal_id: str, offset: int) -> bool:
    """Whether the row in the new segment counts; if so, the one in the old segment does not."""
    other = elsewhere.get(journal_id)
    if other is None:
        return True
    if other[0] > offset:
        return False
    del elsewhere[journal_id]
    return True


async def merged(sources: Iterable[AsyncIterator[T]], width: int = MERGE_WIDTH) -> AsyncIterator[T]:
    """What the sources yield, `width` of them running at a time, in any order; none runs far ahead."""
    queue: asyncio.Queue[T | None] = asyncio.Queue(width)
    todo = iter(sources)
    workers = [asyncio.create_task(_drain(todo, queue)) for _ in range(width)]
    finished = asyncio.create_task(_finish(workers, queue))
    try:
        while (item := await queue.get()) is not None:
            yield item
        await asyncio.gather(*workers)
    finally:
        for task in (*workers, finished):
            task.cancel()
        await asyncio.gather(*workers, finished, return_exceptions=True)


async def _drain(todo: Iterator[AsyncIterator[T]], queue: asyncio.Queue[T | None]) -> None:
    for source in todo:
        async for item in source:
            await queue.put(item)


async def _finish(workers: list[asyncio.Task[None]], queue: asyncio.Queue[T | None]) -> None:
    """End the queue when all are done, or one has failed."""
    await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    await queue.put(None)
