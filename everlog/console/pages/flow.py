"""The home page: from the log to what is made of it, in one picture."""

from __future__ import annotations

from typing import Any

from everlog.console.console import ConsolePage, Context, Model
from everlog.console.observation import Observation
from everlog.console.problems import find_notes, find_problems, level_of
from everlog.console.sampler import MetricSample, Sampler, series
from everlog.core.phrases import count
from everlog.pipeline.status import Status

Box = dict[str, Any]


async def build_flow(context: Context) -> Model:
    found = await context.sampler.latest(1.0)
    problems = find_problems(found, embedded=context.log.config.embedded)
    boxes = make_boxes(found, context.sampler, embedded=context.log.config.embedded)
    for box in boxes:
        box["level"] = level_of(problems, box["part"])
        box["error"] = next((one.what for one in problems if one.part == box["part"]), None)
        if found.status is None or box["part"] in found.errors:
            box.update(_unknown(found, box["part"]))
    return {
        "time_ms": found.time_ms,
        "where": context.log.config.where,
        "problems": problems,
        "notes": find_notes(found.status),
        "boxes": {box["part"]: box for box in boxes},
        "hour": {"samples": len(context.sampler.samples)},
    }


def _unknown(found: Observation, part: str) -> Box:
    """What is not known is not shown as zero."""
    if found.knows(part):
        return {} if part == "queues" else {"rate": None, "lag": None, "facts": []}
    state = "no answer" if part in found.errors else "unknown"
    return {"state": state, "rate": None, "lag": None, "lag_seconds": None, "facts": []}


def make_boxes(found: Observation, sampler: Sampler, *, embedded: bool) -> list[Box]:
    samples = sampler.samples
    return [
        _log(found, sampler, samples, embedded),
        _pipeline(found, sampler, samples),
        _store(found, sampler, samples, embedded),
        _tags(found, sampler, samples),
        _projections(found, sampler, samples),
        _queues(found, samples),
        _documents(found, sampler, samples),
    ]


def _box(part: str, title: str, page: str, state: str, **more: Any) -> Box:
    """A box: a rate with its unit, lag in events and seconds, a few facts, and the last hour of one thing.

    `heading` is what that one thing is, the rate or the lag: the number above a chart is the chart's last one.
    """
    known: Box = {"part": part, "title": title, "page": page, "state": state, "rate": None, "unit": ""}
    known |= {"heading": "rate", "lag": None, "lag_seconds": None}
    return {**known, "facts": [], "series": [], "series_of": "", **more}


def _log(found: Observation, sampler: Sampler, samples: list[MetricSample], embedded: bool) -> Box:
    status = found.status
    topics = 0 if status is None else len(status.topics)
    return _box(
        "log",
        "Log",
        "pipeline",
        "SQLite" if embedded else "Kafka",
        rate=sampler.rate("records"),
        unit="records/s in",
        facts=[("records", found.records), ("topics", topics)],
        series=series(samples, "records"),
        series_of="records per second",
    )


def _pipeline(found: Observation, sampler: Sampler, samples: list[MetricSample]) -> Box:
    status = found.status
    pipeline = None if status is None else status.pipeline
    facts: list[tuple[str, Any]] = []
    if pipeline is not None:
        facts = [("cycles", pipeline.cycles), ("ms per cycle", round(pipeline.cycle_ms_p50))]
    return _box(
        "pipeline",
        "Pipeline",
        "pipeline",
        "never ran" if pipeline is None else pipeline.state,
        rate=sampler.rate("replicated"),
        unit="records/s through",
        lag=None if status is None else status.lag,
        lag_seconds=None if status is None else status.lag_seconds,
        facts=facts,
        heading="lag",
        series=series(samples, "lag"),
        series_of="records behind",
    )


def _store(found: Observation, sampler: Sampler, samples: list[MetricSample], embedded: bool) -> Box:
    status = found.status
    return _box(
        "store",
        "Store",
        "pipeline",
        "SQLite" if embedded else "Cassandra",
        rate=sampler.rate("replicated"),
        unit="records/s applied",
        facts=[("applied", found.replicated), ("in quarantine", 0 if status is None else status.quarantined)],
        series=series(samples, "replicated"),
        series_of="records applied per second",
    )


def _tags(found: Observation, sampler: Sampler, samples: list[MetricSample]) -> Box:
    tags = found.tags
    if tags is not None and not tags.enabled:
        return _box("tags", "Tags", "tags", "off", unit="views by tag are off")
    behind = 0.0
    if tags is not None and tags.lag and tags.watermark_ms is not None:
        behind = max(0.0, (found.time_ms - tags.watermark_ms) / 1000)
    return _box(
        "tags",
        "Tags",
        "tags",
        "in order" if tags is not None and not tags.lag else "catching up",
        rate=sampler.rate("tagged"),
        unit="records/s covered",
        lag=None if tags is None else tags.lag,
        lag_seconds=None if tags is None else behind,
        heading="lag",
        series=series(samples, "tags_lag"),
        series_of="records behind",
    )


def _projections(found: Observation, sampler: Sampler, samples: list[MetricSample]) -> Box:
    running = sum(one.owner is not None and not one.paused for one in found.projections)
    lags = [one.lag for one in found.projections if one.lag is not None]
    return _box(
        "projections",
        "Projections",
        "projections",
        f"{running} of {len(found.projections)} running" if found.projections else "none yet",
        rate=sampler.rate("handled"),
        unit="events/s handled",
        lag=sum(lag.events for lag in lags),
        lag_seconds=max((lag.seconds for lag in lags if lag.events), default=0.0),
        facts=[("dead letters", sum(one.dead_letters for one in found.projections))],
        series=series(samples, "handled"),
        series_of="events handled per second",
    )


def _queues(found: Observation, samples: list[MetricSample]) -> Box:
    due = [one.oldest_due_ms for one in found.queues if one.oldest_due_ms is not None and one.ready]
    return _box(
        "queues",
        "Queues",
        "queues",
        count(len(found.queues) + found.more_queues, "queue") if found.queues else "none yet",
        rate=sum(one.ready for one in found.queues),
        unit="jobs ready",
        lag_seconds=max(0.0, (found.time_ms - min(due)) / 1000) if due else 0.0,
        facts=[
            ("running", sum(one.running for one in found.queues)),
            ("delayed", sum(one.delayed for one in found.queues)),
            ("dead", sum(one.dead for one in found.queues)),
        ],
        series=series(samples, "ready"),
        series_of="jobs ready",
    )


def _documents(found: Observation, sampler: Sampler, samples: list[MetricSample]) -> Box:
    recovery = _service(found.status, "documents-hot")
    return _box(
        "documents",
        "Documents",
        "documents",
        "serving" if recovery.get("running") else "idle",
        rate=sampler.rate("documents"),
        unit="changes/s",
        facts=[("changes", found.document_events)],
        series=series(samples, "documents"),
        series_of="changes per second",
    )


def _service(status: Status | None, name: str) -> dict[str, Any]:
    last = {} if status is None else status.services.get(name, {})
    return last if isinstance(last, dict) else {}


FLOW = ConsolePage("flow", "Flow", "flow.html", build_flow)
