"""The embedded store: one SQLite file, any number of processes.

Point reads take microseconds and run where they are called; whatever takes the write lock runs in a thread,
because the pipeline may hold that lock for the length of a batch.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import starmap
from pathlib import Path
from typing import TypeVar

import msgspec

from everlog.core.change import Quarantined, Rejected
from everlog.core.duration import utc_day
from everlog.core.events import EventRecord
from everlog.core.head import Head, Topic
from everlog.core.record import record_from
from everlog.core.values import segment_of
from everlog.log.port import LogTopic
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import connect, transaction, translated
from everlog.sqlite.migrations import migrate
from everlog.store.port import (
    RejectedAppend,
    RowCursor,
    Snapshot,
    Store,
    StoreTask,
    Verdict,
    WaitingRecord,
    ring_slot,
)
from everlog.store.sqlite.rows import SQL, head_from, segments_for, verdict_from
from everlog.store.sqlite.tag_tables import SqliteTags
from everlog.store.sqlite.task import SqliteTask

FILE = "store.db"
# Batches touch the end of many journals: larger pages hold more of each, and a long WAL copies them less often.
PAGE_BYTES = 8192
WAL_PAGES = 8_192
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_topic = msgspec.json.Decoder(Topic).decode


class SqliteStore(Store):
    """A store in the file `store.db` of a folder."""

    def __init__(self, folder: Path, *, synchronous: str = "FULL", trace: Trace | None = None) -> None:
        self.path = folder / FILE
        self._synchronous = synchronous
        self._trace = trace
        self._reader = connect(self.path, synchronous=synchronous, page_size=PAGE_BYTES, trace=trace)
        self._writer: sqlite3.Connection | None = None
        self._writing = asyncio.Lock()
        try:
            migrate(self._reader, self.path, "everlog.store.sqlite")
        except BaseException:
            self._reader.close()
            raise
        self.tags = SqliteTags(self.path, self._reader, self._write)

    def _connect_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = connect(
                self.path, synchronous=self._synchronous, cache_mib=64, wal_pages=WAL_PAGES, trace=self._trace
            )
        return self._writer

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run in a thread, in one transaction; one at a time per process."""

        def run() -> T:
            with translated(self.path):
                connection = self._connect_writer()
                with transaction(connection):
                    return work(connection)

        async with self._writing:
            return await asyncio.to_thread(run)

    async def _change(self, name: str, rows: Sequence[tuple[object, ...]]) -> int:
        """One statement for many rows; returns how many it changed. No cursor leaves: it would keep the file open."""
        return await self._write(lambda connection: connection.executemany(SQL[name], rows).rowcount)

    def _read(self, name: str, *parameters: object) -> list[tuple[object, ...]]:
        with translated(self.path):
            return self._reader.execute(SQL[name], parameters).fetchall()

    async def pin(self, topic: LogTopic, *, segment_size: int, base: int) -> Topic:
        key = f"topic:{topic.name}"
        found = self._read("setting", key)
        if not found:
            values = Topic(topic.name, topic.id, topic.partitions, segment_size, base)
            await self._change("pin", [(key, _encode(values).decode(), base // 1000)])
            found = self._read("setting", key)
        return _topic(str(found[0][0]))

    async def pinned(self) -> list[Topic]:
        return [_topic(str(value)) for (value,) in self._read("pinned")]

    async def pointer(self, topic: str, partition: int) -> int:
        with translated(self.path):
            row = self._reader.execute(SQL["pointer"], (topic, partition)).fetchone()
        return -1 if row is None else int(row[0])

    async def pointers(self, topic: str) -> dict[int, int]:
        with translated(self.path):
            return dict(self._reader.execute(SQL["pointers"], (topic,)).fetchall())

    async def publish(self, pointers: Mapping[tuple[str, int], int], now_ms: int) -> None:
        values = [(*place, offset, now_ms, now_ms) for place, offset in pointers.items()]
        await self._change("publish", values)

    async def head(self, topic: str, journal_id: str) -> Head | None:
        with translated(self.path):
            rows = self._reader.execute(SQL["head"], (topic, journal_id, *segments_for(journal_id))).fetchall()
        return head_from(rows, journal_id) if rows else None

    async def rows(
        self,
        topic: str,
        journal_id: str,
        *,
        segment_size: int,
        first: int,
        last: int,
        reverse: bool,
        limit: int,
        after: RowCursor | None = None,
        life: str | None = None,
    ) -> list[EventRecord]:
        if reverse:
            start = (last, 2**63 - 1) if after is None else after
            end_segment = segment_of(first, segment_size)
        else:
            start = (first, -(2**63)) if after is None else after
            end_segment = segment_of(last, segment_size)
        place = (segment_of(start[0], segment_size), *start)
        parameters = (journal_id, topic, *place, end_segment, first, last, segment_size, limit)
        await asyncio.sleep(0)  # a page takes about a millisecond: let others run between pages
        with translated(self.path):
            cursor = self._reader.execute(SQL["rows_reverse" if reverse else "rows"], parameters)
            return list(starmap(EventRecord, cursor.fetchall()))

    async def ids(self, topic: str, *, page: int = 1000) -> AsyncIterator[list[str]]:
        segment, journal_id = -1, ""
        while rows := self._read("ids", topic, segment, journal_id, page):
            yield [str(row[1]) for row in rows]
            segment, journal_id = rows[-1]  # type: ignore[assignment]

    async def expired(self, topic: str, until_ms: int, *, page: int = 1000) -> AsyncIterator[list[str]]:
        cursor: tuple[object, ...] = ("", -1, "")
        day = utc_day(until_ms // 1000).isoformat()
        while rows := self._read("expired", topic, day, *cursor, until_ms, page):
            yield [str(row[2]) for row in rows]
            cursor = rows[-1]

    async def drop_markers(self, topic: str, before_ms: int) -> int:
        return await self._change("drop_markers", [(topic, before_ms)])

    async def waiting(self, topic: str, journal_id: str) -> list[Quarantined]:
        return [Quarantined(record_from(row), str(row[7])) for row in self._read("waiting", topic, journal_id)]

    async def quarantine(self, topic: str | None = None, *, page: int = 100) -> AsyncIterator[list[WaitingRecord]]:
        cursor: tuple[object, ...] = ("", -1, -1)
        while rows := self._read("quarantine", *cursor, topic, topic, page):
            yield [WaitingRecord._make((*row[:4], record_from(row[4:]))) for row in rows]
            cursor = (rows[-1][0], rows[-1][4], rows[-1][5])

    async def count_quarantined(self, limit: int = 10_000) -> int:
        with translated(self.path):
            return int(self._reader.execute(SQL["count_quarantined"], (limit,)).fetchone()[0])

    async def rejected(self, topic: str, *, limit: int = 100) -> list[RejectedAppend]:
        rows = self._read("rejected", topic, limit)
        return [RejectedAppend(row[0], row[1], Rejected(*row[2:])) for row in rows]  # type: ignore[arg-type]

    async def verdicts(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Verdict]:
        rows = self._read("verdicts", topic, partition, offsets[0], offsets[-1]) if offsets else []
        return [verdict_from(row) for row in rows]

    async def drop_verdicts(self, starts: Mapping[tuple[str, int], int]) -> None:
        await self._change("drop_verdicts", [(*place, start) for place, start in starts.items()])

    async def snapshots(self, topic: str, journal_id: str) -> dict[int, Snapshot]:
        rows = self._read("snapshots", journal_id, topic)
        return {row[0]: Snapshot(*row[1:]) for row in rows}  # type: ignore[misc,arg-type]

    async def put_snapshot(self, topic: str, journal_id: str, snapshot: Snapshot, *, slots: int) -> None:
        def put(connection: sqlite3.Connection) -> None:
            rows = connection.execute(SQL["snapshots"], (journal_id, topic)).fetchall()
            taken = {row[0]: (row[5] == snapshot.record_id, row[1], row[2]) for row in rows}
            slot = ring_slot(taken, snapshot.seq_nr, slots)
            binary = snapshot.payload_type == "binary"
            values = (
                journal_id,
                topic,
                slot,
                snapshot.seq_nr,
                snapshot.timestamp,
                snapshot.payload_type,
                None if binary else snapshot.data,
                snapshot.data if binary else None,
                snapshot.record_id,
                snapshot.origin,
                snapshot.version,
                snapshot.metadata_json,
            )
            connection.execute(SQL["put_snapshot"], values)

        await self._write(put)

    async def delete_snapshots(self, topic: str, journal_id: str, seq_nrs: Sequence[int]) -> int:
        values = [(journal_id, topic, seq_nr) for seq_nr in seq_nrs]
        return await self._change("delete_snapshot", values) if values else 0

    async def save_status(self, name: str, status: bytes, now_ms: int) -> None:
        await self._change("save_status", [(name, status.decode(), now_ms)])

    async def statuses(self) -> dict[str, bytes]:
        return {str(name): str(value).encode() for name, value in self._read("statuses")}

    @asynccontextmanager
    async def task(self, topic: Topic, partition: int) -> AsyncIterator[StoreTask]:
        async with self._writing:
            with translated(self.path):
                connection = self._connect_writer()
                with transaction(connection):
                    yield SqliteTask(connection, topic, partition)

    async def close(self) -> None:
        async with self._writing:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._reader.close()
