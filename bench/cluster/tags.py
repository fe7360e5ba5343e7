"""Events by tag on the cluster: how soon a live reader has an event, and how fast a view is read from its beginning."""

from __future__ import annotations

import asyncio
import time

import everlog
from bench.cluster.servers import TOPIC, Servers
from bench.cluster.settings import Settings
from bench.payloads import make_payloads
from bench.pipeline import check_clean, running, spark_session
from bench.report import Line, Target, line_of, milliseconds
from bench.rounds import Contender, Round, alternate
from everlog.cassandra.schema import quoted
from everlog.cassandra.session import connect
from everlog.config import Config

UNIT = "events/s"
TAG = "eu"
PAGE = 500
# What a user would write instead: one statement per partition, read page by page.
SCAN = "SELECT * FROM {keyspace}.tag_views WHERE tag_name = ? AND timebucket = ?"


def tags(settings: Settings, servers: Servers) -> tuple[list[Line], list[str]]:
    """Appends come at fixed times; one reader follows. Then the view is read from its beginning."""
    with servers.fresh("tags") as config, spark_session(config) as session:
        asyncio.run(_create(config))
        with running(config, session) as replicator:
            found = asyncio.run(_Following(settings, config).run())
            check_clean(replicator)
        lines = _latency(settings, found)
        lines += _catch_up(settings, config)
    return lines, []


async def _create(config: Config) -> None:
    """The topic, so that the pipeline need not begin again when it appears."""
    async with everlog.connect(config) as log:
        await log.journal(TOPIC).mark("order-0")


def _latency(settings: Settings, found: list[float]) -> list[Line]:
    times = milliseconds(found)
    rate = f"{settings.appends_per_second} appends/s"
    return [
        Line(
            "tags",
            f"Everlog, {rate}: append → delivered to a live reader",
            milliseconds=times,
            target=Target("tags: live p50", times["p50"], 400, "under", " ms"),
            details={"samples": len(found)},
        ),
        Line(
            "tags",
            "the same: its p99",
            milliseconds={"p99": times["p99"]},
            target=Target("tags: live p99", times["p99"], 800, "under", " ms"),
        ),
    ]


class _Following:
    """Appends with one tag, and a live reader that knows when each of them was called for."""

    def __init__(self, settings: Settings, config: Config) -> None:
        self._settings = settings
        self._config = config
        self._called: dict[int, float] = {}
        self._found: dict[int, float] = {}

    async def run(self) -> list[float]:
        settings = self._settings
        warm_up = int(settings.latency_warm_up_s * settings.appends_per_second)
        appends = warm_up + int(settings.latency_duration_s * settings.appends_per_second)
        async with everlog.connect(self._config) as log, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(log, appends))
            await self._append_all(log, tasks, appends)
        return [self._found[number] - self._called[number] for number in range(warm_up, appends)]

    async def _append_all(self, log: everlog.Everlog, tasks: asyncio.TaskGroup, appends: int) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        payloads = make_payloads(100, settings.payload_bytes, settings.seed)
        started = loop.time()
        for number in range(appends):
            await asyncio.sleep(started + number / settings.appends_per_second - loop.time())
            event = everlog.Event({**payloads[number % len(payloads)], "number": number}, tags={TAG})
            self._called[number] = time.perf_counter()
            tasks.create_task(log.journal(TOPIC).append(f"order-{number % settings.latency_journals}", event))

    async def _follow(self, log: everlog.Everlog, appends: int) -> None:
        async for event in log.tag(TAG).live():
            number = event.payload["number"]
            if number in self._found:
                raise RuntimeError(f"the event {number} came twice")
            self._found[number] = time.perf_counter()
            if len(self._found) == appends:
                return


def _catch_up(settings: Settings, config: Config) -> list[Line]:
    contenders = [
        Contender("Everlog: tag(…).current_pages", lambda: asyncio.run(_read(config))),
        Contender("acsylla: the same rows", lambda: asyncio.run(_scan(config))),
    ]
    alternate(contenders, settings.rounds)
    own, plain = (line_of("tags", one, UNIT) for one in contenders)
    assert own.rate is not None
    assert plain.rate is not None
    plain.ratio = own.rate / plain.rate
    own.target = Target("tags: catch-up as a share of a plain scan", plain.ratio, 0.5, "at least", "x")
    return [own, plain]


async def _read(config: Config) -> Round:
    async with everlog.connect(config) as log:
        started, count = time.perf_counter(), 0
        async for page in log.tag(TAG).current_pages():
            count += len(page)
        elapsed = time.perf_counter() - started
    return Round(count, elapsed, [elapsed])


async def _scan(config: Config) -> Round:
    assert config.cassandra is not None
    keyspace = quoted(config.cassandra.keyspace)
    session = await connect(config.cassandra)
    try:
        buckets = await session.fetch(f"SELECT timebucket FROM {keyspace}.tag_buckets WHERE tag_name = ?", TAG)
        started, count = time.perf_counter(), 0
        for (bucket,) in buckets:
            async for page in session.pages(SCAN.replace("{keyspace}", keyspace), TAG, bucket, page=PAGE):
                count += len(page)
        elapsed = time.perf_counter() - started
    finally:
        await session.close()
    return Round(count, elapsed, [elapsed])
