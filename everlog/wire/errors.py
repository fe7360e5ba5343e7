"""Errors over HTTP, both ways: the status and the code of an error, and the same error again at the client.

This is the only table of them. A code never changes its spelling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from everlog.errors import (
    AppendIdReused,
    AppendTooLarge,
    Busy,
    Conflict,
    DeclarationRefused,
    DiskFull,
    DocumentConflict,
    DocumentNotFound,
    EmptyAppend,
    EverlogError,
    FilterTooExpensive,
    InvalidConfig,
    InvalidDocument,
    InvalidEventType,
    InvalidHandle,
    InvalidId,
    InvalidInput,
    InvalidKey,
    InvalidOffset,
    InvalidPosition,
    InvalidPriority,
    InvalidProjection,
    InvalidRange,
    InvalidSeqNr,
    InvalidTag,
    JobsRunning,
    JournalHalted,
    JournalNotFound,
    KeyBusy,
    LeaseLost,
    LogTruncated,
    MessageReused,
    NotReplicated,
    OffsetConflict,
    OutcomeDeleted,
    OutcomeUnknown,
    Overtaken,
    PayloadTooLarge,
    PreconditionFailed,
    QueryLimited,
    QueueNotFound,
    RecordTooLarge,
    ScheduleNotFound,
    SchemaViolated,
    SnapshotTooLarge,
    StillBehind,
    StorageFailed,
    SystemTopic,
    TooFewReplicas,
    TooManyMessages,
    TooManyPending,
    TopicReplaced,
    TopicRetired,
    Unacknowledged,
    UnknownProjection,
    Unreachable,
    WriteUnfinished,
)
from everlog.queues.wire import WireError, unpack_error

# Errors of documents have codes of their own; a row without a code is for all that are not named.
OWN_CODE = ""


class ErrorRow(NamedTuple):
    """`facts` are the attributes needed to rebuild the error; without any, the message suffices."""

    kind: type[EverlogError]
    status: int
    code: str
    facts: tuple[str, ...] = ()


# The first that fits counts.
ERRORS: tuple[ErrorRow, ...] = (
    ErrorRow(Conflict, 409, "conflict", ("key", "expected", "actual", "life")),
    ErrorRow(OutcomeDeleted, 410, "outcome-deleted", ("key", "append_id")),
    ErrorRow(AppendIdReused, 422, "append-id-reused", ("key", "append_id")),
    ErrorRow(OutcomeUnknown, 504, "outcome-unknown", ("key", "append_id", "reason")),
    ErrorRow(JournalNotFound, 404, "journal-not-found"),
    ErrorRow(JournalHalted, 423, "journal-halted", ("key", "partition", "offset", "append_id")),
    ErrorRow(Overtaken, 503, "overtaken"),
    ErrorRow(NotReplicated, 503, "not-replicated"),
    ErrorRow(UnknownProjection, 404, "unknown-projection", ("name", "key")),
    ErrorRow(OffsetConflict, 412, "offset-conflict", ("projection", "expected", "actual")),
    ErrorRow(SystemTopic, 403, "system-topic", ("topic",)),
    ErrorRow(TopicRetired, 409, "topic-retired", ("topic",)),
    ErrorRow(TopicReplaced, 500, "topic-replaced"),
    ErrorRow(LogTruncated, 500, "log-truncated", ("topic", "partition", "reason")),
    ErrorRow(StillBehind, 503, "still-behind"),
    ErrorRow(AppendTooLarge, 413, "append-too-large", ("size", "limit")),
    ErrorRow(SnapshotTooLarge, 413, "snapshot-too-large", ("size", "limit")),
    ErrorRow(RecordTooLarge, 413, "record-too-large"),
    ErrorRow(EmptyAppend, 400, "empty-append"),
    ErrorRow(InvalidId, 400, "invalid-id"),
    ErrorRow(InvalidEventType, 400, "invalid-event-type"),
    ErrorRow(InvalidSeqNr, 400, "invalid-seq-nr"),
    ErrorRow(InvalidRange, 400, "invalid-range"),
    ErrorRow(InvalidPosition, 400, "invalid-position"),
    ErrorRow(InvalidProjection, 400, "invalid-projection"),
    ErrorRow(InvalidTag, 400, "invalid-tag"),
    ErrorRow(InvalidOffset, 400, "invalid-offset"),
    ErrorRow(FilterTooExpensive, 400, "filter-too-expensive"),
    ErrorRow(InvalidDocument, 414, "path-too-long"),
    ErrorRow(InvalidDocument, 413, "body-too-large"),
    ErrorRow(InvalidDocument, 413, "batch-too-large"),
    ErrorRow(InvalidDocument, 408, "body-too-slow"),
    ErrorRow(InvalidDocument, 408, "body-cut-off"),
    ErrorRow(InvalidDocument, 405, "post-not-allowed"),
    ErrorRow(InvalidDocument, 421, "misdirected"),
    ErrorRow(InvalidDocument, 422, "not-mergeable"),
    ErrorRow(InvalidDocument, 422, "schema-too-costly"),
    ErrorRow(InvalidDocument, 400, OWN_CODE),
    ErrorRow(DocumentNotFound, 404, OWN_CODE),
    ErrorRow(DocumentConflict, 409, "feed-beyond-end"),
    ErrorRow(DocumentConflict, 409, OWN_CODE),
    ErrorRow(PreconditionFailed, 412, OWN_CODE),
    ErrorRow(SchemaViolated, 422, "schema-violated"),
    ErrorRow(MessageReused, 422, OWN_CODE),
    ErrorRow(TooManyMessages, 429, "message_limit", ("uri", "limit", "retry_after_s")),
    ErrorRow(TooManyPending, 429, OWN_CODE),
    ErrorRow(QueryLimited, 504, OWN_CODE),
    ErrorRow(WriteUnfinished, 504, "request_timeout", ("message_id", "transaction_id")),
    ErrorRow(QueueNotFound, 404, "queue-not-found", ("name", "known")),
    ErrorRow(ScheduleNotFound, 404, "schedule-not-found", ("queue", "name", "known")),
    ErrorRow(LeaseLost, 409, "lease-lost", ("queue", "entry", "token")),
    ErrorRow(KeyBusy, 409, "key-busy", ("queue", "entry")),
    ErrorRow(JobsRunning, 409, "jobs-running", ("queue", "running")),
    ErrorRow(DeclarationRefused, 409, "declaration-refused"),
    ErrorRow(PayloadTooLarge, 413, "payload-too-large", ("size", "limit")),
    ErrorRow(InvalidKey, 400, "invalid-key"),
    ErrorRow(InvalidPriority, 400, "invalid-priority"),
    ErrorRow(InvalidHandle, 400, "invalid-handle"),
    ErrorRow(InvalidConfig, 400, "invalid-option"),
    ErrorRow(InvalidInput, 400, "invalid-request"),
    ErrorRow(Unacknowledged, 504, "outcome-unknown"),
    ErrorRow(DiskFull, 507, "disk-full"),
    ErrorRow(Busy, 503, "busy"),
    ErrorRow(Unreachable, 503, "unreachable"),
    ErrorRow(TooFewReplicas, 503, "too-few-replicas"),
)
_UNNAMED = ErrorRow(EverlogError, 500, "failed")
_BY_CODE = {row.code: row for row in reversed(ERRORS) if row.code != OWN_CODE}
_BY_STATUS = {row.status: row for row in ERRORS if row.code == OWN_CODE}
# Facts that have another name in a body, because the first document clients use those names.
_NAMES = {"message_id": "messageId", "transaction_id": "transactionId", "retry_after_s": "retryAfter"}


def row_of(error: EverlogError) -> ErrorRow:
    """The row that is for an error; its code is the error's own if it has one."""
    code = getattr(error, "code", None)
    for row in ERRORS:
        if isinstance(error, row.kind) and (code is None or row.code in (code, OWN_CODE)):
            return row if code is None else row._replace(code=code)
    return _UNNAMED if code is None else _UNNAMED._replace(code=code)


