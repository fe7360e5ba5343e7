"""Quarantine: records that could not be applied, and how their journals go on.

A record that cannot be decoded halts its journal; it and what follows wait. `retry` and `skip` append a Resume
to the log: readers and the pipeline both fold it, so both also work while the pipeline is stopped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal

import msgspec

from everlog.core.actions import Resume
from everlog.core.arguments import check_whole
from everlog.core.head import exists
from everlog.core.record import Headers, Record, digest
from everlog.core.values import Position
from everlog.errors import InvalidInput, JournalNotFound
from everlog.journal.journal import LocalJournal, check_topic
from everlog.journal.parts import JournalParts
from everlog.journal.reader import Ref
from everlog.store.port import WaitingRecord


class WaitingItem(msgspec.Struct, frozen=True):
    """A record in quarantine, with its raw bytes.

    `kind` is "halted" where it belongs to a halted journal, "misplaced" where it belongs to none: its key is no
    text (then `id` is None), or it lies in the wrong partition. Misplaced records are for display only.
    """

    topic: str
    id: str | None
    partition: int
    offset: int
    kind: Literal["halted", "misplaced"]
    reason: str
    timestamp: int
    key: bytes | None
    action: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def position(self) -> Position:
        return Position(self.topic, self.partition, self.offset)


class Quarantine:
    """All quarantined records: `log.quarantine`."""

    def __init__(self, parts: JournalParts) -> None:
        self._parts = parts

    async def list(self, topic: str | None = None) -> AsyncIterator[WaitingItem]:
        """What waits now: stored records, and those that the tail of the log adds or has released again."""
        if topic is not None:
            check_topic(topic)
        for name in await self._topics(topic):
            journal = LocalJournal(name, self._parts)
            recent = await journal.recent_keys()
            async for page in self._parts.store.quarantine(journal.log_name):
                for row in page:
                    if row.kind == "misplaced" or row.id not in recent:
                        yield _stored_item(name, row)
            for journal_id in sorted(recent):
                ref = await journal.ref(journal_id)
                for found in () if ref is None else await journal.parts.reader.waiting(ref):
                    yield _item(name, journal_id, "halted", found.reason, found.record)

    async def show(self, topic: str, partition: int, offset: int) -> WaitingItem:
        """The waiting record at this place."""
        check_topic(topic)
        check_whole("partition", partition)
        check_whole("offset", offset)
        async for found in self.list(topic):
            if (found.partition, found.offset) == (partition, offset):
                return found
        raise InvalidInput(
            f"no record waits at {topic}:{partition}:{offset}: 'everlog quarantine list' shows those that do"
        )

    async def retry(self, topic: str, journal_id: str) -> Position:
        """Take the journal's waiting records again, in order; one that still cannot be applied halts it again."""
        ref, _ = await self._halted(topic, journal_id)
        return await self._resume(topic, ref, ())

    async def skip(self, topic: str, journal_id: str, offset: int | None = None) -> Position:
        """Go on without the record that halted the journal, or without the waiting one at `offset`."""
        if offset is not None:
            check_whole("offset", offset)
        ref, halted_at = await self._halted(topic, journal_id)
        waiting = {found.record.offset: found.record for found in await self._parts.reader.waiting(ref)}
        place = halted_at if offset is None else offset
        if place not in waiting:
            raise InvalidInput(
                f"no record of {topic}:{journal_id} waits at offset {place}, but at {list(waiting)[:10]}"
            )
        return await self._resume(topic, ref, (digest(waiting[place]),))

    async def _topics(self, topic: str | None) -> Sequence[str]:
        names = [found.name for found in await self._parts.log.topics()]
        journal = self._parts.config.journal
        short = [journal.short(name) for name in names if journal.includes(name)]
        return [name for name in short if topic is None or name == topic]

    async def _halted(self, topic: str, journal_id: str) -> tuple[Ref, int]:
        """The journal and the offset that halted it."""
        ref = await LocalJournal(topic, self._parts).ref(journal_id)
        head = None if ref is None else (await self._parts.reader.view(ref)).state
        if ref is not None and head is not None and head.halted_at is not None:
            return ref, head.halted_at
        if not exists(head):
            raise JournalNotFound(f"there is no journal {topic}:{journal_id}, and so nothing that waits")
        raise InvalidInput(f"the journal {topic}:{journal_id} is not halted: there is nothing to retry or to skip")

    async def _resume(self, topic: str, ref: Ref, skip: tuple[str, ...]) -> Position:
        origin = self._parts.origin
        action = Resume(skip=skip, origin=origin.host, version=origin.version)
        ack, _ = await self._parts.writer.produce(ref, action)
        return Position(topic, ref.partition, ack.offset)


def _stored_item(topic: str, row: WaitingRecord) -> WaitingItem:
    return _item(topic, row.id, row.kind, row.reason, row.record)


def _item(
    topic: str, journal_id: str | None, kind: Literal["halted", "misplaced"], reason: str, record: Record
) -> WaitingItem:
    return WaitingItem(
        topic,
        journal_id,
        record.partition,
        record.offset,
        kind,
        reason,
        record.timestamp,
        record.key,
        record.action,
        record.value,
        record.headers,
    )
