"""A queue in several shards: which of them an operation is for, and how their answers become one.

A key's hash says where its jobs are, and an entry says where it is: entries of shard i of n are i modulo n. So all that
is about one key is in one shard, and exact; the order of claims holds within each.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from everlog.queues.operations import (
    AckFlag,
    AskDue,
    AskHead,
    AskSchedules,
    AskStats,
    Cancel,
    DueAnswer,
    FindJob,
    FireSchedules,
    Forget,
    Get,
    JobPlace,
    ListDead,
    ListFlags,
    ListHistory,
    ListLeases,
    ListSchedules,
    Operation,
    Pause,
    PauseSchedule,
    Peek,
    PurgeJobs,
    Put,
    QueueAnswer,
    RaiseFlag,
    RemoveSchedule,
    Revive,
    SetSchedule,
    Stats,
    Sweep,
)
from everlog.queues.rows import DeadLetter, EndedRow, Flag, JobRow
from everlog.queues.schedule import ScheduleRow


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Shard `index` of `count`."""

    index: int = 0
    count: int = 1

    def next_entry(self, last: int) -> int:
        """The first number after `last` that is this shard's."""
        return last + 1 + (self.index - last - 1) % self.count

    def has(self, entry: int) -> bool:
        return entry % self.count == self.index


def shard_of(operation: Operation, shards: int) -> int | None:
    """The shard that an operation is for; None if it is for all."""
    if shards == 1:
        return 0
    if isinstance(operation, Put):
        return _by_hash(operation.packet.hash, shards)
    if isinstance(operation, SetSchedule):
        return _by_hash(operation.schedule.hash, shards)
    if isinstance(operation, Get | Cancel | PauseSchedule | RemoveSchedule):
        return _by_hash(operation.hash, shards)
    if isinstance(operation, ListHistory):
        return None if operation.hash is None else _by_hash(operation.hash, shards)
    if isinstance(operation, Revive | Forget | FindJob):
        return operation.entry % shards
    handle = getattr(operation, "handle", None)
    return None if handle is None else int(handle.entry % shards)


def combine(operation: Operation, found: Sequence[QueueAnswer]) -> QueueAnswer:
    """The answer of a whole queue. Claims are not asked of all: see `in_turn`."""
    answers = cast(Sequence[Any], found)
    if isinstance(operation, Peek):
        pages = cast(Sequence[list[JobRow]], answers)
        return list(islice(heapq.merge(*pages, key=lambda row: row.order), operation.limit))
    if isinstance(operation, ListLeases):
        running = cast(Sequence[list[JobRow]], answers)
        return list(islice(heapq.merge(*running, key=lambda row: row.deadline_ms), operation.limit))
    if isinstance(operation, ListDead):
        letters = [letter for page in cast(Sequence[list[DeadLetter]], answers) for letter in page]
        return sorted(letters, key=lambda letter: letter.place, reverse=True)[: operation.limit]
    if isinstance(operation, ListHistory):
        ended = [row for page in cast(Sequence[list[EndedRow]], answers) for row in page]
        return sorted(ended, key=lambda row: row.place, reverse=True)[: operation.limit]
    if isinstance(operation, ListFlags):
        return _one_per_reason([flag for flags in cast(Sequence[list[Flag]], answers) for flag in flags])
    if isinstance(operation, AskStats):
        return _sum_stats(cast(Sequence[Stats], answers))
    if isinstance(operation, AskDue):
        moments = [answer.next_ms for answer in answers if answer.next_ms is not None]
        return DueAnswer(min(operation.limit, sum(answer.due for answer in answers)), min(moments, default=None))
    if isinstance(operation, Sweep | PurgeJobs | FireSchedules):
        return sum(cast(Sequence[int], answers))
    if isinstance(operation, ListSchedules):
        schedules = [row for rows in cast(Sequence[list[ScheduleRow]], answers) for row in rows]
        return sorted(schedules, key=lambda row: row.name)
    if isinstance(operation, AskSchedules):
        return min((wait for wait in cast("Sequence[int | None]", answers) if wait is not None), default=None)
    if isinstance(operation, AskHead):
        return min((place for place in cast("Sequence[JobPlace | None]", answers) if place is not None), default=None)
    assert isinstance(operation, Pause | AckFlag | RaiseFlag), f"{operation} is for one shard"
    return any(answers)


def in_turn(heads: Sequence[JobPlace | None]) -> list[int]:
    """The shards that have something to claim, the one with the first job first."""
    found = [(head, index) for index, head in enumerate(heads) if head is not None]
    return [index for _, index in sorted(found)]


def _by_hash(key_hash: bytes, shards: int) -> int:
    return int.from_bytes(key_hash[:8], "big") % shards


def _one_per_reason(flags: Sequence[Flag]) -> list[Flag]:
    found: dict[str, Flag] = {}
    for flag in flags:
        same = found.get(flag.reason)
        if same is None:
            found[flag.reason] = flag
            continue
        last = max(same, flag, key=lambda one: one.last_ms)
        found[flag.reason] = Flag(
            flag.reason,
            same.count + flag.count,
            min(same.first_ms, flag.first_ms),
            last.last_ms,
            last.key,
            last.owner,
            last.dead_entry,
        )
    return [found[reason] for reason in sorted(found)]


def _sum_stats(found: Sequence[Stats]) -> Stats:
    oldest = [stats.oldest_due_ms for stats in found if stats.oldest_due_ms is not None]
    return Stats(
        sum(stats.ready for stats in found),
        sum(stats.delayed for stats in found),
        sum(stats.running for stats in found),
        sum(stats.dead for stats in found),
        any(stats.paused for stats in found),
        min(oldest, default=None),
    )
