"""The pipeline on a cluster: events a second, beside what the driver alone can write on the same machine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import everlog
from bench.cluster.filler import HOW, Filler
from bench.cluster.limit import Limit, count_rows
from bench.cluster.processor import Usage, total
from bench.cluster.servers import Servers
from bench.cluster.settings import Settings
from bench.payloads import make_payloads
from bench.pipeline import STALLED_S, Progress, check_clean, rate_of, running, spark_session
from bench.report import Line, Target, line_of
from bench.rounds import Contender, Round, alternate
from everlog.cassandra.session import connect
from everlog.config import Config
from everlog.store.port import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from everlog.pipeline.replicator import Replicator

POLL_S = 0.02
# What is promised, by events per append.
SHARES = {10: 0.5, 1: 0.4}


@dataclass(slots=True)
class PipelineRuns:
    """Rounds of the pipeline with appends of one size."""

    settings: Settings
    servers: Servers
    session: SparkSession
    per_append: int
    used: list[Usage] = field(default_factory=list)
    batches: list[list[tuple[float, int]]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"Everlog, {self.per_append} event{'s' if self.per_append > 1 else ''} per append"

    def round(self) -> Round:
        """Fill a log of its own, replicate it, look whether everything is there."""
        settings, size = self.settings, self.per_append
        with self.servers.fresh("pipeline", max_cycle_records=settings.rows_per_batch // size) as config:
            filler = asyncio.run(self._fill(config))
            with running(config, self.session) as replicator:
                found = asyncio.run(self._watch(config, filler, replicator))
                check_clean(replicator)
            asyncio.run(_check_tables(config, filler, settings.events))
        self.batches.append([(round(seen.seconds, 3), seen.records * size) for seen in found])
        events = self.used[-1].operations = (found[-1].records - found[0].records) * size
        return Round(events, events / (rate_of(found) * size))

    async def _fill(self, config: Config) -> Filler:
        settings = self.settings
        payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
        async with everlog.connect(config) as log:
            filler = Filler(log, settings.seed, payloads, self.per_append)
            await filler.open(settings.keys)
            await filler.fill(settings.events // self.per_append)
        return filler

    async def _watch(self, config: Config, filler: Filler, replicator: Replicator) -> list[Progress]:
        """When which records were published, seen from outside, through pointer2, until all are."""
        records = self.settings.events // self.per_append
        async with everlog.connect(config) as log:
            store, topic, started = log.parts.store, filler.ref.topic.name, time.perf_counter()
            found = [await _until(store, topic, replicator, Progress(0.0, 0), started)]
            with self.servers.processor.watch() as usage:
                while found[-1].records < records:
                    found.append(await _until(store, topic, replicator, found[-1], started))
        self.used.append(usage)
        return found


def pipeline(settings: Settings, servers: Servers) -> tuple[list[Line], list[str]]:
    """The limit and the pipeline take turns, so that a slow minute hits both."""
    limits = [
        Limit(settings, servers, settings.events, settings.rows_per_journal),
        Limit(settings, servers, settings.single_rows, 1),
    ]
    with spark_session(servers.config) as session:
        runs = [PipelineRuns(settings, servers, session, size) for size in settings.events_per_append]
        everyone: list[Limit | PipelineRuns] = [*limits, *runs]
        contenders = [Contender(one.name, one.round) for one in everyone]
        alternate(contenders, settings.rounds)
    yardstick, lines = contenders[0], []
    for contender, done in zip(contenders, everyone, strict=True):
        # The first round was the warm-up.
        used = total(done.used[1:]).as_json()
        if isinstance(done, PipelineRuns):
            line = line_of("pipeline", contender, "events/s", **used, filled=HOW, batches=done.batches)
            line.ratio = contender.rate / yardstick.rate
            name = f"pipeline, {done.name.removeprefix('Everlog, ')}: share of the limit"
            line.target = Target(name, line.ratio, SHARES[done.per_append], "at least", "x")
        else:
            line = line_of("limit", contender, "rows/s", **used)
        lines.append(line)
    notes = [f"{one.name}: {total(one.used[1:])}" for one in everyone]
    return lines, ["processors kept busy (and their time per row or event):", *notes]


async def _until(store: Store, topic: str, replicator: Replicator, last: Progress, started: float) -> Progress:
    """Wait until more than the last time is published."""
    began = time.perf_counter()
    while True:
        await asyncio.sleep(POLL_S)
        seen = sum(offset + 1 for offset in (await store.pointers(topic)).values())
        now = time.perf_counter()
        if seen > last.records:
            return Progress(now - started, seen)
        if now - began > STALLED_S:
            raise RuntimeError(f"the pipeline stands still at {seen:,}: {replicator.status.last_error}")


async def _check_tables(config: Config, filler: Filler, events: int) -> None:
    """A rate counts only if every event is there, and every head knows it."""
    assert config.cassandra is not None
    topic = filler.ref.topic.name
    session = await connect(config.cassandra)
    try:
        rows = await count_rows(session, config.cassandra.keyspace, topic, filler.names)
    finally:
        await session.close()
    async with everlog.connect(config) as log:
        heads = await asyncio.gather(*(log.parts.store.head(topic, name) for name in filler.names))
    last = sum(head.seq_nr for head in heads if head is not None)
    if rows != events or last != events:
        raise RuntimeError(f"{events:,} events were replicated, but the tables hold {rows:,} rows, heads say {last:,}")
