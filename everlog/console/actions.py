"""What an operator can do in the console: a small list, each with its fields and whether it needs a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from everlog.api import Everlog
from everlog.errors import InvalidInput
from everlog.queues.job import DeadJob, JobInfo, parse_key
from everlog.queues.operations import Forget
from everlog.queues.queue import Queue

PAGE = 500
AT_ONCE = 100
# A browser waits for the answer: the next press of the button goes on with what takes longer.
MAX_ACTION_S = 10.0
MAX_REASON = 1000

T = TypeVar("T")
Fields = Mapping[str, str]


class ConsoleAction(NamedTuple):
    """`fields` must be given, `optional` may be; `run` answers with what it did, for the operations log."""

    run: Callable[[Everlog, Fields], Awaitable[str]]
    fields: tuple[str, ...]
    optional: tuple[str, ...] = ()
    needs_reason: bool = False


async def _pause_projection(log: Everlog, given: Fields) -> str:
    await log.projections.pause(given["name"], given["key"])
    return "it handles nothing until it is resumed"


async def _resume_projection(log: Everlog, given: Fields) -> str:
    await log.projections.resume(given["name"], given["key"])
    return "it goes on"


async def _skip_event(log: Everlog, given: Fields) -> str:
    skipped = await log.projections.skip(given["name"], given["key"], offset=given.get("offset"))
    return f"the event at {skipped} is left out and kept as a dead letter"


async def _replay_letters(log: Everlog, given: Fields) -> str:
    count = await log.projections.replay(given["name"], given["key"], offset=given.get("offset"))
    return f"{count:,} to be handled again"


async def _forget_letters(log: Everlog, given: Fields) -> str:
    count = await log.projections.forget(given["name"], given["key"], offset=given.get("offset"))
    return f"{count:,} dropped"


async def _rebuild(log: Everlog, given: Fields) -> str:
    await log.projections.request_rebuild(given["name"])
    return "a second copy is asked for; " + await _who(log, given["name"])


async def _verify(log: Everlog, given: Fields) -> str:
    await log.projections.request_verify(given["name"])
    return "a recount is asked for; " + await _who(log, given["name"])


async def _who(log: Everlog, name: str) -> str:
    """Both need the handler's code: who does it, or what has to run first."""
    if any(one.owner is not None for one in await log.projections.list(name)):
        return "the process that runs it does that"
    return "it begins when a process with this projection runs: everlog projections run module:app"


async def _cancel_verify(log: Everlog, given: Fields) -> str:
    await log.projections.cancel_verify(given["name"])
    return "it ends within seconds, and nothing was changed"


async def _switch_copies(log: Everlog, given: Fields) -> str:
    found = await log.projections.switch(given["name"])
    return f"copy {found.current} is read from now on"


async def _switch_back(log: Everlog, given: Fields) -> str:
    found = await log.projections.switch(given["name"], back=True)
    return f"copy {found.current} is read again"


async def _abort_rebuild(log: Everlog, given: Fields) -> str:
    await log.projections.abort(given["name"])
    return "the new copy is dropped, the one that is read stays"


async def _pause_queue(log: Everlog, given: Fields) -> str:
    return "no more claims" if await log.queue(given["name"]).pause() else "it was paused already"


async def _resume_queue(log: Everlog, given: Fields) -> str:
    return "open for claims" if await log.queue(given["name"]).resume() else "it was open already"


async def _pause_schedule(log: Everlog, given: Fields) -> str:
    changed = await log.queue(given["name"]).schedules.pause(given["schedule"])
    return "its times pass without a job" if changed else "it was paused already"


async def _resume_schedule(log: Everlog, given: Fields) -> str:
    changed = await log.queue(given["name"]).schedules.resume(given["schedule"])
    return "it puts jobs again" if changed else "it was open already"


async def _revive_job(log: Everlog, given: Fields) -> str:
    receipt = await log.queue(given["name"]).revive(_number(given["entry"]))
    if receipt is None:
        raise InvalidInput(f"{given['name']} has no dead letter {given['entry']}: another operator was quicker")
    return f"{receipt.result.lower()}: job {receipt.entry}"


