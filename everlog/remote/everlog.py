"""A server as a log: `everlog.connect("http://…")`. The same methods, the same answers, the same errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import msgspec

from everlog.api import Everlog
from everlog.config import Config
from everlog.core.bounded_map import keep
from everlog.core.events import EventRecord
from everlog.core.tag_names import SLICES, check_tag
from everlog.core.values import MAX_SEQ_NR, Position
from everlog.documents.api import Documents
from everlog.errors import InvalidRange, StorageFailed
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
        self._journals: dict[str, Journal] = {}
        self._documents = RemoteDocuments(self._wire, self._clock)
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

    def journal(self, topic: str) -> Journal:
        journal = self._journals.get(topic)
        if journal is None:
            journal = RemoteJournal(topic, self._wire, self._clock)
            keep(self._journals, topic, journal)
        return journal

    def tag(self, name: str) -> Tag:
        return RemoteTag(self._wire, f"/tags/{segment(check_tag(name))}", name)

    def slices(self, first: int = 0, last: int = SLICES - 1) -> Tag:
        if not 0 <= first <= last < SLICES:
            raise InvalidRange(f"slices go from 0 to {SLICES - 1}, the first must not be above the last")
        return RemoteTag(self._wire, f"/slices/{first}/{last}", f"slices {first} to {last}")

    async def tags(self, *, token: Position | str | None = None) -> list[TagInfo]:
        params = {"after": None if token is None else str(token)}
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

    def pages_by_persistence_id(
        self,
        topic: str,
        journal_id: str,
        from_seq: int = 0,
        to_seq: int = MAX_SEQ_NR,
        *,
        live: bool = False,
        gap_free: bool = False,
    ) -> AsyncIterator[list[EventRecord]]:
        if live:
            raise _only_tags_are_followed()
        check_range(journal_id, from_seq, to_seq)
        return current_events(self.journal(topic), journal_id, from_seq, to_seq, gap_free=gap_free)

    def persistence_ids(self, topic: str, *, live: bool = False) -> AsyncIterator[str]:
        if live:
            raise _only_tags_are_followed()
        return self.journal(topic).keys()

    async def topics(self) -> list[str]:
        found: list[str] = (await self._wire.send("GET", "/journals")).json()["topics"]
        return found

    async def status(self, *, after: Position | str | None = None) -> Status:
        params = {"after": None if after is None else str(after)}
        return msgspec.json.decode((await self._wire.send("GET", "/status", params=params)).content, type=Status)

    @property
    def projections(self) -> Projections:
        return RemoteProjections(self._wire)


def _only_tags_are_followed() -> StorageFailed:
    return StorageFailed("a server follows tags, not single journals: give the events a tag and use log.tag(…).live()")
