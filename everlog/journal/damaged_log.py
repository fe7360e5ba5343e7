"""What is left of a topic: its tables, and its log as far as that still continues them.

A log that was deleted, made again or put back to an older state says nothing about tables that were filled from another
one, so nothing of it is read; of one that was cut off in front, what is left above the cut is. It
serves to retire such a topic, to save its journals, and to read a retired one. Nothing is ever appended here.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from everlog.core.head import Topic
from everlog.core.record import NewRecord, Record
from everlog.errors import TopicRetired
from everlog.log.port import Ack, Bounds, Log, LogTopic, RecordReader, Trimmed
from everlog.store.port import Store

# A log that is trimmed faster than it can be read, this often in a row, is not worth another try.
MAX_TRIES = 10
# An end that stays behind the pointer is that of another log: nothing of it is ours.
_BEHIND = "it ends"


class Damage(NamedTuple):
    """What is wrong with the log of a topic: by partition, what it lacks. What was not replicated before is lost.

    `replaced`: the topic is not in the log any more, or is another one.
    """

    replaced: bool
    gaps: dict[int, str]

    @property
    def silent(self) -> set[int]:
        """The partitions of which nothing can be read."""
        return {partition for partition, gap in self.gaps.items() if self.replaced or gap.startswith(_BEHIND)}


class DamagedLog(Log):
    """The log of one topic that may be broken. Made by `look`."""

    def __init__(self, log: Log, store: Store, log_topic: LogTopic, name: str, damage: Damage) -> None:
        self.log_topic = log_topic
        self.name = name
        self.damage = damage
        self._log = log
        self._store = store
        self._silent = damage.silent

    @classmethod
    async def look(cls, log: Log, store: Store, topic: Topic, name: str, known: Damage | None = None) -> DamagedLog:
        """What is left of the topic, as of now; or as it is `known`. `name` is its short name, for people."""
        found = await log.topic(topic.name)
        damage = known or await _look(log, store, topic, found)
        if found is None or damage.replaced:
            found = LogTopic(topic.name, topic.id, topic.partitions)
        return cls(log, store, found, name, damage)

    @property
    def broken(self) -> bool:
        """Whether the topic cannot be continued."""
        return bool(self.damage.gaps)

    async def unreplicated(self) -> int:
        """How many records of the log are not in the tables."""
        found = 0
        for partition in set(range(self.log_topic.partitions)) - self._silent:
            pointer = await self._store.pointer(self.log_topic.name, partition)
            start, end = await self._log.bounds(self.log_topic, partition)
            found += max(0, end - max(start, pointer + 1))
        return found

    async def topic(self, name: str) -> LogTopic | None:
        return self.log_topic if name == self.log_topic.name else None

    async def create_topic(self, name: str) -> LogTopic:
        raise TopicRetired(self.name)

    async def topics(self) -> list[LogTopic]:
        return [self.log_topic]

    async def append(self, topic: LogTopic, record: NewRecord) -> Ack:
        raise TopicRetired(self.name)

    async def bounds(self, topic: LogTopic, partition: int) -> Bounds:
        if partition in self._silent:
            end = await self._store.pointer(topic.name, partition) + 1
            return Bounds(end, end)
        return await self._log.bounds(topic, partition)

    async def end(self, topic: LogTopic, partition: int, *, reach: int = 0) -> int:
        if partition in self._silent:
            return (await self.bounds(topic, partition)).end
        return await self._log.end(topic, partition, reach=reach)

    async def tail(
        self, topic: LogTopic, partition: int, key: bytes, *, after: int, before: int, limit: int
    ) -> list[Record]:
        for _ in range(MAX_TRIES):
            try:
                return await self._log.tail(topic, partition, key, after=after, before=before, limit=limit)
            except Trimmed as trimmed:
                after = self._above_cut(partition, after, trimmed)
        raise Trimmed(after + 1)

    async def tail_keys(self, topic: LogTopic, partition: int, *, after: int, before: int) -> list[bytes]:
        for _ in range(MAX_TRIES):
            try:
                return list(await self._log.tail_keys(topic, partition, after=after, before=before))
            except Trimmed as trimmed:
                after = self._above_cut(partition, after, trimmed)
        raise Trimmed(after + 1)

    def _above_cut(self, partition: int, after: int, trimmed: Trimmed) -> int:
        """Go on with what is left; but what is cut off only now is an error as ever."""
        if partition not in self.damage.gaps:
            raise trimmed
        return max(after, trimmed.start - 1)

    async def timestamp_at(self, topic: LogTopic, partition: int, offset: int) -> int | None:
        return None if partition in self._silent else await self._log.timestamp_at(topic, partition, offset)

    def reader(self) -> RecordReader:
        return self._log.reader()

    async def close(self) -> None:
        """The log itself belongs to others."""


async def _look(log: Log, store: Store, topic: Topic, found: LogTopic | None) -> Damage:
    if found is None or is_replaced(topic, found):
        reason = "the topic is not in the log any more" if found is None else "the topic was made again"
        return Damage(True, dict.fromkeys(range(topic.partitions), reason))
    # Together: one that is behind is waited for.
    gaps = await asyncio.gather(*(_gap(log, store, found, partition) for partition in range(topic.partitions)))
    return Damage(False, {partition: gap for partition, gap in enumerate(gaps) if gap is not None})


async def _gap(log: Log, store: Store, topic: LogTopic, partition: int) -> str | None:
    """What a partition lacks that the tables do not hold, or hold already."""
    pointer = await store.pointer(topic.name, partition)
    end = await log.end(topic, partition, reach=pointer + 1)
    start = (await log.bounds(topic, partition)).start
    if end <= pointer:
        return f"{_BEHIND} at {end}, and {pointer} is replicated"
    return f"{pointer + 1} to {start - 1} are gone" if start > pointer + 1 else None


def is_replaced(topic: Topic, found: LogTopic) -> bool:
    """Whether the log's topic is not the one that was pinned, or has lost partitions."""
    return topic.id != found.id or topic.partitions > found.partitions
