"""Fill an embedded log in bulk: 10,000 records to a transaction instead of one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.payloads import Payload
from bench.records import Records
from everlog.api import Everlog
from everlog.journal.reader import Ref
from everlog.log.sqlite.appender import SQL
from everlog.log.sqlite.log import SqliteLog
from everlog.sqlite.connection import connect, transaction

PER_TRANSACTION = 10_000
HOW = f"in bulk, one event per append and per record, {PER_TRANSACTION:,} records per transaction"

Row = tuple[int, int, int, int, bytes | None, bytes | None, bytes | None, None]


@dataclass(slots=True)
class Filler:
    """Appends to journals of one topic, chosen at random; goes on later where it stopped."""

    log: Everlog
    topic: str
    seed: int
    payloads: Sequence[Payload]
    tags: Sequence[tuple[str, ...]] = ((),)
    _ref: Ref = field(init=False)
    _records: Records = field(init=False)

    async def open(self, keys: int) -> None:
        names = [f"order-{number}" for number in range(keys)]
        ref = await self.log.journal(self.topic).ref(names[0], create=True)
        assert ref is not None
        self._ref = ref
        self._records = Records(ref.topic, names, self.payloads, self.seed, tags=self.tags)
        for partition in range(ref.topic.partitions):
            self._records.ends[partition] = (await self.log.parts.log.bounds(ref.log_topic, partition)).end

    def fill(self, events: int) -> None:
        """Write this number of records. No other writer may use the log meanwhile."""
        log = self.log.parts.log
        assert isinstance(log, SqliteLog)
        rows = self._rows(log.number(self._ref.log_topic), events)
        connection = connect(log.path, synchronous=self.log.config.log.synchronous)
        try:
            while group := list(itertools.islice(rows, PER_TRANSACTION)):
                with transaction(connection):
                    connection.executemany(SQL["append"], group)
        finally:
            connection.close()

    def _rows(self, topic: int, events: int) -> Iterator[Row]:
        for record in self._records.make(events):
            place = (topic, record.partition, record.offset, record.timestamp)
            yield (*place, record.key, record.action, record.value, None)
