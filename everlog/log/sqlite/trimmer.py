"""Removes replicated records of the embedded log that are old enough, or too many.

The file keeps its size, and later appends use the freed pages.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

from everlog.core.duration import HOUR_MS
from everlog.log.sqlite.appender import SQL
from everlog.runtime.clock import Clock
from everlog.sqlite.connection import connect, transaction, translated

# A chunk is one transaction: appends wait for it, so it is short.
RECORDS_PER_TRANSACTION = 10_000

Place = tuple[int, int]
"""A topic's number in the tables, and a partition."""


class RetentionLimits(NamedTuple):
    """How long records are kept, and how many bytes of a partition; None: without a limit."""

    hours: float | None = None
    bytes: int | None = None


NO_LIMITS = RetentionLimits()


class _Sizes(NamedTuple):
    """How many bytes the records from `start` up to but not including `end` hold."""

    start: int
    end: int
    bytes: int


class Trimmer:
    """Removes records; remembers sizes, so that each record is measured once and not at every run."""

    def __init__(self, path: Path, limits: RetentionLimits, clock: Clock, synchronous: str) -> None:
        self.limits = limits
        self._path = path
        self._clock = clock
        self._synchronous = synchronous
        self._sizes: dict[Place, _Sizes] = {}

    def trim(self, topic: int, partition: int, below: int) -> int:
        """Remove chunks below this offset as long as there are any. Runs in a thread, on its own connection."""
        place = (topic, partition)
        with translated(self._path):
            connection = connect(self._path, synchronous=self._synchronous)
            try:
                total = 0
                if self.limits.bytes is not None:
                    self._measure(connection, place)
                while True:
                    removed, more = self._trim_chunk(connection, place, below)
                    total += removed
                    if not more:
                        return total
            finally:
                connection.close()

    def _measure(self, connection: sqlite3.Connection, place: Place) -> None:
        """Bring the known size up to the end of the log, in chunks: a long read would keep the WAL from shrinking."""
        start, end = connection.execute(SQL["bounds"], place).fetchone()
        known = self._sizes.get(place)
        if known is None or known.start != start or known.end > end:
            known = _Sizes(start, start, 0)  # the first time, or after another process has trimmed
        while known.end < end:
            upto = min(known.end + RECORDS_PER_TRANSACTION, end)
            (size,) = connection.execute(SQL["size_of"], (*place, known.end, upto)).fetchone()
            known = _Sizes(start, upto, known.bytes + size)
        self._sizes[place] = known

    def _trim_chunk(self, connection: sqlite3.Connection, place: Place, below: int) -> tuple[int, bool]:
        """One transaction. Returns how many records it removed, and whether there may be more."""
        with transaction(connection):
            start, _ = connection.execute(SQL["bounds"], place).fetchone()
            last = min(start + RECORDS_PER_TRANSACTION, below)
            known = self._sizes.get(place)
            if known is not None and known.start != start:
                return 0, False  # another process trims; measure again next time
            rows = connection.execute(SQL["ages_and_sizes"], (*place, start, last)).fetchall()
            upto, freed = self._first_kept(rows, last, known)
            if upto <= start:
                return 0, False
            removed = connection.execute(SQL["trim"], (*place, upto)).rowcount
            connection.execute(SQL["set_start"], (upto, *place))
        if known is not None:
            self._sizes[place] = _Sizes(upto, known.end, known.bytes - freed)
        return removed, upto == last and last < below

    def _first_kept(self, rows: list[tuple[int, int, int]], last: int, known: _Sizes | None) -> tuple[int, int]:
        """The offset up to which records go, and their size: a prefix, because a log has no holes."""
        hours, max_bytes = self.limits
        cutoff = None if hours is None else self._clock.now_ms() - int(hours * HOUR_MS)
        excess = -1 if known is None or max_bytes is None else known.bytes - max_bytes
        freed = 0
        for offset, timestamp, size in rows:
            old = cutoff is not None and timestamp < cutoff
            # The newest retention_bytes stay whole: a record goes only if enough is left without it.
            if not old and freed + size > excess:
                return offset, freed
            freed += size
        return last, freed
