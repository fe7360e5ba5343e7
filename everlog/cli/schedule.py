"""`everlog queue schedule …`: list, set, pause, resume, remove."""

from __future__ import annotations

import base64
from typing import Any, get_args

import click

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.output import TableRows, encode, moment, plain, show
from everlog.cli.payload import PayloadOptions, payload_options
from everlog.cli.settings import CliSettings, with_log
from everlog.errors import QueueNotFound
from everlog.queues.priority import DEFAULT_PRIORITY, parse_priority
from everlog.queues.schedule import CatchUp
from everlog.queues.schedules import ScheduleInfo

queue_argument = click.argument("name", metavar="QUEUE")
schedule_argument = click.argument("schedule_name", metavar="SCHEDULE")


@click.group(cls=Group)
def schedule() -> None:
    """Let a queue put jobs by itself, again and again.

    Workers of the queue, and servers, put a job at each time, once, however many of them run.
    """


@schedule.command("list", cls=CliCommand)
@click.argument("name", metavar="[QUEUE]", required=False)
@with_log()
async def list_schedules(log: Everlog, settings: CliSettings, /, name: str | None) -> None:
    """List the schedules of a queue, or of all: when, the next time, the last one."""
    names = await log.queues.names() if name is None else [name]
    rows = []
    for one in names:
        try:
            found = await log.queue(one).schedules.list()
        except QueueNotFound:
            if name is not None:
                raise
            continue  # it was deleted meanwhile
        for info in found:
            if settings.as_json:
                click.echo(encode(_document(one, info)))
            rows.append([one, plain(info.name), plain(info.timing), info.catch_up, *_times(info)])
    if not settings.as_json:
        TableRows("queue", "schedule", "when", "catch up", "next (UTC)", "last (UTC)").add(rows)


@schedule.command(
    "set",
    cls=CliCommand,
    examples=[
        "everlog queue schedule set reports nightly --cron '30 2 * * *' --timezone Europe/Berlin",
        'everlog queue schedule set mails digest --every 1h --catch-up none --json-payload \'{"kind": "short"}\'',
    ],
)
@queue_argument
@schedule_argument
@payload_options
@click.option("--every", metavar="DURATION", help="At this interval, counted from 1970: '1h'.")
@click.option("--cron", metavar="LINE", help="Minute, hour, day, month, weekday: '30 2 * * 1-5'; or '@daily'.")
@click.option("--timezone", metavar="ZONE", help="Of --cron: Europe/Berlin.  [UTC]")
@click.option(
    "--catch-up",
    type=click.Choice(get_args(CatchUp)),
    default="one",
    help="Of times that were missed, put a job for the last one, for all, or for none.  [one]",
)
@click.option("--priority", metavar="P", help="0 (first) to 255 (last), or a name such as new-page.  [128]")
@click.option("--kind", "job_kind", metavar="KIND", help="Which of the queue's functions does its jobs.")
@with_log()
async def set_schedule(
    log: Everlog,
    settings: CliSettings,
    /,
    name: str,
    schedule_name: str,
    payload: PayloadOptions,
    every: str | None,
    cron: str | None,
    timezone: str | None,
    catch_up: CatchUp,
    priority: str | None,
    job_kind: str | None,
) -> None:
    """Make a schedule, or change the one of that name. The queue must be there.

    The job has the schedule's name as its key, and the payload as its data. A schedule that is paused stays paused.
    """
    info = await log.queue(name).schedules.set(
        schedule_name,
        every=every,
        cron=cron,
        timezone=timezone,
        catch_up=catch_up,
        data=None if payload.given == 0 else payload.value(),
        priority=DEFAULT_PRIORITY if priority is None else parse_priority(priority),
        kind=job_kind,
    )
    following = "it is paused" if info.paused else f"next {_times(info)[0]}"
    show(settings.as_json, _document(name, info), f"{plain(info.name)}: {plain(info.timing)}, {following}")


@schedule.command(cls=CliCommand)
@queue_argument
@schedule_argument
@with_log()
async def pause(log: Everlog, settings: CliSettings, /, name: str, schedule_name: str) -> None:
    """Let the times of a schedule pass without a job; they are not made up for."""
    await log.queue(name).schedules.pause(schedule_name)
    document = {"queue": name, "schedule": schedule_name, "paused": True}
    show(settings.as_json, document, f"{plain(schedule_name)} is paused")


@schedule.command(cls=CliCommand)
@queue_argument
@schedule_argument
@with_log()
async def resume(log: Everlog, settings: CliSettings, /, name: str, schedule_name: str) -> None:
    """Put the jobs of a schedule again, from its next time on."""
    await log.queue(name).schedules.resume(schedule_name)
    document = {"queue": name, "schedule": schedule_name, "paused": False}
    show(settings.as_json, document, f"{plain(schedule_name)} is open")


@schedule.command(cls=CliCommand)
@queue_argument
@schedule_argument
@with_log()
async def remove(log: Everlog, settings: CliSettings, /, name: str, schedule_name: str) -> None:
    """Forget a schedule; the jobs that it has put stay.

    A worker whose code declares it makes it again when it starts: pause it instead.
    """
    await log.queue(name).schedules.remove(schedule_name)
    document = {"queue": name, "schedule": schedule_name, "removed": True}
    show(settings.as_json, document, f"removed {plain(schedule_name)}")


def _times(info: ScheduleInfo) -> tuple[str, str]:
    # Without a pause, only a time zone that this process does not know leaves no next time.
    following = "paused" if info.paused else "not known here" if info.row.next_ms is None else moment(info.row.next_ms)
    return following, "-" if info.row.fired_ms is None else moment(info.row.fired_ms)


def _document(name: str, info: ScheduleInfo) -> dict[str, Any]:
    data = info.data
    return {
        "queue": name,
        "schedule": info.name,
        "every": info.every,
        "cron": info.cron,
        "timezone": info.timezone,
        "catch_up": info.catch_up,
        "data": base64.b64encode(data).decode() if isinstance(data, bytes) else data,
        "priority": info.priority,
        "kind": info.kind,
        "paused": info.paused,
        "next": None if info.next is None else info.next.isoformat(timespec="milliseconds"),
        "last": None if info.last is None else info.last.isoformat(timespec="milliseconds"),
    }
