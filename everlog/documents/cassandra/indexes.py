"""Indexes on Cassandra: entries whose write times come from revisions, so that any order of updates ends the same.

What was written at revision r is inserted at 2 r + 1; what revision r replaced is removed at 2 r, which is after every
insertion of it and before that of its successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from everlog.cassandra.session import CassandraRow, Session
from everlog.documents.indexes import Index, IndexSortItem, IndexStatus
from everlog.documents.model import DocumentTransaction
from everlog.documents.port import Locate, PendingIndex
from everlog.errors import Unreachable

_sort_by = msgspec.json.Decoder(tuple[IndexSortItem, ...]).decode
_encode = msgspec.json.Encoder().encode

LIVE = [int(IndexStatus.INDEXING), int(IndexStatus.READY), int(IndexStatus.FAILED)]


class Indexes:
    """Definitions and entries."""

    def __init__(self, session: Session, cql: dict[str, str]) -> None:
        self._session = session
        self._cql = cql

    async def _applied(self, name: str, *values: Any) -> bool:
        applied = await self._session.write_if(self._cql[name], *values)
        if applied is None:
            raise Unreachable("Cassandra does not say what became of a change of an index: look at it, and try again")
        return applied

    async def all(self, uri: str) -> list[Index]:
        rows = await self._session.fetch(self._cql["indexes"], uri)
        return [await self._index(row) for row in sorted(rows, key=lambda row: str(row[0]).encode())]

    async def _index(self, row: CassandraRow) -> Index:
        index_id, sort_by, filter_by, status, definition_id, built_to, reason, since = row
        found = await self._session.fetch(self._cql["index_revision"], definition_id)
        revision = found[0][0] if found and found[0][0] is not None else 0
        return Index(
            index_id,
            _sort_by(sort_by),
            filter_by,
            IndexStatus(status),
            definition_id,
            built_to or "",
            revision,
            None,
            reason,
            since,
        )

    async def create(self, uri: str, index: Index) -> bool:
        """Noted as pending first: a definition without a note would never be built. A failed one is not."""
        if index.status is not IndexStatus.FAILED:
            await self._session.write(self._cql["note_index"], uri, index.index_id, index.definition_id)
        values = (uri, index.index_id, _encode(index.sort_by).decode(), index.filter_by, int(index.status))
        made = await self._applied("create_index", *values, index.definition_id, index.reason, index.since)
        if not made:
            await self._session.write(self._cql["forget_index"], uri, index.index_id, index.definition_id)
        return made

    async def mark(self, uri: str, index: Index, status: IndexStatus, reason: str | None) -> bool:
        if status is IndexStatus.DELETING:
            await self._session.write(self._cql["note_index"], uri, index.index_id, index.definition_id)
        before = [one for one in LIVE if one != status]
        return await self._applied("mark_index", int(status), reason, uri, index.index_id, index.definition_id, before)

    async def build(self, uri: str, index: Index, locate: Locate, *, limit: int, revision: int) -> bool:
        """`revision`: of the collection, read before its last elements are."""
        rows = await self._session.fetch(self._cql["index"], uri, index.index_id)
        current = await self._index(rows[0]) if rows else None
        if current is None or current.definition_id != index.definition_id:
            return True
        if current.status is not IndexStatus.INDEXING:
            await self._session.write(self._cql["forget_index"], uri, index.index_id, index.definition_id)
            return True
        elements = await self._session.fetch(self._cql["rows_after"], uri, current.built_to, limit)
        await self._put_all(index, elements, locate)
        if elements:
            await self._applied("built", elements[-1][0], uri, index.index_id, index.definition_id)
            return False
        await self.finish(uri, index, revision)
        return True

    async def build_part(
        self, uri: str, index: Index, locate: Locate, *, after: str, to: str | None, limit: int
    ) -> str | None:
        """Entries carry the revisions of their elements: it does not matter which task writes them, and when."""
        name, bounds = ("rows_after", [after]) if to is None else ("rows_between", [after, to])
        elements = await self._session.fetch(self._cql[name], uri, *bounds, limit)
        await self._put_all(index, elements, locate)
        return str(elements[-1][0]) if elements else None

    async def finish(self, uri: str, index: Index, revision: int) -> bool:
        await self._note_revision(index, revision)
        ready = (int(IndexStatus.READY), None, uri, index.index_id, index.definition_id)
        done = await self._applied("mark_index", *ready, [int(IndexStatus.INDEXING)])
        await self._session.write(self._cql["forget_index"], uri, index.index_id, index.definition_id)
        return done

    async def _put_all(self, index: Index, elements: Sequence[CassandraRow], locate: Locate) -> None:
        keys = await locate(index, [body for _, body, _ in elements])
        await asyncio.gather(
            *[self._put(index, body, written, key) for (_, body, written), key in zip(elements, keys, strict=True)]
        )

    async def _put(self, index: Index, body: str, revision: int, key: bytes | None) -> None:
        if key is not None:
            await self._session.write(self._cql["put_entry"], index.definition_id, key, body, 2 * revision + 1)

    async def _note_revision(self, index: Index, revision: int) -> None:
        if revision:
            await self._session.write(self._cql["indexed"], revision, revision, index.definition_id)

    async def update(
        self, uri: str, index: Index, transactions: Sequence[DocumentTransaction], locate: Locate, revision: int
    ) -> None:
        """Remove what these writes replaced, insert what the elements are now."""
        rows = await self._session.fetch(self._cql["index"], uri, index.index_id)
        if not rows or rows[0][4] != index.definition_id:
            return
        for item in sorted({one.item for one in transactions if one.item}):
            found = await self._session.fetch(self._cql["row"], uri, item)
            if found:
                (key,) = await locate(index, [found[0][0]])
                await self._put(index, found[0][0], found[0][1], key)
        for one in transactions:
            if one.old_body is None or not one.item:
                continue
            (key,) = await locate(index, [one.old_body])
            if key is not None:
                await self._session.write(self._cql["delete_entry"], 2 * one.revision, index.definition_id, key)
        await self._note_revision(index, revision)

    async def drop(self, uri: str, index: Index) -> None:
        await self._session.write(self._cql["delete_entries"], index.definition_id)
        await self._applied("delete_index", uri, index.index_id, index.definition_id)
        await self._session.write(self._cql["forget_index"], uri, index.index_id, index.definition_id)

    async def pending(self) -> list[PendingIndex]:
        """What is noted and indeed being built or deleted."""
        found: list[PendingIndex] = []
        for uri, index_id, definition_id in await self._session.fetch(self._cql["pending_indexes"]):
            rows = await self._session.fetch(self._cql["index"], uri, index_id)
            if rows and rows[0][4] == definition_id:
                index = await self._index(rows[0])
                if index.status in (IndexStatus.INDEXING, IndexStatus.DELETING):
                    found.append(PendingIndex(uri, index))
        return found
