"""The data of a job as bytes: one letter for its kind, then the value."""

from __future__ import annotations

from typing import Any

import msgspec

from everlog.core.events import Json
from everlog.core.json_text import encode_json
from everlog.errors import InvalidInput, PayloadTooLarge
from everlog.queues.columns import decode_columns, encode_columns
from everlog.queues.declaration import Declaration, find_data

_TEXT, _BYTES, _JSON, _NOTHING, _COLUMNS = b"t", b"b", b"j", b"n", b"c"
_BINARY = (bytes, bytearray, memoryview)


def encode_data(data: Any, declaration: Declaration) -> bytes:
    """Text stays text, bytes stay bytes, None is nothing, all else becomes JSON; declared columns are checked."""
    schema = declaration.schema
    if schema is not None:
        values = data.value if isinstance(data, Json) else {} if data is None else data
        if not isinstance(values, dict):
            raise InvalidInput(f"{declaration.name} has columns: its data are a dictionary, not {data!r}")
        encoded = _COLUMNS + encode_columns(schema.data_columns, values)
    elif data is None:
        encoded = _NOTHING
    elif isinstance(data, str):
        try:
            encoded = _TEXT + data.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"this text cannot be stored: {error.reason}") from error
    elif isinstance(data, _BINARY):
        encoded = _BYTES + bytes(data)
    else:
        encoded = _JSON + encode_json("data", data.value if isinstance(data, Json) else data).encode()
    limit = declaration.options.max_payload_bytes
    if len(encoded) - 1 > limit:
        raise PayloadTooLarge(len(encoded) - 1, limit)
    return encoded


def decode_data(data: bytes, declaration: Declaration, version: int) -> Any:
    """The data as they were given, read with the columns of their own version."""
    kind, value = data[:1], data[1:]
    if kind == _COLUMNS:
        columns = find_data(declaration, version)
        assert columns is not None, f"{declaration.name} has lost version {version} of its columns"
        return decode_columns(columns, value)
    if kind == _JSON:
        return msgspec.json.decode(value)
    if kind == _TEXT:
        return value.decode()
    return value if kind == _BYTES else None
