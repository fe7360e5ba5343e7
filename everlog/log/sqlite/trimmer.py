"""Retention of the embedded log: replicated records go when they are old enough, or when there are too many.

Nothing that is not replicated yet is ever removed. Off by default; the file keeps its size, freed pages are used
again by later appends.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from everlog.log.port import LogTopic
from everlog.log.sqlite.appender import SQL
from everlog.log.sqlite.log import SqliteLog
from everlog.runtime.service import Service
from everlog.sqlite.connection import connect, transaction, translated

if TYPE_CHECKING:
    from everlog.journal.journal import Parts

# A chunk is one transaction: appends wait for it, so it is short.
CHUNK = 10_000
HOUR_MS = 3_600_000
EVERY_SECONDS = 60.0

TrimPlace = tuple[str, int]


class _Sizes(NamedTuple):
    """How many bytes the records from `start` up to but not including `end` hold."""

    start: int
    end: int
    bytes: int


class TrimReport(dict[TrimPlace, int]):
    """Records removed, by (topic, partition)."""

    def __str__(self) -> str:
        return f"{sum(self.values())} records removed"


class Trimmer:
    """Removes records; remembers sizes, so that each record is measured once and not at every run."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sizes: dict[TrimPlace, _Sizes] = {}

    async def trim(self) -> TrimReport:
        """Remove what may go now. Does nothing if no retention is configured, or the log is not embedded."""
        log, settings = self._parts.log, self._parts.config.log
        if not isinstance(log, SqliteLog) or (settings.retention_hours is None and settings.retention_bytes is None):
            return TrimReport()
        removed = TrimReport()
        for topic in await log.topics():
            for partition in range(topic.partitions):
                # Read before anything is removed; it only moves forward.
                pointer = await self._parts.store.pointer(topic.name, partition)
                if pointer >= (await log.bounds(topic, partition)).start:
                    count = await asyncio.to_thread(self._trim_partition, log, topic, partition, pointer + 1)
                    if count:
                        removed[topic.name, partition] = count
        return removed

    def _trim_partition(self, log: SqliteLog, topic: LogTopic, partition: int, limit: int) -> int:
        """In a thread, on a connection of its own: remove chunks below `limit` while there is something to remove."""
        settings = self._parts.config.log
        with translated(log.path):
            connection = connect(log.path, synchronous=settings.synchronous)
            try:
                place = (log.number(topic), partition)
                total = 0
                if settings.retention_bytes is not None:
                    self._measure(connection, (topic.name, partition), place)
                while True:
                    removed, more = self._trim_chunk(connection, (topic.name, partition), place, limit)
                    total += removed
                    if not more:
                        return total
            finally:
                connection.close()

    def _measure(self, connection: sqlite3.Connection, name: TrimPlace, place: tuple[int, int]) -> None:
        """Bring the known size up to the end of the log, in chunks: a long read would keep the WAL from shrinking."""
        start, end = connection.execute(SQL["bounds"], place).fetchone()
        known = self._sizes.get(name)
        if known is None or known.start != start or known.end > end:
            known = _Sizes(start, start, 0)  # first time, or somebody else trimmed
        while known.end < end:
            upto = min(known.end + CHUNK, end)
            (size,) = connection.execute(SQL["size_of"], (*place, known.end, upto)).fetchone()
            known = _Sizes(start, upto, known.bytes + size)
        self._sizes[name] = known

    def _trim_chunk(
        self, connection: sqlite3.Connection, name: TrimPlace, place: tuple[int, int], limit: int
    ) -> tuple[int, bool]:
        """One transaction. Returns how many records it removed, and whether there may be more."""
        with transaction(connection):
            start, _ = connection.execute(SQL["bounds"], place).fetchone()
            last = min(start + CHUNK, limit)
            known = self._sizes.get(name)
            if known is not None and known.start != start:
                return 0, False  # somebody else trims; measure again next time
            rows = connection.execute(SQL["ages_and_sizes"], (*place, start, last)).fetchall()
            upto, freed = self._first_kept(rows, last, known)
            if upto <= start:
                return 0, False
            removed = connection.execute(SQL["trim"], (*place, upto)).rowcount
            connection.execute(SQL["set_start"], (upto, *place))
        if known is not None:
            self._sizes[name] = _Sizes(upto, known.end, known.bytes - freed)
        return removed, upto == last and last < limit

    def _first_kept(self, rows: list[tuple[int, int, int]], last: int, known: _Sizes | None) -> tuple[int, int]:
        """The offset up to which records go, and their size: a prefix, because a log has no holes."""
        settings = self._parts.config.log
        cutoff = None
        if settings.retention_hours is not None:
            cutoff = self._parts.clock.now_ms() - int(settings.retention_hours * HOUR_MS)
        excess = -1 if known is None or settings.retention_bytes is None else known.bytes - settings.retention_bytes
        freed = 0
        for offset, timestamp, size in rows:
            old = cutoff is not None and timestamp < cutoff
            # The newest retention_bytes stay whole: a record goes only if enough is left without it.
            if not old and freed + size > excess:
                return offset, freed
            freed += size
        return last, freed


async def trim(parts: Parts) -> TrimReport:
    """Remove what `[log] retention_hours` and `retention_bytes` allow; returns the records removed by place."""
    return await Trimmer(parts).trim()


class Retention(Service):
    """Trims the log every minute."""

    def __init__(self, parts: Parts) -> None:
        trimmer = Trimmer(parts)
        super().__init__("retention", EVERY_SECONDS, trimmer.trim, clock=parts.clock, store=parts.store)
