"""The embedded log: one SQLite file, any number of processes.

Appends of a process share transactions (group commit): while one commit waits for the disk, the next group
gathers. A point read takes a few microseconds, less than a thread switch, so reads run where they are called.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from everlog.clock import Clock, SystemClock
from everlog.errors import EverlogError, StorageFailed, Unacknowledged
from everlog.log.base import Ack, Bounds, Headers, Log, LogTopic, NewRecord, Record
from everlog.sqlite import Trace, connect, explain, load_statements, migrate, transaction, translated

logger = logging.getLogger("everlog.log")

FILE = "log.db"
MAX_WAITING = 20_000
MAX_GROUP = 10_000

SQL = load_statements("everlog.log")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[tuple[str, bytes], ...]).decode


class _Request(NamedTuple):
    topic: int
    record: NewRecord
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Ack]


def pack_headers(headers: Headers) -> bytes | None:
    return _pack(headers) if headers else None


def unpack_headers(packed: bytes | None) -> Headers:
    return _unpack(packed) if packed else ()


def record_from(row: tuple[Any, ...]) -> Record:
    """A record from partition, offset, timestamp, key, action, value, headers."""
    partition, offset, timestamp, key, action, value, headers = row[:7]
    return Record(partition, offset, timestamp, key, action, value, unpack_headers(headers))


class SqliteLog(Log):
    """A log in the file `log.db` of a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        partitions: int = 4,
        synchronous: str = "FULL",
        clock: Clock | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.path = folder / FILE
        self._partitions = partitions
        self._synchronous = synchronous
        self._clock = clock or SystemClock()
        self._trace = trace
        self._reader = connect(self.path, synchronous=synchronous, trace=trace)
        try:
            migrate(self._reader, self.path, "everlog.log")
        except BaseException:
            self._reader.close()
            raise
        self._numbers: dict[str, int] = {}
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._waiting = asyncio.Semaphore(MAX_WAITING)
        self._committer: threading.Thread | None = None
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

    async def append(self, topic: LogTopic, record: NewRecord) -> Ack:
        if self._closed:
            raise StorageFailed(f"{self.path} is closed")
        if self._committer is None:
            self._committer = threading.Thread(target=self._commit_groups, name="everlog-log", daemon=True)
            self._committer.start()
        async with self._waiting:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Ack] = loop.create_future()
            self._requests.put(_Request(self._numbers[topic.name], record, loop, future))
            return await future

    def _commit_groups(self) -> None:
        """The committer: takes all that waits, stores it in one transaction, answers, and again."""
        connection: sqlite3.Connection | None = None
        while (first := self._requests.get()) is not None:
            group = [first]
            stop = False
            while len(group) < MAX_GROUP:
                try:
                    following = self._requests.get_nowait()
                except queue.Empty:
                    break
                if following is None:
                    stop = True
                    break
                group.append(following)
            try:
                connection = connection or connect(self.path, synchronous=self._synchronous, trace=self._trace)
                acks = self._commit(connection, group)
            except sqlite3.Error as error:
                _answer(group, _verdict(self.path, error))
            except EverlogError as error:
                _answer(group, error)
            except Exception as error:
                # It was rolled back. Whatever it is, it must not end this thread and leave all later appends waiting.
                logger.exception("a group of %d appends failed", len(group))
                _answer(group, StorageFailed(f"{self.path}: {error!r}"))
            else:
                _answer(group, acks)
            if stop:
                break
        if connection is not None:
            connection.close()

    def _commit(self, connection: sqlite3.Connection, group: Sequence[_Request]) -> list[Ack]:
        bounds: dict[tuple[int, int], Bounds] = {}
        last: dict[tuple[int, int, bytes | None], int] = {}
        acks, rows = [], []
        with transaction(connection):
            for topic, record, _, _ in group:
                place = (topic, record.partition)
                if place not in bounds:
                    bounds[place] = Bounds(*connection.execute(SQL["bounds"], place).fetchone())
                start, offset = bounds[place]
                bounds[place] = Bounds(start, offset + 1)
                key = (*place, record.key)
                previous = last.get(key)
                if previous is None:
                    (previous,) = connection.execute(SQL["previous"], key).fetchone()
                    # What was trimmed may have been this key's.
                    previous = start - 1 if previous is None else previous
                last[key] = offset
                acks.append(Ack(offset, previous))
                headers = pack_headers(record.headers)
                rows.append((*place, offset, record.timestamp, record.key, record.action, record.value, headers))
            connection.executemany(SQL["append"], rows)
            connection.executemany(SQL["advance"], [(found.end, *place) for place, found in bounds.items()])
        return acks

    async def bounds(self, topic: LogTopic, partition: int) -> Bounds:
        with translated(self.path):
            row = self._reader.execute(SQL["bounds"], (self._numbers[topic.name], partition)).fetchone()
        return Bounds(0, 0) if row is None else Bounds(*row)

    async def tail(
        self, topic: LogTopic, partition: int, key: bytes, *, after: int, before: int, limit: int
    ) -> list[Record]:
        parameters = (self._numbers[topic.name], partition, key, after, before, limit)
        with translated(self.path):
            rows = self._reader.execute(SQL["tail"], parameters).fetchall()
        return [record_from(row) for row in rows]

    async def tail_keys(self, topic: LogTopic, partition: int, *, after: int, before: int) -> list[bytes]:
        parameters = (self._numbers[topic.name], partition, after, before)
        with translated(self.path):
            return [key for (key,) in self._reader.execute(SQL["tail_keys"], parameters)]

    async def timestamp_at(self, topic: LogTopic, partition: int, offset: int) -> int | None:
        parameters = (self._numbers[topic.name], partition, offset)
        with translated(self.path):
            row = self._reader.execute(SQL["timestamp_at"], parameters).fetchone()
        return None if row is None else int(row[0])

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._committer is not None:
            self._requests.put(None)
            await asyncio.to_thread(self._committer.join)
        self._reader.close()


def _verdict(path: Path, error: sqlite3.Error) -> EverlogError:
    """A disk that fails while it writes leaves open whether the group was stored."""
    if (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_IOERR"):
        return Unacknowledged(f"{path}: {error}")
    return explain(path, error)


def _answer(group: Sequence[_Request], answer: Sequence[Ack] | EverlogError) -> None:
    """Hand the answers, or the error, back to the callers: one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Ack], Ack | EverlogError]]] = {}
    for at, request in enumerate(group):
        result = answer if isinstance(answer, EverlogError) else answer[at]
        by_loop.setdefault(request.loop, []).append((request.future, result))
    for loop, results in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, results)
        except RuntimeError:
            logger.warning("%d appends were stored, but nobody waits for them any more", len(results))


def _settle(results: Sequence[tuple[asyncio.Future[Ack], Ack | EverlogError]]) -> None:
    for future, result in results:
        if future.done():
            continue
        if isinstance(result, EverlogError):
            future.set_exception(result)
        else:
            future.set_result(result)
