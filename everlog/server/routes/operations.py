"""The routes of operation: status, metrics, health, and the operations log."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter

from everlog.errors import EverlogError
from everlog.pipeline.status import Status, caught_up
from everlog.server.answers import json_answer
from everlog.server.audit import JOURNAL, TOPIC
from everlog.server.errors import also
from everlog.server.journal_requests import AfterQuery, log_of
from everlog.server.metrics import CONTENT_TYPE, all_metrics
from everlog.server.requests import AnyRequest
from everlog.server.routes.journals import EventsBody
from everlog.server.schemas.openapi import SchemaShape, shown
from everlog.wire.events import event_body

READY_TIMEOUT_S = 5.0


class StatusBody(Status, frozen=True):
    """Everything at one glance; `caught_up` if all that was in the log is also in the tables."""

    caught_up: bool = False


class HealthBody(msgspec.Struct, frozen=True):
    """Whether requests can be served, and if not, why."""

    status: str
    reason: str | None = None


_HEALTHY = SchemaShape(HealthBody, {"status": "ok", "reason": None})
_STATUS = SchemaShape(
    StatusBody,
    {
        "where": "everlog-data",
        "time_ms": 1769860800000,
        "partitions": [],
        "pipeline": None,
        "lag": 0,
        "lag_seconds": 0.0,
        "quarantined": 0,
        "services": {},
        "concerns": {},
        "loops": [
            {
                "name": "schedules",
                "state": "running",
                "since_ms": 1769860800000,
                "restarts": 0,
                "failures": 0,
                "last_error": None,
                "last_error_ms": None,
            }
        ],
    },
)


_OPERATIONS = SchemaShape(EventsBody, {"topic": TOPIC, "id": JOURNAL, "seq_nr": 0, "events": [], "next": None})


@get("/status", tags=["operations"], responses=also(), opt=shown(answers={200: _STATUS}))
async def get_status(request: AnyRequest, after: AfterQuery = None) -> Response[bytes]:
    """How far the tables are behind the log, and what the pipeline says."""
    found = await log_of(request).status(after=after)
    return json_answer({**msgspec.to_builtins(found), "caught_up": caught_up(found)})


@get(
    "/metrics",
    tags=["operations"],
    responses=also(),
    opt=shown(answers={200: SchemaShape(None, 'everlog_lag_records{topic="orders",partition="0"} 0\n', "text/plain")}),
)
async def get_metrics(request: AnyRequest) -> Response[str]:
    """Numbers for Prometheus."""
    state = request.app.state
    return Response(await all_metrics(log_of(request), state.http_counters, state.metrics), media_type=CONTENT_TYPE)


@get("/health/live", tags=["operations"], responses=also(), opt=shown(answers={200: _HEALTHY}, scope="public"))
async def get_live(request: AnyRequest) -> Response[bytes]:
    """The process answers."""
    return json_answer(HealthBody("ok"))


@get("/health/ready", tags=["operations"], responses=also(), opt=shown(answers={200: _HEALTHY}, scope="public"))
async def get_ready(request: AnyRequest) -> Response[bytes]:
    """Log and store answer. Details are for those who may read: see /status."""
    parts = log_of(request).parts
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            await parts.store.statuses()
            await parts.log.topics()
    except (EverlogError, TimeoutError) as error:
        reason = "in time" if isinstance(error, TimeoutError) else type(error).__name__
        return json_answer(HealthBody("unavailable", f"log or store do not answer: {reason}"), status=503)
    return json_answer(HealthBody("ok"))


@get("/operations", tags=["operations"], responses=also(), opt=shown(answers={200: _OPERATIONS}))
async def get_operations(
    request: AnyRequest,
    limit: Annotated[int, QueryParameter(ge=1, le=1000, description="At most this many")] = 100,
    after: AfterQuery = None,
) -> Response[Any]:
    """What operators did, the newest first: an event before each change, and one after it."""
    log = log_of(request)
    config = log.config.journal
    if not config.includes(config.topic_prefix + TOPIC):
        return json_answer(EventsBody(TOPIC, JOURNAL, 0, []))
    journal = log.journal(TOPIC)
    found = [event async for event in journal.read(JOURNAL, reverse=True, limit=limit, after=after)]
    events = [event_body(TOPIC, event) for event in found]
    return json_answer(EventsBody(TOPIC, JOURNAL, found[0].seq_nr if found else 0, events))


OPERATION_ROUTES = [get_status, get_metrics, get_live, get_ready, get_operations]
