"""Values inside filters: conversions, truth and order. A conversion that fails is a `FilterFailure`: no match."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

from everlog.documents.bodies import encode_body, same

# Enough for every number that a body may hold in practice; traps turn nonsense into failures.
ARITHMETIC = decimal.Context(
    prec=50, Emax=20_000, Emin=-20_000, traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
)
MAX_WHOLE = 2**63 - 1
MAX_TEXT = 1_000_000

_TRUE = frozenset(("true", "y", "yes", "on", "1"))
_FALSE = frozenset(("false", "n", "no", "off", "0"))


class FilterFailure(Exception):
    """An expression that has no value for this element."""


def is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def number_of(value: Any) -> int | Decimal:
    """A number, or text that reads as one."""
    if isinstance(value, str):
        parsed = parse_number(value)
        if parsed is None:
            raise FilterFailure
        return parsed
    if not is_number(value):
        raise FilterFailure
    number: int | Decimal = value
    return number


def parse_number(text: str) -> Decimal | None:
    """The number that a text stands for."""
    if len(text) > 400 or "_" in text:
        return None
    try:
        number = Decimal(text)
    except decimal.InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) <= 20_000 else None


def whole_of(value: Any) -> int:
    """A number as an int of 64 bits; others would be too much work."""
    number = number_of(value)
    if not -MAX_WHOLE <= number <= MAX_WHOLE:
        raise FilterFailure
    return int(number)


def text_form(value: Any) -> str:
    """A value as text, for comparisons with text and for concatenation."""
    if isinstance(value, str):
        return value
    return encode_body(value)


def truth(value: Any) -> bool:
    """Whether a value counts as true."""
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    if is_number(value):
        return bool(value != 0)
    if isinstance(value, str):
        lowered = value.lower()
        if lowered in _TRUE:
            return True
        if lowered in _FALSE:
            return False
    raise FilterFailure


def compare(left: Any, right: Any) -> int:
    """-1, 0 or 1, by the type of the left value; neither is null."""
    if isinstance(left, bool):
        if not isinstance(right, bool):
            raise FilterFailure
        return int(left) - int(right)
    if is_number(left):
        other = number_of(right)
        return int(left > other) - int(left < other)
    if isinstance(left, str):
        text = text_form(right)
        return (left > text) - (left < text)
    raise FilterFailure


def contains(whole: Any, part: Any) -> bool:
    """`has`: with a list on the right, all of its items."""
    if whole is None:
        return False
    if isinstance(part, list):
        return all(contains(whole, one) for one in part)
    if isinstance(whole, str):
        return text_form(part) in whole
    if isinstance(whole, list):
        return any(same(one, part) for one in whole)
    if isinstance(whole, dict):
        return any(same(one, part) for one in whole.values())
    raise FilterFailure
