"""The routes of schedules: `/queues/{name}/schedules/…`."""

from __future__ import annotations

from typing import Annotated

from litestar import Router, delete, get, post, put
from litestar.params import JSONBody, PathParameter

from everlog.api import Everlog
from everlog.queues.schedule import MAX_DATA_BYTES
from everlog.queues.schedules import QueueSchedules
from everlog.server.errors import QUEUE_HANDLERS
from everlog.server.requests import AnyRequest, decode
from everlog.server.schemas import queue_examples as examples
from everlog.server.schemas import schedules as shapes
from everlog.server.schemas.openapi import shown
from everlog.server.schemas.queues import PausedBody, read_data, refusals
from everlog.server.schemas.schedules import ScheduleBody, SchedulesBody, SetScheduleBody, schedule_body

Name = Annotated[str, PathParameter(description="The queue")]
ScheduleName = Annotated[str, PathParameter(description="The schedule; also the key of its jobs")]


def _schedules(request: AnyRequest, name: str) -> QueueSchedules:
    log: Everlog = request.app.state.log
    return log.queue(name).schedules


@get("/", responses=refusals(404), opt=shown(answers={200: shapes.SCHEDULES}))
async def list_schedules(request: AnyRequest, name: Name) -> SchedulesBody:
    """The schedules of a queue, by name."""
    return SchedulesBody([schedule_body(info) for info in await _schedules(request, name).list()])


@get("/{schedule:str}", responses=refusals(404), opt=shown(answers={200: shapes.SCHEDULE}))
async def get_schedule(request: AnyRequest, name: Name, schedule: ScheduleName) -> ScheduleBody:
    """One schedule."""
    return schedule_body(await _schedules(request, name).get(decode(schedule)))


@put(
    "/{schedule:str}",
    responses=refusals(404, 408, 413),
    opt=shown(body=shapes.SET, answers={200: shapes.SCHEDULE}),
    request_max_body_size=8 * MAX_DATA_BYTES,
)
async def set_schedule(
    request: AnyRequest, name: Name, schedule: ScheduleName, data: JSONBody[SetScheduleBody]
) -> ScheduleBody:
    """Make a schedule, or change it; the queue must be there. A pause stays."""
    log: Everlog = request.app.state.log
    info = await _schedules(request, name).set(
        decode(schedule),
        every=data.every,
        cron=data.cron,
        timezone=data.timezone,
        catch_up=data.catch_up,
        data=read_data(data, await log.queue(name).declaration()),
        priority=data.priority,
        kind=data.kind,
    )
    return schedule_body(info)


@post(
    "/{schedule:str}/pause",
    status_code=200,
    responses=refusals(404),
    opt=shown(answers={200: examples.PAUSED}, scope="admin"),
)
async def pause_schedule(request: AnyRequest, name: Name, schedule: ScheduleName) -> PausedBody:
    """Let the times of a schedule pass without a job. Needs the scope `admin`."""
    return PausedBody(True, await _schedules(request, name).pause(decode(schedule)))


@post(
    "/{schedule:str}/resume",
    status_code=200,
    responses=refusals(404),
    opt=shown(answers={200: examples.RESUMED}, scope="admin"),
)
async def resume_schedule(request: AnyRequest, name: Name, schedule: ScheduleName) -> PausedBody:
    """Put jobs again, from the next time on. Needs the scope `admin`."""
    return PausedBody(False, await _schedules(request, name).resume(decode(schedule)))


@delete("/{schedule:str}", status_code=204, responses=refusals(404), opt={"scope": "admin"})
async def remove_schedule(request: AnyRequest, name: Name, schedule: ScheduleName) -> None:
    """Forget a schedule; the jobs that it has put stay. Needs the scope `admin`."""
    await _schedules(request, name).remove(decode(schedule))


SCHEDULE_ROUTES = [
    Router(
        "/queues/{name:str}/schedules",
        route_handlers=[
            list_schedules,
            get_schedule,
            set_schedule,
            pause_schedule,
            resume_schedule,
            remove_schedule,
        ],
        exception_handlers=QUEUE_HANDLERS,
        tags=["queues"],
    )
]
