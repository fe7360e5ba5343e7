"""The scalars of the journal: small types with one constructor that checks, names of partitions, segment formulas."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Self

from everlog.errors import InvalidId, InvalidInput, InvalidPosition, InvalidRange, InvalidSeqNr

MAX_SEQ_NR = 2**63 - 1
MAX_ID_BYTES = 4096
# No store takes rows that are much larger, so an append must not be, wherever it comes from.
MAX_VALUE_BYTES = 12 * 1024 * 1024
MIN_SEGMENT_SIZE = 2
DEFAULT_SEGMENT_SIZE = 10_000
HEAD_SEGMENTS = 10_000
LEGACY_HEAD_SEGMENTS = 100

_VERSION = re.compile(r"([0-9]{1,19})(?:@([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))?")

LogOffsets = dict[str, int]
"""By partition of the log, the next offset: `{"journal-orders/0": 17, …}`."""


class SeqNr(int):
    """The number of an event in its journal, from 1 to 2^63-1.

    >>> SeqNr(7) + 1
    8
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        return super().__new__(cls, check_seq_nr(value))


def check_seq_nr(value: int) -> int:
    """The number itself, for callers that keep plain ones, or an error that says what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSeqNr(f"a seqNr is a whole number, not {shown(value)}")
    if not 1 <= value <= MAX_SEQ_NR:
        raise InvalidSeqNr(f"a seqNr is between 1 and {MAX_SEQ_NR}, not {shown(value)}")
    return int(value)


def shown(value: object) -> str:
    """A wrong value in a message: short, and in characters that every terminal and file takes."""
    try:
        text = ascii(value)
    except Exception:  # what does not even show itself
        text = ""
    return text if 0 < len(text) <= 100 else f"a {type(value).__name__}"


class Version(int):
    """A journal's seqNr that also knows the life in which it was read: what `pointer` and `recover` return.

    As `expected=` it holds in that life only, so not after a purge and a new beginning. As text, in an ETag too, it is
    the number and the life.

    >>> seen = Version(3, "0f61d3a5-0d9c-4f7b-9d5b-5a8c4a0b7a11")
    >>> seen + 1, seen.text
    (4, '3@0f61d3a5-0d9c-4f7b-9d5b-5a8c4a0b7a11')
    >>> Version.parse(seen.text).life == seen.life
    True
    """

    life: str | None

    def __new__(cls, seq_nr: int, life: str | None = None) -> Self:
        version = super().__new__(cls, seq_nr)
        version.life = life
        return version

    def __reduce__(self) -> tuple[Any, ...]:
        return Version, (int(self), self.life)

    @property
    def text(self) -> str:
        return str(int(self)) if self.life is None else f"{int(self)}@{self.life}"

    @classmethod
    def parse(cls, text: str) -> int:
        """What `text` gives: a version, or a plain number where it names no life."""
        found = _VERSION.fullmatch(text)
        if found is None or int(found[1]) > MAX_SEQ_NR:
            raise InvalidSeqNr(
                f"a journal's version looks like 3 or 3@life, as an append or a pointer says; not {text!r}"
            )
        return int(found[1]) if found[2] is None else cls(int(found[1]), found[2])


class _Range(NamedTuple):
    first: int
    last: int


class SeqRange(_Range):
    """First and last seqNr, both included.

    >>> SeqRange(3, 5).last
    5
    """

    __slots__ = ()

    def __new__(cls, first: int, last: int) -> Self:
        if check_seq_nr(first) > check_seq_nr(last):
            raise InvalidRange(f"the range {first}..{last} ends before it begins")
        return cls.trusted(int(first), int(last))

    @classmethod
    def trusted(cls, first: int, last: int) -> Self:
        """A range whose ends were checked before."""
        return tuple.__new__(cls, (first, last))


_POSITION = re.compile(r"([^\ud800-\udfff]+):([0-9]{1,19}):([0-9]{1,19})")


class _Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class Position(_Place):
    """A place in the log: what every write returns and every read accepts as `after=`.

    >>> str(Position("orders", 3, 42))
    'orders:3:42'
    >>> Position.parse("orders:3:42").offset
    42
    """

    __slots__ = ()

    def __new__(cls, topic: str, partition: int, offset: int) -> Self:
        try:
            if 0 <= partition < MAX_SEQ_NR and 0 <= offset < MAX_SEQ_NR:
                return tuple.__new__(cls, (topic, partition, offset))
        except TypeError as error:
            raise InvalidPosition(f"a position is a topic and two numbers: {error}") from error
        raise InvalidPosition(f"no log has a partition {shown(partition)} with an offset {shown(offset)}")

    @classmethod
    def parse(cls, text: str) -> Position:
        found = _POSITION.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidPosition(f"a position looks like topic:partition:offset, not {shown(text)}")
        return Position(found[1], int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


def check_position(value: Position | str) -> Position:
    """A position, or the text of one."""
    if not isinstance(value, Position):
        return Position.parse(value)
    sound = isinstance(value.topic, str) and isinstance(value.partition, int) and isinstance(value.offset, int)
    if not sound or not _POSITION.fullmatch(str(value)):
        raise InvalidPosition(f"a position is a topic and two whole numbers, not {shown(tuple(value))}")
    return value


def check_unicode(what: str, text: str) -> str:
    """The text, or InvalidInput if it has half a character in it: no file or server takes that."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the {what} is not valid Unicode text: {error}") from error
    return plain_text(text)


