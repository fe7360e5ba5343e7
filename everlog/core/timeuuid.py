"""Time-UUIDs: the places of tagged events in the one order that all of them have.

A time-UUID is a tick (100 ns since 15 October 1582) and eight more bytes. Cassandra sorts by the tick and then by
those bytes as signed ones; Python's `uuid.UUID` sorts differently, and calls the version of ours None, because it
expects other bits among the eight bytes. So they have a type of their own here.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import NamedTuple

from everlog.errors import InvalidOffset

TICKS_PER_MS = 10_000
# Clocks differ, but not by more: what lies further ahead is not the time of an event.
FUTURE_MS = 3_600_000
_EPOCH_MS = 12_219_292_800_000
_SIGNS = 0x8080_8080_8080_8080
_HALF = 1 << 63
_GROUP = 0x7F

MIN_RANK = -_HALF
MAX_RANK = _HALF - 1
MAX_TICK = (1 << 60) - 1
# Two groups of seven bits each for topic and partition, four for the index.
MAX_TOPICS = MAX_PARTITIONS = 1 << 14
MAX_INDEX = 1 << 28


class TimeUuid(NamedTuple):
    """A time-UUID that sorts as Cassandra sorts it.

    `rank` are the last eight bytes as a number that sorts like them: every byte as a signed one.

    >>> TimeUuid.parse("49225740-2019-11ea-a752-ffae2393b6e4").ms
    1576510356148
    """

    tick: int
    rank: int

    @classmethod
    def of(cls, value: uuid.UUID) -> TimeUuid:
        """From a UUID. Only the version's own bits are looked at."""
        number = value.int
        if number >> 76 & 0xF != 1:
            raise InvalidOffset(f"an offset is a time-UUID (version 1), not {value}")
        tick = (number >> 64 & 0xFFF) << 48 | (number >> 80 & 0xFFFF) << 32 | number >> 96
        return cls(tick, ((number & 0xFFFF_FFFF_FFFF_FFFF) ^ _SIGNS) - _HALF)

    @classmethod
    def parse(cls, text: str) -> TimeUuid:
        """From a UUID's text."""
        try:
            value = uuid.UUID(text)
        except (ValueError, AttributeError, TypeError) as error:
            raise InvalidOffset(f"an offset is a time-UUID, not {text!r}") from error
        return cls.of(value)

    @classmethod
    def of_stored(cls, text: str) -> TimeUuid:
        """From the text that a store gives: the same without the checks, for many rows."""
        tick = int(text[15:18] + text[9:13] + text[:8], 16)
        return cls(tick, (int(text[19:23] + text[24:], 16) ^ _SIGNS) - _HALF)

    @property
    def ms(self) -> int:
        """Unix milliseconds."""
        return self.tick // TICKS_PER_MS - _EPOCH_MS

    @property
    def uuid(self) -> uuid.UUID:
        return uuid.UUID(str(self))

    def __str__(self) -> str:
        return text_of(self.tick) + text_of_rank(self.rank)


def tick_of(ms: int) -> int:
    """The first tick of a millisecond."""
    return (ms + _EPOCH_MS) * TICKS_PER_MS


def start_of(ms: int) -> TimeUuid:
    """Sorts below everything of this millisecond; no event has it."""
    return TimeUuid(tick_of(ms), MIN_RANK)


def end_of(ms: int) -> TimeUuid:
    """Sorts above everything of this millisecond; no event has it."""
    return TimeUuid(tick_of(ms + 1) - 1, MAX_RANK)


def before_time(moment: datetime) -> TimeUuid:
    """What to read after in order to get everything from this moment on."""
    if moment.tzinfo is None:
        raise InvalidOffset(f"a time needs its zone: {moment!r} has none, add tzinfo=UTC")
    ms = round(moment.timestamp() * 1000)
    if not 0 <= tick_of(ms) <= MAX_TICK:
        raise InvalidOffset(f"{moment} is outside of what a time-UUID can say")
    return start_of(ms)


def event_rank(topic: int, partition: int, index: int) -> int:
    """The rank of an event: its topic's number, its partition, and its index in the log record.

    In groups of seven bits, every byte below 0x80: so the signed order of the bytes is the order of the numbers.
    """
    assert 0 <= topic < MAX_TOPICS, topic
    assert 0 <= partition < MAX_PARTITIONS, partition
    low = spread(topic) << 48 | spread(partition) << 32 | spread(index)
    return (low ^ _SIGNS) - _HALF


def spread(number: int) -> int:
    """A number in bytes of seven bits each. As none of them has its highest bit set, ranks are sums of such parts."""
    if number <= _GROUP:
        return number
    assert number < MAX_INDEX, number
    return (number >> 21 & _GROUP) << 24 | (number >> 14 & _GROUP) << 16 | (number >> 7 & _GROUP) << 8 | number & _GROUP


def text_of(tick: int) -> str:
    """The first half of a time-UUID's text: what its tick says."""
    return f"{tick & 0xFFFF_FFFF:08x}-{tick >> 32 & 0xFFFF:04x}-1{tick >> 48:03x}-"


def text_of_rank(rank: int) -> str:
    """The second half."""
    low = (rank + _HALF) ^ _SIGNS
    return f"{low >> 48:04x}-{low & 0xFFFF_FFFF_FFFF:012x}"
