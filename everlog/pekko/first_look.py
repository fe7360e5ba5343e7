"""A first look behind an offset in the current bucket: with which number does each journal begin there?

The bucket is being written to, so a journal's first visible event need not be its first. What the look sees lowest is
a guess: a lower number that turns up until the read gets there is taken as well.
"""

from __future__ import annotations

from typing import Any

from everlog.pekko.delivered import DeliveredNumbers, Last
from everlog.pekko.gap_search import KeyScan
from everlog.pekko.port import EventKey, Now, ReadKeys, RowPage
from everlog.pekko.settings import StageSettings
from everlog.pekko.time_buckets import first_place, last_place, unix_ms


class FirstLook:
    """Fills `known` with guesses, at the steady time `at` or later."""

    def __init__(self, tag: str, after: int, settings: StageSettings, known: DeliveredNumbers, now: Now) -> None:
        self.at = now.steady + settings.offset_scan
        self._known = known
        self._now = now.steady
        upto = last_place(now.wall + settings.offset_scan)
        self._scan = KeyScan([ReadKeys(tag, settings.buckets.of_place(after), after, upto)], self._visit)

    @staticmethod
    def needed(after: int, settings: StageSettings, now: Now) -> bool:
        return settings.offset_scan > 0 and settings.buckets.of_place(after) == settings.buckets.at(now.wall)

    def query(self) -> ReadKeys | None:
        return self._scan.query()

    def answer(self, page: RowPage[Any]) -> None:
        self._scan.answer(page)

    def _visit(self, key: EventKey) -> None:
        last = self._known.get(key.persistence_id)
        if last is None or (last.guess and key.tag_seq_nr <= last.number):
            place = first_place(unix_ms(key.place) - 1)
            self._known.put(key.persistence_id, Last(key.tag_seq_nr - 1, place, place, self._now, guess=True))
