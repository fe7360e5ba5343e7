"""The tables of events by tag on Cassandra: the order plan, the watermark, and the views to read."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import msgspec

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.core.buckets import Bucket
from everlog.core.head import Topic
from everlog.core.plan import NOTHING, TagPlan, Watermark
from everlog.core.timeuuid import TimeUuid
from everlog.errors import Unreachable
from everlog.store.cassandra.rows import persistence_id, progress_from, tag_row_from
from everlog.store.cassandra.tag_views import Views
from everlog.store.tag_port import TagEntry, TagProgress, TagRow, TagSummary, TagTables

MAX_TRIES = 20
PAGE = 5_000

_encode = msgspec.json.Encoder().encode
_plan = msgspec.json.Decoder(TagPlan).decode
_positions = msgspec.json.Decoder(dict[str, int]).decode


class CassandraTags(TagTables):
    """Reads and writes through a session."""

    def __init__(
        self,
        session: Session,
        cql: Mapping[str, str],
        views: Views,
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
        for _ in range(MAX_TRIES):
            rows = await self._session.fetch(self._cql["setting"], key, serial=True)
            if rows:
                return str(rows[0][0])
            await self._session.write_if(self._cql["pin"], key, value, timestamp(now_ms))
        raise Unreachable(f"Cassandra does not say whether {key} is pinned: try again")

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
        rows = await self._session.fetch(self._cql["progress"], persistence_id(topic, journal_id))
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


def _bound(offset: TimeUuid) -> str:
    """A bound as the server takes it: ticks below zero are those before all."""
    return str(offset if offset.tick >= 0 else TimeUuid(0, offset.rank))
