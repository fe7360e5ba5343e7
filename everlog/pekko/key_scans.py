"""Scans of keys, without payloads: the first look behind an offset, and the looks back behind the position.

The bucket of an offset may still be written to, so a journal's first visible event there need not be its first. What
the first look sees lowest is a guess: a lower number that turns up until the read gets there is taken as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from everlog.pekko.delivered import DeliveredNumbers, LastDelivered
from everlog.pekko.port import EventKey, Now, ReadKeys, RowPage
from everlog.pekko.settings import StageSettings
from everlog.pekko.time_buckets import first_place, last_place, unix_ms


class KeyScan:
    """Visits all keys of some ranges, page by page."""

    def __init__(self, ranges: Iterable[ReadKeys], visit: Callable[[EventKey], None]) -> None:
        self._todo = list(reversed(list(ranges)))
        self._visit = visit

    def query(self) -> ReadKeys | None:
        """The next query to ask; None at the end."""
        return self._todo[-1] if self._todo else None

    def answer(self, page: RowPage[EventKey]) -> None:
        for key in page.items:
            self._visit(key)
        query = self._todo.pop()
        if page.cursor is not None:
            self._todo.append(query._replace(cursor=page.cursor))


class SeenNumbers(NamedTuple):
    """The lowest and the highest number of a journal."""

    lowest: int
    highest: int


class BacktrackScan(KeyScan):
    """One look back, at what lies behind `after` up to `upto`; keeps two numbers per journal."""

    def __init__(self, ranges: Iterable[ReadKeys], now: Now, *, after: int, upto: int) -> None:
        super().__init__(ranges, self._note)
        self.began = now.steady
        self.after = after
        self.upto = upto
        self.seen: dict[str, SeenNumbers] = {}

    def _note(self, key: EventKey) -> None:
        number = key.tag_seq_nr
        lowest, highest = self.seen.get(key.persistence_id, (number, number))
        self.seen[key.persistence_id] = SeenNumbers(min(lowest, number), max(highest, number))


class Backtrack:
    """When the next look back is due. `next_at` is None if there are none."""

    def __init__(self, settings: StageSettings, now: Now) -> None:
        self._settings = settings
        self._last_long = now.steady
        self.next_at = None if settings.short_interval_ms is None else now.steady + settings.short_interval_ms

    def hurry(self, now: Now) -> bool:
        """Let a long look be due now; False if there are no looks back."""
        if self.next_at is None or self._settings.long_interval_ms is None:
            return False
        self.next_at = now.steady
        self._last_long = now.steady - self._settings.long_interval_ms
        return True

    def due(self, now: Now) -> bool:
        return self.next_at is not None and now.steady >= self.next_at

    def begin(self, tag: str, now: Now, *, position: int, origin: int) -> BacktrackScan:
        """A look back from the position; it may well have nothing to ask."""
        settings = self._settings
        assert settings.short_interval_ms is not None
        self.next_at = now.steady + settings.short_interval_ms
        period = settings.short_period_ms
        if settings.long_interval_ms is not None and now.steady - self._last_long >= settings.long_interval_ms:
            self._last_long = now.steady
            period = settings.long_period_ms
        after = max(self._start(unix_ms(position), period), origin)
        return BacktrackScan(self._ranges(tag, after, position), now, after=after, upto=position)

    def _start(self, position_ms: int, period: int | None) -> int:
        """Never before the previous bucket, nor so far that journals may have been forgotten."""
        if period is None:
            period = self._settings.forget_after_ms
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


class FirstLook(KeyScan):
    """With which number does each journal begin behind an offset? Fills `known` with guesses, at the steady time `at`
    or later."""

    def __init__(self, tag: str, after: int, settings: StageSettings, known: DeliveredNumbers, now: Now) -> None:
        upto = last_place(now.wall + settings.offset_scan_ms)
        super().__init__([ReadKeys(tag, settings.buckets.of_place(after), after, upto)], self._guess)
        self.at = now.steady + settings.offset_scan_ms
        self._known = known
        self._now = now.steady

    @staticmethod
    def needed(after: int, settings: StageSettings, now: Now) -> bool:
        return settings.offset_scan_ms > 0 and settings.buckets.of_place(after) == settings.buckets.at(now.wall)

    def _guess(self, key: EventKey) -> None:
        last = self._known.get(key.persistence_id)
        if last is None or (last.guess and key.tag_seq_nr <= last.number):
            place = first_place(unix_ms(key.place) - 1)
            self._known.put(key.persistence_id, LastDelivered(key.tag_seq_nr - 1, place, place, self._now, guess=True))
