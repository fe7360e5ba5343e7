"""The value of an append: JSON when no event is binary, else the binary form. Spec sections 1.5 to 1.7."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from everlog.core.duration import ExpireAfter
from everlog.core.events import PayloadType
from everlog.core.values import MAX_SEQ_NR, MAX_VALUE_BYTES
from everlog.errors import InvalidInput, MalformedRecord


class EventData(msgspec.Struct, frozen=True, gc=False):
    """An event inside an append: the payload as text or bytes, not yet decoded."""

    seq_nr: int
    tags: tuple[str, ...] = ()
    payload_type: PayloadType | None = None
    data: str | bytes | None = None


class PayloadMetadata(NamedTuple):
    """What an append says beside its events."""

    expire_after: ExpireAfter | None = None
    data: Any = None

    def wire(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.expire_after is not None:
            found["expireAfter"] = self.expire_after.text()
        if self.data is not None:
            found["data"] = self.data
        return found


NO_METADATA = PayloadMetadata()


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
    metadata: Any = None


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

_KIND_CODES: dict[PayloadType | None, int] = {None: 0, "binary": 1, "json": 2, "text": 3}
_KINDS = {code: kind for kind, code in _KIND_CODES.items()}


def encode_value(
    events: Sequence[EventData], metadata: PayloadMetadata = NO_METADATA
) -> tuple[Literal["json", "binary"], bytes]:
    """The payload type for the header, and the value."""
    sent = []
    for event in events:
        if event.payload_type == "binary":
            return "binary", _encode_binary(events, metadata)
        sent.append(_sent_event(event))
    return "json", _encode_json(_SentValue(sent, {} if metadata == NO_METADATA else metadata.wire()))


def decode_value(payload_type: str, value: bytes) -> AppendValue:
    """The events of a value, or MalformedRecord."""
    if len(value) > MAX_VALUE_BYTES:
        raise MalformedRecord(f"an append of {len(value):,} bytes: no more than {MAX_VALUE_BYTES:,} go in")
    try:
        found = _decode_binary(value) if payload_type == "binary" else _decode_json(value)
    except (msgspec.MsgspecError, struct.error, UnicodeError, KeyError, RecursionError) as error:
        raise MalformedRecord(f"the {payload_type} value of an append cannot be decoded: {error}") from error
    if not found.events:
        raise MalformedRecord("an append without events")
    return found


def _sent_event(event: EventData) -> _SentEvent:
    kind, data = event.payload_type, event.data or ""
    if kind is None:
        return _SentEvent(event.seq_nr, event.tags)
    return _SentEvent(event.seq_nr, event.tags, kind, msgspec.Raw(data) if kind == "json" else data)  # type: ignore[arg-type]


def _decode_json(value: bytes) -> AppendValue:
    wire = _decode_value(value)
    events = tuple([_event(event) for event in wire.events])
    return AppendValue(events, _metadata(wire.metadata) if wire.metadata else NO_METADATA)


def _event(wire: _WireEvent) -> EventData:
    if not 1 <= wire.seq_nr <= MAX_SEQ_NR:
        raise MalformedRecord(f"seqNr {wire.seq_nr} is out of range")
    raw, kind = bytes(wire.payload), wire.payload_type
    if raw == b"null" and kind is None:
        raw = b""
    if kind == "text":
        return EventData(wire.seq_nr, wire.tags, "text", _decode_text(raw))
    if not raw:
        return EventData(wire.seq_nr, wire.tags)
    return EventData(wire.seq_nr, wire.tags, "json", raw.decode())


def _metadata(found: Any) -> PayloadMetadata:
    if not isinstance(found, dict):
        raise MalformedRecord("the metadata of an append is not an object")
    after = found.get("expireAfter")
    return PayloadMetadata(None if after is None else ExpireAfter.parse(after), found.get("data"))


def _encode_binary(events: Sequence[EventData], metadata: PayloadMetadata) -> bytes:
    parts = [struct.pack(">Bi", 1, len(events))]
    for event in events:
        tags = b"".join(_sized(tag.encode()) for tag in event.tags)
        data = event.data.encode() if isinstance(event.data, str) else event.data or b""
        kind = _KIND_CODES[event.payload_type]
        body = struct.pack(">q", event.seq_nr) + _sized(tags) + bytes([kind]) + _sized(data)
        parts.append(_sized(body))
    parts.append(_encode_json(metadata.wire()))
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
    return AppendValue(events, NO_METADATA if rest == b"{}" else _metadata(_decode_any(rest)))


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
        _decode_any(data)
    return EventData(seq_nr, tuple(found), kind, data if kind == "binary" else data.decode())


def record_metadata(header: Any, payload: PayloadMetadata) -> str:
    """The metadata column of the event rows; empty when there is none."""
    if header is None and payload == NO_METADATA:
        return ""
    head = {} if header is None else {"data": header}
    return _encode_json({"header": head, "payload": payload.wire()}).decode()


def encode_tags(tags: Iterable[str]) -> str:
    """The tags of a row as a sorted JSON list; empty when there are none. Events share few sets of them."""
    return _encode_tags(tuple(tags)) if tags else ""


@lru_cache(maxsize=10_000)
def _encode_tags(tags: tuple[str, ...]) -> str:
    return _encode_json(sorted(set(tags))).decode()


def encode_headers(headers: Sequence[tuple[str, bytes]]) -> str:
    """User headers as the JSON map of the `headers` column; of a repeated name the last one counts."""
    return _encode_json({name: value.decode(errors="replace") for name, value in headers}).decode() if headers else ""


def check_json_metadata(what: str, value: Any) -> Any:
    """User metadata must survive JSON."""
    try:
        return msgspec.json.decode(_encode_json(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the {what} cannot be written as JSON: {error}") from error
