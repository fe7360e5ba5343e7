"""Bodies of the routes of schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from everlog.queues.priority import DEFAULT_PRIORITY
from everlog.queues.schedule import CatchUp
from everlog.queues.schedules import ScheduleInfo
from everlog.server.schemas.openapi import SchemaShape
from everlog.server.schemas.queues import data_fields

_described = msgspec.Meta


class SetScheduleBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When to put a job, `every` or `cron`, and what it is. `data` are text or any JSON, or `dataBase64` are bytes."""

    every: Annotated[str | float, _described(description="An interval counted from 1970: '1h', or seconds")] | None = (
        None
    )
    cron: (
        Annotated[
            str,
            _described(description="Minute, hour, day, month, weekday; or @hourly, @daily, @weekly, @monthly, @yearly"),
        ]
        | None
    ) = None
    timezone: Annotated[str, _described(description="Of `cron`: 'Europe/Berlin'; without it, UTC")] | None = None
    catch_up: Annotated[
        CatchUp, _described(description="Of times that were missed, put one job for the last, all, or none")
    ] = "one"
    data: Any = None
    data_base64: str | None = None
    priority: Annotated[int, _described(description="0 (first) to 255 (last)")] = DEFAULT_PRIORITY
    kind: Annotated[str, _described(description="Which of the queue's functions does its jobs")] | None = None


class ScheduleBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A schedule: `next` is its next time, `last` the time that was put last."""

    name: str
    every: str | None
    cron: str | None
    timezone: str
    catch_up: CatchUp
    data: Any
    data_base64: str | None
    priority: int
    kind: str | None
    paused: bool
    next: datetime | None
    last: datetime | None


class SchedulesBody(msgspec.Struct, frozen=True):
    """The schedules of a queue, by name."""

    schedules: list[ScheduleBody]


def schedule_body(info: ScheduleInfo) -> ScheduleBody:
    data, data_base64 = data_fields(info.data)
    return ScheduleBody(
        name=info.name,
        every=info.every,
        cron=info.cron,
        timezone=info.timezone,
        catch_up=info.catch_up,
        data=data,
        data_base64=data_base64,
        priority=info.priority,
        kind=info.kind,
        paused=info.paused,
        next=info.next,
        last=info.last,
    )


_SCHEDULE = {
    "name": "nightly",
    "every": None,
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "catchUp": "one",
    "data": {"kind": "full"},
    "dataBase64": None,
    "priority": 128,
    "kind": None,
    "paused": False,
    "next": "2026-02-01T01:30:00Z",
    "last": "2026-01-31T01:30:00Z",
}
SET = SchemaShape(SetScheduleBody, {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "data": {"kind": "full"}})
SCHEDULE = SchemaShape(ScheduleBody, _SCHEDULE)
SCHEDULES = SchemaShape(SchedulesBody, {"schedules": [_SCHEDULE]})
