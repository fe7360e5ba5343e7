"""What an operator can do in the console: a small list, each with its fields and whether it needs a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeVar

from everlog.api import Everlog
from everlog.console.operations import LoggedOperation
from everlog.core.phrases import count
from everlog.errors import InvalidInput, KeyBusy
from everlog.queues.job import MAX_ENTRY, DeadJob, JobInfo, make_key, parse_key
from everlog.queues.keys import hash_key
from everlog.queues.operations import Cancel, Forget
from everlog.queues.queue import Queue

PAGE = 500
AT_ONCE = 100
# A browser waits for the answer: the next press of the button goes on with what takes longer.
MAX_ACTION_S = 10.0
MAX_REASON = 1000
MAX_SELECTED = 50
# A box of a list is a field of its own: its name ends with the number of the job.
TICKED = "select-"
# How an action begins to tell that it only asked another process for something.
ASKED = "Asked"

Fate = Literal["revived", "asked", "cancelled", "gone", "refused"]
T = TypeVar("T")
Fields = Mapping[str, str]


class ConsoleAction(NamedTuple):
    """`fields` must be given, `optional` may be; `run` answers with a sentence about what it did."""

    run: Callable[[Everlog, Fields], Awaitable[str]]
    fields: tuple[str, ...]
    optional: tuple[str, ...] = ()
    needs_reason: bool = False


async def _pause_projection(log: Everlog, given: Fields) -> str:
    await log.projections.pause(given["name"], given["key"])
    return f"Paused {_instance(given)}: it handles nothing until it is resumed."


async def _resume_projection(log: Everlog, given: Fields) -> str:
    await log.projections.resume(given["name"], given["key"])
    return f"Resumed {_instance(given)}: it goes on where it was."


async def _skip_event(log: Everlog, given: Fields) -> str:
    skipped = await log.projections.skip(given["name"], given["key"], offset=given.get("offset"))
    return f"Left the event at {skipped} out of {_instance(given)}: it is kept as a dead letter."


async def _replay_letters(log: Everlog, given: Fields) -> str:
    found = await log.projections.replay(given["name"], given["key"], offset=given.get("offset"))
    return f"{ASKED} {_instance(given)} to handle {count(found, 'dead letter')} again."


async def _forget_letters(log: Everlog, given: Fields) -> str:
    found = await log.projections.forget(given["name"], given["key"], offset=given.get("offset"))
    return f"Dropped {count(found, 'dead letter')} of {_instance(given)}."


def _instance(given: Fields) -> str:
    """A projection's instance; one without parallel instances has its name as its key."""
    return given["name"] if given["key"] == given["name"] else f"{given['name']} {given['key']}"


async def _rebuild(log: Everlog, given: Fields) -> str:
    await log.projections.request_rebuild(given["name"])
    return f"{ASKED} for a second copy of {given['name']}: " + await _who(log, given["name"])


async def _verify(log: Everlog, given: Fields) -> str:
    await log.projections.request_verify(given["name"])
    return f"{ASKED} for a recount of {given['name']}: " + await _who(log, given["name"])


async def _who(log: Everlog, name: str) -> str:
    """Both need the handler's code: who does it, or what has to run first."""
    if any(one.owner is not None for one in await log.projections.list(name)):
        return "the process that runs it does that."
    return "it begins when a process with this projection runs, everlog projections run module:app."


async def _cancel_verify(log: Everlog, given: Fields) -> str:
    await log.projections.cancel_verify(given["name"])
    return f"{ASKED} the verification of {given['name']} to end: it does within seconds, and nothing was changed."


async def _switch_copies(log: Everlog, given: Fields) -> str:
    found = await log.projections.switch(given["name"])
    return f"Switched {given['name']}: copy {found.current} is read from now on."


async def _switch_back(log: Everlog, given: Fields) -> str:
    found = await log.projections.switch(given["name"], back=True)
    return f"Switched {given['name']} back: copy {found.current} is read again."


async def _abort_rebuild(log: Everlog, given: Fields) -> str:
    await log.projections.abort(given["name"])
    return f"Dropped the new copy of {given['name']}: the one that is read stays."


