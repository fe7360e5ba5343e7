"""Verdicts on Cassandra: what became of records that did not simply count where they stand.

A partition of the table is a bucket of offsets, so that it stays small however long the log keeps its records, and is
dropped as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from everlog.cassandra.session import CassandraRequest, CassandraRow, Session
from everlog.cassandra.values import timestamp
from everlog.core.head import Topic
from everlog.core.record import pack_headers, record_from
from everlog.store.port import KeyChange, Verdict

BUCKET = 100_000
PAGE = 500


class VerdictTable:
    """Reads and writes of the table `verdict`."""

    def __init__(self, session: Session, cql: Mapping[str, str]) -> None:
        self._session = session
        self._cql = cql

    async def write(self, topic: Topic, partition: int, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        """The verdicts of these changes; by journal, what failed."""
        found = [(key.id, verdict) for key in changes for verdict in key.verdicts]
        if not found:
            return {}
        cql = self._cql["put_verdict"]
        prepared = await self._session.prepare(cql)

        def requests() -> Iterator[tuple[str, CassandraRequest, str]]:
            for journal_id, verdict in found:
                yield journal_id, prepared.bind(_values(topic, partition, verdict)), cql

        return await self._session.run_all(requests(), len(found))

    async def read(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Verdict]:
        """Between the first and the last of these offsets, in order. Verdicts stand only where records do."""
        found: list[Verdict] = []
        for bucket in sorted({offset // BUCKET for offset in offsets}):
            place = (topic, partition, bucket, offsets[0], offsets[-1])
            async for rows in self._session.pages(self._cql["verdicts"], *place, page=PAGE):
                found += map(_verdict, rows)
        return found

    async def drop(
        self, starts: Mapping[tuple[str, int], int], pinned: Callable[[str], Awaitable[Topic | None]]
    ) -> None:
        """Buckets that end below these offsets. A late write into one meets its tombstone."""
        async for rows in self._session.pages(self._cql["verdict_buckets"], page=PAGE):
            for name, partition, bucket in rows:
                topic, end = await pinned(name), (bucket + 1) * BUCKET
                if topic is not None and end <= starts.get((name, partition), 0):
                    values = (topic.base + end - 1, name, partition, bucket)
                    await self._session.write(self._cql["drop_verdicts"], *values)


def _values(topic: Topic, partition: int, verdict: Verdict) -> list[Any]:
    """The columns of the statement `put_verdict`."""
    offset, record = verdict.offset, verdict.record
    return [
        topic.name,
        partition,
        offset // BUCKET,
        offset,
        verdict.taken,
        verdict.kind,
        verdict.id,
        None if record is None else timestamp(record.timestamp),
        None if record is None else record.key,
        None if record is None else record.action,
        None if record is None else record.value,
        None if record is None else pack_headers(record.headers),
        topic.base + offset,
    ]


def _verdict(row: CassandraRow) -> Verdict:
    offset, kind, journal_id, *record = row
    return Verdict(offset, kind, journal_id, record_from(tuple(record)) if kind == "resumed" else None)
