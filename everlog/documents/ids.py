"""Ids: generated ones that sort by time, time-UUIDs, transaction ids, entity tags.

Nothing here looks at a clock or rolls dice: time and randomness are arguments.
"""

from __future__ import annotations

import binascii
import uuid
from typing import NamedTuple

from everlog.documents.paths import quantum_of
from everlog.errors import InvalidDocument

ALPHABET = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"  # in ASCII order
_STANDARD = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_OURS = bytes.maketrans(_STANDARD.encode(), ALPHABET.encode())
GROUP = 5
LENGTH = 30
SLOT_MS = 10_000
_GROUP_LIMIT = 64**GROUP
_EPOCH_TICKS = 0x01B21DD213814000  # 1582-10-15 to 1970-01-01, in 100 ns


def _encode(number: int, length: int) -> str:
    """As many digits to the base of 64. Base64 makes four of three bytes, so it gets a multiple of four."""
    missing = -length % 4
    data = (number << 6 * missing).to_bytes((length + missing) * 3 // 4, "big")
    return binascii.b2a_base64(data, newline=False).translate(_OURS)[:length].decode()


def _decode(text: str) -> int:
    number = 0
    for character in text:
        number = number * 64 + ALPHABET.index(character)
    return number


def next_id(now_ms: int, entropy: int, last: str | None = None) -> str:
    """A new id of 30 characters, bytewise above `last` whatever the clock says.

    Time in units of 10 s, a counter, and 120 random bits. The time and the counter of `last` are carried on if the
    clock has not moved past them, so ids of one collection grow over restarts, moves and steps of the clock.

    >>> next_id(0, 7) < next_id(0, 3, next_id(0, 7))
    True
    """
    slot, counter = now_ms // SLOT_MS % _GROUP_LIMIT, entropy % 65536
    if last is not None:
        old_slot, old_counter = _decode(last[:GROUP]), _decode(last[GROUP : 2 * GROUP])
        if old_slot >= slot:
            carry, counter = divmod(old_counter + 1, _GROUP_LIMIT)
            slot = old_slot + carry
            if slot >= _GROUP_LIMIT:
                raise InvalidDocument("ids-exhausted", "no id is left after the last one of this collection")
    random = entropy // 65536 % 64 ** (4 * GROUP)
    return _encode(slot, GROUP) + _encode(counter, GROUP) + _encode(random, 4 * GROUP)


def is_generated(text: str) -> bool:
    """Whether an id may be one of ours."""
    return len(text) == LENGTH and all(character in ALPHABET for character in text)


def time_uuid(now_ms: int, entropy: int) -> uuid.UUID:
    """A version 1 UUID of this millisecond; the low digits of its time and its node are random."""
    ticks = _EPOCH_TICKS + now_ms * 10_000 + entropy % 10_000
    low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0x0FFF
    rest = entropy // 10_000
    sequence, node = rest & 0x3FFF, rest >> 14 & 0xFFFFFFFFFFFF | 1 << 40  # the bit says: not a network card's
    return uuid.UUID(fields=(low, middle, high | 0x1000, sequence >> 8 | 0x80, sequence & 0xFF, node))


def time_of(value: uuid.UUID) -> int:
    """The milliseconds of a time-UUID."""
    return (value.time - _EPOCH_TICKS) // 10_000


class TransactionId(NamedTuple):
    """`<document uri>:<time-UUID>:<revision>`: it says in which partition and quantum the transaction lies."""

    uri: str
    uuid: uuid.UUID
    revision: int

    def __str__(self) -> str:
        return f"{self.uri}:{self.uuid}:{self.revision}"

    @property
    def quantum(self) -> int:
        """Of the UUID, never of a second look at the clock, so that the row is found where it was put."""
        return quantum_of(time_of(self.uuid))

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        parts = text.rsplit(":", 2)
        try:
            uri, value, revision = parts
            found = cls(uri, uuid.UUID(value), int(revision))
        except ValueError as error:
            raise InvalidDocument(
                "invalid-transaction-id", f"a transaction id looks like path:uuid:revision, not {text!r}"
            ) from error
        if not uri or found.uuid.version != 1 or found.revision < 1 or str(found) != text:
            raise InvalidDocument("invalid-transaction-id", f"{text!r} is not a transaction id of ours")
        return found


PACKED = "-gzip"
"""At the end of the tag of a packed body: the same revision in another representation."""


def etag_of(revision: int) -> str:
    """The entity tag of a revision: hexadecimal, in quotes."""
    return f'"{revision:x}"'
