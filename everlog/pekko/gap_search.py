"""Looking for events that must be there: which of which journal, where, until when.

A search reads keys only, in the bucket of the event that showed the gap and in the one before; payloads are fetched
for what it finds. The first look is between the two neighbours in time. Later looks take in both buckets whole: the
clock of the missing event's writer may have been off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from everlog.pekko.key_scans import KeyScan
from everlog.pekko.port import EventKey, FetchRows, ReadKeys, RowPage, TaggedRow
from everlog.pekko.time_buckets import Buckets, first_place, last_place


class AwaitedEvent(NamedTuple):
    """A row that may go now. `sure`: no gap before it matters any more."""

    row: TaggedRow
    sure: bool


class GapSearch:
    """The missing events of one journal.

    `floor`: nothing of this journal at or below it is missing. `top`: the place of what showed the gap. `held`: events
    that must wait, the first being the one that showed the gap. `soft`: at the deadline it does without the missing.
    """

    def __init__(
        self, persistence_id: str, missing: Iterable[int], *, floor: int, top: int, deadline: int, soft: bool
    ) -> None:
        self.persistence_id = persistence_id
        self.missing = set(missing)
        self.size = len(self.missing)
        self.floor = floor
        self.top = top
        self.deadline = deadline
        self.soft = soft
        self.held: list[TaggedRow] = []
        self.found: dict[int, TaggedRow] = {}
        self.low, self.high = floor, top
        self.looks = 0
        self.next_at = 0

    def wants(self, key: EventKey) -> bool:
        return key.tag_seq_nr in self.missing and self.low < key.place <= self.high

    def add(self, row: TaggedRow) -> None:
        self.missing.discard(row.key.tag_seq_nr)
        self.found.setdefault(row.key.tag_seq_nr, row)

    def release(self) -> list[AwaitedEvent]:
        """What was found, what showed the gap, and what came after that, in which there may be another gap."""
        sure = [self.found[number] for number in sorted(self.found)] + self.held[:1]
        return [
            *(AwaitedEvent(row, sure=True) for row in sure),
            *(AwaitedEvent(row, sure=False) for row in self.held[1:]),
        ]

    def aim(self, buckets: Buckets, *, origin: int, to: int) -> None:
        """Set the range of the next look; never before the start of the query, never more than two buckets."""
        if self.looks > 0:
            bucket = buckets.of_place(self.top)
            self.low = max(first_place(bucket - buckets.size), origin)
            self.high = max(self.top, min(to, last_place(bucket + buckets.size - 1)))
        self.looks += 1


class SearchRound:
    """One look for everything that some searches miss."""

    def __init__(self, tag: str, searches: Sequence[GapSearch], buckets: Buckets, page_size: int, started: int) -> None:
        self.searches = searches
        self.started = started
        self._tag = tag
        self._buckets = buckets
        self._page_size = page_size
        self._by_id = {search.persistence_id: search for search in searches}
        self._scan = KeyScan(_ranges(tag, searches, buckets), self._visit)
        self._matched: dict[int, list[EventKey]] = {}

    def _visit(self, key: EventKey) -> None:
        search = self._by_id.get(key.persistence_id)
        if search is not None and search.wants(key):
            self._matched.setdefault(self._buckets.of_place(key.place), []).append(key)

    def query(self) -> ReadKeys | FetchRows | None:
        scan = self._scan.query()
        if scan is not None or not self._matched:
            return scan
        bucket, keys = next(iter(self._matched.items()))
        return FetchRows(self._tag, bucket, tuple(keys[: self._page_size]))

    def found_keys(self, page: RowPage[EventKey]) -> None:
        self._scan.answer(page)

    def fetched(self, query: FetchRows, page: RowPage[TaggedRow]) -> None:
        for row in page.items:
            search = self._by_id[row.key.persistence_id]
            if search.wants(row.key):
                search.add(row)
        rest = self._matched[query.bucket][len(query.keys) :]
        if rest:
            self._matched[query.bucket] = rest
        else:
            del self._matched[query.bucket]


def _ranges(tag: str, searches: Iterable[GapSearch], buckets: Buckets) -> list[ReadKeys]:
    """Per bucket one range that holds what each search wants of it; the newest bucket first."""
    spans: dict[int, tuple[int, int]] = {}
    for search in searches:
        newest = buckets.of_place(search.top)
        for bucket in (newest, newest - buckets.size):
            low = max(search.low, first_place(bucket))
            high = min(search.high, last_place(bucket + buckets.size - 1))
            if low < high:
                before = spans.get(bucket, (low, high))
                spans[bucket] = (min(low, before[0]), max(high, before[1]))
    return [ReadKeys(tag, bucket, *spans[bucket]) for bucket in sorted(spans, reverse=True)]


def in_order(groups: Iterable[Sequence[AwaitedEvent]]) -> list[AwaitedEvent]:
    """Rows of several journals by time, each journal's own in the order given.

    A clock that was off may have stamped a later event of a journal earlier. Its numbers decide, not its times.
    """
    placed: list[tuple[int, AwaitedEvent]] = []
    for group in groups:
        latest = 0
        for waiting in group:
            latest = max(latest, waiting.row.key.place)
            placed.append((latest, waiting))
    placed.sort(key=lambda one: one[0])
    return [waiting for _, waiting in placed]
