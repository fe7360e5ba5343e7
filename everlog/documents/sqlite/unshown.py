"""What views cannot show: rows of the table `view_unshown`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from everlog.documents.unshown import UnshownElement, UnshownTable

Read = Callable[..., list[tuple[Any, ...]]]
Change = Callable[..., Awaitable[int]]


class SqliteUnshown(UnshownTable):
    """By the connections of the documents: `read` and `change` run a named statement."""

    def __init__(self, read: Read, change: Change) -> None:
        self._read = read
        self._change = change

    async def find(self, view: str, source: str) -> UnshownElement | None:
        rows = self._read("unshown", view, source)
        return UnshownElement(*rows[0]) if rows else None

    async def page(self, view: str, *, after: str, limit: int) -> Sequence[UnshownElement]:
        return [UnshownElement(*row) for row in self._read("unshown_page", view, after, limit)]

    async def count(self, view: str) -> int:
        found: int = self._read("unshown_count", view)[0][0]
        return found

    async def put(self, element: UnshownElement, before: UnshownElement | None) -> bool:
        values = msgspec.structs.astuple(element)
        if before is None:
            return await self._change("add_unshown", *values) > 0
        old = (before.revision, before.attempts)
        return await self._change("replace_unshown", *values[2:], *values[:2], *old) > 0

    async def remove(self, element: UnshownElement) -> None:
        await self._change("remove_unshown", element.view, element.source, element.revision, element.attempts)

    async def clear(self, view: str) -> None:
        await self._change("clear_unshown", view)
