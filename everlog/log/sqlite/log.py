"""The embedded log: one SQLite file, any number of processes.

Appends of a process share transactions, see `everlog.sqlite.group_commit`. A point read takes a few microseconds, less
than a thread switch, so reads run where they are called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from everlog.core.record import NewRecord, Record, record_from
from everlog.errors import LogTruncated
from everlog.log.port import Ack, Bounds, Log, LogTopic, RecordReader, Trimmed
from everlog.log.sqlite.appender import SQL, Appender
from everlog.log.sqlite.trimmer import NO_LIMITS, RetentionLimits, Trimmer
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.retry import NO_JITTER, Backoff
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import Connection, connect, transaction, translated
from everlog.sqlite.group_commit import GroupCommitter
from everlog.sqlite.migrations import migrate

FILE = "log.db"
PAGE = 500
MIN_POLL_S = 0.002
MAX_POLL_S = 0.05


class SqliteLog(Log):
    """A log in the file `log.db` of a folder."""

    listing_s = 0.0

    def __init__(
        self,
        folder: Path,
        *,
        partitions: int = 4,
        synchronous: str = "FULL",
        append_timeout_s: float = 30.0,
        poll_s: float = 0.01,
        retention: RetentionLimits = NO_LIMITS,
        clock: Clock | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.path = folder / FILE
        self._partitions = partitions
        self._synchronous = synchronous
        self._clock = clock or SystemClock()
        self._trace = trace
        self._poll_s = poll_s
        self._reader = connect(self.path, synchronous=synchronous, trace=trace)
        try:
            migrate(self._reader, self.path, "everlog.log.sqlite")
        except BaseException:
            self._reader.close()
            raise
        self._numbers: dict[str, int] = {}
        # What `wait_for_records` saw last.
        self._waited: int | None = None
        self._committer = GroupCommitter(self.path, self._open_appender, Appender.commit, timeout_s=append_timeout_s)
        self._trimmer = Trimmer(self.path, retention, self._clock, synchronous)
        self._closed = False

    async def topic(self, name: str) -> LogTopic | None:
        with translated(self.path):
            row = self._reader.execute(SQL["topic"], (name,)).fetchone()
        return None if row is None else self._topic(row)

    async def create_topic(self, name: str) -> LogTopic:
        found = await self.topic(name)
        if found is None:
            await asyncio.to_thread(self._insert_topic, name)
            found = await self.topic(name)
        assert found is not None
        return found

    def _open_appender(self, patient: bool) -> Appender:
        return Appender(connect(self.path, synchronous=self._synchronous, patient=patient, trace=self._trace))

    def _insert_topic(self, name: str) -> None:
        connection = connect(self.path, synchronous=self._synchronous, trace=self._trace)
        try:
            with translated(self.path), transaction(connection):
                values = (name, self._clock.new_id(), self._partitions, self._clock.now_ms())
                connection.execute(SQL["insert_topic"], values)
                nr, _, _, partitions = connection.execute(SQL["topic"], (name,)).fetchone()
                connection.executemany(SQL["insert_partition"], [(nr, p) for p in range(partitions)])
        finally:
            connection.close()

    async def topics(self) -> list[LogTopic]:
        with translated(self.path):
            return [self._topic(row) for row in self._reader.execute(SQL["topics"])]

    def _topic(self, row: tuple[int, str, str, int]) -> LogTopic:
        nr, name, topic_id, partitions = row
        self._numbers[name] = nr
        return LogTopic(name, topic_id, partitions)

    def number(self, topic: LogTopic) -> int:
        """The topic's number in the tables."""
        return self._numbers[topic.name]

    def append(self, topic: LogTopic, record: NewRecord) -> Coroutine[Any, Any, Ack]:
        return self._committer.execute((self._numbers[topic.name], record))

    async def bounds(self, topic: LogTopic, partition: int) -> Bounds:
        with translated(self.path):
            row = self._reader.execute(SQL["bounds"], (self._numbers[topic.name], partition)).fetchone()
        return Bounds(0, 0) if row is None else Bounds(*row)

    async def end(self, topic: LogTopic, partition: int, *, reach: int = 0) -> int:
        return (await self.bounds(topic, partition)).end

    async def tail(
        self, topic: LogTopic, partition: int, key: bytes, *, after: int, before: int, limit: int
    ) -> list[Record]:
        parameters = (self._numbers[topic.name], partition, key, after, before, limit)
        with translated(self.path):
            rows = self._reader.execute(SQL["tail"], parameters).fetchall()
            self._check_start(topic, partition, after)
        return [record_from(row) for row in rows]

    async def tail_keys(self, topic: LogTopic, partition: int, *, after: int, before: int) -> list[bytes]:
        parameters = (self._numbers[topic.name], partition, after, before)
        with translated(self.path):
            rows = self._reader.execute(SQL["tail_keys"], parameters).fetchall()
            self._check_start(topic, partition, after)
        return [key for (key,) in rows]

    def _check_start(self, topic: LogTopic, partition: int, after: int) -> None:
        """To be called when the records are read: nothing was removed before the start moved."""
        row = self._reader.execute(SQL["start"], (self._numbers[topic.name], partition)).fetchone()
        if row is not None and row[0] > after + 1:
            raise Trimmed(row[0])

    async def timestamp_at(self, topic: LogTopic, partition: int, offset: int) -> int | None:
        parameters = (self._numbers[topic.name], partition, offset)
        with translated(self.path):
            row = self._reader.execute(SQL["timestamp_at"], parameters).fetchone()
        return None if row is None else int(row[0])

    def reader(self) -> RecordReader:
        return SqliteReader(self)

    async def wait_for_records(self, ends: Mapping[LogTopic, Sequence[int]], timeout_s: float) -> bool:
        """Any commit to the file counts, also one that makes a topic."""
        loop, backoff = asyncio.get_running_loop(), Backoff(MIN_POLL_S, self._poll_s, jitter=NO_JITTER)
        deadline, looked = loop.time() + timeout_s, False
        with translated(self.path):
            while True:
                (stamp,) = self._reader.execute("PRAGMA data_version").fetchone()
                if stamp != self._waited:
                    self._waited = stamp
                    return True
                if not looked and await self._has_more(ends):
                    return True
                looked = True
                if loop.time() >= deadline:
                    return False
                await backoff.sleep()

    async def _has_more(self, ends: Mapping[LogTopic, Sequence[int]]) -> bool:
        places = [(topic, partition, end) for topic, found in ends.items() for partition, end in enumerate(found)]
        return any([(await self.bounds(topic, partition)).end > end for topic, partition, end in places])

    @property
    def trims(self) -> bool:
        return self._trimmer.limits != NO_LIMITS

    async def trim(self, topic: LogTopic, partition: int, *, below: int) -> int:
        if not self.trims or below <= (await self.bounds(topic, partition)).start:
            return 0
        return await asyncio.to_thread(self._trimmer.trim, self._numbers[topic.name], partition, below)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._committer.close()
        self._reader.close()


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
        places, backoff = dict(starts), Backoff(MIN_POLL_S, MAX_POLL_S, jitter=NO_JITTER)
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
                backoff.reset()
                continue
            stamp = before
            await backoff.sleep()

    def _stamp(self) -> object:
        """Changes whenever another connection commits to the file."""
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
