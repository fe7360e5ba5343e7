"""What the tests of the log on Kafka share: other people's producers, and a log whose requests are counted."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from everlog.config import Config
from everlog.core.record import NewRecord
from everlog.log.kafka.client import admin_settings, client_settings
from everlog.log.kafka.log import KafkaLog
from everlog.log.port import LogTopic

_FETCHED = re.compile(r"fetch \S+ up to \d+: (\d+) records")


class Traced:
    """Counts what a log asks of Kafka."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, seconds: float) -> None:
        assert seconds >= 0
        self.lines.append(text)

    @property
    def fetched(self) -> int:
        """How many records were consumed."""
        return sum(int(found[1]) for line in self.lines if (found := _FETCHED.match(line)))


def with_kafka(config: Config, **settings: Any) -> Config:
    """The same, with other settings in `[kafka]`."""
    return msgspec.structs.replace(config, kafka=msgspec.structs.replace(config.kafka, **settings))


@asynccontextmanager
async def opened(config: Config, trace: Traced | None = None) -> AsyncIterator[KafkaLog]:
    log = await KafkaLog.open(config, trace=trace)
    try:
        yield log
    finally:
        await log.close()


def admin(config: Config) -> AdminClient:
    return AdminClient(admin_settings(config.kafka))


def make_topic(config: Config, name: str, settings: dict[str, str], partitions: int = 2) -> None:
    """A topic that somebody else has made."""
    client = admin(config)
    (future,) = client.create_topics([NewTopic(name, partitions, 1, config=settings)]).values()
    future.result(30)


def remove_topic(config: Config, name: str) -> None:
    client = admin(config)
    (future,) = client.delete_topics([name]).values()
    future.result(30)


def trim(config: Config, topic: LogTopic, partition: int, start: int) -> None:
    """Let a partition start at this offset."""
    client = admin(config)
    (future,) = client.delete_records([TopicPartition(topic.name, partition, start)]).values()
    assert future.result(30).low_watermark == start


def put_foreign(config: Config, topic: LogTopic, records: Iterable[dict[str, Any]], **settings: Any) -> None:
    """Records of somebody else's producer, in partition 0 unless they say otherwise."""
    producer = Producer({**client_settings(config.kafka), "linger.ms": 0, **settings})
    for record in records:
        producer.produce(topic.name, **{"partition": 0, **record})
    assert producer.flush(30) == 0


@contextmanager
def transaction(config: Config, topic: LogTopic, *, commit: bool = True) -> Iterator[Producer]:
    """A transaction; its end is a record that no consumer ever sees."""
    producer = Producer({**client_settings(config.kafka), "transactional.id": f"{topic.name}-t"})
    producer.init_transactions(30)
    producer.begin_transaction()
    yield producer
    (producer.commit_transaction if commit else producer.abort_transaction)(30)


def put_transaction(config: Config, topic: LogTopic, values: Sequence[bytes], *, commit: bool = True) -> None:
    """Records of a transaction, in partition 0."""
    with transaction(config, topic, commit=commit) as producer:
        for value in values:
            producer.produce(topic.name, value, b"k", 0)
        assert producer.flush(30) == 0


def new_record(key: bytes | None = b"k", value: bytes | None = b"v", partition: int = 0, at: int = 1) -> NewRecord:
    return NewRecord(partition, at, key, b'{"mark":{"id":"m"}}', value)
