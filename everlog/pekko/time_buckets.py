"""Time-UUIDs, their place in Cassandra's order, and the buckets of time that views are kept in.

A *place* is a number: the UUID's 60-bit time in ticks of 100 ns since 1582, then its last eight bytes. Cassandra
compares those bytes as signed ones, so each has its sign bit flipped here. Places therefore compare as the server
compares UUIDs (the order of `uuid.UUID` is another one), and a place and its UUID are two forms of one thing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from everlog.core.buckets import SIZES, bucket_of
from everlog.core.timeuuid import FUTURE_MS, TICKS_PER_MS, tick_of
from everlog.errors import InvalidConfig, InvalidOffset

UNIX_START = tick_of(0)
_SIGNS = 0x8080808080808080
_LOW = 0xFFFFFFFFFFFFFFFF

# Length of `first_time_bucket` → the pattern, and the only size that this short form is for.
_FORMATS = {14: ("%Y%m%dT%H:%M", None), 8: ("%Y%m%d", "day"), 11: ("%Y%m%dT%H", "hour")}


def place_of(offset: UUID) -> int:
    """The place of a time-UUID.

    >>> place_of(UUID("a4698000-8f19-11e5-8080-808080808080")) == first_place(1447977600000)
    True
    """
    return offset.time << 64 | (offset.int & _LOW) ^ _SIGNS


def offset_of(place: int) -> UUID:
    """The time-UUID at a place.

    >>> offset_of(last_place(1447977600000))
    UUID('a469a70f-8f19-11e5-7f7f-7f7f7f7f7f7f')
    """
    ticks = place >> 64
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 0x1000 | ticks >> 48 & 0x0FFF
    return UUID(int=high << 64 | (place & _LOW) ^ _SIGNS)


def unix_ms(place: int) -> int:
    """Milliseconds since 1970 inside the UUID.

    >>> unix_ms(place_of(UUID("49225740-2019-11ea-a752-ffae2393b6e4")))
    1576510356148
    """
    return ((place >> 64) - UNIX_START) // TICKS_PER_MS


def first_place(ms: int) -> int:
    """Below every UUID of this millisecond, or equal to the lowest; a bound, no event has it."""
    return tick_of(ms) << 64


def last_place(ms: int) -> int:
    """Above every UUID of this millisecond, or equal to the highest; a bound, no event has it."""
    return first_place(ms + 1) - 1


def check_offset(value: object, now_ms: int) -> int:
    """The place of an offset that a caller passes."""
    # Not `UUID.version`: that is None where the variant bits differ, and ordering UUIDs may well have such.
    if not isinstance(value, UUID) or value.int >> 76 & 0xF != 1:
        raise InvalidOffset(f"{value!r} is not an offset: pass the time-UUID (version 1) of an event, or nothing")
    place = place_of(value)
    if unix_ms(place) > now_ms + FUTURE_MS:
        raise InvalidOffset(f"the offset {value} lies more than an hour in the future: pass that of an event")
    return place


class Buckets(NamedTuple):
    """A size of buckets; a bucket is named by its first millisecond.

    >>> Buckets.of("Hour").at(1409545135047)
    1409544000000
    """

    name: str
    size: int

    @classmethod
    def of(cls, name: str) -> Buckets:
        size = SIZES.get(name.lower())
        if size is None:
            raise InvalidConfig(f"[pekko] bucket_size is {name!r}: it must be Day, Hour or Minute")
        return cls(name.lower(), size)

    def at(self, ms: int) -> int:
        """The bucket that a time is in."""
        return bucket_of(ms, self.size)

    def of_place(self, place: int) -> int:
        return self.at(unix_ms(place))

    def parse(self, text: str) -> int:
        """The bucket of a `first_time_bucket` in UTC, rounded down.

        >>> Buckets.of("Day").parse("20151120T12:20")
        1447977600000
        """
        pattern, only = _FORMATS.get(len(text), ("", ""))
        try:
            if only not in (None, self.name):
                raise ValueError(text)
            found = datetime.strptime(text, pattern).replace(tzinfo=UTC)
        except ValueError:
            raise InvalidConfig(
                f"[pekko] first_time_bucket is {text!r}: it must look like yyyyMMddTHH:mm, or yyyyMMdd with "
                "buckets of a day, or yyyyMMddTHH with buckets of an hour"
            ) from None
        return self.at(int(found.timestamp()) * 1000)
