"""Events by tag on Cassandra: the order plan, the watermark, and the views, written in batches by bucket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everlog.cassandra.session import CassandraRequest, Session, make_batch
from everlog.core.buckets import MAX_BUCKET_MS, Bucket
from everlog.core.head import Deletion, Topic
from everlog.core.plan import NOTHING, TagPlan, Watermark
from everlog.core.tag_names import slice_of, slice_tag
from everlog.core.timeuuid import TimeUuid
from everlog.core.values import MAX_SEQ_NR
from everlog.store.cassandra.batches import MAX_BYTES, MAX_ROWS, RowStatements, row_bytes
from everlog.store.cassandra.pinned import pin_setting
from everlog.store.cassandra.rows import persistence_id_of, progress_from, tag_row_from, tag_values
from everlog.store.port import KeyChange
from everlog.store.tag_port import TagEntry, TagProgress, TagRow, TagSummary, TagTables

# The last columns of `put_tagged`, which a row may lack.
OPTIONAL = 9
PAGE = 5_000

_encode = msgspec.json.Encoder().encode
_plan = msgspec.json.Decoder(TagPlan).decode
_positions = msgspec.json.Decoder(dict[str, int]).decode


class TagViews:
    """Writes views. Every row carries the time `base + offset` of its own record, as its event's row does."""

    def __init__(self, session: Session, cql: Mapping[str, str]) -> None:
        self._session = session
        self._cql = cql
        self._put = RowStatements(session, cql["put_tagged"], OPTIONAL)

    async def write(self, topic: Topic, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        """The rows of a batch, their buckets, and how far each journal has got; which journals failed."""
        entries = [entry for key in changes for entry in key.tagged]
        untagged = [entry for key in changes for entry in key.untagged]
        if not entries and not untagged:
            return {}
        failed, *_ = await asyncio.gather(
            self.put(entries, lambda _: topic.base),
            self._note_progress(topic.base, [*entries, *untagged]),
            self._note_removed(topic.base, changes),
        )
        return failed

    async def put(self, entries: Sequence[TagEntry], base: Callable[[TagRow], int]) -> dict[str, Exception]:
        """Rows, one batch for what goes into one partition; `base`: their write times, but for their offsets."""
        await self._put.prepare()
        batches = list(_batches(entries))
        requests = ((str(nr), self._bind(batch, base), self._put.cql) for nr, batch in enumerate(batches))
        refused, _ = await asyncio.gather(
            self._session.run_all(requests, len(batches)),
            self._note_buckets({(entry.tag, entry.bucket) for entry in entries}),
        )
        return {entry.row.id: error for nr, error in refused.items() for entry in batches[int(nr)]}

    def _bind(self, entries: Sequence[TagEntry], base: Callable[[TagRow], int]) -> CassandraRequest:
        statements = [self._put.bind(*tag_values(base(entry.row), entry), whole=False) for entry in entries]
        return statements[0] if len(statements) == 1 else make_batch(statements)

    async def _note_buckets(self, buckets: Iterable[tuple[str, Bucket]]) -> None:
        await self._run(
            "put_bucket",
            [[tag, bucket.start, bucket.size, shard_number(bucket)] for tag, bucket in buckets],
        )

    async def _note_progress(self, base: int, entries: Sequence[TagEntry]) -> None:
        last: dict[tuple[str, str], TagRow] = {}
        for entry in sorted(entries, key=lambda entry: entry.row.number):
            last[persistence_id_of(entry.row.topic, entry.row.id), entry.tag] = entry.row
        await self._run(
            "put_progress",
            [
                [*key, row.event.seq_nr, row.number, str(row.offset), base + row.event.offset]
                for key, row in last.items()
            ],
        )

    async def _note_removed(self, base: int, changes: Sequence[KeyChange]) -> None:
        values = []
        for key in changes:
            lowest: dict[str, int] = {}
            for tag, _, row in key.untagged:
                lowest[tag] = max(lowest.get(tag, 0), row.number + 1)
            for tag, number in lowest.items():
                persistence_id = persistence_id_of(key.untagged[0].row.topic, key.id)
                values.append([persistence_id, tag, number, base + key.garbage[-1].offset])
        await self._run("raise_lowest", values)

    async def remove_segment(self, topic: Topic, journal_id: str, segment: int, deletion: Deletion) -> None:
        """Take a segment's events, as far as the deletion reaches, out of all views: numbers first, then rows."""
        to, place = MAX_SEQ_NR if deletion.to is None else deletion.to, (journal_id, topic.name)
        rows = await self._session.fetch(self._cql["tagged_rows_to_delete"], *place, segment, to)
        time, persistence_id = topic.base + deletion.offset, persistence_id_of(topic.name, journal_id)
        lowest: dict[str, int] = {}
        deletes: list[list[Any]] = []
        for tags, ordering, offset in rows:
            if ordering is None or offset >= deletion.offset:
                continue
            for tag in (*(tags or ()), slice_tag(slice_of(journal_id))):
                async for key, number, written in self._find(tag, TimeUuid.parse(ordering), persistence_id):
                    # A rebuild may have written it later than the deletion was decided.
                    deletes.append([max(time, written), *key, number])
                    lowest[tag] = max(lowest.get(tag, 0), number + 1)
        await self._run("raise_lowest", [[persistence_id, tag, number, time] for tag, number in lowest.items()])
        await self._run("delete_tagged", deletes)

    async def _find(self, tag: str, offset: TimeUuid, persistence_id: str) -> AsyncIterator[tuple[list[Any], int, int]]:
        """Where a tag holds this event: the key, its number, and when it was written."""
        for bucket in await self.buckets(tag, offset.ms):
            if bucket.start <= offset.ms:
                key = [bucket.stored_tag(tag), bucket.start, str(offset), persistence_id]
                for number, written in await self._session.fetch(self._cql["tagged_keys"], *key):
                    yield key, number, written

    async def buckets(self, tag: str, since_ms: int) -> list[Bucket]:
        rows = await self._session.fetch(self._cql["buckets"], tag, since_ms - MAX_BUCKET_MS)
        return [
            Bucket(start, size, None if shard < 0 else shard) for start, size, shard in rows if start + size > since_ms
        ]

    async def remove(self, tag: str, bucket: Bucket, rows: Sequence[TagRow]) -> None:
        """Each row at the time at which it was written: a rebuild, which comes later, writes it again."""
        deletes: list[list[Any]] = []
        for row in rows:
            persistence_id = persistence_id_of(row.topic, row.id)
            key = [bucket.stored_tag(tag), bucket.start, str(row.offset), persistence_id]
            for number, written in await self._session.fetch(self._cql["tagged_keys"], *key):
                deletes.append([written, *key, number])
        await self._run("delete_tagged", deletes)

    async def find(self, tag: str, row: TagRow) -> list[tuple[Bucket, int]]:
        found = []
        persistence_id = persistence_id_of(row.topic, row.id)
        for bucket in await self.buckets(tag, row.offset.ms):
            if bucket.start <= row.offset.ms:
                key = [bucket.stored_tag(tag), bucket.start, str(row.offset), persistence_id]
                found += [(bucket, nr) for nr, _ in await self._session.fetch(self._cql["tagged_keys"], *key)]
        return found

    async def note_progress(self, entries: Sequence[TagEntry], bases: Mapping[str, int]) -> None:
        """After a rebuild: just above the time at which it may have been forgotten."""
        for topic in {entry.row.topic for entry in entries}:
            own = [entry for entry in entries if entry.row.topic == topic]
            await self._note_progress(bases[topic] + 1, own)

    async def forget_progress(self, tag: str, journals: Sequence[tuple[str, str]]) -> None:
        """At the time at which it was written, so that the next event's counts again."""
        deletes: list[list[Any]] = []
        for topic, journal_id in journals:
            persistence_id = persistence_id_of(topic, journal_id)
            rows = await self._session.fetch(self._cql["progress_time"], persistence_id, tag)
            deletes += [[max(time or 0 for time in times), persistence_id, tag] for times in rows]
        await self._run("delete_progress", deletes)

    async def forget(self, tag: str, buckets: Sequence[Bucket]) -> None:
        values = [[tag, bucket.start, bucket.size, shard_number(bucket)] for bucket in buckets]
        await self._run("delete_bucket", values)

    async def _run(self, name: str, values: Sequence[list[Any]]) -> None:
        if not values:
            return
        cql = self._cql[name]
        prepared = await self._session.prepare(cql)
        requests = ((str(nr), prepared.bind(bound), cql) for nr, bound in enumerate(values))
        for error in (await self._session.run_all(requests, len(values))).values():
            raise error


class CassandraTags(TagTables):
    """Reads and writes through a session."""

    def __init__(
        self,
        session: Session,
        cql: Mapping[str, str],
        views: TagViews,
        pinned: Callable[[str], Awaitable[Topic | None]],
    ) -> None:
        self._session = session
        self._cql = cql
        self._views = views
        self._pinned = pinned

    async def settings(self, prefix: str) -> dict[str, str]:
        rows = await self._session.fetch(self._cql["settings"])
        return {key: value for key, value in rows if key.startswith(prefix)}

    async def setting(self, key: str) -> str | None:
        rows = await self._session.fetch(self._cql["setting"], key)
        return str(rows[0][0]) if rows else None

    async def pin(self, key: str, value: str, now_ms: int) -> str:
        return await pin_setting(self._session, self._cql, key, value, now_ms)

    async def plans(self, first: int) -> list[TagPlan]:
        rows = await self._session.fetch(self._cql["plans"], first, serial=True)
        return [_plan(plan) for (plan,) in rows if plan is not None]

    async def add_plan(self, plan: TagPlan) -> bool:
        before = plan.nr - 1 or None
        values = (plan.nr, _encode(plan).decode(), plan.nr, before)
        return bool(await self._session.write_if(self._cql["add_plan"], *values))

    async def drop_plans(self, below: int) -> None:
        await self._session.write(self._cql["drop_plans"], below)

    async def watermark(self) -> Watermark:
        rows = await self._session.fetch(self._cql["watermark"])
        return Watermark(rows[0][0], rows[0][1], _positions(rows[0][2])) if rows else NOTHING

    async def publish(self, watermark: Watermark) -> None:
        values = (watermark.nr, watermark.tick, _encode(watermark.positions).decode())
        await self._session.write(self._cql["put_watermark"], *values, watermark.nr)

    async def buckets(self, tag: str, since_ms: int) -> list[Bucket]:
        return await self._views.buckets(tag, since_ms)

    async def rows(self, tag: str, bucket: Bucket, *, after: TimeUuid, upto: TimeUuid, limit: int) -> list[TagRow]:
        place = (bucket.stored_tag(tag), bucket.start)
        rows = await self._session.fetch(self._cql["tagged"], *place, _bound(after), _bound(upto), limit)
        return list(map(tag_row_from, rows))

    async def summaries(self) -> AsyncIterator[TagSummary]:
        """All of `tag_write_progress` is read: one row per journal and tag."""
        found: dict[str, TagSummary] = {}
        async for rows in self._session.pages(self._cql["all_progress"], page=PAGE):
            for tag, *row in rows:
                progress = progress_from(tuple(row))
                one = TagSummary(tag, progress.events, 1, progress.offset)
                found[tag] = found[tag].and_also(one) if tag in found else one
        for tag in sorted(found):
            yield found[tag]

    async def progress(self, topic: str, journal_id: str) -> dict[str, TagProgress]:
        rows = await self._session.fetch(self._cql["progress"], persistence_id_of(topic, journal_id))
        return {tag: progress_from(tuple(row)) for tag, *row in rows}

    async def put(self, entries: Sequence[TagEntry]) -> None:
        """At the present time, which is above that of whatever removed them."""
        now = time.time_ns() // 1000
        for error in (await self._views.put(entries, lambda row: now - row.event.offset)).values():
            raise error
        pinned = {topic: await self._pinned(topic) for topic in {entry.row.topic for entry in entries}}
        await self._views.note_progress(entries, {name: topic.base for name, topic in pinned.items() if topic})

    async def find(self, tag: str, row: TagRow) -> list[tuple[Bucket, int]]:
        return await self._views.find(tag, row)

    async def forget_progress(self, tag: str, journals: Sequence[tuple[str, str]]) -> None:
        await self._views.forget_progress(tag, journals)

    async def remove(self, tag: str, bucket: Bucket, rows: Sequence[TagRow]) -> None:
        await self._views.remove(tag, bucket, rows)

    async def forget(self, tag: str, buckets: Sequence[Bucket]) -> None:
        await self._views.forget(tag, buckets)


def _batches(entries: Sequence[TagEntry]) -> Iterator[list[TagEntry]]:
    """By the partition that they go into, in order; bounded in rows and bytes."""
    parts: dict[tuple[str, int], list[TagEntry]] = {}
    for entry in entries:
        parts.setdefault((entry.bucket.stored_tag(entry.tag), entry.bucket.start), []).append(entry)
    for part in parts.values():
        batch: list[TagEntry] = []
        size = 0
        for entry in part:
            row_size = row_bytes(entry.row.event)
            if batch and (len(batch) >= MAX_ROWS or size + row_size > MAX_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(entry)
            size += row_size
        yield batch


def shard_number(bucket: Bucket) -> int:
    return -1 if bucket.shard is None else bucket.shard


def _bound(offset: TimeUuid) -> str:
    """A bound as the server takes it: ticks below zero are those before all."""
    return str(offset if offset.tick >= 0 else TimeUuid(0, offset.rank))
