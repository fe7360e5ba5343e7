"""The store on Cassandra: the tables of kafka-journal, written with times from the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec

from everlog.cassandra.schema import Schema
from everlog.cassandra.session import CassandraRow, Session, connect, make_batch
from everlog.cassandra.values import timestamp
from everlog.config import CassandraConfig
from everlog.core.change import Quarantined, Rejected
from everlog.core.events import EventRecord
from everlog.core.head import Head, Topic
from everlog.core.record import record_from
from everlog.log.port import LogTopic
from everlog.runtime.trace import Trace
from everlog.store.cassandra.batches import RowStatements
from everlog.store.cassandra.expiry import ExpiryTable
from everlog.store.cassandra.head_scan import HeadScan
from everlog.store.cassandra.heads import HeadPlaces, HeadTable
from everlog.store.cassandra.pinned import pin_setting
from everlog.store.cassandra.segments import PageReader, Segments
from everlog.store.cassandra.snapshots import SnapshotRing
from everlog.store.cassandra.tables import JOURNAL_TABLES, is_taken_over
from everlog.store.cassandra.tag_tables import CassandraTags, TagViews
from everlog.store.cassandra.task import CassandraTask
from everlog.store.cassandra.verdicts import VerdictTable
from everlog.store.port import RejectedAppend, RowCursor, Snapshot, Store, StoreTask, Verdict, WaitingRecord

_encode = msgspec.json.Encoder().encode
_topic = msgspec.json.Decoder(Topic).decode


class CassandraStore(Store):
    """Tables in one keyspace. Make it with `open`."""

    def __init__(self, session: Session, *, taken_over: bool) -> None:
        self._session = session
        self._cql = JOURNAL_TABLES.statements(session.config.keyspace)
        places = HeadPlaces(taken_over=taken_over)
        self._heads = HeadTable(session, self._cql, places)
        self._scan = HeadScan(session, self._cql, places)
        self._expiry = ExpiryTable(session, self._cql, self._heads, self._scan if taken_over else None)
        self._ring = SnapshotRing(session, self._cql)
        self._put_row = RowStatements(session, self._cql["put_row"])
        self._views = TagViews(session, self._cql)
        self._verdicts = VerdictTable(session, self._cql)
        self.tags = CassandraTags(session, self._cql, self._views, self._pinned)
        self._topics: dict[str, Topic] = {}

    @classmethod
    async def open(cls, config: CassandraConfig, *, trace: Trace | None = None) -> Self:
        """Connect, and create or migrate the tables if that is needed and allowed."""
        session = await connect(config, trace)
        try:
            found = await Schema(session, JOURNAL_TABLES).prepare()
        except BaseException:
            await session.close()
            raise
        return cls(session, taken_over=is_taken_over(found))

    async def _fetch(self, name: str, *values: Any, serial: bool = False) -> list[CassandraRow]:
        return await self._session.fetch(self._cql[name], *values, serial=serial)

    async def _pinned(self, name: str) -> Topic | None:
        """What is pinned for a topic never changes, so it is read once."""
        topic = self._topics.get(name)
        if topic is None:
            rows = await self._fetch("setting", f"topic:{name}")
            if rows:
                topic = self._topics[name] = _topic(rows[0][0])
        return topic

    async def pin(self, topic: LogTopic, *, segment_size: int, base: int) -> Topic:
        found = await self._pinned(topic.name)
        if found is not None:
            return found
        key = f"topic:{topic.name}"
        value = _encode(Topic(topic.name, topic.id, topic.partitions, segment_size, base)).decode()
        found = _topic(await pin_setting(self._session, self._cql, key, value, base // 1000))
        self._topics[topic.name] = found
        return found

    async def pinned(self) -> list[Topic]:
        rows = await self._fetch("settings")
        return sorted(_topic(value) for key, value in rows if key.startswith("topic:"))

    async def pointer(self, topic: str, partition: int) -> int:
        rows = await self._fetch("pointer", topic, partition)
        return -1 if not rows or rows[0][0] is None else int(rows[0][0])

    async def pointers(self, topic: str) -> dict[int, int]:
        pinned = await self._pinned(topic)
        return {} if pinned is None else dict(await self._fetch("pointers", topic, list(range(pinned.partitions))))

    async def publish(self, pointers: Mapping[tuple[str, int], int], now_ms: int) -> None:
        await self._session.together([self._publish(*place, offset, now_ms) for place, offset in pointers.items()])

    async def _publish(self, name: str, partition: int, offset: int, now_ms: int) -> None:
        """A pointer that does not advance leaves the row as it is: its write time alone would not keep `updated`.

        `created` belongs to the first: of two that come at once, the earlier has the later write time.
        """
        topic, place = await self._pinned(name), (name, partition)
        assert topic is not None, f"{name} is not pinned"
        rows = await self._fetch("pointer_row", *place)
        known, created = rows[0] if rows else (None, None)
        if known is not None and known >= offset:
            return
        values = [*place, offset, timestamp(now_ms), topic.base + offset]
        statements = [(await self._session.prepare(self._cql["publish"])).bind(values)]
        if created is None:
            values = [*place, timestamp(now_ms), topic.base - (now_ms - topic.base // 1000)]
            statements.append((await self._session.prepare(self._cql["create_pointer"])).bind(values))
        await self._session.execute(make_batch(statements), self._cql["publish"])

    async def head(self, topic: str, journal_id: str) -> Head | None:
        pinned = await self._pinned(topic)
        return None if pinned is None else await self._heads.find(pinned, journal_id)

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
        segments = Segments(self._session, self._cql, topic, journal_id, life)
        page = PageReader(
            self._session,
            self._cql,
            (journal_id, topic),
            segments,
            segment_size=segment_size,
            first=first,
            last=last,
            reverse=reverse,
            limit=limit,
            after=after,
        )
        return await page.read()

    async def ids(self, topic: str, *, page: int = 1000) -> AsyncIterator[list[str]]:
        pinned = await self._pinned(topic)
        if pinned is not None:
            async for found in self._scan.ids(pinned, page=page):
                yield found

    async def expired(self, topic: str, until_ms: int, *, page: int = 1000) -> AsyncIterator[list[str]]:
        pinned = await self._pinned(topic)
        if pinned is not None:
            pointers = await self.pointers(topic)  # before anything else
            async for found in self._expiry.due(pinned, pointers, until_ms, page=page):
                yield found

    async def drop_markers(self, topic: str, before_ms: int) -> int:
        pinned = await self._pinned(topic)
        if pinned is None:
            return 0
        return await self._scan.drop_markers(pinned, before_ms, await self.pointers(topic))

    async def waiting(self, topic: str, journal_id: str) -> list[Quarantined]:
        return [Quarantined(record_from(row), row[7]) for row in await self._fetch("waiting", topic, journal_id)]

    async def quarantine(self, topic: str | None = None, *, page: int = 100) -> AsyncIterator[list[WaitingRecord]]:
        name, values = ("quarantine", ()) if topic is None else ("quarantine_of", (topic,))
        async for rows in self._session.pages(self._cql[name], *values, page=page):
            yield [
                WaitingRecord(found, journal_id or None, kind, reason, record_from(tuple(record)))
                for found, journal_id, kind, reason, *record in rows
            ]

    async def count_quarantined(self, limit: int = 10_000) -> int:
        return len(await self._fetch("some_quarantined", limit))

    async def rejected(self, topic: str, *, limit: int = 100) -> list[RejectedAppend]:
        pinned = await self._pinned(topic)
        partitions = range(0 if pinned is None else pinned.partitions)
        found = await asyncio.gather(*(self._fetch("rejected", topic, nr, limit) for nr in partitions))
        lost = [RejectedAppend(row[0], row[1], Rejected(*row[2:])) for rows in found for row in rows]
        lost.sort(key=lambda one: (-one.rejected.timestamp, one.partition, -one.rejected.offset))
        return lost[:limit]

    async def verdicts(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Verdict]:
        return await self._verdicts.read(topic, partition, offsets)

    async def drop_verdicts(self, starts: Mapping[tuple[str, int], int]) -> None:
        await self._verdicts.drop(starts, self._pinned)

    async def snapshots(self, topic: str, journal_id: str) -> dict[int, Snapshot]:
        return await self._ring.load(topic, journal_id)

    async def put_snapshot(self, topic: str, journal_id: str, snapshot: Snapshot, *, slots: int) -> None:
        await self._ring.put(topic, journal_id, snapshot, slots=slots)

    async def delete_snapshots(self, topic: str, journal_id: str, seq_nrs: Sequence[int]) -> int:
        return await self._ring.delete(topic, journal_id, seq_nrs)

    async def save_status(self, name: str, status: bytes, now_ms: int) -> None:
        await self._session.write(self._cql["save_status"], name, status.decode(), timestamp(now_ms))

    async def statuses(self) -> dict[str, bytes]:
        return {name: value.encode() for name, value in sorted(await self._fetch("statuses"))}

    @asynccontextmanager
    async def task(self, topic: Topic, partition: int) -> AsyncIterator[StoreTask]:
        yield CassandraTask(
            self._session,
            self._cql,
            self._heads,
            self._expiry,
            self._put_row,
            self._views,
            self._verdicts,
            topic,
            partition,
        )

    async def close(self) -> None:
        await self._session.close()
