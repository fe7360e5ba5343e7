"""Reading ahead from Kafka is bounded, loses nothing and repeats nothing; with a stand-in for the thread that fetches.

The real one is tested on a real broker, in test_kafka_tail_cluster.py.
"""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import KafkaError

from everlog.core.record import Record
from everlog.errors import LogTruncated, StorageFailed
from everlog.log.kafka import reader
from everlog.log.kafka.errors import LogPartition
from everlog.log.kafka.reader import WaitingPartition


class Partition:
    """A fetcher of one partition with records 0 to n-1, which brings a few at a time."""

    def __init__(self, records: int) -> None:
        self.records = [Record(0, number, 0, b"k", None, b"") for number in range(records)]
        self.at: int | None = None
        self.feed: WaitingPartition | None = None

    def start(self, feed, at: int) -> None:
        assert self.at is None, "it is being read already"
        self.feed, self.at = feed, at

    def stop(self, feed) -> None:
        self.at = None

    def bring(self, count: int, *, overlap: int = 0) -> None:
        if self.at is not None:
            first = max(0, self.at - overlap)  # a fetch may begin before what was asked for
            end = min(self.at + count, len(self.records))
            self.at = end
            self.feed.take(self.records[first:end], end)


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(reader, "MAX_WAITING", 10)


async def test_it_stops_when_too_much_waits_and_goes_on_where_it_was(small):
    partition, wake = Partition(100), asyncio.Event()
    waiting = WaitingPartition(LogPartition("t", 0), 3, partition, wake, "servers")
    assert waiting.taken() == []
    got: list[int] = []
    for step in range(200):
        for _ in range(4):
            partition.bring(4, overlap=step % 3)
        assert len(waiting._records) < 10 + 4
        assert wake.is_set() or not waiting._records
        got += [record.offset for record in waiting.taken()]
    assert got == list(range(3, 100)), "each once, in order"


async def test_an_error_comes_after_what_was_read(small):
    partition, wake = Partition(5), asyncio.Event()
    waiting = WaitingPartition(LogPartition("t", 0), 0, partition, wake, "servers")
    waiting.taken()
    partition.bring(5)
    waiting.fail(KafkaError(KafkaError._TRANSPORT))
    waiting.fail(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
    assert len(waiting.taken()) == 5
    assert wake.is_set()
    with pytest.raises(LogTruncated):
        waiting.taken()
    closed = WaitingPartition(LogPartition("t", 0), 0, partition, wake, "servers")
    closed.stop()
    with pytest.raises(StorageFailed):
        closed.taken()
