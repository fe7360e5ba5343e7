"""Keys: what makes two jobs the same. Values become canonical bytes, and the bytes are hashed.

Each value is a type tag and then a fixed width, big-endian, or a length and the bytes: no two keys have the same
bytes, and the bytes give the key back.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from mmh3 import mmh3_x64_128_digest

from everlog.errors import InvalidKey

MAX_KEY_BYTES = 4096
SEED = 0x6BC4A931
KeyValue = str | bytes | int
JobKey = KeyValue | tuple[KeyValue, ...]

_TEXT, _BYTES = 1, 2
# A number's width in bytes is part of its tag: 0x10 to 0x16 for 8 to 512 bits with a sign, 0x20 to 0x26 without.
_SIGNED, _UNSIGNED = 0x10, 0x20
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class KindKey:
    """The key of a job of a kind: jobs of another kind never have it, and so never merge with this one.

    >>> KindKey("welcome", "eve").plain, KindKey("welcome", ("eve", 7)).plain
    ('welcome:eve', ('welcome', 'eve', 7))
    """

    kind: str
    key: Any

    @property
    def plain(self) -> JobKey:
        """What the queue has: no kind has a colon."""
        encode_key(self.key)  # what is no key is no part of one
        if isinstance(self.key, tuple | bytes):
            return (self.kind, *(self.key if isinstance(self.key, tuple) else (self.key,)))
        return f"{self.kind}:{self.key}"


def encode_key(key: object) -> bytes:
    """The canonical bytes of a key: text, bytes, a 64-bit number, or a tuple of them.

    >>> decode_key(encode_key(("page", 7)))
    ('page', 7)
    """
    if not isinstance(key, tuple):
        encoded = encode_value(key)
    elif key:
        encoded = b"".join(map(encode_value, key))
    else:
        raise InvalidKey("a key has at least one value")
    if len(encoded) > MAX_KEY_BYTES:
        raise InvalidKey(f"this key is {len(encoded):,} bytes, the limit is {MAX_KEY_BYTES:,}: use a shorter one")
    return encoded


def encode_value(value: object, bits: int = 64, *, signed: bool = True) -> bytes:
    """One value of a key, with its tag."""
    if isinstance(value, str):
        try:
            text = value.encode()
        except UnicodeEncodeError as error:
            raise InvalidKey(f"the key {value!r} is not valid text: {error.reason}") from error
        return b"%c%s%s" % (_TEXT, _LENGTH.pack(len(text)), text)
    if isinstance(value, bytes):
        return b"%c%s%s" % (_BYTES, _LENGTH.pack(len(value)), value)
    if isinstance(value, int) and not isinstance(value, bool):
        width = bits // 8
        tag = (_SIGNED if signed else _UNSIGNED) + width.bit_length() - 1
        shifted = value + (1 << bits - 1) if signed else value  # the sign bit flipped: bytes sort as numbers do
        if not 0 <= shifted < 1 << bits:
            raise InvalidKey(f"the key {value} does not fit into {bits} bits: use text instead")
        return b"%c%s" % (tag, shifted.to_bytes(width, "big"))
    raise InvalidKey(f"a key is text, bytes or a whole number, or a tuple of these, not {value!r}")


def decode_values(encoded: bytes) -> tuple[KeyValue, ...]:
    """The values that canonical bytes stand for."""
    values: list[KeyValue] = []
    at = 0
    while at < len(encoded):
        tag = encoded[at]
        at += 1
        if tag in (_TEXT, _BYTES):
            (size,) = _LENGTH.unpack_from(encoded, at)
            part = encoded[at + 4 : at + 4 + size]
            values.append(part.decode() if tag == _TEXT else part)
            at += 4 + size
        else:
            width = 1 << (tag & 0x0F)
            number = int.from_bytes(encoded[at : at + width], "big")
            values.append(number - (1 << width * 8 - 1) if tag < _UNSIGNED else number)
            at += width
    return tuple(values)


def decode_key(encoded: bytes) -> JobKey:
    """The key as it was given: a tuple only if it has several values."""
    values = decode_values(encoded)
    return values[0] if len(values) == 1 else values


def hash_key(encoded: bytes, seed: int = SEED) -> bytes:
    """The sixteen bytes by which a key is found, and which decide among equals: MurmurHash3, x64, 128 bits.

    >>> hash_key(b"hello", 0).hex()
    '029bbd41b3a7d8cb191dae486a901e5b'
    """
    return mmh3_x64_128_digest(encoded, seed)
