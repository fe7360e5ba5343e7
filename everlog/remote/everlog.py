"""A server as a log: `everlog.connect("http://…")`. The same methods, the same answers, the same errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import msgspec

from everlog.api import Everlog
from everlog.config import Config
from everlog.core.arguments import check_flag
from everlog.core.bounded_map import BoundedMap
from everlog.core.events import EventRecord
from everlog.core.tag_names import check_slices, check_tag
from everlog.core.values import Position, check_position
from everlog.documents.api import Documents
from everlog.errors import StorageFailed
from everlog.journal.journal import Journal
from everlog.journal.live_events import check_range, current_events
from everlog.pipeline.status import Status
from everlog.projections.api import Projections
from everlog.queues.port import QueueStore
from everlog.remote.connection import Wire, open_client
from everlog.remote.documents import RemoteDocuments
from everlog.remote.journal import RemoteJournal
from everlog.remote.projections import RemoteProjections
from everlog.remote.queues import RemoteQueueStore
from everlog.remote.tags import RemoteTag
from everlog.runtime.clock import Clock, SystemClock
from everlog.tags.tag import Tag, TagInfo
from everlog.wire.http import segment


class RemoteEverlog(Everlog):
    """A server: journals, tags, documents, queues, and the status of projections."""

    def __init__(self, address: str, *, token: str | None = None, clock: Clock | None = None) -> None:
        self.config = Config()
        self._clock = clock or SystemClock()
        self._http = open_client(address, token)
        self._wire = Wire(self._http)
        self._journals: BoundedMap[str, Journal] = BoundedMap()
        self._documents = RemoteDocuments(self._wire)
        self._queues: RemoteQueueStore | None = None

    async def close(self) -> None:
        queues, self._queues = self._queues, None
        if queues is not None:
            await queues.close()
        await self._http.aclose()

    @property
    def documents(self) -> Documents:
        return self._documents

    @property
    def queues(self) -> QueueStore:
        if self._queues is None:
            self._queues = RemoteQueueStore(self._http, self._clock)
        return self._queues

    def _journal(self, topic: str) -> Journal:
        journal = self._journals.get(topic) if isinstance(topic, str) else None
        if journal is None:
            journal = RemoteJournal(topic, self._wire, self._clock)
            self._journals.put(topic, journal)
        return journal

    def _tag(self, name: str) -> Tag:
        return RemoteTag(self._wire, f"/tags/{segment(check_tag(name))}", name)

    def _slices(self, first: int, last: int) -> Tag:
        check_slices(first, last)
        return RemoteTag(self._wire, f"/slices/{first}/{last}", f"slices {first} to {last}")

    async def tags(self, *, token: Position | str | None = None) -> list[TagInfo]:
        params = {"after": None if token is None else str(check_position(token))}
        found = (await self._wire.send("GET", "/tags", params=params)).json()["tags"]
        return [
            TagInfo(
                one["tag"],
                one["events"],
                one["journals"],
                UUID(one["last_offset"]),
                datetime.fromisoformat(one["last_time"]),
            )
            for one in found
        ]

    def _pages_by_persistence_id(
        self, topic: str, journal_id: str, from_seq: int, to_seq: int, *, live: bool, gap_free: bool
    ) -> AsyncIterator[list[EventRecord]]:
        check_flag("gap_free", gap_free)
        if check_flag("live", live):
            raise _only_tags_are_followed()
        check_range(journal_id, from_seq, to_seq)
        return current_events(self._journal(topic), journal_id, from_seq, to_seq, gap_free=gap_free)

    def persistence_ids(self, topic: str, *, live: bool = False) -> AsyncIterator[str]:
        if check_flag("live", live):
            raise _only_tags_are_followed()
        return self._journal(topic).keys()

    async def topics(self) -> list[str]:
        found: list[str] = (await self._wire.send("GET", "/journals")).json()["topics"]
        return found

    async def status(self, *, after: Position | str | None = None) -> Status:
        params = {"after": None if after is None else str(check_position(after))}
        return msgspec.json.decode((await self._wire.send("GET", "/status", params=params)).content, type=Status)

    @property
    def projections(self) -> Projections:
        return RemoteProjections(self._wire)


def _only_tags_are_followed() -> StorageFailed:
    return StorageFailed("a server follows tags, not single journals: give the events a tag and use log.tag(…).live()")
