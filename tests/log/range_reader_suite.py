"""What every reader of ranges promises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import ModuleType

import pytest

from everlog.config import Config
from everlog.core.record import NewRecord, Record
from everlog.errors import LogTruncated
from everlog.log.factory import make_range_reader
from everlog.log.port import Log, LogTopic
from everlog.log.range_reader import LogRange, RangeReader


def new_record(partition: int, number: int, size: int = 1) -> NewRecord:
    """With a key, an action and headers now and then."""
    headers = (("trace", b"%d" % number), ("empty", b"")) if number % 3 == 0 else ()
    action = None if number % 5 == 4 else b'{"purge":{}}'
    return NewRecord(partition, 1_700_000_000_000 + number, b"k%d" % number, action, b"x" * size, headers)


def read_all(reader: RangeReader, ranges: Iterable[LogRange]) -> dict[str, list[Record]]:
    """The records of each range, in the order in which they came; no error may come."""
    wanted = list(ranges)
    found: dict[str, list[Record]] = {one.name: [] for one in wanted}
    for chunk in reader.read(wanted):
        for part in chunk:
            assert part.error is None, part.error
            found[part.range.name] += part.records
    return found


class RangeReaderSuite:
    """Needs fixtures `config` and `log`, with two partitions, and `topic`, one of that log; `module`: of the reader."""

    module: ModuleType

    @pytest.fixture
    def reader(self, config: Config) -> Iterator[RangeReader]:
        reader = make_range_reader(config)
        yield reader
        reader.close()

    async def fill(self, log: Log, topic: LogTopic, count: int, size: int = 1) -> list[list[Record]]:
        """So many records in each partition, as the log must give them back."""
        kept: list[list[Record]] = [[], []]
        for number in range(count):
            for partition in (0, 1):
                new = new_record(partition, number, size)
                ack = await log.append(topic, new)
                kept[partition].append(
                    Record(partition, ack.offset, new.timestamp, new.key, new.action, new.value, new.headers)
                )
        return kept

    async def test_every_range_of_a_few_records(self, log: Log, topic: LogTopic, reader: RangeReader) -> None:
        """Exactly what lies in a range, with every field, whatever was read before it."""
        kept = await self.fill(log, topic, 6)
        ends = [(start, end) for start in range(6) for end in range(start + 1, 7)]
        for start, end in ends:
            found = read_all(reader, [LogRange(topic, 0, start, end), LogRange(topic, 1, 6 - end, 6 - start)])
            assert found == {
                f"{topic.name}/0": kept[0][start:end],
                f"{topic.name}/1": kept[1][6 - end : 6 - start],
            }

    async def test_chunks_are_bounded(
        self, log: Log, topic: LogTopic, reader: RangeReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A long range comes in pieces, and so does one of large records."""
        kept = await self.fill(log, topic, 40, size=200)
        for name, limit in (("MAX_CHUNK_RECORDS", 10), ("MAX_CHUNK_BYTES", 1_000)):
            with monkeypatch.context() as patch:
                patch.setattr(self.module, name, limit)
                patch.setattr(self.module, "MESSAGES", 3, raising=False)
                chunks = [
                    [record for part in chunk for record in part.records]
                    for chunk in reader.read([LogRange(topic, 0, 0, 40)])
                ]
            assert max(map(len, chunks)) <= 12
            assert [record for chunk in chunks for record in chunk] == kept[0]

    async def test_a_reader_that_is_left_in_the_middle_can_be_used_again(
        self, log: Log, topic: LogTopic, reader: RangeReader, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = await self.fill(log, topic, 40)
        monkeypatch.setattr(self.module, "MAX_CHUNK_RECORDS", 10)
        chunks = reader.read([LogRange(topic, 0, 0, 40)])
        next(chunks)
        chunks.close()
        assert read_all(reader, [LogRange(topic, 0, 3, 9)]) == {f"{topic.name}/0": kept[0][3:9]}

    async def test_a_range_beyond_the_end(self, log: Log, topic: LogTopic, reader: RangeReader) -> None:
        """The log ended below what was planned: an error for that range, after what there is; the other one is read."""
        kept = await self.fill(log, topic, 4)
        found = [part for chunk in reader.read([LogRange(topic, 0, 2, 9), LogRange(topic, 1, 0, 4)]) for part in chunk]
        assert [record for part in found if part.range.partition == 1 for record in part.records] == kept[1]
        assert [record for part in found if part.range.partition == 0 for record in part.records] in ([], kept[0][2:])
        (error,) = [part.error for part in found if part.error is not None]
        assert isinstance(error, LogTruncated)
        assert (error.topic, error.partition) == (topic.name, 0)
        assert read_all(reader, [LogRange(topic, 0, 0, 4)]) == {f"{topic.name}/0": kept[0]}

    async def test_waiting_for_records(self, log: Log, topic: LogTopic) -> None:
        """A log at its ends is waited for in vain; one record, in any partition, ends the wait, now or later."""
        await self.fill(log, topic, 2)
        await log.wait_for_records({topic: [2, 2]}, 0.0)  # a change that was not looked at yet counts, too
        assert not await log.wait_for_records({topic: [2, 2]}, 0.05)
        assert await log.wait_for_records({topic: [2, 1]}, 10)
        for partition in (0, 1, 0, 0):
            ends = [(await log.bounds(topic, number)).end for number in (0, 1)]
            await log.wait_for_records({topic: ends}, 0.0)
            waiting = asyncio.create_task(log.wait_for_records({topic: ends}, 30))
            await asyncio.sleep(0)
            assert not waiting.done()
            await log.append(topic, new_record(partition, 1))
            assert await waiting