async def _revive_jobs(log: Everlog, given: Fields) -> str:
    """All dead letters that match the filter."""
    queue = log.queue(given["name"])

    async def revive(letter: DeadJob) -> int:
        return await queue.revive(letter.entry) is not None

    return await _each(_dead_pages(queue), lambda one: is_wanted_letter(one, given), revive, "put back")


async def _forget_jobs(log: Everlog, given: Fields) -> str:
    """The same, but for good."""
    queue = log.queue(given["name"])

    async def forget(letter: DeadJob) -> int:
        return bool(await log.queues.execute(queue.name, Forget(letter.entry)))

    return await _each(_dead_pages(queue), lambda one: is_wanted_letter(one, given), forget, "dropped")


async def _cancel_matching(log: Everlog, given: Fields) -> str:
    """All waiting jobs that match the filter."""
    queue = log.queue(given["name"])

    async def cancel(job: JobInfo) -> int:
        return await queue.cancel(job.key, given.get("reason"))

    return await _each(_waiting_pages(queue), lambda one: is_wanted_job(one, given), cancel, "cancelled")


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
    pages: AsyncIterator[list[T]], wanted: Callable[[T], bool], do: Callable[[T], Awaitable[int]], what: str
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
                return f"{done:,} {what} in {MAX_ACTION_S:g} s, and there are more that match: do it again to go on"
            # All of them end before an error is raised: none goes on unseen.
            ended = await asyncio.gather(*map(do, found[at : at + AT_ONCE]), return_exceptions=True)
            for one in ended:
                if isinstance(one, BaseException):
                    raise one
                done += one
    return f"{done:,} {what}"


async def _forget_job(log: Everlog, given: Fields) -> str:
    if not await log.queues.execute(given["name"], Forget(_number(given["entry"]))):
        raise InvalidInput(f"{given['name']} has no dead letter {given['entry']}: another operator was quicker")
    return "dropped"


async def _cancel_jobs(log: Everlog, given: Fields) -> str:
    declared = await log.queues.declared(given["name"])
    count = await log.queue(given["name"]).cancel(parse_key(declared, given["key"]), given.get("reason"))
    return f"{count:,} cancelled"


async def _acknowledge_flag(log: Everlog, given: Fields) -> str:
    return "closed" if await log.queue(given["name"]).ack_flag(given["flag"]) else "it was closed already"


async def _retry_record(log: Everlog, given: Fields) -> str:
    return f"tried again from {await log.quarantine.retry(given['topic'], given['id'])}"


async def _skip_record(log: Everlog, given: Fields) -> str:
    offset = _number(given["offset"]) if "offset" in given else None
    return f"goes on without it from {await log.quarantine.skip(given['topic'], given['id'], offset)}"


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
    "queue.revive-all": ConsoleAction(_revive_jobs, ("name",), ("cause", "text")),
    "queue.forget-all": ConsoleAction(_forget_jobs, ("name",), ("cause", "text"), needs_reason=True),
    "queue.forget": ConsoleAction(_forget_job, ("name", "entry"), needs_reason=True),
    "queue.cancel": ConsoleAction(_cancel_jobs, ("name", "key"), needs_reason=True),
    "queue.cancel-all": ConsoleAction(_cancel_matching, ("name",), ("find", "priority"), needs_reason=True),
    "queue.acknowledge": ConsoleAction(_acknowledge_flag, ("name", "flag")),
    "quarantine.retry": ConsoleAction(_retry_record, ("topic", "id")),
    "quarantine.skip": ConsoleAction(_skip_record, ("topic", "id"), ("offset",), needs_reason=True),
}


def check_fields(name: str, given: Fields) -> tuple[ConsoleAction, dict[str, str], str]:
    """The action, its target and the reason; InvalidInput if something is missing."""
    action = ACTIONS.get(name)
    if action is None:
        raise InvalidInput(f"there is no action {name[:50]!r}")
    missing = [field for field in action.fields if not given.get(field)]
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


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidInput(f"this is no number: {text[:50]!r}")
    return int(text)
