"""What a filter says about an element. A compiled filter is a chain of closures, made once per filter."""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from everlog.documents.bodies import same
from everlog.documents.filters.functions import FUNCTIONS, search
from everlog.documents.filters.parser import children
from everlog.documents.filters.tree import (
    Binary,
    Field,
    FilterNode,
    FunctionCall,
    ListOf,
    Literal,
    ObjectOf,
    Template,
    Unary,
)
from everlog.documents.filters.values import (
    ARITHMETIC,
    MAX_TEXT,
    FilterFailure,
    compare,
    contains,
    is_number,
    number_of,
    text_form,
    truth,
    whole_of,
)

Value = Callable[[Any, int], Any]
"""The value of an expression for an element, at a time."""


def make_matcher(node: FilterNode | None) -> Callable[[Any, int], bool]:
    """Whether an element matches; an expression without a value does not."""
    if node is None:
        return lambda element, now_ms: True
    evaluate = _compile(node)

    def matches(element: Any, now_ms: int) -> bool:
        try:
            return truth(evaluate(element, now_ms))
        except (FilterFailure, decimal.DecimalException, RecursionError):
            return False

    return matches


def uses_time(node: FilterNode | None) -> bool:
    """Whether the answer depends on when it is asked: not for an index."""
    if node is None:
        return False
    if isinstance(node, FunctionCall) and FUNCTIONS[node.name].needs_time:
        return True
    return any(uses_time(child) for child in children(node))


def field_value(element: Any, names: tuple[str, ...]) -> Any:
    """A field, or None if there is none."""
    for name in names:
        if not isinstance(element, dict):
            return None
        element = element.get(name)
    return element


def _compile(node: FilterNode) -> Value:
    match node:
        case Literal(value):
            return lambda element, now_ms: value
        case Field((name,)):
            return lambda element, now_ms: element.get(name) if isinstance(element, dict) else None
        case Field(names):
            return lambda element, now_ms: field_value(element, names)
        case Unary(operator, operand):
            return _unary(operator, _compile(operand))
        case Binary(operator, left, right):
            return _binary(operator, _compile(left), _compile(right))
        case FunctionCall(name, arguments):
            return _call(name, [_compile(one) for one in arguments])
        case ListOf(items):
            makers = [_compile(item) for item in items]
            return lambda element, now_ms: [make(element, now_ms) for make in makers]
        case ObjectOf(pairs):
            named = [(name, _compile(value)) for name, value in pairs]
            return lambda element, now_ms: {name: make(element, now_ms) for name, make in named}
        case Template(parts):
            texts = [_compile(part) for part in parts]
            return lambda element, now_ms: _joined([text_form(make(element, now_ms)) for make in texts])


def _joined(texts: list[str]) -> str:
    if sum(map(len, texts)) > MAX_TEXT:
        raise FilterFailure
    return "".join(texts)


def _call(name: str, arguments: list[Value]) -> Value:
    function = FUNCTIONS[name]
    if function.needs_time:
        return lambda element, now_ms: function.call(now_ms)
    return lambda element, now_ms: function.call(*[make(element, now_ms) for make in arguments])


def _unary(operator: str, operand: Value) -> Value:
    if operator == "!":
        return lambda element, now_ms: not truth(operand(element, now_ms))

    def negative(element: Any, now_ms: int) -> Any:
        return ARITHMETIC.minus(Decimal(number_of(operand(element, now_ms))))

    return negative


def _binary(operator: str, left: Value, right: Value) -> Value:
    if operator in ("and", "or"):
        return functools.partial(_short_circuit, operator == "or", left, right)
    plain = _OPERATORS[operator]
    return lambda element, now_ms: plain(left(element, now_ms), right(element, now_ms))


def _short_circuit(is_or: bool, left: Value, right: Value, element: Any, now_ms: int) -> Any:
    """Two numbers are combined bit by bit; otherwise the right side is looked at only if it matters."""
    first = left(element, now_ms)
    if first is None:
        raise FilterFailure
    if is_number(first):
        one, other = whole_of(first), whole_of(right(element, now_ms))
        return one | other if is_or else one & other
    if truth(first) is is_or:
        return is_or
    return truth(right(element, now_ms))


def _xor(left: Any, right: Any) -> Any:
    if left is None:
        raise FilterFailure
    if is_number(left):
        return whole_of(left) ^ whole_of(right)
    return truth(left) is not truth(right)


def _ordered(accepts: Callable[[int], bool], *, equal: bool) -> Callable[[Any, Any], bool]:
    def ordered(left: Any, right: Any) -> bool:
        if left is None or right is None:
            return equal and left is right
        return accepts(compare(left, right))

    return ordered


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        return _joined([left, text_form(right)])
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    return _calculate(ARITHMETIC.add, left, right)


def _calculate(operation: Callable[[Decimal, Decimal], Decimal], left: Any, right: Any) -> Decimal:
    if not is_number(left):
        raise FilterFailure
    return operation(Decimal(left), Decimal(number_of(right)))


def _like(left: Any, right: Any) -> bool:
    if not isinstance(right, str):
        raise FilterFailure
    return left is not None and search(text_form(left), right)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "xor": _xor,
    "=": same,
    "!=": lambda left, right: not same(left, right),
    "<": _ordered(lambda order: order < 0, equal=False),
    "<=": _ordered(lambda order: order <= 0, equal=True),
    ">": _ordered(lambda order: order > 0, equal=False),
    ">=": _ordered(lambda order: order >= 0, equal=True),
    "has": contains,
    "has not": lambda left, right: not contains(left, right),
    "like": _like,
    "not like": lambda left, right: not _like(left, right),
    "+": _plus,
    "-": functools.partial(_calculate, ARITHMETIC.subtract),
    "*": functools.partial(_calculate, ARITHMETIC.multiply),
    "/": functools.partial(_calculate, ARITHMETIC.divide),
    "%": functools.partial(_calculate, ARITHMETIC.remainder),
}
