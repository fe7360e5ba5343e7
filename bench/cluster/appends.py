"""Appends acknowledged per second, many writers at once, beside a bare producer with the same settings.

The bare producer sends what Everlog would send: the same bytes under the same keys, made beforehand. Its writers are
as many tasks of one event loop, each waiting for the acknowledgement of its record before it sends the next.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

import everlog
from bench.cluster.servers import TOPIC, Servers
from bench.cluster.settings import Settings
from bench.payloads import Payload, make_payloads
from bench.records import Records
from bench.report import Line, Target, line_of
from bench.rounds import Contender, Round, alternate
from everlog.config import Config
from everlog.core.actions import ACTION_HEADER
from everlog.core.record import Record
from everlog.log.kafka.client import producer_settings

UNIT = "appends/s"
FLUSH_S = 60.0

Send = Callable[[int, int], Coroutine[Any, Any, object]]


def appends(settings: Settings, servers: Servers) -> tuple[list[Line], list[str]]:
    """All four take turns; each has a topic of its own."""
    with (
        servers.fresh("appends") as config,
        asyncio.Runner() as runner,
        _Everlog(config, settings, runner) as own,
        _Bare(config, settings) as bare,
    ):
        writers = settings.writers
        contenders = [
            Contender(f"a bare producer, {writers} writers", partial(_round, runner, settings, bare.send)),
            Contender("a bare producer that waits for none", partial(bare.flood, settings.raw_appends)),
            Contender(f"Everlog, {writers} writers, verdict=False", partial(_round, runner, settings, own.send)),
            Contender(f"Everlog, {writers} writers", partial(_round, runner, settings, own.send_with_verdict)),
        ]
        alternate(contenders, settings.rounds)
    lines = [line_of("appends", one, UNIT) for one in contenders]
    yardstick = contenders[0].rate
    for line, contender, share in ((lines[2], contenders[2], 0.6), (lines[3], contenders[3], 0.3)):
        line.ratio = contender.rate / yardstick
        name = f"appends: {contender.name.removeprefix('Everlog, ')}: share of the bare producer"
        line.target = Target(name, line.ratio, share, "at least", "x")
        line.details["share_of_flood"] = contender.rate / contenders[1].rate
    return lines, []


def _round(runner: asyncio.Runner, settings: Settings, send: Send) -> Round:
    return runner.run(_at_once(settings, send))


async def _at_once(settings: Settings, send: Send) -> Round:
    """All writers at once, each one append after another."""
    clock, latencies = time.perf_counter, list[float]()

    async def write(writer: int) -> None:
        for number in range(settings.appends_per_writer):
            before = clock()
            await send(writer, number)
            latencies.append(clock() - before)

    started = clock()
    async with asyncio.TaskGroup() as writers:
        for writer in range(settings.writers):
            writers.create_task(write(writer))
    return Round(len(latencies), clock() - started, latencies)


class _Everlog:
    """A journal per writer, in two topics: numbered events without a verdict, expectations with one."""

    def __init__(self, config: Config, settings: Settings, runner: asyncio.Runner) -> None:
        self._log = everlog.connect(config)
        self._runner = runner
        self._payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
        self._names = [f"order-{writer}" for writer in range(settings.writers)]
        self._numbered = [0] * settings.writers
        self._expected = [0] * settings.writers

    def __enter__(self) -> Self:
        self._runner.run(self._log.__aenter__())
        self._plain = self._log.journal(f"{TOPIC}-plain")
        self._judged = self._log.journal(f"{TOPIC}-judged")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._log.close())

    async def send(self, writer: int, number: int) -> None:
        """As writers of kafka-journal do: they number their events themselves and wait for the log alone."""
        seq_nr = self._numbered[writer] = self._numbered[writer] + 1
        event = everlog.Event(self._payload(number), seq_nr=seq_nr)
        await self._plain.append(self._names[writer], event, verdict=False)

    async def send_with_verdict(self, writer: int, number: int) -> None:
        event = everlog.Event(self._payload(number))
        await self._judged.append(self._names[writer], event, expected=self._expected[writer])
        self._expected[writer] += 1

    def _payload(self, number: int) -> Payload:
        return self._payloads[number % len(self._payloads)]


class _Bare:
    """A producer, and a thread that takes its reports and wakes the event loop once for many."""

    def __init__(self, config: Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._topic = config.journal.topic_prefix + f"{TOPIC}-bare"
        self._records: list[Record] = []
        self._arrived: deque[tuple[asyncio.Future[int], str | None, int]] = deque()
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        asyncio.run(self._prepare())
        self._producer = Producer(producer_settings(self._config))
        self._poller = threading.Thread(target=self._poll, name="bare-producer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._poller.join()
        self._producer.flush(FLUSH_S)

    async def _prepare(self) -> None:
        """The topic as Everlog makes it, and a record per writer and number."""
        settings = self._settings
        async with everlog.connect(self._config) as log:
            ref = await log.journal(f"{TOPIC}-bare").ref("order-0", create=True)
        assert ref is not None
        payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
        names = [f"order-{writer}" for writer in range(settings.writers)]
        records = Records(ref.topic, names, payloads, settings.seed, in_turns=True)
        self._records = list(records.make(settings.writers * settings.appends_per_writer))

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._producer.poll(0.05)
            if self._arrived and self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        while self._arrived:
            future, error, offset = self._arrived.popleft()
            if error is None:
                future.set_result(offset)
            else:
                future.set_exception(RuntimeError(error))

    async def send(self, writer: int, number: int) -> None:
        self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        record = self._records[writer * self._settings.appends_per_writer + number]

        def report(error: Any, message: Any) -> None:
            self._arrived.append((future, None if error is None else str(error), message.offset()))

        self._produce(record, report)
        await future

    def _produce(self, record: Record, report: Callable[[Any, Any], None]) -> None:
        self._producer.produce(
            self._topic,
            record.value,
            record.key,
            record.partition,
            on_delivery=report,
            timestamp=record.timestamp,
            headers={ACTION_HEADER: record.action},
        )

    def flood(self, count: int) -> Round:
        """Hand over as quickly as the producer takes it, then wait until everything is acknowledged."""
        failed: list[str] = []
        done = 0

        def report(error: Any, _: Any) -> None:
            nonlocal done
            done += 1
            if error is not None:
                failed.append(str(error))

        started = time.perf_counter()
        for number in range(count):
            while True:
                try:
                    self._produce(self._records[number % len(self._records)], report)
                    break
                except BufferError:
                    time.sleep(0.001)
        self._producer.flush(FLUSH_S)
        seconds = time.perf_counter() - started
        if failed or done < count:
            raise RuntimeError(f"{done:,} of {count:,} records were acknowledged, {failed[:3]}")
        return Round(count, seconds)
