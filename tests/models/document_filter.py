"""A second, slow reading of what filters mean: one function per rule, straight from the definition."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import cmp_to_key
from typing import Any

from everlog.documents.filters.tree import Binary, Field, FilterNode, FunctionCall, Literal, Unary


class NoValueError(Exception):
    """There is no value; the element does not match."""


RANKS = {type(None): 0, bool: 1, int: 2, Decimal: 2, str: 3, list: 4, dict: 4}


def naive_match(node: FilterNode | None, element: Any) -> bool:
    if node is None:
        return True
    try:
        return truth(value_of(node, element))
    except NoValueError:
        return False


def truth(value: Any) -> bool:
    if value is None:
        return False
    if type(value) is bool:
        return value
    if type(value) in (int, Decimal):
        return value != 0
    if type(value) is str and value.lower() in ("true", "y", "yes", "on", "1"):
        return True
    if type(value) is str and value.lower() in ("false", "n", "no", "off", "0"):
        return False
    raise NoValueError


def value_of(node: FilterNode, element: Any) -> Any:  # noqa: PLR0912
    match node:
        case Literal(value):
            return value
        case Field(names):
            for name in names:
                element = element.get(name) if isinstance(element, dict) else None
            return element
        case Unary("!", operand):
            return not truth(value_of(operand, element))
        case Unary(_, operand):
            return -number(value_of(operand, element))
        case FunctionCall("exists", (argument,)):
            return value_of(argument, element) is not None
        case FunctionCall("empty", (argument,)):
            return value_of(argument, element) in (None, "", [], {})
        case FunctionCall("length", (argument,)):
            found = value_of(argument, element)
            if type(found) not in (str, list, dict):
                raise NoValueError
            return len(found)
        case Binary("and" | "or" as operator, left, right):
            first = value_of(left, element)
            if first is None:
                raise NoValueError
            if type(first) in (int, Decimal):
                second = value_of(right, element)
                return bits(first) & bits(second) if operator == "and" else bits(first) | bits(second)
            if truth(first) == (operator == "or"):
                return operator == "or"
            return truth(value_of(right, element))
        case Binary(operator, left, right):
            return combine(operator, value_of(left, element), value_of(right, element))
    raise AssertionError(node)


def bits(value: Any) -> int:
    found = number(value)
    if abs(found) >= 2**63:
        raise NoValueError
    return int(found)


def number(value: Any) -> Decimal:
    if type(value) in (int, Decimal):
        return Decimal(value)
    if type(value) is str:
        try:
            found = Decimal(value)
        except ArithmeticError:
            raise NoValueError from None
        if found.is_finite() and "_" not in value:
            return found
    raise NoValueError


def text(value: Any) -> str:
    return value if type(value) is str else json_text(value)


def json_text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(name)}:{json_text(inner)}" for name, inner in value.items()) + "}"
    return str(value) if type(value) is Decimal else json.dumps(value, ensure_ascii=False)


def equal(left: Any, right: Any) -> bool:
    return canonical(left) == canonical(right)


def canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return ("object", sorted((name, canonical(inner)) for name, inner in value.items()))
    if isinstance(value, list):
        return ("list", [canonical(inner) for inner in value])
    if type(value) is int or type(value) is Decimal:
        return ("number", Decimal(value))
    return (type(value).__name__, value)


def combine(operator: str, left: Any, right: Any) -> Any:
    if operator in ("=", "!="):
        return equal(left, right) == (operator == "=")
    if operator in ("<", "<=", ">", ">="):
        if left is None or right is None:
            return operator in ("<=", ">=") and left is None and right is None
        low, high = pair(left, right)
        return {"<": low < high, "<=": low <= high, ">": low > high, ">=": low >= high}[operator]
    if operator in ("has", "has not"):
        return has(left, right) == (operator == "has")
    if operator in ("like", "not like"):
        found = left is not None and re.search(right, text(left)) is not None
        return found == (operator == "like")
    if operator == "xor":
        if left is None:
            raise NoValueError
        if type(left) in (int, Decimal):
            return bits(left) ^ bits(right)
        return truth(left) != truth(right)
    if type(left) not in (int, Decimal):
        raise NoValueError
    one, other = number(left), number(right)
    return {"+": one + other, "-": one - other, "*": one * other}[operator]


def pair(left: Any, right: Any) -> tuple[Any, Any]:
    if type(left) is bool:
        if type(right) is not bool:
            raise NoValueError
        return left, right
    if type(left) in (int, Decimal):
        return Decimal(left), number(right)
    if type(left) is str:
        return left, text(right)
    raise NoValueError


def has(whole: Any, part: Any) -> bool:
    if whole is None:
        return False
    if isinstance(part, list):
        return all(has(whole, one) for one in part)
    if type(whole) is str:
        return text(part) in whole
    if isinstance(whole, list):
        return any(equal(one, part) for one in whole)
    if isinstance(whole, dict):
        return any(equal(one, part) for one in whole.values())
    raise NoValueError


def naive_sorted(elements: list[Any], sort: list[tuple[str, bool]]) -> list[Any]:
    """By (field, descending); missing first, then booleans, numbers, texts; ties by id as the last field goes."""
    fields = [*sort, ("id", sort[-1][1] if sort else False)]

    def order(one: Any, other: Any) -> int:
        for name, descending in fields:
            left, right = place(one.get(name)), place(other.get(name))
            if left != right:
                return 1 if (left > right) != descending else -1
        return 0

    return sorted(elements, key=cmp_to_key(order))


def place(value: Any) -> Any:
    rank = RANKS[type(value)]
    assert rank < 4, "lists and objects have an order, but no simple one"
    return (rank, 0 if value is None else value)
