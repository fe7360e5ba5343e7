"""Reading a topic's records in the order of their partitions: the port, and the embedded log behind it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence

from everlog.errors import LogTruncated
from everlog.log.port import LogTopic, Record
from everlog.log.sqlite.appender import SQL
from everlog.log.sqlite.log import SqliteLog, record_from
from everlog.sqlite.connection import Connection, connect, translated

PAGE = 500
POLL_FIRST = 0.002
POLL_MOST = 0.05


class RecordReader(ABC):
    """Reads records without end."""

    @abstractmethod
    def read(self, topic: LogTopic, starts: Mapping[int, int]) -> AsyncIterator[Sequence[Record]]:
        """Pages, each of one partition, from these offsets on. LogTruncated if records go before they are read."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of the files or connections."""


class SqliteReader(RecordReader):
    """The embedded log. At the end it looks every few milliseconds whether the file changed."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log
        self._connection: Connection | None = None

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._log.path)
        return self._connection

    async def read(self, topic: LogTopic, starts: Mapping[int, int]) -> AsyncIterator[Sequence[Record]]:
        places, pause = dict(starts), POLL_FIRST
        stamp: object = None
        while True:
            before, found = self._stamp(), False
            if before != stamp:
                for partition, place in places.items():
                    page = await self._page(topic, partition, place)
                    if page:
                        found = True
                        places[partition] = page[-1].offset + 1
                        yield page
            if found:
                pause = POLL_FIRST
                continue
            stamp = before
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_MOST)

    def _stamp(self) -> object:
        """Changes whenever somebody else commits to the file."""
        with translated(self._log.path):
            return self._open().execute("PRAGMA data_version").fetchone()[0]

    async def _page(self, topic: LogTopic, partition: int, place: int) -> list[Record]:
        with translated(self._log.path):
            values = (self._log.number(topic), partition, place, place + PAGE)
            rows = self._open().execute(SQL["range"], values).fetchall()
        start = (await self._log.bounds(topic, partition)).start
        if start > place:
            raise LogTruncated(topic.name, partition, f"records {place} to {start - 1} are gone before they were read")
        await asyncio.sleep(0)  # others may run between pages
        return [record_from(row) for row in rows]

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
