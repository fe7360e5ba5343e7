"""The tables of Akka and Pekko Persistence Cassandra, as they are. Nothing is written."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from everlog.cassandra.schema import quoted
from everlog.cassandra.session import CassandraRow, Session, rows_of
from everlog.config import PekkoConfig
from everlog.pekko.port import (
    EventContent,
    EventKey,
    FetchRows,
    FindBuckets,
    JournalRow,
    ListBuckets,
    ReadDeletedTo,
    ReadEvents,
    ReadIds,
    ReadKeys,
    ReadRows,
    RowPage,
    SerializedPayload,
    TaggedRow,
)
from everlog.pekko.time_buckets import offset_of, place_of
from everlog.runtime.statements import load_statements

PACKAGE = "everlog.pekko"
LISTED = 5000


class CassandraTables:
    """Answers the stages' queries from one keyspace."""

    def __init__(self, session: Session, config: PekkoConfig) -> None:
        self._session = session
        self._page_size = config.page_size
        self._cql = {
            name: text.replace("{keyspace}", quoted(config.keyspace)).replace("{table}", quoted(config.table))
            for name, text in load_statements(PACKAGE, "statements.cql").items()
        }

    async def _page(
        self, name: str, values: tuple[Any, ...], cursor: bytes | None
    ) -> tuple[list[CassandraRow], bytes | None]:
        return await self._session.page(self._cql[name], values, self._page_size, cursor)

    async def rows(self, query: ReadRows) -> RowPage[TaggedRow]:
        values = (query.tag, query.bucket, _bound(query.after), _bound(query.before))
        rows, cursor = await self._page("rows", values, query.cursor)
        return RowPage([_tagged(row) for row in rows], cursor)

    async def buckets(self, query: FindBuckets) -> RowPage[int]:
        rows = await self._session.fetch(self._cql["buckets"], query.tag, list(query.buckets))
        return RowPage([row[0] for row in rows])

    async def all_buckets(self, query: ListBuckets) -> RowPage[int]:
        # The tag is looked for here: a server that filters may go through the whole table before it has a page.
        rows, cursor = await self._session.page(self._cql["all_buckets"], (), LISTED, query.cursor)
        return RowPage([bucket for tag, bucket in rows if tag == query.tag], cursor)

    async def keys(self, query: ReadKeys) -> RowPage[EventKey]:
        values = (query.tag, query.bucket, _bound(query.after), _bound(query.upto))
        rows, cursor = await self._page("keys", values, query.cursor)
        return RowPage([_key(row) for row in rows], cursor)

    async def fetch(self, query: FetchRows) -> RowPage[TaggedRow]:
        cql = self._cql["row"]
        statement = await self._session.prepare(cql)
        found: list[TaggedRow] = []

        async def read(key: EventKey) -> None:
            values = [query.tag, query.bucket, _bound(key.place), key.persistence_id, key.tag_seq_nr]
            result = await self._session.attempt(statement.bind(values), cql)
            found.extend(_tagged(row) for row in rows_of(result))

        await self._session.share(query.keys, read, len(query.keys))
        return RowPage(found)

    async def events(self, query: ReadEvents) -> RowPage[JournalRow]:
        values = (query.persistence_id, query.partition, query.first, query.last)
        rows, cursor = await self._page("events", values, query.cursor)
        return RowPage(
            [JournalRow(row[0], _place(row[1]), _content(row[3:]), frozenset(row[2] or ())) for row in rows], cursor
        )

    async def last_seq_nr(self, persistence_id: str, partition: int) -> int | None:
        rows = await self._session.fetch(self._cql["last_event"], persistence_id, partition)
        # An emptied partition of an old database still has its static column, and so a row without a number.
        return rows[0][0] or None if rows else None

    async def deleted_to(self, query: ReadDeletedTo) -> RowPage[int]:
        rows = await self._session.fetch(self._cql["deleted_to"], query.persistence_id)
        return RowPage([rows[0][0] or 0 if rows else 0])

    async def ids(self, query: ReadIds) -> RowPage[str]:
        rows, cursor = await self._page("ids", (), query.cursor)
        return RowPage([row[0] for row in rows], cursor)


def _bound(place: int) -> str:
    return str(offset_of(place))


def _place(text: str) -> int:
    return place_of(UUID(text))


def _key(row: CassandraRow) -> EventKey:
    return EventKey(_place(row[0]), row[1], row[2])


def _tagged(row: CassandraRow) -> TaggedRow:
    return TaggedRow(_key(row), row[3], _content(row[4:]))


def _content(columns: CassandraRow) -> EventContent:
    writer_uuid, event_manifest, ser_id, ser_manifest, event, meta_ser_id, meta_ser_manifest, meta = columns
    metadata = None if meta is None else SerializedPayload(meta_ser_id or 0, meta_ser_manifest or "", meta)
    payload = SerializedPayload(ser_id or 0, ser_manifest or "", event or b"")
    return EventContent(writer_uuid or "", event_manifest or "", payload, metadata)
