"""MurmurHash3, x64, 128 bits: the tie-break of the queue's order, and what a key is looked up by.

Every put hashes its key: with mmh3 (the extra `queues`) that costs next to nothing.
"""

from __future__ import annotations

import struct

try:
    from mmh3 import mmh3_x64_128_digest as _quick
except ImportError:
    _quick = None  # type: ignore[assignment]

SEED = 0x6BC4A931
_MASK = 0xFFFFFFFFFFFFFFFF
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")


def plain_murmur128(data: bytes, seed: int = SEED) -> bytes:
    """The hash without help from elsewhere.

    >>> plain_murmur128(b"hello", 0).hex()
    '029bbd41b3a7d8cb191dae486a901e5b'
    """
    h1 = h2 = seed
    size = len(data)
    whole = size & ~15
    for k1, k2 in _BLOCK.iter_unpack(data[:whole]):
        h1 ^= _mix1(k1)
        h1 = _step(h1, 27, h2, 0x52DCE729)
        h2 ^= _mix2(k2)
        h2 = _step(h2, 31, h1, 0x38495AB5)
    rest = data[whole:]
    if len(rest) > 8:
        h2 ^= _mix2(int.from_bytes(rest[8:], "little"))
    if rest:
        h1 ^= _mix1(int.from_bytes(rest[:8], "little"))
    h1 ^= size
    h2 ^= size
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _finish(h1), _finish(h2)
    h1 = h1 + h2 & _MASK
    return _BLOCK.pack(h1, h2 + h1 & _MASK)


def _mix1(k: int) -> int:
    k = k * _C1 & _MASK
    return ((k << 31 | k >> 33) & _MASK) * _C2 & _MASK


def _mix2(k: int) -> int:
    k = k * _C2 & _MASK
    return ((k << 33 | k >> 31) & _MASK) * _C1 & _MASK


def _step(h: int, left: int, other: int, add: int) -> int:
    h = (h << left | h >> 64 - left) & _MASK
    return (h + other) * 5 + add & _MASK


def _finish(k: int) -> int:
    k ^= k >> 33
    k = k * 0xFF51AFD7ED558CCD & _MASK
    k ^= k >> 33
    k = k * 0xC4CEB9FE1A85EC53 & _MASK
    return k ^ k >> 33


def murmur128(data: bytes, seed: int = SEED) -> bytes:
    """The 16 bytes of the hash.

    >>> murmur128(b"hello", 0).hex()
    '029bbd41b3a7d8cb191dae486a901e5b'
    """
    return plain_murmur128(data, seed) if _quick is None else _quick(data, seed)