async def _pause_queue(log: Everlog, given: Fields) -> str:
    if not await log.queue(given["name"]).pause():
        return f"{given['name']} was paused already."
    return f"Paused {given['name']}: no worker takes a job of it until it is resumed."


async def _resume_queue(log: Everlog, given: Fields) -> str:
    if not await log.queue(given["name"]).resume():
        return f"{given['name']} was open already."
    return f"Resumed {given['name']}: workers take its jobs again."


async def _retry_view(log: Everlog, given: Fields) -> str:
    """What a browser may wait for; the rest is left for another press."""
    view, source = given["view"], given.get("source")
    done = await log.documents.retry_unshown(view, source=source, limit=AT_ONCE)
    shown = count(done.shown, "element")
    if not done.left:
        return f"Put right {shown} of {view}."
    return f"Put right {shown} of {view}; {count(done.left, 'element')} cannot be shown yet, the reasons are below."


async def _pause_schedule(log: Everlog, given: Fields) -> str:
    what = f"the schedule {given['schedule']} of {given['name']}"
    if not await log.queue(given["name"]).schedules.pause(given["schedule"]):
        return f"{_capital(what)} was paused already."
    return f"Paused {what}: its times pass without a job."


async def _resume_schedule(log: Everlog, given: Fields) -> str:
    what = f"the schedule {given['schedule']} of {given['name']}"
    if not await log.queue(given["name"]).schedules.resume(given["schedule"]):
        return f"{_capital(what)} was running already."
    return f"Resumed {what}: it puts jobs again."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


async def _revive_job(log: Everlog, given: Fields) -> str:
    entry = read_entry(given["entry"])
    receipt = await log.queue(given["name"]).revive(entry)
    if receipt is None:
        raise _gone(given)
    return f"Revived job {entry} of {given['name']}: {_FATES[receipt.result].format(receipt.entry)}."


_FATES: dict[str, str] = {
    "CREATED": "it waits as job {}",
    "MERGED": "it merged with job {}, which waits",
    "SUCCESSOR": "it waits behind job {}, which runs",
    "SUCCESSOR_MERGED": "it merged with what waits behind job {}, which runs",
    "IGNORED_LATE": "job {} has newer data and stands for it",
}


def _gone(given: Fields) -> InvalidInput:
    return InvalidInput(f"{given['name']} has no dead letter {given['entry']}: another operator was quicker")


async def _revive_jobs(log: Everlog, given: Fields) -> str:
    """All dead letters that match the filter."""
    queue = log.queue(given["name"])

    async def revive(letter: DeadJob) -> int:
        with suppress(KeyBusy):  # it stays where it is
            return await queue.revive(letter.entry) is not None
        return 0

    return await _each(_dead_pages(queue), lambda one: is_wanted_letter(one, given), revive, "Revived", given["name"])


async def _forget_jobs(log: Everlog, given: Fields) -> str:
    """The same, but for good."""
    queue = log.queue(given["name"])

    async def forget(letter: DeadJob) -> int:
        return bool(await log.queues.execute(queue.name, Forget(letter.entry)))

    return await _each(_dead_pages(queue), lambda one: is_wanted_letter(one, given), forget, "Dropped", given["name"])


async def _cancel_matching(log: Everlog, given: Fields) -> str:
    """All waiting jobs that match the filter."""
    queue = log.queue(given["name"])

    async def cancel(job: JobInfo) -> int:
        return await queue.cancel(job.key, given.get("reason"))

    return await _each(_waiting_pages(queue), lambda one: is_wanted_job(one, given), cancel, "Cancelled", given["name"])


async def _dead_pages(queue: Queue) -> AsyncIterator[list[DeadJob]]:
    before: DeadJob | None = None
    while letters := await queue.dead(PAGE, before=before):
        yield letters
        before = letters[-1]


async def _waiting_pages(queue: Queue) -> AsyncIterator[list[JobInfo]]:
    after: JobInfo | None = None
    while jobs := await queue.peek(PAGE, after=after):
        yield jobs
        after = jobs[-1]


