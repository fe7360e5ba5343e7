"""The rows of `projection_offset`: the authority on offsets, by conditional writes only.

Every write names the epoch and the stamp that it saw, so two that come at once cannot both count. A stamp only grows;
it is also the write time of the mirror, `offset_store`, which therefore never goes back either.

The invariant of taking over: an entry's stamp is not below the write time of any row of the mirror that was ours, or
that an owner has taken over. So a row of the mirror with a later write time is Akka's or Pekko Projection's, which ran
since then, and it counts; one with an earlier write time does not. It is the order in which Cassandra itself decides
what the mirror holds. `last_updated` would be another clock's word, and offsets may have been set back on purpose.
An owner takes such a row over by its fence, in the same conditional write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from everlog.cassandra.session import CassandraRow, Session
from everlog.cassandra.values import timestamp
from everlog.errors import Busy, OwnershipLost
from everlog.projections.offsets import Encoded, mirrored
from everlog.projections.projection_id import PARTITIONS, partition_of_key
from everlog.projections.save_window import LogPlace
from everlog.runtime.clock import Clock

MAX_TRIES = 20


class OffsetRow(msgspec.Struct, frozen=True):
    """A row. Without `offset` it is only the fence of its key."""

    entry: str
    key: str | None = None
    epoch: int | None = None
    stamp: int | None = None
    offset: str | None = None
    manifest: str | None = None
    mergeable: bool | None = None
    positions: str | None = None  # JSON: {"topic:partition": offset}
    updated: int | None = None
    since: int | None = None  # the epoch of the last command: what views hold from before it does not count


def newest(own: Sequence[OffsetRow], mirror: Sequence[OffsetRow]) -> list[OffsetRow]:
    """The rows that count, entry by entry."""
    rows = {row.entry: row for row in own}
    maps = any(row.mergeable and row.offset is not None for row in own)
    for row in mirror:
        mine = rows.get(row.entry)
        if mine is None and maps and not row.mergeable:
            continue  # a key of the time when the source had single offsets
        if mine is None or _is_newer(row, mine):
            rows[row.entry] = row
    return sorted(rows.values(), key=lambda row: row.entry)


def _is_newer(mirror: OffsetRow, row: OffsetRow) -> bool:
    return mirror.offset is not None and (mirror.stamp or 0) > (row.stamp or 0)


def _mirror_row(row: CassandraRow) -> OffsetRow:
    key, offset, manifest, mergeable, updated, written = row
    return OffsetRow(key, key, 0, written, offset, manifest, bool(mergeable), None, updated)


def places_of(row: OffsetRow) -> dict[str, int]:
    """The positions of a row, by "topic:partition"."""
    return msgspec.json.decode(row.positions, type=dict[str, int]) if row.positions else {}


class OffsetTable:
    """Reads and writes of the rows of one keyspace."""

    def __init__(self, session: Session, cql: Mapping[str, str], clock: Clock) -> None:
        self._session = session
        self._cql = cql
        self._clock = clock

    async def all(self, name: str) -> list[OffsetRow]:
        """The rows of a projection, fences too."""
        found = await asyncio.gather(
            *(self._session.fetch(self._cql["offsets"], name, partition) for partition in range(PARTITIONS))
        )
        return sorted((OffsetRow(*row) for rows in found for row in rows), key=lambda row: row.entry)

    async def mirror(self, name: str) -> list[OffsetRow]:
        """The rows of the mirror that have an offset, whichever program wrote them; their stamp is their write time."""
        found = await asyncio.gather(
            *(self._session.fetch(self._cql["mirrored"], name, partition) for partition in range(PARTITIONS))
        )
        rows = [_mirror_row(row) for rows in found for row in rows]
        return [row for row in rows if row.offset is not None and row.manifest is not None]

    async def one(self, name: str, entry: str) -> OffsetRow:
        """A row as it surely is: an open conditional write is finished first."""
        rows = await self._session.fetch(self._cql["offset"], name, partition_of_key(entry), entry, serial=True)
        return OffsetRow(*rows[0]) if rows else OffsetRow(entry)

    async def fence(self, name: str, entry: str, key: str, epoch: int) -> None:
        """An owner that wrote this row under a lower epoch writes it no more; what Akka wrote since is taken over."""
        found = await self._session.fetch(self._cql["mirrored_one"], name, partition_of_key(entry), entry)
        theirs = _mirror_row(found[0]) if found else OffsetRow(entry)

        def change(row: OffsetRow) -> OffsetRow:
            if _is_newer(theirs, row):
                # Positions may be ahead of an offset that was set back there. What views hold still counts.
                return msgspec.structs.replace(theirs, key=key, epoch=epoch, since=row.since)
            return msgspec.structs.replace(row, key=key, epoch=epoch)

        await self._change(name, entry, epoch, change)

    async def write(
        self,
        name: str,
        entry: str,
        key: str,
        epoch: int,
        offset: Encoded | None,
        *,
        mergeable: bool,
        positions: Mapping[LogPlace, int] | None = None,
        command: bool = False,
        strict: bool = False,
    ) -> None:
        """Set an offset, or positions alone; then the mirror. `strict`: only over a row of this very epoch.

        `command`: it is no progress. The positions of before, and what views hold, say nothing any more.
        """

        def change(row: OffsetRow) -> OffsetRow:
            if strict and row.epoch != epoch:
                raise OwnershipLost(f"{name}-{key}", epoch)
            places = {} if command else places_of(row)
            places |= {f"{topic}:{partition}": at for (topic, partition), at in (positions or {}).items()}
            text, manifest = (row.offset, row.manifest) if offset is None else offset
            encoded = msgspec.json.encode(places).decode() if places else None
            return msgspec.structs.replace(
                row,
                key=key,
                epoch=epoch,
                offset=text,
                manifest=manifest,
                mergeable=mergeable,
                positions=encoded,
                since=epoch if command else row.since,
            )

        row = await self._change(name, entry, epoch, change)
        if offset is not None:
            assert row.stamp is not None
            place = (name, partition_of_key(entry), entry)
            moment = timestamp(self._clock.now_ms())
            values = (*place, *mirrored(offset), moment, mergeable, row.stamp)
            await self._session.write(self._cql["mirror"], *values)

    async def clear(self, name: str, entry: str, key: str, epoch: int) -> None:
        """Forget an offset; the row stays, as the fence."""
        row = await self._change(name, entry, epoch, lambda row: OffsetRow(entry, key, epoch, row.stamp, since=epoch))
        values = (row.stamp, name, partition_of_key(entry), entry)
        await self._session.write(self._cql["clear_mirror"], *values)

    async def _change(self, name: str, entry: str, epoch: int, change: Callable[[OffsetRow], OffsetRow]) -> OffsetRow:
        """Read, decide, write if no other writer was faster. Raises OwnershipLost if the row has a higher epoch."""
        written: OffsetRow | None = None
        for _ in range(MAX_TRIES):
            row = await self.one(name, entry)
            if written is not None and row == written:
                return row  # the write without a known outcome had happened
            if row.epoch is not None and row.epoch > epoch:
                raise OwnershipLost(f"{name}-{entry}", epoch)
            now_ms = self._clock.now_ms()
            after = change(row)
            stamp = max(now_ms * 1000, (row.stamp or 0) + 1, (after.stamp or 0) + 1)
            after = msgspec.structs.replace(after, stamp=stamp, updated=now_ms)
            values: tuple[Any, ...] = (
                after.key,
                after.epoch,
                after.stamp,
                after.offset,
                after.manifest,
                after.mergeable,
                after.positions,
                timestamp(now_ms),
                after.since,
            )
            place = (name, partition_of_key(entry), entry)
            done = await self._session.write_if(self._cql["put_offset"], *values, *place, row.epoch, row.stamp)
            if done:
                return after
            written = after if done is None else None
        raise Busy(f"{name}-{entry}: its offset could not be stored in {MAX_TRIES} attempts: try again")
