"""Events: what goes in (`Event`), what comes out (`EventRecord`), and the four kinds of payload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec

from everlog.core.json_text import MAX_DEPTH, CutJson, decode_json, encode_json, is_deep
from everlog.core.tag_names import check_tag
from everlog.core.values import check_seq_nr, check_unicode, plain_text, shown
from everlog.errors import InvalidEventType, InvalidInput, InvalidTag, UnreadableJson

PayloadType = Literal["json", "text", "binary"]
# Where a class of events keeps its `EventType`.
DECLARED = "__everlog_event__"
MAX_TYPE_NAME = 200
MAX_TYPE_VERSION = 2**31 - 1
_BINARY = (bytes, bytearray, memoryview)
_NO_TAGS: frozenset[str] = frozenset()


class EventType(NamedTuple):
    """What kind of event a payload is: a name that never changes, and the version of its shape."""

    name: str
    version: int


def check_type(name: str, version: int) -> EventType:
    """The type of an event, or an error that says what is wrong with it."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_TYPE_NAME:
        raise InvalidEventType(f"the name of an event is 1 to {MAX_TYPE_NAME} printable characters, not {shown(name)}")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= MAX_TYPE_VERSION:
        raise InvalidEventType(f"the version of an event is a whole number from 1, not {shown(version)}")
    return EventType(plain_text(name), int(version))


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


class CheckedJson(Json):
    """The text of JSON that was checked where it came in, by the part that writes it: it is stored as it is."""

    __slots__ = ()
    value: str


class Event:
    """An event to append. Text stays text, bytes stay bytes, None is no payload, all else becomes JSON.

    An instance of a class that is declared with `everlog.event` brings its type along; else `type` names one.

    >>> Event({"placed": 3}, tags={"eu"}).payload
    {'placed': 3}
    """

    __slots__ = ("event_type", "payload", "seq_nr", "tags")

    def __init__(
        self,
        payload: Any = None,
        *,
        tags: Iterable[str] = (),
        seq_nr: int | None = None,
        type: str | None = None,  # noqa: A002
        type_version: int | None = None,
    ) -> None:
        if isinstance(tags, str):
            raise InvalidInput(f"tags are a set of strings: write {{{tags!r}}}, not {tags!r}")
        self.payload = payload
        is_typed = type is not None or type_version is not None or hasattr(payload.__class__, DECLARED)
        self.event_type = _type_of(payload, type, type_version) if is_typed else None
        try:
            self.tags = frozenset(map(check_tag, tags)) if tags else _NO_TAGS
        except TypeError as error:
            raise InvalidTag(f"tags are a set of strings, not {tags.__class__.__name__}: {error}") from error
        self.seq_nr = None if seq_nr is None else check_seq_nr(seq_nr)

    def __repr__(self) -> str:
        return f"Event({self.payload!r}, tags={set(self.tags) or '{}'}, seq_nr={self.seq_nr})"


def _type_of(payload: Any, name: str | None, version: int | None) -> EventType | None:
    declared: EventType | None = payload.__class__.__dict__.get(DECLARED)
    if name is None:
        if version is not None:
            raise InvalidEventType(f"type_version={version!r} goes with a type")
        if declared is None:
            raise InvalidEventType(
                f"{payload.__class__.__name__} is not declared as an event, though it inherits from one: put "
                '@everlog.event("a-name") above the class, or name a type'
            )
        return declared
    given = check_type(name, 1 if version is None else version)
    if declared is not None and given != declared:
        raise InvalidEventType(f"this payload is a {declared.name!r} version {declared.version}: leave out the type")
    return given


def encode_payload(payload: Any) -> tuple[PayloadType | None, str | bytes | None]:
    """A payload as it is stored: its type, and text or bytes."""
    if payload.__class__ is dict:  # as most are
        return "json", encode_json("payload", payload)
    if payload is None:
        return None, None
    if isinstance(payload, str):
        return "text", check_unicode("payload", payload)
    if isinstance(payload, _BINARY):
        return "binary", bytes(payload)
    if isinstance(payload, CheckedJson):
        return "json", payload.value
    return "json", encode_json("payload", payload.value if isinstance(payload, Json) else payload)


