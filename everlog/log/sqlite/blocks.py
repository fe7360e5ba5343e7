"""Blocks: many log records as one value, for the way from the source to the tasks that apply them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from everlog.core.record import Record

MAX_RECORDS = 1_000
MAX_BYTES = 4 * 1024 * 1024

# partition, offset, timestamp, key, action, value, packed headers: the columns of the statement `range`.
LogRow = tuple[int, int, int, bytes | None, bytes | None, bytes | None, bytes | None]

_encode = msgspec.msgpack.Encoder().encode
decode_block = msgspec.msgpack.Decoder(list[Record]).decode


def blocks(rows: Iterable[LogRow]) -> Iterator[list[LogRow]]:
    """Cut rows into blocks that are bounded in records and bytes."""
    block: list[LogRow] = []
    size = 0
    for row in rows:
        block.append(row)
        size += len(row[5] or b"")
        if len(block) >= MAX_RECORDS or size >= MAX_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def encode_block(rows: Sequence[LogRow]) -> bytes:
    """The rows as `decode_block` reads them; most have no headers, which are then left out."""
    found: list[Any] = [row[:6] if row[6] is None else (*row[:6], msgspec.Raw(row[6])) for row in rows]
    return _encode(found)
