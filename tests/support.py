"""What several tests share: a clock that stands still, a small folder, records by hand."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from everlog.api import Everlog
from everlog.config import Config, JournalConfig, LogConfig, StoreConfig
from everlog.core.actions import (
    ActionRange,
    Append,
    Delete,
    Expected,
    Mark,
    Purge,
    Resume,
    encode_action,
    wrap_header_data,
)
from everlog.core.change import Change
from everlog.core.codec import EventData, PayloadMetadata, encode_value
from everlog.core.duration import ExpireAfter
from everlog.core.entry import Entry, decode
from everlog.core.head import Topic
from everlog.core.record import NewRecord, Record, digest

START_MS = 1_700_000_000_000  # 14 November 2023, 22:13:20 UTC
KEY = b"k"
T = TypeVar("T")


class ManualClock:
    """Time that passes only when it is told to, and ids that count."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._now_ms = now_ms
        self._ids = itertools.count(1)

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._now_ms / 1000

    def new_id(self) -> str:
        return str(uuid.UUID(int=next(self._ids)))

    def advance(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)


def examples(count: int) -> int:
    """How many examples a slow property gets: few each time, as every run adds others, and many in `make soak`."""
    return max(count, int(os.environ.get("EVERLOG_EXAMPLES", "0")))


def small_config(folder: Path, *, partitions: int = 2, **journal: Any) -> Config:
    """A folder with small segments and pages, so that a few events cross every boundary, and without fsync."""
    sizes: dict[str, Any] = {"segment_size": 3, "page_size": 4, **journal}
    return Config(
        data=str(folder),
        log=LogConfig(partitions=partitions, synchronous="NORMAL"),
        store=StoreConfig(synchronous="NORMAL"),
        journal=JournalConfig(**sizes),
    )


def at_depth(room: int, function: Callable[[], T]) -> T:
    """The answer of a function that is called with so much room left on the stack, give or take."""
    used = len(inspect.stack(0))

    def descend(levels: int) -> T:
        return function() if levels <= 0 else descend(levels - 1)

    return descend(sys.getrecursionlimit() - used - room)


def pinned_topic(
    name: str = "journal-test", *, partitions: int = 1, segment_size: int = 3, base: int = START_MS * 1000
) -> Topic:
    """A topic as the store pins it."""
    return Topic(name, "topic-id", partitions, segment_size, base)


def events_of(seq_nrs: Iterable[int], payload: str = "e") -> tuple[EventData, ...]:
    """Text events whose payload says their number."""
    return tuple(EventData(seq_nr, (), "text", f"{payload}{seq_nr}") for seq_nr in seq_nrs)


def append_record(
    offset: int,
    first: int,
    last: int | None = None,
    *,
    expected: int | None = None,
    record_id: str | None = None,
    append_id: str | None = None,
    events: Sequence[EventData] | None = None,
    expire_after: str | None = None,
    metadata: Any = None,
    origin: str | None = None,
    payload: str = "e",
    key: bytes = KEY,
    partition: int = 0,
    timestamp: int | None = None,
) -> Record:
    """An append of `first` to `last`. `record_id` is the life that `expected` was read under."""
    last = first if last is None else last
    found = events_of(range(first, last + 1), payload) if events is None else tuple(events)
    after = None if expire_after is None else ExpireAfter.parse(expire_after)
    payload_type, value = encode_value(
        found, PayloadMetadata(after, None if metadata is None else json.dumps(metadata))
    )
    action = Append(
        range=ActionRange(first, last),
        origin=origin,
        payload_type=payload_type,
        metadata=wrap_header_data(None),
        expected=None if expected is None else Expected(expected, record_id),
        id=append_id,
    )
    return _record(offset, encode_action(action), value, key=key, partition=partition, timestamp=timestamp)


def delete_record(
    offset: int, to: int, *, if_exists: bool = False, only_life: str | None = None, **place: Any
) -> Record:
    return _record(offset, encode_action(Delete(to=to, if_exists=if_exists, only_life=only_life)), None, **place)


def purge_record(offset: int, *, expire_on: date | None = None, expire_at: int | None = None, **place: Any) -> Record:
    return _record(offset, encode_action(Purge(expire_on=expire_on, expire_at=expire_at)), None, **place)


def mark_record(offset: int, mark_id: str = "mark", **place: Any) -> Record:
    return _record(offset, encode_action(Mark(id=mark_id)), None, **place)


def resume_record(offset: int, skip: Sequence[Record] = (), **place: Any) -> Record:
    return _record(offset, encode_action(Resume(skip=tuple(map(digest, skip)))), None, **place)


def broken_record(offset: int, **place: Any) -> Record:
    """A record that says it is an append and then makes no sense."""
    return _record(offset, b'{"append":{"range":5}}', b"{}", **place)


def foreign_record(offset: int, **place: Any) -> Record:
    """A record of somebody else: it has no action."""
    return _record(offset, None, b"not ours", **place)


def _record(
    offset: int,
    action: bytes | None,
    value: bytes | None,
    *,
    key: bytes = KEY,
    partition: int = 0,
    timestamp: int | None = None,
) -> Record:
    # A second apart, so that the time of a record tells which one it was.
    time = START_MS + offset * 1000 if timestamp is None else timestamp
    return Record(partition, offset, time, key, action, value)


def entries(*records: Record) -> list[Entry]:
    """What the records say."""
    return [decode(record) for record in records]


def seq_nrs(change: Change) -> list[int]:
    """The seqNrs of a fold's new rows."""
    return [row.seq_nr for row in change.rows]


async def produce_raw(log: Everlog, topic: str, record: Record) -> int:
    """Put a record into the log as it is, past every check; returns its offset."""
    ref = await log.journal(topic).ref("any", create=True)
    assert ref is not None
    new = NewRecord(record.partition, record.timestamp, record.key, record.action, record.value, record.headers)
    return (await log.parts.log.append(ref.log_topic, new)).offset