def plain_text(text: str) -> str:
    """The text itself, of no class of its own: encoders and servers take nothing else."""
    return text if type(text) is str else str.__str__(text)


def check_id(journal_id: str) -> bytes:
    """The id's bytes as they go into the log, or an error that says what is wrong with it."""
    if not isinstance(journal_id, str):
        raise InvalidId(f"a journal's id is text, not {type(journal_id).__name__}")
    try:
        encoded = journal_id.encode()
    except UnicodeEncodeError as error:
        raise InvalidId(f"the id {journal_id!r} is not valid Unicode text") from error
    if not encoded:
        raise InvalidId("a journal's id must not be empty")
    if len(encoded) > MAX_ID_BYTES:
        raise InvalidId(f"this id has {len(encoded):,} bytes, at most {MAX_ID_BYTES:,} are allowed")
    return encoded


def segment_of(seq_nr: int, segment_size: int) -> int:
    """The segment of the `journal` table that holds this event."""
    return (seq_nr - 1) // segment_size


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, in signed 32 bits."""
    result = 0
    for unit in map(ord, text) if text.isascii() else _utf16_units(text):
        result = (31 * result + unit) & 0xFFFFFFFF
    return result - 0x1_0000_0000 if result >= 0x8000_0000 else result


def _utf16_units(text: str) -> Iterable[int]:
    units = text.encode("utf-16-le", "surrogatepass")
    return [high << 8 | low for low, high in zip(units[::2], units[1::2], strict=True)]


@lru_cache(maxsize=100_000)
def head_segment(journal_id: str, segments: int = HEAD_SEGMENTS) -> int:
    """The segment of the `metajournal` table that holds this journal's head."""
    return abs(java_hash(journal_id.lower())) % segments


_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 of the key bytes, as an unsigned 32-bit number."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=100_000)
def partition_of(key: bytes, partitions: int) -> int:
    """The pinned partition of a key: the same number that Kafka's default partitioner gives."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def segments_of_partition(partition: int, partitions: int, segments: int = HEAD_SEGMENTS) -> range | tuple[int, ...]:
    """Which head segments one of several workers takes, so that together they take each exactly once.

    >>> list(segments_of_partition(0, 20, 100))
    [0, 20, 40, 60, 80]
    """
    if partitions >= segments:
        return (partition % segments,) if partition < segments else ()
    return range(partition, segments, partitions)


def partition_name(topic: str, partition: int) -> str:
    """A partition of the log as the pipeline's offsets name it."""
    return f"{topic}/{partition}"


def parse_partition_name(name: str) -> tuple[str, int]:
    """The topic and the partition.

    >>> parse_partition_name("journal-orders/3")
    ('journal-orders', 3)
    """
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)