def status_of(error: EverlogError) -> int:
    """The status that stands for an error."""
    return row_of(error).status


def code_of(error: EverlogError) -> str:
    """The code that stands for an error."""
    row = row_of(error)
    return "unavailable" if row is _UNNAMED and error.retriable else row.code


def facts_of(error: EverlogError) -> dict[str, Any]:
    """What an error knows besides its message."""
    found: dict[str, Any] = getattr(error, "facts", {})
    return found or {_NAMES.get(name, name): _plain(getattr(error, name)) for name in row_of(error).facts}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | list) else str(value)


def error_of(status: int, code: str, text: str, extra: Any) -> EverlogError | None:
    """The error that an answer stands for; None if it is not one of these."""
    facts: dict[str, Any] = dict(extra) if isinstance(extra, dict) else {}
    if "error" in facts:  # a queue names the class, too
        return unpack_error(WireError(str(facts.pop("error")), text, facts))
    row = _BY_CODE.get(code)
    if row is None:
        row = _BY_STATUS.get(status)
        return None if row is None else _with_code(row.kind, code, text, facts)
    if row.kind in (InvalidDocument, DocumentConflict, SchemaViolated):
        return _with_code(row.kind, code, text, facts)
    make: Callable[..., EverlogError] = row.kind
    if not row.facts:
        return make(text)
    names = [_NAMES.get(name, name) for name in row.facts]
    if not all(name in facts for name in names):
        return StorageFailed(text)  # a server that leaves out what the error is made of is not ours
    given = [facts[name] for name in names]
    if row.kind is WriteUnfinished:
        return make(text, **dict(zip(row.facts, given, strict=True)))
    return make(*given)


def _with_code(kind: Callable[..., EverlogError], code: str, text: str, facts: dict[str, Any]) -> EverlogError:
    return kind(code, text) if kind is QueryLimited else kind(code, text, **facts)
