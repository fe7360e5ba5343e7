"""Which segments of a journal hold rows, and reading those rows.

Rows lie in the segment of their seqNr, a journal may skip any number of them, and Cassandra cannot say which segments
exist. So the pipeline writes down every long gap (table `gap`), and walks over segments leave these out. Where
nothing is written down, as in tables filled by others, empty segments are asked too, many at a time; before more than
a hundred thousand of them, the whole table is asked for this journal's segments: slow, but it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.core.events import EventRecord
from everlog.core.values import segment_of
from everlog.store.cassandra.rows import event_from
from everlog.store.port import KeyChange, RowCursor

# A gap is written down if at least this many whole segments lie in it.
MIN_GAP = 4
MAX_BLIND = 100_000
MAX_WINDOW = 64
GAPS_PER_PAGE = 1000
# The first answer to a query holds at most this many rows, even if they are large; their size then decides.
FIRST_ROWS = 255
ANSWER_BYTES = 8 * 1024 * 1024
_MIN_TIME = timestamp(-(2**63))
_MAX_TIME = timestamp(2**63 - 1)


def gaps_of(key: KeyChange) -> list[tuple[int, int, EventRecord]]:
    """The long gaps before a change's new rows: the segments around each, and the row behind it."""
    change = key.change
    assert change.head is not None
    size, rows = change.head.segment_size, change.rows
    # Below the first event of a life nothing is read, so there is no gap before it.
    before = (key.before - 1) // size if key.before and change.purged_at is None else None
    if (rows[-1].seq_nr - 1) // size - (before or 0) <= MIN_GAP:
        return []
    found = []
    for row in sorted(rows, key=lambda row: row.seq_nr):
        segment = segment_of(row.seq_nr, size)
        if before is not None and segment - before > MIN_GAP:
            found.append((before, segment, row))
        before = segment
    return found


class Segments:
    """One journal's segments, in one life; `life` is its record_id."""

    def __init__(self, session: Session, cql: Mapping[str, str], topic: str, journal_id: str, life: str | None) -> None:
        self._session = session
        self._cql = cql
        self._place = (journal_id, topic)
        self._life = life or ""

    async def runs(self, start: int, end: int) -> AsyncIterator[range]:
        """Segments from `start` to `end`, up or down, that may hold rows."""
        step = 1 if start <= end else -1
        at, last = start * step, end * step
        async for low, high in self._gaps(start, reverse=step < 0):
            enter, leave = (low, high) if step > 0 else (-high, -low)
            if enter >= last:
                break
            if leave <= at:
                continue
            if enter >= at:
                async for run in self._seen(range(at * step, (enter + 1) * step, step)):
                    yield run
            at = leave
        if at <= last:
            async for run in self._seen(range(at * step, (last + 1) * step, step)):
                yield run

    async def _gaps(self, start: int, *, reverse: bool) -> AsyncIterator[tuple[int, int]]:
        """Gaps as the segments around them, in the order of the walk, from the one that `start` may lie in."""
        values = (*self._place, self._life, start)
        if reverse:
            for low, high in await self._session.fetch(self._cql["next_gap"], *values):
                yield low, high
        name = "gaps_reverse" if reverse else "gaps"
        async for rows in self._session.pages(self._cql[name], *values, page=GAPS_PER_PAGE):
            for low, high in rows:
                yield low, high

    async def _seen(self, run: range) -> AsyncIterator[range]:
        """A run, unless it is so long that it is better to ask which of it exist."""
        if len(run) <= MAX_BLIND:
            yield run
            return
        found: list[int] = []
        async for rows in self._session.pages(self._cql["segments"], *self._place, page=GAPS_PER_PAGE):
            found += [segment for *_, segment in rows if segment in run]
        for segment in sorted(found, reverse=run.step < 0):
            yield range(segment, segment + 1)


class PageReader:
    """One page of a journal's rows: `first` to `last`, behind `after`, at most `limit`."""

    def __init__(
        self,
        session: Session,
        cql: Mapping[str, str],
        place: tuple[str, str],
        segments: Segments,
        *,
        segment_size: int,
        first: int,
        last: int,
        reverse: bool,
        limit: int,
        after: RowCursor | None,
    ) -> None:
        self._session = session
        self._cql = cql["rows_reverse" if reverse else "rows"]
        self._place = place
        self._segments = segments
        self._size = segment_size
        self._first = first
        self._last = last
        self._reverse = reverse
        self._limit = limit
        self._after = after
        self._found: list[EventRecord] = []

    async def read(self) -> list[EventRecord]:
        """Segment by segment while they hold rows; from the first empty one on, many at a time."""
        near, far = (self._last, self._first) if self._reverse else (self._first, self._last)
        start = segment_of(near if self._after is None else self._after.seq_nr, self._size)
        end, step = segment_of(far, self._size), -1 if self._reverse else 1
        while (end - start) * step >= 0 and len(self._found) < self._limit:
            rows = await self._segment(start)
            self._found += rows
            start += step
            if not rows:
                await self._sparse(start, end)
                break
        return self._found[: self._limit]

    async def _sparse(self, start: int, end: int) -> None:
        if (end - start) * (-1 if self._reverse else 1) < 0:
            return
        window, batch = 2, []
        async for run in self._segments.runs(start, end):
            for segment in run:
                batch.append(segment)
                if len(batch) == window:
                    window = await self._together(batch, window)
                    batch = []
                if len(self._found) >= self._limit:
                    return
        await self._together(batch, window)

    async def _together(self, batch: list[int], window: int) -> int:
        """Read these segments; returns how many to read next: enough to fill the page, if they hold as much."""
        if not batch:
            return window
        pages = await asyncio.gather(*map(self._segment, batch))
        got = sum(map(len, pages))
        for page in pages:
            self._found += page
        wanted = MAX_WINDOW if not got else -(-(self._limit - len(self._found)) * len(batch) // got)
        return max(1, min(2 * window, wanted, MAX_WINDOW))

    async def _segment(self, segment: int) -> list[EventRecord]:
        """The rows of one segment, within its own seqNrs: what others put there by mistake is left out."""
        low, high = max(self._first, segment * self._size + 1), min(self._last, (segment + 1) * self._size)
        near, far = (high, low) if self._reverse else (low, high)
        cursor: tuple[int, Any] = (near, _MAX_TIME if self._reverse else _MIN_TIME)
        if self._after is not None and segment_of(self._after.seq_nr, self._size) == segment:
            cursor = (self._after.seq_nr, timestamp(self._after.timestamp))
        limit = self._limit - len(self._found)
        values = (*self._place, segment, *cursor, far, limit)
        rows, state = await self._session.page(self._cql, values, min(limit, FIRST_ROWS))
        events = [event_from(row) for row in rows]
        while state is not None:
            size = max(1, sum(len(event.data or "") for event in events) // len(events)) if events else 1
            # Below the limit: Cassandra takes a page as large as that for the whole answer, and begins again.
            page_size = max(1, min(limit - 1, ANSWER_BYTES // size))
            rows, state = await self._session.page(self._cql, values, page_size, state)
            events += [event_from(row) for row in rows]
        return events
