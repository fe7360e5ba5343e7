"""Declared columns: their types, and the check of every value before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.errors import InvalidInput, InvalidKey
from everlog.queues.keys import MAX_KEY_BYTES, encode_value

COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
MAX_COLUMNS = 65_536
BITS = (8, 16, 32, 64, 128, 256, 512)
TIMES = ("time_seconds", "time_milliseconds", "time_microseconds")
FLOATS = ("float32", "float64", "float128")
TYPES = frozenset(
    [
        "string",
        "binary",
        "oid",
        *FLOATS,
        *TIMES,
        *(f"{kind}{bits}" for kind in ("bits", "int", "uint") for bits in BITS),
    ]
)
PREDEFINED = frozenset(
    [
        "insertion_date",
        "expiration_date",
        "priority",
        "process_date",
        "status",
        "start_processing_date",
        "timeout_counter",
        "key",
        "user_data",
    ]
)
_WHOLE = re.compile(r"(bits|int|uint)(\d+)")


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of a key or of the data."""

    name: str
    type: str
    required: bool = False
    default: Any = None
    min_value: int | float | None = None
    max_value: int | float | None = None
    min_length: int | None = None
    max_length: int | None = None
    validation: str | None = None
    description: str = ""

    @property
    def width(self) -> tuple[int, bool] | None:
        """Bits and sign of a whole number; None for other types."""
        if self.type in TIMES or self.type == "oid":
            return 64, self.type != "oid"
        match = _WHOLE.fullmatch(self.type)
        return None if match is None else (int(match[2]), match[1] == "int")


def check_value(column: Column, value: Any) -> Any:
    """A value of this column, or an error that says why not."""
    if value is None:
        if column.default is not None:
            return column.default
        if column.required:
            raise InvalidInput(f"the column {column.name} is required")
        return None
    _check_type(column, value)
    size = len(value) if isinstance(value, str | bytes) else None
    if size is not None and not (column.min_length or 0) <= size <= (
        size if column.max_length is None else column.max_length
    ):
        raise InvalidInput(f"the column {column.name}: {size} is not within its lengths")
    if size is None and (
        (column.min_value is not None and value < column.min_value)
        or (column.max_value is not None and value > column.max_value)
    ):
        raise InvalidInput(f"the column {column.name}: {value} is not within its limits")
    if column.validation is not None and isinstance(value, str) and re.fullmatch(column.validation, value) is None:
        raise InvalidInput(f"the column {column.name}: {value!r} does not match {column.validation}")
    return value


def _check_type(column: Column, value: Any) -> None:
    width = column.width
    if width is not None:
        bits, signed = width
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    elif column.type in FLOATS:
        right = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        right = isinstance(value, str if column.type == "string" else bytes)
    if not right:
        raise InvalidInput(f"the column {column.name} is {column.type}: {value!r} is not")


def encode_columns_key(columns: Sequence[Column], values: Mapping[str, Any]) -> bytes:
    """The canonical bytes of a declared key."""
    parts = []
    for column in columns:
        value = check_value(column, values.get(column.name))
        if value is None:
            raise InvalidKey(f"the key column {column.name} is missing")
        if isinstance(value, float):
            raise InvalidKey(f"the key column {column.name} is {column.type}: a key is text, bytes or a whole number")
        bits, signed = column.width or (64, True)
        parts.append(encode_value(value, bits, signed=signed))
    encoded = b"".join(parts)
    if len(encoded) > MAX_KEY_BYTES:
        raise InvalidKey(f"this key is {len(encoded):,} bytes, the limit is {MAX_KEY_BYTES:,}: use a shorter one")
    return encoded


def encode_columns(columns: Sequence[Column], values: Mapping[str, Any]) -> bytes:
    """Declared data: the values in the order of their columns; only that version's columns can read it."""
    unknown = set(values) - {column.name for column in columns}
    if unknown:
        raise InvalidInput(f"there is no column {', '.join(sorted(unknown))}: declare it first")
    found = [check_value(column, values.get(column.name)) for column in columns]
    # MessagePack's numbers end at 64 bits.
    wide = [str(value) if isinstance(value, int) and not -(2**63) <= value < 2**64 else value for value in found]
    return msgspec.msgpack.encode(wide)


def decode_columns(columns: Sequence[Column], data: bytes) -> dict[str, Any]:
    """What `encode_columns` wrote."""
    values = msgspec.msgpack.decode(data)
    assert len(values) == len(columns), "data are read with the columns that they were written with"
    return {
        column.name: int(value) if isinstance(value, str) and column.width is not None else value
        for column, value in zip(columns, values, strict=True)
    }
