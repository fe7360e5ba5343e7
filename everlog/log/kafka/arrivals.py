"""Waits for what comes next: a consumer that stands at the ends of partitions until a record comes to one of them.

A request for records waits at the broker, so an idle log costs a few requests a second, and a record is noticed as
soon as it is there. What comes is only a sign; it is read again by those who need it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from everlog.log.kafka.client import ClientSettings, make_client
from everlog.log.kafka.errors import explain, is_denied, is_silence
from everlog.log.port import LogTopic

# How long the broker holds a request, and how long we wait for it in one go.
HOLD_MS = 500
SLICE_S = 0.1

Ends = Mapping[LogTopic, Sequence[int]]


class Arrivals:
    """Belongs to one caller at a time. The consumer is made by the first wait."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings | {
            "fetch.wait.max.ms": HOLD_MS,
            # One record is enough, however many there are. But with no room for more, the request that is under way
            # while the first one is taken would leave its partition out, and hold up the next wait.
            "queued.min.messages": 100,
            "queued.max.messages.kbytes": 64,
            "fetch.message.max.bytes": 1024,
            "enable.partition.eof": False,
        }
        self._servers = str(settings["bootstrap.servers"])
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._ends: Ends = {}
        self._closed = False

    def wait(self, ends: Ends, timeout_s: float) -> bool:
        """In a thread: wait for a record at or above one of the ends. AccessDenied if that cannot be seen."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._look(ends, min(left, SLICE_S)):
                    return True
            return False

    def _look(self, ends: Ends, timeout_s: float) -> bool:
        try:
            message = self._assigned_to(ends).poll(timeout_s)
        except KafkaException:
            self._drop()
            return True
        error = None if message is None else message.error()
        if message is None or (error is not None and is_silence(error)):
            return False
        if error is None:
            self._unassign()
            return True
        self._drop()
        if is_denied(error):
            raise explain(error, "waiting for records", self._servers)
        time.sleep(timeout_s)  # a topic that is gone, an end that is not there any more: the caller finds out
        return True

    def _assigned_to(self, ends: Ends) -> Consumer:
        if self._consumer is None:
            self._consumer = make_client(Consumer, self._settings)
        if self._ends != ends:
            self._consumer.assign(
                [
                    TopicPartition(topic.name, partition, end)
                    for topic, found in ends.items()
                    for partition, end in enumerate(found)
                ]
            )
            self._ends = dict(ends)
        return self._consumer

    def _unassign(self) -> None:
        """Until the next wait: what comes meanwhile must not be fetched."""
        assert self._consumer is not None
        self._consumer.unassign()
        self._ends = {}

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        self._ends = {}
        if consumer is not None:
            consumer.close()

    def close(self) -> None:
        """In a thread."""
        self._closed = True
        with self._lock:
            self._drop()
