"""Doubles of `Store` and `Log`: each statement is a step of its own, between which others run and processes die."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NoReturn, TypeVar

from everlog.core.change import Quarantined
from everlog.core.events import EventRecord
from everlog.core.head import Head, Topic
from everlog.core.record import NewRecord, Record
from everlog.core.values import segment_of
from everlog.log.port import Ack, Bounds, Log, LogTopic, Trimmed
from everlog.store.cassandra.expiry import Hint, hints_of
from everlog.store.port import KeyChange, RowCursor, Store, StoreTask, Verdict
from tests.models.scheduler import Step
from tests.models.tables import Tables

Statement = tuple[str, Callable[[], None]]
T = TypeVar("T")


def _not_in_the_model(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError


def double(kind: type[T]) -> type[T]:
    """A double has only what the model needs; the rest of the interface raises."""
    for name in getattr(kind, "__abstractmethods__", ()):
        setattr(kind, name, _not_in_the_model)
    return abc.update_abstractmethods(kind)


@double
class TaskDouble(StoreTask):
    """The writes of a micro-batch, one statement after the other, in any order within a call."""

    def __init__(self, store: StoreDouble) -> None:
        self.tables = store.tables
        self.random = store.random
        self.store = store

    async def __aenter__(self) -> TaskDouble:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is taken back: there are no transactions."""

    async def pointer(self) -> int:
        await Step("read the pointer")
        return self.tables.pointer()

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        found = {}
        for journal_id in ids:
            await Step(f"read the head of {journal_id}")
            head = self.tables.head(journal_id)
            if head is not None:
                found[journal_id] = head
        return found

    async def waiting(self, journal_id: str) -> list[Quarantined]:
        await Step(f"read what waits of {journal_id}")
        return self.tables.waiting(journal_id)

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        await self.carry_out([statement for key in changes for statement in self.row_statements(key)])
        return {}

    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        heads = [(key.id, head) for key in changes if (head := key.head) is not None]
        await self.carry_out(self.hint_statements(hints_of(heads)))
        await self.carry_out([self.head_statement(journal_id, head) for journal_id, head in heads])
        return {}

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        await self.carry_out([statement for key in changes for statement in self.garbage_statements(key)])
        return {}

    async def carry_out(self, statements: list[Statement]) -> None:
        self.random.shuffle(statements)
        for label, write in statements:
            await Step(label)
            write()

    def row_statements(self, key: KeyChange) -> list[Statement]:
        change = key.change
        statements: list[Statement] = [
            (f"set {found.record.offset} of {key.id} aside", partial(self.tables.put_waiting, key.id, found))
            for found in change.quarantined
        ]
        statements += [
            (f"write the verdict on {found.offset} of {key.id}", partial(self.tables.put_verdict, found))
            for found in key.verdicts
        ]
        for row in change.rows:
            assert change.head is not None
            segment = segment_of(row.seq_nr, change.head.segment_size)
            write = partial(self.tables.put_event, key.id, segment, row)
            statements.append((f"write row {row.seq_nr}@{row.offset} of {key.id}", write))
            self.store.won.add((key.id, row.offset))
        self.store.lost.update((key.id, lost.offset) for lost in change.rejected)
        return statements

    def hint_statements(self, hints: Sequence[Hint]) -> list[Statement]:
        days = {hint.day: max(other.offset for other in hints if other.day == hint.day) for hint in hints}
        statements: list[Statement] = [
            (f"write the hint on {hint.day} of {hint.id}, at {hint.offset}", partial(self.tables.put_hint, hint))
            for hint in hints
        ]
        return statements + [
            (f"write the day {day}, at {offset}", partial(self.tables.put_hint_day, day, offset))
            for day, offset in days.items()
        ]

    def head_statement(self, journal_id: str, head: Head) -> Statement:
        return f"write head {describe(head)} of {journal_id}", partial(self.tables.put_head, journal_id, head)

    def garbage_statements(self, key: KeyChange) -> list[Statement]:
        statements: list[Statement] = []
        for deletion in key.garbage:
            for segment in range(deletion.first, deletion.last + 1):
                label = f"delete rows of {key.id} in segment {segment} to {deletion.to}, at {deletion.offset}"
                write = partial(self.tables.delete_events, key.id, segment, deletion.to, deletion.offset)
                statements.append((label, write))
            if deletion.quarantine is not None:
                label = f"delete what waits of {key.id} to {deletion.quarantine}, at {deletion.offset}"
                write = partial(self.tables.delete_waiting, key.id, deletion.quarantine, deletion.offset)
                statements.append((label, write))
        return statements