def decode_payload(payload_type: str | None, data: str | bytes | None) -> Any:
    """The payload as the user gave it."""
    if payload_type == "json":
        return decode_json(data or "null", "its data", wide=True)
    if data is None and payload_type is not None:
        return b"" if payload_type == "binary" else ""
    return data


def shown_payload(payload_type: str | None, data: str | bytes | None) -> Any:
    """A payload for people: as the user gave it, or the text of JSON that Python cannot show."""
    if payload_type == "json" and data and is_deep(data.encode() if isinstance(data, str) else data):
        return data
    try:
        return decode_payload(payload_type, data)
    except UnreadableJson:
        return data


class _RowPayloadMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    type: str | None = None
    type_version: int | None = None


class _RowMetadata(msgspec.Struct, frozen=True, gc=False):
    payload: _RowPayloadMetadata = _RowPayloadMetadata()


_from_metadata = msgspec.json.Decoder(_RowMetadata).decode


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
            try:
                return _from_json(self.data)
            except (RecursionError, msgspec.DecodeError):
                pass  # the long way says what is wrong
        return decode_payload(self.payload_type, self.data)

    @property
    def event_type(self) -> EventType | None:
        """The name and the version of its type, if it was appended with one."""
        if not self.metadata_json:
            return None
        try:
            try:
                found = _from_metadata(self.metadata_json).payload
            except RecursionError:
                found = _from_metadata(CutJson(self.metadata_json.encode()).shell).payload
        except msgspec.DecodeError:  # what others wrote
            return None
        return None if found.type is None or found.type_version is None else EventType(found.type, found.type_version)

    @property
    def type(self) -> str | None:
        """The name of its type: `order-placed`."""
        found = self.event_type
        return None if found is None else found.name

    @property
    def type_version(self) -> int | None:
        """The version in which it was appended."""
        found = self.event_type
        return None if found is None else found.version

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(_from_json(self.tags_json)) if self.tags_json else frozenset()

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def metadata(self) -> dict[str, Any]:
        """`{"header": {...}, "payload": {...}}`: what the append carried besides its events.

        UnreadableJson if another program wrote what Python cannot show, however much room the stack has.
        """
        text = self.metadata_json
        found = decode_json(text, "metadata_json", max_depth=MAX_DEPTH + 2) if text else {}
        if not isinstance(found, dict):
            found = {}
        if "header" not in found and "payload" not in found:
            found = {"header": found, "payload": {}}  # the older shape: bare header metadata
        return {"header": found.get("header", {}), "payload": found.get("payload", {})}

    @property
    def headers(self) -> Mapping[str, str]:
        return _from_json(self.headers_json) if self.headers_json else {}


class EventEnvelope:
    """An event in the place where a reader met it. What it says itself is at hand without a detour."""

    __slots__ = ()
    event: EventRecord

    @property
    def seq_nr(self) -> int:
        return self.event.seq_nr

    @property
    def payload(self) -> Any:
        return self.event.payload

    @property
    def type(self) -> str | None:
        """The name of its type: `order-placed`."""
        return self.event.type

    @property
    def type_version(self) -> int | None:
        """The version in which it was appended."""
        return self.event.type_version

    @property
    def tags(self) -> frozenset[str]:
        return self.event.tags

    @property
    def timestamp(self) -> int:
        """When it was appended, in ms."""
        return self.event.timestamp

    @property
    def time(self) -> datetime:
        return self.event.time

    @property
    def metadata(self) -> dict[str, Any]:
        """`{"header": {...}, "payload": {...}}`: what the append carried besides its events."""
        return self.event.metadata

    @property
    def headers(self) -> Mapping[str, str]:
        return self.event.headers