async def _each(
    pages: AsyncIterator[list[T]], wanted: Callable[[T], bool], do: Callable[[T], Awaitable[int]], what: str, name: str
) -> str:
    """Do it to all that match, page by page; says their number, and whether the time was over before the last.

    Every call makes progress: the time counts only once something was done.
    """
    now = asyncio.get_running_loop().time
    begun, done = now(), 0
    async for page in pages:
        found = [one for one in page if wanted(one)]
        for at in range(0, len(found), AT_ONCE):
            if done and now() - begun >= MAX_ACTION_S:
                begun_only = f"{what} {count(done, 'job')} of {name} in {MAX_ACTION_S:g} s"
                return f"{begun_only}, and there are more that match: do it again to go on."
            # All of them end before an error is raised: none goes on unseen.
            ended = await asyncio.gather(*map(do, found[at : at + AT_ONCE]), return_exceptions=True)
            for one in ended:
                if isinstance(one, BaseException):
                    raise one
                done += one
    return f"{what} {count(done, 'job')} of {name}."


async def _forget_job(log: Everlog, given: Fields) -> str:
    entry = read_entry(given["entry"])
    if not await log.queues.execute(given["name"], Forget(entry)):
        raise _gone(given)
    return f"Dropped job {entry} of {given['name']}: it is gone for good."


async def _cancel_jobs(log: Everlog, given: Fields) -> str:
    """All jobs of a key."""
    queue = log.queue(given["name"])
    key = parse_key(await queue.declaration(), given["key"])
    running = sum(one.running for one in await queue.get(key))
    found = await queue.cancel(key, given.get("reason"))
    if not found:
        return f"{given['name']} has no job with the key {given['key']}: nothing was cancelled."
    if not running:
        return f"Cancelled {count(found, 'job')} of {given['name']} with the key {given['key']}."
    waited = f", and cancelled {count(found - running, 'job')} that waited" if found > running else ""
    return f"{ASKED} {count(running, 'job')} with the key {given['key']} to stop{waited}."


async def _cancel_job(log: Everlog, given: Fields) -> str:
    entry, name = read_entry(given["entry"]), given["name"]
    fate = await _cancel_entry(log.queue(name), entry, given.get("reason"))
    if fate == "gone":
        raise InvalidInput(f"{name} has no job {entry} that waits or runs: it has ended meanwhile")
    if fate == "asked":
        return f"{ASKED} job {entry} of {name} to stop: its worker hears that with its next heartbeat."
    return f"Cancelled job {entry} of {name}: it is a dead letter now, and can be revived."


async def _cancel_entry(queue: Queue, entry: int, reason: str | None) -> Fate:
    """Cancel one job, and no other one of its key."""
    found = await queue.job(entry)
    if found is None or found.state in ("dead", "ended"):
        return "gone"
    key = make_key(await queue.declaration(), found.key)
    if not await queue.store.execute(queue.name, Cancel(key, hash_key(key), reason, entry)):
        return "gone"
    found = await queue.job(entry)  # it may have begun to run just before
    return "asked" if found is not None and found.state == "running" else "cancelled"


async def _revive_entry(queue: Queue, entry: int) -> tuple[Fate, str]:
    try:
        receipt = await queue.revive(entry)
    except KeyBusy as error:
        return "refused", f"{entry} for {error.entry}"
    if receipt is None:
        return "gone", str(entry)
    return "revived", f"{entry} as {receipt.entry}"


async def _cancel_selected(log: Everlog, given: Fields) -> str:
    queue = log.queue(given["name"])

    async def cancel(entry: int) -> tuple[Fate, str]:
        return await _cancel_entry(queue, entry, given.get("reason")), str(entry)

    return await _selected(given, cancel)


async def _revive_selected(log: Everlog, given: Fields) -> str:
    queue = log.queue(given["name"])
    return await _selected(given, lambda entry: _revive_entry(queue, entry))


async def _selected(given: Fields, do: Callable[[int], Awaitable[tuple[Fate, str]]]) -> str:
    """Do it to each of the selected jobs, and say what became of each."""
    ended = await asyncio.gather(*map(do, read_entries(given["entries"])), return_exceptions=True)
    found: dict[Fate, list[str]] = {}
    for one in ended:
        if isinstance(one, BaseException):
            raise one  # all of them have ended: none goes on unseen
        found.setdefault(one[0], []).append(one[1])
    told = [
        f"{tell(len(found[fate]), given['name'])} ({', '.join(found[fate])})"
        for fate, tell in _TOLD.items()
        if fate in found
    ]
    return _capital("; ".join(told)) + "."


