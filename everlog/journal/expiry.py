"""Expiry: a Purge into the log for every journal whose day is reached or passed.

The Purge carries the day, and the fold applies it only to a journal that has expired by then: an append that
extends the life in between wins. Days on which nothing ran are caught up, because the test is "on or before".
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, date, datetime

import msgspec

from everlog.core.actions import Purge
from everlog.core.head import exists
from everlog.errors import EverlogError, InvalidInput
from everlog.journal.journal import LocalJournal
from everlog.journal.parts import Parts
from everlog.journal.topic_registry import retired_topics
from everlog.runtime.service import Service

DAY_MS = 86_400_000


class ExpireReport(msgspec.Struct, frozen=True):
    """What a run did, by topic: journals purged, old purge markers dropped, and topics that could not be done."""

    day: date
    purged: dict[str, int]
    markers: dict[str, int]
    failed: dict[str, str] = {}

    def __str__(self) -> str:
        text = f"{sum(self.purged.values())} purged, {sum(self.markers.values())} markers dropped by {self.day}"
        return f"{text}, failed: {self.failed}" if self.failed else text


async def expire(parts: Parts, *, day: date | None = None, topics: Collection[str] | None = None) -> ExpireReport:
    """Purge what has expired on this day or earlier (today, UTC), then drop old purge markers."""
    now_ms = parts.clock.now_ms()
    day = day or datetime.fromtimestamp(now_ms / 1000, UTC).date()
    report = ExpireReport(day, {}, {}, {})
    for topic in await _topics(parts, topics):
        journal = LocalJournal(topic, parts)
        try:
            report.purged[topic] = await _purge_expired(journal, day)
            before_ms = now_ms - parts.config.pipeline.marker_days * DAY_MS
            report.markers[topic] = await parts.store.drop_markers(journal.log_name, before_ms)
        except EverlogError as error:
            report.failed[topic] = str(error)  # the others must not wait for this one
    return report


async def _topics(parts: Parts, wanted: Collection[str] | None) -> list[str]:
    journal = parts.config.journal
    retired = await retired_topics(parts.store)
    names = [topic.name for topic in await parts.log.topics() if topic.name not in retired]
    known = [journal.short(name) for name in names if journal.includes(name)]
    unknown = sorted(set(wanted or ()) - set(known))
    if unknown:
        raise InvalidInput(f"there is no topic {unknown[0]!r}: known are {known}")
    return known if wanted is None else [topic for topic in known if topic in wanted]


async def _purge_expired(journal: LocalJournal, day: date) -> int:
    purged = 0
    async for page in journal.parts.store.expired(journal.log_name, day):
        # Together, so that they share commits.
        purged += sum(await asyncio.gather(*(_purge(journal, journal_id, day) for journal_id in page)))
    return purged


async def _purge(journal: LocalJournal, journal_id: str, day: date) -> bool:
    """Ask for the purge, unless the tail says already that it is extended, or purged: then no record is needed."""
    ref = await journal.ref(journal_id)
    assert ref is not None
    parts = journal.parts
    head = (await parts.reader.view(ref)).state
    if head is None or not exists(head) or head.expire_on is None or head.expire_on > day:
        return False
    origin = parts.origin
    await parts.writer.produce(ref, Purge(origin=origin.host, version=origin.version, expire_on=day))
    return True


class Expiry(Service):
    """Runs `expire` every `[pipeline] expire_interval_s` seconds."""

    def __init__(self, parts: Parts) -> None:
        every = parts.config.pipeline.expire_interval_s
        super().__init__("expiry", every, lambda: expire(parts), clock=parts.clock, store=parts.store)
