"""An idempotent producer, and a thread that gathers its answers for the event loop.

Appends that are ready at the same time are handed to the library in one go, and all answers that are there at once
reach the event loop in one call: one by one, the library's thread would wake up for every single record.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from everlog.core.record import NewRecord
from everlog.errors import Busy, EverlogError, StorageFailed, Unacknowledged
from everlog.log.kafka.client import ClientSettings, join, make_client
from everlog.log.kafka.errors import LOST, explain, explain_delivery, is_denied, kafka_error
from everlog.log.kafka.records import headers_of
from everlog.log.kafka.tail import Tail
from everlog.log.port import Ack
from everlog.runtime.trace import Trace

logger = logging.getLogger("everlog.log.kafka")

POLL_S = 0.1
# Warn about an outage at most this often.
WARN_INTERVAL_S = 10.0
# An append that was not acknowledged waits at most this much longer for the reason.
REASON_S = 5.0
# A record without an offset in its answer is stored, but its place is unknown.
_NO_OFFSET = -1

T = TypeVar("T")
DeliveryReason = Callable[[str], Coroutine[None, None, str | None]]
"""Why a topic takes no records, if that can be seen."""


class _Delivery:
    """A record on its way, and who waits for it. Called by the library, in the sender's thread, with the answer."""

    __slots__ = ("future", "lost", "record", "sender", "since", "tail")

    def __init__(self, future: asyncio.Future[Ack], tail: Tail, record: NewRecord) -> None:
        self.future = future
        self.tail = tail
        self.record = record
        self.since = 0.0
        self.sender: _Sender | None = None
        self.lost = 0

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        assert self.sender is not None
        kind, timestamp = message.timestamp()
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            timestamp = self.record.timestamp
        self.sender.answers.append((self, error, message.offset(), timestamp))

    def fail(self, error: EverlogError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


_Answers = list[tuple[_Delivery, KafkaError | None, int | None, int]]


class _Sender:
    """One producer with its thread. `lost` counts lost connections; `dead` is set when it takes no more records."""

    def __init__(
        self,
        settings: ClientSettings,
        loop: asyncio.AbstractEventLoop,
        settle: Callable[[_Sender, _Answers], None],
        *,
        timeout: float,
    ) -> None:
        self.answers: _Answers = []
        self.lost = 0
        self.dead = False
        self.waiting: set[_Delivery] = set()
        self._loop = loop
        self._settle = settle
        self._timeout = timeout
        self._stopping = False
        self._said = -WARN_INTERVAL_S
        self.producer = make_client(Producer, {**settings, "error_cb": self.notice})
        self._thread = threading.Thread(target=self._run, name="everlog-kafka-produce", daemon=True)
        self._thread.start()

    def notice(self, error: KafkaError) -> None:
        """Something happened that concerns no single record."""
        if error.code() in LOST:
            self.lost += 1
            if time.monotonic() - self._said > WARN_INTERVAL_S:
                self._said = time.monotonic()
                logger.warning("Kafka: %s", error.str())
        if error.fatal():
            logger.error("Kafka's producer gave up (%s); another one takes over", error.str())
            self.dead = True

    def _run(self) -> None:
        """The thread: all answers come here, so that none falls between two lists."""
        while not self._stopping:
            self._serve(lambda: self.producer.poll(POLL_S))
            if self.answers:
                self._hand_over()
        for _ in range(2):  # something fatal ends the first one early
            self._serve(lambda: self.producer.flush(self._timeout))
        self._hand_over()

    def _serve(self, work: Callable[[], object]) -> None:
        """Let the library call us; what is fatal it raises instead of calling `notice`."""
        try:
            work()
        except KafkaException as error:
            self.notice(kafka_error(error))
        except Exception:
            logger.exception("Kafka's producer failed; another one takes over")
            self.dead = self._stopping = True

    def _hand_over(self) -> None:
        answers, self.answers = self.answers, []
        try:
            self._loop.call_soon_threadsafe(self._settle, self, answers)
        except RuntimeError:
            logger.warning("%d appends were answered, but no caller waits for them any more", len(answers))
            self._stopping = True

    async def close(self) -> None:
        """Send what was accepted, for a bounded time, and stop the thread."""
        self._stopping = True
        await join(self._thread)


class KafkaProducer:
    """Appends records for one event loop. `reason` is asked when records are not acknowledged in time."""

    def __init__(
        self,
        settings: ClientSettings,
        loop: asyncio.AbstractEventLoop,
        *,
        timeout: float,
        reason: DeliveryReason,
        trace: Trace | None = None,
    ) -> None:
        self._settings = settings
        self._servers = str(settings["bootstrap.servers"])
        self._loop = loop
        self._timeout = timeout
        self._reason = reason
        self._trace = trace
        self._gathered: list[_Delivery] = []
        self._full = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sender = self._open()

    def _open(self) -> _Sender:
        return _Sender(self._settings, self._loop, self._settle, timeout=self._timeout)

    async def append(self, tail: Tail, record: NewRecord) -> Ack:
        """Store one record durably."""
        if self._closed:
            raise StorageFailed("the log is closed")
        delivery = _Delivery(self._loop.create_future(), tail, record)
        if self._full or self._trace is not None:
            delivery.since = self._loop.time()
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.append(delivery)
        return await delivery.future

    def _send(self) -> None:
        """Hand what has gathered to the library, as far as it has room."""
        gathered, self._gathered = self._gathered, []
        for at, delivery in enumerate(gathered):
            if delivery.future.done():
                continue  # its caller was cancelled
            try:
                self._produce(delivery)
            except BufferError:
                self._gathered = gathered[at:]
                self._wait_for_room()
                return
            except KafkaException as error:
                delivery.fail(explain(kafka_error(error), f"an append to {delivery.tail.place}", self._servers))
            except Exception as error:  # the record's own fault: the others must not wait forever
                logger.error("an append to %s failed", delivery.tail.place, exc_info=error)
                delivery.fail(StorageFailed(f"an append to {delivery.tail.place} cannot be sent: {error!r}"))

    def _produce(self, delivery: _Delivery) -> None:
        sender = self._sender if not self._sender.dead else self._replace()
        delivery.sender, delivery.lost = sender, sender.lost
        place, record = delivery.tail.place, delivery.record
        try:
            sender.producer.produce(
                place.topic,
                record.value,
                record.key,
                place.partition,
                delivery,
                timestamp=record.timestamp,
                headers=headers_of(record.action, record.headers),
            )
        except KafkaException as error:
            if kafka_error(error).code() != KafkaError._FATAL or sender.dead:
                raise
            sender.dead = True
            self._produce(delivery)
            return
        sender.waiting.add(delivery)

    def _wait_for_room(self) -> None:
        """The library is full: the next answers make room. What waits for too long was surely not sent."""
        self._full = True
        now = self._loop.time()
        for delivery in self._gathered:
            delivery.since = delivery.since or now
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        late = self._loop.time() - self._timeout
        for delivery in self._gathered:
            if delivery.since <= late:
                delivery.fail(
                    Busy(
                        f"{self._timeout:g} s passed and too many appends still wait for Kafka: this one was not sent; "
                        "append less at once, or see what slows the brokers down"
                    )
                )
        self._gathered = [delivery for delivery in self._gathered if not delivery.future.done()]
        if self._gathered:
            wait = self._gathered[0].since - late
            self._timer = self._loop.call_later(max(wait, 0.0), self._give_up)
        else:
            self._full = False

    def _replace(self) -> _Sender:
        """A producer that has failed for good is replaced; it still answers what it has."""
        old, self._sender = self._sender, self._open()
        self._start(self._retire(old))
        return self._sender

    async def _retire(self, sender: _Sender) -> None:
        await sender.close()
        self._abandon(sender)

    def _settle(self, sender: _Sender, answers: _Answers) -> None:
        """In the event loop: every index learns of its new records before any caller goes on."""
        if self._full:
            self._full = False
            self._loop.call_soon(self._send)
        discard = sender.waiting.discard
        unknown: list[tuple[_Delivery, KafkaError]] = []
        for delivery, error, offset, timestamp in answers:
            discard(delivery)
            if error is not None:
                unknown.append((delivery, error))
                continue
            if offset is None or offset <= _NO_OFFSET:
                delivery.fail(
                    Unacknowledged(f"an append to {delivery.tail.place} was stored, but its offset is unknown")
                )
                continue
            before = delivery.tail.acknowledge(delivery.record, offset, timestamp)
            future = delivery.future
            if not future.done():
                future.set_result(Ack(offset, before))
            if self._trace is not None:
                self._trace(f"produce {delivery.tail.place}, offset {offset}", self._loop.time() - delivery.since)
        if unknown:
            self._explain(sender, unknown)

    def _explain(self, sender: _Sender, failed: list[tuple[_Delivery, KafkaError]]) -> None:
        """Say what became of records without an acknowledgement."""
        silent: dict[str, list[tuple[_Delivery, EverlogError]]] = {}
        for delivery, error in failed:
            place = delivery.tail.place
            if error.fatal() or error.code() == KafkaError._FATAL:
                sender.dead = True
            # A producer that gave up leaves open what became of a record, unless the broker itself refused that record.
            lost = delivery.lost != sender.lost or (sender.dead and not is_denied(error))
            answer = explain_delivery(error, f"an append to {place}", self._servers, lost=lost)
            if isinstance(answer, Unacknowledged):
                silent.setdefault(place.topic, []).append((delivery, answer))
            else:
                delivery.fail(answer)
        for topic, waiting in silent.items():
            self._start(self._ask_why(topic, waiting))

    def _start(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        """A task that is waited for at the end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ask_why(self, topic: str, silent: list[tuple[_Delivery, EverlogError]]) -> None:
        """Records that were not acknowledged in time: add what is wrong with the topic, if that is soon known."""
        why: str | None = None
        try:
            async with asyncio.timeout(REASON_S):
                why = await self._reason(topic)
        except (TimeoutError, EverlogError) as error:
            logger.debug("why %s takes no records is not known: %r", topic, error)
        finally:
            for delivery, answer in silent:
                delivery.fail(answer if why is None else Unacknowledged(f"{answer}; {why}"))

    def _abandon(self, sender: _Sender) -> None:
        for delivery in sender.waiting:
            delivery.fail(Unacknowledged(f"an append to {delivery.tail.place}: the log was closed before the answer"))
        sender.waiting.clear()

    async def close(self) -> None:
        """Finish what was accepted, for a bounded time."""
        self._closed = True
        self._send()
        for delivery in self._gathered:
            delivery.fail(StorageFailed("the log was closed before this append was sent"))
        if self._timer is not None:
            self._timer.cancel()
        await self._sender.close()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._abandon(self._sender)
