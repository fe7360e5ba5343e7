"""Work queues: counts, leases, dead letters, and why something does not run."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from everlog.console.actions import MAX_SELECTED, is_wanted_job, is_wanted_letter, key_text
from everlog.console.console import ConsolePage, Context, Model
from everlog.console.sampler import series
from everlog.errors import InvalidInput, StorageFailed
from everlog.queues.declaration import Declaration, plain_options
from everlog.queues.history import EndedJob
from everlog.queues.job import MAX_ENTRY, DeadJob, JobInfo, make_key, parse_key
from everlog.queues.keys import hash_key
from everlog.queues.operations import AskDue, DueAnswer, Get, HistoryPlace, ListDead
from everlog.queues.priority import Priority
from everlog.queues.queue import Queue
from everlog.queues.rows import Attempt, DeadLetter, Flag, JobRow
from everlog.queues.schedules import ScheduleInfo
from everlog.queues.wait_reasons import WaitReason, explain_queue

MAX_PEEKED = 1000
SHOWN = MAX_SELECTED
SHOWN_WAITING = 25
SHOWN_ENDED = 25
_NAMES = {int(one): one.name.lower().replace("_", "-") for one in Priority}


async def build_queues(context: Context) -> Model:
    observation = await context.sampler.latest(1.0)
    if not observation.knows("queues"):
        reason = observation.errors.get("queues") or observation.errors.get("store", "the store does not answer")
        raise StorageFailed(f"the queues cannot be read: {reason}")
    model: Model = {
        "queues": observation.queues,
        "more": observation.more_queues,
        "series": series(context.sampler.samples, "ready"),
        "queue": None,
    }
    name = context.text("name")
    if name:
        model["queue"] = await _queue(context, context.log.queue(name))
    return model


async def _queue(context: Context, queue: Queue) -> Model:
    declaration = await queue.declaration()
    stats = await queue.stats()
    due = cast(DueAnswer, await queue.store.execute(queue.name, AskDue(1)))
    waiting = await queue.peek(MAX_PEEKED)
    dead = await queue.dead(MAX_PEEKED)
    letters = [one for one in dead if is_wanted_letter(one, context.given)]
    wanted = [one for one in waiting if is_wanted_job(one, context.given)]
    why = explain_queue(stats, due, declaration.options.settings, context.now_ms)
    key = context.text("key")
    return {
        "name": queue.name,
        "description": declaration.description,
        "options": plain_options(declaration.options),
        "stats": stats,
        "why": why,
        "priorities": _priorities(waiting),
        "counted": len(waiting),
        "waiting_more": len(waiting) == MAX_PEEKED,
        "waiting": [_job(one) for one in wanted[:SHOWN_WAITING]],
        "waiting_matching": len(wanted),
        "leases": [_job(one) for one in await queue.leases(SHOWN)],
        "dead": [_dead(one) for one in letters[:SHOWN]],
        "dead_matching": len(letters),
        "dead_more": len(dead) == MAX_PEEKED,
        "flags": [_flag(one) for one in await queue.flags()],
        "schedules": [_schedule(one) for one in await queue.schedules.list()],
        "key": key or None,
        **(await _about(queue, declaration, key) if key else {"why_key": [], "jobs_of_key": []}),
        "keeps_done": declaration.options.settings.keep_done_ms > 0,
        "history": await _history(context, queue, declaration),
        "traffic": {
            "shared": context.log.queues.totals_are_shared,
            "points": context.sampler.queues.points(queue.name),
        },
    }


def _priorities(waiting: list[JobInfo]) -> list[dict[str, Any]]:
    found = Counter(one.priority for one in waiting)
    most = max(found.values(), default=1)
    return [
        {"priority": number, "name": _NAMES.get(number), "jobs": jobs, "share": 100 * jobs // most}
        for number, jobs in sorted(found.items())
    ]


async def _about(queue: Queue, declaration: Declaration, text: str) -> Model:
    """What is known of the key's jobs and its last dead letter."""
    key = make_key(declaration, parse_key(declaration, text))
    rows = cast(list[JobRow], await queue.store.execute(queue.name, Get(key, hash_key(key))))
    letters = cast(list[DeadLetter], await queue.store.execute(queue.name, ListDead(MAX_PEEKED)))
    entries = [one.entry for one in letters if one.key == key][:1] + [row.entry for row in rows]
    reports = [report for entry in entries if (report := await queue.job(entry)) is not None]
    reasons = [reason for report in reports for reason in report.why]
    none = [WaitReason("There is no job with this key: it is done, has expired, or was never put.")]
    found = [{"entry": report.entry, "state": report.state} for report in reports]
    return {"why_key": reasons or none, "jobs_of_key": found}


