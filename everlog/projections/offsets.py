"""Offsets and how they are stored: text and a manifest, as Akka and Pekko Projection write them.

An offset is text, a whole number, a UUID, a place inside a record, or a map of those: one place per part of a source,
such as a log's partitions. A map is stored as one row per entry, so that its parts move on their own. A `ResumePoint`
is what a UUID cannot say alone; they know only its UUID, behind which some events come to them again.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from everlog.core.resume_point import ResumePoint
from everlog.core.timeuuid import TimeUuid
from everlog.errors import InvalidOffset
from everlog.projections.projection_id import check_part

_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)
_NUMBER = re.compile(r"-?[0-9]{1,20}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_RECORD_PLACE = re.compile(r"([0-9]{1,19})/([0-9]{1,10})")
_SERIALIZED = re.compile(r"-?[0-9]{1,10}:.*", re.DOTALL)


class Int32(int):
    """A number that its owner stores as 32 bits; a plain int has 64."""

    __slots__ = ()


class Sequence(int):
    """Akka's `Sequence(n)`, the offset of its numbered sources."""

    __slots__ = ()


class RecordPlace(NamedTuple):
    """Inside a record of the log that has several events: those up to `event` are done. After the last, it is a number.

    >>> encode(RecordPlace(17, 2))
    Encoded(text='17/2', manifest='REC')
    """

    offset: int
    event: int


class SerializedOffset(NamedTuple):
    """An offset that a serializer of Akka wrote; Everlog keeps its bytes as they are."""

    serializer: int
    manifest: str
    data: bytes


Single: TypeAlias = str | int | uuid.UUID | RecordPlace | ResumePoint | SerializedOffset
Offset: TypeAlias = Single | Mapping[str, Single]


class JournalNumber(NamedTuple):
    """An event by its journal, its number there, and its own time-UUID: of a source that is not in the order of those.

    A journal's numbers ascend from event to event that the source delivers.
    """

    journal: str
    number: int
    place: uuid.UUID


class Encoded(NamedTuple):
    """An offset as it is stored."""

    text: str
    manifest: str


def encode(offset: Single) -> Encoded:
    """Text and manifest of an offset that is no map.

    >>> encode(7)
    Encoded(text='7', manifest='LNG')
    """
    if isinstance(offset, bool):
        raise InvalidOffset("an offset is text, a number, a UUID or a map of those, not a bool")
    if isinstance(offset, str):
        return Encoded(_checked_text(offset), "STR")
    if isinstance(offset, int):
        return _encode_number(offset)
    if isinstance(offset, uuid.UUID):
        return Encoded(str(offset), "TBU")
    if isinstance(offset, ResumePoint):
        return Encoded(str(offset), "RESUME" if offset.last else "TBU")
    if isinstance(offset, RecordPlace):
        return Encoded(f"{offset.offset}/{offset.event}", "REC")
    if isinstance(offset, SerializedOffset):
        return Encoded(base64.b64encode(offset.data).decode(), f"{offset.serializer}:{offset.manifest}")
    raise InvalidOffset(f"an offset is text, a number, a UUID or a map of those, not {type(offset).__name__}")


def _checked_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidOffset(f"the offset {text!r} is not valid Unicode text") from error
    return text


def _encode_number(number: int) -> Encoded:
    manifest, numbers = "LNG", _INT64
    if isinstance(number, Int32):
        manifest, numbers = "INT", _INT32
    elif isinstance(number, Sequence):
        manifest = "SEQ"
    if int(number) not in numbers:  # a range would look through itself for a subclass of int
        raise InvalidOffset(f"the offset {int(number)} is outside {numbers.start} to {numbers.stop - 1}")
    return Encoded(str(int(number)), manifest)


