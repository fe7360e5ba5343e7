"""The read in the order of time: where it is, how far it may go now, when it goes on."""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left
from collections import deque
from typing import Any

from everlog.pekko.port import FindBuckets, ListBuckets, Now, ReadRows, RowPage, TableQuery, TaggedRow
from everlog.pekko.settings import StageSettings
from everlog.pekko.time_buckets import first_place, last_place, unix_ms

# Buckets that are asked about at a time; some servers take no more keys in one statement.
MAX_BUCKETS = 100
# After this many questions without an answer, list all buckets.
MAX_QUESTIONS = 10
# A page of that list costs about as much as this many questions. If the list takes longer than all questions that are
# left, because other tags have many buckets, it is given up.
QUESTIONS_PER_PAGE = 100


class BucketList:
    """Which of some buckets have rows, from the list of all that the table has. Complete when `query` is None.

    It is kept: a tag that is silent every night does not have the table listed for each of them.
    """

    def __init__(self, tag: str, buckets: range) -> None:
        self._buckets = buckets
        self._pages = len(buckets) // (MAX_BUCKETS * QUESTIONS_PER_PAGE)
        self._found = array("q")
        self.query: ListBuckets | None = ListBuckets(tag)

    @property
    def too_long(self) -> bool:
        return self.query is not None and self._pages <= 0

    def answer(self, page: RowPage[int]) -> None:
        assert self.query is not None
        self._pages -= 1
        self._found.extend(one for one in page.items if one in self._buckets)
        self.query = None if page.cursor is None else self.query._replace(cursor=page.cursor)
        if self.query is None:
            self._found = array("q", sorted(self._found))

    def next(self, bucket: int) -> int | None:
        """The first bucket from this one on that has rows, or the first that was not asked for; None: not known."""
        if self.query is not None or bucket >= self._buckets.stop:
            return None
        at = bisect_left(self._found, bucket)
        return self._found[at] if at < len(self._found) else self._buckets.stop


class ForwardScan:
    """Reads bucket after bucket, each up to a delay before now, page by page. Past buckets without rows are skipped.

    `position`: all rows up to it were taken. `pending`: rows of a page that were not. `finished`: the fixed end of a
    current query is reached; a live one has none. Otherwise it goes on at the steady time `next_at`.
    """

    def __init__(
        self, tag: str, settings: StageSettings, now: Now, *, origin: int, skip: bool, live: bool, chance: random.Random
    ) -> None:
        self._tag = tag
        self._settings = settings
        self._buckets = settings.buckets
        self._end = None if live else last_place(now.wall)
        self._page: ReadRows | None = None
        self._poll_at = now.steady + first_poll(settings.refresh_ms, chance)
        self._again = False
        self._skip = skip  # whether the buckets to come may well be empty
        self._empty = True  # whether the bucket under way is, so far
        self._questions = 0  # in a row that named no bucket
        self._list: BucketList | None = None
        self.position = origin
        self.pending: deque[TaggedRow] = deque()
        self.finished = False
        self.next_at = now.steady

    def to(self, now: Now) -> int:
        """How far it may go now."""
        to = last_place(now.wall - self._settings.delay_ms)
        return to if self._end is None else min(to, self._end)

    def take(self) -> TaggedRow:
        """The next row; from now on it is the taker's."""
        row = self.pending.popleft()
        self.position = max(self.position, row.key.place)
        return row

    def query(self, now: Now) -> ReadRows | FindBuckets | ListBuckets | None:
        """The next page or buckets to ask for, when the last page is used up; None: not now."""
        assert not self.pending
        while not self.finished:
            if self._page is not None:
                if self._page.cursor is not None:
                    return self._page
                self._exhausted(self._page.before, now)
                continue
            if now.steady < self.next_at:
                return None
            to = self.to(now)
            bucket = self._buckets.of_place(self.position)
            past = range(bucket, self._buckets.of_place(to), self._buckets.size)
            if self._skip and len(past) > 1:
                known = None if self._list is None else self._list.next(bucket)
                if known is None:
                    return self._find(past)
                self.position, self._skip = max(self.position, first_place(known)), False
                continue
            if self.position < to:
                self._page = ReadRows(self._tag, bucket, self.position, to)
                return self._page
            self._exhausted(to, now)
        return None

    def _find(self, past: range) -> FindBuckets | ListBuckets:
        """Ask which of these buckets have rows: the nearest ones, or if they are very many, all at once."""
        if self._list is None and self._questions >= MAX_QUESTIONS:
            self._list = BucketList(self._tag, past)
        if self._list is not None and self._list.query is not None and not self._list.too_long:
            return self._list.query
        return FindBuckets(self._tag, tuple(past[:MAX_BUCKETS]))

    def told(self, query: TableQuery, page: RowPage[Any]) -> None:
        """The answer to what `query` asked for."""
        if isinstance(query, FindBuckets):
            self._found(query, page)
        elif isinstance(query, ListBuckets):
            assert self._list is not None
            self._list.answer(page)
        else:
            self._read(page)

    def _read(self, page: RowPage[TaggedRow]) -> None:
        assert self._page is not None
        self._page = self._page._replace(cursor=page.cursor)
        self._empty = self._empty and not page.items
        self.pending.extend(page.items)

    def _found(self, query: FindBuckets, page: RowPage[int]) -> None:
        """Go to the first bucket that exists, or behind all that were asked for."""
        after = query.buckets[-1] + self._buckets.size
        self.position = max(self.position, first_place(min(page.items, default=after)))
        self._skip = not page.items
        self._questions = self._questions + 1 if self._skip else 0

    def give_up_list(self) -> None:
        """Ask for buckets in their order from now on."""
        self._list = BucketList(self._tag, range(0))

    def hurry(self, now: Now) -> None:
        """It was held up: what became readable meanwhile is not left to the next poll."""
        self.next_at = now.steady
        self._again = self._page is not None

    def _exhausted(self, to: int, now: Now) -> None:
        """All of the bucket up to `to` was read: on to the next bucket, or to the end, or wait."""
        self._page = None
        bucket = self._buckets.of_place(self.position)
        following = bucket + self._buckets.size
        if following <= unix_ms(to) and bucket < self._buckets.at(now.wall):
            self.position = first_place(following)
            self.next_at = now.steady
            self._skip, self._empty = self._empty, True
        elif self._end is None:
            if self._poll_at <= now.steady:
                self._poll_at = now.steady + self._settings.refresh_ms
            self.next_at = now.steady if self._again else self._poll_at
            self._again = False
        elif to == self._end:
            self.finished = True
        else:
            self.next_at = now.steady + max(1, unix_ms(self._end) + self._settings.delay_ms - now.wall)


def first_poll(refresh: int, chance: random.Random) -> int:
    """Readers that start together do not poll together."""
    return refresh if refresh < 2000 else refresh // 2 + round(chance.uniform(0, refresh / 2))
