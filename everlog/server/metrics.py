"""`/metrics`: everything that has a number, in the text form that Prometheus reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from everlog.api import Everlog
from everlog.errors import EverlogError, QueueNotFound
from everlog.pipeline.status import PipelineStatus, Status
from everlog.queues.factory import has_queues
from everlog.server.request_watch import HttpCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PART_TIMEOUT_S = 5.0
Labels = Mapping[str, object]


class Metric(NamedTuple):
    """One metric with all its samples; those of a summary have suffixes to its name."""

    name: str
    kind: str
    help: str
    samples: list[tuple[Labels, float]]
    parts: Mapping[str, list[tuple[Labels, float]]] = {}

    def lines(self) -> Iterator[str]:
        yield f"# HELP everlog_{self.name} {self.help}"
        yield f"# TYPE everlog_{self.name} {self.kind}"
        for part, samples in {"": self.samples, **self.parts}.items():
            for labels, value in samples:
                shown = ",".join(f'{name}="{escaped(str(text))}"' for name, text in labels.items())
                yield f"everlog_{self.name}{part}" + (f"{{{shown}}}" if shown else "") + f" {value:.10g}"


def escaped(text: str) -> str:
    """A label's value.

    >>> escaped('a"b')
    'a\\\\"b'
    """
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def text_of(metrics: Iterable[Metric]) -> str:
    return "".join(f"{line}\n" for metric in metrics for line in metric.lines())


def http_metrics(counters: HttpCounters) -> list[Metric]:
    requests: list[tuple[Labels, float]] = [
        ({"route": route, "method": method, "status": status}, float(count))
        for (route, method, status), count in sorted(counters.requests.items())
    ]
    seconds: list[tuple[Labels, float]] = [
        ({"route": route, "method": method}, spent) for (route, method), spent in sorted(counters.seconds.items())
    ]
    return [
        Metric("http_requests_total", "counter", "Requests that were answered.", requests),
        Metric("http_request_seconds_total", "counter", "Time that they took, streams included.", seconds),
        Metric("http_requests_open", "gauge", "Requests under way.", [({}, counters.open)]),
        Metric("http_streams_open", "gauge", "Server-sent event streams under way.", [({}, counters.streams)]),
        Metric("http_connections_cut_total", "counter", "Peers that took too long.", [({}, counters.cut)]),
    ]


def status_metrics(status: Status) -> list[Metric]:
    places: list[tuple[Labels, Any]] = [
        ({"topic": one.topic, "partition": one.partition}, one) for one in status.partitions
    ]
    found = [
        Metric("log_end_offset", "gauge", "The next offset of the log.", [(at, one.end) for at, one in places]),
        Metric("replicated_offset", "gauge", "The last replicated offset.", [(at, one.pointer) for at, one in places]),
        Metric("lag_records", "gauge", "Records that are not replicated yet.", [(at, one.lag) for at, one in places]),
        Metric(
            "lag_seconds",
            "gauge",
            "How old the oldest of them is.",
            [(at, one.lag_seconds) for at, one in places if one.lag_seconds is not None],
        ),
        Metric("quarantined", "gauge", "Records in quarantine.", [({}, status.quarantined)]),
    ]
    pipeline = status.pipeline
    states = ("starting", "running", "retrying", "stopped", "lost")
    state = None if pipeline is None else pipeline.state
    found.append(
        Metric("pipeline_state", "gauge", "1 for the pipeline's state.", [({"state": s}, s == state) for s in states])
    )
    return found if pipeline is None else [*found, *pipeline_metrics(pipeline)]


def pipeline_metrics(pipeline: PipelineStatus) -> list[Metric]:
    rows: list[tuple[Labels, float]] = [({"table": table}, count) for table, count in pipeline.rows.items()]
    phases: dict[str, list[tuple[Labels, float]]] = {
        "_sum": [({"phase": phase}, ms / 1000) for phase, ms in pipeline.phase_ms.items()],
        "_count": [({"phase": phase}, pipeline.cycles) for phase in pipeline.phase_ms],
    }
    return [
        Metric("pipeline_cycles_total", "counter", "Cycles since its start.", [({}, pipeline.cycles)]),
        Metric("pipeline_records_total", "counter", "Records since its start.", [({}, pipeline.records)]),
        Metric("pipeline_events_total", "counter", "Events since its start.", [({}, pipeline.events)]),
        Metric("pipeline_rejected_total", "counter", "Appends that lost, since its start.", [({}, pipeline.rejected)]),
        Metric(
            "pipeline_rejected_by_life_total",
            "counter",
            "Appends that lost because the life they expected had ended, since its start.",
            [({}, pipeline.rejected_by_life)],
        ),
        Metric("pipeline_cycle_seconds", "gauge", "The last cycle.", [({}, pipeline.last_cycle_ms / 1000)]),
        Metric("pipeline_phase_seconds", "summary", "Time of cycles by phase, since its start.", [], phases),
        Metric("pipeline_rows_total", "counter", "Rows that were written, since its start.", rows),
        Metric("pipeline_left_out_topics", "gauge", "Topics that it cannot take.", [({}, len(pipeline.left_out))]),
    ]


async def projection_metrics(log: Everlog) -> list[Metric]:
    found = await log.projections.list()
    places: list[tuple[Labels, Any]] = [({"name": one.name, "key": one.key}, one) for one in found]
    behind: list[tuple[Labels, Any]] = [(at, one.lag) for at, one in places if one.lag is not None]
    name = "projection_instance"
    return [
        Metric(f"{name}_handled_total", "counter", "Envelopes handled.", [(at, one.handled) for at, one in places]),
        Metric(f"{name}_restarts_total", "counter", "Restarts.", [(at, one.restarts) for at, one in places]),
        Metric(f"{name}_dead_letters", "gauge", "Dead letters.", [(at, one.dead_letters) for at, one in places]),
        Metric(f"{name}_paused", "gauge", "1 if it is paused.", [(at, one.paused) for at, one in places]),
        Metric(f"{name}_owned", "gauge", "1 if it has an owner.", [(at, one.owner is not None) for at, one in places]),
        Metric(f"{name}_lag_events", "gauge", "Events that wait.", [(at, lag.events) for at, lag in behind]),
        Metric(f"{name}_lag_seconds", "gauge", "How old the oldest is.", [(at, lag.seconds) for at, lag in behind]),
    ]


async def queue_metrics(log: Everlog) -> list[Metric]:
    if not has_queues(log.config):
        return []  # a look makes no files
    places: list[tuple[Labels, Any]] = []
    for name in await log.queues.names():
        with suppress(QueueNotFound):  # it was deleted meanwhile
            places.append(({"queue": name}, await log.queue(name).stats()))
    now_ms = log.parts.clock.now_ms()
    jobs: list[tuple[Labels, float]] = [
        ({**at, "status": status}, float(getattr(stats, status)))
        for at, stats in places
        for status in ("ready", "delayed", "running", "dead")
    ]
    ages: list[tuple[Labels, float]] = [
        (at, max(0.0, (now_ms - stats.oldest_due_ms) / 1000)) for at, stats in places if stats.oldest_due_ms is not None
    ]
    return [
        Metric("queue_jobs", "gauge", "Jobs by status.", jobs),
        Metric("queue_oldest_due_seconds", "gauge", "For how long the oldest job has been due.", ages),
        Metric("queue_paused", "gauge", "1 if it gives out nothing.", [(at, stats.paused) for at, stats in places]),
    ]


async def all_metrics(log: Everlog, counters: HttpCounters, more: Iterable[Callable[[], str]] = ()) -> str:
    """Every part that answers in time; `everlog_part_up` says which did not."""
    began = time.perf_counter()

    async def status() -> list[Metric]:
        return status_metrics(await log.status())

    parts: dict[str, Callable[[], Awaitable[list[Metric]]]] = {
        "status": status,
        "projections": lambda: projection_metrics(log),
        "queues": lambda: queue_metrics(log),
    }
    found = await asyncio.gather(*[_collected(part) for part in parts.values()])
    up = Metric(
        "part_up",
        "gauge",
        "1 if this part could be asked.",
        [({"part": name}, one is not None) for name, one in zip(parts, found, strict=True)],
    )
    spent = Metric("scrape_seconds", "gauge", "What this answer took.", [({}, time.perf_counter() - began)])
    metrics = [metric for part in found if part is not None for metric in part]
    own = "".join(text() for text in more)
    return text_of([up, *metrics, *http_metrics(counters), spent]) + own


async def _collected(part: Callable[[], Awaitable[list[Metric]]]) -> list[Metric] | None:
    try:
        async with asyncio.timeout(PART_TIMEOUT_S):
            return await part()
    except (EverlogError, TimeoutError):
        return None
