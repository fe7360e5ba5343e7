"""Walking over all heads of a topic: keys, expiry, old purge markers.

A topic's heads lie in ten thousand partitions. They are read in a hundred groups, a few at a time; a group holds the
segments that share one of the hundred old ones, so all rows of a journal are in one group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, TypeVar

import msgspec

from everlog.cassandra.session import CassandraRow, Session
from everlog.cassandra.values import day_seconds, timestamp
from everlog.core.duration import DAY_MS, utc_day
from everlog.core.head import Topic
from everlog.core.values import HEAD_SEGMENTS, LEGACY_HEAD_SEGMENTS, head_segment
from everlog.store.cassandra.rows import date_from

MERGE_WIDTH = 8
# Heads whose day is already over when they are written, because the pipeline was behind, are found by looking some
# days back every time, and at every head now and then.
LOOK_BACK = timedelta(days=3)
SCAN_EVERY = timedelta(days=7)

T = TypeVar("T")


class ScanProgress(msgspec.Struct, frozen=True):
    """Until which day expired journals were looked for, and when at every head."""

    day: date
    scanned: date


_encode = msgspec.json.Encoder().encode
_looked = msgspec.json.Decoder(ScanProgress).decode


class HeadScan:
    """The heads of topics; `legacy`: some may lie in one of a hundred segments."""

    def __init__(self, session: Session, cql: Mapping[str, str], *, legacy: bool) -> None:
        self._session = session
        self._cql = cql
        self._legacy = legacy

    def _groups(self, name: str, topic: str, *, page: int) -> AsyncIterator[list[CassandraRow]]:
        return merged(
            self._session.pages(self._cql[name], topic, group, page=page)
            for group in map(_group, range(LEGACY_HEAD_SEGMENTS))
        )

    def ids(self, topic: str, *, page: int) -> AsyncIterator[list[str]]:
        """Pages of the ids of existing journals."""
        return merged(self._ids(topic, old, page) for old in range(LEGACY_HEAD_SEGMENTS))

    async def _ids(self, topic: str, old: int, page: int) -> AsyncIterator[list[str]]:
        elsewhere = await self._in_old_segment(topic, old, page) if self._legacy else {}
        async for rows in self._session.pages(self._cql["ids"], topic, _group(old), page=page):
            found = []
            for segment, journal_id, offset, purged in rows:
                if self._legacy and (segment != head_segment(journal_id) or not _wins(elsewhere, journal_id, offset)):
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
            journal_id: (offset, bool(purged))
            async for rows in self._session.pages(self._cql["ids"], topic, [old], page=page)
            for _, journal_id, offset, purged in rows
            if head_segment(journal_id) != old
        }

    async def expired(self, topic: str, until_ms: int, now_ms: int, *, page: int) -> AsyncIterator[list[str]]:
        """Pages of the ids of journals that expire by this time.

        Remembers the day it got to once the last page was taken: then the journals before that day are dealt with. A
        day that has not begun does not count: other journals may still come to expire before it.
        """
        day = utc_day(until_ms // 1000)
        over = min(day, utc_day(now_ms // 1000))
        key = f"expiry:{topic}"
        rows = await self._session.fetch(self._cql["setting"], key)
        looked = _looked(rows[0][0]) if rows else None
        if looked is None or day - looked.scanned >= SCAN_EVERY:
            source = self._scan_expired(topic, day, until_ms, page)
            done = ScanProgress(over, over)
        else:
            first = min(looked.day, day) - LOOK_BACK
            source = self._look_up_expired(topic, first, day, until_ms, page)
            done = ScanProgress(max(over, looked.day), looked.scanned)
        async for found in source:
            yield found
        if done != looked:
            await self._remember(key, _encode(done).decode())

    async def _scan_expired(self, topic: str, day: date, until_ms: int, page: int) -> AsyncIterator[list[str]]:
        async for rows in self._groups("all_expiring", topic, page=page):
            found = [
                journal_id
                for journal_id, halted_at, expire_at, expire_on in rows
                if _is_due(halted_at, expire_at, until_ms) and expire_on is not None and date_from(expire_on) <= day
            ]
            if found:
                yield found

    async def _look_up_expired(
        self, topic: str, first: date, last: date, until_ms: int, page: int
    ) -> AsyncIterator[list[str]]:
        """By the index, which knows single days only."""
        for number in range(first.toordinal(), last.toordinal() + 1):
            values = (day_seconds(date.fromordinal(number)), topic)
            async for rows in self._session.pages(self._cql["expiring"], *values, page=page):
                found = [
                    journal_id for journal_id, halted_at, expire_at in rows if _is_due(halted_at, expire_at, until_ms)
                ]
                if found:
                    yield found

    async def drop_markers(self, topic: Topic, before_ms: int, pointers: Mapping[int, int]) -> int:
        """Remove purge markers older than this that no replay can need; looks at all heads, so once a day is enough."""
        key = f"markers:{topic.name}"
        rows = await self._session.fetch(self._cql["setting"], key)
        if rows and 0 <= before_ms - int(rows[0][0]) < DAY_MS:
            return 0
        dropped = 0
        async for found in self._groups("markers", topic.name, page=1000):
            old = [
                (topic.base + offset, segment, journal_id)
                for segment, journal_id, partition, offset, updated, halted_at, tag_seq in found
                if updated is not None and updated < before_ms and offset <= pointers.get(partition, -1)
                if halted_at is None and not tag_seq
            ]
            # Gaps first: without the marker no task would look for them again.
            await self._delete("delete_all_gaps", [(at, journal_id, topic.name) for at, _, journal_id in old])
            await self._delete(
                "delete_head", [(at, topic.name, segment, journal_id) for at, segment, journal_id in old]
            )
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


def _is_due(halted_at: int | None, expire_at: int | None, until_ms: int) -> bool:
    """Whether a head of the right day may be purged; of one that was taken over, only the day is known."""
    return halted_at is None and (expire_at is None or expire_at <= until_ms)


def _group(old: int) -> list[int]:
    return list(range(old, HEAD_SEGMENTS, LEGACY_HEAD_SEGMENTS))


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
