"""Documents on the log and the store that a configuration names."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from everlog.config import ENVELOPE_BYTES, Config, DocumentsConfig
from everlog.documents.change_stream import ChangeLog
from everlog.documents.documents import LocalDocuments
from everlog.documents.history import History
from everlog.documents.port import DocumentStore
from everlog.documents.publisher import JournalPublisher, Publisher
from everlog.documents.side_history import SideFiles
from everlog.documents.sqlite.document_store import SqliteDocuments
from everlog.errors import InvalidConfig
from everlog.journal.journal import Journal, LocalJournal
from everlog.journal.parts import JournalParts, open_parts
from everlog.journal.writer import Writer
from everlog.runtime.clock import Clock
from everlog.runtime.trace import Trace

log = logging.getLogger("everlog.documents")


def make_documents(parts: JournalParts, *, trace: Trace | None = None) -> LocalDocuments:
    """Documents next to the journals of this log."""
    config = fitting(parts.config)
    journal = document_journal(parts)

    async def open_store() -> DocumentStore:
        cassandra = parts.config.cassandra
        if cassandra is not None:
            from everlog.documents.cassandra.document_store import CassandraDocuments

            return await CassandraDocuments.open(cassandra, transaction_days=config.transaction_days, trace=trace)
        return SqliteDocuments(parts.config.folder, synchronous=parts.config.store.synchronous, trace=trace)

    return LocalDocuments(
        config,
        parts.clock,
        open_store,
        lambda: history_of(journal, config),
        lambda: JournalPublisher(journal),
        ChangeLog(parts, config.topic),
        SideParts(parts.config, parts.clock) if parts.config.embedded else None,
    )


def history_of(journal: Journal, config: DocumentsConfig) -> History:
    """The past as this journal has it, within the limits of the configuration."""
    return History(
        journal,
        max_events=config.max_history,
        max_bytes=config.max_query_bytes,
        poll_interval_s=config.feed_poll_interval_s,
    )


class SideParts(SideFiles):
    """The files of the log and the store, opened once more in the thread for long work."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._opening = asyncio.Lock()
        self._parts: JournalParts | None = None
        self._own: LocalJournal | None = None

    async def _journal(self) -> LocalJournal:
        async with self._opening:
            if self._own is None:
                self._parts = await open_parts(self._config, clock=self._clock)
                self._own = document_journal(self._parts)
            return self._own

    async def history(self) -> History:
        return history_of(await self._journal(), fitting(self._config))

    async def publisher(self) -> Publisher:
        return JournalPublisher(await self._journal())

    async def change_log(self) -> ChangeLog:
        await self._journal()
        assert self._parts is not None
        return ChangeLog(self._parts, self._config.documents.topic)

    async def close(self) -> None:
        parts, self._parts, self._own = self._parts, None, None
        if parts is not None:
            await parts.close()


def fitting(config: Config) -> DocumentsConfig:
    """The settings of documents, with bodies that fit into a record of the log."""
    documents, kafka = config.documents, config.kafka
    if kafka is None or documents.max_event_bytes <= kafka.max_record_bytes:
        return documents
    room = kafka.max_record_bytes - ENVELOPE_BYTES
    if room < 1:
        raise InvalidConfig(f"[kafka] max_record_bytes leaves no room for documents: they need {ENVELOPE_BYTES:,} more")
    log.warning("bodies of documents have at most %d bytes, because [kafka] max_record_bytes allows no more", room)
    return msgspec.structs.replace(documents, max_body_bytes=room)


def document_journal(parts: JournalParts) -> LocalJournal:
    """The topic of the events. Its appends may be as large as a body, whatever the limit of others is."""
    config, journal = parts.config, parts.config.journal
    writer = Writer(
        parts.log,
        parts.reader,
        parts.clock,
        parts.origin,
        max_append_bytes=config.documents.max_event_bytes,
        max_known_journals=journal.max_known_journals,
        page_size=journal.page_size,
    )
    own = JournalParts(config, parts.log, parts.store, parts.reader, writer, parts.clock, parts.origin)
    return LocalJournal(config.documents.topic, own, owned=True)
