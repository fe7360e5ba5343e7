"""What an operator can do in the console: a small list, each with its fields and whether it needs a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from everlog.client import Everlog
from everlog.errors import InvalidInput
from everlog.queues.operations import Forget
from everlog.queues.packing import parse_key

MAX_REVIVED = 1000
MAX_REASON = 1000

Fields = Mapping[str, str]


class Action(NamedTuple):
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


async def _switch_copies(log: Everlog, given: Fields) -> str:
    found = await log.projections.switch(given["name"])
    return f"copy {found.current} is read from now on"


async def _switch_back(log: Everlog, given: Fields) -> str:
    found = await log.projections.switch(given["name"], back=True)
    return f"copy {found.current} is read again"


async def _abort_rebuild(log: Everlog, given: Fields) -> str:
    await log.projections.abort(given["name"])
    return "the copy that was being built is dropped"


async def _pause_queue(log: Everlog, given: Fields) -> str:
    return "no more claims" if await log.queue(given["name"]).pause() else "it was paused already"


async def _resume_queue(log: Everlog, given: Fields) -> str:
    return "open for claims" if await log.queue(given["name"]).resume() else "it was open already"


async def _revive_job(log: Everlog, given: Fields) -> str:
    receipt = await log.queue(given["name"]).revive(_number(given["entry"]))
    if receipt is None:
        raise InvalidInput(f"{given['name']} has no dead letter {given['entry']}: somebody was quicker")
    return f"{receipt.result.lower()}: job {receipt.entry}"


async def _revive_jobs(log: Everlog, given: Fields) -> str:
    """All dead letters that match the filter, at most so many at once."""
    queue, revived = log.queue(given["name"]), 0
    before: int | None = None
    while letters := await queue.dead(100, before=before):
        for letter in letters:
            if matches(letter.cause, letter.reason, str(letter.key), given):
                revived += await queue.revive(letter.entry) is not None
            if revived == MAX_REVIVED:
                return f"{revived:,} put back; there may be more"
        before = letters[-1].entry
    return f"{revived:,} put back"


async def _forget_job(log: Everlog, given: Fields) -> str:
    if not await log.queues.execute(given["name"], Forget(_number(given["entry"]))):
        raise InvalidInput(f"{given['name']} has no dead letter {given['entry']}: somebody was quicker")
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


ACTIONS: dict[str, Action] = {
    "projection.pause": Action(_pause_projection, ("name", "key")),
    "projection.resume": Action(_resume_projection, ("name", "key")),
    "projection.skip": Action(_skip_event, ("name", "key"), ("offset",), needs_reason=True),
    "projection.replay": Action(_replay_letters, ("name", "key"), ("offset",)),
    "projection.forget": Action(_forget_letters, ("name", "key"), ("offset",), needs_reason=True),
    "projection.switch": Action(_switch_copies, ("name",)),
    "projection.switch-back": Action(_switch_back, ("name",), needs_reason=True),
    "projection.abort": Action(_abort_rebuild, ("name",), needs_reason=True),
    "queue.pause": Action(_pause_queue, ("name",)),
    "queue.resume": Action(_resume_queue, ("name",)),
    "queue.revive": Action(_revive_job, ("name", "entry")),
    "queue.revive-all": Action(_revive_jobs, ("name",), ("cause", "text")),
    "queue.forget": Action(_forget_job, ("name", "entry"), needs_reason=True),
    "queue.cancel": Action(_cancel_jobs, ("name", "key"), needs_reason=True),
    "queue.acknowledge": Action(_acknowledge_flag, ("name", "flag")),
    "quarantine.retry": Action(_retry_record, ("topic", "id")),
    "quarantine.skip": Action(_skip_record, ("topic", "id"), ("offset",), needs_reason=True),
}


def check_fields(name: str, given: Fields) -> tuple[Action, dict[str, str], str]:
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


def matches(cause: str, reason: str | None, key: str, wanted: Fields) -> bool:
    """Whether a dead letter fits a filter: its cause, and a text in its key or reason.

    >>> matches("failed", "no route", "m-1", {"text": "ROUTE"})
    True
    """
    text = wanted.get("text", "").casefold()
    fits = not wanted.get("cause") or wanted["cause"] == cause
    return fits and (text in key.casefold() or text in (reason or "").casefold())


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidInput(f"this is no number: {text[:50]!r}")
    return int(text)
