"""One job: what it is, what happened to it until now, why it does not run, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from everlog.console.actions import key_text, read_entry
from everlog.console.console import ConsolePage, Context, Model, PageNotFound
from everlog.errors import InvalidInput
from everlog.queues.history import EndedJob
from everlog.queues.job_report import JobReport
from everlog.queues.priority import Priority
from everlog.queues.rows import MAX_ATTEMPTS_KEPT, Attempt

_NAMES = {int(one): one.name.lower().replace("_", "-") for one in Priority}
# What can be done to a job in a state; nothing can be done to one that has ended.
ACTIONS_OF = {"waiting": ("cancel",), "running": ("stop",), "dead": ("revive", "forget"), "ended": ()}

Item = dict[str, Any]


async def build_job(context: Context) -> Model:
    name, number = context.text("queue"), context.text("entry")
    if not name or not number:
        raise InvalidInput("which job? Its address needs the queue and the job's number: search for it, or for its key")
    entry = read_entry(number.strip())
    found = await context.log.queue(name).job(entry)
    if found is None:
        raise PageNotFound(f"{name} has no job {entry}: it never was, has expired, or has ended and is not kept")
    return {"queue": name, "job": describe(found), "why": found.why, "timeline": tell(found, context.now_ms)}


def describe(job: JobReport) -> Item:
    """The facts; what does not apply is None."""
    doable = ACTIONS_OF[job.state]
    return {
        "entry": job.entry,
        "state": job.state,
        "key": key_text(job.key),
        "kind": job.kind,
        "group": job.group,
        "priority": job.priority,
        "priority_name": None if job.priority is None else _NAMES.get(job.priority),
        "data": job.data,
        "inserted_ms": _ms(job.inserted),
        "due_ms": _ms(job.due),
        "expires_ms": _ms(job.expires),
        "claimed_ms": _ms(job.claimed),
        "deadline_ms": _ms(job.deadline),
        "ended_ms": _ms(job.ended),
        "owner": job.owner,
        "token": job.token,
        "failures": job.timeouts,
        "lifetime_failures": job.lifetime,
        "successor_ms": _ms(job.successor),
        "stop": job.stop,
        "how": job.how,
        "reason": job.reason,
        "result": job.result,
        "result_left_out": job.result_left_out,
        "actions": [one for one in doable if not (one == "stop" and job.stop == "cancel")],
        "attempts_left_out": max(0, (job.lifetime or 0) - MAX_ATTEMPTS_KEPT),
    }


def tell(job: JobReport, now_ms: int) -> list[Item]:
    """What happened, the first thing first; what is still to come stands at the end."""
    items = [_item("put", job.inserted)]
    if job.due is not None and job.due > job.inserted and job.state != "ended":
        items.append(_item("due", job.due))
    for end in job.ends:
        items += _end(end)
    items += _runs(job.attempts)
    if job.state == "dead":
        items.append(_item("dead", job.ended, detail=_cause(job.how, job.reason)))
    if job.claimed is not None and job.state in ("running", "waiting"):
        took = (now_ms - _whole(job.claimed)) / 1000
        items.append(_item("running", job.claimed, worker=job.owner, seconds=took))
        items.append(_item("lease", job.deadline))
    if job.successor is not None:
        items.append(_item("successor", job.successor))
    # Ends of one number share the attempts before them.
    different = {(one["what"], one["time_ms"], one["worker"]): one for one in items}
    return sorted(different.values(), key=lambda one: (one["time_ms"], one["what"] != "put"))


def _runs(attempts: tuple[Attempt, ...]) -> Iterator[Item]:
    for one in attempts:
        seconds = (one.ended_ms - one.started_ms) / 1000
        known = _item(one.how, None, worker=one.owner, seconds=seconds, detail=one.reason)
        yield {**known, "time_ms": one.ended_ms, "started_ms": one.started_ms}


def _end(end: EndedJob) -> Iterator[Item]:
    yield _item("put", end.inserted)
    if end.due is not None and end.due > end.inserted:
        yield _item("due", end.due)
    yield from _runs(end.attempts)
    if end.how != "done":
        yield _item("dead", end.ended, detail=_cause(end.how, end.reason))
        return
    seconds = None if end.claimed is None else (end.ended - end.claimed).total_seconds()
    known = _item("done", end.ended, worker=end.owner, seconds=seconds)
    yield {**known, "result": end.result, "result_left_out": end.result_left_out}


def _cause(how: str | None, reason: str | None) -> str:
    """Why it is dead, in words; what its last attempt said stands with that one."""
    if how == "cancelled":
        return f"cancelled: {reason}" if reason else "cancelled"
    return "too many time-outs" if how == "max_timeouts" else "not tried again"


def _item(what: str, time: datetime | None, **more: Any) -> Item:
    known: Item = {"what": what, "time_ms": _ms(time), "worker": None, "seconds": None, "detail": None}
    return {**known, "started_ms": None, "result": None, "result_left_out": False, **more}


def _whole(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _ms(time: datetime | None) -> int | None:
    return None if time is None else _whole(time)


JOB = ConsolePage("job", "Job", "job.html", build_job, section="queues")
