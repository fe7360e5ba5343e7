"""Does a view hold what its events add up to? The projection runs again from the beginning, into a copy beside it.

The live file is copied first, in one consistent state; the second run ends where that copy's offsets are. So the
projection may go on meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory

from everlog.errors import InvalidProjection, StorageFailed
from everlog.journal.parts import Parts
from everlog.projections.copies import Difference, copy_name, rename
from everlog.projections.lifecycle import Restart
from everlog.projections.offsets import Offset, Single, encode
from everlog.projections.port import OffsetStore
from everlog.projections.projection import Projection
from everlog.projections.runner import Runner
from everlog.projections.source import Delivery, Feed, Source
from everlog.projections.sqlite.offset_store import SqliteOffsetStore
from everlog.projections.sqlite.view_copies import quoted
from everlog.projections.tag_source import MAX_LAG
from everlog.sqlite.connection import translated

LOOK_SECONDS = 0.1

Counted = Callable[[int, int | None], None]
"""How many events were handled, and how many there are; None if the source cannot tell."""


async def verify(
    projection: Projection,
    store: SqliteOffsetStore,
    tables: Sequence[str],
    *,
    parts: Parts | None = None,
    told: Counted | None = None,
) -> list[Difference]:
    """Recount a view, and compare these tables of it. The handler runs again: it should write to its view only."""
    if not projection.shape.takes_view or projection.view is not None:
        raise InvalidProjection(f"{projection.name} does not fill tables of the store: there is nothing to compare")
    with TemporaryDirectory(prefix="everlog-verify-") as folder:
        before, again = Path(folder) / "before.db", Path(folder) / "again.db"
        await asyncio.to_thread(_copy, store.path, before)
        names = await _recount(projection, before, again, tables, parts, told)
        return await asyncio.to_thread(_compare, before, again, names)


def _copy(path: Path, target: Path) -> None:
    with translated(path), closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copied:
        source.backup(copied)


async def _recount(
    projection: Projection, before: Path, again: Path, tables: Sequence[str], parts: Parts | None, told: Counted | None
) -> dict[str, str]:
    """Run it again; the tables of the view as it is now, by the names that they have in the recount."""
    copied, fresh = SqliteOffsetStore(before), SqliteOffsetStore(again, synchronous="OFF")
    try:
        copies = await copied.copies(projection.name)
        renamed = copies.names(copies.current)
        names = {table: renamed.get(table.lower(), table) for table in tables}
        for table, name in names.items():
            rows = await copied.view().fetch("SELECT sql FROM sqlite_master WHERE name = ? AND type = 'table'", name)
            if not rows:
                raise InvalidProjection(f"there is no table {table!r} in {projection.name}'s store")
            await fresh.view().execute(rename(rows[0][0], {name.lower(): table}))
        current = copy_name(projection.name, copies.current)
        ends = {one.key: one.offset for one in await copied.known(current)}
        await count_again(projection, fresh, ends, parts, told)
        return names
    finally:
        await copied.close()
        await fresh.close()


async def count_again(
    projection: Projection,
    store: OffsetStore,
    ends: Mapping[str, Offset | None],
    parts: Parts | None,
    told: Counted | None = None,
) -> None:
    """Run a projection from its beginning up to these offsets, by key."""
    second = copy(projection)
    second.source, second.observers = UpTo(projection.source, ends), ()
    second.restart = Restart(max_restarts=0)
    total = None if told is None else await _all_events(projection.source, ends, parts)
    async with Runner([second], store=store, parts=parts) as runner:
        ended = asyncio.ensure_future(runner.ended())
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=LOOK_SECONDS)
                if told is not None:
                    told(sum(one.handled for one in runner.status()[projection.name].values()), total)
        finally:
            ended.cancel()
        failed = [one.error for one in runner.status()[projection.name].values() if one.state != "completed"]
    if failed:
        raise StorageFailed(f"{projection.name} could not be counted again: {failed[0]}")


async def _all_events(source: Source, ends: Mapping[str, Offset | None], parts: Parts | None) -> int | None:
    """How many events lie before these offsets."""
    feed = source.open(parts)
    try:
        found = 0
        for key, end in ends.items():
            whole, left = await feed.lag(key, None), await feed.lag(key, end)
            if whole is None or left is None or whole.events >= MAX_LAG:
                return None  # beyond that, nobody counts
            found += whole.events - left.events
        return found
    finally:
        await feed.close()


def _compare(before: Path, again: Path, names: Mapping[str, str]) -> list[Difference]:
    found: list[Difference] = []
    with translated(before), closing(sqlite3.connect(before)) as connection:
        connection.execute("ATTACH DATABASE ? AS again", (str(again),))
        for table, name in names.items():
            view, recount = f"main.{quoted(name)}", f"again.{quoted(table)}"
            columns = _columns(connection, view)
            (rows,) = connection.execute(f"SELECT count(*) FROM {view}").fetchone()
            missing, surplus = (
                connection.execute(
                    # Grouped, because a row may be there more than once.
                    f"SELECT count(*) FROM (SELECT *, count(*) FROM {one} GROUP BY {columns} "
                    f"EXCEPT SELECT *, count(*) FROM {other} GROUP BY {columns})"
                ).fetchone()[0]
                for one, other in ((recount, view), (view, recount))
            )
            found.append(Difference(table, rows, missing, surplus))
    return found


def _columns(connection: sqlite3.Connection, table: str) -> str:
    cursor = connection.execute(f"SELECT * FROM {table} LIMIT 0")
    return ", ".join(quoted(column[0]) for column in cursor.description)


class UpTo(Source):
    """A source that ends at these offsets, by key."""

    def __init__(self, source: Source, ends: Mapping[str, Offset | None]) -> None:
        self._source = source
        self._ends = ends

    def open(self, parts: Parts | None) -> Feed:
        return UpToFeed(self._source.open(parts), self._ends)


class UpToFeed(Feed):
    """Delivers up to the end of each key, or of each entry of its map."""

    def __init__(self, feed: Feed, ends: Mapping[str, Offset | None]) -> None:
        self._feed = feed
        self._ends = ends

    async def keys(self) -> Sequence[str]:
        return [key for key in await self._feed.keys() if self._ends.get(key) is not None]

    async def verify(self, key: str, delivery: Delivery) -> bool:
        return await self._feed.verify(key, delivery)

    async def read(self, key: str, stored: Offset | None) -> AsyncIterator[Sequence[Delivery]]:
        open_ends = _entries(self._ends[key])
        async for page in self._feed.read(key, stored):
            taken: list[Delivery] = []
            for delivery in page:
                for entry, offset in _entries(delivery.offset).items():
                    if entry in open_ends:
                        taken.append(delivery)
                        if encode(open_ends[entry]) == encode(offset):
                            del open_ends[entry]
            yield taken
            if not open_ends:
                return

    async def close(self) -> None:
        await self._feed.close()


def _entries(offset: Offset | None) -> dict[str, Single]:
    if offset is None:
        return {}
    return dict(offset) if isinstance(offset, Mapping) else {"": offset}
