"""One record of the log, and how a row of a table holds it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

Headers = tuple[tuple[str, bytes], ...]


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record as the log holds it. `action` is the header `journal.action`, `headers` are the others."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    action: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into the log."""

    partition: int
    timestamp: int
    key: bytes | None
    action: bytes | None
    value: bytes | None
    headers: Headers = ()


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[tuple[str, bytes], ...]).decode


def pack_headers(headers: Headers) -> bytes | None:
    """Headers as one value of a row; None if there are none."""
    return _pack(headers) if headers else None


def unpack_headers(packed: bytes | None) -> Headers:
    """What `pack_headers` packed."""
    return _unpack(packed) if packed else ()


def digest(record: Record) -> str:
    """Names a record by what it says, so that it has the same name at another place of another log."""
    said = (record.timestamp, record.key, record.action, record.value, record.headers)
    return hashlib.blake2b(_pack(said), digest_size=16).hexdigest()


def record_from(row: tuple[Any, ...]) -> Record:
    """A record from partition, offset, timestamp, key, action, value, packed headers."""
    partition, offset, timestamp, key, action, value, headers = row[:7]
    return Record(partition, offset, timestamp, key, action, value, unpack_headers(headers))
