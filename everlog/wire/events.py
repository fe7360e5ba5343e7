"""Events as JSON, both ways. A JSON payload passes through as its own text: no number changes on the way."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import msgspec

from everlog.core.duration import ExpireAfter
from everlog.core.events import Event, EventRecord, Json, PayloadType
from everlog.core.json_text import MAX_DEPTH, CutJson
from everlog.core.timeuuid import TimeUuid
from everlog.errors import InvalidDocument, InvalidInput, MalformedRecord
from everlog.store.port import Snapshot
from everlog.tags.tag import TaggedEvent

PayloadKind = Literal["json", "text", "binary"]
_ABSENT = msgspec.Raw(b"null")
# An event as the OpenAPI document shows it.
EXAMPLE: dict[str, Any] = {
    "seq_nr": 1,
    "payload_type": "json",
    "payload": {"placed": 3},
    "tags": ["eu"],
    "time": "2026-01-31T12:00:00.000+00:00",
    "position": "orders:3:42",
}


class NewEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event to append. Without `payload_type` a string is text, and all else is JSON; `binary` is base64.

    `type` names what kind of event it is, `type_version` the version of its shape.
    """

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    payload_type: PayloadKind | None = None
    tags: tuple[str, ...] = ()
    seq_nr: int | None = None
    type: str | None = None
    type_version: int | None = None

    def event(self) -> Event:
        payload = payload_of(self.payload, self.payload_type)
        return Event(payload, tags=self.tags, seq_nr=self.seq_nr, type=self.type, type_version=self.type_version)


class NewEvents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An append: events that are stored together or not at all."""

    events: tuple[NewEvent, ...]
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    header_metadata: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    headers: dict[str, str] | None = None
    expire_after: str | None = None

    def expiry(self) -> timedelta | None:
        if self.expire_after is None:
            return None
        try:
            return timedelta(microseconds=ExpireAfter.parse(self.expire_after).nanos // 1000)
        except (MalformedRecord, OverflowError) as error:
            raise InvalidInput(f"expire_after is a duration such as '1 day', not {self.expire_after!r}") from error


class EventBody(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event. `position` is its place in the log; `ordering` its place among tagged events, once it has one."""

    seq_nr: int
    payload_type: PayloadType | None
    payload: msgspec.Raw
    tags: tuple[str, ...]
    time: str
    position: str
    type: str | None = None
    type_version: int | None = None
    origin: str | None = None
    version: str | None = None
    record_id: str | None = None
    append_id: str | None = None
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    headers: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    ordering: str | None = None


class TaggedBody(EventBody, frozen=True, kw_only=True):
    """An event in a view by tag: `offset` is its place there, `number` counts its journal's events with the tag."""

    offset: str
    topic: str
    id: str
    number: int


Body = TypeVar("Body", bound=EventBody)


class NewSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state to keep; with `life`, only if the journal is still in this one."""

    payload: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    payload_type: PayloadKind | None = None
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    life: str | None = None


class SnapshotBody(msgspec.Struct, frozen=True, kw_only=True):
    """A kept state of a journal."""

    seq_nr: int
    time: str
    payload_type: PayloadType | None
    payload: msgspec.Raw
    metadata: msgspec.Raw = msgspec.field(default_factory=lambda: _ABSENT)
    record_id: str | None = None
    origin: str | None = None
    version: str | None = None


class RecoveryBody(msgspec.Struct, frozen=True):
    """A journal at one moment and its newest snapshot. The events of that moment are read with `pin`.

    `halted_at` is a record behind them that cannot be applied.
    """

    topic: str
    id: str
    seq_nr: int
    life: str | None
    delete_to: int
    pin: str
    snapshot: SnapshotBody | None
    halted_at: int | None = None


def payload_of(raw: msgspec.Raw, kind: PayloadKind | None) -> Any:
    """A payload as the library takes it."""
    text = bytes(raw).strip()
    if kind == "json" or (kind is None and text != b"null" and not text.startswith(b'"')):
        return Json(msgspec.Raw(text))
    if kind is None and text == b"null":
        return None
    value = decode_as(text, Any)
    if not isinstance(value, str):
        raise InvalidInput(f"a payload of the type {kind} is a JSON string")
    if kind != "binary":
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput("a binary payload is base64") from error


def metadata_of(raw: msgspec.Raw) -> msgspec.Raw | None:
    """Metadata as the library takes it."""
    return None if bytes(raw).strip() in (b"", b"null") else raw


def raw_payload(kind: str | None, data: str | bytes | None) -> msgspec.Raw:
    """A stored payload inside JSON."""
    if kind is None:
        return _ABSENT
    if kind == "json":
        return msgspec.Raw((data or "null").encode() if not isinstance(data, bytes) else data or b"null")
    if kind == "binary":
        return msgspec.Raw(msgspec.json.encode(base64.b64encode(data or b"").decode()))  # type: ignore[arg-type]
    return msgspec.Raw(msgspec.json.encode(data if data is not None else ""))


def stored_payload(kind: str | None, raw: msgspec.Raw) -> str | bytes | None:
    """The other way: what the store had."""
    if kind is None:
        return None
    if kind == "json":
        return bytes(raw).decode()
    text: str = msgspec.json.decode(raw)
    return base64.b64decode(text) if kind == "binary" else text


def moment(timestamp_ms: int) -> str:
    """A time in UTC, with milliseconds.

    >>> moment(1_700_000_000_001)
    '2023-11-14T22:13:20.001+00:00'
    """
    whole = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    return whole.replace(microsecond=timestamp_ms % 1000 * 1000).isoformat(timespec="milliseconds")


def timestamp_of(text: str) -> int:
    found = datetime.fromisoformat(text)
    return int(found.replace(microsecond=0).timestamp()) * 1000 + found.microsecond // 1000


def _text(raw: msgspec.Raw) -> str:
    found = bytes(raw).decode()
    return "" if found == "null" else found


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode()) if text else _ABSENT


def _fields(topic: str, event: EventRecord) -> dict[str, Any]:
    kind = event.event_type
    return {
        "seq_nr": event.seq_nr,
        "payload_type": event.payload_type,
        "payload": raw_payload(event.payload_type, event.data),
        "tags": tuple(sorted(event.tags)),
        "time": moment(event.timestamp),
        "position": f"{topic}:{event.partition}:{event.offset}",
        "type": None if kind is None else kind.name,
        "type_version": None if kind is None else kind.version,
        "origin": event.origin,
        "version": event.version,
        "record_id": event.record_id,
        "append_id": event.append_id,
        "metadata": _raw(event.metadata_json),
        "headers": _raw(event.headers_json),
        "ordering": event.ordering,
    }


def event_body(topic: str, event: EventRecord) -> EventBody:
    return EventBody(**_fields(topic, event))


def tagged_body(found: TaggedEvent) -> TaggedBody:
    fields = _fields(found.topic, found.event)
    return TaggedBody(**fields, offset=str(found.place), topic=found.topic, id=found.id, number=found.number)


_decode_event = msgspec.json.Decoder(EventBody).decode
_decode_tagged = msgspec.json.Decoder(TaggedBody).decode


def decode_event(line: bytes) -> EventRecord:
    """The event that a line shows, however deep its JSON is."""
    return record_of(_decode_whole(_decode_event, line))


def decode_tagged(line: str | bytes) -> TaggedEvent:
    """The event of a view that a line shows."""
    return tagged_of(_decode_whole(_decode_tagged, line if isinstance(line, bytes) else line.encode()))


def _decode_whole(decode: Callable[[bytes], Body], line: bytes) -> Body:
    try:
        return decode(line)
    except RecursionError:
        cut = CutJson(line)
        body = decode(cut.shell)
        parts = {name: msgspec.Raw(cut.restore(bytes(getattr(body, name)))) for name in ("payload", "metadata")}
        return msgspec.structs.replace(body, **parts)


def record_of(body: EventBody) -> EventRecord:
    """The event that a body shows."""
    _, partition, offset = body.position.rsplit(":", 2)
    return EventRecord(
        seq_nr=body.seq_nr,
        timestamp=timestamp_of(body.time),
        partition=int(partition),
        offset=int(offset),
        payload_type=body.payload_type,
        data=stored_payload(body.payload_type, body.payload),
        tags_json=msgspec.json.encode(body.tags).decode() if body.tags else "",
        origin=body.origin,
        version=body.version,
        record_id=body.record_id,
        append_id=body.append_id,
        metadata_json=_text(body.metadata),
        headers_json=_text(body.headers),
        ordering=body.ordering,
    )


def tagged_of(body: TaggedBody) -> TaggedEvent:
    return TaggedEvent(TimeUuid.parse(body.offset), body.topic, body.id, body.number, record_of(body))


def snapshot_body(snapshot: Snapshot) -> SnapshotBody:
    return SnapshotBody(
        seq_nr=snapshot.seq_nr,
        time=moment(snapshot.timestamp),
        payload_type=snapshot.payload_type,
        payload=raw_payload(snapshot.payload_type, snapshot.data),
        metadata=_raw(snapshot.metadata_json),
        record_id=snapshot.record_id,
        origin=snapshot.origin,
        version=snapshot.version,
    )


def snapshot_of(body: SnapshotBody) -> Snapshot:
    return Snapshot(
        seq_nr=body.seq_nr,
        timestamp=timestamp_of(body.time),
        payload_type=body.payload_type,
        data=stored_payload(body.payload_type, body.payload),
        record_id=body.record_id,
        origin=body.origin,
        version=body.version,
        metadata_json=_text(body.metadata),
    )


def decode_as(data: bytes, kind: Any) -> Any:
    """A request's body as this type, or an error that says where it is not."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise InvalidDocument("invalid-body", f"this body has more than {MAX_DEPTH} levels: flatten it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidDocument("invalid-body", f"this body is not what is expected here: {error}") from error
