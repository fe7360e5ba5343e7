"""Events: what goes in (`Event`), what comes out (`EventRecord`), and the four kinds of payload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from everlog.core.tag_names import check_tag
from everlog.core.values import check_seq_nr
from everlog.errors import InvalidInput

PayloadType = Literal["json", "text", "binary"]
_BINARY = (bytes, bytearray, memoryview)
_NO_TAGS: frozenset[str] = frozenset()
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


class Json:
    """Marks a payload as JSON where its Python type alone would not: a string, or null.

    >>> Json("hello").value
    'hello'
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Json({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Json) and self.value == other.value

    def __hash__(self) -> int:
        return hash(repr(self.value))


class Event:
    """An event to append. Text stays text, bytes stay bytes, None is no payload, all else becomes JSON.

    >>> Event({"placed": 3}, tags={"eu"}).payload
    {'placed': 3}
    """

    __slots__ = ("payload", "seq_nr", "tags")

    def __init__(self, payload: Any = None, *, tags: Iterable[str] = (), seq_nr: int | None = None) -> None:
        if isinstance(tags, str):
            raise InvalidInput(f"tags are a set of strings: write {{{tags!r}}}, not {tags!r}")
        self.payload = payload
        self.tags = frozenset(tags) if tags else _NO_TAGS
        self.seq_nr = None if seq_nr is None else check_seq_nr(seq_nr)
        for tag in self.tags:
            check_tag(tag)

    def __repr__(self) -> str:
        return f"Event({self.payload!r}, tags={set(self.tags) or '{}'}, seq_nr={self.seq_nr})"


def encode_payload(payload: Any) -> tuple[PayloadType | None, str | bytes | None]:
    """A payload as it is stored: its type, and text or bytes."""
    if payload is None:
        return None, None
    if isinstance(payload, str):
        return "text", payload
    if isinstance(payload, _BINARY):
        return "binary", bytes(payload)
    value = payload.value if isinstance(payload, Json) else payload
    try:
        return "json", _to_json(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"this payload cannot be written as JSON: {error}") from error


def decode_payload(payload_type: str | None, data: str | bytes | None) -> Any:
    """The payload as the user gave it."""
    if payload_type == "json":
        return _from_json(data or "null")
    if data is None and payload_type is not None:
        return b"" if payload_type == "binary" else ""
    return data


class EventRecord(msgspec.Struct, frozen=True, gc=False):
    """One stored event. Payload, tags, metadata and headers are decoded when they are looked at.

    `ordering` is the place of a tagged event among all tagged ones, a time-UUID; it is known once it is replicated.
    """

    seq_nr: int
    timestamp: int
    partition: int
    offset: int
    payload_type: PayloadType | None
    data: str | bytes | None
    tags_json: str = ""
    origin: str | None = None
    version: str | None = None
    record_id: str | None = None
    append_id: str | None = None
    metadata_json: str = ""
    headers_json: str = ""
    ordering: str | None = None

    @property
    def payload(self) -> Any:
        if self.payload_type == "json" and self.data:  # the usual case, without a further call
            return _from_json(self.data)
        return decode_payload(self.payload_type, self.data)

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(_from_json(self.tags_json)) if self.tags_json else frozenset()

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def metadata(self) -> dict[str, Any]:
        """`{"header": {...}, "payload": {...}}`: what the append carried beside its events."""
        found = _from_json(self.metadata_json) if self.metadata_json else {}
        if not isinstance(found, dict):
            found = {}
        if "header" not in found and "payload" not in found:
            found = {"header": found, "payload": {}}  # the older shape: bare header metadata
        return {"header": found.get("header", {}), "payload": found.get("payload", {})}

    @property
    def headers(self) -> Mapping[str, str]:
        return _from_json(self.headers_json) if self.headers_json else {}
