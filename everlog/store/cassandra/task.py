"""A chunk's writes for one log partition.

Nothing here is a transaction. Every write carries the time `base + offset` of the record that caused it, so a repeated
or late one changes nothing, and the order of the calls keeps what readers see whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from everlog.cassandra.session import CassandraRequest, Session
from everlog.core.change import Quarantined
from everlog.core.head import Deletion, Head, Topic
from everlog.core.record import record_from
from everlog.errors import Refused
from everlog.store.cassandra.batches import RowStatements, row_requests
from everlog.store.cassandra.expiry import ExpiryTable, hints_of
from everlog.store.cassandra.heads import HeadTable
from everlog.store.cassandra.rows import rejected_values, waiting_values
from everlog.store.cassandra.segments import MIN_GAP, Segments, gaps_of
from everlog.store.cassandra.tag_tables import TagViews
from everlog.store.cassandra.verdicts import VerdictTable
from everlog.store.port import MAX_REJECTED, KeyChange, StoreTask

CLEANERS = 64
DELETES_AT_ONCE = 64


class CassandraTask(StoreTask):
    """Writes through a session."""

    def __init__(
        self,
        session: Session,
        cql: Mapping[str, str],
        heads: HeadTable,
        expiry: ExpiryTable,
        put_row: RowStatements,
        views: TagViews,
        verdicts: VerdictTable,
        topic: Topic,
        partition: int,
    ) -> None:
        self._session = session
        self._cql = cql
        self._heads = heads
        self._expiry = expiry
        self._put_row = put_row
        self._views = views
        self._verdicts = verdicts
        self._topic = topic
        self._partition = partition

    async def pointer(self) -> int:
        rows = await self._session.fetch(self._cql["pointer"], self._topic.name, self._partition)
        return -1 if not rows or rows[0][0] is None else int(rows[0][0])

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        return await self._heads.load(self._topic, self._partition, ids)

    async def waiting(self, journal_id: str) -> list[Quarantined]:
        rows = await self._session.fetch(self._cql["waiting"], self._topic.name, journal_id)
        return [Quarantined(record_from(row), row[7]) for row in rows]

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        # Before any row: one of a new life may take the place of the one that says where its views' rows are.
        failed = await self._clean_views([key for key in changes if key.propagate and key.garbage])
        failed |= await self._write_events([key for key in changes if key.change.rows])
        self.lap("rows")
        failed |= await self._views.write(self._topic, [key for key in changes if key.id not in failed])
        self.lap("tags")
        failed |= await self._verdicts.write(self._topic, self._partition, changes)
        failed |= await self._write_waiting([key for key in changes if key.change.quarantined])
        await self._write_rejected([key for key in changes if key.change.rejected])
        return failed

    async def _write_events(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        put_row, (put_gap, gap_cql) = self._put_row, await self._prepare("put_gap")
        await put_row.prepare()
        name, base = self._topic.name, self._topic.base
        too_large: dict[str, Exception] = {}

        def requests() -> Iterator[tuple[str, CassandraRequest, str]]:
            for key in changes:
                try:
                    for request in row_requests(put_row, self._topic, key):
                        yield key.id, request, put_row.cql
                except Refused as error:
                    too_large[key.id] = error
                for previous, segment, row in gaps_of(key):
                    values = [key.id, name, row.record_id or "", segment, previous, base + row.offset]
                    yield key.id, put_gap.bind(values), gap_cql

        failed = await self._session.run_all(requests(), sum(len(key.change.rows) for key in changes))
        return failed | too_large

    async def _write_waiting(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        prepared, cql = await self._prepare("put_waiting")
        requests = [
            (key.id, prepared.bind(waiting_values(self._topic, key.id, "halted", found)), cql)
            for key in changes
            for found in key.change.quarantined
        ]
        return await self._session.run_all(requests, len(requests))

    async def write_misplaced(self, records: Sequence[Quarantined]) -> None:
        prepared, cql = await self._prepare("put_waiting")
        requests = [("", prepared.bind(waiting_values(self._topic, "", "misplaced", found)), cql) for found in records]
        for error in (await self._session.run_all(requests, len(requests))).values():
            raise error

    async def _write_rejected(self, changes: Sequence[KeyChange]) -> None:
        """For display only: the newest are kept, and one that cannot be written fails nothing."""
        prepared, cql = await self._prepare("put_rejected")
        requests = [
            (key.id, prepared.bind(rejected_values(self._topic, self._partition, key.id, lost)), cql)
            for key in changes
            for lost in key.change.rejected
        ]
        if not requests:
            return
        await self._session.run_all(requests, len(requests))
        place = (self._topic.name, self._partition)
        kept = await self._session.fetch(self._cql["rejected_offsets"], *place, MAX_REJECTED + 1)
        if len(kept) > MAX_REJECTED:
            offset = kept[-1][0]
            await self._session.write(self._cql["trim_rejected"], self._topic.base + offset, *place, offset)

    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        heads = [(key.id, head) for key in changes if (head := key.head) is not None]
        failed = await self._expiry.write(self._topic, self._partition, hints_of(heads))
        ready = [one for one in heads if one[0] not in failed]
        return failed | await self._heads.write(self._topic, self._partition, ready)

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        changes = [key for key in changes if key.garbage]
        failed = await self._clean_views([key for key in changes if key.propagate])
        return failed | await self._each([key for key in changes if key.id not in failed], self._clean)

    async def _clean_views(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        """Take out of the views what is about to be taken out of the journals."""
        return await self._each(changes, self._clean_view)

    async def _clean_view(self, key: KeyChange) -> None:
        for deletion, life in zip(key.garbage, lives(key), strict=True):
            async for run in self._segments(key.id, deletion, life):
                for segment in run:
                    await self._views.remove_segment(self._topic, key.id, segment, deletion)

    async def _each(
        self, changes: Sequence[KeyChange], clean: Callable[[KeyChange], Awaitable[None]]
    ) -> dict[str, Exception]:
        source = iter(changes)
        failed: dict[str, Exception] = {}

        async def work() -> None:
            for key in source:
                try:
                    await clean(key)
                except Refused as error:
                    failed[key.id] = error

        await self._session.together([work() for _ in range(min(len(changes), CLEANERS))])
        return failed

    async def _clean(self, key: KeyChange) -> None:
        """Carry out a journal's deletions, a bounded number of statements at a time."""
        requests: list[tuple[str, CassandraRequest, str]] = []
        async for name, values in self._deletions(key):
            prepared, cql = await self._prepare(name)
            requests.append((key.id, prepared.bind(values), cql))
            if len(requests) == DELETES_AT_ONCE:
                await self._run(requests)
                requests = []
        await self._run(requests)

    async def _run(self, requests: Sequence[tuple[str, CassandraRequest, str]]) -> None:
        for error in (await self._session.run_all(requests, len(requests))).values():
            raise error

    async def _deletions(self, key: KeyChange) -> AsyncIterator[tuple[str, list[Any]]]:
        """The statements, by name, and their values. All are safe to repeat: each carries its own record's time."""
        name, place = self._topic.name, [key.id, self._topic.name]
        for deletion, life in zip(key.garbage, lives(key), strict=True):
            time = self._topic.base + deletion.offset
            async for run in self._segments(key.id, deletion, life):
                for segment in run:
                    if deletion.to is None:
                        yield "delete_segment", [time, *place, segment]
                    else:
                        yield "delete_rows", [time, *place, segment, deletion.to]
            if deletion.quarantine is not None:
                yield "delete_waiting", [time, name, key.id, self._partition, deletion.quarantine]
            if deletion.purge:
                # Each slot at the time at which it was written: a newer snapshot in its place stays.
                for slot, found, written in await self._session.fetch(self._cql["snapshot_lives"], *place):
                    if found == deletion.record_id and written is not None:
                        yield "delete_life_snapshot", [written, *place, slot]
            elif deletion is key.garbage[0] and deletion.last - deletion.first > MIN_GAP:
                # Notes on gaps below are no longer of use; those within are needed again if this is repeated.
                yield "delete_gaps", [time, *place, life or "", deletion.first]

    async def _segments(self, journal_id: str, deletion: Deletion, life: str | None) -> AsyncIterator[range]:
        first, last = deletion.first, deletion.last
        if last - first <= MIN_GAP:
            yield range(first, last + 1)
            return
        async for run in Segments(self._session, self._cql, self._topic.name, journal_id, life).runs(first, last):
            yield run

    async def _prepare(self, name: str) -> _Prepared:
        cql = self._cql[name]
        return await self._session.prepare(cql), cql


_Prepared = tuple[Any, str]


def lives(key: KeyChange) -> list[str | None]:
    """The record_id of the life that each of a change's deletions is about."""
    head, found = key.change.head, list[str | None]()
    life = None if head is None else head.record_id
    for deletion in reversed(key.garbage):
        if deletion.purge:
            life = deletion.record_id
        found.append(life)
    return found[::-1]
