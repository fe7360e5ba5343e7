"""The parts that journals work with: a log, a store, and a reader and a writer over both."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from everlog.config import Config, JournalConfig
from everlog.journal.reader import Reader
from everlog.journal.writer import Origin, Writer
from everlog.log.factory import open_log
from everlog.log.port import Log
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.trace import Trace
from everlog.store.factory import open_store
from everlog.store.port import Store
from everlog.version import __version__


@dataclass(frozen=True, slots=True)
class JournalParts:
    """What journals are made of."""

    config: Config
    log: Log
    store: Store
    reader: Reader
    writer: Writer
    clock: Clock
    origin: Origin

    async def close(self) -> None:
        """Finish open writes, and close the log and the store."""
        await self.log.close()
        await self.store.close()


async def open_parts(config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> JournalParts:
    """Open the log and the store that the configuration names."""
    clock = clock or SystemClock()
    log = await open_log(config, clock=clock, trace=trace)
    try:
        store = await open_store(config, trace=trace)
    except BaseException:
        await log.close()
        raise
    return make_parts(config, log, store, clock)


@asynccontextmanager
async def opened_parts(config: Config) -> AsyncIterator[JournalParts]:
    """Open parts for the length of a block, as a task of Spark does."""
    parts = await open_parts(config)
    try:
        yield parts
    finally:
        await parts.close()


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
        max_known_journals=journal.max_known_journals,
        page_size=journal.page_size,
    )
    return reader, writer


def make_parts(config: Config, log: Log, store: Store, clock: Clock) -> JournalParts:
    """Put a log and a store together."""
    origin = Origin(socket.gethostname(), __version__)
    reader, writer = make_reader_and_writer(config.journal, log, store, clock, origin)
    return JournalParts(config, log, store, reader, writer, clock, origin)


def parts_over(parts: JournalParts, log: Log) -> JournalParts:
    """The same parts on another log."""
    reader, writer = make_reader_and_writer(parts.config.journal, log, parts.store, parts.clock, parts.origin)
    return dataclasses.replace(parts, log=log, reader=reader, writer=writer)
