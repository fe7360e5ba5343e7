"""What a partition's tail says about its end, whatever the servers say."""

from __future__ import annotations

import asyncio

import pytest

from everlog.core.record import NewRecord
from everlog.errors import TopicMissing, TopicReplaced, Unreachable
from everlog.log.kafka.index import TailBudget
from everlog.log.kafka.tail import Fetchers, Tail, TailSource
from everlog.log.port import Bounds, LogTopic

TOPIC = LogTopic("t", "id", 1)


class Leader:
    """Says where the partition starts and ends; wrong, if it has just been elected."""

    def __init__(self, start: int, end: int) -> None:
        self.listed = Bounds(start, end)
        self.missing = False

    async def bounds(self, place) -> Bounds:
        if self.missing:
            raise TopicMissing("gone")
        return self.listed

    async def end(self, place) -> int:
        return (await self.bounds(place)).end


class Administrator:
    def __init__(self) -> None:
        self.found: LogTopic | None = TOPIC

    async def describe(self, name: str) -> LogTopic | None:
        return self.found


@pytest.fixture
async def source() -> TailSource:
    return TailSource("kafka:9092", 1.0, TailBudget(100, 10**6), Leader(3, 10), Administrator(), Fetchers(_never))


def _never():
    raise AssertionError("nothing has to be fetched")


def sent(key: bytes = b"k") -> NewRecord:
    return NewRecord(0, 17, key, b"{}", b"v")


async def test_the_log_does_not_end_below_what_was_acknowledged(source):
    """A new leader may be behind for a moment."""
    tail = Tail(source, TOPIC, 0)
    assert (await tail.end(), await tail.bounds()) == (10, Bounds(3, 10))
    assert tail.acknowledge(sent(), 14, 17) is None
    assert (await tail.end(), await tail.bounds()) == (15, Bounds(3, 15))
    tail.acknowledge(sent(), 12, 17)
    assert await tail.end() == 15
    source.offsets.listed = Bounds(3, 20)
    assert await tail.end() == 20


async def test_our_own_records_enter_the_index_only_without_a_gap(source):
    tail = Tail(source, TOPIC, 0)
    index = tail.index = source.budget.open(10)
    assert tail.acknowledge(sent(b"a"), 10, 17) == 9
    assert tail.acknowledge(sent(b"b"), 11, 18) == 9
    assert tail.acknowledge(sent(b"a"), 13, 19) is None  # what is at 12?
    assert (index.lower, index.upper) == (10, 12)
    found = await tail.find(b"b", 10, 12, 5)
    assert [(record.offset, record.timestamp, record.value) for record in found] == [(11, 18, b"v")]
    # An answer that comes after the record itself was read.
    assert tail.acknowledge(sent(b"b"), 11, 18) == 9
    assert index.upper == 12


async def test_a_topic_that_is_gone_is_told_from_one_made_again(source):
    tail = Tail(source, TOPIC, 0)
    source.offsets.missing = True
    with pytest.raises(Unreachable, match="does not know it yet"):  # a broker that has just come back
        await tail.end()
    source.topics.found = LogTopic("t", "other", 1)
    with pytest.raises(TopicReplaced, match="made again"):
        await tail.end()
    source.topics.found = None
    with pytest.raises(TopicMissing, match="deleted"):
        await asyncio.wait_for(tail.bounds(), 60)
