"""How to answer a query: which index, which part of it, in which direction, and what is left to sort.

An index is usable if every condition of its filter is implied by the query's. Of the usable ones and the collection
itself, the one whose order fits best wins, then the one of which least must be read. The whole filter is evaluated
again on every row, so a plan may read too much, never too little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from everlog.documents.filters.tree import Binary, Field, FilterNode, Literal, conjuncts, is_boolean, text_of
from everlog.documents.filters.values import is_number, parse_number, text_form
from everlog.documents.indexes import Index, IndexStatus
from everlog.documents.order import (
    BOOLEAN,
    BY_ID,
    END,
    ID,
    NULL,
    TEXT,
    Sort,
    SortKey,
    cut,
    encode_directed,
    key_of,
    keys_of,
)

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


class IndexRange(NamedTuple):
    """Keys of a source from `low`, included, to `high`, not included; None: to the end.

    Ids as text for the collection itself, bytes for an index.
    """

    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What to read, and what its order is worth.

    `matched` leading fields of the query's sort come in order; if all of them do, nothing is left to sort.
    """

    index: Index | None
    ranges: tuple[IndexRange, ...]
    reverse: bool
    matched: int
    sort: Sort
    pinned: Mapping[tuple[str, ...], SortKey]
    narrowed: bool

    @property
    def exact(self) -> bool:
        return self.matched == len(self.sort)

    @property
    def source_sort(self) -> Sort:
        return BY_ID if self.index is None else self.index.sort

    @property
    def weight(self) -> tuple[int, ...]:
        """The larger, the better."""
        filtered = self.index is not None and self.index.filter_by is not None
        return (self.exact, self.matched > 0, len(self.pinned), self.narrowed, filtered, self.index is None)


def make_plan(
    condition: FilterNode | None,
    sort: Sort,
    indexes: Iterable[Index],
    after: Sequence[SortKey] | None = None,
    *,
    ordered: bool = True,
) -> QueryPlan:
    """The best plan for a filter and a complete sort; `after`: only what follows an element with these sort values.

    Without `ordered` the order is worth nothing, only how little is read.
    """
    parts = list(conjuncts(condition))
    left = leave(parts)
    texts = frozenset(map(text_of, parts))
    usable = [one for one in indexes if one.status is IndexStatus.READY and _usable(one, left, texts)]
    plans = [_plan(index, sort, left) for index in (None, *usable)]
    # `max` takes the first of equals: indexes come in the order of their ids.
    best = max(plans, key=lambda plan: plan.weight if ordered else plan.weight[2:])
    return best if after is None else _start_after(best, after)


def _usable(index: Index, left: Mapping[tuple[str, ...], Intervals], texts: frozenset[str]) -> bool:
    condition = index.condition
    if condition is None or text_of(condition) in texts:
        return True
    parts = list(conjuncts(condition))
    # Numbers are combined bit by bit: that each part is true does not make the whole true.
    return all(is_boolean(part) and implied(part, dict(left), texts) for part in parts)


def _plan(index: Index | None, sort: Sort, left: Mapping[tuple[str, ...], Intervals]) -> QueryPlan:
    source = BY_ID if index is None else index.sort
    pinned = {names: value for names, intervals in left.items() if (value := single(intervals)) is not None}
    matched, reverse = _match(sort, source, pinned)
    prefix, leading = b"", {}
    ranges: tuple[IndexRange, ...] = ()
    narrowed = False
    for item in source:
        value = pinned.get(item.names)
        intervals = left.get(item.names, EVERYTHING)
        if value is not None and item.names != ID:
            prefix += encode_directed(value, descending=item.descending)
            leading[item.names] = value
            continue
        narrowed = intervals != EVERYTHING
        if index is None:
            ranges = tuple(_id_range(one) for one in intervals if one.high > (TEXT,) and one.low < (TEXT + 1,))
        else:
            ranges = tuple(_byte_range(prefix, one, descending=item.descending) for one in intervals)
        break
    ranges = tuple(sorted(ranges, key=lambda one: one.low, reverse=reverse))
    return QueryPlan(index, ranges, reverse, matched, sort, leading, narrowed)


def _match(sort: Sort, source: Sort, pinned: Mapping[tuple[str, ...], SortKey]) -> tuple[int, bool]:
    """How many leading fields of the sort the source has in order, and whether it must be read backwards.

    A field with only one value left orders nothing: it is passed over on both sides.
    """
    fields = iter([item for item in source if item.names not in pinned or item.names == ID])
    reverse: bool | None = None
    for matched, wanted in enumerate(sort):
        if wanted.names in pinned and wanted.names != ID:
            continue
        found = next(fields, None)
        if found is None or found.names != wanted.names:
            return (matched, bool(reverse))
        opposite = found.descending is not wanted.descending
        if reverse is not None and opposite is not reverse:
            return (matched, reverse)
        reverse = opposite
    return (len(sort), bool(reverse))


def _id_range(interval: Any) -> IndexRange:
    """Part of the collection; ids contain no NUL, so id + NUL comes right behind an id."""

    def bound(key: SortKey) -> str | None:
        if key >= (TEXT + 1,):
            return None
        if key <= (TEXT,):
            return ""
        return str(key[1]) + ("\0" if len(key) == 3 else "")

    return IndexRange(bound(interval.low), bound(interval.high))


def _byte_range(prefix: bytes, interval: Any, *, descending: bool) -> IndexRange:
    low, high = cut(interval.low, descending=descending), cut(interval.high, descending=descending)
    return IndexRange(prefix + high, prefix + low) if descending else IndexRange(prefix + low, prefix + high)


def _start_after(plan: QueryPlan, after: Sequence[SortKey]) -> QueryPlan:
    """Leave out what can no longer follow the element; what is left of it is compared row by row."""
    values = {item.names: key for item, key in zip(plan.sort, after, strict=True)}
    known = {item.names for item in plan.sort[: plan.matched]}
    if plan.index is None:
        if ID not in known:  # fields with one value left may be matched without it
            return plan
        start: Any = str(values[ID][1])
        behind: Any = start + "\0"
    else:
        start, whole = b"", True
        for item in plan.source_sort:
            value = plan.pinned.get(item.names) or (values.get(item.names) if item.names in known else None)
            if value is None:
                whole = False
                break
            start += encode_directed(value, descending=item.descending)
        behind = start + b"\0" if whole else start
        if plan.reverse and not whole:
            start += b"\xff"
    ranges = []
    for one in plan.ranges:
        if plan.reverse:
            high = start if one.high is None else min(one.high, start)
            if one.low < high:
                ranges.append(IndexRange(one.low, high))
        elif one.high is None or behind < one.high:
            ranges.append(IndexRange(max(one.low, behind), one.high))
    return QueryPlan(plan.index, tuple(ranges), plan.reverse, plan.matched, plan.sort, plan.pinned, plan.narrowed)


def helpful_index(condition: FilterNode | None, sort: Sort) -> str:
    """Which index would answer a query without reading more than the page, as `sortBy` fields."""
    left = leave(conjuncts(condition))
    pinned = [names for names, intervals in left.items() if single(intervals) is not None and names != ID]
    wanted = [item for item in sort if item.names not in pinned and item.names != ID]
    fields = [*(".".join(names) for names in pinned), *(str(item) for item in wanted)]
    return ", ".join(fields)


def source_key(element: Any, plan: QueryPlan) -> tuple[SortKey, ...]:
    """The element's values for the fields that the source has in order."""
    return keys_of(element, plan.sort[: plan.matched])


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
