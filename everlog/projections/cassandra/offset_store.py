"""Projections on Cassandra: conditional writes, owner epochs, and the mirror that Akka and Pekko Projection read."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import msgspec

from everlog.cassandra.schema import Schema
from everlog.cassandra.session import CassandraRow, Session, connect
from everlog.cassandra.values import timestamp
from everlog.config import CassandraConfig
from everlog.errors import Busy, InvalidOffset, OffsetConflict, OwnershipLost, UnknownProjection
from everlog.projections.cassandra.entries import EntryTable, by_partition
from everlog.projections.cassandra.letters import DeadLetterTable
from everlog.projections.cassandra.marks import Commands, StoredOffset
from everlog.projections.cassandra.offsets import MAX_TRIES, OffsetRow, OffsetTable, newest, places_of
from everlog.projections.cassandra.tables import PROJECTION_TABLES, copy_tables, drop_tables
from everlog.projections.cassandra.views import CassandraTransaction, CassandraView, ViewTables
from everlog.projections.claims import parts_of, wanted_of
from everlog.projections.copies import Copies, Difference, copy_name, decode_copies, encode_copies
from everlog.projections.offsets import Offset, decode, entries, is_mergeable, same, show
from everlog.projections.port import (
    ANY_OFFSET,
    AnyOffset,
    Desired,
    KnownProjection,
    OffsetStore,
    ProjectionDeadLetter,
    Recount,
    Report,
    View,
    ViewTransaction,
    decode_skips,
    encode_skips,
)
from everlog.projections.projection_id import PARTITIONS, ProjectionId
from everlog.projections.save_window import LogPlace, OffsetProgress
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.failpoints import failpoint
from everlog.runtime.lease import Lease
from everlog.runtime.trace import Trace

if TYPE_CHECKING:
    pass

_encode = msgspec.json.Encoder().encode
_report = msgspec.json.Decoder(Report).decode
MAX_LEASES = 1000


class CassandraOffsetStore(OffsetStore):
    """Tables in one keyspace. Make it with `open`."""

    has_views = True
    stores_whole = False
    recount_pauses = True  # unlike a file, tables cannot be copied as they are at one moment
    look_s = 0.5
    max_skew_s = 10.0

    def __init__(self, session: Session, *, clock: Clock | None = None) -> None:
        self._session = session
        self._clock = clock or SystemClock()
        self._cql = PROJECTION_TABLES.statements(session.config.keyspace)
        self._offsets = OffsetTable(session, self._cql, self._clock)
        self._entries = EntryTable(session, self._cql, self._clock)
        self._letters = DeadLetterTable(session, self._cql, self._clock)
        self._tables = ViewTables(session)
        self._commanded: dict[Lease, Commands] = {}
        self._beats = itertools.count()
        self._me = self._clock.new_id()

    @classmethod
    async def open(cls, config: CassandraConfig, *, clock: Clock | None = None, trace: Trace | None = None) -> Self:
        """Connect, and create or migrate the tables if that is needed and allowed."""
        session = await connect(config, trace)
        try:
            await Schema(session, PROJECTION_TABLES).prepare()
        except BaseException:
            await session.close()
            raise
        return cls(session, clock=clock)

    async def _fetch(self, name: str, *values: Any, serial: bool = False) -> list[CassandraRow]:
        return await self._session.fetch(self._cql[name], *values, serial=serial)

    # Owners

    async def leases(self, name: str) -> dict[str, Lease]:
        rows = await self._fetch("leases", name, serial=True)
        return {row[0]: Lease(name, *row[:4]) for row in rows if row[0] is not None and row[2] is not None}

    async def _lease(self, projection: ProjectionId) -> tuple[Lease | None, int | None]:
        """The lease, and the last epoch of the name."""
        rows = await self._fetch("leases", projection.name, serial=True)
        last = rows[0][5] if rows else None
        found = [Lease(projection.name, *row[:4]) for row in rows if row[0] == projection.key and row[2] is not None]
        return (found[0] if found else None), last

    async def take(self, projection: ProjectionId, owner: str, seen: Lease | None) -> Lease | None:
        found, last = await self._lease(projection)
        if found != seen:
            return None
        lease = await self._move(projection, "take", owner, found, last)
        if lease is not None:
            await self._fence(projection, lease.epoch)
        return lease

    async def _move(
        self, projection: ProjectionId, how: str, owner: str | None, seen: Lease | None, last: int | None
    ) -> Lease | None:
        """Count the epoch up, if nothing changed since it was seen."""
        epoch, beat = (last or 0) + 1, 0 if seen is None else seen.beat + 1
        place = (projection.name, projection.key)
        before = (None, None, None) if seen is None else (seen.owner, seen.epoch, seen.beat)
        owned = (owner,) if how == "take" else ()
        values = (epoch, *owned, epoch, beat, *place, last, *before)
        done = await self._session.write_if(self._cql[how], *values)
        lease = Lease(*place, owner, epoch, beat)
        if done is None:
            done = (await self._lease(projection))[0] == lease
        return lease if done else None

    async def _fence(self, projection: ProjectionId, epoch: int) -> None:
        """Rows of this key first, and the key's own row even if it has no offset: then the old owner is out."""
        rows = await self._offsets.all(projection.name)
        mine = {row.entry for row in rows if row.key == projection.key} | {projection.key}
        try:
            await self._fence_all(projection, sorted(mine), epoch)
        except OwnershipLost:
            return  # another owner was faster with a higher epoch: the first save will tell

    async def _fence_all(self, projection: ProjectionId, rows: Sequence[str], epoch: int) -> None:
        """One after the other in each partition: conditional writes of one partition get in each other's way."""

        async def fence(some: Sequence[str]) -> None:
            for entry in some:
                await self._offsets.fence(projection.name, entry, projection.key, epoch)

        await asyncio.gather(*(fence(some) for some in by_partition(rows).values()))

    async def renew(self, lease: Lease, report: Report) -> Lease | None:
        projection = ProjectionId(lease.name, lease.key)
        for _ in range(MAX_TRIES):
            found, _ = await self._lease(projection)
            if found is None or found.owner != lease.owner:
                return None
            values = (found.beat + 1, _encode(report).decode(), lease.name, lease.key, lease.owner)
            if await self._session.write_if(self._cql["renew"], *values):
                return msgspec.structs.replace(found, beat=found.beat + 1)
        raise Busy(f"{projection}: its lease could not be renewed in {MAX_TRIES} attempts")

    async def release(self, lease: Lease, report: Report) -> None:
        found, _ = await self._lease(ProjectionId(lease.name, lease.key))
        if found is not None and found.owner == lease.owner:
            values = (found.beat + 1, _encode(report).decode(), lease.name, lease.key, lease.owner)
            await self._session.write_if(self._cql["release"], *values)

    async def join(self, name: str, owner: str) -> dict[str, int]:
        await self._session.write(self._cql["join"], name, owner, f"{self._me}:{next(self._beats)}")
        # A beat only has to differ from the last one; as a number it fits the interface.
        return {one: hash(beat) for one, beat in await self._fetch("instances", name)}

    async def leave(self, name: str, owner: str) -> None:
        await self._session.write(self._cql["leave"], name, owner)

    # Offsets

    async def load(self, projection: ProjectionId) -> Offset | None:
        return _offset_from(await self._rows(projection.name), projection.key, own=False)

    async def _rows(self, name: str) -> list[OffsetRow]:
        """Rows with an offset, entry by entry: ours, or what Akka or Pekko Projection wrote since."""
        own, mirror = await asyncio.gather(self._offsets.all(name), self._offsets.mirror(name))
        return [row for row in newest(own, mirror) if row.offset is not None]

    async def claim(self, lease: Lease, parts: Sequence[str]) -> None:
        """What belongs to the parts first, then the parts: after a crash in between, it is done again."""
        name, key = lease.name, lease.key
        rows = {row.entry: row for row in await self._offsets.all(name)}
        found = [rows[part] for part in parts if part in rows]
        if any((row.epoch or 0) > lease.epoch for row in found):
            raise OwnershipLost(f"{name}-{key}", lease.epoch)
        owners = {row.key for row in found if row.key is not None and row.key != row.entry}
        if owners - {key}:
            desired = await self.desired(name)
            after = wanted_of(key, owners, desired, parts)
            if after != desired.get(key, Desired()):
                changes = {"paused": after.paused, "skips": after.skips}
                await self._want(ProjectionId(name, key), lambda before: msgspec.structs.replace(before, **changes))
            for owner in owners - {key}:
                await self._letters.move(name, owner, key, lambda offset: parts_of(offset) <= set(parts))
            failpoint("claim.followed")
        unclaimed = [part for part in parts if part not in rows or rows[part].epoch != lease.epoch]
        await self._fence_all(ProjectionId(name, key), unclaimed, lease.epoch)

    async def save(self, lease: Lease, progress: OffsetProgress) -> None:
        key, offset = lease.key, progress.offset
        mergeable = offset is not None and is_mergeable(offset)
        if offset is not None and mergeable:
            if progress.positions or offset:
                await self._write(lease, key, None, progress, strict=True)  # the fence says whether it is still ours
            await self._entries.save(lease.name, key, lease.epoch, entries(key, offset))
        else:
            text = None if offset is None else entries(key, offset)[key]
            await self._write(lease, key, text, progress, strict=True)

    async def _write(
        self, lease: Lease, entry: str, text: Any, progress: OffsetProgress, *, strict: bool = False
    ) -> None:
        await self._offsets.write(
            lease.name,
            entry,
            lease.key,
            lease.epoch,
            text,
            mergeable=entry != lease.key,
            positions=progress.positions,
            strict=strict,
        )

    async def set_offset(
        self, projection: ProjectionId, offset: Offset | None, *, expected: Offset | AnyOffset | None = ANY_OFFSET
    ) -> None:
        await self._must_know(projection)
        name, key = projection.name, projection.key
        rows = await self._rows(name)
        mine = [row for row in rows if row.key == key or (row.mergeable and row.key == row.entry)]
        if offset is not None and mine and is_mergeable(offset) != bool(mine[0].mergeable):
            raise InvalidOffset(f"{projection} has offsets of another kind, so {offset!r} does not fit")
        new = {} if offset is None else entries(key, offset)
        lease = await self._raise_epoch(projection)
        await self._fence(projection, lease.epoch)
        # Fenced: no other owner moves it now. So what is compared is what is replaced.
        found = _offset_from(await self._rows(name), key, own=True)
        if not isinstance(expected, AnyOffset) and not same(found, expected):
            raise OffsetConflict(str(projection), show(expected), show(found))
        await self._offsets.write(name, key, key, lease.epoch, new.get(key), mergeable=False, command=True)
        for entry in {row.entry for row in mine} - set(new):
            await self._offsets.clear(name, entry, key, lease.epoch)
        for entry, text in new.items():
            if entry != key:
                await self._offsets.write(name, entry, key, lease.epoch, text, mergeable=True, command=True)

    async def _raise_epoch(self, projection: ProjectionId) -> Lease:
        for _ in range(MAX_TRIES):
            found, last = await self._lease(projection)
            lease = await self._move(projection, "raise_epoch", None if found is None else found.owner, found, last)
            if lease is not None:
                return lease
        raise Busy(f"{projection}: other processes keep changing it: try again")

    async def positions(self, name: str) -> dict[str, dict[LogPlace, int]]:
        found: dict[str, dict[LogPlace, int]] = {}
        for row in await self._offsets.all(name):
            for place, offset in places_of(row).items():
                topic, _, partition = place.rpartition(":")
                found.setdefault(row.entry, {})[topic, int(partition)] = offset
        return found

    # What is wanted

    async def desired(self, name: str) -> dict[str, Desired]:
        found = await asyncio.gather(*(self._fetch("desired", name, nr) for nr in range(PARTITIONS)))
        return {row[0]: _wanted(row) for rows in found for row in rows}

    async def pause(self, projection: ProjectionId, paused: bool) -> Desired:
        return await self._want(projection, lambda before: msgspec.structs.replace(before, paused=paused))

    async def skip(self, projection: ProjectionId, offset: str) -> Desired:
        return await self._want(projection, lambda before: before.with_skip(offset))

    async def end_skips(self, projection: ProjectionId, offsets: Collection[str]) -> Desired:
        return await self._want(projection, lambda before: before.without_skips(offsets))

    async def _want(self, projection: ProjectionId, change: Callable[[Desired], Desired]) -> Desired:
        await self._must_know(projection)
        place = (projection.name, projection.partition, projection.key)
        for _ in range(MAX_TRIES):
            rows = await self._fetch("desired", *place[:2], serial=True)
            before = next((_wanted(row) for row in rows if row[0] == place[2]), Desired())
            after = msgspec.structs.replace(change(before), version=before.version + 1)
            now = timestamp(self._clock.now_ms())
            values = (after.paused, encode_skips(after.skips), after.version, now, *place, before.version or None)
            if await self._session.write_if(self._cql["want"], *values):
                return after
        raise Busy(f"{projection}: other processes keep changing it: try again")

    async def _must_know(self, projection: ProjectionId) -> None:
        if (await self._lease(projection))[0] is not None:
            return
        if all(row.entry != projection.key for row in await self._rows(projection.name)):
            raise UnknownProjection(projection.name, projection.key)

    # Dead letters

    async def _check_owner(self, lease: Lease) -> OffsetRow:
        """A look, no guarantee: dead letters are written under their offset, so that a late one does no harm."""
        row = await self._offsets.one(lease.name, lease.key)
        if row.epoch != lease.epoch:
            raise OwnershipLost(f"{lease.name}-{lease.key}", lease.epoch)
        return row

    async def bury(self, lease: Lease, letters: Sequence[ProjectionDeadLetter]) -> None:
        await self._check_owner(lease)
        await self._letters.bury(letters)

    async def dead_letters(
        self, name: str, key: str | None = None, *, requested: bool = False, limit: int = 1000
    ) -> list[ProjectionDeadLetter]:
        keys = [key] if key is not None else sorted(await self.leases(name))
        found = [letter for one in keys for letter in await self._letters.list(name, one)]
        return [letter for letter in found if letter.requested or not requested][:limit]

    async def request_replay(self, projection: ProjectionId, offset: str | None = None) -> int:
        count = await self._letters.request(projection.name, projection.key, offset)
        if count:
            await self._want(projection, lambda before: before)  # a new version: the owner looks
        return count

    async def answer_replay(self, lease: Lease, letter: ProjectionDeadLetter, cause: str | None) -> None:
        await self._check_owner(lease)
        await self._letters.answer(letter, cause)

    async def drop_letters(self, projection: ProjectionId, offset: str | None = None) -> int:
        return await self._letters.drop(projection.name, projection.key, offset)

    # All of it

    async def known(self, name: str | None = None) -> list[KnownProjection]:
        leases: dict[tuple[str, str], tuple[Lease, Report]] = {
            (row[0], row[1]): (Lease(*row[:5]), _report(row[5] or "{}"))
            for row in await self._fetch("all_leases")
            if row[1] is not None and row[3] is not None and name in (None, row[0])
        }
        names = {place[0] for place in leases} | {row[0] for row in await self._fetch("names_of_mirror")}
        result: list[KnownProjection] = []
        for one in sorted(names if name is None else names & {name}):
            rows, desired = await self._rows(one), await self.desired(one)
            keys = {key for found, key in leases if found == one} | {row.key or row.entry for row in rows}
            for key in sorted(keys):
                lease, report = leases.get((one, key), (None, Report()))
                updated = max((row.updated for row in rows if row.key == key and row.updated), default=None)
                letters = len(await self._letters.list(one, key))
                offset = _offset_from(rows, key, own=True)
                result.append(
                    KnownProjection(one, key, lease, report, offset, updated, desired.get(key, Desired()), letters)
                )
        return result

    def stamp(self) -> object:
        return None

    # Views

    def view(self, copies: Mapping[str, str] | None = None) -> View:
        return CassandraView(self._tables, copies or {})

    @asynccontextmanager
    async def transaction(
        self, lease: Lease, copies: Mapping[str, str] | None = None
    ) -> AsyncIterator[ViewTransaction]:
        """Rows first, then the offset: events between a partition's mark and the offset are found covered there."""
        row = await self._check_owner(lease)
        stored = StoredOffset(row.offset, row.manifest)
        running = CassandraTransaction(self._tables, lease, await self._commands(lease), copies or {}, stored)
        try:
            yield running
        finally:
            running.close()
        await running.commit()
        failpoint("view.rows")
        await self._letters.bury(running.letters)
        if running.forgotten is not None:
            await self._letters.answer(running.forgotten, None)
        if running.progress is not None:
            await self.save(lease, running.progress)

    async def _commands(self, lease: Lease) -> Commands:
        """A command raises the epoch: so it is asked once."""
        known = msgspec.structs.replace(lease, beat=0)
        if known not in self._commanded:
            rows = await self._offsets.all(lease.name)
            own = max((row.since or 0 for row in rows if row.entry == lease.key), default=0)
            if len(self._commanded) >= MAX_LEASES:
                self._commanded.clear()
            self._commanded[known] = Commands(own, {f"{lease.name}:{row.entry}": row.since or 0 for row in rows})
        return self._commanded[known]

    async def copies(self, name: str) -> Copies:
        return (await self._copies(name, serial=False))[1]

    async def _copies(self, name: str, *, serial: bool = True) -> tuple[int | None, Copies]:
        """Readers need not wait for a switch that is under way: they see one copy or the other."""
        rows = await self._fetch("copies", name, serial=serial)
        return (rows[0][0], decode_copies(rows[0][1])) if rows else (None, Copies())

    async def change_copies(self, name: str, before: Copies, after: Copies) -> bool:
        version, found = await self._copies(name)
        if found != before:
            return False
        values = ((version or 0) + 1, encode_copies(after), name, version)
        done = await self._session.write_if(self._cql["put_copies"], *values)
        return (await self._copies(name))[1] == after if done is None else done

    async def copy_tables(self, copies: Mapping[str, str]) -> None:
        await copy_tables(self._session, copies)

    async def drop_tables(self, tables: Sequence[str]) -> None:
        await drop_tables(self._session, tables)

    @asynccontextmanager
    async def recount(self, name: str, tables: Sequence[str]) -> AsyncIterator[Recount]:
        while True:
            seen = await self.drop_garbage(name)
            number = seen.last + 1
            # Garbage from the start: whatever happens, the next command drops it.
            numbers, names = (*seen.garbage, number), {**seen.tables, number: tuple(tables)}
            after = msgspec.structs.replace(seen, last=number, garbage=numbers, tables=names)
            if await self.change_copies(name, seen, after):
                break
        old, new = after.names(after.current), after.names(number)

        async def compare() -> list[Difference]:
            return [
                await self._tables.compare(table, old.get(table.lower(), table), new[table.lower()]) for table in tables
            ]

        try:
            await self.copy_tables({old.get(table, table): copied for table, copied in new.items()})
            ends = {one.key: one.offset for one in await self.known(copy_name(name, after.current))}
            yield Recount(self, number, ends, compare)
        finally:
            await self.drop_garbage(name)

    async def erase(self, name: str) -> None:
        keys = {one.key for one in await self.known(name)}
        await asyncio.gather(*(self._session.write(self._cql["erase_letters"], name, key) for key in keys))
        for number in range(PARTITIONS):
            for what in ("erase_offsets", "erase_mirror", "erase_wishes"):
                await self._session.write(self._cql[what], name, number)
        await self._session.write(self._cql["erase_instances"], name)
        await self._session.write(self._cql["erase_lease"], name)

    async def close(self) -> None:
        await self._session.close()


def _wanted(row: CassandraRow) -> Desired:
    """A row of `projection_management`."""
    return Desired(bool(row[1]), decode_skips(row[2]), row[3] or 0)


def _offset_from(rows: Sequence[OffsetRow], key: str, *, own: bool) -> Offset | None:
    """As in SQLite: the key's own row, or the map of all entries of the name; with `own`, of those it wrote."""
    if rows and all(row.mergeable for row in rows):
        found = [row for row in rows if not own or row.key in (key, row.entry)]
        return {row.entry: decode(row.offset or "", row.manifest or "") for row in found} or None
    for row in rows:
        if row.entry == key and not row.mergeable:
            return decode(row.offset or "", row.manifest or "")
    return None
