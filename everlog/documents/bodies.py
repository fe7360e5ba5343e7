"""JSON bodies: exact numbers, no nulls, merge patches (RFC 7396) and the patch between two bodies.

Inside, a number is an int or a Decimal, which hold every number that is accepted, digit by digit. Python users get a
float where its repr reads as the same number, and the Decimal where it does not.
"""

from __future__ import annotations

import decimal
import gc
import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import msgspec

from everlog.documents.sliced_json import SLICE_BYTES, decode_sliced
from everlog.errors import InvalidDocument

MAX_DEPTH = 100
MAX_DIGITS = 400
MAX_PARTS_ON_LOOP = 4000
_MAX_BITS = 1330  # 10^400
_MAX_EXPONENT = 10_000


def _number(text: str) -> Decimal:
    if len(text) > 2 * MAX_DIGITS:
        raise ValueError(f"a number has at most {MAX_DIGITS} digits")
    number = Decimal(text)
    # Not the characters: a number may be stored in more of them than it came in.
    if len(text) > MAX_DIGITS and len(number.as_tuple().digits) > MAX_DIGITS:
        raise ValueError(f"a number has at most {MAX_DIGITS} digits")
    if number and abs(number.adjusted()) > _MAX_EXPONENT:
        raise ValueError(f"a number's exponent is at most {_MAX_EXPONENT:,}")
    return number


def _plain_number(text: str) -> float | Decimal:
    number = float(text)
    found = repr(number)
    return number if found == text or Decimal(found) == Decimal(text) else Decimal(text)


_decoder = msgspec.json.Decoder(float_hook=_number)
_plain_decoder = msgspec.json.Decoder(float_hook=_plain_number)
_encode = msgspec.json.Encoder(decimal_format="number").encode
_canonical = msgspec.json.Encoder(decimal_format="number", order="deterministic").encode


def decode_body(data: bytes | str) -> Any:
    """JSON with exact numbers: whole ones as int, others as Decimal."""
    try:
        found = data.encode() if isinstance(data, str) else data
        with _without_collections(len(found)):
            return decode_sliced(found, _checked, max_depth=MAX_DEPTH)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, decimal.DecimalException, ValueError) as error:
        if isinstance(error, InvalidDocument):
            raise
        raise InvalidDocument("invalid-json", f"this body is not JSON that can be stored: {error}") from error


def _checked(data: bytes, levels: int) -> Any:
    """A piece of a body that stands below so many levels."""
    value = _decoder.decode(data)
    _check(value, max(0, levels))
    return value


@contextmanager
def _without_collections(size: int) -> Iterator[None]:
    """A large body is many objects, none of them garbage: collections would look through all of them several times."""
    enabled = size > SLICE_BYTES and gc.isenabled()
    if enabled:
        gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _check(value: Any, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidDocument("invalid-json", f"a body has at most {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for inner in value.values():
            _check(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth + 1)
    elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise InvalidDocument("invalid-json", f"a number has at most {MAX_DIGITS} digits")


def stored_body(text: str) -> Any:
    """The same for what was checked before it was stored."""
    return _decoder.decode(text)


def encode_body(value: Any) -> str:
    """A body as it is stored."""
    return _encode(value).decode()


def body_of(value: Any) -> Any:
    """A Python value as a body: what comes back when it went through JSON."""
    return measured_body(value)[0]


def measured_body(value: Any) -> tuple[Any, int]:
    """The same, and how many bytes its JSON has."""
    try:
        data = _encode(value)
        if b"null" in data:
            _check_finite(value)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidDocument):
            raise
        raise InvalidDocument("invalid-json", f"this body cannot be written as JSON: {error}") from error
    return decode_body(data), len(data)


def _check_finite(value: Any) -> None:
    """JSON has no other numbers, and the encoder writes null for them."""
    if isinstance(value, float):
        if not math.isfinite(value):
            message = f"a body has the number {value}: JSON has finite ones only, send text or leave it out"
            raise InvalidDocument("invalid-json", message)
    elif isinstance(value, dict):
        for inner in value.values():
            _check_finite(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _check_finite(inner)
    elif not isinstance(value, str | bytes | int | Decimal | None | msgspec.Raw):
        _check_finite(msgspec.to_builtins(value))


def plain_body(text: str) -> Any:
    """A stored body for Python users.

    >>> plain_body("[1.50, 1e400, 0.1000000000000000000001]")
    [1.5, Decimal('1E+400'), Decimal('0.1000000000000000000001')]
    """
    return _plain_decoder.decode(text)


def plain_of(value: Any) -> Any:
    """An exact body for Python users."""
    return plain_body(encode_body(value))


def is_large(*values: Any) -> bool:
    """Whether JSON values have so many parts that work on them belongs into a thread.

    >>> is_large({"a": [1, 2]}), is_large([0] * 5000)
    (False, True)
    """
    left, waiting = MAX_PARTS_ON_LOOP, list(values)
    while waiting and left >= 0:
        value = waiting.pop()
        if isinstance(value, dict | list):
            left -= len(value)
            if left >= 0:
                waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, str):
            left -= len(value) >> 6
    return left < 0


def digest(*parts: Any) -> str:
    """A short fingerprint of a request, equal for equal JSON."""
    return hashlib.blake2b(_canonical(parts), digest_size=16).hexdigest()


def without_nulls(value: Any) -> Any:
    """The value without object fields that are null, at any depth; arrays are not entered."""
    if not isinstance(value, dict):
        return value
    return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396: objects merge, null removes, all else replaces.

    >>> merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": None, "z": 3}})
    {'a': {'x': 1, 'z': 3}, 'b': 1}
    """
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def patch_between(old: Any, new: Any) -> Any:
    """The merge patch that leads from one body to the other; {} if they are equal."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            patch[name] = value
        elif not same(old[name], value):
            patch[name] = patch_between(old[name], value)
    return patch


def same(left: Any, right: Any) -> bool:
    """Structural and strict equality: true is not 1, 1 is 1.0."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(value, right[name]) for name, value in left.items())
        )
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(same(one, other) for one, other in zip(left, right, strict=True))
        )
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
