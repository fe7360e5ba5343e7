"""Which bodies are to be deleted, and when: rows of the table `expiring`, by the hour of the instant.

A row is written before the body that it names, so none is missing; it is removed when the body is gone, or an hour
after its instant if the body has another one. The hours that have rows are noted before these, and forgotten when they
are long over and empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from everlog.cassandra.session import Session
from everlog.documents.paths import DocumentPlace, partition_of_uri
from everlog.documents.port import ExpiringRow

HOUR_MS = 3_600_000
PARTITIONS = 16
PAGE = 200
MAX_NOTED = 10_000


class CassandraExpiry:
    """By the session of the documents."""

    def __init__(self, session: Session, cql: dict[str, str]) -> None:
        self._session = session
        self._cql = cql
        self._noted: set[tuple[int, int]] = set()

    async def add(self, places: Sequence[tuple[DocumentPlace, int | None]]) -> None:
        """Name what is about to be written."""
        rows = [ExpiringRow(instant, place.uri, place.item) for place, instant in places if instant is not None]
        for hour in {_hour(row) for row in rows} - self._noted:
            await self._session.write(self._cql["note_expiring"], *hour)
            if len(self._noted) >= MAX_NOTED:
                self._noted.clear()
            self._noted.add(hour)
        await asyncio.gather(*[self._session.write(self._cql["add_expiring"], *_hour(row), *row) for row in rows])

    async def due(self, now_ms: int) -> AsyncIterator[list[ExpiringRow]]:
        hours = await self._session.fetch(self._cql["expiring_partitions"], now_ms // HOUR_MS)
        for hour, partition in hours:
            state, found = None, False
            while True:
                rows, state = await self._session.page(self._cql["expiring"], [hour, partition, now_ms], PAGE, state)
                if rows:
                    found = True
                    yield [ExpiringRow(*row) for row in rows]
                if state is None:
                    break
            if not found and (hour + 3) * HOUR_MS < now_ms:
                await self._session.write(self._cql["remove_expiring_partition"], hour, partition)
                self._noted.discard((hour, partition))

    async def remove(self, rows: Sequence[ExpiringRow]) -> None:
        await asyncio.gather(*[self._session.write(self._cql["remove_expiring"], *_hour(row), *row) for row in rows])


def _hour(row: ExpiringRow) -> tuple[int, int]:
    return row.expires_ms // HOUR_MS, partition_of_uri(row.uri) % PARTITIONS
