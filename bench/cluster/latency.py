"""From the call of an append until its row is in Cassandra, at a steady rate, with the pipeline running."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import everlog
from bench.cluster.processor import Usage
from bench.cluster.servers import TOPIC, Servers
from bench.cluster.settings import Settings
from bench.payloads import make_payloads
from bench.pipeline import STALLED_S, check_clean, running, spark_session
from bench.report import Line, Target, milliseconds
from everlog.config import Config
from everlog.store.port import Store

POLL_S = 0.01


class Sent(NamedTuple):
    """An acknowledged append that is on its way into the tables."""

    called: float
    acknowledged: float
    offset: int


def latency(settings: Settings, servers: Servers) -> tuple[list[Line], list[str]]:
    """Appends come at fixed times, whether the ones before are done or not."""
    with servers.fresh("latency") as config, spark_session(config) as session:
        asyncio.run(_create(config))
        with running(config, session) as replicator:
            found, usage = asyncio.run(_Trickle(settings, servers, config).run())
            check_clean(replicator)
    lines = _lines(settings, found, usage)
    return lines, [f"{lines[0].who}: {usage}"]


def _lines(settings: Settings, found: list[tuple[float, float]], usage: Usage) -> list[Line]:
    whole = milliseconds([stored for stored, _ in found])
    acknowledged = milliseconds([acknowledged for _, acknowledged in found])
    details = {"samples": len(found), **usage.as_json()}
    rate = f"{settings.appends_per_second} appends/s"
    return [
        Line(
            "latency",
            f"Everlog, {rate}: append → row in Cassandra",
            milliseconds=whole,
            target=Target("latency: p50", whole["p50"], 300, "under", " ms"),
            details=details,
        ),
        Line(
            "latency",
            "the same: its p99",
            milliseconds={"p99": whole["p99"]},
            target=Target("latency: p99", whole["p99"], 600, "under", " ms"),
        ),
        Line("latency", "the same: append → acknowledged, with its verdict", milliseconds=acknowledged),
    ]


async def _create(config: Config) -> None:
    async with everlog.connect(config) as log:
        await log.journal(TOPIC).mark("order-0")


class _Trickle:
    """Appends, and a look at pointer2 every few milliseconds."""

    def __init__(self, settings: Settings, servers: Servers, config: Config) -> None:
        self._settings = settings
        self._servers = servers
        self._config = config
        self._waiting: dict[int, list[Sent]] = {}
        self._found: list[tuple[float, float]] = []
        self._left = 0

    async def run(self) -> tuple[list[tuple[float, float]], Usage]:
        """(until stored, until acknowledged) of every append after the warm-up, in seconds."""
        settings = self._settings
        async with everlog.connect(self._config) as log:
            await self._phase(log, settings.latency_warm_up_s)
            self._found.clear()
            with self._servers.processor.watch() as usage:
                await self._phase(log, settings.latency_duration_s)
            topic = log.journal(TOPIC).log_name
            names = [self._name(number) for number in range(settings.latency_journals)]
            heads = await asyncio.gather(*(log.parts.store.head(topic, name) for name in names))
        appends = sum(self._appends(seconds) for seconds in (settings.latency_warm_up_s, settings.latency_duration_s))
        stored = sum(head.seq_nr for head in heads if head is not None)
        if stored != appends:
            raise RuntimeError(f"{appends} appends were acknowledged and published, but the heads say {stored}")
        usage.operations = len(self._found)
        return self._found, usage

    def _appends(self, seconds: float) -> int:
        return int(seconds * self._settings.appends_per_second)

    def _name(self, number: int) -> str:
        return f"order-{number % self._settings.latency_journals}"

    async def _phase(self, log: everlog.Everlog, seconds: float) -> None:
        appends = self._left = self._appends(seconds)
        payloads = make_payloads(100, self._settings.payload_bytes, self._settings.seed)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look(log.parts.store, log.journal(TOPIC).log_name))
            started = loop.time()
            for number in range(appends):
                await asyncio.sleep(started + number / self._settings.appends_per_second - loop.time())
                event = everlog.Event(payloads[number % len(payloads)])
                tasks.create_task(self._append(log, self._name(number), event))

    async def _append(self, log: everlog.Everlog, name: str, event: everlog.Event) -> None:
        called = time.perf_counter()
        token = await log.journal(TOPIC).append(name, event)
        sent = Sent(called, time.perf_counter(), token.offset)
        self._waiting.setdefault(token.partition, []).append(sent)

    async def _look(self, store: Store, topic: str) -> None:
        """An append is in the tables when pointer2 covers it."""
        changed = time.perf_counter()
        while self._left:
            await asyncio.sleep(POLL_S)
            pointers = await store.pointers(topic)
            now, before = time.perf_counter(), self._left
            for partition, waiting in self._waiting.items():
                pointer = pointers.get(partition, -1)
                covered = [sent for sent in waiting if sent.offset <= pointer]
                self._waiting[partition] = [sent for sent in waiting if sent.offset > pointer]
                self._found += [(now - sent.called, sent.acknowledged - sent.called) for sent in covered]
                self._left -= len(covered)
            if self._left < before:
                changed = now
            elif now - changed > STALLED_S:
                raise RuntimeError(f"nothing was stored for {STALLED_S:.0f} s, {self._left} appends are left")