async def _history(context: Context, queue: Queue, declaration: Declaration) -> Model:
    """A page of jobs that have ended; empty unless the queue keeps them."""
    text, before = context.text("ended"), context.text("before")
    if not declaration.options.settings.keep_done_ms:
        return {"jobs": [], "next": None}
    key = parse_key(declaration, text) if text else None
    place = _place(before) if before else None
    found = await queue.history(SHOWN_ENDED + 1, before=place, key=key)
    page = found[:SHOWN_ENDED]
    return {
        "jobs": [_ended(one) for one in page],
        "next": "-".join(map(str, page[-1].place)) if len(found) > SHOWN_ENDED else None,
    }


def _place(text: str) -> HistoryPlace:
    """Where a page of the history ends, as it stands in an address."""
    parts = text.split("-")
    if len(parts) != 3 or not all(one.isascii() and one.isdecimal() and len(one) < 20 for one in parts):
        raise InvalidInput(f"this is no place in the history: {text[:50]!r}")
    ended_ms, entry, token = (min(int(one), MAX_ENTRY) for one in parts)
    return (ended_ms, entry, token)


def _ended(one: EndedJob) -> dict[str, Any]:
    since = None if one.due is None else max(one.due, one.inserted)
    waited = None if one.claimed is None or since is None else (one.claimed - since).total_seconds()
    return {
        "entry": one.entry,
        "key": key_text(one.key),
        "kind": one.kind,
        "group": one.group,
        "how": one.how,
        "reason": one.reason,
        "ended_ms": round(one.ended.timestamp() * 1000),
        "waited_s": None if waited is None else max(0.0, waited),
        "took_s": None if one.claimed is None else (one.ended - one.claimed).total_seconds(),
        "owner": one.owner,
        "failures": len(one.attempts),
        "result": one.result,
        "result_left_out": one.result_left_out,
    }


def _job(one: JobInfo) -> dict[str, Any]:
    row = one.row
    return {
        "entry": row.entry,
        "key": key_text(one.key),
        "kind": one.kind,
        "group": one.group,
        "data": one.data,
        "priority": row.image.priority,
        "priority_name": _NAMES.get(row.image.priority),
        "due_ms": row.image.process_ms,
        "inserted_ms": row.image.inserted_ms,
        "failures": row.timeouts,
        "owner": row.owner,
        "started_ms": row.claimed_ms,
        "deadline_ms": None if row.start_ms is None else row.deadline_ms,
        "successor": row.slot is not None,
        "stop": row.stop,
        "attempts": [_attempt(attempt) for attempt in row.attempts[-5:]],
    }


def _attempt(one: Attempt) -> dict[str, Any]:
    return {
        "started_ms": one.started_ms,
        "ended_ms": one.ended_ms,
        "how": one.how,
        "reason": one.reason,
        "owner": one.owner,
    }


def _dead(one: DeadJob) -> dict[str, Any]:
    return {
        "entry": one.entry,
        "key": key_text(one.key),
        "kind": one.kind,
        "group": one.group,
        "data": one.data,
        "cause": one.cause,
        "reason": one.reason,
        "time_ms": round(one.time.timestamp() * 1000),
        "attempts": [_attempt(attempt) for attempt in one.attempts[-5:]],
    }


def _schedule(one: ScheduleInfo) -> dict[str, Any]:
    return {
        "name": one.name,
        "timing": one.timing,
        "catch_up": one.catch_up,
        "paused": one.paused,
        "next_ms": one.row.next_ms,
        "last_ms": one.row.fired_ms,
    }


def _flag(one: Flag) -> dict[str, Any]:
    return {"reason": one.reason, "count": one.count, "first_ms": one.first_ms, "last_ms": one.last_ms}


QUEUES = ConsolePage("queues", "Queues", "queues.html", build_queues)
