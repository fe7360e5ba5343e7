"""The log on Kafka: topics there are topics here, and so are partitions and offsets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any

from everlog.config import Config
from everlog.core.record import NewRecord, Record
from everlog.errors import InvalidInput
from everlog.log.kafka.arrivals import Arrivals
from everlog.log.kafka.client import consumer_settings, producer_settings
from everlog.log.kafka.fetcher import Fetcher
from everlog.log.kafka.index import TailBudget
from everlog.log.kafka.offsets import MAX_RETRY_S, MIN_RETRY_S, EndOffsets
from everlog.log.kafka.producer import KafkaProducer
from everlog.log.kafka.reader import KafkaReader
from everlog.log.kafka.tail import Fetchers, Tail, TailSource
from everlog.log.kafka.topics import Topics
from everlog.log.port import Ack, Bounds, Log, LogTopic, RecordReader
from everlog.runtime.clock import Clock
from everlog.runtime.retry import NO_JITTER, Backoff
from everlog.runtime.trace import Trace

FORGET_S = 10.0


class KafkaLog(Log):
    """A log on a Kafka cluster; it belongs to the event loop in which it was opened."""

    def __init__(self, config: Config, topics: Topics, *, trace: Trace | None = None) -> None:
        kafka = config.kafka
        assert kafka is not None
        self._kafka = kafka
        loop = asyncio.get_running_loop()
        consuming = consumer_settings(kafka)
        self._timeout = kafka.request_timeout_s
        self._topics = topics
        self._tails: dict[LogTopic, list[Tail]] = {}
        self._offsets = EndOffsets(consuming, loop, timeout=kafka.request_timeout_s, trace=trace)
        self._arrivals = Arrivals(consuming)
        self._fetchers = Fetchers(lambda: Fetcher(consuming, loop, trace))
        self._source = TailSource(
            servers=kafka.bootstrap_servers,
            timeout=kafka.request_timeout_s,
            budget=TailBudget(kafka.max_tail_records, kafka.max_tail_bytes),
            offsets=self._offsets,
            topics=topics,
            fetchers=self._fetchers,
        )
        self._producer = KafkaProducer(
            producer_settings(config),
            loop,
            timeout=config.journal.append_timeout_s,
            reason=topics.too_few_replicas,
            trace=trace,
        )
        self._closed = False
        self._loop = loop
        self._timer = loop.call_later(FORGET_S, self._forget)

    @classmethod
    async def open(cls, config: Config, *, clock: Clock | None = None, trace: Trace | None = None) -> KafkaLog:
        """Connect; Unreachable or AccessDenied if that is not possible."""
        topics = Topics(config, trace=trace)
        await topics.connect()
        return cls(config, topics, trace=trace)

    def _tail(self, topic: LogTopic, partition: int) -> Tail:
        tails = self._tails.get(topic)
        if tails is None:
            tails = [Tail(self._source, topic, number) for number in range(topic.partitions)]
            self._tails[topic] = tails
        if not 0 <= partition < topic.partitions:
            raise InvalidInput(f"{topic.name} has the partitions 0 to {topic.partitions - 1}, not {partition}")
        return tails[partition]

    async def topic(self, name: str) -> LogTopic | None:
        return await self._topics.describe(name)

    async def create_topic(self, name: str) -> LogTopic:
        return await self._topics.create(name)

    async def topics(self) -> list[LogTopic]:
        return await self._topics.all()

    def append(self, topic: LogTopic, record: NewRecord) -> Coroutine[Any, Any, Ack]:
        return self._producer.append(self._tail(topic, record.partition), record)

    async def bounds(self, topic: LogTopic, partition: int) -> Bounds:
        return await self._tail(topic, partition).bounds()

    async def end(self, topic: LogTopic, partition: int, *, reach: int = 0) -> int:
        tail = self._tail(topic, partition)
        end = await tail.end()
        if end >= reach:
            return end
        # A leader that was elected a moment ago may be behind what a reader has seen already.
        deadline, backoff = self._loop.time() + self._timeout, Backoff(MIN_RETRY_S, MAX_RETRY_S, jitter=NO_JITTER)
        while end < reach and self._loop.time() < deadline:
            await backoff.sleep()
            end = await tail.end()
        return end

    def floor(self, topic: LogTopic, partition: int) -> int:
        return self._tail(topic, partition).floor()

    async def tail(
        self, topic: LogTopic, partition: int, key: bytes, *, after: int, before: int, limit: int
    ) -> list[Record]:
        return await self._tail(topic, partition).find(key, after, before, limit) if before > after + 1 else []

    async def tail_keys(self, topic: LogTopic, partition: int, *, after: int, before: int) -> list[bytes]:
        return await self._tail(topic, partition).keys(after, before) if before > after + 1 else []

    async def timestamp_at(self, topic: LogTopic, partition: int, offset: int) -> int | None:
        found = await self._tail(topic, partition).first(offset)
        return None if found is None else found.timestamp

    def reader(self) -> RecordReader:
        return KafkaReader(self._kafka)

    async def find_topics(self, names: Collection[str]) -> dict[str, LogTopic]:
        return await self._topics.find(names)

    async def wait_for_records(self, ends: Mapping[LogTopic, Sequence[int]], timeout_s: float) -> bool:
        return await asyncio.to_thread(self._arrivals.wait, ends, timeout_s)

    async def concerns(self) -> dict[str, list[str]]:
        return await self._topics.concerns()

    def _forget(self) -> None:
        """Now and then: indexes that no reader uses make room."""
        for tail in itertools.chain(*self._tails.values()):
            tail.forget()
        self._timer = self._loop.call_later(FORGET_S, self._forget)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        for tail in itertools.chain(*self._tails.values()):
            tail.close()
        await self._producer.close()
        await self._fetchers.close()
        await self._offsets.close()
        await asyncio.to_thread(self._arrivals.close)
        await self._topics.close()
