"""Errors that cross the wire whole: the server's status and code for them, and the same error again at the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from everlog.errors import (
    AppendTooLarge,
    Conflict,
    EmptyAppend,
    EverlogError,
    InvalidId,
    InvalidOffset,
    InvalidPosition,
    InvalidProjection,
    InvalidRange,
    InvalidSeqNr,
    InvalidTag,
    JournalHalted,
    JournalNotFound,
    LogTruncated,
    NotReplicated,
    OffsetConflict,
    OutcomeUnknown,
    Overtaken,
    RecordTooLarge,
    StillBehind,
    StorageFailed,
    TopicReplaced,
    TopicRetired,
    UnknownProjection,
)


class KnownError(NamedTuple):
    """`facts` are the attributes that the error is made of again; without any, its message is all there is to it."""

    kind: type[EverlogError]
    status: int
    facts: tuple[str, ...] = ()


KNOWN_ERRORS: dict[str, KnownError] = {
    "conflict": KnownError(Conflict, 409, ("key", "expected", "actual")),
    "outcome-unknown": KnownError(OutcomeUnknown, 504, ("key", "append_id", "reason")),
    "journal-not-found": KnownError(JournalNotFound, 404),
    "journal-halted": KnownError(JournalHalted, 423, ("key", "partition", "offset", "append_id")),
    "overtaken": KnownError(Overtaken, 503),
    "not-replicated": KnownError(NotReplicated, 503),
    "unknown-projection": KnownError(UnknownProjection, 404, ("name", "key")),
    "offset-conflict": KnownError(OffsetConflict, 412, ("projection", "expected", "actual")),
    "topic-retired": KnownError(TopicRetired, 409, ("topic",)),
    "topic-replaced": KnownError(TopicReplaced, 500),
    "log-truncated": KnownError(LogTruncated, 500, ("topic", "partition", "reason")),
    "still-behind": KnownError(StillBehind, 503),
    "append-too-large": KnownError(AppendTooLarge, 413, ("size", "limit")),
    "record-too-large": KnownError(RecordTooLarge, 413),
    "empty-append": KnownError(EmptyAppend, 400),
    "invalid-id": KnownError(InvalidId, 400),
    "invalid-seq-nr": KnownError(InvalidSeqNr, 400),
    "invalid-range": KnownError(InvalidRange, 400),
    "invalid-position": KnownError(InvalidPosition, 400),
    "invalid-projection": KnownError(InvalidProjection, 400),
    "invalid-tag": KnownError(InvalidTag, 400),
    "invalid-offset": KnownError(InvalidOffset, 400),
}
_CODES = {known.kind: code for code, known in KNOWN_ERRORS.items()}


def known_code(error: EverlogError) -> str | None:
    """The code of an error, which never changes its spelling."""
    return _CODES.get(type(error))


def facts_of(error: EverlogError) -> dict[str, Any]:
    """What an error knows besides its message."""
    code = known_code(error)
    names = () if code is None else KNOWN_ERRORS[code].facts
    return {name: _plain(getattr(error, name)) for name in names}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int) else str(value)


def error_of(code: str, text: str, extra: Any) -> EverlogError | None:
    """The error that a code and its facts stand for; None if it is not one of these."""
    known = KNOWN_ERRORS.get(code)
    if known is None:
        return None
    facts: Mapping[str, Any] = extra if isinstance(extra, dict) else {}
    make: Callable[..., EverlogError] = known.kind
    if known.facts and all(name in facts for name in known.facts):
        return make(*[facts[name] for name in known.facts])
    # A server that leaves out what the error is made of is not ours.
    return StorageFailed(text) if known.facts else make(text)
