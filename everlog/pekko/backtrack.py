"""Looking back: when, how far, and what was seen there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from everlog.pekko.gap_search import KeyScan
from everlog.pekko.port import EventKey, Now, ReadKeys, RowPage
from everlog.pekko.settings import StageSettings
from everlog.pekko.time_buckets import first_place, last_place, unix_ms


class Seen(NamedTuple):
    """The lowest and the highest number of a journal."""

    lowest: int
    highest: int


class Scan:
    """One look back, page by page; keeps two numbers per journal."""

    def __init__(self, ranges: Iterable[ReadKeys]) -> None:
        self.seen: dict[str, Seen] = {}
        self._scan = KeyScan(ranges, self._visit)

    def _visit(self, key: EventKey) -> None:
        number = key.tag_seq_nr
        lowest, highest = self.seen.get(key.persistence_id, (number, number))
        self.seen[key.persistence_id] = Seen(min(lowest, number), max(highest, number))

    def query(self) -> ReadKeys | None:
        return self._scan.query()

    def answer(self, page: RowPage[EventKey]) -> None:
        self._scan.answer(page)


class BackTrack:
    """When the next look back is due. `next_at` is None if there are none."""

    def __init__(self, settings: StageSettings, now: Now) -> None:
        self._settings = settings
        self._last_long = now.steady
        self.next_at = None if settings.short_every is None else now.steady + settings.short_every

    def begin(self, tag: str, now: Now, *, position: int, origin: int) -> Scan | None:
        """A look back from the position, if it is time for one and there is something to see."""
        settings = self._settings
        if self.next_at is None or now.steady < self.next_at:
            return None
        assert settings.short_every is not None
        self.next_at = now.steady + settings.short_every
        period = settings.short_period
        if settings.long_every is not None and now.steady - self._last_long >= settings.long_every:
            self._last_long = now.steady
            period = settings.long_period
        after = max(self._start(unix_ms(position), period), origin)
        ranges = list(self._ranges(tag, after, position))
        return Scan(ranges) if ranges else None

    def _start(self, position_ms: int, period: int | None) -> int:
        """Never before the previous bucket, nor so far that journals may have been forgotten."""
        if period is None:
            period = self._settings.forget_after
        buckets = self._settings.buckets
        previous = buckets.at(position_ms) - buckets.size
        return first_place(previous if period is None else max(position_ms - period, previous))

    def _ranges(self, tag: str, after: int, upto: int) -> Iterable[ReadKeys]:
        buckets = self._settings.buckets
        newest = buckets.of_place(upto)
        for bucket in (newest - buckets.size, newest):
            low, high = max(after, first_place(bucket)), min(upto, last_place(bucket + buckets.size - 1))
            if low < high:
                yield ReadKeys(tag, bucket, low, high)
