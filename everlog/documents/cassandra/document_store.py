"""Documents on Cassandra: a document or a collection is one partition, a write is one conditional batch on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from everlog.cassandra.schema import Schema
from everlog.cassandra.session import Session, connect, make_batch
from everlog.config import CassandraConfig
from everlog.core.duration import DAY_S
from everlog.documents.cassandra.expiry import CassandraExpiry
from everlog.documents.cassandra.indexes import Indexes
from everlog.documents.cassandra.nodes import CassandraNodes
from everlog.documents.cassandra.outbox import Outbox, open_transactions
from everlog.documents.cassandra.tables import DOCUMENT_TABLES
from everlog.documents.cassandra.unshown import CassandraUnshown
from everlog.documents.collections import CollectionsPage, CollectionSummary, PrefixRange
from everlog.documents.ids import TransactionId
from everlog.documents.indexes import Index, IndexStatus
from everlog.documents.messages import KEPT_S, MessageCounts, StoredMessage
from everlog.documents.model import DocumentChange, DocumentHead, DocumentRow, DocumentTransaction
from everlog.documents.nodes import NodeTable
from everlog.documents.paths import DocumentPlace, partition_of_uri
from everlog.documents.port import (
    MAX_STEP_BYTES,
    Batch,
    BatchState,
    DocumentState,
    DocumentStore,
    DocumentView,
    ExpiringRow,
    FoundElement,
    Locate,
    PendingIndex,
    PendingWrite,
    StoredElement,
    TemplateIndex,
    WaitingTransaction,
)
from everlog.documents.query_plan import IndexRange
from everlog.documents.schemas.model import DocumentSchema, SchemaCheck, SchemaKey, StoredCheck
from everlog.documents.unshown import UnshownTable
from everlog.errors import Unreachable
from everlog.runtime.failpoints import failpoint
from everlog.runtime.trace import Trace

PAGE = 500
IDS_PAGE = 5000
COLLECTION_BUCKETS = 16
COLLECTIONS_AT_ONCE = 32
MAX_SETTLE_ATTEMPTS = 3
START, BODY, MESSAGE = range(3)  # the kinds of rows, as tables.cql has them

_counts = msgspec.json.Decoder(MessageCounts).decode
_message = msgspec.json.Decoder(StoredMessage).decode
_encode = msgspec.json.Encoder().encode


class _Statics(NamedTuple):
    """The head, what is accepted and not completed, up to where all is completed, and the map as it is stored."""

    head: DocumentHead | None
    waiting: dict[int, str]
    completed_to: int
    pending: str | None


class CassandraDocuments(DocumentStore):
    """Documents in one keyspace. Make it with `open`."""

    def __init__(self, session: Session, *, transaction_days: float = 7.0) -> None:
        self._session = session
        self._cql = DOCUMENT_TABLES.statements(session.config.keyspace)
        self._outbox = Outbox(session, self._cql, ttl_s=round(transaction_days * DAY_S))
        self._indexes = Indexes(session, self._cql)
        self._expiry = CassandraExpiry(session, self._cql)

    @classmethod
    async def open(cls, config: CassandraConfig, *, transaction_days: float = 7.0, trace: Trace | None = None) -> Self:
        """Connect, and create or migrate the tables if that is needed and allowed."""
        session = await connect(config, trace)
        try:
            await Schema(session, DOCUMENT_TABLES).prepare()
        except BaseException:
            await session.close()
            raise
        return cls(session, transaction_days=transaction_days)

    async def _fetch(self, name: str, *values: Any, serial: bool = False) -> list[tuple[Any, ...]]:
        return await self._session.fetch(self._cql[name], *values, serial=serial)

    async def _statics(self, uri: str, *, serial: bool = False) -> _Statics:
        rows = await self._fetch("head", uri, serial=serial)
        return _statics(rows[0]) if rows else _NOTHING

    async def load(
        self, place: DocumentPlace, *, message_id: str | None = None, settled: bool = False
    ) -> DocumentState:
        ids = () if message_id is None else (message_id,)
        head, rows, messages = await self._load(place.uri, (place.item,), ids, serial=settled)
        return DocumentState(head, rows.get(place.item), messages.get(message_id or ""))

    async def load_rows(self, uri: str, items: Collection[str], message_ids: Collection[str] = ()) -> BatchState:
        return await self._load(uri, items, message_ids)

    async def _load(
        self, uri: str, items: Collection[str], message_ids: Collection[str], *, serial: bool = False
    ) -> BatchState:
        kinds = [START, BODY, MESSAGE] if message_ids else [START, BODY]
        names = sorted({"", *items, *message_ids})
        found = await self._fetch("state", uri, kinds, names, serial=serial)
        known = {(kind, item): values for kind, item, *values in found}
        if (START, "") not in known:
            return BatchState(None, {})
        rows = {item: DocumentRow(*known[BODY, item][:5]) for item in items if (BODY, item) in known}
        messages = {name: _message(known[MESSAGE, name][0]) for name in message_ids if (MESSAGE, name) in known}
        return BatchState(_statics(known[START, ""][5:]).head, rows, messages)

    async def accept(self, *changes: DocumentChange) -> bool:
        """A clearing change is the last one, as rows of the same write time would not survive it."""
        assert not any(change.clears for change in changes[:-1])
        found = await self._statics(changes[0].place.uri)
        if not changes[0].expected and changes[0].place.in_collection:
            await self._session.write(self._cql["put_collection"], *_listed(changes[0].place.uri))
        await self._expiry.add([(one.place, one.row.expires_ms) for one in changes if one.row is not None])
        events = [change.transaction for change in changes]
        await asyncio.gather(*[self._outbox.add(one) for one in events])
        failpoint("documents.outboxed")
        batch = make_batch(await self._batch(changes, found))
        applied = await self._session.attempt_if(batch, f"BATCH {self._cql['put_head']}")
        if applied is None:
            applied = await self._settle(changes[-1].transaction)
        if not applied:
            await asyncio.gather(*[self._outbox.remove(one) for one in events])
        return applied

    async def _batch(self, changes: Sequence[DocumentChange], found: _Statics) -> list[Any]:
        """The condition names the old map too: no accepted write may fall out of it."""
        expected, head, uri = changes[0].expected, changes[-1].head, changes[0].place.uri
        pending = found.waiting | {change.transaction.revision: change.transaction.uuid for change in changes}
        texts = (_encode(head.messages).decode(), head.view, _encode(pending).decode())
        condition = (uri, expected or None, found.pending)
        values = (head.revision, head.deleted, head.count, head.last_id, *texts, *condition)
        requests: list[tuple[str, tuple[Any, ...]]] = [("put_head", values)]
        if not expected:
            requests.append(("begin", (uri,)))
        if changes[-1].clears:
            requests.append(("delete_rows", (uri,)))
        else:
            requests += [_row_request(place, row) for place, row in {one.place: one.row for one in changes}.items()]
        for message in [change.message for change in changes if change.message is not None]:
            requests.append(("put_message", (uri, message.id, _encode(message).decode(), KEPT_S)))
        return [(await self._session.prepare(self._cql[name])).bind(list(bound)) for name, bound in requests]

    async def _settle(self, one: DocumentTransaction) -> bool:
        """What became of the write of this event without an answer. A read at SERIAL finishes it, or makes it
        impossible.
        """
        for attempt in range(1, MAX_SETTLE_ATTEMPTS + 1):
            try:
                head, waiting, completed_to, _ = await self._statics(one.uri, serial=True)
            except Unreachable:
                if attempt == MAX_SETTLE_ATTEMPTS:
                    raise
                continue
            if head is None or head.revision < one.revision:
                return False
            if one.revision > completed_to:
                return waiting.get(one.revision) == one.uuid
            found = await self._outbox.get(one.uri, one.uuid, one.revision)
            return found is not None and found.completed_ms is not None
        raise AssertionError("the loop ends by a return or an error")

    async def add_transaction(self, transaction: DocumentTransaction) -> None:
        await self._outbox.add(transaction)

    async def transaction(self, transaction_id: TransactionId) -> DocumentTransaction | None:
        uri, uuid, revision = transaction_id.uri, str(transaction_id.uuid), transaction_id.revision
        found = await self._outbox.get(uri, uuid, revision)
        if found is None or found.completed_ms is not None:
            return found
        waiting = (await self._statics(uri)).waiting
        return msgspec.structs.replace(found, accepted=waiting.get(revision) == uuid)

    async def pending(self, uri: str, *, limit: int) -> list[DocumentTransaction]:
        waiting = (await self._statics(uri)).waiting
        return await self._outbox.get_all(uri, list(waiting.items())[:limit])

    async def pending_writes(self, uri: str) -> list[PendingWrite]:
        waiting = (await self._statics(uri)).waiting
        return await self._outbox.writes(uri, list(waiting.items()))

    async def complete(self, uri: str, transactions: Sequence[DocumentTransaction], now_ms: int) -> None:
        """The rows first: what is above `completed_to` is looked at again."""
        await self._outbox.complete(transactions, now_ms)
        reached = max(one.revision for one in transactions)
        await self._session.write(self._cql["completed_to"], reached, reached, uri)

    def incomplete(
        self, first_quantum: int, last_quantum: int, partitions: Collection[int] | None = None
    ) -> AsyncIterator[list[WaitingTransaction]]:
        return self._outbox.incomplete(first_quantum, last_quantum, partitions)

    async def abandon(self, waiting: WaitingTransaction, now_ms: int) -> bool:
        """Even if its writer sleeps and wakes up later: then the map has the uuid, and the event goes out."""
        accepted = (await self._statics(waiting.uri, serial=True)).waiting
        found = await self._outbox.get(waiting.uri, waiting.uuid, waiting.revision)
        if accepted.get(waiting.revision) == waiting.uuid or found is None or found.completed_ms is not None:
            return False
        await self._outbox.complete([found], now_ms)
        return True

    async def forget(self, before_ms: int, *, limit: int = 1000) -> int:
        return 0  # rows are completed with an end of their own

    async def forget_messages(self, before_ms: int, *, limit: int = 1000) -> int:
        return 0  # they are stored with an end of their own

    async def elements(self, uri: str, where: IndexRange, *, reverse: bool, limit: int, max_bytes: int) -> Batch:
        name = "elements" + ("" if where.high is None else "_to") + ("_reverse" if reverse else "")
        bounds = [where.low] if where.high is None else [where.low, where.high]
        return await self._scan(name, [uri, *bounds, limit], limit, max_bytes)

    async def elements_after(
        self, uri: str, after: str, *, limit: int, max_bytes: int = MAX_STEP_BYTES
    ) -> list[StoredElement]:
        return [StoredElement(*row) for row in await self._fetch("rows_after", uri, after, limit)]

    async def rows(self, uri: str, items: Sequence[str]) -> list[FoundElement]:
        return [FoundElement(*row) for row in await self._fetch("rows", uri, list(items))]

    async def count_others(self, uri: str, index: Index, items: Sequence[str]) -> int | None:
        return None

    async def entries(
        self, uri: str, index: Index, where: IndexRange, *, reverse: bool, limit: int, max_bytes: int
    ) -> Batch:
        name = "entries" + ("_reverse" if reverse else "")
        return await self._scan(name, [index.definition_id, where.low, where.high, limit], limit, max_bytes)

    async def _scan(self, name: str, values: list[Any], limit: int, max_bytes: int) -> Batch:
        entries: list[FoundElement] = []
        size, state = 0, None
        while True:
            rows, state = await self._session.page(self._cql[name], values, min(PAGE, limit), state)
            for row in rows:
                entries.append(FoundElement(*row))
                size += len(row[1])
                if size >= max_bytes:
                    return Batch(entries, more=True)
            if state is None:
                return Batch(entries, more=len(entries) >= limit)

    async def indexes(self, uri: str) -> list[Index]:
        return await self._indexes.all(uri)

    async def create_index(self, uri: str, index: Index) -> bool:
        return await self._indexes.create(uri, index)

    async def mark_index(self, uri: str, index: Index, status: IndexStatus, reason: str | None = None) -> bool:
        return await self._indexes.mark(uri, index, status, reason)

    async def build(self, uri: str, index: Index, locate: Locate, *, limit: int) -> bool:
        head = (await self._statics(uri)).head
        return await self._indexes.build(uri, index, locate, limit=limit, revision=0 if head is None else head.revision)

    async def cut(self, uri: str, every: int) -> list[str]:
        found: list[str] = []
        count = 0
        async for rows in self._session.pages(self._cql["item_ids"], uri, page=IDS_PAGE):
            for (item,) in rows:
                count += 1
                if count % every == 0:
                    found.append(item)
        return found

    async def build_part(
        self, uri: str, index: Index, locate: Locate, *, after: str, to: str | None, limit: int
    ) -> str | None:
        return await self._indexes.build_part(uri, index, locate, after=after, to=to, limit=limit)

    async def finish(self, uri: str, index: Index, revision: int) -> bool:
        return await self._indexes.finish(uri, index, revision)

    async def update_index(
        self, uri: str, index: Index, transactions: Sequence[DocumentTransaction], locate: Locate, revision: int
    ) -> None:
        await self._indexes.update(uri, index, transactions, locate, revision)

    async def drop_index(self, uri: str, index: Index, *, limit: int) -> bool:
        await self._indexes.drop(uri, index)
        return True

    async def pending_indexes(self) -> list[PendingIndex]:
        return await self._indexes.pending()

    async def checkpoints(self) -> dict[int, int]:
        return dict(await self._fetch("checkpoints"))

    async def save_checkpoints(self, quanta: Mapping[int, int]) -> None:
        cql = self._cql["save_checkpoint"]
        await asyncio.gather(*[self._session.write(cql, name, last, last) for name, last in quanta.items()])

    async def places(self, prefix: str) -> AsyncIterator[list[DocumentPlace]]:
        """The whole table is read: Cassandra keeps documents in no order."""
        async for rows in self._session.pages(self._cql["all_places"], page=IDS_PAGE):
            yield [DocumentPlace(uri, item) for uri, kind, item in rows if kind == BODY and uri.startswith(prefix)]

    async def collections(self, where: PrefixRange, *, limit: int) -> CollectionsPage:
        """Of every bucket the first ones, merged; a row says that a collection was there, its own partition whether it
        still is.
        """
        rows = await asyncio.gather(
            *(self._fetch("collections", bucket, *where, limit) for bucket in range(COLLECTION_BUCKETS))
        )
        uris = sorted(uri for bucket in rows for (uri,) in bucket)[:limit]
        found: list[CollectionSummary] = []
        for start in range(0, len(uris), COLLECTIONS_AT_ONCE):
            several = await asyncio.gather(*map(self._summary, uris[start : start + COLLECTIONS_AT_ONCE]))
            found += [one for one in several if one is not None]
        return CollectionsPage(found, uris[-1] if len(uris) == limit else None)

    async def _summary(self, uri: str) -> CollectionSummary | None:
        head = (await self._statics(uri)).head
        if head is None or head.deleted:
            return None
        indexes = [one for one in await self.indexes(uri) if one.status is not IndexStatus.DELETING]
        return CollectionSummary(uri, head.revision, head.count, head.view, len(indexes))

    async def views(self) -> list[DocumentView]:
        return [DocumentView(row[0], row[1], row[2], bool(row[3]), row[4]) for row in await self._fetch("views")]

    async def put_view(self, view: DocumentView) -> bool:
        return await self._applied("put_view", *view[:4])

    async def mark_filled(self, uri: str) -> None:
        await self._applied("mark_filled", uri)

    async def recheck_view(self, uri: str, request: str, *, refill: bool = False) -> None:
        await self._applied("refill_view" if refill else "recheck_view", request, uri)

    async def mark_checked(self, uri: str, request: str) -> None:
        await self._applied("mark_checked", uri, request)

    async def delete_view(self, uri: str) -> bool:
        return await self._applied("delete_view", uri)

    async def template_indexes(self) -> list[TemplateIndex]:
        return [TemplateIndex(*row) for row in await self._fetch("template_indexes")]

    async def put_template_index(self, template: TemplateIndex) -> bool:
        return await self._applied("put_template_index", *template)

    async def delete_template_index(self, index_id: str) -> bool:
        return await self._applied("delete_template_index", index_id)

    async def schema_keys(self) -> list[SchemaKey]:
        return [SchemaKey(*row) for row in await self._fetch("schema_keys")]

    async def schema(self, schema_id: str) -> DocumentSchema | None:
        rows = await self._fetch("schema", schema_id)
        return DocumentSchema(*rows[0]) if rows else None

    async def put_schema(self, schema: DocumentSchema) -> bool:
        schema_id, *rest = msgspec.structs.astuple(schema)
        while True:  # another caller may delete it between the two
            if await self._applied("add_schema", schema_id, *rest):
                return True
            if await self._applied("replace_schema", *rest, schema_id):
                return False

    async def delete_schema(self, schema_id: str) -> bool:
        await self._applied("delete_schema_check", schema_id)
        return await self._applied("delete_schema", schema_id)

    async def schema_checks(self) -> list[StoredCheck]:
        return [StoredCheck.read(*row) for row in await self._fetch("schema_checks")]

    async def schema_check(self, schema_id: str) -> StoredCheck | None:
        rows = await self._fetch("schema_check", schema_id)
        return StoredCheck.read(*rows[0]) if rows else None

    async def save_schema_check(self, check: SchemaCheck, beat: int, expected: int | None) -> bool:
        body = _encode(check).decode()
        if expected is None:
            return await self._applied("add_schema_check", check.schema_id, beat, body)
        return await self._applied("save_schema_check", beat, body, check.schema_id, expected)

    async def _applied(self, name: str, *values: Any) -> bool:
        applied = await self._session.write_if(self._cql[name], *values)
        if applied is None:
            raise Unreachable("Cassandra does not say what became of a definition: look at it, and try again")
        return applied

    def expiring(self, now_ms: int) -> AsyncIterator[list[ExpiringRow]]:
        return self._expiry.due(now_ms)

    async def forget_expiring(self, rows: Sequence[ExpiringRow]) -> None:
        await self._expiry.remove(rows)

    def unshown_table(self) -> UnshownTable:
        return CassandraUnshown(self._session, self._cql)

    def node_table(self) -> NodeTable:
        return CassandraNodes(self._session, self._cql)

    async def close(self) -> None:
        await self._session.close()


def _row_request(place: DocumentPlace, row: DocumentRow | None) -> tuple[str, tuple[Any, ...]]:
    """The statement that makes an item what it is now."""
    if row is None:
        return "delete_row", tuple(place)
    return "put_row", (*place, *msgspec.structs.astuple(row))


_NOTHING = _Statics(None, {}, 0, None)


def _statics(row: Sequence[Any]) -> _Statics:
    """The static columns of a document."""
    revision, deleted, count, last_id, messages, view, pending, completed_to = row
    if revision is None:
        return _NOTHING  # only completed_to is there: a completer was late
    waiting = open_transactions(pending, completed_to)
    head = DocumentHead(revision, deleted, count, last_id, _counts(messages), len(waiting), view)
    return _Statics(head, waiting, completed_to or 0, pending)


def _listed(uri: str) -> tuple[int, str]:
    """Where a collection stands in the list."""
    return partition_of_uri(uri, COLLECTION_BUCKETS), uri
