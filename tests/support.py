"""What several tests share: a clock that stands still, records by hand, and a transport without Spark.

`replicate` calls the pipeline's own `apply` and publishes as the driver does. Only what carries the records from the
log to it, Spark, is left out.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

from everlog.client import Everlog
from everlog.config import Config, JournalConfig, LogConfig, StoreConfig
from everlog.errors import ReplicationFailed
from everlog.journal.actions import Append, Delete, Expected, Mark, Purge, Range, Resume, encode_action
from everlog.journal.codec import EventData, PayloadMetadata, encode_value
from everlog.journal.duration import ExpireAfter
from everlog.journal.fold import Change, Entry, decode
from everlog.journal.head import Topic
from everlog.log.appending import SQL
from everlog.log.base import NewRecord, Record
from everlog.log.sqlite import SqliteLog
from everlog.pipeline.apply import Applied, Grouped, apply
from everlog.pipeline.blocks import decode_block, encode_block
from everlog.sqlite import connect as connect_file

START_MS = 1_700_000_000_000  # 14 November 2023, 22:13:20 UTC
KEY = b"k"


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


def small_config(folder: Path, *, partitions: int = 2, **journal: Any) -> Config:
    """A folder with small segments and pages, so that a few events cross every boundary, and without fsync."""
    sizes: dict[str, Any] = {"segment_size": 3, "page_size": 4, **journal}
    return Config(
        data=str(folder),
        log=LogConfig(partitions=partitions, synchronous="NORMAL"),
        store=StoreConfig(synchronous="NORMAL"),
        journal=JournalConfig(**sizes),
    )


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
    payload_type, value = encode_value(found, PayloadMetadata(after, metadata))
    action = Append(
        range=Range(first, last),
        origin=origin,
        payload_type=payload_type,
        metadata={},
        expected=None if expected is None else Expected(expected, record_id),
        id=append_id,
    )
    return _record(offset, encode_action(action), value, key=key, partition=partition, timestamp=timestamp)


def delete_record(offset: int, to: int, *, if_exists: bool = False, **place: Any) -> Record:
    return _record(offset, encode_action(Delete(to=to, if_exists=if_exists)), None, **place)


def purge_record(offset: int, *, expire_on: date | None = None, **place: Any) -> Record:
    return _record(offset, encode_action(Purge(expire_on=expire_on)), None, **place)


def mark_record(offset: int, mark_id: str = "mark", **place: Any) -> Record:
    return _record(offset, encode_action(Mark(id=mark_id)), None, **place)


def resume_record(offset: int, skip: Sequence[int] = (), **place: Any) -> Record:
    return _record(offset, encode_action(Resume(skip=tuple(skip))), None, **place)


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


async def replicate(
    log: Everlog,
    *,
    batch: int = 1000,
    rounds: int | None = None,
    publish: bool = True,
    start: int | None = None,
) -> list[Applied]:
    """Fold the un-replicated records of all topics into the tables, in micro-batches of `batch` records per partition.

    `rounds` stops after so many micro-batches. `publish=False` leaves out the publishing of every one of them, as if
    the driver had died after the tasks. `start` replays from an earlier offset instead of the pointer.
    """
    store, clock = log.parts.store, log.parts.clock
    source = log.parts.log
    assert isinstance(source, SqliteLog)
    positions: dict[tuple[str, int], int] = {}
    done: list[Applied] = []
    with closing(connect_file(source.path)) as connection:
        while rounds is None or rounds > 0:
            ends: dict[tuple[str, int], int] = {}
            for topic in await store.pinned():
                nr = connection.execute(SQL["topic"], (topic.name,)).fetchone()[0]
                for partition in range(topic.partitions):
                    place = (topic.name, partition)
                    if place not in positions:
                        pointer = await store.pointer(*place)
                        positions[place] = pointer + 1 if start is None else min(start, pointer + 1)
                    first = positions[place]
                    (_, end) = connection.execute(SQL["bounds"], (nr, partition)).fetchone()
                    end = min(end, first + batch)
                    if end <= first:
                        continue
                    rows = connection.execute(SQL["range"], (nr, partition, first, end)).fetchall()
                    grouped = Grouped()
                    grouped.add(topic, decode_block(encode_block(rows)))
                    applied = await apply(store, topic, partition, grouped)
                    done.append(applied)
                    positions[place] = end
                    ends[place] = end - 1
            if not ends:
                break
            failed = {key: reason for applied in done for key, reason in applied.failed.items()}
            if failed:
                raise ReplicationFailed(f"journals that could not be written: {failed}")
            if publish:
                await store.publish(ends, clock.now_ms())
            rounds = None if rounds is None else rounds - 1
    return done