def _was(number: int) -> str:
    return f"{number:,} was" if number == 1 else f"{number:,} were"


# What was done comes first.
_TOLD: dict[Fate, Callable[[int, str], str]] = {
    "revived": lambda number, name: f"revived {count(number, 'job')} of {name}",
    "asked": lambda number, name: f"{ASKED.lower()} {count(number, 'job')} of {name} to stop",
    "cancelled": lambda number, name: f"cancelled {count(number, 'job')} of {name}",
    "gone": lambda number, name: f"{_was(number)} gone already",
    "refused": lambda number, name: f"{_was(number)} refused by the queue, as a job of the same key runs",
}


async def _acknowledge_flag(log: Everlog, given: Fields) -> str:
    if not await log.queue(given["name"]).ack_flag(given["flag"]):
        return f"The flag {given['flag']} of {given['name']} was closed already."
    return f"Closed the flag {given['flag']} of {given['name']}."


async def _check_schema(log: Everlog, given: Fields) -> str:
    await log.documents.check_schema(given["schema"])
    return f"{ASKED} for a check of what is stored against {given['schema']}: this page shows how far it is."


async def _delete_schema(log: Everlog, given: Fields) -> str:
    await log.documents.delete_schema(given["schema"])
    return f"Deleted the schema {given['schema']}: writes need not fit it any more."


async def _retry_record(log: Everlog, given: Fields) -> str:
    place = await log.quarantine.retry(given["topic"], given["id"])
    return f"{ASKED} for another try of {given['topic']}:{given['id']}: its records are read again from {place}."


async def _skip_record(log: Everlog, given: Fields) -> str:
    offset = read_entry(given["offset"]) if "offset" in given else None
    place = await log.quarantine.skip(given["topic"], given["id"], offset)
    return f"Skipped a record of {given['topic']}:{given['id']}: the journal goes on without it from {place}."


ACTIONS: dict[str, ConsoleAction] = {
    "projection.pause": ConsoleAction(_pause_projection, ("name", "key")),
    "projection.resume": ConsoleAction(_resume_projection, ("name", "key")),
    "projection.skip": ConsoleAction(_skip_event, ("name", "key"), ("offset",), needs_reason=True),
    "projection.replay": ConsoleAction(_replay_letters, ("name", "key"), ("offset",)),
    "projection.forget": ConsoleAction(_forget_letters, ("name", "key"), ("offset",), needs_reason=True),
    "projection.rebuild": ConsoleAction(_rebuild, ("name",)),
    "projection.verify": ConsoleAction(_verify, ("name",)),
    "projection.cancel-verify": ConsoleAction(_cancel_verify, ("name",)),
    "projection.switch": ConsoleAction(_switch_copies, ("name",)),
    "projection.switch-back": ConsoleAction(_switch_back, ("name",), needs_reason=True),
    "projection.abort": ConsoleAction(_abort_rebuild, ("name",), needs_reason=True),
    "queue.pause": ConsoleAction(_pause_queue, ("name",)),
    "queue.resume": ConsoleAction(_resume_queue, ("name",)),
    "schedule.pause": ConsoleAction(_pause_schedule, ("name", "schedule")),
    "schedule.resume": ConsoleAction(_resume_schedule, ("name", "schedule")),
    "queue.revive": ConsoleAction(_revive_job, ("name", "entry")),
    "queue.revive-selected": ConsoleAction(_revive_selected, ("name", "entries")),
    "queue.revive-all": ConsoleAction(_revive_jobs, ("name",), ("cause", "text")),
    "queue.forget-all": ConsoleAction(_forget_jobs, ("name",), ("cause", "text"), needs_reason=True),
    "queue.forget": ConsoleAction(_forget_job, ("name", "entry"), needs_reason=True),
    "queue.cancel": ConsoleAction(_cancel_jobs, ("name", "key"), needs_reason=True),
    "queue.cancel-job": ConsoleAction(_cancel_job, ("name", "entry"), needs_reason=True),
    "queue.cancel-selected": ConsoleAction(_cancel_selected, ("name", "entries"), needs_reason=True),
    "queue.cancel-all": ConsoleAction(_cancel_matching, ("name",), ("find", "priority"), needs_reason=True),
    "queue.acknowledge": ConsoleAction(_acknowledge_flag, ("name", "flag")),
    "view.retry": ConsoleAction(_retry_view, ("view",), ("source",)),
    "schema.check": ConsoleAction(_check_schema, ("schema",)),
    "schema.delete": ConsoleAction(_delete_schema, ("schema",), needs_reason=True),
    "quarantine.retry": ConsoleAction(_retry_record, ("topic", "id")),
    "quarantine.skip": ConsoleAction(_skip_record, ("topic", "id"), ("offset",), needs_reason=True),
}


