"""Many writes at once, each for itself: what one of them is, and how those of one document are decided together. Pure.

Writes of one document that wait at the same time are decided one after the other, each on what the ones before it have
made, and stored in one conditional step. One that is refused changes nothing and harms no other: so what comes out is
the same as if they had come one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from everlog.documents.bodies import decode_body, measured_body
from everlog.documents.messages import StoredMessage
from everlog.documents.model import (
    BodyCheck,
    DocumentChange,
    DocumentCommand,
    DocumentHead,
    DocumentRow,
    Method,
    Preconditions,
    WriteSettings,
    WrittenDocument,
    check_ttl,
    decide,
)
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.errors import Busy, EverlogError, InvalidDocument, TooManyPending

MAX_GROUP = 100
_NAMES = {
    "if_match": "ifMatch",
    "if_none_match": "ifNoneMatch",
    "message_id": "idempotencyKey",
    "correlation_id": "correlationId",
    "ttl_s": "ttl",
}


class BulkWrite(msgspec.Struct, frozen=True, rename=_NAMES, forbid_unknown_fields=True, omit_defaults=True):
    """One write among many.

    >>> BulkWrite("put", "orders~/o-1", {"total": 12}).path
    'orders~/o-1'
    """

    method: Method
    path: str
    body: Any = UNSET
    if_match: str | None = None
    if_none_match: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    ttl_s: int | None = None


class BulkResult(msgspec.Struct, frozen=True):
    """What became of one write: `written`, or the `error` that it would have raised alone. `number` counts from 1.

    `method` is what was asked for, unless it is not known.
    """

    number: int
    path: str | None
    written: WrittenDocument | None = None
    error: EverlogError | None = None
    method: Method | None = None


def bulk_write(given: Any) -> tuple[BulkWrite, int]:
    """A write as Python users write it, with the names of Python or of JSON and a body of any kind; and its size."""
    if not isinstance(given, BulkWrite):
        try:
            given = msgspec.convert({_NAMES.get(name, name): value for name, value in given.items()}, BulkWrite)
        except (msgspec.ValidationError, AttributeError, TypeError) as error:
            raise InvalidDocument("invalid-line", f"this is not a write: {error}") from error
    found: BulkWrite = given
    if found.body is UNSET:
        return found, 0
    body, size = measured_body(found.body)
    return msgspec.structs.replace(found, body=body), size


def bulk_line(line: bytes) -> BulkWrite:
    """A write as a line of JSON."""
    try:
        return msgspec.convert(decode_body(line), BulkWrite)
    except msgspec.ValidationError as error:
        raise InvalidDocument("invalid-line", f"this line is not a write: {error}") from error


def command_of(write: BulkWrite, made_id: str, by: str) -> DocumentCommand:
    """The command of a write; refuses what can be wrong with it by itself."""
    place = parse_path(write.path)
    if write.method == "delete" and write.body is not UNSET:
        raise InvalidDocument("invalid-line", "a delete has no body")
    bodiless = write.method == "delete" or (write.method == "put" and place.kind == "collection")
    if write.body is UNSET and not bodiless:
        raise InvalidDocument("invalid-line", f"a {write.method} has a body")
    return DocumentCommand(
        write.method,
        place,
        None if write.body is UNSET else write.body,
        message_id=write.message_id or made_id,
        correlation_id=write.correlation_id or write.message_id or made_id,
        remembered=write.message_id is not None,
        preconditions=Preconditions.of(write.if_match, write.if_none_match),
        by=by,
        ttl_s=check_ttl(write.ttl_s),
    )


def decide_each(
    head: DocumentHead | None,
    rows: Mapping[str, DocumentRow],
    messages: Mapping[str, StoredMessage],
    commands: Sequence[DocumentCommand],
    *,
    now_ms: int,
    entropy: int,
    settings: WriteSettings,
    check: BodyCheck,
) -> list[DocumentChange | WrittenDocument | EverlogError]:
    """What becomes of each of the first commands: at least of one. The others are for a decision of their own, because
    what comes before them fills a batch, ends its collection, does not fit a schema, or is as much as may wait for its
    publication.
    """
    found: list[DocumentChange | WrittenDocument | EverlogError] = []
    unfit: list[EverlogError] = []  # what the check has raised
    bodies: dict[str, DocumentRow | None] = dict(rows)
    known = dict(messages)
    size = 0
    for number, command in enumerate(commands):
        message = known.get(command.message_id) if command.remembered else None
        row = bodies.get(command.place.item)
        try:
            made = decide(
                head,
                row,
                message,
                command,
                now_ms=now_ms,
                entropy=entropy + number,
                settings=settings,
                check=_noting(check, unfit),
            )
        except (TooManyPending, Busy) as error:
            return found or [error]  # it may have its turn in a decision of its own
        except EverlogError as error:
            found.append(error)
            if unfit:
                return found  # the bodies behind it were checked as if it had been stored, or not at all
            continue
        if isinstance(made, WrittenDocument):
            found.append(made)
            continue
        size += len(made.transaction.event) + (0 if made.row is None else len(made.row.body))
        if found and size > settings.max_batch_bytes:
            return found
        found.append(made)
        head = msgspec.structs.replace(made.head, pending=made.head.pending + 1)
        bodies[made.place.item] = made.row
        if made.message is not None:
            known[made.message.id] = made.message
        if made.clears:
            return found
    return found


def _noting(check: BodyCheck, unfit: list[EverlogError]) -> BodyCheck:
    """The same check; what it raises is noted: it may be of any type, also of those that a decision itself raises."""

    def noting(place: DocumentPlace, text: str) -> None:
        try:
            check(place, text)
        except EverlogError as error:
            unfit.append(error)
            raise

    return noting
