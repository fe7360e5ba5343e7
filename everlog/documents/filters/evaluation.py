"""What a filter says about an element. A compiled filter is a chain of closures, made once per filter.

Each closure runs at most once for an element, so the size of the filter is charged once; what depends on the values,
each operation charges itself. An evaluation that is over its budget raises FilterTooExpensive: it has no answer, and
must not be taken for one that does not match.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Protocol

from everlog.documents.filters.budget import Budget
from everlog.documents.filters.functions import FUNCTIONS, search
from everlog.documents.filters.parser import children, parse_filter
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
    FilterFailure,
    compare,
    contains,
    equal,
    is_number,
    number_of,
    text_form,
    truth,
    whole_of,
)

Value = Callable[[Any, Budget], Any]
"""The value of an expression for an element."""


class Matcher(Protocol):
    """Whether an element matches, at a time; an expression without a value does not."""

    def __call__(self, element: Any, now_ms: int, budget: Budget | None = None) -> bool:
        """Without a budget, it has that of one element of an index. FilterTooExpensive if that does not suffice."""


def make_matcher(node: FilterNode | None) -> Matcher:
    """Compile a filter."""
    if node is None:
        return lambda element, now_ms, budget=None: True
    evaluate, size, timed = _compile(node), size_of(node), uses_time(node)

    def matches(element: Any, now_ms: int, budget: Budget | None = None) -> bool:
        if budget is None:
            budget = Budget()
        if timed:
            budget.now_ms = now_ms
        budget.bytes_left = budget.max_bytes
        budget.left -= size  # as `take`: a call would be noticed here
        if budget.left < budget.floor:
            budget.look()
        try:
            return truth(evaluate(element, budget))
        except (FilterFailure, decimal.DecimalException, RecursionError):
            return False

    return matches


@functools.lru_cache(maxsize=256)
def matcher_of(text: str | None) -> Matcher:
    """The same for a filter as text, of an index or a view."""
    return make_matcher(parse_filter(text or ""))


def size_of(node: FilterNode) -> int:
    """How many parts a filter has."""
    count, waiting = 0, [node]
    while waiting:
        count += 1
        waiting += children(waiting.pop())
    return count


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
            return lambda element, budget: value
        case Field((name,)):
            return lambda element, budget: element.get(name) if isinstance(element, dict) else None
        case Field(names):
            return lambda element, budget: field_value(element, names)
        case Unary(operator, operand):
            return _unary(operator, _compile(operand))
        case Binary(operator, left, right):
            return _binary(operator, _compile(left), _compile(right))
        case FunctionCall(name, arguments):
            return _call(name, [_compile(one) for one in arguments])
        case ListOf(items):
            makers = [_compile(item) for item in items]
            return lambda element, budget: [make(element, budget) for make in makers]
        case ObjectOf(pairs):
            named = [(name, _compile(value)) for name, value in pairs]
            return lambda element, budget: {name: make(element, budget) for name, make in named}
        case Template(parts):
            texts = [_compile(part) for part in parts]
            return lambda element, budget: _joined([text_form(make(element, budget), budget) for make in texts], budget)


def _joined(texts: list[str], budget: Budget) -> str:
    budget.build(sum(map(len, texts)))
    return "".join(texts)


def _call(name: str, arguments: list[Value]) -> Value:
    call = FUNCTIONS[name].call
    if len(arguments) == 1:
        (only,) = arguments
        return lambda element, budget: call(budget, only(element, budget))
    return lambda element, budget: call(budget, *[make(element, budget) for make in arguments])


def _unary(operator: str, operand: Value) -> Value:
    if operator == "!":
        return lambda element, budget: not truth(operand(element, budget))

    def negative(element: Any, budget: Budget) -> Any:
        return ARITHMETIC.minus(Decimal(number_of(operand(element, budget))))

    return negative


def _binary(operator: str, left: Value, right: Value) -> Value:
    if operator in ("and", "or"):
        return functools.partial(_short_circuit, operator == "or", left, right)
    charged = _CHARGED.get(operator)
    if charged is not None:
        return lambda element, budget: charged(left(element, budget), right(element, budget), budget)
    plain = _OPERATORS[operator]
    return lambda element, budget: plain(left(element, budget), right(element, budget))


def _short_circuit(is_or: bool, left: Value, right: Value, element: Any, budget: Budget) -> Any:
    """Two numbers are combined bit by bit; otherwise the right side is looked at only if it matters."""
    first = left(element, budget)
    if first is None:
        raise FilterFailure
    if is_number(first):
        one, other = whole_of(first), whole_of(right(element, budget))
        return one | other if is_or else one & other
    if truth(first) is is_or:
        return is_or
    return truth(right(element, budget))


def _xor(left: Any, right: Any) -> Any:
    if left is None:
        raise FilterFailure
    if is_number(left):
        return whole_of(left) ^ whole_of(right)
    return truth(left) is not truth(right)


def _ordered(accepts: Callable[[int], bool], *, or_equal: bool) -> Callable[[Any, Any, Budget], bool]:
    def ordered(left: Any, right: Any, budget: Budget) -> bool:
        if left is None or right is None:
            return or_equal and left is right
        return accepts(compare(left, right, budget))

    return ordered


def _plus(left: Any, right: Any, budget: Budget) -> Any:
    if isinstance(left, str):
        return _joined([left, text_form(right, budget)], budget)
    if isinstance(left, list) and isinstance(right, list):
        budget.build(8 * (len(left) + len(right)))
        return left + right
    return _calculate(ARITHMETIC.add, left, right)


def _calculate(operation: Callable[[Decimal, Decimal], Decimal], left: Any, right: Any) -> Decimal:
    if not is_number(left):
        raise FilterFailure
    return operation(Decimal(left), Decimal(number_of(right)))


def _like(left: Any, right: Any, budget: Budget) -> bool:
    if not isinstance(right, str):
        raise FilterFailure
    return left is not None and search(text_form(left, budget), right, budget)


_CHARGED: dict[str, Callable[[Any, Any, Budget], Any]] = {
    "=": equal,
    "!=": lambda left, right, budget: not equal(left, right, budget),
    "<": _ordered(lambda order: order < 0, or_equal=False),
    "<=": _ordered(lambda order: order <= 0, or_equal=True),
    ">": _ordered(lambda order: order > 0, or_equal=False),
    ">=": _ordered(lambda order: order >= 0, or_equal=True),
    "has": contains,
    "has not": lambda left, right, budget: not contains(left, right, budget),
    "like": _like,
    "not like": lambda left, right, budget: not _like(left, right, budget),
    "+": _plus,
}
# What costs the same for all values: numbers are calculated with 50 digits, or have at most 400.
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "xor": _xor,
    "-": functools.partial(_calculate, ARITHMETIC.subtract),
    "*": functools.partial(_calculate, ARITHMETIC.multiply),
    "/": functools.partial(_calculate, ARITHMETIC.divide),
    "%": functools.partial(_calculate, ARITHMETIC.remainder),
}
