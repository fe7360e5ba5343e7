"""Retention: replicated records leave the log when they are old enough, or when there are too many.

A record that is not replicated yet is never removed. Off by default. What the store keeps about the log's records, the
verdicts, goes when the records are gone, also where the log has a retention of its own.
"""

from __future__ import annotations

from everlog.journal.parts import JournalParts
from everlog.runtime.service import Service

TRIM_INTERVAL_S = 60.0


class TrimReport(dict[tuple[str, int], int]):
    """Records removed, by (topic, partition)."""

    def __str__(self) -> str:
        return f"{sum(self.values())} records removed"


async def trim(parts: JournalParts) -> TrimReport:
    """Remove what `[log] retention_hours` and `retention_bytes` allow."""
    report = TrimReport()
    if not parts.log.trims:
        return report
    for topic in await parts.log.topics():
        for partition in range(topic.partitions):
            # Read before anything is removed; it only moves forward.
            pointer = await parts.store.pointer(topic.name, partition)
            count = await parts.log.trim(topic, partition, below=pointer + 1)
            if count:
                report[topic.name, partition] = count
    if report:
        await drop_verdicts(parts)
    return report


async def drop_verdicts(parts: JournalParts) -> None:
    """Remove what the store keeps about records that the log does not hold any more.

    A reader that finds a record still in the log, after it has read the verdicts, has therefore read all of them.
    """
    starts: dict[tuple[str, int], int] = {}
    for topic in await parts.log.topics():
        if parts.config.journal.includes(topic.name):
            for partition in range(topic.partitions):
                starts[topic.name, partition] = (await parts.log.bounds(topic, partition)).start
    gone = {place: start for place, start in starts.items() if start > 0}
    if gone:
        await parts.store.drop_verdicts(gone)


class Retention(Service):
    """Trims the log every minute."""

    def __init__(self, parts: JournalParts) -> None:
        super().__init__("retention", TRIM_INTERVAL_S, lambda: trim(parts), clock=parts.clock, store=parts.store)