@double
class StoreDouble(Store):
    """A store without transactions. `won` and `lost` are the appends whose verdicts tasks wrote down."""

    task_class: type[TaskDouble] = TaskDouble
    tables_class: type[Tables] = Tables

    def __init__(self, tables: Tables, random: Random) -> None:
        self.tables = tables
        self.random = random
        self.won: set[tuple[str, int]] = set()
        self.lost: set[tuple[str, int]] = set()

    def task(self, topic: Topic, partition: int) -> TaskDouble:
        return self.task_class(self)

    async def pointer(self, topic: str, partition: int) -> int:
        await Step("read the pointer")
        return self.tables.pointer()

    async def publish(self, pointers: Mapping[tuple[str, int], int], now_ms: int) -> None:
        for offset in pointers.values():
            await Step(f"publish {offset}")
            self.tables.put_pointer(offset)

    async def head(self, topic: str, journal_id: str) -> Head | None:
        await Step(f"read the head of {journal_id}")
        return self.tables.head(journal_id)

    async def waiting(self, topic: str, journal_id: str) -> list[Quarantined]:
        await Step(f"read what waits of {journal_id}")
        return self.tables.waiting(journal_id)

    async def verdicts(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Verdict]:
        found: list[Verdict] = []
        for offset in offsets:
            await Step(f"read the verdict on {offset}")
            found += self.tables.verdicts(offset)
        return found

    async def rows(
        self,
        topic: str,
        journal_id: str,
        *,
        segment_size: int,
        first: int,
        last: int,
        reverse: bool,
        limit: int,
        after: RowCursor | None = None,
        life: str | None = None,
    ) -> list[EventRecord]:
        segments = range(segment_of(first, segment_size), segment_of(last, segment_size) + 1)
        page: list[EventRecord] = []
        for segment in reversed(segments) if reverse else segments:
            await Step(f"read segment {segment} of {journal_id}")
            found = [
                event
                for event in self.tables.events(journal_id, segment)
                if first <= event.seq_nr <= last
                and segment_of(event.seq_nr, segment_size) == segment
                and (after is None or _behind(event, after, reverse))
            ]
            page += found[::-1] if reverse else found
            if len(page) >= limit:
                break
        return page[:limit]

    async def close(self) -> None:
        """Nothing is open."""


@double
class LogDouble(Log):
    """One partition in memory. Often it cannot tell the key's previous record."""

    forgets = 0.5

    def __init__(self, topic: LogTopic, random: Random) -> None:
        self.log_topic = topic
        self.random = random
        self.start = 0
        self.records: list[Record] = []

    def put(self, new: NewRecord) -> Ack:
        """The append itself."""
        offset = len(self.records)
        same = [record.offset for record in self.records if record.key == new.key]
        self.records.append(Record(0, offset, new.timestamp, new.key, new.action, new.value, new.headers))
        return Ack(offset, None if self.random.random() < self.forgets else max(same, default=-1))

    def trim(self, start: int) -> None:
        self.start = max(self.start, start)

    async def append(self, topic: LogTopic, record: NewRecord) -> Ack:
        await Step(f"append to {record.key!r}")
        return self.put(record)

    async def bounds(self, topic: LogTopic, partition: int) -> Bounds:
        await Step("read the log's bounds")
        return Bounds(self.start, len(self.records))

    async def end(self, topic: LogTopic, partition: int, *, reach: int = 0) -> int:
        await Step("read the log's end")
        return len(self.records)

    async def tail(
        self, topic: LogTopic, partition: int, key: bytes, *, after: int, before: int, limit: int
    ) -> list[Record]:
        await Step(f"read the tail of {key!r} after {after}")
        found = self.records[max(after + 1, self.start) : before]
        await Step("read the log's start")
        if self.start > after + 1:
            raise Trimmed(self.start)
        return [record for record in found if record.key == key][:limit]

    async def close(self) -> None:
        """Nothing is open."""


def describe(head: Head) -> str:
    """A head in a few words, for the schedule."""
    state = "purged" if head.purged else f"seqNr {head.seq_nr}, deleted to {head.delete_to}"
    halt = "" if head.halted_at is None else f", halted at {head.halted_at}"
    return f"@{head.offset} ({state}{halt})"


def _behind(event: EventRecord, cursor: RowCursor, reverse: bool) -> bool:
    place = (event.seq_nr, event.timestamp)
    return place < cursor if reverse else place > cursor
