"""The tail on Kafka: fetched when somebody asks, once, and bounded; and right whatever the log looks like."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from everlog.config import Config
from everlog.errors import StorageFailed, TopicReplaced
from everlog.log.kafka import follower
from everlog.log.kafka import tail as tail_module
from everlog.log.kafka.log import KafkaLog
from everlog.log.kafka.tail import NOWHERE
from everlog.log.port import Ack, Bounds, Trimmed
from tests.fixtures.kafka import (
    Traced,
    make_topic,
    new_record,
    opened,
    put_foreign,
    put_transaction,
    remove_topic,
    transaction,
    trim,
    with_kafka,
)
from tests.waiting import until

pytestmark = pytest.mark.cluster


@pytest.fixture
def config(shared_config) -> Config:
    return shared_config(partitions=2)


@pytest.fixture
def name(config) -> str:
    return f"{config.journal.topic_prefix}t"


@pytest.fixture(autouse=True)
def fresh(monkeypatch) -> None:
    """However long a busy machine takes between two looks, an index stays fresh until a test says otherwise."""
    monkeypatch.setattr(tail_module, "FRESH_S", 3600.0)


def keyed(many: int, keys: int = 1, start: int = 0, size: int = 1):
    """Records of somebody else: key k0, k1, … in turn, the value says the offset."""
    return [{"key": b"k%d" % (at % keys), "value": b"%d" % (start + at) + b"." * size} for at in range(many)]


async def offsets(log: KafkaLog, topic, key: bytes, after: int, before: int, limit: int = 10_000) -> list[int]:
    return [record.offset for record in await log.tail(topic, 0, key, after=after, before=before, limit=limit)]


async def until_nobody_reads(log: KafkaLog, topic) -> None:
    """Reading stops by itself a moment after the last one who waited."""
    tail = log._tail(topic, 0)
    await until(lambda: tail._follower is None or tail._follower.stopped)


# What is consumed, and when.


@pytest.mark.case("kafka-journal", 36)
async def test_only_what_lies_above_the_pointer_is_consumed(config, name):
    """Up to offset 90 everything is replicated: the log is read from 91 on, and each record comes once."""
    trace = Traced()
    async with opened(config, trace) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(100))
        assert await offsets(log, topic, b"k0", 90, 100) == list(range(91, 100))
        assert trace.fetched == 9


async def test_what_was_fetched_before_is_not_fetched_again(config, name):
    trace = Traced()
    async with opened(config, trace) as log:
        topic = await log.create_topic(name)
        for start in (0, 40, 80):
            put_foreign(config, topic, keyed(40, start=start, keys=2))
            end = await log.end(topic, 0)
            assert end == start + 40
            assert await offsets(log, topic, b"k1", -1, end) == list(range(1, end, 2))
            assert await offsets(log, topic, b"k0", 9, end) == list(range(10, end, 2))
            await until_nobody_reads(log, topic)
        assert trace.fetched == 120


async def test_readers_at_the_same_time_share_a_fetch(config, name):
    trace = Traced()
    async with opened(config, trace) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(500, keys=50))
        found = await asyncio.gather(*(offsets(log, topic, b"k%d" % key, -1, 500) for key in range(50)))
        assert found == [list(range(key, 500, 50)) for key in range(50)]
        assert trace.fetched == 500


async def test_nothing_is_consumed_while_nobody_reads(config, name):
    trace = Traced()
    async with opened(config, trace) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(10))
        assert len(await offsets(log, topic, b"k0", -1, 10)) == 10
        await until_nobody_reads(log, topic)
        put_foreign(config, topic, keyed(50, start=10))
        await asyncio.sleep(3 * follower.CHECK_S)
        assert trace.fetched == 10
        # And later only what is asked for: 10 to 39 are replicated meanwhile.
        assert await offsets(log, topic, b"k0", 39, 60) == list(range(40, 60))
        assert trace.fetched == 30


async def test_what_lies_below_is_fetched_once_and_kept(config, name):
    trace = Traced()
    async with opened(config, trace) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(100, keys=2))
        assert await offsets(log, topic, b"k0", 79, 100) == list(range(80, 100, 2))
        assert log.floor(topic, 0) == 80
        found = await asyncio.gather(*(offsets(log, topic, b"k%d" % (at % 2), 29, 100) for at in range(10)))
        assert found == [list(range(30 + at % 2, 100, 2)) for at in range(10)]
        assert log.floor(topic, 0) == 30
        assert trace.fetched == 70
        assert log._source.budget.records == 70


async def test_a_lone_writer_does_not_read_its_own_records_back(config, name):
    """An acknowledgement then also says that nothing of the key lies between."""
    trace = Traced()
    async with opened(config, trace) as log:
        topic = await log.create_topic(name)
        await log.append(topic, new_record(b"a"))
        assert await offsets(log, topic, b"a", -1, 1) == [0]
        fetched = trace.fetched
        acks = [await log.append(topic, new_record(key)) for key in (b"b", b"a", b"a", b"b")]
        assert acks == [Ack(1, -1), Ack(2, 0), Ack(3, 2), Ack(4, 1)]
        assert await offsets(log, topic, b"a", 0, 5) == [2, 3]
        await until_nobody_reads(log, topic)
        many = await asyncio.gather(*(log.append(topic, new_record(b"%d" % (at % 5))) for at in range(100)))
        assert all(ack.previous is not None for ack in many)
        assert await offsets(log, topic, b"3", 4, 105) == [ack.offset for ack in many[3::5]]
        # What was under way when the index was begun may have come twice; nothing after that is fetched.
        assert trace.fetched - fetched <= 4


async def test_a_foreign_record_between_is_found(config, name):
    """The acknowledgement does not claim to know, and the tail has all of them."""
    async with opened(config) as log:
        topic = await log.create_topic(name)
        await log.append(topic, new_record(b"k0"))
        assert await offsets(log, topic, b"k0", -1, 1) == [0]
        await until_nobody_reads(log, topic)
        put_foreign(config, topic, keyed(3, start=1))
        ack = await log.append(topic, new_record(b"k0"))
        assert ack == Ack(4, None)
        assert await offsets(log, topic, b"k0", 0, 5) == [1, 2, 3, 4]
        assert (await log.append(topic, new_record(b"k0"))).offset == 5
        assert await offsets(log, topic, b"k0", 3, 6) == [4, 5]


async def test_two_writers_at_once_agree_on_the_order(config, name):
    """Whatever way a record took into an index: what acknowledgements promise holds, and all tails are the same."""
    chance = random.Random(7)
    async with opened(config) as one, opened(config) as two:
        topic = await one.create_topic(name)
        acked: list[tuple[bytes, Ack]] = []

        async def write(log: KafkaLog, many: int) -> None:
            known = -1
            for _ in range(many):
                key = b"%d" % chance.randrange(4)
                ack = await log.append(topic, new_record(key))
                acked.append((key, ack))
                if chance.random() < 0.7:
                    found = await offsets(log, topic, key, known, ack.offset + 1)
                    assert found[-1] == ack.offset
                    known = max(known, ack.offset - chance.randrange(20))

        await asyncio.gather(*(write(log, 60) for log in (one, two) for _ in range(4)))
        end = await one.end(topic, 0)
        assert end == len(acked) == 480
        by_key = {key: sorted(ack.offset for found, ack in acked if found == key) for key in (b"0", b"1", b"2", b"3")}
        for key, expected in by_key.items():
            assert await offsets(one, topic, key, -1, end) == await offsets(two, topic, key, -1, end) == expected
        promised = [(key, ack) for key, ack in acked if ack.previous is not None]
        assert promised
        for key, ack in promised:
            assert not [other for other in by_key[key] if ack.previous < other < ack.offset]


async def test_a_state_known_long_ago_is_not_brought_up_to_date_from_the_log(config, name):
    """While nobody here looked, others may have filled the log: then a writer had better look at the store again."""
    async with opened(config) as log:
        topic = await log.create_topic(name)
        assert log.floor(topic, 0) == NOWHERE
        put_foreign(config, topic, keyed(10))
        await offsets(log, topic, b"k0", 3, 10)
        assert log.floor(topic, 0) == 4
        tail = log._tail(topic, 0)
        tail._grown -= tail_module.FRESH_S
        assert log.floor(topic, 0) == NOWHERE
        await log.append(topic, new_record(b"k0"))
        assert log.floor(topic, 0) == 4


# Bounds.


@pytest.mark.case("kafka-journal", 46)
async def test_beyond_its_bounds_the_tail_is_streamed(config, name):
    """An index of fifty records and a tail of five hundred: every key is complete all the same, page by page."""
    trace = Traced()
    async with opened(with_kafka(config, max_tail_records=50), trace) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(500, keys=5))
        for key in range(5):
            assert await offsets(log, topic, b"k%d" % key, -1, 500) == list(range(key, 500, 5))
        assert await offsets(log, topic, b"k0", -1, 500, limit=7) == list(range(0, 35, 5))
        assert sorted(await log.tail_keys(topic, 0, after=-1, before=500)) == [b"k%d" % key for key in range(5)]
        assert log.floor(topic, 0) == NOWHERE  # nothing is kept of what does not fit
        assert log._source.budget.records == 0
        # What fits is indexed, and goes from below.
        assert await offsets(log, topic, b"k4", 459, 500) == list(range(464, 500, 5))
        assert log.floor(topic, 0) == 460
        put_foreign(config, topic, keyed(30, start=500, keys=5))
        assert await offsets(log, topic, b"k4", 489, 530) == list(range(494, 530, 5))
        assert 460 < log.floor(topic, 0) <= 490
        assert log._source.budget.records <= 50
        assert await offsets(log, topic, b"k4", 459, 530) == list(range(464, 530, 5))


async def test_the_bound_in_bytes_counts_over_all_partitions(config, name):
    async with opened(with_kafka(config, max_tail_bytes=100_000)) as log:
        topic = await log.create_topic(name)
        for partition in (0, 1):
            records = [{**record, "partition": partition} for record in keyed(40, keys=4, size=4000)]
            put_foreign(config, topic, records)
        for partition in (0, 1, 0):
            for key in range(4):
                found = await log.tail(topic, partition, b"k%d" % key, after=-1, before=40, limit=100)
                assert [record.offset for record in found] == list(range(key, 40, 4))
            assert log._source.budget.bytes <= 100_000


async def test_streams_are_few_and_those_who_give_up_leave_no_reader_behind(config, name):
    async with opened(with_kafka(config, max_tail_records=1)) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(300, keys=3))
        waiting = [asyncio.create_task(offsets(log, topic, b"k%d" % (at % 3), -1, 300)) for at in range(12)]
        await asyncio.sleep(0)
        for task in waiting[::4]:
            task.cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        for at, answer in enumerate(found):
            if at % 4 == 0:
                assert isinstance(answer, asyncio.CancelledError)
            else:
                assert answer == list(range(at % 3, 300, 3))
        assert len(log._fetchers._all) <= 3


async def test_one_who_gives_up_does_not_stop_the_others(config, name):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(100))
        first, second = (asyncio.create_task(offsets(log, topic, b"k0", -1, 100)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == list(range(100))
        assert first.cancelled() or first.done()


async def test_an_index_that_nobody_uses_is_let_go_of(config, name, monkeypatch):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(10))
        assert len(await offsets(log, topic, b"k0", -1, 10)) == 10
        await until_nobody_reads(log, topic)
        log._forget()
        assert log._source.budget.records == 10
        monkeypatch.setattr("everlog.log.kafka.tail.UNUSED_S", 0.0)
        log._forget()
        assert log._source.budget.records == 0
        assert len(await offsets(log, topic, b"k0", -1, 10)) == 10


# What the log may look like.


async def test_holes_in_the_log_are_passed(config, name):
    """The end of a transaction is an offset without a record, even the last one: nobody waits for it."""
    async with opened(config) as log:
        topic = await log.create_topic(name)
        await log.append(topic, new_record(b"k"))
        put_transaction(config, topic, [b"1", b"2"])
        put_transaction(config, topic, [b"3"], commit=False)
        # The broker writes the end of a transaction a moment after it promised to.
        async with asyncio.timeout(30):
            while (end := await log.end(topic, 0)) < 6:  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(0.01)
        assert end == 6
        # Uncommitted and aborted records are read as Spark reads them.
        assert await offsets(log, topic, b"k", -1, end) == [0, 1, 2, 4]
        assert await offsets(log, topic, b"k", 2, end) == [4]
        assert await offsets(log, topic, b"k", 4, end) == []
        assert await log.timestamp_at(topic, 0, 5) is None
        assert await log.append(topic, new_record(b"k")) == Ack(6, 4)
        assert await log.timestamp_at(topic, 0, 5) == 1
    async with opened(config) as fresh:
        assert await offsets(fresh, topic, b"k", 4, 7) == [6]
        assert await offsets(fresh, topic, b"k", 0, 4) == [1, 2]
        assert await fresh.tail_keys(topic, 0, after=4, before=6) == []


async def test_records_of_a_transaction_under_way_count(config, name):
    """As for Spark: the log ends behind them, and they are read."""
    async with opened(config) as log:
        topic = await log.create_topic(name)
        with transaction(config, topic) as producer:
            producer.produce(topic.name, b"1", b"k", 0)
            assert producer.flush(30) == 0
            assert await log.end(topic, 0) == 1
            assert (await log.bounds(topic, 0)).end == 1
            assert await offsets(log, topic, b"k", -1, 1) == [0]
            ack = await log.append(topic, new_record(b"k"))
            assert await log.end(topic, 0) == 2
            assert await offsets(log, topic, b"k", -1, ack.offset + 1) == [0, 1]


async def test_a_trimmed_log_says_so(config, name):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(20))
        trim(config, topic, 0, 8)
        assert await log.bounds(topic, 0) == Bounds(8, 20)
        with pytest.raises(Trimmed) as caught:
            await offsets(log, topic, b"k0", -1, 20)
        assert caught.value.start == 8
        with pytest.raises(Trimmed):
            await log.tail_keys(topic, 0, after=3, before=20)
        assert await offsets(log, topic, b"k0", 7, 20) == list(range(8, 20))
        assert await log.timestamp_at(topic, 0, 0) is not None
        # Trimmed below what is known: nothing is missing for those who know it.
        trim(config, topic, 0, 15)
        assert await offsets(log, topic, b"k0", 7, 20) == list(range(8, 20))
        with pytest.raises(Trimmed) as caught:
            await offsets(log, topic, b"k0", 5, 20)
        assert caught.value.start == 15


async def test_a_log_trimmed_to_its_end_says_so(config, name):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(5))
        assert len(await offsets(log, topic, b"k0", -1, 5)) == 5
        await until_nobody_reads(log, topic)
        put_foreign(config, topic, keyed(5, start=5))
        trim(config, topic, 0, 10)
        with pytest.raises(Trimmed) as caught:
            await offsets(log, topic, b"k0", 2, 10)
        assert caught.value.start == 10
        ack = await log.append(topic, new_record(b"k0"))
        assert await offsets(log, topic, b"k0", 9, ack.offset + 1) == [10]


async def test_more_than_there_is_gives_what_there_is(config, name):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        assert await offsets(log, topic, b"k0", -1, 5) == []
        put_foreign(config, topic, keyed(3))
        assert await offsets(log, topic, b"k0", -1, 100) == [0, 1, 2]
        assert await offsets(log, topic, b"k0", 7, 100) == []
        put_foreign(config, topic, keyed(9, start=3))
        assert await offsets(log, topic, b"k0", 7, 100) == [8, 9, 10, 11]


async def test_records_of_others_come_as_they_are(config, name):
    headers = [("journal.action", b"1"), ("x", None), ("journal.action", b"2"), ("y", b"\xff")]
    foreign = [
        {"value": b"no key"},
        {"key": b"k", "value": b"no header"},
        {"key": b"k", "value": None, "headers": headers},
        {"key": b"\xff", "value": b"", "headers": [("z", b"")]},
        {"key": b"", "value": b"empty key"},
    ]
    async with opened(config) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, foreign)
        (first, second) = await log.tail(topic, 0, b"k", after=-1, before=5, limit=10)
        assert (first.offset, first.action, first.value, first.headers) == (1, None, b"no header", ())
        assert (second.action, second.value, second.headers) == (b"1", None, (("x", b""), ("y", b"\xff")))
        (odd,) = await log.tail(topic, 0, b"\xff", after=-1, before=5, limit=10)
        assert (odd.offset, odd.value, odd.headers) == (3, b"", (("z", b""),))
        assert [r.value for r in await log.tail(topic, 0, b"", after=-1, before=5, limit=10)] == [b"empty key"]
        assert sorted(await log.tail_keys(topic, 0, after=-1, before=5)) == [b"", b"k", b"\xff"]


async def test_where_the_broker_sets_the_time_all_see_that_time(config, name):
    """On a topic that was taken over: our own record has it without being read back."""
    make_topic(config, name, {"message.timestamp.type": "LogAppendTime"})
    async with opened(config) as one, opened(config) as two:
        topic = await one.create_topic(name)
        assert await offsets(one, topic, b"k", -1, 1) == []
        ack = await one.append(topic, new_record(b"k"))
        (mine,) = await one.tail(topic, 0, b"k", after=-1, before=ack.offset + 1, limit=5)
        (theirs,) = await two.tail(topic, 0, b"k", after=-1, before=ack.offset + 1, limit=5)
        assert mine == theirs
        assert mine.timestamp > 1


# What may happen meanwhile.


async def test_a_topic_made_again_is_refused_instead_of_waited_for(config, name):
    config = with_kafka(config, request_timeout_s=5.0)
    async with opened(config) as log:
        topic = await log.create_topic(name)
        await asyncio.gather(*(log.append(topic, new_record()) for _ in range(10)))
        assert len(await offsets(log, topic, b"k", -1, 10)) == 10
        remove_topic(config, name)
        while await log.topic(name) is not None:  # noqa: ASYNC110 (servers learn of it one after the other)
            await asyncio.sleep(0.02)
        async with opened(config) as other:
            again = await other.create_topic(name)
        assert again.id != topic.id
        await until_nobody_reads(log, topic)
        with pytest.raises((TopicReplaced, StorageFailed)) as caught:
            await offsets(log, topic, b"k", -1, 11)
        assert "made again" in str(caught.value)
        # The new one starts from nothing.
        assert await log.create_topic(name) == again
        assert await log.bounds(again, 0) == Bounds(0, 0)
        assert (await log.append(again, new_record())).offset == 0
        assert await offsets(log, again, b"k", -1, 1) == [0]


async def test_the_end_is_asked_again_until_it_is_where_somebody_saw_it(config, name, monkeypatch):
    async with opened(config) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(3))
        assert await log.end(topic, 0, reach=3) == 3
        monkeypatch.setattr(log, "_timeout", 0.5)
        assert await log.end(topic, 0, reach=5) == 3  # a bounded while
    async with opened(config) as log:
        waiting = asyncio.create_task(log.end(topic, 0, reach=4))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(put_foreign, config, topic, keyed(1, start=3))
        assert await waiting == 4


async def test_no_thread_is_left_behind(config, name):
    async with opened(with_kafka(config, max_tail_records=5)) as log:
        topic = await log.create_topic(name)
        await asyncio.gather(*(log.append(topic, new_record()) for _ in range(20)))
        assert len(await offsets(log, topic, b"k", -1, 20)) == 20
        assert len(await offsets(log, topic, b"k", 17, 20)) == 2
        reading = asyncio.create_task(offsets(log, topic, b"k", 17, 10**6))
        await asyncio.sleep(0)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("everlog-kafka")] == []
    assert len(await asyncio.gather(reading, return_exceptions=True)) == 1


async def test_reading_and_writing_go_on_in_another_loop(config, name):
    """A log belongs to its loop; the next loop opens its own."""

    def work() -> int:
        async def run() -> int:
            async with opened(config) as log:
                topic = await log.create_topic(name)
                ack = await log.append(topic, new_record())
                return len(await offsets(log, topic, b"k", -1, ack.offset + 1))

        return asyncio.run(run())

    assert [await asyncio.to_thread(work) for _ in range(3)] == [1, 2, 3]


async def test_a_record_above_the_bounds_of_a_page_comes_with_the_next(config, name):
    """Pages of a long tail, as the reader asks for them, give every record once."""
    async with opened(config) as log:
        topic = await log.create_topic(name)
        put_foreign(config, topic, keyed(57))
        after, found = -1, []
        while page := await log.tail(topic, 0, b"k0", after=after, before=57, limit=10):
            found += [record.offset for record in page]
            after = found[-1]
        assert found == list(range(57))
