"""The owner of a queue shard: the queue is in its memory, and every change is in the log before its caller hears of it.

Records are images: a row as it is after a change, or that it is gone; the last one wins. A claim is a short record of
its own, because most rows are claimed once and their data do not change. What a history keeps of a job that ended is
a record in the same batch as its end. Large data are outside the log, see `blobs`.
Heartbeats write nothing: the next owner gives every lease its whole time again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from everlog.config.queue_options import QueueSettings
from everlog.errors import EverlogError
from everlog.queues.cassandra.blobs import INLINE_BYTES, Blobs
from everlog.queues.cassandra.shard_log import ShardLog
from everlog.queues.engine import Engine
from everlog.queues.memory import MemoryTable
from everlog.queues.operations import (
    AckFlag,
    Cancel,
    Clear,
    ClearedShard,
    Forget,
    Heartbeat,
    HistoryPlace,
    Operation,
    Pause,
    PauseSchedule,
    PurgeJobs,
    QueueAnswer,
    RaiseFlag,
    RemoveSchedule,
    Revive,
    SetSchedule,
)
from everlog.queues.removal import END_OF_TIME_MS
from everlog.queues.rows import PROCESSING, EndedRow, JobRow
from everlog.queues.schedule import ScheduleRow
from everlog.queues.shards import ShardPart

logger = logging.getLogger("everlog.queues")

SEGMENT_RECORDS = 200_000
SEGMENT_BYTES = 64 * 1024 * 1024
CARRY = 100
# An append is one mutation, of at most 16 MiB and 65,535 statements. A group of operations that change
# more rows is several appends; data behind the first bytes of a batch go outside the log, however small they are.
BATCH_ROWS = 1000
BATCH_BYTES = 4 * 1024 * 1024
# This many takeovers by force within this time are worth a flag.
MAX_TAKEOVERS = 3
FLAP_MS = 600_000
WHOLE = ShardPart()
NOT_CLEARED = ("", 0)
AUDITED = (AckFlag, Cancel, Forget, Pause, PauseSchedule, PurgeJobs, RemoveSchedule, Revive, SetSchedule)
_IMAGE, _CLAIM, _GONE, _META, _LARGE, _ENDED, _SCHEDULE, _FIRED = 1, 2, 3, 4, 5, 6, 7, 8
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


class ShardTable(MemoryTable):
    """A table in memory that knows in which segment the last image of every row is."""

    def __init__(self, part: ShardPart) -> None:
        super().__init__()
        self.segments: dict[int, int] = {}
        self.logged: dict[int, JobRow] = {}
        self.ended_segments: dict[HistoryPlace, int] = {}
        self.fired: dict[str, ScheduleRow] = {}
        self._part = part

    def next_entry(self) -> int:
        self._last_entry = self._part.next_entry(self._last_entry)
        return self._last_entry

    def restore(self, row: JobRow | None, entry: int) -> None:
        """A row as the log has it."""
        before = self.rows.get(entry)
        if row is not None:
            self.save(row, before)
        elif before is not None:
            self.remove(before)
        self.forget_up_to(entry)
        self.changed.clear()

    def save_schedule(self, row: ScheduleRow) -> None:
        super().save_schedule(row)
        self.fired.pop(row.name, None)

    def mark_fired(self, row: ScheduleRow, entry: int | None) -> None:
        """The log gets the mark alone: the data of a thousand schedules would not fit into one append."""
        self._schedules[row.name] = row
        if row.name in self.scheduled:
            self.scheduled[row.name] = row
        else:
            self.fired[row.name] = row

    def drop_schedule(self, name: str) -> None:
        super().drop_schedule(name)
        self.fired.pop(name, None)

    def forget_changes(self) -> None:
        super().forget_changes()
        self.fired.clear()

    def restore_ended(self, ended: EndedRow, segment: int, max_kept: int) -> None:
        """A job that has ended as the log has it. Those that were carried stand there twice, and behind newer ones."""
        self._ended[ended.place] = ended
        self.ended_segments[ended.place] = segment
        if len(self._ended) > 2 * max_kept:
            self.order_ended(max_kept)

    def order_ended(self, max_kept: int) -> None:
        """The oldest first, and no more than are kept."""
        self._ended = dict(sorted(self._ended.items())[-max_kept:])

    def ended_in(self, segment: int) -> list[EndedRow]:
        """Those that have their record in a segment."""
        self.ended_segments = {place: at for place, at in self.ended_segments.items() if place in self._ended}
        return [self._ended[place] for place, at in self.ended_segments.items() if at == segment]

    def restore_mark(self, name: str, done_ms: int, fired_ms: int | None) -> None:
        """How far a schedule is, as the log has it."""
        found = self._schedules.get(name)
        if found is not None:
            self._schedules[name] = replace(found, done_ms=done_ms, fired_ms=fired_ms)

    def forget_up_to(self, entry: int) -> None:
        """Never give out an entry up to this one again."""
        self._last_entry = max(self._last_entry, entry)


class AdminStore(Protocol):
    """Where dead letters, flags and the audit are kept, outside the log: nothing depends on their order."""

    async def load(self, table: MemoryTable) -> None:
        """Put what is kept into a table."""

    async def save(self, table: MemoryTable) -> None:
        """Keep what the table collected: new letters and flags."""

    async def drop(self, table: MemoryTable) -> None:
        """Remove letters that the table no longer has."""

    async def audit(self, operation: Operation, now: int) -> None:
        """Note what an administrator did."""


class ShardOwner:
    """Applies operations to the shard, and writes what they changed. One group at a time."""

    def __init__(
        self,
        log: ShardLog,
        settings: QueueSettings,
        *,
        admin: AdminStore | None = None,
        segment_records: int = SEGMENT_RECORDS,
        segment_bytes: int = SEGMENT_BYTES,
        sweep: int = 500,
        part: ShardPart = WHOLE,
    ) -> None:
        self.log = log
        self.table = ShardTable(part)
        self.engine = Engine(self.table, settings, sweep=sweep)
        self._segment_records = segment_records
        self._segment_bytes = segment_bytes
        self._bytes = 0
        self._admin = admin
        self._takeovers: list[int] = []
        self._cleared: tuple[str, int] = NOT_CLEARED  # by which deletion it was cleared last, and how many jobs went
        self._blobs = Blobs(log)

    async def load(self, now: int, *, forced_by: str | None = None, last_entry: int = 0) -> None:
        """Read the log; then every lease begins again, for its worker may still be at work.

        Which jobs were started within the window of a rate limit is not known: it counts as full, that of each group
        too. Nor is it known whose turn it is: turns begin anew. `forced_by`: the
        process that took the shard from an owner that had not let go of it; if that happens often, a flag says so.
        `last_entry`: up to here entries are of queues that are deleted.
        """
        table = self.table
        async for segment, records in self.log.replay():
            for record in records:
                self._replay(segment, record)
        for entry, places in list(self._blobs.pending.items()):
            row = table.logged[entry] = await self._blobs.put_back(table.rows[entry], places)
            table.restore(row, entry)
        self._blobs.pending.clear()
        for row in list(table.rows.values()):
            if row.status == PROCESSING:
                table.save(replace(row, start_ms=now), row)
        table.order_ended(self.engine.settings.max_done)
        table.drop_ended(now - self.engine.settings.keep_done_ms, len(table.ended_segments))
        if self._admin is not None:
            await self._admin.load(table)
            for letter in table.dead_letters(None, table.count_dead()):
                if letter.entry <= last_entry:
                    table.unbury(letter.entry)
        table.forget_up_to(last_entry)
        table.forget_changes()
        rate = self.engine.settings.rate_limit
        if rate is not None:
            table.add_starts(now, rate.count, now - rate.window_ms)
        rate = self.engine.settings.rate_limit_per_group
        if rate is not None:
            table.add_group_starts(now, {"": rate.count}, now - rate.window_ms)  # of no group: for all of them
        if forced_by is not None:
            await self._note_takeover(now, forced_by)
        await self._write([self._meta()])

    async def _note_takeover(self, now: int, by: str) -> None:
        recent = [at for at in self._takeovers if 0 <= now - at < FLAP_MS]
        self._takeovers = [*recent[1 - MAX_TAKEOVERS :], now]
        if len(self._takeovers) == MAX_TAKEOVERS:
            self.engine.apply(RaiseFlag("owner_flap", by), now)
            if self._admin is not None:
                await self._admin.save(self.table)
            self.table.forget_changes()

    def _replay(self, segment: int, record: bytes) -> None:
        """Take over one record.

        A claim may come without its row: the row's image was in a segment that is dropped, and is carried further on.
        """
        kind, entry, *rest = _unpack(record)
        table = self.table
        if kind in (_IMAGE, _LARGE):
            row = msgspec.convert(rest[0], JobRow)
            table.restore(row, entry)
            table.segments[entry], table.logged[entry] = segment, row
            self._blobs.pending.pop(entry, None)
            if kind == _LARGE:
                self._blobs.pending[entry] = rest[1]
        elif kind == _CLAIM:
            table.forget_up_to(entry)
            if entry in table.rows:
                row = replace(table.rows[entry], **dict(zip(_CLAIMED, rest, strict=True)))
                table.restore(row, entry)
                table.logged[entry] = row
        elif kind == _GONE:
            table.restore(None, entry)
            table.segments.pop(entry, None)
            table.logged.pop(entry, None)
            self._blobs.pending.pop(entry, None)
        elif kind == _ENDED:
            table.restore_ended(msgspec.convert(rest[0], EndedRow), segment, self.engine.settings.max_done)
        elif kind == _SCHEDULE:
            self._replay_schedule(entry, rest[0])
        elif kind == _FIRED:
            table.restore_mark(entry, *rest)
        else:
            assert kind == _META
            table.forget_up_to(entry)
            table.pause(rest[0])
            self._takeovers = rest[1] if len(rest) > 1 else []
            self._cleared = tuple(rest[2]) if len(rest) > 2 else NOT_CLEARED

    def _replay_schedule(self, name: str, found: Any) -> None:
        if found is None:
            self.table.drop_schedule(name)
        else:
            self.table.save_schedule(msgspec.convert(found, ScheduleRow))

    def _meta(self) -> bytes:
        return _pack((_META, self.table.last_entry, self.table.paused(), self._takeovers, self._cleared))

    async def execute(self, operations: Sequence[Operation], now: int) -> list[QueueAnswer]:
        """The answers, once all that they rest on is in the log. After an error no call is acknowledged."""
        answers: list[QueueAnswer] = []
        for operation in operations:
            answers.append(self._apply(operation, now))
            if len(self.table.changed) >= BATCH_ROWS:
                await self._store_changes()
        await self._store_changes()
        if self._admin is not None:
            for operation, answer in zip(operations, answers, strict=True):
                if answer and isinstance(operation, AUDITED):
                    await self._audit(self._admin, operation, now)
        return answers

    async def clear(self, operation: Clear, now: int) -> ClearedShard:
        """Forget all but the number of the last entry. What a crash cuts off is done again, as it is not gone yet."""
        table = self.table
        jobs = self._cleared[1] if self._cleared[0] == operation.deletion else table.count_jobs()
        table.drop_dead(END_OF_TIME_MS, table.count_dead())
        for flag in table.flags():
            table.drop_flag(flag.reason)
        if self._admin is not None:
            await self._admin.save(table)
            await self._admin.drop(table)
        await self.log.rotate()
        self._takeovers, self._cleared = [], (operation.deletion, jobs)
        table.pause(False)
        await self._write([self._meta()])
        while self.log.low < self.log.high:
            await self.log.drop_oldest()
        if self._admin is not None:
            await self._audit(self._admin, operation, now)
        return ClearedShard(jobs, table.last_entry)

    async def _store_changes(self) -> None:
        """What whole operations changed, so that none of them is in the log by half."""
        table = self.table
        if self._admin is not None and (table.buried or table.flagged):
            await self._admin.save(table)  # first: a letter may be there too early, never too late
        records = self._records()
        if records:
            await self._write(records)
        if self._admin is not None and table.unburied:
            await self._admin.drop(table)
        table.forget_changes()

    async def _audit(self, admin: AdminStore, operation: Operation, now: int) -> None:
        try:
            await admin.audit(operation, now)
        except EverlogError as error:  # it was done, and its caller must hear that
            logger.warning("%s was done and is not in the audit: %s", operation, error)

    def _apply(self, operation: Operation, now: int) -> QueueAnswer:
        table = self.table
        if not isinstance(operation, Heartbeat):
            return self.engine.apply(operation, now)
        known = operation.handle.entry in table.changed
        answer = self.engine.apply(operation, now)
        if not known:
            table.changed.pop(operation.handle.entry, None)
        return answer

    def _records(self) -> list[bytes]:
        """What the log must know of the rows that changed. A row that came and went in one group is noted, too: its
        entry must not be given out again."""
        table = self.table
        records: list[bytes] = []
        size = 0
        for entry, row in table.changed.items():
            before = table.logged.get(entry)
            if row is None:
                records.append(_pack((_GONE, entry)))
                table.segments.pop(entry, None)
                table.logged.pop(entry, None)
                self._blobs.forget(entry)
                continue
            if before is not None and replace(before, **_claimed(row)) == row:
                records.append(_pack((_CLAIM, entry, *_claimed(row).values())))
            else:
                records.append(self._image(row, size))
                size += len(records[-1])
            table.logged[entry] = row
        records += map(self._ended, table.ended)  # in one batch with the end of their rows
        records += [_pack((_SCHEDULE, name, schedule)) for name, schedule in table.scheduled.items()]
        records += [_pack((_FIRED, name, row.done_ms, row.fired_ms)) for name, row in table.fired.items()]
        if table.meta_changed:
            records.append(self._meta())
        return records

    def _image(self, row: JobRow, size: int) -> bytes:
        """A record of a row, for the newest segment; what is large of it is outside the log when `_write` is done.

        `size`: how many bytes its batch has already.
        """
        self.table.segments[row.entry] = self.log.high
        small, places = self._blobs.take_out(row, INLINE_BYTES if size < BATCH_BYTES else 0)
        return _pack((_LARGE, row.entry, small, places) if places else (_IMAGE, row.entry, row))

    def _ended(self, ended: EndedRow) -> bytes:
        self.table.ended_segments[ended.place] = self.log.high
        return _pack((_ENDED, ended.entry, ended))

    async def _write(self, records: Sequence[bytes]) -> None:
        """One append, all or nothing."""
        self._bytes += sum(map(len, records)) + await self._blobs.flush()
        await self.log.append(records)

    async def tidy(self) -> None:
        """Open a new segment when this one is full; drop old ones, after carrying what lives in them."""
        if self.log.tail < self._segment_records and self._bytes < self._segment_bytes:
            return
        await self.log.rotate()
        self._bytes = 0
        await self._write([self._meta()])
        await self._carry_schedules()
        max_segments = self.engine.settings.max_buckets
        while self.log.low < self.log.high:
            oldest = self.log.low
            living = [entry for entry, segment in self.table.segments.items() if segment == oldest]
            ended = self.table.ended_in(oldest)
            if (living or ended) and self.log.high - oldest <= max_segments:
                return
            await self._carry(living)
            for first in range(0, len(ended), CARRY):
                await self._write([self._ended(row) for row in ended[first : first + CARRY]])
            await self.log.drop_oldest()

    async def _carry_schedules(self) -> None:
        """Write all schedules into the new segment: older ones can then be dropped."""
        found = self.table.schedules()
        for first in range(0, len(found), CARRY):
            await self._write([_pack((_SCHEDULE, row.name, row)) for row in found[first : first + CARRY]])

    async def _carry(self, living: Sequence[int]) -> None:
        """Write rows again, as they are now, into the newest segment. In parts: each image stands for itself."""
        for first in range(0, len(living), CARRY):
            images: list[bytes] = []
            size = 0
            for entry in living[first : first + CARRY]:
                row = self.table.rows[entry]
                images.append(self._image(row, size))
                size += len(images[-1])
                self.table.logged[entry] = row
            await self._write(images)


_CLAIMED = ("status", "claimed_ms", "start_ms", "lease_ms", "token", "owner", "stop", "stop_reason")


def _claimed(row: JobRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in _CLAIMED}
