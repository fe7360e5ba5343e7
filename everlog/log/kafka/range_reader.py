"""Ranges of Kafka's partitions, read by one consumer of the process.

The consumer is told what to read and from where, for one call, and nothing after it: between calls it fetches nothing,
and only its connections are kept. So no record of an earlier call can come back, whichever range comes next.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from everlog.config import KafkaConfig
from everlog.core.record import Record
from everlog.errors import EverlogError, LogTruncated, Unreachable
from everlog.log.kafka.client import consumer_settings, make_client
from everlog.log.kafka.errors import LogPartition, explain, is_denied, is_missing, is_silence, kafka_error
from everlog.log.kafka.records import record_of
from everlog.log.range_reader import MAX_CHUNK_BYTES, MAX_CHUNK_RECORDS, Chunk, LogRange, RangeReader, RangeRecords

# How many messages are asked for at once, and how long to wait for the first of them.
MESSAGES = 500
WAIT_S = 0.05
# A server that is slow to say where a topic is must not hold up the others for longer.
LOOK_S = 1.0
# What the consumer may hold beyond what was taken. Fetched ahead and not needed, it is thrown away with the call.
MAX_AHEAD_KIB = 4 * 1024

_OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class OpenRange:
    """A range that is being read: up to where, and what waits for the next chunk."""

    def __init__(self, range_: LogRange) -> None:
        self.range = range_
        self.place = LogPartition(range_.topic.name, range_.partition)
        self.position = range_.start
        self.records: list[Record] = []
        self.error: EverlogError | None = None

    @property
    def ended(self) -> bool:
        return self.position >= self.range.end or self.error is not None


class KafkaRangeReader(RangeReader):
    """Reads with one consumer, which is made by the first call and dropped after any error."""

    def __init__(self, kafka: KafkaConfig) -> None:
        self._kafka = kafka
        self._servers = kafka.bootstrap_servers
        self._consumer: Consumer | None = None
        # The topics that the consumer knows, by their ids when it met them.
        self._known: dict[str, str] = {}

    def read(self, ranges: Sequence[LogRange]) -> Generator[Chunk, None, None]:
        opened = {(one.topic.name, one.partition): OpenRange(one) for one in ranges}
        try:
            consumer = self._assign(ranges)
            yield from self._chunks(consumer, opened)
            consumer.unassign()
        except KafkaException as error:
            for one in opened.values():
                if not one.ended or one.records:  # what waits is not handed out any more
                    one.error = explain(kafka_error(error), f"reading {one.place}", self._servers)
        except BaseException:  # also a caller that reads no further
            self.close()
            raise
        failed = [RangeRecords(one.range, (), one.error) for one in opened.values() if one.error is not None]
        if failed:
            self.close()
            yield failed

    def _assign(self, ranges: Sequence[LogRange]) -> Consumer:
        """A consumer that reads these ranges from their starts. A topic with another id needs a new one."""
        if any(self._known.get(one.topic.name, one.topic.id) != one.topic.id for one in ranges):
            self.close()
        if self._consumer is None:
            settings = consumer_settings(self._kafka) | {"queued.max.messages.kbytes": MAX_AHEAD_KIB}
            self._consumer = make_client(Consumer, settings)
        self._look_for(self._consumer, {one.topic.name: one.topic.id for one in ranges})
        self._consumer.assign([TopicPartition(one.topic.name, one.partition, one.start) for one in ranges])
        return self._consumer

    def _look_for(self, consumer: Consumer, topics: Mapping[str, str]) -> None:
        """The library would look for a topic that is new to it only after most of a second."""
        with suppress(KafkaException):  # no broker answers: it goes on looking
            for name in topics.keys() - self._known.keys():
                if consumer.list_topics(name, timeout=LOOK_S).topics[name].error is None:
                    self._known[name] = topics[name]

    def _chunks(self, consumer: Consumer, opened: Mapping[tuple[str, int], OpenRange]) -> Iterator[Chunk]:
        waiting, size = 0, 0
        moved = time.monotonic()
        reason: KafkaError | None = None
        while not all(one.ended for one in opened.values()):
            first = consumer.poll(WAIT_S)
            # To ask for many at once would wait until there are so many.
            for message in () if first is None else (first, *consumer.consume(MESSAGES, 0)):
                error = message.error()
                one = opened.get((message.topic(), message.partition()))  # type: ignore[arg-type]
                if one is None or one.ended:
                    reason = error or reason  # about a connection, or of a range that has ended
                elif error is None:
                    moved = time.monotonic()
                    taken = _take(one, message)
                    waiting, size = waiting + (taken > 0), size + taken
                else:
                    reason = self._note(consumer, one, error, message) or reason
            if waiting >= MAX_CHUNK_RECORDS or size >= MAX_CHUNK_BYTES:
                yield _taken(opened)
                waiting, size, moved = 0, 0, time.monotonic()
            elif time.monotonic() - moved > self._kafka.request_timeout_s:
                self._give_up(opened, reason)
        yield _taken(opened)

    def _note(self, consumer: Consumer, one: OpenRange, error: KafkaError, message: Message) -> KafkaError | None:
        """What an error says about a range; returned if it may pass."""
        if error.code() == KafkaError._PARTITION_EOF:
            # Holes and transaction markers show only here: the position is behind them.
            one.position = max(one.position, message.offset() or 0)
            if not one.ended:
                self._check_bounds(consumer, one)
            return None
        if error.code() in _OUT_OF_RANGE:
            self._check_bounds(consumer, one)
            if one.error is None:  # the leader has just changed; the library has given the partition up
                place = TopicPartition(one.place.topic, one.place.partition, one.position)
                consumer.incremental_unassign([place])
                consumer.incremental_assign([place])
            return error
        if is_missing(error) or is_denied(error) or not is_silence(error):
            one.error = explain(error, f"reading {one.place}", self._servers)
            return None
        return error

    def _check_bounds(self, consumer: Consumer, one: OpenRange) -> None:
        """The log ends or begins elsewhere than the range says, or a replica is behind: then it is read on."""
        place = TopicPartition(one.place.topic, one.place.partition)
        try:
            found = consumer.get_watermark_offsets(place, timeout=self._kafka.request_timeout_s, cached=False)
        except KafkaException as error:
            one.error = explain(kafka_error(error), f"the end of {one.place}", self._servers)
            return
        start, end = found
        if end < one.range.end or start > one.position:
            one.error = LogTruncated(
                *one.place, f"the log holds {start} to {end - 1}, and {one.position} to {one.range.end - 1} were there"
            )

    def _give_up(self, opened: Mapping[tuple[str, int], OpenRange], reason: KafkaError | None) -> None:
        """Nothing came for too long."""
        why = f" ({reason.str()})" if reason is not None else ""
        for one in opened.values():
            if not one.ended:
                one.error = Unreachable(
                    f"{one.place}: nothing came from offset {one.position} on in {self._kafka.request_timeout_s:g} s"
                    f"{why}: is Kafka well at {self._servers}? It is tried again"
                )

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._known.clear()
        if consumer is not None:
            consumer.close()


def _take(one: OpenRange, message: Message) -> int:
    """Keep a message of the range; about how many bytes it is, 0 if it lies beyond."""
    offset: int = message.offset()  # type: ignore[assignment]
    if offset < one.position:
        return 0
    one.position = offset + 1
    if offset >= one.range.end:
        return 0
    record = record_of(message)
    one.records.append(record)
    return len(record.value or b"") + len(record.key or b"") + len(record.action or b"") + 1


def _taken(opened: Mapping[tuple[str, int], OpenRange]) -> Chunk:
    """What waits."""
    chunk = [RangeRecords(one.range, one.records) for one in opened.values() if one.records]
    for one in opened.values():
        one.records = []
    return chunk
