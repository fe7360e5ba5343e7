"""The outbox on Cassandra: rows by minute and partition, and which of them a document still waits for.

The static map `pending` (revision → uuid), written by the same conditional batch as the content, says which rows were
accepted; `completed_to` says which of these are done. The rows only carry the events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec

from everlog.cassandra.session import Session
from everlog.documents.ids import TransactionId
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import partition_of_uri
from everlog.documents.port import PendingWrite, WaitingTransaction

ROWS_AT_ONCE = 64

_pending = msgspec.json.Decoder(dict[int, str]).decode


def open_transactions(pending: str | None, completed_to: int | None) -> dict[int, str]:
    """Revision and uuid of what was accepted and is not completed, by revision."""
    found = _pending(pending) if pending else {}
    return {revision: found[revision] for revision in sorted(found) if revision > (completed_to or 0)}


class Outbox:
    """Rows of the table `transaction`."""

    def __init__(self, session: Session, cql: dict[str, str], *, ttl_s: int) -> None:
        self._session = session
        self._cql = cql
        self._ttl_s = ttl_s
        self._noted: set[tuple[int, int]] = set()

    async def add(self, one: DocumentTransaction) -> None:
        """Store a row; before that, note that its partition of the minute has some."""
        place = _place(one.uri, one.uuid, one.revision)
        if place not in self._noted:
            await self._session.write(self._cql["note_partition"], *place)
            self._noted = {known for known in self._noted if known[0] >= place[0] - 1} | {place}
        values = (one.uri, one.uuid, one.revision, one.item, one.event, one.old_body)
        await self._session.write(self._cql["add_transaction"], *place, *values)

    async def remove(self, one: DocumentTransaction) -> None:
        """A row whose write surely did not happen."""
        await self._session.write(
            self._cql["delete_transaction"], *_place(one.uri, one.uuid, one.revision), one.uri, one.uuid
        )

    async def get(self, uri: str, uuid: str, revision: int) -> DocumentTransaction | None:
        rows = await self._session.fetch(self._cql["transaction"], *_place(uri, uuid, revision), uri, uuid)
        if not rows:
            return None
        found, item, event, old_body, completed_ms = rows[0]
        return DocumentTransaction(uri, uuid, found, item, event, old_body, completed_ms)

    async def get_all(self, uri: str, wanted: Sequence[tuple[int, str]]) -> list[DocumentTransaction]:
        """Rows by revision and uuid, in this order."""
        rows = await asyncio.gather(*[self.get(uri, uuid, revision) for revision, uuid in wanted])
        return [row for row in rows if row is not None]

    async def writes(self, uri: str, wanted: Sequence[tuple[int, str]]) -> list[PendingWrite]:
        """What rows are about. Only that of a whole collection is read with its event."""
        found: list[PendingWrite] = []
        for at in range(0, len(wanted), ROWS_AT_ONCE):
            found += await asyncio.gather(*[self._write(uri, *one) for one in wanted[at : at + ROWS_AT_ONCE]])
        return found

    async def _write(self, uri: str, revision: int, uuid: str) -> PendingWrite:
        rows = await self._session.fetch(self._cql["transaction_item"], *_place(uri, uuid, revision), uri, uuid)
        item = rows[0][0] if rows else ""
        whole = None if item else await self.get(uri, uuid, revision)
        return PendingWrite(revision, item, whole is not None and whole.ends_collection)

    async def complete(self, transactions: Sequence[DocumentTransaction], now_ms: int) -> None:
        """The whole row is written again, with an end."""
        await asyncio.gather(*[self._complete(one, now_ms) for one in transactions])

    async def _complete(self, one: DocumentTransaction, now_ms: int) -> None:
        values = (one.uri, one.uuid, one.revision, one.item, one.event, one.old_body, now_ms, self._ttl_s)
        await self._session.write(self._cql["complete"], *_place(one.uri, one.uuid, one.revision), *values)

    async def incomplete(
        self, first: int, last: int, wanted: Collection[int] | None = None
    ) -> AsyncIterator[list[WaitingTransaction]]:
        """Rows of these minutes that are not completed."""
        for quantum in range(first, last + 1):
            noted = [row[0] for row in await self._session.fetch(self._cql["partitions"], quantum)]
            partitions = noted if wanted is None else [one for one in noted if one in wanted]
            for at in range(0, len(partitions), ROWS_AT_ONCE):
                pages = await asyncio.gather(
                    *[self._incomplete(quantum, partition) for partition in partitions[at : at + ROWS_AT_ONCE]]
                )
                found = [one for page in pages for one in page]
                if found:
                    yield found

    async def _incomplete(self, quantum: int, partition: int) -> list[WaitingTransaction]:
        rows: list[Any] = await self._session.fetch(self._cql["incomplete"], quantum, partition)
        return [
            WaitingTransaction(uri, uuid, revision)
            for uri, uuid, revision, completed_ms in rows
            if completed_ms is None
        ]


def _place(uri: str, uuid: str, revision: int) -> tuple[int, int]:
    """Minute and partition: of the uuid and the uri alone, so that the row is found again."""
    return TransactionId(uri, UUID(uuid), revision).quantum, partition_of_uri(uri)
