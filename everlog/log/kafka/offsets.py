"""Where partitions end, asked of their leaders; calls at the same time share a request.

A call joins only a request that has not been sent yet. An answer that was under way when the call came may be older
than a record that was acknowledged before the call.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from everlog.errors import StorageFailed
from everlog.log.kafka.client import ClientSettings, join, make_client
from everlog.log.kafka.errors import LogPartition, explain, is_missing, is_silence, kafka_error
from everlog.log.port import Bounds
from everlog.runtime.retry import NO_JITTER, Backoff
from everlog.runtime.trace import Trace

logger = logging.getLogger("everlog.log.kafka")

# A partition whose leader does not answer must not hold up the others for longer.
QUICK_S = 1.0
# A topic that was made a moment ago may be unknown to some server for this long.
NEW_TOPIC_S = 2.0
MIN_RETRY_S = 0.02
MAX_RETRY_S = 0.5
# In the protocol these stand for the two ends of a partition.
_LATEST = -1
_EARLIEST = -2

Question = tuple[LogPartition, bool]
"""A partition, and whether its start is of interest, too."""

Answer = Bounds | KafkaError
AskOffset = Callable[[Sequence[Question]], Mapping[Question, Answer]]


class Lane:
    """One request after the other, in a thread; `ask` sends one and waits for the answers."""

    def __init__(self, ask: AskOffset, close: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._close = close
        self._loop = loop
        self._gathered: dict[Question, list[asyncio.Future[Answer]]] = {}
        self._busy = False
        self._closed = False
        self._requests: queue.SimpleQueue[dict[Question, list[asyncio.Future[Answer]]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="everlog-kafka-offsets", daemon=True)
        self._thread.start()

    def ask(self, question: Question) -> asyncio.Future[Answer]:
        """The answer of a request that is sent after this call."""
        if self._closed:
            raise StorageFailed("the log is closed")
        future: asyncio.Future[Answer] = self._loop.create_future()
        if not self._gathered and not self._busy:
            self._busy = True
            self._loop.call_soon(self._send)  # so that all calls that are ready share it
        self._gathered.setdefault(question, []).append(future)
        return future

    def _send(self) -> None:
        request, self._gathered = self._gathered, {}
        self._requests.put(request)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                answers = self._ask(list(request))
            except Exception as error:  # whatever it is, the callers that wait must learn of it
                logger.exception("asking Kafka for offsets failed")
                answers = dict.fromkeys(request, KafkaError(KafkaError._FAIL, repr(error)))
            try:
                self._loop.call_soon_threadsafe(self._answer, request, answers)
            except RuntimeError:
                logger.debug("the event loop is gone, no caller waits for offsets")
        self._close()

    def _answer(
        self, request: Mapping[Question, list[asyncio.Future[Answer]]], answers: Mapping[Question, Answer]
    ) -> None:
        for question, futures in request.items():
            for future in futures:
                if not future.done():
                    future.set_result(answers[question])
        if self._gathered:
            self._send()
        else:
            self._busy = False

    async def close(self) -> None:
        """Stop the thread; callers that still wait get an error."""
        self._closed = True
        self._requests.put(None)
        await join(self._thread)
        for futures in self._gathered.values():
            for future in futures:
                if not future.done():
                    future.set_exception(StorageFailed("the log is closed"))


class EndOffsets:
    """Asks for the ends of partitions; a partition that does not answer gets a lane apart from the others."""

    def __init__(
        self, settings: ClientSettings, loop: asyncio.AbstractEventLoop, *, timeout: float, trace: Trace | None = None
    ) -> None:
        self._settings = settings
        self._servers = str(settings["bootstrap.servers"])
        self._loop = loop
        self._timeout = timeout
        self._trace = trace
        self._quick = self._open(min(QUICK_S, timeout))
        self._patient: Lane | None = None
        self._silent: set[LogPartition] = set()

    def _open(self, timeout: float) -> Lane:
        consumer = make_client(Consumer, self._settings)
        return Lane(lambda questions: self._request(consumer, questions, timeout), consumer.close, self._loop)

    async def end(self, place: LogPartition) -> int:
        """Where the partition ends, as its leader says."""
        return (await self._find((place, False))).end

    async def bounds(self, place: LogPartition) -> Bounds:
        """Where the partition starts and ends, as its leader says."""
        return await self._find((place, True))

    async def _find(self, question: Question) -> Bounds:
        place = question[0]
        started, backoff = self._loop.time(), Backoff(MIN_RETRY_S, MAX_RETRY_S, jitter=NO_JITTER)
        while True:
            answer = await self._lane(place).ask(question)
            if isinstance(answer, Bounds):
                self._silent.discard(place)
                return answer
            left = started - self._loop.time()
            if is_silence(answer):
                self._silent.add(place)
                left += self._timeout
            elif is_missing(answer):
                left += min(NEW_TOPIC_S, self._timeout)
            pause = backoff.next()
            if left <= pause:
                raise explain(answer, f"the end of {place}", self._servers)
            await asyncio.sleep(pause)

    def _lane(self, place: LogPartition) -> Lane:
        if place not in self._silent:
            return self._quick
        if self._patient is None:
            self._patient = self._open(self._timeout)
        return self._patient

    def _request(
        self, consumer: Consumer, questions: Sequence[Question], timeout: float
    ) -> dict[Question, Bounds | KafkaError]:
        """In a lane's thread: one request to each leader for all ends, and one for the starts that are of interest."""
        started = time.perf_counter()
        answers: dict[Question, Bounds | KafkaError] = {}
        try:
            # Starts first: a start that was asked for after the end might lie above it.
            starts = _list(consumer, [place for place, both in questions if both], _EARLIEST, timeout)
            ends = _list(consumer, [place for place, _ in questions], _LATEST, timeout)
            for place, both in questions:
                start, end = starts[place] if both else 0, ends[place]
                if isinstance(start, KafkaError):
                    answers[place, both] = start
                else:
                    answers[place, both] = end if isinstance(end, KafkaError) else Bounds(start, end)
        except KafkaException as error:
            answers = {question: answers.get(question, kafka_error(error)) for question in questions}
            if is_missing(kafka_error(error)):
                _refresh(consumer, {place.topic for place, _ in questions}, timeout)
            consumer.poll(0)  # what it says about its connections must not pile up
        if self._trace is not None:
            places = ", ".join(f"{place}" for place, _ in questions)
            self._loop.call_soon_threadsafe(self._trace, f"list offsets of {places}", time.perf_counter() - started)
        return answers

    async def close(self) -> None:
        """Stop the threads."""
        await self._quick.close()
        if self._patient is not None:
            await self._patient.close()


def _list(
    consumer: Consumer, places: Collection[LogPartition], which: int, timeout: float
) -> dict[LogPartition, int | KafkaError]:
    """One of the two ends of each partition, as its leader says."""
    if not places:
        return {}
    asked = [TopicPartition(place.topic, place.partition, which) for place in dict.fromkeys(places)]
    return {
        LogPartition(found.topic, found.partition): found.error or found.offset
        for found in consumer.offsets_for_times(asked, timeout=timeout)
    }


def _refresh(consumer: Consumer, topics: Collection[str], timeout: float) -> None:
    """Look at the topics again: one may have been made, or got more partitions, since the library last did."""
    for topic in topics:
        with suppress(KafkaException):
            consumer.list_topics(topic, timeout=timeout)
