"""Ranges of the embedded log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.config import Config, LogConfig
from everlog.core.fair_shares import next_ends
from everlog.errors import EverlogError, LogTruncated, TopicReplaced
from everlog.log.factory import open_log
from everlog.log.port import Log, LogTopic
from everlog.log.range_reader import LogRange, RangeReader
from everlog.log.sqlite import range_reader
from tests.log.range_reader_suite import RangeReaderSuite, read_all


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(data=str(tmp_path / "data"), log=LogConfig(partitions=2, retention_bytes=1))


@pytest.fixture
async def log(config: Config) -> AsyncIterator[Log]:
    log = await open_log(config)
    yield log
    await log.close()


@pytest.fixture
async def topic(log: Log) -> LogTopic:
    return await log.create_topic("ranges")


def error_of(reader: RangeReader, wanted: LogRange) -> EverlogError | None:
    (error,) = {part.error for chunk in reader.read([wanted]) for part in chunk if part.error is not None}
    return error


class TestSqliteRanges(RangeReaderSuite):
    module = range_reader

    async def test_a_topic_of_another_id(self, log: Log, topic: LogTopic, reader: RangeReader) -> None:
        """The file is another one than the driver has seen."""
        kept = await self.fill(log, topic, 3)
        assert isinstance(error_of(reader, LogRange(topic._replace(id="other"), 0, 0, 3)), TopicReplaced)
        assert isinstance(error_of(reader, LogRange(topic._replace(name="others"), 0, 0, 3)), TopicReplaced)
        assert read_all(reader, [LogRange(topic, 0, 1, 3)])[f"{topic.name}/0"] == kept[0][1:]

    async def test_a_file_that_was_made_again(
        self, config: Config, log: Log, topic: LogTopic, reader: RangeReader
    ) -> None:
        """A connection to the file that was there before must not go on."""
        await self.fill(log, topic, 3)
        assert read_all(reader, [LogRange(topic, 0, 0, 1)])
        await log.close()
        for file in config.folder.glob("log.db*"):
            file.unlink()
        anew = await open_log(config)
        again = await anew.create_topic(topic.name)
        kept = await self.fill(anew, again, 3)
        assert isinstance(error_of(reader, LogRange(again, 0, 0, 3)), TopicReplaced)
        assert read_all(reader, [LogRange(again, 0, 0, 3)])[f"{topic.name}/0"] == kept[0]
        await anew.close()

    async def test_a_hole_is_an_error(self, log: Log, topic: LogTopic, reader: RangeReader) -> None:
        """The log was trimmed between plan and read: nothing may be published past what is missing."""
        await self.fill(log, topic, 6)
        assert await log.trim(topic, 0, below=3)
        for start in (0, 2):
            assert isinstance(error_of(reader, LogRange(topic, 0, start, 6)), LogTruncated)
        assert len(read_all(reader, [LogRange(topic, 0, 3, 6)])[f"{topic.name}/0"]) == 3


PARTITIONS = st.sampled_from(["a/0", "a/1", "b/0", "b/1"])


@given(
    st.dictionaries(PARTITIONS, st.integers(0, 20)), st.dictionaries(PARTITIONS, st.integers(0, 20)), st.integers(1, 40)
)
def test_shares_are_fair(starts: dict[str, int], lags: dict[str, int], most: int) -> None:
    """What is behind gets something, nothing beyond its end, all within the bound but for one record each; and none
    gets less than another one unless it needs no more."""
    ends = {name: starts.get(name, 0) + lag for name, lag in lags.items()}
    parts = {name: end - starts.get(name, 0) for name, end in next_ends(starts, ends, most).items()}
    assert parts.keys() == {name for name, lag in lags.items() if lag}
    assert all(0 < part <= lags[name] for name, part in parts.items())
    assert sum(parts.values()) <= max(most, len(parts))
    assert sum(parts.values()) >= min(most, sum(lags.values()))
    waiting = [part for name, part in parts.items() if part < lags[name]]
    assert all(max(parts.values()) - part <= 1 for part in waiting)


def test_a_range_travels() -> None:
    topic = LogTopic("journal-orders", "id", 4)
    assert LogRange(topic, 3, 0, 9).name == "journal-orders/3"
    assert msgspec.json.encode(topic) == b'["journal-orders","id",4]'
