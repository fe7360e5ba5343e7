"""Documents in one SQLite file, any number of processes.

A write is one transaction: the outbox row, the head and the body appear together or not at all. An index update reads
the current element in its own transaction, so that updates may come in any order, and twice.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from everlog.documents.collections import CollectionsPage, CollectionSummary, PrefixRange
from everlog.documents.ids import TransactionId
from everlog.documents.indexes import Index, IndexSortItem, IndexStatus
from everlog.documents.messages import MessageCounts, StoredMessage
from everlog.documents.model import DELETION, DocumentChange, DocumentHead, DocumentRow, DocumentTransaction
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
from everlog.documents.sqlite.nodes import SqliteNodes
from everlog.documents.sqlite.unshown import SqliteUnshown
from everlog.documents.sqlite.writer import SharedWriter
from everlog.documents.unshown import UnshownTable
from everlog.errors import Busy
from everlog.runtime.statements import load_statements
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import connect, translated
from everlog.sqlite.migrations import migrate

FILE = "documents.db"
SQL = load_statements("everlog.documents.sqlite")
PAGE = 500
MAX_INDEXED_BYTES = 4 * 1024 * 1024  # of elements that are indexed at once
MAX_ROWS_IN_LOOP = 200  # more rows are read in a thread
MAX_SCANS = 64  # large reads at a time: one reads, the others wait

_counts = msgspec.json.Decoder(MessageCounts).decode
_message = msgspec.json.Decoder(StoredMessage).decode
_sort_by = msgspec.json.Decoder(tuple[IndexSortItem, ...]).decode
_encode = msgspec.json.Encoder().encode


class IndexedRow(NamedTuple):
    """An element as it was read, and its place in an index; None: it has none there."""

    item: str
    body: str | None
    key: bytes | None


class SqliteDocuments(DocumentStore):
    """Documents in the file `documents.db` of a folder."""

    def __init__(self, folder: Path, *, synchronous: str = "FULL", trace: Trace | None = None) -> None:
        self.path = folder / FILE
        self._reader = connect(self.path, synchronous=synchronous, trace=trace)
        self._scanner: sqlite3.Connection | None = None
        self._scanning = asyncio.Lock()
        self._scans = 0
        self._trace = trace
        self._writer = SharedWriter(self.path, synchronous=synchronous, trace=trace)
        try:
            migrate(self._reader, self.path, "everlog.documents.sqlite")
        except BaseException:
            self._reader.close()
            raise

    def _read(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self._reader.execute(SQL[name], parameters).fetchall()

    async def _change(self, name: str, *parameters: object) -> int:
        return await self._writer.run(lambda connection: connection.execute(SQL[name], parameters).rowcount)

    async def load(
        self, place: DocumentPlace, *, message_id: str | None = None, settled: bool = False
    ) -> DocumentState:
        ids = () if message_id is None else (message_id,)
        head, rows, messages = await self.load_rows(place.uri, (place.item,), ids)
        return DocumentState(head, rows.get(place.item), messages.get(message_id or ""))

    async def load_rows(self, uri: str, items: Collection[str], message_ids: Collection[str] = ()) -> BatchState:
        rows: dict[str, DocumentRow] = {}
        messages: dict[str, StoredMessage] = {}
        with translated(self.path):
            self._reader.execute("BEGIN")  # all of one moment
            try:
                head = self._reader.execute(SQL["head"], (uri,)).fetchone()
                if items and head is not None:
                    names = _encode(sorted(items)).decode()
                    for item, *found in self._reader.execute(SQL["whole_rows"], (uri, names)).fetchall():
                        rows[item] = DocumentRow(*found)
                if message_ids:
                    names = _encode(sorted(message_ids)).decode()
                    for message_id, answer in self._reader.execute(SQL["messages"], (uri, names)).fetchall():
                        messages[message_id] = _message(answer)
            finally:
                self._reader.execute("COMMIT")
        return BatchState(None if head is None else _head(head), rows, messages)

    async def accept(self, *changes: DocumentChange) -> bool:
        uri = changes[0].place.uri

        def write(connection: sqlite3.Connection) -> bool:
            found = connection.execute(SQL["revision"], (uri,)).fetchone()
            if (0 if found is None else found[0]) != changes[0].expected:
                return False
            for change in changes:
                _store(connection, change)
            _store_head(connection, changes[-1])
            return True

        return await self._writer.run(write)

    async def add_transaction(self, transaction: DocumentTransaction) -> None:
        orphan = msgspec.structs.replace(transaction, accepted=False)
        await self._change("add_transaction", *_transaction_values(orphan))

    async def transaction(self, transaction_id: TransactionId) -> DocumentTransaction | None:
        rows = self._read("transaction", transaction_id.uri, str(transaction_id.uuid))
        return _transaction(rows[0]) if rows else None

    async def pending(self, uri: str, *, limit: int) -> list[DocumentTransaction]:
        return [_transaction(row) for row in self._read("pending", uri, limit)]

    async def pending_writes(self, uri: str) -> list[PendingWrite]:
        return [
            PendingWrite(revision, item, not item and event.startswith(DELETION))
            for revision, item, event in self._read("pending_writes", uri)
        ]

    async def complete(self, uri: str, transactions: Sequence[DocumentTransaction], now_ms: int) -> None:
        values = [(now_ms, uri, one.uuid) for one in transactions]
        # If a power failure undoes it, recovery finds the events in the log and notes it again.
        await self._writer.run(lambda connection: connection.executemany(SQL["complete"], values).rowcount, lazy=True)

    async def incomplete(
        self, first_quantum: int, last_quantum: int, partitions: Collection[int] | None = None
    ) -> AsyncIterator[list[WaitingTransaction]]:
        place = (first_quantum, -1)
        while rows := self._read("incomplete", last_quantum, *place, PAGE):
            found = [WaitingTransaction(*row[:3]) for row in rows]
            yield found if partitions is None else [one for one in found if partition_of_uri(one.uri) in partitions]
            place = rows[-1][3:]

    async def abandon(self, waiting: WaitingTransaction, now_ms: int) -> bool:
        return await self._change("abandon", now_ms, waiting.uri, waiting.uuid) > 0

    async def forget(self, before_ms: int, *, limit: int = 1000) -> int:
        return await self._change("forget", before_ms, limit)

    async def forget_messages(self, before_ms: int, *, limit: int = 1000) -> int:
        return await self._change("forget_messages", before_ms, limit)

    async def elements(self, uri: str, where: IndexRange, *, reverse: bool, limit: int, max_bytes: int) -> Batch:
        name = "elements_reverse" if reverse else "elements"
        return await self._scan(name, (uri, where.low, where.high, limit), limit, max_bytes)

    async def elements_after(
        self, uri: str, after: str, *, limit: int, max_bytes: int = MAX_STEP_BYTES
    ) -> list[StoredElement]:
        found: list[StoredElement] = []
        size = 0
        with translated(self.path), closing(self._reader.execute(SQL["elements_after"], (uri, after, limit))) as rows:
            for row in rows:
                found.append(StoredElement(*row))
                size += len(found[-1].body)
                if size >= max_bytes:
                    break
        return found

    async def rows(self, uri: str, items: Sequence[str]) -> list[FoundElement]:
        return [FoundElement(*row) for row in self._read("rows", uri, _encode(items).decode())]

    async def count_others(self, uri: str, index: Index, items: Sequence[str]) -> int | None:
        name = (index.definition_id, _encode(items).decode(), uri, index.index_id, index.definition_id)
        rows = self._read("count_others", *name)
        return rows[0][0] if rows else 0

    async def entries(
        self, uri: str, index: Index, where: IndexRange, *, reverse: bool, limit: int, max_bytes: int
    ) -> Batch:
        name = "entries_reverse" if reverse else "entries"
        return await self._scan(name, (index.definition_id, where.low, where.high, limit), limit, max_bytes)

    async def _scan(self, name: str, parameters: tuple[Any, ...], limit: int, max_bytes: int) -> Batch:
        if limit <= MAX_ROWS_IN_LOOP:
            return self._take(self._reader, name, parameters, limit, max_bytes)
        if self._scans >= MAX_SCANS:
            raise Busy(f"{MAX_SCANS} large reads of documents wait already: try again later, or read smaller pages")
        self._scans += 1
        try:
            async with self._scanning:
                return await asyncio.to_thread(self._scan_apart, name, parameters, limit, max_bytes)
        finally:
            self._scans -= 1

    def _scan_apart(self, name: str, parameters: tuple[Any, ...], limit: int, max_bytes: int) -> Batch:
        if self._scanner is None:
            self._scanner = connect(self.path, trace=self._trace)
        return self._take(self._scanner, name, parameters, limit, max_bytes)

    def _take(
        self, connection: sqlite3.Connection, name: str, parameters: tuple[Any, ...], limit: int, max_bytes: int
    ) -> Batch:
        entries: list[FoundElement] = []
        size = 0
        with translated(self.path):
            cursor = connection.execute(SQL[name], parameters)
            for row in cursor:
                entries.append(FoundElement(*row))
                size += len(row[1])
                if size >= max_bytes:
                    cursor.close()
                    return Batch(entries, more=True)
        return Batch(entries, more=len(entries) >= limit)

    async def indexes(self, uri: str) -> list[Index]:
        return [_index(row) for row in self._read("indexes", uri)]

    async def create_index(self, uri: str, index: Index) -> bool:
        values = (uri, index.index_id, _encode(index.sort_by).decode(), index.filter_by, index.status)
        rest = (index.definition_id, index.built_to, index.revision, index.count, index.reason, index.since)
        return await self._change("create_index", *values, *rest) > 0

    async def mark_index(self, uri: str, index: Index, status: IndexStatus, reason: str | None = None) -> bool:
        return await self._change("mark_index", status, reason, uri, index.index_id, index.definition_id) > 0

    async def build(self, uri: str, index: Index, locate: Locate, *, limit: int) -> bool:
        name = (uri, index.index_id, index.definition_id)
        found = self._read("index_status", *name)
        if not found or found[0][0] != IndexStatus.INDEXING:
            return True  # deleted meanwhile, or failed, or ready
        place = found[0][1]
        rows = await self._located(index, locate, (uri, _behind(place), None, limit))

        def step(connection: sqlite3.Connection) -> bool:
            if connection.execute(SQL["index_status"], name).fetchone() != (IndexStatus.INDEXING, place):
                return False  # another process was quicker
            if rows:
                connection.execute(SQL["built"], (rows[-1].item, _put_all(connection, uri, index, rows), *name))
            elif connection.execute(SQL["elements"], (uri, _behind(place), None, 1)).fetchone() is None:
                connection.execute(SQL["ready"], name)
                return True
            return False

        return await self._writer.run(step)

    async def _located(self, index: Index, locate: Locate, parameters: tuple[Any, ...]) -> list[IndexedRow]:
        """The next elements and their places in an index. Nothing is locked while these are found out."""
        async with self._scanning:
            batch = await asyncio.to_thread(self._scan_apart, "elements", parameters, parameters[-1], MAX_INDEXED_BYTES)
        keys = await locate(index, [row.body for row in batch.entries])
        return [IndexedRow(row.key, row.body, key) for row, key in zip(batch.entries, keys, strict=True)]

    async def cut(self, uri: str, every: int) -> list[str]:
        return [item for (item,) in self._read("cut", uri, every)]

    async def build_part(
        self, uri: str, index: Index, locate: Locate, *, after: str, to: str | None, limit: int
    ) -> str | None:
        name = (uri, index.index_id, index.definition_id)
        bounds = (_behind(after), None if to is None else _behind(to))
        rows = await self._located(index, locate, (uri, *bounds, limit))

        def step(connection: sqlite3.Connection) -> str | None:
            found = connection.execute(SQL["index_status"], name).fetchone()
            if found is None or found[0] != IndexStatus.INDEXING or not rows:
                return None
            connection.execute(SQL["counted"], (_put_all(connection, uri, index, rows), *name))
            return rows[-1].item

        return await self._writer.run(step)

    async def finish(self, uri: str, index: Index, revision: int) -> bool:
        return await self._change("finish", revision, uri, index.index_id, index.definition_id) > 0

    async def update_index(
        self, uri: str, index: Index, transactions: Sequence[DocumentTransaction], locate: Locate, revision: int
    ) -> None:
        rows: list[IndexedRow] = []
        size = 0
        for item in sorted({one.item for one in transactions if one.item}):
            found = self._read("row", uri, item)
            body = found[0][0] if found else None
            (key,) = [None] if body is None else await locate(index, [body])
            rows.append(IndexedRow(item, body, key))
            size += len(body or "")
            if size > MAX_INDEXED_BYTES:
                await self._index_rows(uri, index, rows, 0)
                rows, size = [], 0
        await self._index_rows(uri, index, rows, revision)

    async def _index_rows(self, uri: str, index: Index, rows: Sequence[IndexedRow], revision: int) -> None:
        def update(connection: sqlite3.Connection) -> None:
            if connection.execute(SQL["index_status"], (uri, index.index_id, index.definition_id)).fetchone() is None:
                return
            added = _put_all(connection, uri, index, rows)
            connection.execute(SQL["indexed"], (revision, added, uri, index.index_id, index.definition_id))

        await self._writer.run(update)

    async def drop_index(self, uri: str, index: Index, *, limit: int) -> bool:
        def drop(connection: sqlite3.Connection) -> bool:
            if connection.execute(SQL["delete_entries"], (index.definition_id, limit)).rowcount == limit:
                return False
            connection.execute(SQL["delete_index"], (uri, index.index_id, index.definition_id))
            return True

        return await self._writer.run(drop)

    async def pending_indexes(self) -> list[PendingIndex]:
        return [PendingIndex(row[0], _index(row[1:])) for row in self._read("pending_indexes")]

    async def checkpoints(self) -> dict[int, int]:
        return dict(self._read("checkpoints"))

    async def save_checkpoints(self, quanta: Mapping[int, int]) -> None:
        values = list(quanta.items())
        await self._writer.run(lambda connection: connection.executemany(SQL["save_checkpoint"], values).rowcount)

    async def places(self, prefix: str) -> AsyncIterator[list[DocumentPlace]]:
        uri, item = prefix, ""
        while rows := self._read("places", uri, item, prefix + "\U0010ffff", PAGE):
            yield [DocumentPlace(*row) for row in rows]
            uri, item = rows[-1][0], rows[-1][1] + "\0"

    async def collections(self, where: PrefixRange, *, limit: int) -> CollectionsPage:
        rows = self._read("collections", int(IndexStatus.DELETING), *where, limit)
        found = [
            CollectionSummary(uri, revision, count, bool(view), indexes) for uri, revision, count, view, indexes in rows
        ]
        return CollectionsPage(found, found[-1].path if len(found) == limit else None)

    async def views(self) -> list[DocumentView]:
        return [DocumentView(row[0], row[1], row[2], bool(row[3]), row[4]) for row in self._read("views")]

    async def put_view(self, view: DocumentView) -> bool:
        return await self._change("put_view", *view[:4]) > 0

    async def mark_filled(self, uri: str) -> None:
        await self._change("mark_filled", uri)

    async def recheck_view(self, uri: str, request: str, *, refill: bool = False) -> None:
        await self._change("recheck_view", request, refill, uri)

    async def mark_checked(self, uri: str, request: str) -> None:
        await self._change("mark_checked", uri, request)

    async def delete_view(self, uri: str) -> bool:
        return await self._change("delete_view", uri) > 0

    async def template_indexes(self) -> list[TemplateIndex]:
        return [TemplateIndex(*row) for row in self._read("template_indexes")]

    async def put_template_index(self, template: TemplateIndex) -> bool:
        return await self._change("put_template_index", *template) > 0

    async def delete_template_index(self, index_id: str) -> bool:
        return await self._change("delete_template_index", index_id) > 0

    async def expiring(self, now_ms: int) -> AsyncIterator[list[ExpiringRow]]:
        last = ExpiringRow(0, "", "")
        while rows := self._read("expiring", now_ms, *last, PAGE):
            yield [ExpiringRow(*row) for row in rows]
            last = ExpiringRow(*rows[-1])

    async def forget_expiring(self, rows: Sequence[ExpiringRow]) -> None:
        """The rows themselves are what is looked at."""

    def unshown_table(self) -> UnshownTable:
        return SqliteUnshown(self._read, self._change)

    async def schema_keys(self) -> list[SchemaKey]:
        return [SchemaKey(*row) for row in self._read("schema_keys")]

    async def schema(self, schema_id: str) -> DocumentSchema | None:
        rows = self._read("schema", schema_id)
        return DocumentSchema(*rows[0]) if rows else None

    async def put_schema(self, schema: DocumentSchema) -> bool:
        schema_id, *rest = msgspec.structs.astuple(schema)

        def put(connection: sqlite3.Connection) -> bool:
            if connection.execute(SQL["add_schema"], (schema_id, *rest)).rowcount:
                return True
            connection.execute(SQL["replace_schema"], (*rest, schema_id))
            return False

        return await self._writer.run(put)

    async def delete_schema(self, schema_id: str) -> bool:
        def delete(connection: sqlite3.Connection) -> bool:
            connection.execute(SQL["delete_schema_check"], (schema_id,))
            return connection.execute(SQL["delete_schema"], (schema_id,)).rowcount > 0

        return await self._writer.run(delete)

    async def schema_checks(self) -> list[StoredCheck]:
        return [StoredCheck.read(*row) for row in self._read("schema_checks")]

    async def schema_check(self, schema_id: str) -> StoredCheck | None:
        rows = self._read("schema_check", schema_id)
        return StoredCheck.read(*rows[0]) if rows else None

    async def save_schema_check(self, check: SchemaCheck, beat: int, expected: int | None) -> bool:
        body = _encode(check).decode()
        if expected is None:
            return await self._change("add_schema_check", check.schema_id, beat, body) > 0
        return await self._change("save_schema_check", beat, body, check.schema_id, expected) > 0

    def node_table(self) -> NodeTable:
        return SqliteNodes(self.path.parent)

    async def close(self) -> None:
        await self._writer.close()
        async with self._scanning:
            if self._scanner is not None:
                self._scanner.close()
            self._reader.close()


def _behind(item: str) -> str:
    """The first id that may follow."""
    return item + "\0" if item else ""


def _put_all(connection: sqlite3.Connection, uri: str, index: Index, rows: Iterable[IndexedRow]) -> int:
    """Make an index hold some elements as they are, or not hold them; by how many entries it grows."""
    return sum(_put(connection, uri, index, row) for row in rows)


def _put(connection: sqlite3.Connection, uri: str, index: Index, row: IndexedRow) -> int:
    found = connection.execute(SQL["row"], (uri, row.item)).fetchone()
    if (None if found is None else found[0]) != row.body:
        return 0  # it was written meanwhile: that write is pending, and brings the element in when it is completed
    name = (index.definition_id, row.item)
    before = connection.execute(SQL["entry"], name).fetchone() is not None
    if row.key is None:
        if before:
            connection.execute(SQL["delete_entry"], name)
        return -int(before)
    connection.execute(SQL["put_entry"], (*name, row.key, row.body))
    return int(not before)


def _store(connection: sqlite3.Connection, change: DocumentChange) -> None:
    """The event, the body and the message of a change."""
    place, row, message = change.place, change.row, change.message
    connection.execute(SQL["add_transaction"], _transaction_values(change.transaction))
    if change.clears:
        connection.execute(SQL["delete_rows"], (place.uri,))
    elif row is None:
        connection.execute(SQL["delete_row"], place)
    else:
        connection.execute(SQL["put_row"], (*place, *msgspec.structs.astuple(row)))
    if message is not None:
        answer = _encode(message).decode()
        connection.execute(SQL["put_message"], (place.uri, message.id, message.time_ms, answer))


def _store_head(connection: sqlite3.Connection, last: DocumentChange) -> None:
    """What is known about the document after the last of its changes."""
    head = last.head
    values = (head.revision, head.deleted, head.count, head.last_id, _encode(head.messages).decode(), head.view)
    connection.execute(SQL["put_head"], (last.place.uri, *values))


def _head(row: tuple[Any, ...]) -> DocumentHead:
    revision, deleted, count, last_id, messages, view, pending = row
    return DocumentHead(revision, bool(deleted), count, last_id, _counts(messages), pending, bool(view))


def _transaction(row: tuple[Any, ...]) -> DocumentTransaction:
    uri, uuid, revision, item, event, old_body, completed_ms, accepted = row
    return DocumentTransaction(uri, uuid, revision, item, event, old_body, completed_ms, bool(accepted))


def _transaction_values(one: DocumentTransaction) -> tuple[object, ...]:
    quantum = TransactionId.parse(one.id).quantum
    return (one.uri, one.uuid, one.revision, one.item, quantum, one.event, one.old_body, one.accepted, one.completed_ms)


def _index(row: tuple[Any, ...]) -> Index:
    index_id, sort_by, filter_by, status, *rest = row
    return Index(index_id, _sort_by(sort_by), filter_by, IndexStatus(status), *rest)
