"""A first look behind an offset in the current bucket: with which number does each journal begin there?

The bucket is being written to, so a journal's first visible event need not be its first. What the look sees lowest is
a guess: a lower number that turns up until the read gets there is taken as well.
"""

from __future__ import annotations

from typing import Any

from everlog.tags.delay.known import Known, Last
from everlog.tags.delay.port import Key, Now, Page, ReadKeys
from everlog.tags.delay.searching import KeyScan
from everlog.tags.delay.settings import Settings
from everlog.tags.delay.times import first_place, last_place, unix_ms


class FirstLook:
    """Fills `known` with guesses, at the steady time `at` or later."""

    def __init__(self, tag: str, after: int, settings: Settings, known: Known, now: Now) -> None:
        self.at = now.steady + settings.offset_scan
        self._known = known
        self._now = now.steady
        upto = last_place(now.wall + settings.offset_scan)
        self._scan = KeyScan([ReadKeys(tag, settings.buckets.of_place(after), after, upto)], self._visit)

    @staticmethod
    def needed(after: int, settings: Settings, now: Now) -> bool:
        return settings.offset_scan > 0 and settings.buckets.of_place(after) == settings.buckets.at(now.wall)

    def query(self) -> ReadKeys | None:
        return self._scan.query()

    def answer(self, page: Page[Any]) -> None:
        self._scan.answer(page)

    def _visit(self, key: Key) -> None:
        last = self._known.get(key.persistence_id)
        if last is None or (last.guess and key.tag_seq_nr <= last.number):
            place = first_place(unix_ms(key.place) - 1)
            self._known.put(key.persistence_id, Last(key.tag_seq_nr - 1, place, place, self._now, guess=True))
