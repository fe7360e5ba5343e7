"""Reading on until a position is reached: what a reader may conclude from what it is told."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest
from confluent_kafka import KafkaError

from everlog.core.record import Record
from everlog.errors import AccessDenied, StorageFailed, TopicReplaced, Unreachable
from everlog.log.kafka import follower as module
from everlog.log.kafka.errors import LogPartition
from everlog.log.kafka.follower import PartitionFollower
from everlog.log.port import Bounds, Trimmed
from tests.models.projection_time import run_virtually


class FakeFetcher:
    """Remembers who reads from where."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.reading = False

    def start(self, feed, at: int) -> None:
        assert not self.reading
        self.reading = True
        self.started.append(at)

    def stop(self, feed) -> None:
        self.reading = False


class FakePartition:
    """Says what its leader would say."""

    place = LogPartition("t", 0)
    servers = "kafka:9092"

    def __init__(self, start: int = 0, end: int = 10, timeout: float = 60.0) -> None:
        self.known = Bounds(start, end)
        self.timeout = timeout
        self.asked = asyncio.Event()
        self.replaced = False

    async def end(self) -> int:
        self.asked.set()
        return self.known.end

    async def bounds(self) -> Bounds:
        self.asked.set()
        return self.known

    async def check(self) -> None:
        if self.replaced:
            raise TopicReplaced("made again")


def records(*offsets: int) -> list[Record]:
    return [Record(0, offset, 0, b"k", None, b"") for offset in offsets]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "CHECK_S", 0.005)


class Reader:
    def __init__(self, partition: FakePartition, at: int = 0) -> None:
        self.partition = partition
        self.fetcher = FakeFetcher()
        self.found: list[int] = []
        self.following = PartitionFollower(partition, self.fetcher, at, self._take)

    def _take(self, taken, position: int) -> None:
        assert not taken or taken[-1].offset < position
        self.found += [record.offset for record in taken]

    def reach(self, before: int) -> asyncio.Task[int]:
        return asyncio.create_task(self.following.reach(before))


async def test_a_position_is_reached_when_it_is_passed():
    reader = Reader(FakePartition())
    first, second = reader.reach(3), reader.reach(5)
    await asyncio.sleep(0)
    reader.following.take(records(0, 1), 2)
    reader.following.take(records(3), 4)  # there is no 2
    assert await first == 3
    assert not second.done()
    reader.following.take([], 7)  # the end of the log, behind offsets without a record
    assert await second == 5
    assert await reader.following.reach(7) == 7
    reader.following.stop()
    assert reader.found == [0, 1, 3]
    assert not reader.fetcher.reading


async def test_what_is_known_from_elsewhere_is_not_taken_again():
    reader = Reader(FakePartition())
    waiting = reader.reach(4)
    await asyncio.sleep(0)
    reader.following.advance(4)
    assert await waiting == 4
    reader.following.take(records(2, 3), 4)
    reader.following.take(records(3, 4, 5), 6)
    assert reader.found == [4, 5]
    reader.following.stop()


async def test_an_end_below_the_position_is_not_believed_without_asking():
    """The server that was read from may be behind; the leader knows."""
    partition = FakePartition(end=5)
    reader = Reader(partition)
    waiting = reader.reach(5)
    await asyncio.sleep(0)
    reader.following.take(records(0, 1), 2)
    reader.following.end(2)
    await partition.asked.wait()
    await asyncio.sleep(0)
    assert not waiting.done()
    reader.following.take(records(2, 4), 5)
    assert await waiting == 5
    reader.following.stop()


async def test_at_the_end_of_the_log_nobody_waits_for_more():
    reader = Reader(FakePartition(end=2))
    waiting = reader.reach(100)
    await asyncio.sleep(0)
    reader.following.take(records(0, 1), 2)
    reader.following.end(2)
    assert await waiting == 2
    reader.following.stop()


