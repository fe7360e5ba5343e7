"""Expiry: a Purge into the log for every journal whose time is reached or passed.

The Purge carries the time, and the fold applies it only to a journal that has expired by then: an append that
extends the life in between wins. Days on which nothing ran are caught up, because the test is "at or before". A head
that was taken over from kafka-journal knows its day only: it has expired once that day has begun, as there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta

import msgspec

from everlog.core.actions import Purge
from everlog.core.duration import DAY_MS, utc_day
from everlog.core.fold import has_expired
from everlog.core.head import exists
from everlog.errors import EverlogError, InvalidInput
from everlog.journal.journal import LocalJournal
from everlog.journal.parts import JournalParts
from everlog.journal.retention import drop_verdicts
from everlog.journal.topic_registry import retired_topics
from everlog.runtime.service import Service

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ExpireReport(msgspec.Struct, frozen=True):
    """What a run did, by topic: journals purged, old purge markers dropped, and topics that could not be done.

    What had expired at `until` is purged.
    """

    until: datetime
    purged: dict[str, int]
    markers: dict[str, int]
    failed: dict[str, str] = {}

    def __str__(self) -> str:
        text = f"{sum(self.purged.values())} purged, {sum(self.markers.values())} markers dropped"
        text += f" by {self.until:%Y-%m-%d %H:%M:%S} UTC"
        return f"{text}, failed: {self.failed}" if self.failed else text


async def expire(
    parts: JournalParts, *, day: date | None = None, topics: Collection[str] | None = None
) -> ExpireReport:
    """Purge what has expired by now, or by the end of this day (UTC), then drop old purge markers and verdicts."""
    now_ms = parts.clock.now_ms()
    until_ms = now_ms if day is None else _end_of(day)
    report = ExpireReport(_EPOCH + timedelta(milliseconds=until_ms), {}, {}, {})
    for topic in await _topics(parts, topics):
        journal = LocalJournal(topic, parts)
        try:
            report.purged[topic] = await _purge_expired(journal, until_ms)
            before_ms = now_ms - parts.config.pipeline.marker_days * DAY_MS
            report.markers[topic] = await parts.store.drop_markers(journal.log_name, before_ms)
        except EverlogError as error:
            report.failed[topic] = str(error)  # the others must not wait for this one
    await drop_verdicts(parts)
    return report


def _end_of(day: date) -> int:
    """The last millisecond of a day, UTC."""
    return (day.toordinal() + 1 - _EPOCH.toordinal()) * DAY_MS - 1


async def _topics(parts: JournalParts, wanted: Collection[str] | None) -> list[str]:
    journal = parts.config.journal
    retired = await retired_topics(parts.store)
    names = [topic.name for topic in await parts.log.topics() if topic.name not in retired]
    known = [journal.short(name) for name in names if journal.includes(name)]
    unknown = sorted(set(wanted or ()) - set(known))
    if unknown:
        raise InvalidInput(f"there is no topic {unknown[0]!r}: known are {known}")
    return known if wanted is None else [topic for topic in known if topic in wanted]


async def _purge_expired(journal: LocalJournal, until_ms: int) -> int:
    purged = 0
    parts = journal.parts
    async for page in parts.store.expired(journal.log_name, until_ms):
        # Together, so that they share commits.
        purged += sum(await asyncio.gather(*(_purge(journal, journal_id, until_ms) for journal_id in page)))
    return purged


async def _purge(journal: LocalJournal, journal_id: str, until_ms: int) -> bool:
    """Ask for the purge, unless the tail says already that it is extended, or purged: then no record is needed."""
    ref = await journal.ref(journal_id)
    assert ref is not None
    parts = journal.parts
    head = (await parts.reader.view(ref)).state
    origin, day = parts.origin, utc_day(until_ms // 1000)
    purge = Purge(origin.host, origin.version, expire_on=day, expire_at=until_ms)
    if head is None or not exists(head) or not has_expired(head, purge):
        return False
    await parts.writer.produce(ref, purge)
    return True


class Expiry(Service):
    """Runs `expire` every `[pipeline] expire_interval_s` seconds."""

    def __init__(self, parts: JournalParts) -> None:
        every = parts.config.pipeline.expire_interval_s
        super().__init__("expiry", every, lambda: expire(parts), clock=parts.clock, store=parts.store)