def decode(text: str, manifest: str) -> Single:
    """The offset that was encoded so.

    >>> decode("7", "SEQ") == Sequence(7)
    True
    """
    if manifest == "STR":
        return text
    if manifest in ("LNG", "INT", "SEQ"):
        if not _NUMBER.fullmatch(text):
            raise InvalidOffset(f"the stored offset {text!r} is no number, although its manifest is {manifest}")
        number = int(text)
        return {"LNG": int, "INT": Int32, "SEQ": Sequence}[manifest](number)
    if manifest == "TBU":
        if not _UUID.fullmatch(text):
            raise InvalidOffset(f"the stored offset {text!r} is no UUID, although its manifest is TBU")
        return uuid.UUID(text)
    if manifest == "RESUME":
        return ResumePoint.parse(text)
    if manifest == "REC":
        place = _RECORD_PLACE.fullmatch(text)
        if place is None:
            raise InvalidOffset(f"the stored offset {text!r} is no place inside a record, although its manifest is REC")
        return RecordPlace(int(place[1]), int(place[2]))
    if _SERIALIZED.fullmatch(manifest):
        serializer, _, name = manifest.partition(":")
        try:
            return SerializedOffset(int(serializer), name, base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise InvalidOffset(f"the stored offset {text!r} is not base64") from error
    raise InvalidOffset(f"the stored offset {text!r} has the manifest {manifest!r}, which Everlog does not know")


def mirrored(encoded: Encoded) -> Encoded:
    """As Akka and Pekko Projection can read it.

    >>> mirrored(Encoded('{"after":"a4698000-8f19-11e5-8080-808080808080","last":{"p":3}}', "RESUME"))
    Encoded(text='a4698000-8f19-11e5-8080-808080808080', manifest='TBU')
    """
    if encoded.manifest == "RESUME":
        return Encoded(str(ResumePoint.parse(encoded.text).after), "TBU")
    found = decode(*encoded) if encoded.manifest == "REC" else None
    return encode(found.offset - 1) if isinstance(found, RecordPlace) else encoded  # what is done as a whole


def is_mergeable(offset: Offset) -> bool:
    """Whether the offset is a map: one row per entry."""
    return isinstance(offset, Mapping)


def entries(key: str, offset: Offset) -> dict[str, Encoded]:
    """The rows of an offset: one under the projection's key, or one per entry of a map."""
    if not isinstance(offset, Mapping):
        return {key: encode(offset)}
    if not offset:
        raise InvalidOffset("a map of offsets needs at least one entry")
    for name in offset:
        check_part("entry of an offset", name)
    return {name: encode(one) for name, one in offset.items()}


def merge(before: Offset | None, new: Offset) -> Offset:
    """The offset after both: of a map, every entry's last place; of anything else, the new one.

    >>> merge({"a": 1, "b": 5}, {"a": 2})
    {'a': 2, 'b': 5}
    """
    if isinstance(new, Mapping):
        if before is None:
            return dict(new)
        if not isinstance(before, Mapping):
            raise InvalidOffset(f"the source changed from single offsets ({before!r}) to maps of them")
        return {**before, **new}
    if isinstance(before, Mapping):
        raise InvalidOffset(f"the source changed from maps of offsets to single ones ({new!r})")
    return new


def same(one: Offset | None, other: Offset | None) -> bool:
    """Whether two offsets are the same place; a number is not the text that spells it, nor an Int32 a long."""
    if one is None or other is None:
        return one is other
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
            return False
        return one.keys() == other.keys() and all(encode(one[name]) == encode(other[name]) for name in one)
    return encode(one) == encode(other)


def show(offset: Offset | None) -> Any:
    """An offset for people and JSON. Of a `ResumePoint` the UUID, and how many journals are ahead of it.

    >>> show(ResumePoint(uuid.UUID("a4698000-8f19-11e5-8080-808080808080"), {"p": 3, "q": 1}))
    'a4698000-8f19-11e5-8080-808080808080 +2 journals'
    """
    if offset is None:
        return None
    if isinstance(offset, ResumePoint) and offset.last:
        return f"{offset.after} +{len(offset.last)} journals"
    if isinstance(offset, Mapping):
        return {name: show(one) for name, one in offset.items()}
    return int(offset) if isinstance(offset, int) else encode(offset).text


def parse_place(text: str) -> int | uuid.UUID | RecordPlace:
    """A place in a part of a source that a user typed: 17, 17/2 inside a record, or a time-UUID among slices.

    >>> parse_place("17/2")
    RecordPlace(offset=17, event=2)
    """
    found = decode(text, "REC" if "/" in text else "TBU" if "-" in text[1:] else "LNG")
    encode(found)
    assert isinstance(found, int | uuid.UUID | RecordPlace)
    return found


def parse(text: str, manifest: str) -> Single:
    """An offset that a user typed, of the type that the manifest names."""
    found = decode(text, manifest)
    encode(found)
    return found


def parse_entry(text: str) -> dict[str, Single]:
    """A place in one part of a source, as reports name it.

    >>> parse_entry("journal-orders-0=17/2")
    {'journal-orders-0': RecordPlace(offset=17, event=2)}
    """
    entry, _, place = text.rpartition("=")
    return {entry: parse_place(place)}


def has_passed(stored: Offset | None, offset: Offset) -> bool:
    """Whether what is stored covers an offset, entry by entry; of a source whose offsets have an order."""
    if stored is None:
        return False
    if isinstance(offset, Mapping):
        found = stored if isinstance(stored, Mapping) else {}
        return all(entry in found and is_reached(found[entry], place) for entry, place in offset.items())
    return not isinstance(stored, Mapping) and is_reached(stored, offset)


def is_ordered(offset: Single) -> bool:
    """Whether it can be told from two offsets of this kind which one comes first."""
    if isinstance(offset, uuid.UUID):
        try:
            TimeUuid.of(offset)
        except InvalidOffset:
            return False
        return True
    return _in_log(offset) is not None


def _in_log(offset: Single) -> tuple[int, float] | None:
    """A number, or a place inside the record of that number: the whole record comes after all of its events."""
    if isinstance(offset, RecordPlace):
        return offset.offset, offset.event
    return (offset, math.inf) if isinstance(offset, int) else None


def is_reached(at: Single, offset: Single) -> bool:
    """Whether `offset` is not behind `at`. Without an order: whether they are the same."""
    place, reached = _in_log(offset), _in_log(at)
    if place is not None and reached is not None:
        return place <= reached
    if isinstance(at, uuid.UUID) and isinstance(offset, uuid.UUID) and is_ordered(at) and is_ordered(offset):
        return TimeUuid.of(offset) <= TimeUuid.of(at)
    return encode(at) == encode(offset)
