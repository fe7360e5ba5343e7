"""A reader of ranges when Kafka's client raises errors that no broker can be made to give on demand."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from everlog.config import KafkaConfig
from everlog.errors import Unreachable
from everlog.log.kafka import range_reader
from everlog.log.kafka.range_reader import KafkaRangeReader
from everlog.log.port import LogTopic
from everlog.log.range_reader import LogRange

TOPIC = LogTopic("t", "id", 2)


class Message:
    def __init__(self, partition: int, offset: int) -> None:
        self._at = partition, offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return TOPIC.name

    def partition(self) -> int:
        return self._at[0]

    def offset(self) -> int:
        return self._at[1]

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1

    def key(self) -> bytes:
        return b"k"

    value = key


class Breaking:
    """Gives one record of partition 0, then raises."""

    made = 0

    def __init__(self, settings: dict[str, Any]) -> None:
        Breaking.made += 1
        self._left: list[Message] = [Message(0, 0)]

    def list_topics(self, name: str, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def assign(self, places: object) -> None: ...

    def poll(self, timeout: float) -> Message:
        if self._left:
            return self._left.pop()
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "it is gone"))

    def consume(self, count: int, timeout: float) -> list[Message]:
        return []

    def close(self) -> None: ...


def test_what_was_read_and_not_handed_out_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range whose last record waits for the next chunk has not been read: it fails like the others."""
    monkeypatch.setattr(range_reader, "Consumer", Breaking)
    reader = KafkaRangeReader(KafkaConfig())
    found = [part for chunk in reader.read([LogRange(TOPIC, 0, 0, 1), LogRange(TOPIC, 1, 0, 1)]) for part in chunk]
    assert {part.range.partition for part in found} == {0, 1}
    assert all(isinstance(part.error, Unreachable) and not part.records for part in found)
    list(reader.read([LogRange(TOPIC, 1, 0, 1)]))
    assert Breaking.made == 2, "after an error there is a new client"
