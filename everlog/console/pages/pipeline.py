"""The pipeline: how fast and how far it is, what it could not apply, and which appends lost."""

from __future__ import annotations

from typing import Any

from everlog.api import Everlog
from everlog.console.console import ConsolePage, Context, Model
from everlog.console.observation import Observation
from everlog.console.sampler import series
from everlog.journal.quarantine import WaitingItem
from everlog.pipeline.phases import PHASES
from everlog.pipeline.status import PipelineStatus

MAX_PARTITIONS = 200
MAX_WAITING = 100
MAX_REJECTED = 50
SHOWN_BYTES = 400


async def build_pipeline(context: Context) -> Model:
    observation = await context.sampler.latest(1.0)
    status = observation.status
    partitions = [] if status is None else sorted(status.partitions, key=lambda one: (-one.lag, one.topic))
    topic = context.text("topic")
    wanted = [one for one in partitions if not topic or one.topic == topic]
    samples = context.sampler.samples
    return {
        "status": None if status is None else status.pipeline,
        "lag": None if status is None else status.lag,
        "lag_seconds": None if status is None else status.lag_seconds,
        "quarantined": 0 if status is None else status.quarantined,
        "phases": [] if status is None or status.pipeline is None else phase_rows(status.pipeline),
        "tables": [] if status is None or status.pipeline is None else table_rows(status.pipeline),
        "rate": context.sampler.rate("replicated"),
        "topics": [] if status is None else status.topics,
        "partitions": wanted[:MAX_PARTITIONS],
        "more_partitions": max(0, len(wanted) - MAX_PARTITIONS),
        "services": _services(observation),
        "loops": [] if status is None else status.loops,
        "concerns": {} if status is None else status.concerns,
        "errors": observation.errors,
        "waiting": [] if status is None else await waiting_records(context.log, topic or None),
        "rejected": [] if status is None else await rejected_appends(context.log, topic or None),
        "series": {name: series(samples, name) for name in ("replicated", "lag", "cycle_ms", "lag_seconds")},
    }


def phase_rows(pipeline: PipelineStatus) -> list[dict[str, Any]]:
    """Each phase of the last cycles: how long on average, which share of the cycles that is, and cycle by cycle."""
    what = {phase.name: phase.what for phase in PHASES}
    whole = sum(cycle.ms for cycle in pipeline.recent)
    return [
        {
            "phase": name,
            "what": what.get(name, ""),
            "ms": round(ms, 1),
            "percent": round(100 * ms * len(pipeline.recent) / whole, 1) if whole else 0.0,
            "cycles": [cycle.phases.get(name, 0.0) for cycle in pipeline.recent],
        }
        for name, ms in pipeline.recent_phases.items()
    ]


def table_rows(pipeline: PipelineStatus) -> list[dict[str, Any]]:
    """The rows of each table, since the pipeline's start and in the last cycles."""
    return [
        {"table": table, "rows": rows, "recent": sum(cycle.rows.get(table, 0) for cycle in pipeline.recent)}
        for table, rows in pipeline.rows.items()
    ]


def _services(found: Observation) -> list[dict[str, Any]]:
    """The last report of each service; for a start that accepted a loss, the range."""
    services = []
    known = {} if found.status is None else found.status.services
    for name, last in sorted(known.items()):
        if isinstance(last, dict):
            lost = f"lost: offsets {last.get('from')} to {last.get('to')}" if name.startswith("loss ") else None
            services.append(
                {
                    "name": name,
                    "result": lost or last.get("last_result"),
                    "error": last.get("last_error"),
                    "last_run_ms": last.get("last_run_ms"),
                    "runs": last.get("runs"),
                    "failures": last.get("failures"),
                }
            )
    return services


async def waiting_records(log: Everlog, topic: str | None) -> list[dict[str, Any]]:
    """What is in quarantine, the first ones."""
    found: list[dict[str, Any]] = []
    async for item in log.quarantine.list(topic):
        found.append(_waiting(item))
        if len(found) == MAX_WAITING:
            break
    return found


def _waiting(item: WaitingItem) -> dict[str, Any]:
    return {
        "topic": item.topic,
        "id": item.id,
        "partition": item.partition,
        "offset": item.offset,
        "kind": item.kind,
        "reason": item.reason,
        "time_ms": item.timestamp,
        "action": (item.action or b"")[:SHOWN_BYTES].decode(errors="replace"),
        "value": (item.value or b"")[:SHOWN_BYTES].decode(errors="replace"),
        "bytes": len(item.value or b""),
    }


async def rejected_appends(log: Everlog, topic: str | None) -> list[dict[str, Any]]:
    """Appends that lost: their writers were told, so this is for display."""
    found: list[dict[str, Any]] = []
    for name in await log.topics():
        if topic is None or name == topic:
            prefix = log.config.journal.topic_prefix
            for row in await log.parts.store.rejected(prefix + name, limit=MAX_REJECTED):
                lost = row.rejected
                found.append(
                    {
                        "topic": name,
                        "id": row.id,
                        "partition": row.partition,
                        "offset": lost.offset,
                        "time_ms": lost.timestamp,
                        "reason": lost.reason,
                        "first": lost.first,
                        "last": lost.last,
                        "expected": lost.expected,
                        "actual": lost.actual,
                    }
                )
    return sorted(found, key=lambda one: -one["time_ms"])[:MAX_REJECTED]


PIPELINE = ConsolePage("pipeline", "Pipeline", "pipeline.html", build_pipeline)
