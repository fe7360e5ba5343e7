"""A reader of all of a topic's records: it reads ahead of its caller, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from confluent_kafka import KafkaError

from everlog.config import KafkaConfig
from everlog.core.record import Record
from everlog.errors import LogTruncated, StorageFailed
from everlog.log.kafka.client import consumer_settings
from everlog.log.kafka.errors import LogPartition, explain, is_silence
from everlog.log.kafka.fetcher import Fetcher
from everlog.log.port import LogTopic, RecordReader

# At most this many records of a partition wait; beyond that it is not read until they are taken.
MAX_WAITING = 5000

_OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


class KafkaReader(RecordReader):
    """Each read has its own consumer, so that projections never wait for reads of journals."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._fetchers: set[Fetcher] = set()

    async def read(self, topic: LogTopic, starts: Mapping[int, int]) -> AsyncIterator[Sequence[Record]]:
        fetcher = Fetcher(consumer_settings(self._config), asyncio.get_running_loop())
        self._fetchers.add(fetcher)
        wake = asyncio.Event()
        servers = self._config.bootstrap_servers
        parts = [
            WaitingPartition(LogPartition(topic.name, number), at, fetcher, wake, servers)
            for number, at in starts.items()
        ]
        try:
            while True:
                for part in parts:
                    page = part.taken()
                    if page:
                        yield page
                await wake.wait()
                wake.clear()
        finally:
            self._fetchers.discard(fetcher)
            await fetcher.close()

    async def close(self) -> None:
        for fetcher in list(self._fetchers):
            await fetcher.close()


class WaitingPartition:
    """One partition: what the fetcher brought and the caller has not taken yet; bounded, by not reading on."""

    key: bytes | None = None
    until: int | None = None

    def __init__(self, place: LogPartition, position: int, fetcher: Fetcher, wake: asyncio.Event, servers: str) -> None:
        self.place = place
        self._position = position
        self._fetcher = fetcher
        self._wake = wake
        self._servers = servers
        self._records: list[Record] = []
        self._reading = False
        self._error: Exception | None = None

    def taken(self) -> list[Record]:
        """What waits; an error comes after it. There is room now: read on."""
        records, self._records = self._records, []
        if self._error is not None:
            if not records:
                raise self._error
            self._wake.set()
        elif not self._reading:
            self._reading = True
            self._fetcher.start(self, self._position)
        return records

    # What the fetcher calls.

    def take(self, records: list[Record], position: int) -> None:
        self._records += [record for record in records if record.offset >= self._position]
        self._position = max(self._position, position)
        if len(self._records) >= MAX_WAITING and self._reading:
            self._reading = False
            self._fetcher.stop(self)
        self._wake.set()

    def end(self, position: int) -> None:
        """Nothing more for now."""

    def fail(self, error: KafkaError) -> None:
        if error.code() in _OUT_OF_RANGE:
            text = f"records from {self._position} on are gone before they were read, or no longer there"
            self.stop(LogTruncated(self.place.topic, self.place.partition, text))
        elif not is_silence(error):
            self.stop(explain(error, f"reading {self.place}", self._servers))

    def stop(self, error: Exception | None = None) -> None:
        self._error = error or StorageFailed("the log is closed")
        self._wake.set()
