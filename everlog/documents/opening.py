"""Documents on the log and the store that a configuration names."""

from __future__ import annotations

from everlog.documents.documents import Documents
from everlog.documents.history import History
from everlog.documents.publishing import JournalPublisher, Publisher
from everlog.documents.sqlite.store import SqliteDocuments
from everlog.documents.store import DocumentStore
from everlog.journal.journal import Journal, Parts
from everlog.journal.writing import Writer
from everlog.sqlite import Trace


def make_documents(parts: Parts, *, trace: Trace | None = None) -> Documents:
    """Documents beside the journals of this log."""
    config = parts.config.documents
    journal = document_journal(parts)

    async def open_store() -> DocumentStore:
        cassandra = parts.config.cassandra
        if cassandra is not None:
            from everlog.documents.cassandra.store import CassandraDocuments

            return await CassandraDocuments.open(cassandra, transaction_days=config.transaction_days, trace=trace)
        return SqliteDocuments(parts.config.folder, synchronous=parts.config.store.synchronous, trace=trace)

    def publisher() -> Publisher:
        return JournalPublisher(journal)

    return Documents(
        config,
        parts.clock,
        open_store,
        lambda: History(journal, limit=config.max_history, poll=config.feed_poll),
        publisher,
    )


def document_journal(parts: Parts) -> Journal:
    """The topic of the events. Its appends may be as large as a body, whatever the limit of others is."""
    config, journal = parts.config, parts.config.journal
    writer = Writer(
        parts.log,
        parts.reader,
        parts.clock,
        parts.origin,
        max_append_bytes=config.documents.max_event_bytes,
        known_journals=journal.known_journals,
        page_size=journal.page_size,
    )
    own = Parts(config, parts.log, parts.store, parts.reader, writer, parts.clock, parts.origin)
    return Journal(config.documents.topic, own)
