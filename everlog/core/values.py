"""The scalars of the journal: small types with one constructor that checks, names of partitions, segment formulas."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple, Self

from everlog.errors import InvalidId, InvalidPosition, InvalidRange, InvalidSeqNr

MAX_SEQ_NR = 2**63 - 1
MAX_ID_BYTES = 4096
# No store takes rows that are much larger, so an append must not be, wherever it comes from.
MAX_VALUE_BYTES = 12 * 1024 * 1024
MIN_SEGMENT_SIZE = 2
DEFAULT_SEGMENT_SIZE = 10_000
HEAD_SEGMENTS = 10_000
LEGACY_HEAD_SEGMENTS = 100

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
        raise InvalidSeqNr(f"a seqNr is a whole number, not {value!r}")
    if not 1 <= value <= MAX_SEQ_NR:
        raise InvalidSeqNr(f"a seqNr is between 1 and {MAX_SEQ_NR}, not {value}")
    return int(value)


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
        if first > last:
            raise InvalidRange(f"the range {first}..{last} ends before it begins")
        return cls.trusted(check_seq_nr(first), check_seq_nr(last))

    @classmethod
    def trusted(cls, first: int, last: int) -> Self:
        """A range whose ends were checked before."""
        return tuple.__new__(cls, (first, last))


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
        if partition < 0 or offset < 0:
            raise InvalidPosition(f"partition {partition} and offset {offset} must not be negative")
        return tuple.__new__(cls, (topic, partition, offset))

    @classmethod
    def parse(cls, text: str) -> Position:
        topic, _, rest = text.rpartition(":")
        topic, _, partition = topic.rpartition(":")
        if not topic or not partition.isdecimal() or not rest.isdecimal():
            raise InvalidPosition(f"a position looks like topic:partition:offset, not {text!r}")
        return Position(topic, int(partition), int(rest))

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


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
