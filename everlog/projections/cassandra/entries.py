"""Maps of offsets on Cassandra: the entries of one partition of `projection_offset` change in one conditional batch.

Each alone would get in the way of the others: Cassandra decides about conditions one partition at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.errors import Busy, OwnershipLost
from everlog.projections.cassandra.offsets import MAX_TRIES, OffsetRow
from everlog.projections.offsets import Encoded, mirrored
from everlog.projections.projection_id import partition_of_key
from everlog.runtime.clock import Clock


def by_partition(entries: Iterable[str]) -> dict[int, list[str]]:
    """Entries by the partition that their rows are in."""
    found: dict[int, list[str]] = {}
    for entry in entries:
        found.setdefault(partition_of_key(entry), []).append(entry)
    return found


class EntryTable:
    """The rows of entries, as an owner saves them."""

    def __init__(self, session: Session, cql: Mapping[str, str], clock: Clock) -> None:
        self._session = session
        self._cql = cql
        self._clock = clock

    async def save(self, name: str, key: str, epoch: int, offsets: Mapping[str, Encoded]) -> None:
        """Store where parts are, then the mirror. Raises OwnershipLost if one of them has a higher epoch."""
        groups = by_partition(offsets)
        await asyncio.gather(
            *(
                self._save(name, partition, key, epoch, {entry: offsets[entry] for entry in entries})
                for partition, entries in groups.items()
            )
        )

    async def _save(self, name: str, partition: int, key: str, epoch: int, offsets: Mapping[str, Encoded]) -> None:
        written: list[OffsetRow] | None = None
        for _ in range(MAX_TRIES):
            found = await self._session.fetch(self._cql["offsets"], name, partition, serial=True)
            rows = {row[0]: OffsetRow(*row) for row in found}
            before = [rows.get(entry, OffsetRow(entry)) for entry in offsets]
            if written is not None and before == written:
                break  # the write without a known outcome had happened
            if any((row.epoch or 0) > epoch for row in before):
                raise OwnershipLost(f"{name}-{key}", epoch)
            written = [self._moved(row, key, epoch, offsets[row.entry]) for row in before]
            done = await self._session.batch_if(
                [self._put(name, partition, one, row) for one, row in zip(written, before, strict=True)]
            )
            if done:
                break
            written = written if done is None else None
        else:
            raise Busy(f"{name}-{key}: its offsets could not be stored in {MAX_TRIES} attempts: try again")
        moment = timestamp(self._clock.now_ms())
        assert written is not None
        for row in written:
            values = (name, partition, row.entry, *mirrored(offsets[row.entry]), moment, True, row.stamp)
            await self._session.write(self._cql["mirror"], *values)

    def _moved(self, row: OffsetRow, key: str, epoch: int, offset: Encoded) -> OffsetRow:
        now_ms = self._clock.now_ms()
        stamp = max(now_ms * 1000, (row.stamp or 0) + 1)
        facts = {"offset": offset.text, "manifest": offset.manifest, "mergeable": True, "positions": None}
        return msgspec.structs.replace(row, key=key, epoch=epoch, stamp=stamp, updated=now_ms, **facts)

    def _put(self, name: str, partition: int, row: OffsetRow, before: OffsetRow) -> tuple[str, list[object]]:
        values = [row.key, row.epoch, row.stamp, row.offset, row.manifest, row.mergeable, row.positions]
        place = [name, partition, row.entry]
        written = [*values, timestamp(row.updated or 0), row.since, *place, before.epoch, before.stamp]
        return self._cql["put_offset"], written
