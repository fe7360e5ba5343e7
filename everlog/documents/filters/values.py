"""Values inside filters: conversions, truth, order, equality. A conversion that fails is a `FilterFailure`: no match.

What grows with the values is charged to a budget before it is done. Texts of less than `LONG` characters are not.
"""

from __future__ import annotations

import decimal
from collections.abc import Collection, Hashable, Iterator
from decimal import Decimal
from typing import Any

from everlog.documents.bodies import encode_body
from everlog.documents.filters.budget import LONG, Budget

# Enough for every number that a body may hold in practice; traps turn nonsense into failures.
ARITHMETIC = decimal.Context(
    prec=50, Emax=20_000, Emin=-20_000, traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow]
)
MAX_WHOLE = 2**63 - 1
MAX_SCANS = 4  # as often a list is looked through; for more items its values are put into a set first
_EXACT = decimal.Context(prec=1000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
_TRUE = frozenset(("true", "y", "yes", "on", "1"))
_FALSE = frozenset(("false", "n", "no", "off", "0"))
_LONGEST_TRUTH = 5


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


def text_form(value: Any, budget: Budget | None = None) -> str:
    """A value as text, for comparisons with text and for concatenation."""
    if isinstance(value, str):
        return value
    if budget is not None and isinstance(value, list | dict):
        budget.build(weigh(value, budget))
    return encode_body(value)


def weigh(value: Any, budget: Budget) -> int:
    """About as many characters as the value has in JSON; a step for each part of it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        budget.take(2 + 2 * len(value))
        return len(value) + sum(weigh(one, budget) for one in value)
    if isinstance(value, dict):
        budget.take(2 + 4 * len(value))
        return sum(len(name) + weigh(one, budget) for name, one in value.items())
    return 8


def truth(value: Any) -> bool:
    """Whether a value counts as true."""
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    if is_number(value):
        return bool(value != 0)
    if isinstance(value, str) and len(value) <= _LONGEST_TRUTH:
        lowered = value.lower()
        if lowered in _TRUE:
            return True
        if lowered in _FALSE:
            return False
    raise FilterFailure


def compare(left: Any, right: Any, budget: Budget) -> int:
    """-1, 0 or 1, by the type of the left value; neither is null."""
    if isinstance(left, bool):
        if not isinstance(right, bool):
            raise FilterFailure
        return int(left) - int(right)
    if is_number(left):
        other = number_of(right)
        return int(left > other) - int(left < other)
    if isinstance(left, str):
        text = text_form(right, budget)
        if len(text) > LONG and len(left) > LONG:
            budget.take(min(len(left), len(text)) >> 5)
        return (left > text) - (left < text)
    raise FilterFailure


def equal(left: Any, right: Any, budget: Budget) -> bool:
    """The equality of `bodies.same`: structural and strict."""
    kind = type(left)
    if kind is str:
        if type(right) is not str or len(left) != len(right):
            return False
        if len(left) > LONG:
            budget.take(len(left) >> 6)
        return bool(left == right)
    if kind is list:
        if type(right) is not list or len(left) != len(right):
            return False
        budget.take(2 + 2 * len(left))
        return all(equal(one, other, budget) for one, other in zip(left, right, strict=True))
    if kind is dict:
        if type(right) is not dict or len(left) != len(right):
            return False
        budget.take(2 + 3 * len(left))
        return all(name in right and equal(one, right[name], budget) for name, one in left.items())
    return (kind is bool) is (type(right) is bool) and bool(left == right)


def identity(value: Any, budget: Budget) -> Hashable:
    """Something that is equal for equal values and for no others.

    It has no numbers: an attacker may choose many whose hashes collide, and none of texts.
    """
    if isinstance(value, str):
        budget.take(1 + (len(value) >> 4))
        return value
    if value is None or isinstance(value, bool):
        return ("null" if value is None else "true" if value else "false",)
    if isinstance(value, int | Decimal):
        budget.take(5)
        return ("number", _number_text(value))
    budget.take(3 + 3 * len(value))
    if isinstance(value, list):
        return ("list", *[identity(one, budget) for one in value])
    return ("object", frozenset((name, identity(one, budget)) for name, one in value.items()))


def _number_text(number: int | Decimal) -> str:
    """The same text for the same number: 1.0 is 1, and -0 is 0."""
    if isinstance(number, int) and number % 10:
        return str(number)
    return str(_EXACT.normalize(Decimal(number))) if number else "0"


def contains(whole: Any, part: Any, budget: Budget) -> bool:
    """`has`: with a list on the right, all of its items, at any depth.

    Linear in the size of both, whatever they are.
    """
    if whole is None:
        return False
    if isinstance(part, list):
        wanted = list(_items(part, budget))
        if not wanted:
            return True
    else:
        wanted = [part]
    if isinstance(whole, str):
        return all(finds(whole, text_form(one, budget), budget) >= 0 for one in wanted)
    if not isinstance(whole, list | dict):
        raise FilterFailure
    values: Collection[Any] = whole if isinstance(whole, list) else whole.values()
    if len(wanted) <= MAX_SCANS:
        return all(_is_among(one, values, budget) for one in wanted)
    budget.take(3 * len(values))
    known = {identity(one, budget) for one in values}
    return all(identity(one, budget) in known for one in wanted)


def _items(part: list[Any], budget: Budget) -> Iterator[Any]:
    budget.take(1 + len(part))
    for one in part:
        if isinstance(one, list):
            yield from _items(one, budget)
        else:
            yield one


def _is_among(part: Any, values: Collection[Any], budget: Budget) -> bool:
    budget.take(2 * len(values))
    kind = type(part)
    if kind is str and len(part) <= LONG:
        return part in values
    if kind is bool or part is None:
        return any(one is part for one in values)
    return any(equal(one, part, budget) for one in values)


def finds(text: str, part: str, budget: Budget) -> int:
    """Where a text has a part; -1 if nowhere. Python's search is quadratic for short parts."""
    if len(text) > LONG:
        budget.take(len(text) * min(len(part) + 8, 100) >> 6)
    return text.find(part)
