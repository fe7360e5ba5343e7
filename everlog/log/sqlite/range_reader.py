"""Ranges of the embedded log, read from its file."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from everlog.core.record import Record, record_from
from everlog.errors import EverlogError, LogTruncated, TopicReplaced
from everlog.log.port import LogTopic
from everlog.log.range_reader import MAX_CHUNK_BYTES, MAX_CHUNK_RECORDS, Chunk, LogRange, RangeReader, RangeRecords
from everlog.log.sqlite.appender import SQL
from everlog.log.sqlite.log import FILE
from everlog.sqlite.connection import Connection, connect, translated


class SqliteRangeReader(RangeReader):
    """One connection, made when it is first needed; dropped after an error, as the file may be another one by now."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._connection: Connection | None = None

    def read(self, ranges: Sequence[LogRange]) -> Generator[Chunk, None, None]:
        for one in ranges:
            try:
                yield from self._read(one)
            except EverlogError as error:
                self.close()
                yield [RangeRecords(one, (), error)]

    def _read(self, one: LogRange) -> Iterator[Chunk]:
        number, expected = self._number(one.topic), one.start
        while expected < one.end:
            records = self._chunk(number, one, expected)
            if not records:
                raise LogTruncated(one.topic.name, one.partition, f"the log has no records from {expected} on")
            # Offsets are without holes here: one means that the log was trimmed under us.
            if records[0].offset != expected or records[-1].offset != expected + len(records) - 1:
                raise LogTruncated(one.topic.name, one.partition, f"the log has a hole at {expected}")
            expected += len(records)
            yield [RangeRecords(one, records)]

    def _chunk(self, number: int, one: LogRange, start: int) -> list[Record]:
        """The next records of a range, up to the bounds of a chunk."""
        records: list[Record] = []
        size = 0
        with translated(self._path):
            end = min(one.end, start + MAX_CHUNK_RECORDS)
            rows = self._open().execute(SQL["range"], (number, one.partition, start, end))
            for row in rows:
                records.append(record_from(row))
                size += len(row[5] or b"")
                if size >= MAX_CHUNK_BYTES:
                    break
            rows.close()
        return records

    def _number(self, topic: LogTopic) -> int:
        with translated(self._path):
            row = self._open().execute(SQL["topic"], (topic.name,)).fetchone()
        if row is None or row[2] != topic.id:
            raise TopicReplaced(f"the topic {topic.name} is not the one that the pipeline has seen")
        return int(row[0])

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._path)
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
