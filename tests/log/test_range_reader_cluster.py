"""Ranges of real Kafka partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from everlog.config import Config
from everlog.errors import LogTruncated, Unreachable
from everlog.log.factory import make_range_reader
from everlog.log.kafka import range_reader
from everlog.log.kafka.log import KafkaLog
from everlog.log.port import Log, LogTopic
from everlog.log.range_reader import LogRange, RangeReader
from tests.fixtures.cluster import MakeConfig
from tests.fixtures.kafka import opened, put_transaction, trim, with_kafka
from tests.log.range_reader_suite import RangeReaderSuite, read_all
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
def config(shared_config: MakeConfig) -> Config:
    return shared_config()


@pytest.fixture
async def log(config: Config) -> AsyncIterator[KafkaLog]:
    async with opened(config) as log:
        yield log


@pytest.fixture
async def topic(config: Config, log: Log) -> LogTopic:
    return await log.create_topic(f"{config.journal.topic_prefix}ranges")


async def put_all_of_a_transaction(config: Config, log: Log, topic: LogTopic, *, commit: bool) -> None:
    """A record and its marker, which the broker writes a moment after it has confirmed the transaction's end."""
    before = (await log.bounds(topic, 0)).end
    await asyncio.to_thread(put_transaction, config, topic, [b"x"], commit=commit)

    async def marked() -> bool:
        return (await log.bounds(topic, 0)).end == before + 2

    await until(marked)


class TestKafkaRanges(RangeReaderSuite):
    module = range_reader

    async def test_holes_and_control_records(
        self, config: Config, log: Log, topic: LogTopic, reader: RangeReader
    ) -> None:
        """Offsets without a record are passed, also where a range consists of them or ends in them."""
        await self.fill(log, topic, 2)
        await put_all_of_a_transaction(config, log, topic, commit=True)
        await put_all_of_a_transaction(config, log, topic, commit=False)
        await self.fill(log, topic, 1)
        end = (await log.bounds(topic, 0)).end
        assert end == 7, "two records, twice a record and a marker, and one more"
        offsets = [record.offset for record in read_all(reader, [LogRange(topic, 0, 0, end)])[f"{topic.name}/0"]]
        assert offsets == [0, 1, 2, 4, 6]
        for start in range(end):
            for upto in range(start + 1, end + 1):
                found = read_all(reader, [LogRange(topic, 0, start, upto)])[f"{topic.name}/0"]
                assert [record.offset for record in found] == [at for at in offsets if start <= at < upto]

    async def test_a_marker_is_the_last(self, config: Config, log: Log, topic: LogTopic, reader: RangeReader) -> None:
        await put_all_of_a_transaction(config, log, topic, commit=True)
        assert len(read_all(reader, [LogRange(topic, 0, 0, 2)])[f"{topic.name}/0"]) == 1
        assert read_all(reader, [LogRange(topic, 0, 1, 2)]) == {f"{topic.name}/0": []}

    async def test_a_log_that_is_truncated_between_plan_and_read(
        self, config: Config, log: Log, topic: LogTopic, reader: RangeReader
    ) -> None:
        """Also for a reader that has read there before."""
        kept = await self.fill(log, topic, 8)
        assert read_all(reader, [LogRange(topic, 0, 0, 2)])[f"{topic.name}/0"] == kept[0][:2]
        await asyncio.to_thread(trim, config, topic, 0, 5)
        found = [part for chunk in reader.read([LogRange(topic, 0, 2, 8), LogRange(topic, 1, 2, 8)]) for part in chunk]
        assert [record for part in found if part.range.partition == 1 for record in part.records] == kept[1][2:]
        (error,) = [part.error for part in found if part.error is not None]
        assert isinstance(error, LogTruncated)
        assert error.partition == 0
        assert read_all(reader, [LogRange(topic, 0, 5, 8)])[f"{topic.name}/0"] == kept[0][5:]

    async def test_no_broker_answers(self, config: Config, topic: LogTopic) -> None:
        """There is a deadline, and the error says what the broker's client says."""
        deaf = with_kafka(config, bootstrap_servers="127.0.0.1:9", request_timeout_s=0.5)
        reader = make_range_reader(deaf)
        (found,) = [part for chunk in reader.read([LogRange(topic, 0, 0, 1)]) for part in chunk]
        assert isinstance(found.error, Unreachable)
        assert "127.0.0.1:9" in str(found.error)
        reader.close()
