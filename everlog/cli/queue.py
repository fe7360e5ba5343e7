"""`everlog queue …`: jobs, dead letters, history, flags, schedules, and what an operator does about them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from everlog.api import Everlog
from everlog.cli.commands import CliCommand, Group
from everlog.cli.exit_codes import FAILED, NotFound
from everlog.cli.output import TableRows, encode, moment, plain, show
from everlog.cli.payload import PayloadOptions, payload_options
from everlog.cli.schedule import queue_argument, schedule
from everlog.cli.settings import CliSettings, with_log
from everlog.core.phrases import count as numbered
from everlog.errors import KeyBusy, QueueNotFound
from everlog.queues.declaration import plain_options
from everlog.queues.history import EndedJob
from everlog.queues.job import DeadJob, Job, JobInfo, When, parse_key
from everlog.queues.job_report import JobReport
from everlog.queues.keys import JobKey
from everlog.queues.operations import Handle
from everlog.queues.priority import DEFAULT_PRIORITY, parse_priority
from everlog.queues.rows import Attempt
from everlog.queues.xml import read_declarations

key_argument = click.argument("key", metavar="KEY")
limit_option = click.option("--limit", type=click.IntRange(1, 1000), default=10, metavar="N", help="At most N.  [10]")


@click.group(cls=Group)
def queue() -> None:
    """Put work into queues, and look after them.

    A job has a KEY: while it waits, another one with the same key merges into it. 'everlog work' runs jobs.
    """


@queue.command(
    cls=CliCommand,
    examples=[
        "everlog queue put pages page-7 --json-payload '{\"edit\": 3}' --delay 10s",
        "everlog queue put mails m-1 --payload hello --priority new-page --expires 1h",
    ],
)
@queue_argument
@key_argument
@payload_options
@click.option("--priority", metavar="P", help="0 (first) to 255 (last), or a name such as new-page.  [128]")
@click.option("--delay", metavar="DURATION", help="Not before this much time from now: '10s'.")
@click.option("--at", metavar="TIME", help="Not before this time: 2026-12-24T18:00:00Z.")
@click.option("--expires", metavar="WHEN", help="Not after: a time, or how long from now: '1h'.")
@click.option("--kind", "job_kind", metavar="KIND", help="Which of the queue's functions does it.")
@click.option("--group", metavar="GROUP", help="Whose share of the queue it uses.")
@with_log(create=True)
async def put(
    log: Everlog,
    settings: CliSettings,
    /,
    name: str,
    key: str,
    payload: PayloadOptions,
    priority: str | None,
    delay: str | None,
    at: str | None,
    expires: str | None,
    job_kind: str | None,
    group: str | None,
) -> None:
    """Put a job into a queue, or merge it into the one that waits.

    The first put makes the queue. Prints what became of it: created, merged, or successor of a job that runs.
    """
    data = None if payload.given == 0 else payload.value()
    receipt = await log.queue(name).put(
        parse_key(await log.queues.declared(name), key),
        data,
        priority=DEFAULT_PRIORITY if priority is None else parse_priority(priority),
        delay=delay,
        at=None if at is None else _time("--at", at),
        expires=_when(expires),
        kind=job_kind,
        group=group,
    )
    document = {"queue": name, "key": key, "result": receipt.result, "entry": receipt.entry}
    show(settings.as_json, document, f"{receipt.result.lower().replace('_', ' ')}: job {receipt.entry}")


@queue.command(cls=CliCommand)
@queue_argument
@limit_option
@click.option("--key", metavar="KEY", help="Only this key, waiting or running.")
@with_log()
async def peek(log: Everlog, settings: CliSettings, /, name: str, limit: int, key: str | None) -> None:
    """Show what waits in a queue, in the order in which it will run; nothing is claimed."""
    found = await (log.queue(name).peek(limit) if key is None else log.queue(name).get(await _parsed(log, name, key)))
    if settings.as_json:
        for info in found:
            click.echo(encode(_info_document(name, info)))
        return
    rows = [
        [str(info.entry), str(info.priority), _ms(info.due), info.row.status, plain(str(info.key)), _text(info.data)]
        for info in found
    ]
    TableRows("job", "priority", "due (UTC)", "status", "key", "data").add(rows)


@queue.command(cls=CliCommand, examples=["everlog queue job pages 17", "everlog queue job pages 17 --json"])
@queue_argument
@click.argument("entry", type=int, metavar="JOB")
@with_log()
async def job(log: Everlog, settings: CliSettings, /, name: str, entry: int) -> None:
    """Show all that is known of one job, wherever it is, and why it does not run.

    It waits, runs, is a dead letter, or has ended; what has ended is known if the queue is declared with keep_done.
    """
    report = await log.queue(name).job(entry)
    if report is None:
        raise NotFound(f"{name} has no job {entry}: it never was, has expired, or has ended and is not kept")
    document = _report_document(name, report)
    if settings.as_json:
        click.echo(encode(document))
        return
    why, attempts, ends = (document.pop(part) for part in ("why", "attempts", "ends"))
    for part, value in document.items():
        if value is not None and value is not False:
            click.echo(f"{part.replace('_', ' ')}: {_text(value)}")
    for reason in why:
        click.echo(plain(f"{reason['what']} {reason['remedy']}".rstrip()))
    rows = [
        [moment(one["started_ms"]), moment(one["ended_ms"]), plain(one["owner"]), plain(one["reason"])]
        for one in attempts
    ]
    TableRows("failed attempt (UTC)", "until (UTC)", "worker", "reason").add(rows)
    TableRows("run (token)", "ended (UTC)", "how").add([[str(one["token"]), one["ended"], one["how"]] for one in ends])


@queue.command(cls=CliCommand, examples=["everlog queue claim pages --lease 10m --json"])
@queue_argument
@limit_option
@click.option("--lease", metavar="DURATION", help="How long the jobs are yours.  [what the queue says]")
@click.option("--owner", default="cli", metavar="NAME", help="Who takes them.  [cli]")
@with_log()
async def claim(log: Everlog, settings: CliSettings, /, name: str, limit: int, lease: str | None, owner: str) -> None:
    """Take jobs out by hand; 'everlog queue done' ends them.

    Prints a handle for each, ENTRY/TOKEN. A job that is not ended in time is lost to its owner, and runs again.
    """
    jobs = await log.queue(name).claim(limit, owner=owner, lease=lease)
    if settings.as_json:
        for job in jobs:
            click.echo(encode(_job_document(name, job)))
        return
    rows = [
        [f"{job.entry}/{job.token}", str(job.attempt), moment(job.deadline_ms), plain(str(job.key)), _text(job.data)]
        for job in jobs
    ]
    TableRows("handle", "attempt", "yours until (UTC)", "key", "data").add(rows)


@queue.command(
    cls=CliCommand, examples=["everlog queue done pages 17/1", "everlog queue done pages 17/1 --failed 'no'"]
)
@queue_argument
@click.argument("handle", metavar="HANDLE")
@click.option("--failed", metavar="REASON", help="It failed: run it again, or make it a dead letter after too many.")
@click.option("--release", is_flag=True, help="Give it back, uncounted.")
@with_log()
async def done(
    log: Everlog, settings: CliSettings, /, name: str, handle: str, failed: str | None, release: bool
) -> None:
    """End a job that was claimed by hand."""
    parsed = _handle(handle)
    if failed is not None and release:
        raise click.UsageError("--failed or --release, not both")
    if failed is not None:
        await log.queue(name).fail(parsed, failed)
    elif release:
        await log.queue(name).release(parsed)
    else:
        await log.queue(name).done(parsed)
    outcome = "failed" if failed is not None else "released" if release else "done"
    show(settings.as_json, {"queue": name, "handle": handle, "outcome": outcome}, f"{outcome}: job {parsed.entry}")


@queue.command("list", cls=CliCommand, examples=["everlog queue list", "everlog queue list --json"])
@with_log()
async def list_queues(log: Everlog, settings: CliSettings, /) -> None:
    """List all queues, with how many jobs wait, run, and are dead."""
    rows = []
    for name in await log.queues.names():
        try:
            found = await log.queue(name).stats()
        except QueueNotFound:  # it was deleted meanwhile
            continue
        waiting, state = found.ready + found.delayed, "paused" if found.paused else "open"
        if settings.as_json:
            counts = {"waiting": waiting, "running": found.running, "dead": found.dead}
            click.echo(encode({"queue": name, **counts, "paused": found.paused}))
        rows.append([name, str(waiting), str(found.running), str(found.dead), state])
    if not settings.as_json:
        TableRows("queue", "waiting", "running", "dead", "state").add(rows)


@queue.command(cls=CliCommand)
@click.argument("name", metavar="[QUEUE]", required=False)
@with_log()
async def stats(log: Everlog, settings: CliSettings, /, name: str | None) -> None:
    """Count the jobs of a queue, or of all: ready, delayed, running, dead."""
    names = await log.queues.names() if name is None else [name]
    rows = []
    for one in names:
        try:
            found = await log.queue(one).stats()
            options = plain_options((await log.queue(one).declaration()).options)
        except QueueNotFound:
            if name is not None:
                raise
            continue  # it was deleted meanwhile
        if settings.as_json:
            document = {"queue": one, "ready": found.ready, "delayed": found.delayed, "running": found.running}
            document |= {"dead": found.dead, "paused": found.paused, "oldest_due_ms": found.oldest_due_ms}
            click.echo(encode({**document, "options": options}))
        counts = [str(count) for count in (found.ready, found.delayed, found.running, found.dead)]
        oldest = "-" if found.oldest_due_ms is None else moment(found.oldest_due_ms)
        rows.append([one, *counts, oldest, "paused" if found.paused else "open"])
    if not settings.as_json:
        TableRows("queue", "ready", "delayed", "running", "dead", "oldest due (UTC)", "state").add(rows)


@queue.command(cls=CliCommand)
@queue_argument
@limit_option
@with_log()
async def dead(log: Everlog, settings: CliSettings, /, name: str, limit: int) -> None:
    """List dead letters, those that died last first: jobs that will not run again by themselves."""
    letters = await log.queue(name).dead(limit)
    if settings.as_json:
        for letter in letters:
            click.echo(encode(_dead_document(name, letter)))
        return
    rows = [
        [str(letter.entry), _ms(letter.time), letter.cause, plain(str(letter.key)), plain(letter.reason or "-")]
        for letter in letters
    ]
    TableRows("job", "time (UTC)", "cause", "key", "reason").add(rows)


@queue.command(cls=CliCommand, examples=["everlog queue history pages --key page-7 --json"])
@queue_argument
@limit_option
@click.option("--key", metavar="KEY", help="Only the jobs of this key.")
@with_log()
async def history(log: Everlog, settings: CliSettings, /, name: str, limit: int, key: str | None) -> None:
    """List jobs that have ended, the last one first, of a queue that is declared with keep_done."""
    found = await log.queue(name).history(limit, key=None if key is None else await _parsed(log, name, key))
    if settings.as_json:
        for job in found:
            click.echo(encode(_ended_document(name, job)))
        return
    rows = [
        [
            str(job.entry),
            _ms(job.ended),
            job.how,
            plain(job.owner or "-"),
            plain(str(job.key)),
            plain(job.reason) if job.reason else _text("(left out)" if job.result_left_out else job.result),
        ]
        for job in found
    ]
    TableRows("job", "ended (UTC)", "how", "worker", "key", "result or reason").add(rows)


@queue.command(cls=CliCommand, examples=["everlog queue revive pages 17", "everlog queue revive pages --all"])
@queue_argument
@click.argument("entry", type=int, required=False, metavar="[JOB]")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@with_log()
async def revive(log: Everlog, settings: CliSettings, /, name: str, entry: int | None, everything: bool) -> None:
    """Put dead letters back into their queue; they begin with no failures."""
    if (entry is None) != everything:
        raise click.UsageError("which one? Give a JOB of 'everlog queue dead', or --all")
    target, count = log.queue(name), 0
    if entry is not None:
        if await target.revive(entry) is None:
            raise NotFound(f"{name} has no dead letter {entry}: see 'everlog queue dead {name}'")
        count = 1
    before: DeadJob | None = None
    while everything and (letters := await target.dead(1000, before=before)):
        for letter in letters:
            with suppress(KeyBusy):  # it stays a dead letter
                count += await target.revive(letter.entry) is not None
        before = letters[-1]
    show(settings.as_json, {"queue": name, "revived": count}, f"revived {count} job{'' if count == 1 else 's'}")


@queue.command(cls=CliCommand)
@queue_argument
@click.option("--ack", metavar="REASON", help="Close the flag with this reason.")
@with_log()
async def flags(log: Everlog, settings: CliSettings, /, name: str, ack: str | None) -> None:
    """Show what needs attention: dead letters, jobs that fail forever, clocks that are wrong.

    Ends with exit code 1 if a flag is open, for scripts that watch.
    """
    if ack is not None:
        if not await log.queue(name).ack_flag(ack):
            raise NotFound(f"{name} has no open flag {ack!r}")
        show(settings.as_json, {"queue": name, "closed": ack}, f"closed the flag {ack}")
        return
    found = await log.queue(name).flags()
    if settings.as_json:
        for flag in found:
            document = {"queue": name, "reason": flag.reason, "count": flag.count, "first_ms": flag.first_ms}
            click.echo(encode({**document, "last_ms": flag.last_ms, "owner": flag.owner, "dead": flag.dead_entry}))
    else:
        rows = [[flag.reason, str(flag.count), moment(flag.first_ms), moment(flag.last_ms)] for flag in found]
        TableRows("reason", "count", "first (UTC)", "last (UTC)").add(rows)
    if found:
        sys.exit(FAILED)


@queue.command(cls=CliCommand)
@queue_argument
@with_log()
async def pause(log: Everlog, settings: CliSettings, /, name: str) -> None:
    """Give out no more jobs of a queue; what runs goes on, what comes waits."""
    await log.queue(name).pause()
    show(settings.as_json, {"queue": name, "paused": True}, f"{name} is paused")


@queue.command(cls=CliCommand)
@queue_argument
@with_log()
async def resume(log: Everlog, settings: CliSettings, /, name: str) -> None:
    """Give out the jobs of a queue again."""
    await log.queue(name).resume()
    show(settings.as_json, {"queue": name, "paused": False}, f"{name} is open")


@queue.command(cls=CliCommand)
@queue_argument
@key_argument
@click.option("--reason", metavar="TEXT", help="Kept with the dead letter.")
@with_log()
async def cancel(log: Everlog, settings: CliSettings, /, name: str, key: str, reason: str | None) -> None:
    """Remove the job of a key; one that runs is told to stop, and is not run again."""
    count = await log.queue(name).cancel(await _parsed(log, name, key), reason)
    if not count:
        raise NotFound(f"{name} has no job with the key {key!r}")
    show(settings.as_json, {"queue": name, "key": key, "cancelled": count}, f"cancelled {plain(key)}")


@queue.command(
    cls=CliCommand, examples=["everlog queue purge pages --yes", "everlog queue purge pages --running --yes"]
)
@queue_argument
@click.option("--running", is_flag=True, help="Also what runs: its workers lose it.")
@click.option("--yes", is_flag=True, help="Do it; without this it only says how many there are.")
@with_log()
async def purge(log: Everlog, settings: CliSettings, /, name: str, running: bool, yes: bool) -> None:
    """Remove all jobs that wait in a queue, for good; what runs goes on. Dead letters and schedules stay."""
    if not yes:
        found = await log.queue(name).stats()
        waiting = numbered(found.ready + found.delayed + (found.running if running else 0), "job")
        raise click.UsageError(f"this removes {waiting} of {name} for good: say --yes if that is wanted")
    purged = await log.queue(name).purge(running=running)
    show(settings.as_json, {"queue": name, "purged": purged}, f"removed {numbered(purged, 'job')} of {name}")


@queue.command(
    cls=CliCommand, examples=["everlog queue delete pages --yes", "everlog queue delete pages --running --yes"]
)
@queue_argument
@click.option("--running", is_flag=True, help="Also while jobs run: their workers lose them.")
@click.option("--yes", is_flag=True, help="Do it; without this it only says what there is.")
@with_log()
async def delete(log: Everlog, settings: CliSettings, /, name: str, running: bool, yes: bool) -> None:
    """Remove a queue with all that it holds, for good: jobs, dead letters, flags, history, schedules."""
    if not yes:
        found = await log.queue(name).stats()
        jobs = numbered(found.ready + found.delayed + found.running, "job")
        letters = numbered(found.dead, "dead letter")
        raise click.UsageError(f"this removes {name} for good, with {jobs} and {letters}: say --yes if that is wanted")
    count = await log.queue(name).delete(running=running)
    show(settings.as_json, {"queue": name, "deleted": count}, f"deleted {name} and {numbered(count, 'job')}")


@queue.command(cls=CliCommand, examples=["everlog queue declare queues.xml"])
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@with_log(create=True)
async def declare(log: Everlog, settings: CliSettings, /, file: Path) -> None:
    """Make the queues that an XML file declares, or change them to what it says."""
    for wanted in read_declarations(file):
        found = await log.queues.declare(wanted)
        columns = 0 if found.schema is None else len(found.schema.columns)
        document = {"queue": found.name, "version": found.version, "options": plain_options(found.options)}
        show(settings.as_json, document, f"{found.name}: version {found.version}, {columns} columns")


queue.add_command(schedule)


async def _parsed(log: Everlog, name: str, key: str) -> JobKey:
    return parse_key(await log.queue(name).declaration(), key)


def _handle(text: str) -> Handle:
    entry, _, token = text.partition("/")
    if not (entry.isdecimal() and token.isdecimal()):
        raise click.UsageError(f"a handle is ENTRY/TOKEN, as 'everlog queue claim' prints it, not {text!r}")
    return Handle(int(entry), int(token))


def _time(option: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {text!r} is no time such as 2026-12-24T18:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _when(text: str | None) -> When | str | None:
    """A time, or how long from now."""
    return _time("--expires", text) if text is not None and "-" in text else text


def _ms(time: datetime) -> str:
    return moment(round(time.timestamp() * 1000))


def _json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _key(key: JobKey) -> Any:
    return [_json(part) for part in key] if isinstance(key, tuple) else _json(key)


def _text(data: Any) -> str:
    return "-" if data is None else plain(data if isinstance(data, str) else encode(data))


def _info_document(name: str, info: JobInfo) -> dict[str, Any]:
    return {
        "queue": name,
        "entry": info.entry,
        "key": _key(info.key),
        "data": _json(info.data),
        "priority": info.priority,
        "inserted": info.inserted.isoformat(timespec="milliseconds"),
        "due": info.due.isoformat(timespec="milliseconds"),
        "claimed": None if info.claimed is None else info.claimed.isoformat(timespec="milliseconds"),
        "expires": None if info.expires is None else info.expires.isoformat(),
        "status": info.row.status,
        "timeouts": info.row.timeouts,
        "owner": info.row.owner,
        "kind": info.kind,
        "group": info.group,
    }


def _job_document(name: str, job: Job) -> dict[str, Any]:
    return {
        **_info_document(name, job),
        "handle": f"{job.entry}/{job.token}",
        "attempt": job.attempt,
        "deadline_ms": job.deadline_ms,
    }


def _dead_document(name: str, letter: DeadJob) -> dict[str, Any]:
    return {
        "queue": name,
        "entry": letter.entry,
        "key": _key(letter.key),
        "data": _json(letter.data),
        "cause": letter.cause,
        "reason": letter.reason,
        "time": letter.time.isoformat(timespec="milliseconds"),
        "attempts": _attempts(letter.attempts),
        "kind": letter.kind,
        "group": letter.group,
    }


def _ended_document(name: str, job: EndedJob) -> dict[str, Any]:
    return {
        "queue": name,
        "entry": job.entry,
        "token": job.token,
        "key": _key(job.key),
        "how": job.how,
        "reason": job.reason,
        "inserted": job.inserted.isoformat(timespec="milliseconds"),
        "due": None if job.due is None else job.due.isoformat(timespec="milliseconds"),
        "claimed": None if job.claimed is None else job.claimed.isoformat(timespec="milliseconds"),
        "ended": job.ended.isoformat(timespec="milliseconds"),
        "owner": job.owner,
        "result": job.result,
        "result_left_out": job.result_left_out,
        "attempts": _attempts(job.attempts),
        "kind": job.kind,
        "group": job.group,
    }


def _report_document(name: str, report: JobReport) -> dict[str, Any]:
    times = ("inserted", "due", "expires", "claimed", "deadline", "ended", "successor")
    found = {part: getattr(report, part) for part in JobReport.__dataclass_fields__}
    found |= {part: found[part] and found[part].isoformat(timespec="milliseconds") for part in times}
    found |= {"key": _key(report.key), "data": _json(report.data), "attempts": _attempts(report.attempts)}
    found["ends"] = [_ended_document(name, one) for one in report.ends]
    found["why"] = [msgspec.structs.asdict(one) for one in report.why]
    return {"queue": name, **found}


def _attempts(attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    return [
        {"started_ms": one.started_ms, "ended_ms": one.ended_ms, "owner": one.owner, "reason": one.reason or one.how}
        for one in attempts
    ]
