"""`everlog.connect`: from a folder or a config file to journals."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from datetime import date
from types import TracebackType
from typing import Self

from everlog.backends import open_parts
from everlog.clock import Clock, SystemClock
from everlog.config import Config, load_config
from everlog.journal.journal import Journal, Parts
from everlog.journal.quarantine import Quarantine
from everlog.journal.reading import Reader
from everlog.journal.writing import Origin, Writer
from everlog.log.base import Log
from everlog.log.retention import trim
from everlog.pipeline.expire import ExpireReport, expire
from everlog.pipeline.status import Status, read_status
from everlog.projections.management import Projections
from everlog.sqlite import Trace
from everlog.store.base import Store
from everlog.version import __version__


class Everlog:
    """An open event log. Made by `everlog.connect`; used as `async with`."""

    def __init__(self, config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._trace = trace
        self._parts: Parts | None = None
        self._journals: dict[str, Journal] = {}
        self._projections: Projections | None = None

    async def __aenter__(self) -> Self:
        if self._parts is None:
            log, store = await open_parts(self.config, clock=self._clock, trace=self._trace)
            self._parts = make_parts(self.config, log, store, self._clock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def parts(self) -> Parts:
        """The log, the store, and what reads and writes them."""
        if self._parts is None:
            raise RuntimeError("not open: use 'async with everlog.connect(…) as log'")
        return self._parts

    def journal(self, topic: str) -> Journal:
        """The journals of a topic; the topic is created by the first append."""
        journal = self._journals.get(topic)
        if journal is None:
            journal = self._journals[topic] = Journal(topic, self.parts)
        return journal

    async def topics(self) -> list[str]:
        """The names of all journal topics."""
        journal = self.config.journal
        names = [topic.name for topic in await self.parts.log.topics()]
        return [journal.short(name) for name in names if journal.includes(name)]

    @property
    def quarantine(self) -> Quarantine:
        """Records that could not be applied, and how their journals go on."""
        return Quarantine(self.parts)

    @property
    def projections(self) -> Projections:
        """Views that handlers make of events: running them, looking at them, commands."""
        if self._projections is None:
            self._projections = Projections(self.parts, trace=self._trace)
        return self._projections

    async def status(self) -> Status:
        """How far the tables are behind the log, and what the pipeline says."""
        return await read_status(self.parts)

    async def expire(self, *, day: date | None = None, topics: Collection[str] | None = None) -> ExpireReport:
        """Purge the journals that have expired on this day (today, UTC) or earlier."""
        return await expire(self.parts, day=day, topics=topics)

    async def trim(self) -> dict[tuple[str, int], int]:
        """Remove replicated records from the log as `[log] retention_…` says; how many, by (topic, partition)."""
        return await trim(self.parts)

    async def close(self) -> None:
        """Finish open writes and let go of the files."""
        if self._parts is not None:
            parts, self._parts = self._parts, None
            self._journals.clear()
            if self._projections is not None:
                await self._projections.close()
                self._projections = None
            await parts.log.close()
            await parts.store.close()


def connect(
    target: str | os.PathLike[str] | Config = "everlog-data",
    *,
    clock: Clock | None = None,
    trace: Trace | None = None,
) -> Everlog:
    """Open a folder (embedded), or what a TOML file says.

    >>> log = connect("everlog-data")
    """
    return Everlog(target if isinstance(target, Config) else load_config(target), clock=clock, trace=trace)


def make_parts(config: Config, log: Log, store: Store, clock: Clock) -> Parts:
    """Put a log and a store together."""
    journal = config.journal
    origin = Origin(socket.gethostname(), __version__)
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
    return Parts(config, log, store, reader, writer, clock, origin)
