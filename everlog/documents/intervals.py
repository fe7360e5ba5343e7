"""Which values of a field a condition leaves: sets of intervals over the order of all values.

They serve two ends: to read only a part of an index, and to show that an index holds all that a query wants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from everlog.documents.filters.nodes import Binary, Field, FilterNode, Literal, text_of
from everlog.documents.filters.values import is_number, parse_number, text_form
from everlog.documents.order import BOOLEAN, END, NULL, TEXT, SortKey, key_of

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


class Interval(NamedTuple):
    """From `low`, included, to `high`, not included."""

    low: SortKey
    high: SortKey


Intervals: TypeAlias = tuple[Interval, ...]
"""In ascending order, without overlaps."""

EVERYTHING: Intervals = (Interval((NULL,), (END,)),)


class Condition(NamedTuple):
    """What a comparison says about a field. `exact`: every value in the intervals makes it true, and no other."""

    names: tuple[str, ...]
    intervals: Intervals
    exact: bool


def condition_of(node: FilterNode) -> Condition | None:
    """A comparison of a field with a constant, either way round; None if it is something else."""
    if not isinstance(node, Binary) or node.operator not in _MIRRORED:
        return None
    left, right = node.left, node.right
    if isinstance(left, Field) and isinstance(right, Literal):
        return Condition(left.names, _values(node.operator, right.value), exact=True)
    if isinstance(left, Literal) and isinstance(right, Field):
        intervals, exact = _mirrored(left.value, _MIRRORED[node.operator])
        return Condition(right.names, intervals, exact)
    return None


def _values(operator: str, constant: object) -> Intervals:
    """The values v with `v operator constant`: the type of v decides how they are compared."""
    if operator == "=":
        return (_range("=", key_of(constant)),)
    if constant is None:
        return (Interval((NULL,), (BOOLEAN,)),) if operator in ("<=", ">=") else ()
    found = []
    if isinstance(constant, bool):
        found.append(_range(operator, key_of(constant)))
    number = parse_number(constant) if isinstance(constant, str) else constant if is_number(constant) else None
    if number is not None:
        found.append(_range(operator, key_of(number)))
    found.append(_range(operator, (TEXT, text_form(constant))))
    return tuple(found)


def _mirrored(constant: object, operator: str) -> tuple[Intervals, bool]:
    """The values v with `constant mirrored-operator v`: the type of the constant decides."""
    if operator == "=":
        return _values("=", constant), True
    if constant is None:
        return _values(operator, None), True
    if isinstance(constant, bool):
        return (_range(operator, key_of(constant)),), True
    if is_number(constant):
        # Texts are read as numbers: those that match are scattered over all texts.
        return (_range(operator, key_of(constant)), Interval((TEXT,), (TEXT + 1,))), False
    if isinstance(constant, str):
        return (Interval((BOOLEAN,), (END,)),), False  # everything is compared as text
    return (), True


def _range(operator: str, key: SortKey) -> Interval:
    rank, behind = key[0], (*key, 0)
    match operator:
        case "=":
            return Interval(key, behind)
        case "<":
            return Interval((rank,), key)
        case "<=":
            return Interval((rank,), behind)
        case ">":
            return Interval(behind, (rank + 1,))
        case _:
            return Interval(key, (rank + 1,))


def intersect(left: Intervals, right: Intervals) -> Intervals:
    """The values in both."""
    found = []
    for one in left:
        for other in right:
            low, high = max(one.low, other.low), min(one.high, other.high)
            if low < high:
                found.append(Interval(low, high))
    return tuple(sorted(found))


def within(inner: Intervals, outer: Intervals) -> bool:
    """Whether every value of one set is in the other."""
    return all(any(wide.low <= one.low and one.high <= wide.high for wide in outer) for one in inner)


def single(intervals: Intervals) -> SortKey | None:
    """The only value that is left, if it is one."""
    if len(intervals) == 1 and len(intervals[0].low) == 2 and intervals[0].high == (*intervals[0].low, 0):
        return intervals[0].low
    return None


def leave(nodes: Iterable[FilterNode]) -> dict[tuple[str, ...], Intervals]:
    """For each field, what all these conditions together leave of it."""
    found: dict[tuple[str, ...], Intervals] = {}
    for node in nodes:
        condition = condition_of(node)
        if condition is not None:
            found[condition.names] = intersect(found.get(condition.names, EVERYTHING), condition.intervals)
    return found


def implied(node: FilterNode, left: dict[tuple[str, ...], Intervals], texts: Collection[str]) -> bool:
    """Whether a condition of an index is true whenever those of a query are; `texts` are the query's conditions."""
    if text_of(node) in texts:
        return True
    condition = condition_of(node)
    return (
        condition is not None
        and condition.exact
        and condition.names in left
        and within(left[condition.names], condition.intervals)
    )
