"""Events by tag: what views cost the pipeline, how fast they are read, and how soon an event is delivered."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import everlog
from bench.embedded import TOPIC
from bench.filler import HOW
from bench.payloads import make_payloads
from bench.pipeline import config_for, opened, rate_of, replicate_all, running, spark_session, warm_up
from bench.report import Line, Target, line_of, milliseconds
from bench.rounds import Contender, Round, alternate
from bench.settings import Settings
from everlog.config import Config, load_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNIT = "events/s"
TAG = "eu"
MANY = tuple(f"tag-{number}" for number in range(100))
# What a user would write instead: one statement over the same rows.
SCAN = "SELECT * FROM tag_views WHERE tag_name = ? ORDER BY timebucket, tick, rank"

Tags = Sequence[tuple[str, ...]]


def tags(settings: Settings) -> list[Line]:
    """The pipeline without and with tags, then reads of what it wrote, then a live reader."""
    with spark_session(load_config(settings.folder)) as session:
        warm_up(settings, session)
        lines = _pipeline(settings, session)
        lines += _catch_up(settings)
        lines += _live(settings, session)
    return lines


def _pipeline(settings: Settings, session: SparkSession) -> list[Line]:
    events = settings.tags_events
    plain = _rate(settings, session, "plain", [()], events)
    found = [Line("tags", "pipeline: no tags", plain, UNIT, details={"filled": HOW})]
    for name, what, chosen, count in (
        ("one", "pipeline: one tag per event", [(TAG,)], events),
        ("hot", "pipeline: one tag with 80 % of all events", [("hot",)] * 4 + [("cold",)], events),
        ("many", "pipeline: 100 tags per event", [MANY], max(1_000, events // 50)),
    ):
        rate = _rate(settings, session, name, chosen, count)
        line = Line("tags", what, rate, UNIT, ratio=rate / plain, details={"events": count})
        if name == "one":
            promise = "tags: pipeline with one tag per event, as a share of that without"
            line.target = Target(promise, rate / plain, 0.6, "at least", "x")
        found.append(line)
    return found


def _rate(settings: Settings, session: SparkSession, name: str, chosen: Tags, events: int) -> float:
    config = config_for(settings, f"tags-{name}", events)
    with opened(config, settings, chosen) as filler:
        filler.fill(events)
        rate = rate_of(replicate_all(config, session, events))
    with closing(sqlite3.connect(config.folder / "store.db")) as store:
        (rows,) = store.execute("SELECT count(*) FROM tag_views").fetchone()
    wanted = sum(map(len, chosen)) * events // len(chosen)  # each of these cases has the same number in every event
    if rows != wanted:
        raise RuntimeError(f"{events:,} events were replicated, but the views hold {rows:,} rows, not {wanted:,}")
    return rate


def _catch_up(settings: Settings) -> list[Line]:
    """All events of a tag from the beginning, against one statement over the same rows."""
    config, events = config_for(settings, "tags-one", settings.tags_events), settings.tags_events

    def read() -> Round:
        return _round(*asyncio.run(_read(config)), events)

    def scan() -> Round:
        with closing(sqlite3.connect(config.folder / "store.db")) as store:
            started, count = time.perf_counter(), 0
            cursor = store.execute(SCAN, (TAG,))
            while page := cursor.fetchmany(500):
                count += len(page)
            return _round(count, time.perf_counter() - started, events)

    contenders = [Contender("Everlog: tag(…).current_pages", read), Contender("sqlite3: the same rows", scan)]
    alternate(contenders, settings.rounds)
    own, plain = (line_of("tags", one, UNIT, events=events) for one in contenders)
    assert own.rate is not None
    assert plain.rate is not None
    plain.ratio = own.rate / plain.rate
    own.target = Target("tags: catch-up as a share of a plain scan", plain.ratio, 0.5, "at least", "x")
    return [own, plain]


def _round(count: int, elapsed: float, events: int) -> Round:
    if count != events:
        raise RuntimeError(f"{count:,} events were read, not {events:,}")
    return Round(events, elapsed, [elapsed])


async def _read(config: Config) -> tuple[int, float]:
    async with everlog.connect(config) as log:
        started, count = time.perf_counter(), 0
        async for page in log.tag(TAG).current_pages():
            count += len(page)
        return count, time.perf_counter() - started


def _live(settings: Settings, session: SparkSession) -> list[Line]:
    config = load_config(settings.folder / "tags-live")
    with running(config, session):
        found = asyncio.run(_follow(config, settings))
    times = milliseconds(found)
    return [Line("tags", "Everlog: append → delivered to a live reader", milliseconds=times)]


async def _follow(config: Config, settings: Settings) -> list[float]:
    """One append after the other, each until the reader has it."""
    payloads = make_payloads(100, settings.payload_bytes, settings.seed)
    found = []
    async with everlog.connect(config) as log:
        reader = log.tag(TAG).live()
        for number in range(settings.latency_warm_up_samples + settings.latency_samples):
            called = time.perf_counter()
            event = everlog.Event(payloads[number % len(payloads)], tags={TAG})
            await log.journal(TOPIC).append(f"order-{number % 10}", event)
            await anext(reader)
            found.append(time.perf_counter() - called)
    return found[settings.latency_warm_up_samples :]
