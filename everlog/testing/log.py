"""What every log must do."""

from __future__ import annotations

import asyncio

import pytest

from everlog.core.record import NewRecord, Record
from everlog.errors import EverlogError
from everlog.log.port import Bounds, Log, LogTopic


def new_record(key: bytes | None = b"k", partition: int = 0, value: bytes | None = b"v", at: int = 1) -> NewRecord:
    return NewRecord(partition, at, key, b'{"mark":{"id":"m"}}', value)


async def everything(log: Log, topic: LogTopic, partition: int, key: bytes, limit: int = 1000) -> list[Record]:
    bounds = await log.bounds(topic, partition)
    return await log.tail(topic, partition, key, after=bounds.start - 1, before=bounds.end, limit=limit)


class LogConformance:
    """Subclass it and provide the fixture `log`: an open log whose topics have at least two partitions.

    Where others may have topics in the same log, override `prefix`: what no name of theirs starts with.
    """

    pytestmark = pytest.mark.asyncio

    @pytest.fixture
    def prefix(self) -> str:
        return ""

    async def test_a_topic_is_created_once(self, log: Log, prefix: str) -> None:
        assert await log.topic(f"{prefix}journal-a") is None
        created = await log.create_topic(f"{prefix}journal-a")
        assert created.name == f"{prefix}journal-a"
        assert created.partitions >= 2
        assert await log.create_topic(f"{prefix}journal-a") == created
        assert await log.topic(f"{prefix}journal-a") == created

    async def test_topics_are_listed_by_name_with_ids_of_their_own(self, log: Log, prefix: str) -> None:
        created = [
            await log.create_topic(name) for name in (f"{prefix}journal-b", f"{prefix}journal-a", f"{prefix}other")
        ]
        listed = [topic for topic in await log.topics() if topic.name.startswith(prefix)]
        assert [topic.name for topic in listed] == [f"{prefix}journal-a", f"{prefix}journal-b", f"{prefix}other"]
        assert len({topic.id for topic in listed}) == 3
        assert set(listed) == set(created)

    async def test_starters_at_once_create_one_topic(self, log: Log, prefix: str) -> None:
        found = await asyncio.gather(*(log.create_topic(f"{prefix}journal-a") for _ in range(8)))
        assert len(set(found)) == 1

    async def test_a_new_topic_is_empty(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        for partition in range(topic.partitions):
            assert await log.bounds(topic, partition) == Bounds(0, 0)
            assert await log.tail_keys(topic, partition, after=-1, before=10) == []
            assert await log.timestamp_at(topic, partition, 0) is None

    async def test_a_record_comes_back_as_it_was(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        headers = (("a", b"1"), ("b", b"\xff"), ("a", b"2"))
        sent = [
            NewRecord(1, 17, b"k", b"action", b"\x00\xff" * 10_000, headers),
            NewRecord(1, 18, b"k", None, None),
            NewRecord(1, 16, b"k", b"", b""),
        ]
        acks = [await log.append(topic, record) for record in sent]
        assert [ack.offset for ack in acks] == [0, 1, 2]
        found = await everything(log, topic, 1, b"k")
        assert found == [
            Record(1, offset, record.timestamp, record.key, record.action, record.value, record.headers)
            for offset, record in enumerate(sent)
        ]

    async def test_offsets_of_each_partition_and_topic_count_from_zero(self, log: Log, prefix: str) -> None:
        first, second = await log.create_topic(f"{prefix}journal-a"), await log.create_topic(f"{prefix}journal-b")
        for topic, partition, expected in ((first, 0, 0), (first, 1, 0), (first, 0, 1), (second, 0, 0), (first, 1, 1)):
            assert (await log.append(topic, new_record(partition=partition))).offset == expected
        assert await log.bounds(first, 0) == Bounds(0, 2)
        assert await log.bounds(first, 1) == Bounds(0, 2)
        assert await log.bounds(second, 0) == Bounds(0, 1)
        assert await log.bounds(second, 1) == Bounds(0, 0)

    async def test_appends_at_once_get_offsets_without_holes(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        acks = await asyncio.gather(*(log.append(topic, new_record(b"%d" % (at % 7))) for at in range(200)))
        assert sorted(ack.offset for ack in acks) == list(range(200))
        assert (await log.bounds(topic, 0)).end == 200
        by_key = [await everything(log, topic, 0, b"%d" % at) for at in range(7)]
        assert sorted(record.offset for records in by_key for record in records) == list(range(200))

    async def test_what_is_acknowledged_is_readable(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        for value in (b"1", b"2", b"3"):
            ack = await log.append(topic, new_record(value=value))
            assert (await everything(log, topic, 0, b"k"))[-1].value == value
            assert (await log.bounds(topic, 0)).end == ack.offset + 1

    async def test_an_ack_knows_the_record_of_the_key_before_it(self, log: Log, prefix: str) -> None:
        """`previous` may be None; a number promises that nothing of the key lies between it and the record."""
        topic = await log.create_topic(f"{prefix}journal-a")
        last: dict[tuple[int, bytes], int] = {}
        for partition, key in ((0, b"a"), (0, b"b"), (0, b"a"), (1, b"a"), (0, b"b"), (0, b"a")):
            ack = await log.append(topic, new_record(key, partition))
            if ack.previous is not None:
                assert last.get((partition, key), -1) <= ack.previous < ack.offset
            last[partition, key] = ack.offset

    async def test_acks_of_appends_at_once_chain_up(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        acks = await asyncio.gather(*(log.append(topic, new_record(b"%d" % (at % 2))) for at in range(50)))
        for key in (b"0", b"1"):
            offsets = [record.offset for record in await everything(log, topic, 0, key)]
            before = dict(zip(offsets, [-1, *offsets], strict=False))
            for ack in acks:
                if ack.offset in before and ack.previous is not None:
                    assert before[ack.offset] <= ack.previous < ack.offset

    async def test_a_tail_is_one_keys_records_between_two_offsets(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        for key in (b"a", b"b", b"a", b"a", b"b", b"a"):
            await log.append(topic, new_record(key))

        async def offsets(key: bytes, after: int, before: int, limit: int = 100) -> list[int]:
            return [r.offset for r in await log.tail(topic, 0, key, after=after, before=before, limit=limit)]

        assert await offsets(b"a", -1, 6) == [0, 2, 3, 5]
        assert await offsets(b"a", 0, 5) == [2, 3]
        assert await offsets(b"a", -1, 6, limit=2) == [0, 2]
        assert await offsets(b"b", 1, 6) == [4]
        assert await offsets(b"c", -1, 6) == []
        assert await log.tail(topic, 1, b"a", after=-1, before=6, limit=100) == []

    async def test_the_keys_of_a_tail_are_distinct(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        for key in (b"a", b"b", b"a", None, b"\xff", b"c"):
            await log.append(topic, new_record(key))
        assert sorted(await log.tail_keys(topic, 0, after=-1, before=6)) == [b"a", b"b", b"c", b"\xff"]
        assert sorted(await log.tail_keys(topic, 0, after=0, before=3)) == [b"a", b"b"]
        assert await log.tail_keys(topic, 0, after=5, before=6) == []
        assert await log.tail_keys(topic, 1, after=-1, before=6) == []

    async def test_the_time_of_a_record_is_found_by_its_offset(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        for at in (100, 50, 200):
            await log.append(topic, new_record(at=at))
        assert [await log.timestamp_at(topic, 0, offset) for offset in range(4)] == [100, 50, 200, None]

    async def test_a_wrong_partition_is_an_error_and_harms_nobody(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        with pytest.raises(EverlogError):
            await log.append(topic, new_record(partition=topic.partitions))
        assert (await log.append(topic, new_record())).offset == 0

    async def test_a_closed_log_can_be_closed_again(self, log: Log, prefix: str) -> None:
        topic = await log.create_topic(f"{prefix}journal-a")
        await log.append(topic, new_record())
        await log.close()
        await log.close()
