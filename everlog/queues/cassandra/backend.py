"""The fenced log and what belongs to it, in Cassandra."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.cassandra.schema import TableSet
from everlog.cassandra.session import Session
from everlog.config.queue_options import QueueSettings
from everlog.core.duration import DAY_MS
from everlog.errors import Unreachable
from everlog.queues.cassandra.blobs import INLINE_BYTES
from everlog.queues.cassandra.owner import AdminStore
from everlog.queues.cassandra.shard_log import SegmentState, ShardBackend, ShardRow
from everlog.queues.memory import MemoryTable
from everlog.queues.operations import Operation
from everlog.queues.rows import DeadLetter, Flag
from everlog.queues.shards import ShardPart
from everlog.runtime.clock import Clock

logger = logging.getLogger("everlog.queues")

QUEUE_TABLES = TableSet("queues", "everlog.queues.cassandra")
MAX_LETTERS = 10_000
CHUNK_BYTES = 256 * 1024
CHUNKS = 16
# The chunks of a letter are kept longer than the letter: one that is there has its data.
EXTRA_CHUNK_TTL_S = 3600
AUDIT_DAYS = 7
_flag = msgspec.msgpack.Decoder(Flag).decode


class StoredLetter(DeadLetter, frozen=True):
    """A dead letter as its row has it: with `chunks`, its data are in rows of their own."""

    chunks: int = 0


_letter = msgspec.msgpack.Decoder(StoredLetter).decode


class CassandraBackend(ShardBackend):
    """One shard of a queue."""

    def __init__(self, session: Session, journal: str, shard: int = 0) -> None:
        self._session = session
        self._cql = QUEUE_TABLES.statements(session.config.keyspace)
        self._key = (journal, shard)

    async def read_shard(self) -> ShardRow:
        for _ in range(10):
            rows = await self._session.fetch(self._cql["shard"], *self._key, serial=True)
            if rows:
                return ShardRow(*rows[0])
            await self._session.write_if(self._cql["insert_shard"], *self._key)
        raise Unreachable(f"the shard of the queue {self._key[0]} cannot be made: try again")

    async def change_shard(self, expected: ShardRow, changed: ShardRow) -> bool | None:
        values = (*changed, *self._key, expected.epoch, expected.beat)
        return await self._session.write_if(self._cql["update_shard"], *values)

    async def read_statics(self, segment: int) -> SegmentState:
        rows = await self._session.fetch(self._cql["statics"], *self._key, segment, serial=True)
        return SegmentState(rows[0][0], rows[0][1] or 0) if rows else SegmentState(None, 0)

    async def raise_fence(self, segment: int, observed: SegmentState, epoch: int) -> bool | None:
        if observed.fence is None:
            return await self._session.write_if(self._cql["first_fence"], epoch, *self._key, segment)
        return await self._session.write_if(self._cql["raise_fence"], epoch, *self._key, segment, observed.fence)

    async def append(self, segment: int, epoch: int, tail: int, records: Sequence[bytes]) -> bool | None:
        place = (*self._key, segment)
        statements: list[tuple[str, Sequence[Any]]] = [
            (self._cql["move_tail"], (tail + len(records), *place, epoch, tail))
        ]
        statements += [
            (self._cql["insert_record"], (*place, seq, record)) for seq, record in enumerate(records, tail + 1)
        ]
        return await self._session.batch_if(statements)

    async def read_records(self, segment: int, after: int, limit: int) -> list[tuple[int, bytes]]:
        rows = await self._session.fetch(self._cql["records"], *self._key, segment, after, limit)
        return [(seq, body) for seq, body in rows]

    async def write_blob(self, segment: int, item: str, data: bytes) -> None:
        place = (*self._key, segment, item)
        for number, chunk in enumerate(_chunks(data)):
            await self._session.write(self._cql["insert_chunk"], *place, number, chunk)

    async def read_blob(self, segment: int, item: str) -> bytes | None:
        chunks = await _read_chunks(self._session, self._cql["chunks"], *self._key, segment, item)
        return b"".join(chunks) if chunks else None

    async def drop_segment(self, segment: int) -> None:
        await self._session.write(self._cql["drop_segment"], *self._key, segment)
        await self._session.write(self._cql["drop_blobs"], *self._key, segment)


class CassandraAdminStore(AdminStore):
    """Dead letters and flags of a shard. Letters are found by their entries, flags by a suffix of their reason."""

    def __init__(
        self, session: Session, journal: str, settings: QueueSettings, clock: Clock, part: ShardPart | None = None
    ) -> None:
        self._session = session
        self._cql = QUEUE_TABLES.statements(session.config.keyspace)
        self._journal = journal
        self._ttl_ms = settings.dead_letter_ttl_ms
        self._clock = clock
        self._part = part or ShardPart()
        self._suffix = f"/{self._part.index}" if self._part.index else ""

    async def load(self, table: MemoryTable) -> None:
        today = _day(self._clock.now_ms())
        for back in range(self._ttl_ms // DAY_MS + 2):
            values = (self._journal, today - back, MAX_LETTERS)
            for (row,) in await self._session.fetch(self._cql["dead_of_day"], *values):
                stored = _letter(row)
                if self._part.has(stored.entry):
                    letter = await self._with_data(stored)
                    if letter is not None:
                        table.bury(letter)
        for reason, flag in await self._session.fetch(self._cql["flags"], self._journal):
            if reason == _flag(flag).reason + self._suffix:
                table.put_flag(_flag(flag))

    async def _with_data(self, stored: StoredLetter) -> DeadLetter | None:
        """The letter with its chunks; None if that is lost, which must not prevent a takeover."""
        data = stored.image.data
        if stored.chunks:
            place = (self._journal, stored.dead_ms, stored.entry)
            chunks = await _read_chunks(self._session, self._cql["letter_chunks"], *place)
            if len(chunks) != stored.chunks:
                logger.error("%s: the data of the dead letter %d are lost", self._journal, stored.entry)
                return None
            data = b"".join(chunks)
        fields = {name: getattr(stored, name) for name in DeadLetter.__struct_fields__}
        return DeadLetter(**{**fields, "image": replace(stored.image, data=data)})

    async def _bury(self, letter: DeadLetter) -> None:
        """A row holds less than a job's data may be, so what is large goes into chunks, first."""
        ttl = self._ttl_ms // 1000 + 1
        image, chunks = letter.image, 0
        if len(image.data) > INLINE_BYTES:
            place = (self._journal, letter.dead_ms, letter.entry)
            for chunk in _chunks(image.data):
                values = (*place, chunks, chunk, ttl + EXTRA_CHUNK_TTL_S)
                await self._session.write(self._cql["insert_letter_chunk"], *values)
                chunks += 1
            image = replace(image, data=b"")
        fields = {name: getattr(letter, name) for name in DeadLetter.__struct_fields__}
        stored = msgspec.msgpack.encode(StoredLetter(**{**fields, "image": image}, chunks=chunks))
        values = (self._journal, _day(letter.dead_ms), letter.dead_ms, letter.entry, stored, ttl)
        await self._session.write(self._cql["bury"], *values)

    async def save(self, table: MemoryTable) -> None:
        for letter in table.buried.values():
            await self._bury(letter)
        for reason, flag in table.flagged.items():
            key = (self._journal, reason + self._suffix)
            if flag is None:
                await self._session.write(self._cql["drop_flag"], *key)
            else:
                await self._session.write(self._cql["put_flag"], *key, msgspec.msgpack.encode(flag))

    async def drop(self, table: MemoryTable) -> None:
        oldest_ms = self._clock.now_ms() - self._ttl_ms
        for letter in table.unburied.values():
            if letter.dead_ms < oldest_ms - 2000:  # its row goes by itself, and leaves no tombstone
                continue
            values = (self._journal, _day(letter.dead_ms), letter.dead_ms, letter.entry)
            await self._session.write(self._cql["unbury"], *values)
            if len(letter.image.data) > INLINE_BYTES:
                place = (self._journal, letter.dead_ms, letter.entry)
                await self._session.write(self._cql["drop_letter_chunks"], *place)

    async def audit(self, operation: Operation, now: int) -> None:
        what = msgspec.msgpack.encode(Audited(now, operation))
        values = (self._journal, _day(now), now, self._clock.new_id(), what)
        await self._session.write(self._cql["audit"], *values)


class Audited(msgspec.Struct, frozen=True):
    """What an administrator did to a queue, and when."""

    at_ms: int
    operation: Operation


_audited = msgspec.msgpack.Decoder(Audited).decode


async def read_audit(session: Session, journal: str, now: int, limit: int) -> list[Audited]:
    """What was done to a queue within a week, the newest first."""
    cql = QUEUE_TABLES.statements(session.config.keyspace)["audited"]
    found: list[Audited] = []
    for back in range(AUDIT_DAYS + 1):
        left = limit - len(found)
        if left > 0:
            rows = await session.fetch(cql, journal, _day(now) - back, left)
            found += [_audited(what) for (what,) in rows]
    return found


async def _read_chunks(session: Session, cql: str, *place: Any) -> list[bytes]:
    return [body async for rows in session.pages(cql, *place, page=CHUNKS) for (body,) in rows]


def _chunks(data: bytes) -> Iterator[bytes]:
    return (data[first : first + CHUNK_BYTES] for first in range(0, len(data), CHUNK_BYTES))


def _day(ms: int) -> int:
    return ms // DAY_MS
