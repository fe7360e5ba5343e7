"""Batches: several writes of one document or collection that happen together or not at all. Pure, as `model.decide` is.

A batch is decided as its operations would be one after the other, each on what the ones before it have made: so N
operations are N changes with consecutive revisions and an event each, and `accept` stores them in one conditional step
on the revision that the first was decided on. If one operation is refused, its error says which (`operation`, counted
from 0), and nothing is stored. The message of a batch is of the batch as a whole: it stands in its last change, with
the results of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from everlog.documents.bodies import body_of, digest
from everlog.documents.messages import StoredMessage, check_count
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
    first_answers,
    remembered,
    ttl_part,
)
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.errors import DocumentRefused, InvalidDocument


class DocumentOperation(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """One write of a batch. `id` names an element; without it, the write is of the document or the collection itself.

    >>> DocumentOperation("put", "o-1", {"total": 12}, if_none_match="*").method
    'put'
    """

    method: Method
    id: str = ""
    body: Any = UNSET
    if_match: str | None = None
    if_none_match: str | None = None
    ttl_s: int | None = msgspec.field(default=None, name="ttl")


class BatchRequest(msgspec.Struct, frozen=True):
    """The commands of a batch, all of one document."""

    uri: str
    commands: tuple[DocumentCommand, ...]
    message_id: str | None = None

    @property
    def items(self) -> set[str]:
        """The elements that it names."""
        return {command.place.item for command in self.commands}

    @property
    def message_ids(self) -> tuple[str, ...]:
        return () if self.message_id is None else (self.message_id,)


def operations_of(given: Iterable[Any]) -> list[DocumentOperation]:
    """Operations as Python users write them: with the names of Python or of JSON, and bodies of any kind."""
    if not isinstance(given, Iterable):
        raise InvalidDocument("invalid-batch", f"a batch is a list of operations, not {type(given).__name__}")
    found = [_operation(number, one) for number, one in enumerate(given)]
    return [one if one.body is UNSET else msgspec.structs.replace(one, body=body_of(one.body)) for one in found]


def _operation(number: int, given: Any) -> DocumentOperation:
    if isinstance(given, DocumentOperation):
        return given
    names = {"if_match": "ifMatch", "if_none_match": "ifNoneMatch", "ttl_s": "ttl"}
    try:
        renamed = {names.get(name, name): value for name, value in given.items()}
        return msgspec.convert(renamed, DocumentOperation)
    except (msgspec.ValidationError, AttributeError, TypeError) as error:
        raise InvalidDocument(
            "invalid-batch", f"operation {number} is not one of a batch: {error}", operation=number
        ) from error


def batch_request(
    path: str,
    operations: Sequence[DocumentOperation],
    *,
    message_id: str | None,
    made_id: str,
    correlation_id: str,
    max_operations: int,
    by: str = "",
) -> BatchRequest:
    """The commands that operations stand for; InvalidDocument names the operation that is wrong."""
    base = parse_path(path)
    if base.item:
        raise InvalidDocument("invalid-path", f"a batch is of a document or a collection: {base.uri!r}, not {path!r}")
    count = len(operations)
    if not 1 <= count <= max_operations:
        raise InvalidDocument("invalid-batch", f"a batch has 1 to {max_operations:,} operations, not {count:,}")
    commands = []
    for number, one in enumerate(operations):
        try:
            command = DocumentCommand(
                one.method,
                _place(base, one),
                None if one.body is UNSET else one.body,
                message_id=message_id or f"{made_id}-{number}",
                correlation_id=correlation_id,
                preconditions=Preconditions.of(one.if_match, one.if_none_match),
                by=by,
                ttl_s=check_ttl(one.ttl_s),
            )
        except InvalidDocument as error:
            raise _of_operation(error, number) from error
        commands.append(command)
    return BatchRequest(base.uri, tuple(commands), message_id)


def _place(base: DocumentPlace, one: DocumentOperation) -> DocumentPlace:
    """Where an operation writes; refuses what does not fit its method."""
    if one.id and base.kind != "collection":
        raise InvalidDocument("invalid-batch", f"{base.uri!r} is a document: its operations have no id")
    bodiless = one.method == "delete" or (one.method == "put" and base.kind == "collection" and not one.id)
    if one.method != "delete" and isinstance(one.body, UnsetType) and not bodiless:
        raise InvalidDocument("invalid-batch", f"a {one.method} has a body")
    if one.method == "delete" and not isinstance(one.body, UnsetType):
        raise InvalidDocument("invalid-batch", "a delete has no body")
    if one.method == "post" and (one.id or base.kind != "collection"):
        raise InvalidDocument("invalid-batch", "a post has no id, it makes one, and only a collection takes it")
    place = parse_path(f"{base.uri}/{one.id}") if one.id else base
    if place.item != one.id:
        raise InvalidDocument("invalid-path", f"{one.id!r} is no id of an element")
    return place


def decide_batch(
    head: DocumentHead | None,
    rows: Mapping[str, DocumentRow],
    messages: Mapping[str, StoredMessage],
    request: BatchRequest,
    *,
    now_ms: int,
    entropy: int,
    settings: WriteSettings,
    check: BodyCheck,
) -> list[DocumentChange] | tuple[WrittenDocument, ...]:
    """What a batch does to this state, one change per operation; a repeated one gets its first answers."""
    fingerprint = _digest(request) if request.message_id is not None else ""
    message = messages.get(request.message_id or "")
    if message is not None and message.answers(fingerprint, now_ms):
        return first_answers(request.uri, message)
    changes: list[DocumentChange] = []
    overlay: dict[str, DocumentRow | None] = dict(rows)
    size = 0
    for number, command in enumerate(request.commands):
        try:
            made = decide(
                head,
                overlay.get(command.place.item),
                None,
                command,
                now_ms=now_ms,
                entropy=entropy + number,
                settings=settings,
                check=check,
            )
            assert isinstance(made, DocumentChange)
            if made.clears and number + 1 < len(request.commands):
                raise InvalidDocument("invalid-batch", "a delete of the collection itself is the last of its batch")
            size += len(made.transaction.event) if made.row is None else len(made.row.body)
            if size > settings.max_batch_bytes:
                raise InvalidDocument(
                    "batch-too-large", f"what a batch stores has at most {settings.max_batch_bytes:,} bytes"
                )
        except (DocumentRefused, InvalidDocument) as error:
            raise _of_operation(error, number) from error
        head = msgspec.structs.replace(made.head, pending=made.head.pending + 1)
        overlay[made.place.item] = made.row
        changes.append(made)
    if request.message_id is not None:
        check_count(changes[0].head.messages, now_ms, uri=request.uri, limit=settings.max_messages)
        changes[-1] = remembered(changes, request.message_id, fingerprint, now_ms)
    return changes


def _digest(request: BatchRequest) -> str:
    return digest("batch", *[[one.method, one.place.path, one.body, *ttl_part(one)] for one in request.commands])


def _of_operation(error: Any, number: int) -> Any:
    """The same error, which says of which operation it is."""
    return type(error)(error.code, f"operation {number}: {error}", **{**error.facts, "operation": number})
