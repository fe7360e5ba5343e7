"""What may happen to Kafka's topics, and what the pipeline makes of it."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka.admin import NewPartitions

import everlog
from everlog import Event
from everlog.api import Everlog
from everlog.core.values import partition_of
from everlog.log.port import LogTopic
from tests.conftest import Pipeline
from tests.fixtures.cluster import MakeConfig
from tests.fixtures.kafka import admin, make_topic, put_foreign, put_transaction, remove_topic, transaction, trim
from tests.pipeline.backends import ClusterBackend
from tests.pipeline.suite import TOPIC, WAIT, check_tables
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def backend(cluster_config: MakeConfig) -> ClusterBackend:
    return ClusterBackend(cluster_config())


async def topic_of(log: Everlog, name: str) -> LogTopic:
    found = await log.parts.log.topic(log.config.journal.topic_prefix + name)
    assert found is not None
    return found


async def append_all(log: Everlog, topic: str, count: int) -> None:
    """A few events in every partition."""
    for number in range(count):
        await log.journal(topic).append(f"key-{number % 5}", Event(number))


async def test_a_topic_that_is_made_again_is_left_out(backend: ClusterBackend, pipeline: Pipeline) -> None:
    """Deleted and made again while the pipeline runs: what comes then is not folded into the old tables."""
    name = backend.topic(TOPIC)
    async with everlog.connect(backend.config) as log:
        await append_all(log, TOPIC, 10)
        with pipeline(backend.config) as running:
            assert running.wait_until_replicated(WAIT), running.status
            before = (await backend.tables())["journal"]
            await asyncio.to_thread(remove_topic, backend.config, name)

            async def gone() -> bool:
                return await log.parts.log.topic(name) is None

            await until(gone, seconds=WAIT, every=0.05)
            await asyncio.to_thread(make_topic, backend.config, name, {})

            async def there() -> bool:
                return await log.parts.log.topic(name) is not None

            await until(there)  # a broker may hear of it a moment later
            made = await topic_of(log, TOPIC)
            action = b'{"append":{"range":{"from":99,"to":99},"payloadType":"json"}}'
            value = b'{"events":[{"seqNr":99}]}'
            records = [
                {"key": b"key-0", "value": value, "headers": [("journal.action", action)], "partition": partition}
                for partition in (0, 1)
                for _ in range(20)
            ]
            await asyncio.to_thread(put_foreign, backend.config, made, records)
            await log.journal("others").append("a", Event(1))

            async def goes_on() -> bool:
                # What is left out is known a moment before the next query runs.
                status = running.status
                return name in status.left_out and status.state == "running" and running.wait_until_replicated(0.1)

            await until(goes_on, seconds=WAIT, every=0.05)
            assert "made again" in running.status.left_out[name]
            rows = (await backend.tables())["journal"]
            assert [row for row in rows if row["topic"] == name] == before
            assert len(rows) == len(before) + 1


async def test_a_deleted_topic_is_left_out(backend: ClusterBackend, pipeline: Pipeline) -> None:
    async with everlog.connect(backend.config) as log:
        await append_all(log, TOPIC, 3)
        with pipeline(backend.config) as running:
            assert running.wait_until_replicated(WAIT), running.status
            await asyncio.to_thread(remove_topic, backend.config, backend.topic(TOPIC))
            await log.journal("others").append("a", Event(1))

            async def left_out() -> bool:
                return backend.topic(TOPIC) in running.status.left_out and running.wait_until_replicated(0.1)

            await until(left_out, seconds=WAIT, every=0.05)
            assert "not in the log any more" in running.status.left_out[backend.topic(TOPIC)]


async def test_a_truncated_log_is_left_out_until_the_loss_is_accepted(
    backend: ClusterBackend, pipeline: Pipeline
) -> None:
    """Records went before they were replicated: that topic waits, others go on; with the loss accepted, so does it."""
    name = backend.topic(TOPIC)
    async with everlog.connect(backend.config) as log:
        await append_all(log, TOPIC, 10)
        with pipeline(backend.config) as running:
            assert running.wait_until_replicated(WAIT), running.status
        await append_all(log, TOPIC, 20)
        topic = await topic_of(log, TOPIC)
        end = (await log.parts.log.bounds(topic, 0)).end
        await asyncio.to_thread(trim, backend.config, topic, 0, end - 2)
        await log.journal("others").append("a", Event(1))
        with pipeline(backend.config) as running:
            assert running.wait_until_replicated(WAIT), running.status
            assert "--accept-loss" in running.status.left_out[name]
            assert await log.parts.store.head(backend.topic("others"), "a") is not None
        with pipeline(backend.config, accept_loss=True) as running:
            assert running.wait_until_replicated(WAIT), running.status
            assert running.status.left_out == {}
        assert await log.parts.store.pointer(name, 0) == end - 1
        (loss,) = [last for name, last in (await log.status()).services.items() if name.startswith("loss ")]
        assert (loss["partition"], loss["to"]) == (0, end - 3)


async def test_added_partitions_stay_unused(backend: ClusterBackend, pipeline: Pipeline) -> None:
    """Keys stay where they are; what others put into the new partitions is shown in quarantine and touches nothing."""
    name = backend.topic(TOPIC)
    async with everlog.connect(backend.config) as log:
        await append_all(log, TOPIC, 10)
        with pipeline(backend.config) as running:
            assert running.wait_until_replicated(WAIT), running.status
            client = admin(backend.config)
            (future,) = client.create_partitions([NewPartitions(name, 4)]).values()
            await asyncio.to_thread(future.result, 30)
            await append_all(log, TOPIC, 10)
            moved = next(f"key-{n}" for n in range(5) if partition_of(f"key-{n}".encode(), 4) >= 2)
            wrong = {
                "key": moved.encode(),
                "partition": partition_of(moved.encode(), 4),
                "headers": [("journal.action", b'{"purge":{}}')],
            }
            await asyncio.to_thread(put_foreign, backend.config, await topic_of(log, TOPIC), [wrong])

            async def quarantined() -> bool:
                return running.status.quarantined > 0

            await until(quarantined, seconds=WAIT, every=0.05)
            assert running.wait_until_replicated(WAIT), running.status
            assert (await log.status()).lag == 0
            assert [event.payload async for event in log.journal(TOPIC).read(moved)]
            (shown,) = [item async for item in log.quarantine.list(TOPIC)]
            assert (shown.kind, shown.partition) == ("misplaced", wrong["partition"])
            assert running.status.last_error is None


@pytest.mark.case("kafka-journal", 5)
async def test_records_of_others_are_passed(backend: ClusterBackend, pipeline: Pipeline) -> None:
    """Records without a header, without a key, with other or repeated headers, and of transactions: all are passed,
    the first action counts, and pointer2 reaches the end of the log."""
    name = backend.topic(TOPIC)
    async with everlog.connect(backend.config) as log:
        await log.journal(TOPIC).append("mine", [Event(1)], headers={"a": "1"})
        topic = await topic_of(log, TOPIC)
        key = next(f"k{n}" for n in range(9) if partition_of(f"k{n}".encode(), 2) == 0)
        one = b'{"append":{"range":{"from":1,"to":1},"payloadType":"json"}}'
        value = b'{"events":[{"seqNr":1,"tags":[],"payloadType":"text","payload":"x"}]}'
        put_foreign(
            backend.config,
            topic,
            [
                {"value": b"no key"},
                {"key": key.encode()},
                {"key": key.encode(), "value": b"x", "headers": [("other", b"y"), ("null", None)]},
                {
                    "key": key.encode(),
                    "value": value,
                    "headers": [("b", None), ("journal.action", one), ("journal.action", b"{"), ("b", b"2")],
                },
            ],
        )
        await asyncio.to_thread(put_transaction, backend.config, topic, [b"x"], commit=False)
        with pipeline(backend.config) as running:
            assert running.wait_until_replicated(WAIT), running.status
            assert running.status.last_error is None
        end = (await log.parts.log.bounds(topic, 0)).end
        assert await log.parts.store.pointer(name, 0) == end - 1
        (event,) = [event async for event in log.journal(TOPIC).read(key)]
        assert (event.payload, event.headers) == ("x", {"b": "2"})
        assert [item async for item in log.quarantine.list(TOPIC)] == []
    await check_tables(backend)


async def test_the_end_of_a_transaction_is_reached_by_itself(backend: ClusterBackend, pipeline: Pipeline) -> None:
    """It takes an offset and is no record, so no arrival tells of it."""
    async with everlog.connect(backend.config) as log:
        await log.journal(TOPIC).append("mine", Event(1))
        topic = await topic_of(log, TOPIC)
        with pipeline(backend.config) as running:
            with transaction(backend.config, topic) as producer:
                producer.produce(topic.name, b"x", b"k", 0)
                assert producer.flush(30) == 0
                assert running.wait_until_replicated(WAIT), running.status
                before = (await log.parts.log.bounds(topic, 0)).end

            async def ended() -> bool:
                return (await log.parts.log.bounds(topic, 0)).end == before + 1

            await until(ended)
            assert running.wait_until_replicated(WAIT), running.status
        assert await log.parts.store.pointer(topic.name, 0) == before


@pytest.mark.faults
async def test_a_backlog_of_100_megabytes(backend: ClusterBackend, pipeline: Pipeline) -> None:
    """Many small records and some of a megabyte, all there before the pipeline starts: it takes them in bounded
    pieces, and every event is there."""
    journals, large, small = 200, 100, 100
    async with everlog.connect(backend.config) as log:
        journal = log.journal(TOPIC)
        payload = "x" * 1900
        for _ in range(small // 10):
            rounds = [journal.append(f"key-{n}", [Event(payload)] * 2, verdict=False) for n in range(journals)]
            await asyncio.gather(*rounds)
        for number in range(large):
            await journal.append(f"large-{number % 4}", Event("y" * 1_000_000))
        events = 2 * journals * (small // 10) + large
        with pipeline(backend.config) as running:
            assert running.wait_until_replicated(WAIT), running.status
            assert running.status.last_error is None
            assert running.status.events == events
        assert await journal.pointer("key-7") == 2 * (small // 10)
        assert [event.seq_nr async for event in journal.read("large-3")] == list(range(1, large // 4 + 1))
