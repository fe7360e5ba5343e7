"""The pipeline on real Spark: how many events a second, whether that stays, and how soon an append is in the tables."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

import everlog
from bench.embedded import TOPIC
from bench.filler import HOW, Filler
from bench.payloads import make_payloads
from bench.report import Line, Target, milliseconds
from bench.settings import Settings
from everlog.config import Config, PipelineConfig, load_config
from everlog.journal.journal import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from everlog.pipeline.replicator import Replicator

UNIT = "events/s"
POLL_S = 0.01
LATENCY_POLL_S = 0.001
STALLED_S = 120.0
MIN_BATCHES = 5


class Progress(NamedTuple):
    """When a number of records was first seen as replicated."""

    seconds: float
    records: int


def pipeline(settings: Settings) -> list[Line]:
    """The steady rate; with `big`, also that of the last events of a log ten times as long."""
    with spark_session(load_config(settings.folder)) as session:
        warm_up(settings, session)
        config = config_for(settings, "pipeline", settings.pipeline_events)
        with opened(config, settings) as filler:
            filled = _fill(filler, settings.pipeline_events)
            batches = replicate_all(config, session, settings.pipeline_events)
            rate = rate_of(batches)
            lines = [_rate_line(rate, batches, settings, filled)]
            if settings.big:
                more = settings.big_events - settings.pipeline_events
                filled = _fill(filler, more)
                batches = replicate_all(config, session, settings.big_events)
                lines += _big_lines(rate, batches, settings, filled)
        _check_tables(config, batches[-1].records)
    return lines


def _rate_line(rate: float, batches: list[Progress], settings: Settings, filled: float) -> Line:
    details = _details(batches, settings, filled)
    target = Target("pipeline: events/s, steady", rate, 50_000, "at least", "/s")
    name = f"Everlog, the first {settings.pipeline_events:,} events"
    return Line("pipeline", name, rate, UNIT, target=target, details=details)


def _big_lines(before: float, batches: list[Progress], settings: Settings, filled: float) -> list[Line]:
    """Cost per event is the inverse of the rate."""
    last = [seen for seen in batches if seen.records >= settings.big_events - settings.pipeline_events]
    after = rate_of(last)
    details = _details(batches, settings, filled) | {"cost_ratio": before / after}
    target = Target(
        "pipeline: cost per event at the end, as a multiple of that at the start", before / after, 1.25, "under", "x"
    )
    whole = f"Everlog, the {settings.big_events - settings.pipeline_events:,} events after them"
    name = f"Everlog, the last {settings.pipeline_events:,} of {settings.big_events:,}"
    return [
        Line("pipeline", whole, rate_of(batches), UNIT),
        Line("pipeline", name, after, UNIT, target=target, details=details),
    ]


def _details(batches: list[Progress], settings: Settings, filled: float) -> dict[str, object]:
    return {
        "keys": settings.pipeline_keys,
        "filled": HOW,
        "filled_per_second": round(filled),
        "batches": [(round(seen.seconds, 3), seen.records) for seen in batches],
    }


def rate_of(batches: list[Progress]) -> float:
    """Events per second from the first batch that was published to the last one."""
    if len(batches) < 2:
        raise RuntimeError("a steady rate needs two batches: give it more events")
    first, last = batches[0], batches[-1]
    return (last.records - first.records) / (last.seconds - first.seconds)


@contextmanager
def spark_session(config: Config) -> Iterator[SparkSession]:
    """A session of its own; the caller warms it up."""
    from everlog.spark.session import open_session

    session = open_session(config)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def running(config: Config, session: SparkSession) -> Iterator[Replicator]:
    """A pipeline, for as long as this lasts."""
    from everlog.pipeline.replicator import Replicator

    replicator = Replicator(config, session=session)
    replicator.start()
    try:
        yield replicator
    finally:
        replicator.stop()


def config_for(settings: Settings, name: str, events: int) -> Config:
    """The defaults; but a small log still gives several batches."""
    folder = settings.folder / name
    max_records = min(PipelineConfig().max_cycle_records, max(1, events // MIN_BATCHES))
    return msgspec.structs.replace(load_config(folder), pipeline=PipelineConfig(max_cycle_records=max_records))


@contextmanager
def opened(config: Config, settings: Settings, tags: Sequence[tuple[str, ...]] = ((),)) -> Iterator[Filler]:
    """A filler on a log of its own."""
    with asyncio.Runner() as runner:
        log = everlog.connect(config)
        runner.run(log.__aenter__())
        payloads = make_payloads(1_000, settings.payload_bytes, settings.seed)
        filler = Filler(log, TOPIC, settings.seed, payloads, tags)
        try:
            runner.run(filler.open(settings.pipeline_keys))
            yield filler
        finally:
            runner.run(log.close())


def _fill(filler: Filler, events: int) -> float:
    """Fill, and say how many records a second that was."""
    started = time.perf_counter()
    filler.fill(events)
    return events / (time.perf_counter() - started)


def warm_up(settings: Settings, session: SparkSession) -> None:
    """Load classes, start the workers, let the JVM compile: none of that belongs to a steady rate."""
    config = config_for(settings, "warm-up", settings.pipeline_warm_up_events)
    with opened(config, settings) as filler:
        filler.fill(settings.pipeline_warm_up_events)
        replicate_all(config, session, settings.pipeline_warm_up_events)


def replicate_all(config: Config, session: SparkSession, events: int) -> list[Progress]:
    """Replicate until `events` records are in the tables; watched from outside, through pointer2."""
    with running(config, session) as replicator, closing(_store(config)) as store:
        started = changed = time.perf_counter()
        found = [Progress(0.0, _replicated(store))]
        while found[-1].records < events:
            time.sleep(POLL_S)
            now, records = time.perf_counter(), _replicated(store)
            if records > found[-1].records:
                found.append(Progress(now - started, records))
                changed = now
            elif now - changed > STALLED_S:
                raise RuntimeError(f"the pipeline stands still at {records:,}: {replicator.status.last_error}")
        check_clean(replicator)
    return found[1:]


def check_clean(replicator: Replicator) -> None:
    """A run with a retry in it measures the retry."""
    status = replicator.status
    if status.last_error is not None or status.rejected or status.quarantined:
        raise RuntimeError(f"the pipeline did not run cleanly: {status}")


def _store(config: Config) -> sqlite3.Connection:
    return sqlite3.connect(config.folder / "store.db", timeout=60, isolation_level=None)


def _replicated(store: sqlite3.Connection) -> int:
    (records,) = store.execute("SELECT coalesce(sum(offset + 1), 0) FROM pointer2").fetchone()
    return int(records)


def _check_tables(config: Config, events: int) -> None:
    """A rate counts only if every event is there."""
    with closing(_store(config)) as store:
        (rows,) = store.execute("SELECT count(*) FROM journal").fetchone()
        (last,) = store.execute("SELECT sum(seq_nr) FROM metajournal").fetchone()
    if rows != events or last != events:
        raise RuntimeError(f"{events:,} events were replicated, but the tables hold {rows:,} rows, heads say {last:,}")


def latency(settings: Settings) -> list[Line]:
    """An append now and then, with the pipeline running: from its acknowledgement until the store covers it."""
    config = load_config(settings.folder / "latency")
    with spark_session(load_config(settings.folder)) as session, running(config, session) as replicator:
        found = asyncio.run(_trickle(config, settings))
        check_clean(replicator)
    times = milliseconds(found)
    target = Target("latency: p50", times["p50"], 700, "under", " ms")
    return [
        Line(
            "latency",
            "Everlog: acknowledged → in the store",
            milliseconds=times,
            target=target,
            details={"samples": len(found)},
        )
    ]


async def _trickle(config: Config, settings: Settings) -> list[float]:
    payloads = make_payloads(100, settings.payload_bytes, settings.seed)
    source = random.Random(settings.seed)
    found = []
    async with everlog.connect(config) as log:
        for number in range(settings.latency_warm_up_samples + settings.latency_samples):
            name = f"order-{number % 10}"
            token = await log.journal(TOPIC).append(name, everlog.Event(payloads[number % len(payloads)]))
            acknowledged = time.perf_counter()
            await _visible(log, name, token)
            found.append(time.perf_counter() - acknowledged)
            # Not in step with the pipeline's own rhythm.
            await asyncio.sleep(source.uniform(0.0, 0.3))
    return found[settings.latency_warm_up_samples :]


async def _visible(log: everlog.Everlog, name: str, token: Token) -> None:
    """Wait until pointer2 covers the append and the head has it."""
    store, topic = log.parts.store, log.journal(TOPIC).log_name
    deadline = time.perf_counter() + STALLED_S
    while time.perf_counter() < deadline:
        if await store.pointer(topic, token.partition) >= token.offset:
            head = await store.head(topic, name)
            if head is not None and head.seq_nr >= token.range.last:
                return
        await asyncio.sleep(LATENCY_POLL_S)
    raise RuntimeError(f"{token} was not in the store after {STALLED_S:.0f} s")