def check_fields(name: str, given: Fields) -> tuple[ConsoleAction, dict[str, str], str]:
    """The action, its target and the reason; InvalidInput if something is missing."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidInput(f"there is no action {name[:50]!r}")
    missing = [field for field in action.fields if not given.get(field)]
    if missing == ["entries"]:
        raise InvalidInput("no job is selected: tick some of the list first")
    if missing:
        raise InvalidInput(f"{name} needs {', '.join(missing)}")
    reason = given.get("reason", "").strip()
    if action.needs_reason and not reason:
        raise InvalidInput(f"{name} needs a reason: it is kept in the operations log")
    if len(reason) > MAX_REASON:
        raise InvalidInput(f"a reason has at most {MAX_REASON:,} characters")
    target = {field: given[field] for field in (*action.fields, *action.optional) if given.get(field)}
    return action, target, reason


def is_wanted_letter(letter: DeadJob, wanted: Fields) -> bool:
    return matches(letter.cause, letter.reason, key_text(letter.key), wanted)


def is_wanted_job(job: JobInfo, wanted: Fields) -> bool:
    return is_wanted(key_text(job.key), job.priority, wanted)


def matches(cause: str, reason: str | None, key: str, wanted: Fields) -> bool:
    """Whether a dead letter fits a filter: its cause, and a text in its key or reason.

    >>> matches("failed", "no route", "m-1", {"text": "ROUTE"})
    True
    """
    text = wanted.get("text", "").casefold()
    fits = not wanted.get("cause") or wanted["cause"] == cause
    return fits and (text in key.casefold() or text in (reason or "").casefold())


def is_wanted(key: str, priority: int, wanted: Fields) -> bool:
    """Whether a waiting job fits a filter: a text in its key, and its priority.

    >>> is_wanted("m-1", 128, {"find": "M-", "priority": "128"})
    True
    """
    fits = not wanted.get("priority") or wanted["priority"] == str(priority)
    return fits and wanted.get("find", "").casefold() in key.casefold()


def key_text(key: Any) -> str:
    """A key as it can be typed."""
    return ",".join(map(str, key)) if isinstance(key, tuple) else str(key)


def read_entry(text: str) -> int:
    """The number of a job, or an offset, as it is typed.

    >>> read_entry("1618")
    1618
    """
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > MAX_ENTRY:
        raise InvalidInput(f"this is no number: {text[:50]!r}")
    return int(text)


def read_entries(text: str) -> list[int]:
    """The numbers of selected jobs, each once; not more than a page has.

    >>> read_entries("7,8,7")
    [7, 8]
    """
    found = list(dict.fromkeys(map(read_entry, text.split(","))))
    if len(found) > MAX_SELECTED:
        raise InvalidInput(f"at most {MAX_SELECTED} jobs can be selected at once, not {len(found):,}")
    return found


def with_selection(form: Fields) -> dict[str, str]:
    """The fields of a form; what is ticked in it, one field for each job, becomes one field.

    >>> with_selection({"name": "mails", "select-7": "on", "select-8": "on"})
    {'name': 'mails', 'entries': '7,8'}
    """
    given = {name: value for name, value in form.items() if not name.startswith(TICKED)}
    ticked = [name.removeprefix(TICKED) for name in form if name.startswith(TICKED)]
    return {**given, "entries": ",".join(ticked)} if ticked else given


def outcome_text(operation: LoggedOperation) -> str:
    """What became of an action, in a word or two: what was only asked for is not done yet."""
    requested = operation.outcome == "done" and operation.detail.startswith(ASKED)
    return "asked for" if requested else operation.outcome
