"""Reads: a long journal in the store, half in the tail, all in the tail; and short ones by several readers at once."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import everlog
from bench.cluster.filler import HOW, Filler
from bench.cluster.servers import TOPIC, Servers
from bench.cluster.settings import Settings
from bench.payloads import make_payloads
from bench.report import Line, Target, line_of
from bench.rounds import Contender, Round, alternate
from everlog.testing.replication import replicate

UNIT = "events/s"
# How much of the journals is replicated, and what that is called.
PLACES = ((1.0, "all in the store"), (0.5, "half in the tail"), (0.0, "all in the tail"))
FASTEST = 50_000


class Journals:
    """Journals of one length. Nothing replicates while they are read: what is in the tail stays there."""

    def __init__(self, runner: asyncio.Runner, log: everlog.Everlog, names: list[str], events: int) -> None:
        self._runner = runner
        self._log = log
        self._names = names
        self._events = events

    def one_after_another(self, reads: int) -> Round:
        """The same journal, again and again."""
        return self._runner.run(self._read(reads, 1, self._names[:1]))

    def at_once(self, reads: int, readers: int) -> Round:
        """Several readers, each one journal after another."""
        return self._runner.run(self._read(reads, readers, self._names))

    async def _read(self, reads: int, readers: int, names: list[str]) -> Round:
        clock, latencies = time.perf_counter, list[float]()
        source = itertools.islice(itertools.cycle(names), reads)
        journal = self._log.journal(TOPIC)

        async def read() -> None:
            for name in source:
                before, found, quantity = clock(), 0, 0
                async for event in journal.read(name):
                    found += 1
                    quantity += event.payload["quantity"]
                latencies.append(clock() - before)
                if found != self._events or quantity < found:
                    raise RuntimeError(f"{name} has {found} events, not {self._events}")

        started = clock()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(readers):
                tasks.create_task(read())
        return Round(reads * self._events, clock() - started, latencies)


def reads(settings: Settings, servers: Servers) -> tuple[list[Line], list[str]]:
    """The three places of a long journal take turns; then the short ones."""
    long, short = settings.read_events, settings.short_events
    with asyncio.Runner() as runner, ExitStack() as opened:
        contenders = []
        for share, place in PLACES:
            journals = opened.enter_context(_filled(settings, servers, runner, settings.read_journals, long, share))
            work = partial(journals.one_after_another, settings.reads_per_round)
            contenders.append(Contender(f"Everlog, {long:,} events, {place}", work))
        alternate(contenders, settings.rounds)
        many = opened.enter_context(_filled(settings, servers, runner, settings.short_journals, short, 1.0))
        name = f"Everlog, {short} events, {settings.readers} readers, all in the store"
        together = Contender(name, partial(many.at_once, settings.short_reads, settings.readers))
        with servers.processor.watch() as usage:
            alternate([together], settings.rounds)
        usage.operations = settings.short_reads * short * (settings.rounds + 1)
    lines = [line_of("read", one, UNIT, filled=HOW, journals=settings.read_journals) for one in contenders]
    last = line_of("read", together, UNIT, filled=HOW, journals=settings.short_journals, **usage.as_json())
    last.target = Target(f"read: events/s, {settings.readers} readers", together.rate, FASTEST, "at least", "/s")
    return [*lines, last], [f"{name}: {usage}"]


@contextmanager
def _filled(
    settings: Settings, servers: Servers, runner: asyncio.Runner, journals: int, events: int, stored: float
) -> Iterator[Journals]:
    """Journals side by side in one topic, one event per append; the older part of each is in the store."""
    with servers.fresh("reads") as config:
        log = everlog.connect(config)
        runner.run(log.__aenter__())
        try:
            payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
            filler = Filler(log, settings.seed, payloads)
            runner.run(_fill(filler, journals, events, int(events * stored)))
            yield Journals(runner, log, filler.names, events)
        finally:
            runner.run(log.close())


async def _fill(filler: Filler, journals: int, events: int, stored: int) -> None:
    await filler.open(journals)
    if stored:
        await filler.fill(stored * journals)
        await replicate(filler.log)
    if events > stored:
        await filler.fill((events - stored) * journals)
