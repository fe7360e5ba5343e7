"""The tables of events by tag in the embedded store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from everlog.core.buckets import MAX_BUCKET_MS, Bucket
from everlog.core.plan import NOTHING, TagPlan, Watermark
from everlog.core.tag_names import slice_of, slice_tag
from everlog.core.timeuuid import TimeUuid
from everlog.sqlite.connection import translated
from everlog.store.sqlite.rows import SQL, tag_row_from, tag_values
from everlog.store.tag_port import TagEntry, TagProgress, TagRow, TagSummary, TagTables

SUMMARIES = 100

TagWriter = Callable[[Callable[[sqlite3.Connection], Any]], Coroutine[Any, Any, Any]]

_encode = msgspec.json.Encoder().encode
_plan = msgspec.json.Decoder(TagPlan).decode
_positions = msgspec.json.Decoder(dict[str, int]).decode
_tags = msgspec.json.Decoder(list[str]).decode


class SqliteTags(TagTables):
    """Reads where it is called, writes through the store: in a thread, one transaction at a time."""

    def __init__(self, path: Path, reader: sqlite3.Connection, write: TagWriter) -> None:
        self._path = path
        self._reader = reader
        self._write = write

    def _read(self, name: str, *parameters: object) -> list[tuple[Any, ...]]:
        with translated(self._path):
            return self._reader.execute(SQL[name], parameters).fetchall()

    async def settings(self, prefix: str) -> dict[str, str]:
        return dict(self._read("tag_settings", prefix, prefix + "\U0010ffff"))

    async def pin(self, key: str, value: str, now_ms: int) -> str:
        found = self._read("setting", key)
        if not found:
            await self._write(lambda connection: connection.execute(SQL["pin"], (key, value, now_ms)).rowcount)
            found = self._read("setting", key)
        return str(found[0][0])

    async def plans(self, first: int) -> list[TagPlan]:
        return [_plan(plan) for (plan,) in self._read("plans", first)]

    async def add_plan(self, plan: TagPlan) -> bool:
        def add(connection: sqlite3.Connection) -> bool:
            (last,) = connection.execute(SQL["last_plan"]).fetchone()
            if (last or 0) != plan.nr - 1:
                return False
            connection.execute(SQL["add_plan"], (plan.nr, _encode(plan).decode()))
            return True

        return bool(await self._write(add))

    async def drop_plans(self, below: int) -> None:
        await self._write(lambda connection: connection.execute(SQL["drop_plans"], (below,)).rowcount)

    async def watermark(self) -> Watermark:
        rows = self._read("watermark")
        return Watermark(rows[0][0], rows[0][1], _positions(rows[0][2])) if rows else NOTHING

    async def publish(self, watermark: Watermark) -> None:
        values = (watermark.nr, watermark.tick, _encode(watermark.positions).decode())
        await self._write(lambda connection: connection.execute(SQL["put_watermark"], values).rowcount)

    async def buckets(self, tag: str, since_ms: int) -> list[Bucket]:
        return [Bucket(*row) for row in self._read("buckets", tag, since_ms, MAX_BUCKET_MS)]

    async def rows(self, tag: str, bucket: Bucket, *, after: TimeUuid, upto: TimeUuid, limit: int) -> list[TagRow]:
        await asyncio.sleep(0)  # a page takes about a millisecond: let others run between pages
        return list(map(tag_row_from, self._read("tagged", bucket.stored_tag(tag), bucket.start, *after, *upto, limit)))

    async def summaries(self) -> AsyncIterator[TagSummary]:
        last = ""
        while rows := self._read("tag_summaries", last, SUMMARIES):
            for tag, events, journals, tick, rank in rows:
                yield TagSummary(tag, events, journals, TimeUuid(tick, rank))
            last = rows[-1][0]

    async def progress(self, topic: str, journal_id: str) -> dict[str, TagProgress]:
        rows = self._read("progress", topic, journal_id)
        return {
            tag: TagProgress(seq_nr, number, TimeUuid(tick, rank), lowest)
            for tag, seq_nr, number, tick, rank, lowest in rows
        }

    async def find(self, tag: str, row: TagRow) -> list[tuple[Bucket, int]]:
        found = []
        for bucket in await self.buckets(tag, row.offset.ms):
            if bucket.start <= row.offset.ms:
                place = (bucket.stored_tag(tag), bucket.start, *row.offset)
                found += [(bucket, number) for (number,) in self._read("tagged_number", *place)]
        return found

    async def forget_progress(self, tag: str, journals: Sequence[tuple[str, str]]) -> None:
        values = [(topic, journal_id, tag) for topic, journal_id in journals]
        await self._write(lambda connection: connection.executemany(SQL["delete_progress"], values).rowcount)

    async def put(self, entries: Sequence[TagEntry]) -> None:
        await self._write(lambda connection: put_tagged(connection, entries))

    async def remove(self, tag: str, bucket: Bucket, rows: Sequence[TagRow]) -> None:
        values = [(bucket.stored_tag(tag), bucket.start, *row.offset) for row in rows]

        def remove(connection: sqlite3.Connection) -> None:
            for value in values:
                connection.execute(SQL["delete_tagged"], value).fetchall()

        await self._write(remove)

    async def forget(self, tag: str, buckets: Sequence[Bucket]) -> None:
        values = [(tag, bucket.start, bucket.size, _shard(bucket)) for bucket in buckets]
        await self._write(lambda connection: connection.executemany(SQL["delete_bucket"], values).rowcount)


def put_tagged(connection: sqlite3.Connection, entries: Sequence[TagEntry], untagged: Sequence[TagEntry] = ()) -> None:
    """Rows of views, in the order of their keys; their buckets; and how far each journal has got."""
    ordered = sorted(entries, key=_by_key)
    connection.executemany(SQL["put_tagged"], list(map(tag_values, ordered)))
    buckets = {(entry.tag, entry.bucket) for entry in entries}
    connection.executemany(SQL["put_bucket"], [(tag, *found[:2], _shard(found)) for tag, found in buckets])
    numbered = sorted([*entries, *untagged], key=_by_key) if untagged else ordered
    last = {(entry.row.topic, entry.row.id, entry.tag): entry.row for entry in numbered}
    progress = [(*key, row.event.seq_nr, row.number, *row.offset) for key, row in last.items()]
    connection.executemany(SQL["put_progress"], progress)
    lowest = [(row.number + 1, row.topic, row.id, tag, row.number + 1) for tag, _, row in untagged]
    connection.executemany(SQL["raise_lowest"], lowest)


def _by_key(entry: TagEntry) -> tuple[str, TimeUuid]:
    return entry.tag, entry.row.offset


def delete_tagged(connection: sqlite3.Connection, topic: str, journal_id: str, bounds: tuple[int, ...]) -> None:
    """Remove from the views what is about to be removed from the journal."""
    built_in = slice_tag(slice_of(journal_id))
    lowest: dict[str, int] = {}
    for tags, ordering in connection.execute(SQL["tagged_rows_to_delete"], (journal_id, topic, *bounds)).fetchall():
        offset = TimeUuid.parse(ordering)
        for tag in (*(_tags(tags) if tags else ()), built_in):
            for number in _delete_row(connection, tag, offset):
                lowest[tag] = max(lowest.get(tag, 0), number + 1)
    values = [(number, topic, journal_id, tag, number) for tag, number in lowest.items()]
    connection.executemany(SQL["raise_lowest"], values)


def _delete_row(connection: sqlite3.Connection, tag: str, offset: TimeUuid) -> list[int]:
    """Remove one event from one tag; its number. The index of buckets says where it may be."""
    found: list[int] = []
    for row in connection.execute(SQL["buckets"], (tag, offset.ms, MAX_BUCKET_MS)).fetchall():
        bucket = Bucket(*row)
        if bucket.start <= offset.ms:
            place = (bucket.stored_tag(tag), bucket.start, *offset)
            found += [number for (number,) in connection.execute(SQL["delete_tagged"], place).fetchall()]
    return found


def _shard(bucket: Bucket) -> int:
    return -1 if bucket.shard is None else bucket.shard
