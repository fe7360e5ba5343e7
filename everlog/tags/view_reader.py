"""The reader of views by tag: pages of events in the one order that all tagged events have.

A view is stored in buckets, and perhaps in shards; where the size of buckets was changed they overlap. So a read
merges sorted sources, and opens each of them only when its time has come. It never reads beyond the watermark: below
that nothing can appear any more, so there is no delay to guess and no gap to search.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Mapping, Sequence

from everlog.core.buckets import Bucket
from everlog.core.timeuuid import TimeUuid
from everlog.store.tag_port import TagRow, TagTables
from everlog.tags.read_retry import ReadRetry

MIN_ROWS_PER_SOURCE = 16
# A page is bounded in bytes, too: the first one is small, then the size of its rows decides.
FIRST_ROWS = 100
PAGE_BYTES = 8 * 1024 * 1024


class PageRoom:
    """How many rows fit into a page, by the size of those that came last."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self.rows = min(max_rows, FIRST_ROWS)

    def saw(self, page: list[TagRow]) -> None:
        if page:
            size = sum(len(row.event.data or "") + 200 for row in page) // len(page)
            self.rows = max(1, min(self._max_rows, PAGE_BYTES // size))


class RowSource:
    """A bucket of one stored tag, page by page."""

    def __init__(self, tag: str, bucket: Bucket) -> None:
        self.tag = tag
        self.bucket = bucket
        self._page: list[TagRow] = []
        self._at = 0
        self._more = True

    @property
    def next(self) -> TagRow | None:
        return self._page[self._at] if self._at < len(self._page) else None

    def held(self) -> int:
        return len(self._page) - self._at

    def step(self) -> None:
        self._at += 1

    def run_up_to(self, limit: TimeUuid | None) -> list[TagRow]:
        """Take all fetched rows that come before another source's next one; all of them if there is no other."""
        start, page = self._at, self._page
        if limit is None:
            self._at = len(page)
        else:
            while self._at < len(page) and page[self._at].offset < limit:
                self._at += 1
        return page[start : self._at]

    async def fetch(self, tables: TagTables, retry: ReadRetry, after: TimeUuid, upto: TimeUuid, room: PageRoom) -> None:
        """The next page, if the last one is used up."""
        if self._at < len(self._page) or not self._more:
            return
        if self._page:
            after = max(after, self._page[-1].offset)
        limit = room.rows
        self._page = await retry(lambda: tables.rows(self.tag, self.bucket, after=after, upto=upto, limit=limit))
        self._at = 0
        self._more = len(self._page) == limit
        room.saw(self._page)


async def read_range(
    tables: TagTables,
    tags: Sequence[str],
    *,
    after: TimeUuid,
    upto: TimeUuid,
    page_size: int,
    retry: ReadRetry,
    starts: Mapping[str, TimeUuid] | None = None,
) -> AsyncGenerator[list[TagRow], None]:
    """Pages of the events of all these tags with `after < offset <= upto`, in order; at most one page is held.

    `starts`: tags whose events begin later than the others'.
    """
    later = {tag: max(after, place) for tag, place in (starts or {}).items()}
    waiting = await _sources(tables, {tag: later.get(tag, after) for tag in tags}, upto, retry)
    room = PageRoom(max(page_size // max(1, _max_overlap(waiting)), min(MIN_ROWS_PER_SOURCE, page_size)))
    opened: list[tuple[TimeUuid, int, RowSource]] = []

    async def refill(number: int, source: RowSource) -> None:
        await source.fetch(tables, retry, later.get(source.tag, after), upto, room)
        if source.next is not None:
            heapq.heappush(opened, (source.next.offset, number, source))

    page: list[TagRow] = []
    count = 0
    while waiting or opened:
        while waiting and (not opened or waiting[-1].bucket.first <= opened[0][0]):
            count += 1
            await refill(count, waiting.pop())
        if not opened:
            continue
        _, number, source = heapq.heappop(opened)
        limits = [opened[0][0]] if opened else []
        if waiting:
            limits.append(waiting[-1].bucket.first)
        page += source.run_up_to(min(limits, default=None))
        if source.held() == 0 and page:
            # Before more is fetched, so that a slow consumer holds one page and no more.
            yield page
            page = []
        await refill(number, source)
    if page:
        yield page


async def _sources(
    tables: TagTables, tags: Mapping[str, TimeUuid], upto: TimeUuid, retry: ReadRetry
) -> list[RowSource]:
    """The buckets that exist between the two, the last one first. Of two that begin together, the longer counts."""
    found: dict[tuple[str, int, int | None], RowSource] = {}
    for tag, after in tags.items():
        if after >= upto:
            continue
        since_ms = max(after.ms, 0)
        for bucket in await retry(lambda tag=tag, since_ms=since_ms: tables.buckets(tag, since_ms)):  # type: ignore[misc]
            if bucket.first <= upto:
                key = (tag, bucket.start, bucket.shard)
                known = found.get(key)
                if known is None or known.bucket.size < bucket.size:
                    found[key] = RowSource(tag, bucket)
    return sorted(found.values(), key=lambda source: source.bucket.first, reverse=True)


def _max_overlap(sources: Sequence[RowSource]) -> int:
    """How many sources overlap at most: as many share a page."""
    edges = sorted(
        edge
        for source in sources
        for edge in ((source.bucket.start, 1), (source.bucket.start + source.bucket.size, -1))
    )
    maximum = now = 0
    for _, change in edges:
        now += change
        maximum = max(maximum, now)
    return maximum
