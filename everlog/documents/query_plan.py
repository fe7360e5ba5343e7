"""How to answer a query: which index, which part of it, in which direction, and what is left to sort.

An index is usable if every condition of its filter is implied by the query's. Of the usable ones and the collection
itself, the one whose order fits best wins, then the one of which least must be read. The whole filter is evaluated
again on every row, so a plan may read too much, never too little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from everlog.documents.filters.nodes import FilterNode, conjuncts, is_boolean, text_of
from everlog.documents.indexes import Index, IndexStatus
from everlog.documents.intervals import EVERYTHING, Intervals, implied, leave, single
from everlog.documents.order import (
    BY_ID,
    ID,
    TEXT,
    Sort,
    SortKey,
    cut,
    encode_directed,
    keys_of,
)


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
    condition: FilterNode | None, sort: Sort, indexes: Iterable[Index], after: Sequence[SortKey] | None = None
) -> QueryPlan:
    """The best plan for a filter and a complete sort; `after`: only what follows an element with these sort values."""
    parts = list(conjuncts(condition))
    left = leave(parts)
    texts = frozenset(map(text_of, parts))
    usable = [one for one in indexes if one.status is IndexStatus.READY and _usable(one, left, texts)]
    plans = [_plan(index, sort, left) for index in (None, *usable)]
    # `max` takes the first of equals: indexes come in the order of their ids.
    best = max(plans, key=lambda plan: plan.weight)
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
    """Leave out what cannot follow the element any more; what is left of it is compared row by row."""
    values = {item.names: key for item, key in zip(plan.sort, after, strict=True)}
    known = {item.names for item in plan.sort[: plan.matched]}
    if plan.index is None:
        if plan.matched == 0:
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
