"""What is stored about documents, and the decision about a write: pure, with time and ids as arguments.

A write is: load the state, decide, store the decision if the document is still at the revision it was decided on. So
revisions of a document are 1, 2, 3, … without hole or double, no matter how many write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec

from everlog.core.values import Position
from everlog.documents.bodies import digest, encode_body, merge, stored_body, without_nulls
from everlog.documents.ids import PACKED, TransactionId, etag_of, next_id, time_uuid
from everlog.documents.messages import MessageCounts, MessageResult, StoredMessage, check_count, count_message
from everlog.documents.paths import DocumentPlace
from everlog.errors import (
    DocumentConflict,
    DocumentNotFound,
    InvalidDocument,
    PreconditionFailed,
    TooManyPending,
)

# What the events of a view's own elements carry as `by`: the view made them of other documents.
VIEWS = "everlog.views"
MAX_TTL_S = 100 * 366 * 86_400

Method = Literal["put", "patch", "delete", "post"]
BodyCheck = Callable[[DocumentPlace, str], None]
"""Raises if this body must not be stored there."""

_TAG = re.compile(r'\s*(W/)?("[\x21\x23-\x7e\x80-\xff]*")\s*(?:,|$)')


def check_ttl(ttl_s: object) -> int | None:
    """A time to live in whole seconds."""
    if ttl_s is None:
        return None
    if not isinstance(ttl_s, int) or isinstance(ttl_s, bool) or not 1 <= ttl_s <= MAX_TTL_S:
        raise InvalidDocument("invalid-ttl", f"a time to live is 1 to {MAX_TTL_S:,} seconds, a whole number")
    return ttl_s


def accept_all(place: DocumentPlace, text: str) -> None:
    """The check where no schema is for any document."""


class EntityTags(msgspec.Struct, frozen=True):
    """A list of entity tags, or `*`."""

    any: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, header: str, text: str) -> EntityTags:
        """What a header says; InvalidDocument if it is no list of tags."""
        if text.strip() == "*":
            return cls(any=True)
        at = 0
        strong: set[str] = set()
        weak: set[str] = set()
        while at < len(text):
            found = _TAG.match(text, at)
            if found is None:
                raise InvalidDocument("invalid-header", f'{header} is a list of entity tags such as "1f", or *')
            (weak if found[1] else strong).add(found[2].replace(f'{PACKED}"', '"'))
            at = found.end()
        if not strong and not weak:
            raise InvalidDocument("invalid-header", f"{header} is empty")
        return cls(strong=frozenset(strong), weak=frozenset(weak))

    def match(self, tag: str | None, *, weakly: bool) -> bool:
        """Whether the current tag is one of these; None: there is nothing to have a tag."""
        if tag is None:
            return False
        if self.any:
            return True
        opaque = tag.removeprefix("W/")
        if weakly:
            return opaque in self.strong or opaque in self.weak
        return tag in self.strong  # a weak tag matches nothing


class Preconditions(msgspec.Struct, frozen=True):
    """What must hold for a request to be carried out."""

    if_match: EntityTags | None = None
    if_none_match: EntityTags | None = None

    @classmethod
    def of(cls, if_match: str | None, if_none_match: str | None) -> Preconditions:
        return cls(
            None if if_match is None else EntityTags.parse("If-Match", if_match),
            None if if_none_match is None else EntityTags.parse("If-None-Match", if_none_match),
        )

    def hold(self, tag: str | None) -> bool:
        """Whether a write may go on."""
        if self.if_match is not None and not self.if_match.match(tag, weakly=False):
            return False
        return self.if_none_match is None or not self.if_none_match.match(tag, weakly=True)

    def unchanged(self, tag: str) -> bool:
        """Whether a read may answer that nothing has changed."""
        return self.if_none_match is not None and self.if_none_match.match(tag, weakly=True)


class DocumentHead(msgspec.Struct, frozen=True):
    """What is known about a document or a collection as a whole. Absent: nothing was ever written."""

    revision: int = 0
    deleted: bool = False
    count: int = 0
    last_id: str | None = None
    messages: MessageCounts = ()
    pending: int = 0
    view: bool = False


class DocumentRow(msgspec.Struct, frozen=True):
    """A stored body, and at which revision it was written."""

    body: str
    revision: int
    created_ms: int
    modified_ms: int
    expires_ms: int | None = None
    """When it is to be deleted, if it was written with a time to live."""


DELETION = '{"method":"feed:delete"'
"""How the event of a deletion begins."""


class DocumentTransaction(msgspec.Struct, frozen=True):
    """A row of the outbox: the event of one write. `old_body` is what was there before it: what indexes may
    still hold, and what live queries compare with.

    `position`: where the event is in the log, if one transaction was asked for; the outbox itself does not know it.
    `by`: who wrote, as the event says; see `with_author`.
    """

    uri: str
    uuid: str
    revision: int
    item: str
    event: str
    old_body: str | None = None
    completed_ms: int | None = None
    accepted: bool = True
    position: Position | None = None
    by: str = ""

    @property
    def id(self) -> str:
        return f"{self.uri}:{self.uuid}:{self.revision}"

    @property
    def ends_collection(self) -> bool:
        """Whether this write deleted a collection; the event says it, the body need not be read."""
        return not self.item and self.uri.endswith("~") and self.event.startswith(DELETION)


class _Author(msgspec.Struct, frozen=True):
    by: str = ""


class _Signed(msgspec.Struct, frozen=True):
    headers: _Author = _Author()


def with_author(transaction: DocumentTransaction) -> DocumentTransaction:
    """The same row, with the name that its event carries."""
    found = msgspec.json.decode(transaction.event, type=_Signed)
    return msgspec.structs.replace(transaction, by=found.headers.by)


class DocumentCommand(msgspec.Struct, frozen=True):
    """A write as it was asked for; the body is exact JSON. `by` is who asked, and goes into the event."""

    method: Method
    place: DocumentPlace
    body: Any = None
    message_id: str = ""
    correlation_id: str = ""
    remembered: bool = False
    preconditions: Preconditions = Preconditions()
    internal: bool = False
    makes_view: bool = False
    by: str = ""
    ttl_s: int | None = None


class WriteSettings(msgspec.Struct, frozen=True):
    """The limits of a decision."""

    max_pending: int = 500
    max_messages: int = 10_000
    max_body_bytes: int = 1024 * 1024
    max_operations: int = 100
    max_batch_bytes: int = 4 * 1024 * 1024


class WrittenDocument(msgspec.Struct, frozen=True):
    """The answer to a write. `position`: where its event is in the log, if the write waited until it was there.
    `expires_ms`: when what was written will be deleted, if it has a time to live.
    """

    transaction_id: str
    path: str
    revision: int
    created: bool
    repeated: bool = False
    position: Position | None = None
    expires_ms: int | None = None

    @property
    def etag(self) -> str:
        """What `if_match` takes as long as nothing else is written there."""
        return etag_of(self.revision)


class DocumentChange(msgspec.Struct, frozen=True):
    """What a write stores, if the document is still at `expected`: the outbox row, the head, and a body or its end.

    Several that follow on each other are stored as one: then the last head is the head, and the last body of an item
    its body.
    """

    expected: int
    head: DocumentHead
    transaction: DocumentTransaction
    place: DocumentPlace
    row: DocumentRow | None
    created: bool = False
    """Whether it makes something that was not there."""
    clears: bool = False
    """Whether all elements of the collection go."""
    message: StoredMessage | None = None
    """What a repetition of the request will be answered with, if it has an id."""


def written_by(change: DocumentChange) -> WrittenDocument:
    """The answer to a change that was accepted."""
    return WrittenDocument(
        change.transaction.id,
        change.place.path,
        change.head.revision,
        change.created,
        expires_ms=None if change.row is None else change.row.expires_ms,
    )


def decide(
    head: DocumentHead | None,
    row: DocumentRow | None,
    message: StoredMessage | None,
    command: DocumentCommand,
    *,
    now_ms: int,
    entropy: int,
    settings: WriteSettings,
    check: BodyCheck,
) -> DocumentChange | WrittenDocument:
    """What a write does to this state; a repeated message gets its first answer. Refusals are raised.

    `message`: what is stored under the command's id, if it is to be remembered.
    `check` looks at the body that would be stored; copies in views are not looked at, the originals were.
    """
    known = head or DocumentHead()
    fingerprint = _digest(command) if command.remembered else ""
    if message is not None and command.remembered and message.answers(fingerprint, now_ms):
        return first_answers(command.place.uri, message)[0]
    command = _named(known, command, now_ms, entropy)
    place = command.place
    exists = head is not None and not head.deleted and (place.kind == "collection" or row is not None)
    _check_kind(known, command, exists)
    body = _new_body(command, row, exists)
    revision = known.revision if place.kind == "collection" else row.revision if row is not None else 0
    if not command.preconditions.hold(etag_of(revision) if exists else None):
        raise PreconditionFailed("not_matched", "If-Match or If-None-Match does not hold", revision=known.revision)
    if known.pending >= settings.max_pending:
        raise TooManyPending(
            "transaction_limit", f"{known.pending} events of {place.uri} wait for their publication: try again later"
        )
    if command.remembered:
        check_count(known.messages, now_ms, uri=place.uri, limit=settings.max_messages)
    text = encode_body(body)
    if len(text.encode()) > settings.max_body_bytes:
        raise InvalidDocument(
            "body-too-large", f"the body of {place.path} would have more than {settings.max_body_bytes:,} bytes"
        )
    if not command.internal and command.method != "delete" and place.kind != "collection":
        check(place, text)
    change = _change(known, row, command, text, exists=exists, now_ms=now_ms, entropy=entropy)
    return remembered([change], command.message_id, fingerprint, now_ms) if command.remembered else change


def first_answers(uri: str, message: StoredMessage) -> tuple[WrittenDocument, ...]:
    """What the request of a message was answered with."""
    return tuple(
        WrittenDocument(
            str(TransactionId(uri, UUID(one.uuid), one.revision)),
            DocumentPlace(uri, one.item).path,
            one.revision,
            one.created,
            repeated=True,
            expires_ms=one.expires_ms,
        )
        for one in message.results
    )


def remembered(changes: Sequence[DocumentChange], message_id: str, fingerprint: str, now_ms: int) -> DocumentChange:
    """The last of the changes that a request makes, with the message of all, and one more in the count."""
    last = changes[-1]
    results = tuple(
        MessageResult(
            one.transaction.uuid,
            one.transaction.revision,
            one.transaction.item,
            one.created,
            None if one.row is None else one.row.expires_ms,
        )
        for one in changes
    )
    head = msgspec.structs.replace(last.head, messages=count_message(last.head.messages, now_ms))
    message = StoredMessage(message_id, fingerprint, now_ms, results)
    return msgspec.structs.replace(last, head=head, message=message)


def _digest(command: DocumentCommand) -> str:
    return digest(command.method, command.place.path, command.body, *ttl_part(command))


def ttl_part(command: DocumentCommand) -> tuple[int, ...]:
    """What a time to live adds to the fingerprint of a request."""
    return () if command.ttl_s is None else (command.ttl_s,)


def _named(head: DocumentHead, command: DocumentCommand, now_ms: int, entropy: int) -> DocumentCommand:
    """A POST is a PUT of an element with the next id of its collection."""
    if command.method != "post":
        return command
    if command.place.kind != "collection":
        raise InvalidDocument("post-not-allowed", "only a collection takes POST: its path ends with '~'")
    item = next_id(now_ms, entropy, head.last_id)
    return msgspec.structs.replace(command, place=DocumentPlace(command.place.uri, item))


def _check_kind(head: DocumentHead, command: DocumentCommand, exists: bool) -> None:
    place, method = command.place, command.method
    if head.view and not command.internal and not head.deleted:
        raise DocumentConflict("view_modification", f"{place.uri} is a view: it changes with what it shows")
    if command.internal and method == "put" and not command.makes_view and (head.deleted or not head.view):
        raise DocumentNotFound("not_found", f"there is no view {place.uri}")
    if place.kind == "collection":
        if method == "patch":
            raise DocumentConflict("collection_patch_not_implemented", "a collection cannot be patched")
        if method == "put" and command.body not in (None, {}):
            raise DocumentConflict(
                "collection-put-not-implemented", "a collection is written element by element; PUT takes no body here"
            )
        if method == "put" and exists:
            raise DocumentConflict("already-exists", f"the collection {place.uri} exists already")
    if command.ttl_s is not None and (method == "delete" or place.kind == "collection"):
        raise InvalidDocument("invalid-ttl", "a document or an element has a time to live, given with its body")
    if method in ("patch", "delete") and not exists:
        raise DocumentNotFound("not_found", f"there is no {place.path}")


def _new_body(command: DocumentCommand, row: DocumentRow | None, exists: bool) -> Any:
    """The body after the write; None if it is gone."""
    place, body = command.place, command.body
    if command.method == "delete" or place.kind == "collection":
        return None
    if command.method == "patch":
        assert row is not None
        if not isinstance(body, dict):
            raise InvalidDocument("patch-not-object", "a patch is a JSON object")
        old = stored_body(row.body)
        if not isinstance(old, dict):
            raise InvalidDocument("not-mergeable", f"the body of {place.path} is no object: replace it with PUT")
        if place.item and body.get("id", place.item) != place.item:
            raise DocumentConflict("field_is_protected", "the id of an element cannot be changed")
        return without_nulls(merge(old, body))
    if place.item:
        if not isinstance(body, dict):
            raise InvalidDocument("element-not-object", "an element of a collection is a JSON object")
        return {**without_nulls(body), "id": place.item}
    return without_nulls(body)


def _change(
    head: DocumentHead,
    row: DocumentRow | None,
    command: DocumentCommand,
    text: str,
    *,
    exists: bool,
    now_ms: int,
    entropy: int,
) -> DocumentChange:
    place, method = command.place, command.method
    revision = head.revision + 1
    transaction_id = TransactionId(place.uri, time_uuid(now_ms, entropy), revision)
    created = not exists and method != "delete"
    new_row = None
    if method != "delete" and place.kind != "collection":
        created_ms = row.created_ms if exists and row is not None else now_ms
        expires_ms = None if command.ttl_s is None else now_ms + command.ttl_s * 1000
        new_row = DocumentRow(text, revision, created_ms, now_ms, expires_ms)
    sent = encode_body(command.body) if method == "patch" else text
    transaction = DocumentTransaction(
        uri=place.uri,
        uuid=str(transaction_id.uuid),
        revision=revision,
        item=place.item,
        event=event_text(command, revision, sent, str(transaction_id), new_row),
        old_body=row.body if row is not None and place.item else None,
    )
    whole = not place.item
    new_head = msgspec.structs.replace(
        head,
        revision=revision,
        deleted=method == "delete" if whole else False,
        count=_count(head, place, method, created),
        last_id=place.item if method == "post" else head.last_id,
        view=command.makes_view or (head.view and not (method == "delete" and whole)),
    )
    clears = method == "delete" and place.kind == "collection"
    return DocumentChange(head.revision, new_head, transaction, place, new_row, created=created, clears=clears)


def _count(head: DocumentHead, place: DocumentPlace, method: Method, created: bool) -> int:
    """How many elements there are."""
    if place.kind == "collection":
        return 0
    if not place.item:
        return head.count
    return head.count + (1 if created else -1 if method == "delete" else 0)


def event_text(
    command: DocumentCommand, revision: int, body: str, transaction_id: str, row: DocumentRow | None = None
) -> str:
    """The event of a write: what the feed carries, as JSON."""
    method = "put" if command.method == "post" else command.method
    headers: dict[str, Any] = {
        "messageId": command.message_id,
        "correlationId": command.correlation_id,
        "revision": revision,
        "transactionId": transaction_id,
        "by": command.by,
    }
    if row is not None and row.expires_ms is not None:
        headers["expires"] = row.expires_ms
    event = {
        "method": f"feed:{method}",
        "path": command.place.path,
        "headers": headers,
        "body": msgspec.Raw(body.encode()),
    }
    return msgspec.json.encode(event).decode()
