"""What a process checks of operations that others made: a library of another version, or of another make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from everlog.config.queue_options import MAX_CLAIM
from everlog.core.duration import MAX_MS
from everlog.core.json_text import MAX_DEPTH, decode_json
from everlog.errors import EverlogError, InvalidInput, InvalidKey, PayloadTooLarge
from everlog.queues.arguments import MAX_NUMBER, MAX_TEXT
from everlog.queues.declaration import Declaration
from everlog.queues.history import MAX_RESULT_BYTES
from everlog.queues.job import check_entry
from everlog.queues.keys import MAX_KEY_BYTES, decode_values, hash_key
from everlog.queues.labels import check_group, check_kind
from everlog.queues.operations import (
    Cancel,
    Claim,
    Clear,
    Done,
    Fail,
    FindJob,
    FireSchedules,
    Get,
    ListDead,
    ListHistory,
    ListLeases,
    Operation,
    PauseSchedule,
    Peek,
    PurgeJobs,
    Put,
    Release,
    RemoveSchedule,
    SetSchedule,
)
from everlog.queues.payload import decode_data
from everlog.queues.priority import check_priority
from everlog.queues.queue import MAX_PAGE
from everlog.queues.schedule import MAX_DATA_BYTES, MAX_NAME
from everlog.queues.schedules import NewSchedule, check_keys

_MAX_MOMENT_MS = 1 << 62


def check_operation(operation: Operation, declaration: Declaration) -> None:
    """Raises if it is one that no client of ours would send; nothing was done then."""
    check = _CHECKS.get(type(operation))
    if check is not None:
        check(operation, declaration)


def _check_put(operation: Put, declaration: Declaration) -> None:
    packet = operation.packet
    check_priority(packet.priority)
    check_kind(packet.kind)
    check_group(packet.group)
    _check_key(packet.key, packet.hash)
    limit = declaration.options.max_payload_bytes
    if len(packet.data) - 1 > limit:
        raise PayloadTooLarge(len(packet.data) - 1, limit)
    for moment in (packet.inserted_ms, packet.process_ms or 0, packet.expires_s):
        if not 0 <= moment < _MAX_MOMENT_MS:
            raise InvalidInput(f"{moment} is not a moment in milliseconds since 1970")
    _check_data(packet.data, packet.schema, declaration)


def _check_data(data: bytes, schema: int, declaration: Declaration) -> None:
    if not 1 <= schema <= declaration.version:
        raise InvalidInput(f"{declaration.name} has no version {schema} of its columns")
    try:
        decode_data(data, declaration, schema)
    except (msgspec.DecodeError, UnicodeDecodeError, AssertionError, ValueError, TypeError) as error:
        raise InvalidInput(f"the data of this job cannot be read: {error}") from error


def _check_key(key: bytes, key_hash: bytes) -> None:
    """Its hash decides where it is looked for: a wrong one would hide the job from all others."""
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise InvalidKey(f"a key has 1 to {MAX_KEY_BYTES:,} bytes, not {len(key):,}")
    try:
        decode_values(key)
    except EverlogError:
        raise
    except Exception as error:
        raise InvalidKey(f"the bytes of this key do not stand for values: {error}") from error
    if key_hash != hash_key(key):
        raise InvalidKey("this is not the hash of this key")


def _check_claim(operation: Claim, declaration: Declaration) -> None:
    _check_count("a claim takes", operation.limit, MAX_CLAIM)
    if operation.lease_ms is not None and not 1 <= operation.lease_ms <= MAX_MS:
        raise InvalidInput("a lease lasts at least a millisecond, and at most ten years")
    _check_text(operation.owner)


def _check_fail(operation: Fail, declaration: Declaration) -> None:
    _check_text(operation.reason)
    if operation.delay_ms is not None and not 0 <= operation.delay_ms <= MAX_MS:
        raise InvalidInput("a delay is between 0 and ten years")


def _check_release(operation: Release, declaration: Declaration) -> None:
    if operation.delay_ms is not None and not 0 <= operation.delay_ms <= MAX_MS:
        raise InvalidInput("a delay is between 0 and ten years")


def _check_done(operation: Done, declaration: Declaration) -> None:
    found = None if operation.result is None else operation.result.json
    if found is None:
        return
    if len(found) > MAX_RESULT_BYTES:
        raise InvalidInput(f"a result has at most {MAX_RESULT_BYTES:,} bytes, not {len(found):,}")
    decode_json(found, "the result of a job", max_depth=MAX_DEPTH)


def _check_history(operation: ListHistory, declaration: Declaration) -> None:
    _check_page(operation, declaration)
    if (operation.key is None) != (operation.hash is None):
        raise InvalidKey("a key comes with its hash")
    if operation.key is not None and operation.hash is not None:
        _check_key(operation.key, operation.hash)


def _check_entry(operation: FindJob, declaration: Declaration) -> None:
    check_entry(operation.entry)


def _check_named(operation: Get | Cancel, declaration: Declaration) -> None:
    _check_key(operation.key, operation.hash)
    _check_text(getattr(operation, "reason", None))


def _check_schedule(operation: SetSchedule, declaration: Declaration) -> None:
    row = operation.schedule
    if not 0 < len(row.name) <= MAX_NAME:
        raise InvalidInput(f"the name of a schedule is 1 to {MAX_NAME} characters")
    _check_key(row.key, row.hash)
    check_kind(row.kind)
    every = None if row.every_ms is None else row.every_ms / 1000
    timezone = None if every is not None and row.timezone == "UTC" else row.timezone
    NewSchedule(every, row.cron, timezone, row.catch_up, None, row.priority).check()
    if len(row.data) - 1 > MAX_DATA_BYTES:
        raise PayloadTooLarge(len(row.data) - 1, MAX_DATA_BYTES)
    _check_data(row.data, row.schema, declaration)
    check_keys(row, declaration)


def _check_schedule_name(operation: PauseSchedule | RemoveSchedule, declaration: Declaration) -> None:
    _check_text(operation.name)
    if len(operation.hash) != 16:
        raise InvalidKey("this is not the hash of a key")


def _check_fire(operation: FireSchedules, declaration: Declaration) -> None:
    _check_count("a firing puts", operation.limit, MAX_PAGE)


def _check_purge(operation: PurgeJobs, declaration: Declaration) -> None:
    _check_count("a purge takes", operation.limit, MAX_PAGE)


def _check_page(operation: Peek | ListLeases | ListDead | ListHistory, declaration: Declaration) -> None:
    _check_count("a page has", operation.limit, MAX_PAGE)
    place: tuple[object, ...] | None = getattr(operation, "after", None) or getattr(operation, "before", None)
    if place is not None and not is_place(place):
        raise InvalidInput("this is not where a page ends")


def _refuse(operation: Clear, declaration: Declaration) -> None:
    raise InvalidInput("only the processes that have a queue say this to each other: delete the queue")


def is_place(place: tuple[object, ...]) -> bool:
    """Whether a page may end there: its numbers are such that every store can hold them."""
    return all(not isinstance(one, int) or 0 <= one <= MAX_NUMBER for one in place)


def _check_count(what: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise InvalidInput(f"{what} 1 to {limit} jobs, not {count}")


def _check_text(text: str | None) -> None:
    if text is not None and len(text) > MAX_TEXT:
        raise InvalidInput(f"names and reasons have at most {MAX_TEXT} characters")


_CHECKS: dict[type[Any], Callable[[Any, Declaration], None]] = {
    Put: _check_put,
    Claim: _check_claim,
    Done: _check_done,
    Fail: _check_fail,
    Release: _check_release,
    Get: _check_named,
    Cancel: _check_named,
    Peek: _check_page,
    ListLeases: _check_page,
    ListDead: _check_page,
    ListHistory: _check_history,
    FindJob: _check_entry,
    PurgeJobs: _check_purge,
    Clear: _refuse,
    SetSchedule: _check_schedule,
    PauseSchedule: _check_schedule_name,
    RemoveSchedule: _check_schedule_name,
    FireSchedules: _check_fire,
}
