"""Operations and their answers on the wire, between processes: MessagePack, many in one message.

An answer is decoded as what its operation's answer is; an error comes back as the error that it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from everlog import errors
from everlog.errors import EverlogError, InvalidInput, StorageFailed
from everlog.queues.operations import (
    AckFlag,
    AskDue,
    AskHead,
    AskSchedules,
    AskStats,
    BeatAnswer,
    Cancel,
    Claim,
    Clear,
    ClearedShard,
    Done,
    DueAnswer,
    Fail,
    FindJob,
    FireSchedules,
    Forget,
    FoundJob,
    Get,
    Heartbeat,
    JobLease,
    JobPlace,
    ListDead,
    ListFlags,
    ListHistory,
    ListLeases,
    ListSchedules,
    Operation,
    Pause,
    PauseSchedule,
    Peek,
    PurgeJobs,
    Put,
    PutAnswer,
    QueueAnswer,
    RaiseFlag,
    Release,
    RemoveSchedule,
    Revive,
    SetSchedule,
    Stats,
    Sweep,
)
from everlog.queues.rows import DeadLetter, EndedRow, Flag, JobRow
from everlog.queues.schedule import ScheduleRow

MAX_OPERATIONS = 1000
MEDIA_TYPE = "application/vnd.msgpack"
WireOutcome: TypeAlias = QueueAnswer | EverlogError

_ANSWERS: dict[type[Any], Any] = {
    Put: PutAnswer,
    Claim: list[JobLease],
    Heartbeat: BeatAnswer,
    Done: str,
    Fail: str,
    Release: str,
    Cancel: int,
    Pause: bool,
    Revive: PutAnswer | None,
    Forget: bool,
    AckFlag: bool,
    RaiseFlag: None,
    Sweep: int,
    PurgeJobs: int,
    Clear: ClearedShard,
    SetSchedule: ScheduleRow | None,
    PauseSchedule: ScheduleRow | None,
    RemoveSchedule: bool,
    FireSchedules: int,
    Get: list[JobRow],
    Peek: list[JobRow],
    ListLeases: list[JobRow],
    ListDead: list[DeadLetter],
    ListHistory: list[EndedRow],
    FindJob: FoundJob,
    ListFlags: list[Flag],
    AskStats: Stats,
    AskDue: DueAnswer,
    AskHead: JobPlace | None,
    ListSchedules: list[ScheduleRow],
    AskSchedules: int | None,
}
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(answer) for kind, answer in _ANSWERS.items()
}
_decode_operations = msgspec.msgpack.Decoder(list[Operation]).decode
_decode_outcomes = msgspec.msgpack.Decoder(list[tuple[bool, msgspec.Raw]]).decode
encode = msgspec.msgpack.Encoder().encode


class WireError(NamedTuple):
    """An error of ours: its class, what it says, and its facts."""

    name: str
    message: str
    facts: dict[str, Any]


_decode_error = msgspec.msgpack.Decoder(WireError).decode


def encode_operations(operations: Sequence[Operation]) -> bytes:
    return encode(operations)


def decode_operations(data: bytes) -> list[Operation]:
    """What `encode_operations` made; anything else is an error of the caller's."""
    try:
        found = _decode_operations(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"these are not operations on a queue: {error}") from error
    if not 1 <= len(found) <= MAX_OPERATIONS:
        raise InvalidInput(f"a message has 1 to {MAX_OPERATIONS} operations, not {len(found)}")
    return found


def encode_outcomes(outcomes: Sequence[WireOutcome]) -> bytes:
    """Answers and errors, in the order of their operations."""
    return encode(
        [(False, pack_error(found)) if isinstance(found, EverlogError) else (True, found) for found in outcomes]
    )


def decode_outcomes(data: bytes, operations: Sequence[Operation]) -> list[WireOutcome]:
    try:
        found = _decode_outcomes(data)
        return [
            _decoders[type(operation)].decode(raw) if fine else unpack_error(_decode_error(raw))
            for operation, (fine, raw) in zip(operations, found, strict=True)
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise StorageFailed(f"this is not an answer about a queue: {error}: is it this version of Everlog?") from error


def pack_error(error: EverlogError) -> WireError:
    facts = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    return WireError(type(error).__name__, str(error), facts)


def unpack_error(packed: WireError) -> EverlogError:
    """The error as it was raised elsewhere, with its message and its facts."""
    kind = getattr(errors, packed.name, None)
    if not (isinstance(kind, type) and issubclass(kind, EverlogError)):
        return StorageFailed(packed.message)
    error = kind.__new__(kind)
    error.args = (packed.message,)
    vars(error).update(packed.facts)
    return error
