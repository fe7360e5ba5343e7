"""What views cannot show: rows of the table `view_unshown`, a partition for each view, by conditional writes alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everlog.cassandra.session import Session
from everlog.documents.unshown import UnshownElement, UnshownTable
from everlog.errors import Unreachable


class CassandraUnshown(UnshownTable):
    """By the session of the documents."""

    def __init__(self, session: Session, cql: dict[str, str]) -> None:
        self._session = session
        self._cql = cql

    async def _applied(self, name: str, *values: Any) -> bool:
        applied = await self._session.write_if(self._cql[name], *values)
        if applied is None:
            raise Unreachable("Cassandra does not say what became of an element that a view cannot show: try again")
        return applied

    async def find(self, view: str, source: str) -> UnshownElement | None:
        rows = await self._session.fetch(self._cql["unshown"], view, source)
        return UnshownElement(*rows[0]) if rows else None

    async def page(self, view: str, *, after: str, limit: int) -> Sequence[UnshownElement]:
        rows = await self._session.fetch(self._cql["unshown_page"], view, after, limit)
        return [UnshownElement(*row) for row in rows]

    async def count(self, view: str) -> int:
        found: int = (await self._session.fetch(self._cql["unshown_count"], view))[0][0]
        return found

    async def put(self, element: UnshownElement, before: UnshownElement | None) -> bool:
        values = msgspec.structs.astuple(element)
        if before is None:
            return await self._applied("add_unshown", *values)
        return await self._applied("replace_unshown", *values[2:], *values[:2], before.revision, before.attempts)

    async def remove(self, element: UnshownElement) -> None:
        await self._applied("remove_unshown", element.view, element.source, element.revision, element.attempts)

    async def clear(self, view: str) -> None:
        """One by one: what is written by conditional writes is removed by them."""
        while rows := await self.page(view, after="", limit=500):
            for row in rows:
                await self.remove(row)
