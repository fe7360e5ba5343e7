"""A consumer in a thread of its own: it reads partitions for feeds, and hands what it read to the event loop.

The library's consumer must be used by one thread only. Feeds are started and stopped from the event loop, and are
called there: with records and the position that was reached, with the end of the partition, or with an error.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from contextlib import suppress
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from everlog.core.record import Record
from everlog.errors import StorageFailed
from everlog.log.kafka.client import ClientSettings, join, make_client
from everlog.log.kafka.errors import LogPartition, is_denied, kafka_error
from everlog.log.kafka.records import record_of
from everlog.runtime.trace import Trace

logger = logging.getLogger("everlog.log.kafka")

# How many messages are handed over at once, and how many such batches may be under way to the event loop.
BATCH = 1000
MAX_HANDED = 4
# While the thread reads for some feeds, it looks this often for others to start or stop.
POLL_S = 0.003
# While it has none, it asks the library this often what happened to its connections.
IDLE_S = 10.0
# A server that is slow to say where a topic is must not hold up feeds of others.
LOOK_S = 1.0


class FetchSink(Protocol):
    """What reads a partition.

    `key` is the only one of interest; None: all records are. Nothing from `until` on is, if that is given.
    """

    place: LogPartition
    key: bytes | None
    until: int | None

    def take(self, records: list[Record], position: int) -> None:
        """Everything up to but not including `position` was read; `records` are those of interest."""

    def end(self, position: int) -> None:
        """Nothing lies at `position` yet."""

    def fail(self, error: KafkaError) -> None:
        """This partition cannot be read."""

    def stop(self, error: Exception | None = None) -> None:
        """The fetcher reads no more for it."""


class _Command(NamedTuple):
    """Start to read for a feed at an offset, or stop (None)."""

    feed: FetchSink
    at: int | None


class _Batch:
    """What came for one feed."""

    __slots__ = ("ended", "error", "position", "records", "seen")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.seen = 0
        self.position = -1
        self.ended = -1
        self.error: KafkaError | None = None


class Fetcher:
    """Reads for any number of feeds, one per partition, for one event loop."""

    def __init__(self, settings: ClientSettings, loop: asyncio.AbstractEventLoop, trace: Trace | None = None) -> None:
        self._consumer = make_client(Consumer, settings)
        self._loop = loop
        self._trace = trace
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(MAX_HANDED)
        self._feeds: dict[tuple[str | None, int | None], FetchSink] = {}
        self._known: set[str] = set()
        self._live: set[FetchSink] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="everlog-kafka-fetch", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it can read."""
        return self._thread.is_alive() and not self._stopping

    def start(self, feed: FetchSink, at: int) -> None:
        """Read for the feed from this offset on."""
        if self._stopping:
            raise StorageFailed("the log is closed")
        self._live.add(feed)
        self._commands.put(_Command(feed, at))

    def stop(self, feed: FetchSink) -> None:
        """Read no more for the feed; it is not called again."""
        if feed in self._live:
            self._live.discard(feed)
            self._commands.put(_Command(feed, None))

    async def close(self) -> None:
        """Stop the thread; feeds that still read get an error."""
        self._stopping = True
        for feed in list(self._live):
            feed.stop(StorageFailed("the log is closed"))
        self._commands.put(None)
        await join(self._thread)

    def _run(self) -> None:
        """The thread."""
        try:
            while not self._stopping and self._obey():
                if self._feeds:
                    self._read()
        except Exception:
            logger.exception("the thread that reads from Kafka has ended")
        finally:
            self._consumer.close()

    def _obey(self) -> bool:
        """Carry out the commands that are there; wait for one if there is nothing to read. False: stop."""
        while True:
            try:
                command = self._commands.get(block=not self._feeds, timeout=IDLE_S)
            except queue.Empty:
                if not self._feeds:
                    self._consumer.poll(0)  # what it says about its connections must not pile up
                return True
            if command is None:
                return False
            self._carry_out(command)

    def _carry_out(self, command: _Command) -> None:
        feed, at = command
        place = (feed.place.topic, feed.place.partition)
        if at is None:
            if self._feeds.get(place) is feed:
                del self._feeds[place]
                with suppress(KafkaException):  # it was no longer reading there
                    self._consumer.incremental_unassign([TopicPartition(*place)])
            return
        assert place not in self._feeds
        try:
            self._look_for(feed.place.topic)
            self._consumer.incremental_assign([TopicPartition(*place, at)])
            self._feeds[place] = feed
        except KafkaException as error:
            self._call(self._hand, {feed: _failed(kafka_error(error))}, 0.0)

    def _look_for(self, topic: str) -> None:
        """The library itself would look for a topic that is new to it only after most of a second.

        And for one that it may not see, it would look forever, without an error.
        """
        if topic in self._known:
            return
        try:
            error = self._consumer.list_topics(topic, timeout=LOOK_S).topics[topic].error
        except KafkaException:
            return  # it goes on looking
        if error is None:
            self._known.add(topic)
        elif is_denied(error):
            raise KafkaException(error)

    def _read(self) -> None:
        """Hand over what is there; wait a moment if nothing is."""
        started = time.perf_counter()
        first = self._consumer.poll(POLL_S)
        if first is None:
            return
        messages = [first, *self._consumer.consume(BATCH - 1, 0)]
        batches: dict[FetchSink, _Batch] = {}
        for message in messages:
            feed = self._feeds.get((message.topic(), message.partition()))
            if feed is None:
                continue  # about a connection, or about a partition that no feed reads any more
            batch = batches.get(feed)
            if batch is None:
                batch = batches[feed] = _Batch()
            _sort_in(batch, message, feed)
        if not batches:
            return
        while not self._room.acquire(timeout=0.1):
            if self._stopping:
                return
        self._call(self._take, batches, time.perf_counter() - started)

    def _call(self, *what: object) -> None:
        try:
            self._loop.call_soon_threadsafe(*what)  # type: ignore[arg-type]
        except RuntimeError:
            logger.debug("the event loop is gone, no feed waits for what was read")
            self._stopping = True

    def _take(self, batches: dict[FetchSink, _Batch], seconds: float) -> None:
        """In the event loop."""
        self._room.release()
        self._hand(batches, seconds)

    def _hand(self, batches: dict[FetchSink, _Batch], seconds: float) -> None:
        for feed, batch in batches.items():
            if feed not in self._live:
                continue
            if batch.position >= 0:
                if self._trace is not None:
                    self._trace(f"fetch {feed.place} up to {batch.position}: {batch.seen} records", seconds)
                feed.take(batch.records, batch.position)
            if batch.ended >= 0:
                feed.end(batch.ended)
            if batch.error is not None:
                feed.fail(batch.error)


def _failed(error: KafkaError) -> _Batch:
    batch = _Batch()
    batch.error = error
    return batch


def _sort_in(batch: _Batch, message: Message, feed: FetchSink) -> None:
    """Add a message to what came before it in the same partition."""
    error = message.error()
    if error is None:
        offset: int = message.offset()  # type: ignore[assignment]
        batch.ended = -1
        if feed.until is not None and offset >= feed.until:
            batch.position = feed.until
            return
        if feed.key is None or message.key() == feed.key:
            batch.records.append(record_of(message))
        batch.position = offset + 1
        batch.seen += 1
    elif error.code() == KafkaError._PARTITION_EOF:
        # Transaction markers and other holes show only here: the position is behind them.
        batch.position = batch.ended = message.offset()  # type: ignore[assignment]
    else:
        batch.error = error
