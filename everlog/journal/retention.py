"""Retention: replicated records leave the log when they are old enough, or when there are too many.

A record that is not replicated yet is never removed. Off by default.
"""

from __future__ import annotations

from everlog.journal.parts import Parts
from everlog.runtime.service import Service

EVERY_S = 60.0


class TrimReport(dict[tuple[str, int], int]):
    """Records removed, by (topic, partition)."""

    def __str__(self) -> str:
        return f"{sum(self.values())} records removed"


async def trim(parts: Parts) -> TrimReport:
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
    return report


class Retention(Service):
    """Trims the log every minute."""

    def __init__(self, parts: Parts) -> None:
        super().__init__("retention", EVERY_S, lambda: trim(parts), clock=parts.clock, store=parts.store)