async def test_a_trimmed_log_is_an_answer():
    reader = Reader(FakePartition(start=4))
    waiting = [reader.reach(5), reader.reach(9)]
    await asyncio.sleep(0)
    reader.following.fail(KafkaError(KafkaError._AUTO_OFFSET_RESET))
    for found in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(found, Trimmed)
        assert found.start == 4
    with pytest.raises(Trimmed):
        await reader.following.reach(5)
    assert not reader.fetcher.reading


async def test_a_log_that_ends_below_is_not_waited_for():
    """What is known of it is not to be trusted."""
    reader = Reader(FakePartition(end=3), at=7)
    waiting = reader.reach(9)
    await asyncio.sleep(0)
    reader.following.fail(KafkaError(KafkaError._AUTO_OFFSET_RESET))
    assert await waiting == 7
    assert reader.following.beyond


async def test_a_leader_that_was_behind_for_a_moment_is_asked_again():
    reader = Reader(FakePartition())
    waiting = reader.reach(3)
    await asyncio.sleep(0)
    reader.following.take(records(0), 1)
    reader.following.fail(KafkaError(KafkaError._AUTO_OFFSET_RESET))
    while len(reader.fetcher.started) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert reader.fetcher.started == [0, 1]
    reader.following.take(records(1, 2), 3)
    assert await waiting == 3
    reader.following.stop()


async def test_silence_is_not_waited_for_endlessly():
    reader = Reader(FakePartition(timeout=0.05))
    reader.following.fail(KafkaError(KafkaError._TRANSPORT))  # it may be over in a moment
    with pytest.raises(Unreachable, match=r"offset 0 .* ends at 10"):
        await reader.following.reach(3)
    assert not reader.fetcher.reading


def test_progress_is_not_silence():
    async def run() -> None:
        reader = Reader(FakePartition(timeout=1.0))
        waiting = reader.reach(20)
        for offset in range(20):  # all of them take longer
            await asyncio.sleep(0.9)
            reader.following.take(records(offset), offset + 1)
        assert await waiting == 20
        reader.following.stop()

    run_virtually(run())


async def test_a_topic_made_again_ends_the_silence():
    partition = FakePartition(timeout=0.05)
    partition.replaced = True
    reader = Reader(partition)
    with pytest.raises(TopicReplaced):
        await reader.following.reach(3)


async def test_an_error_that_stays_is_told_at_once():
    reader = Reader(FakePartition())
    waiting = reader.reach(3)
    await asyncio.sleep(0)
    reader.following.fail(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(AccessDenied):
        await waiting


async def test_those_who_wait_learn_that_the_log_is_closed():
    reader = Reader(FakePartition())
    waiting = reader.reach(3)
    await asyncio.sleep(0)
    reader.following.stop(StorageFailed("the log is closed"))
    with pytest.raises(StorageFailed, match="closed"):
        await waiting


async def test_reading_stops_when_nobody_waits(monkeypatch):
    monkeypatch.setattr(module, "LINGER_S", 0.02)
    reader = Reader(FakePartition())
    waiting = reader.reach(1)
    await asyncio.sleep(0.05)
    assert reader.fetcher.reading
    reader.following.take(records(0), 1)
    assert await waiting == 1
    while reader.fetcher.reading:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert reader.following.stopped
    assert not reader.following.beyond


async def test_one_who_gives_up_is_forgotten(monkeypatch):
    monkeypatch.setattr(module, "LINGER_S", 0.02)
    reader = Reader(FakePartition())
    waiting = reader.reach(1)
    await asyncio.sleep(0)
    waiting.cancel()
    while reader.fetcher.reading:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert waiting.cancelled()


async def test_a_look_that_is_stopped_before_it_begins_leaves_nothing_behind():
    """It was decided on and not begun: no coroutine is left that was never awaited."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        reader = Reader(FakePartition(start=5))
        waiting = reader.reach(9)
        await asyncio.sleep(0)
        reader.following.fail(KafkaError(KafkaError._AUTO_OFFSET_RESET))
        reader.following.stop(StorageFailed("closed"))
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), StorageFailed)
        del reader, waiting
        await asyncio.sleep(0)
        gc.collect()
    assert [str(one.message) for one in seen] == []
