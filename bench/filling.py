"""Fill a log in bulk: the records that appends would write, 10,000 to a transaction instead of one by one.

Appends wait for the disk and for their verdict; millions of them would take longer than what is measured. The
records are the same, made by the same codecs: one event per append, with the expectation and the id that a client
sends. Only their way into the table is shorter.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.payloads import Payload
from everlog.client import Everlog
from everlog.journal.actions import Append, Expected, Range, encode_action
from everlog.journal.codec import EventData, encode_value
from everlog.journal.events import encode_payload
from everlog.journal.reading import Ref
from everlog.log.appending import SQL
from everlog.log.sqlite import SqliteLog
from everlog.sqlite import connect, transaction

PER_TRANSACTION = 10_000
HOW = f"in bulk, one event per append and per record, {PER_TRANSACTION:,} records per transaction"

Row = tuple[int, int, int, int, bytes, bytes, bytes, None]


@dataclass(slots=True)
class _Writer:
    """One journal, and what its next append expects."""

    ref: Ref
    partition: int
    seq_nr: int = 0
    life: str | None = None


@dataclass(slots=True)
class Filler:
    """Appends to journals of one topic, chosen at random; may go on later where it stopped."""

    log: Everlog
    topic: str
    seed: int
    payloads: Sequence[Payload]
    _writers: list[_Writer] = field(default_factory=list)
    _ends: dict[int, int] = field(default_factory=dict)

    async def open(self, keys: int) -> None:
        journal = self.log.journal(self.topic)
        for number in range(keys):
            ref = await journal.ref(f"order-{number}", create=True)
            assert ref is not None
            self._writers.append(_Writer(ref, ref.partition))
        place = self._writers[0].ref
        for partition in range(place.topic.partitions):
            self._ends[partition] = (await self.log.parts.log.bounds(place.log_topic, partition)).end

    def fill(self, events: int) -> None:
        """Write so many records. Nobody else may write to this log meanwhile."""
        log = self.log.parts.log
        assert isinstance(log, SqliteLog)
        number = log.number(self._writers[0].ref.log_topic)
        rows = self._rows(number, events)
        connection = connect(log.path, synchronous=self.log.config.log.synchronous)
        try:
            while group := list(itertools.islice(rows, PER_TRANSACTION)):
                with transaction(connection):
                    connection.executemany(SQL["append"], group)
        finally:
            connection.close()

    def _rows(self, topic: int, events: int) -> Iterator[Row]:
        source = random.Random(self.seed)
        encoded = [encode_payload(payload) for payload in self.payloads]
        for number in range(events):
            writer = source.choice(self._writers)
            yield self._row(topic, writer, encoded[number % len(encoded)])

    def _row(self, topic: int, writer: _Writer, payload: tuple[object, object]) -> Row:
        partition, origin = writer.partition, self.log.parts.origin
        offset = self._ends[partition]
        first = writer.seq_nr + 1
        payload_type, value = encode_value((EventData(first, (), *payload),))  # type: ignore[arg-type]
        action = Append(
            range=Range(first, first),
            origin=origin.host,
            version=origin.version,
            payload_type=payload_type,
            metadata={},
            expected=Expected(writer.seq_nr, writer.life),
            id=f"{first}.filled-{partition}-{offset:x}",
        )
        if writer.life is None:
            writer.life = writer.ref.topic.life(partition, offset)
        writer.seq_nr = first
        self._ends[partition] = offset + 1
        timestamp = self.log.parts.clock.now_ms()
        return (topic, partition, offset, timestamp, writer.ref.key, encode_action(action), value, None)
