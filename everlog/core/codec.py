"""The value of an append: JSON when no event is binary, else the binary form. Spec sections 1.5 to 1.7.

The types of events are an addition to the metadata: `"types": [["order-placed", 2], null]`, an entry for each event. In
the metadata of a row stand those of its own event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from everlog.core.duration import ExpireAfter
from everlog.core.events import EventType, PayloadType, decode_payload
from everlog.core.json_text import CutJson, members_of
from everlog.core.values import MAX_SEQ_NR, MAX_VALUE_BYTES
from everlog.errors import MalformedRecord


class EventData(msgspec.Struct, frozen=True, gc=False):
    """An event inside an append: the payload as text or bytes, not yet decoded."""

    seq_nr: int
    tags: tuple[str, ...] = ()
    payload_type: PayloadType | None = None
    data: str | bytes | None = None
    event_type: EventType | None = None

    @property
    def payload(self) -> Any:
        return decode_payload(self.payload_type, self.data)


class PayloadMetadata(NamedTuple):
    """What an append says besides its events; `data` is the user's, as JSON text."""

    expire_after: ExpireAfter | None = None
    data: str | None = None

    def wire(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.expire_after is not None:
            found["expireAfter"] = self.expire_after.text()
        if self.data is not None:
            found["data"] = msgspec.Raw(self.data.encode())
        return found


NO_METADATA = PayloadMetadata()
TYPES = "types"
EventKinds = tuple[EventType | None, ...]


class AppendValue(msgspec.Struct, frozen=True, gc=False):
    """A decoded value."""

    events: tuple[EventData, ...]
    metadata: PayloadMetadata


class _WireEvent(msgspec.Struct, gc=False, rename="camel"):
    seq_nr: int
    tags: tuple[str, ...] = ()
    payload_type: Literal["json", "text"] | None = None
    payload: msgspec.Raw = msgspec.Raw()


class _WireValue(msgspec.Struct, gc=False):
    events: tuple[_WireEvent, ...]
    metadata: msgspec.Raw = msgspec.Raw()


class _SentEvent(msgspec.Struct, gc=False, rename="camel"):
    """An event as writers send it: `tags` always, what is unset not at all."""

    seq_nr: int
    tags: tuple[str, ...]
    payload_type: str | msgspec.UnsetType = msgspec.UNSET
    payload: msgspec.Raw | str | msgspec.UnsetType = msgspec.UNSET


class _SentValue(msgspec.Struct, gc=False):
    events: list[_SentEvent]
    metadata: dict[str, Any]


_encode_json = msgspec.json.Encoder().encode
_decode_value = msgspec.json.Decoder(_WireValue).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode
_decode_types = msgspec.json.Decoder(EventKinds).decode
_pass_over = msgspec.json.Decoder(msgspec.Raw).decode

# What older writers may have where the metadata of an append should be.
_NO_OBJECT = (b"", b"null", b"{}", b"[]", b'""', b"0", b"false")
_KIND_CODES: dict[PayloadType | None, int] = {None: 0, "binary": 1, "json": 2, "text": 3}
_KINDS = {code: kind for kind, code in _KIND_CODES.items()}


def encode_value(
    events: Sequence[EventData], metadata: PayloadMetadata = NO_METADATA
) -> tuple[Literal["json", "binary"], bytes]:
    """The payload type for the header, and the value."""
    sent, typed = [], False
    for event in events:
        if event.payload_type == "binary":
            return "binary", _encode_binary(events, metadata)
        sent.append(_sent_event(event))
        typed = typed or event.event_type is not None
    return "json", _encode_json(_SentValue(sent, _sent_metadata(events, metadata, typed)))


def decode_value(payload_type: str, value: bytes) -> AppendValue:
    """The events of a value, or MalformedRecord."""
    if len(value) > MAX_VALUE_BYTES:
        raise MalformedRecord(f"an append of {len(value):,} bytes: no more than {MAX_VALUE_BYTES:,} go in")
    try:
        if payload_type == "binary":
            found = _decode_binary(value)
        else:
            try:
                found = _decode_json(value)
            except RecursionError:
                found = _decode_deep(value)
    except (msgspec.MsgspecError, struct.error, UnicodeError, KeyError) as error:
        raise MalformedRecord(f"the {payload_type} value of an append cannot be decoded: {error}") from error
    if not found.events:
        raise MalformedRecord("an append without events")
    return found


def _sent_event(event: EventData) -> _SentEvent:
    kind, data = event.payload_type, event.data or ""
    if kind is None:
        return _SentEvent(event.seq_nr, event.tags)
    return _SentEvent(event.seq_nr, event.tags, kind, msgspec.Raw(data) if kind == "json" else data)  # type: ignore[arg-type]


def _sent_metadata(events: Sequence[EventData], metadata: PayloadMetadata, typed: bool) -> dict[str, Any]:
    found = {} if metadata is NO_METADATA else metadata.wire()
    if typed:
        found[TYPES] = [event.event_type for event in events]
    return found


def _decode_json(value: bytes) -> AppendValue:
    wire = _decode_value(value)
    metadata = bytes(wire.metadata)
    if metadata in _NO_OBJECT:
        return AppendValue(tuple([_event(event) for event in wire.events]), NO_METADATA)
    found = _members(metadata)
    kinds = _types(found, len(wire.events))
    if kinds is None:
        return AppendValue(tuple([_event(event) for event in wire.events]), _metadata(found))
    typed = [_event(event, kind) for event, kind in zip(wire.events, kinds, strict=True)]
    return AppendValue(tuple(typed), _metadata(found))


def _decode_deep(value: bytes) -> AppendValue:
    """For payloads and metadata nested more deeply than the stack has room for: they are carried, not looked at."""
    cut = CutJson(value)
    found = _decode_json(cut.shell)

    def whole(text: str) -> str:
        return cut.restore(text.encode()).decode()

    events = [
        msgspec.structs.replace(event, data=whole(event.data))
        if event.payload_type == "json" and isinstance(event.data, str)
        else event
        for event in found.events
    ]
    data = found.metadata.data
    return AppendValue(tuple(events), found.metadata._replace(data=None if data is None else whole(data)))


def _types(metadata: dict[str, bytes], count: int) -> EventKinds | None:
    """What is no type counts as none: a name that others use as they like must not halt a journal."""
    try:
        found = _decode_types(metadata[TYPES]) if TYPES in metadata else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if found is None or len(found) != count else found


def _event(wire: _WireEvent, event_type: EventType | None = None) -> EventData:
    if not 1 <= wire.seq_nr <= MAX_SEQ_NR:
        raise MalformedRecord(f"seqNr {wire.seq_nr} is out of range")
    raw, kind = bytes(wire.payload), wire.payload_type
    if raw == b"null" and kind is None:
        raw = b""
    if kind == "text":
        return EventData(wire.seq_nr, wire.tags, "text", _decode_text(raw), event_type)
    if not raw:
        return EventData(wire.seq_nr, wire.tags, event_type=event_type)
    return EventData(wire.seq_nr, wire.tags, "json", raw.decode(), event_type)


def _members(raw: bytes) -> dict[str, bytes]:
    if not raw.lstrip().startswith(b"{"):
        raise MalformedRecord("the metadata of an append is not an object")
    return members_of(raw)


def _metadata(found: dict[str, bytes]) -> PayloadMetadata:
    after, data = (found.get(name, b"null") for name in ("expireAfter", "data"))
    if after.startswith((b"[", b"{")):
        raise MalformedRecord("expireAfter is not a duration such as '1 day' or '100 minutes'")
    return PayloadMetadata(
        None if after == b"null" else ExpireAfter.parse(_decode_any(after)),
        None if data == b"null" else data.decode(),
    )


def split_metadata(text: str) -> tuple[str | None, PayloadMetadata]:
    """The other way of `record_metadata`; what is not an object counts as none."""
    found = members_of(text.encode()) if text.startswith("{") else {}
    if "header" not in found and "payload" not in found:
        found = {"header": text.encode()}  # the older shape: bare header metadata
    header, payload = (found.get(name, b"{}") for name in ("header", "payload"))
    try:
        found_payload = _metadata(members_of(payload)) if payload.startswith(b"{") else NO_METADATA
    except MalformedRecord:
        found_payload = PayloadMetadata(None, _data_of(payload))  # kafka-journal reads such a row as one without expiry
    return _data_of(header), found_payload


def _data_of(raw: bytes) -> str | None:
    data = members_of(raw).get("data", b"null") if raw.startswith(b"{") else b"null"
    return None if data == b"null" else data.decode()


def _encode_binary(events: Sequence[EventData], metadata: PayloadMetadata) -> bytes:
    parts = [struct.pack(">Bi", 1, len(events))]
    for event in events:
        tags = b"".join(_sized(tag.encode()) for tag in event.tags)
        data = event.data.encode() if isinstance(event.data, str) else event.data or b""
        kind = _KIND_CODES[event.payload_type]
        body = struct.pack(">q", event.seq_nr) + _sized(tags) + bytes([kind]) + _sized(data)
        parts.append(_sized(body))
    typed = any(event.event_type is not None for event in events)
    parts.append(_encode_json(_sent_metadata(events, metadata, typed)))
    return b"".join(parts)


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


class _Bytes:
    """Reads a value from the front; running past its end is an error, never a short answer."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        return int(struct.unpack(form, self.take(size))[0])

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise MalformedRecord(f"the value ends at byte {len(self.data)}, {size} more were announced")
        self.at += size
        return self.data[self.at - size : self.at]

    def sized(self) -> bytes:
        return self.take(self.number(">i"))

    def rest(self) -> bytes:
        return self.data[self.at :]


def _decode_binary(value: bytes) -> AppendValue:
    source = _Bytes(value)
    version = source.number(">B")
    count = source.number(">i")
    if count <= 0:
        raise MalformedRecord(f"{count} events announced")
    events = tuple([_binary_event(_Bytes(source.sized())) for _ in range(count)])
    if version != 1:
        return AppendValue(events, NO_METADATA)
    rest = source.rest()
    if rest == b"{}":
        return AppendValue(events, NO_METADATA)
    metadata, kinds = _trailing_metadata(rest, count)
    if kinds is None:
        return AppendValue(events, metadata)
    typed = [msgspec.structs.replace(event, event_type=kind) for event, kind in zip(events, kinds, strict=True)]
    return AppendValue(tuple(typed), metadata)


def _trailing_metadata(rest: bytes, count: int) -> tuple[PayloadMetadata, EventKinds | None]:
    """What follows the events: as in kafka-journal, what cannot be read there counts as none, as in older values."""
    try:
        found = _members(rest)
        return _metadata(found), _types(found, count)
    except (MalformedRecord, msgspec.DecodeError, UnicodeDecodeError):
        return NO_METADATA, None


def _binary_event(source: _Bytes) -> EventData:
    seq_nr = source.number(">q")
    if seq_nr < 1:
        raise MalformedRecord(f"seqNr {seq_nr} is out of range")
    tags = _Bytes(source.sized())
    found = []
    while tags.rest():
        found.append(tags.sized().decode())
    kind = _KINDS[source.number(">B")]
    data = source.sized()
    if kind is None:
        return EventData(seq_nr, tuple(found))
    if kind == "json":
        _check_json(data)
    return EventData(seq_nr, tuple(found), kind, data if kind == "binary" else data.decode())


def _check_json(data: bytes) -> None:
    try:
        _pass_over(data)
    except RecursionError:
        _pass_over(CutJson(data).shell)


def record_metadata(header: str | None, payload: PayloadMetadata, kind: EventType | None = None) -> str:
    """The metadata column of an event's row, with the type of the event; empty when there is none.

    `header`: the user's, as JSON text.
    """
    if header is None and payload == NO_METADATA and kind is None:
        return ""
    head = {} if header is None else {"data": msgspec.Raw(header.encode())}
    own = {} if kind is None else {"type": kind.name, "typeVersion": kind.version}
    return _encode_json({"header": head, "payload": payload.wire() | own}).decode()


def encode_tags(tags: Iterable[str]) -> str:
    """The tags of a row as a sorted JSON list; empty when there are none. Events share few sets of them."""
    return _encode_tags(tuple(tags)) if tags else ""


@lru_cache(maxsize=10_000)
def _encode_tags(tags: tuple[str, ...]) -> str:
    return _encode_json(sorted(set(tags))).decode()


def encode_headers(headers: Sequence[tuple[str, bytes]]) -> str:
    """User headers as the JSON map of the `headers` column; of a repeated name the last one counts."""
    return _encode_json({name: value.decode(errors="replace") for name, value in headers}).decode() if headers else ""
