"""A reader and a writer over a log and a store, as the configuration says."""

from __future__ import annotations

from everlog.config import JournalConfig
from everlog.journal.reader import Reader
from everlog.journal.writer import Origin, Writer
from everlog.log.port import Log
from everlog.runtime.clock import Clock
from everlog.store.port import Store


def make_reader_and_writer(
    journal: JournalConfig, log: Log, store: Store, clock: Clock, origin: Origin
) -> tuple[Reader, Writer]:
    """The writer reads through this reader."""
    reader = Reader(
        log,
        store,
        page_size=journal.page_size,
        unique_seq_nrs=journal.unique_seq_nrs,
        correlate=journal.correlate_events,
    )
    writer = Writer(
        log,
        reader,
        clock,
        origin,
        max_append_bytes=journal.max_append_bytes,
        known_journals=journal.known_journals,
        page_size=journal.page_size,
    )
    return reader, writer
