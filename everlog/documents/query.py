"""Queries of a collection: read what the plan says, in bounded steps, until the page is full; and name the next page.

The first read asks for a page; if the filter rejects much, the next ones ask for more. Rows read and rejected,
requests, bytes and time are limited: a query that needs more ends with QueryLimited.

An index may not know the newest writes. The elements that these are about are taken out of what it gives, and looked
at as they are now: so a page shows every write that was acknowledged before the query began, from whichever index.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from everlog.config import DocumentsConfig
from everlog.documents.bodies import stored_body
from everlog.documents.evaluator import Evaluator, pay_decoding
from everlog.documents.filters.evaluation import make_matcher
from everlog.documents.filters.parser import depth_of, parse_filter
from everlog.documents.filters.tree import Binary, Field, FilterNode, Literal, conjuncts, is_boolean, text_of
from everlog.documents.indexes import Index
from everlog.documents.order import (
    BY_ID,
    ID,
    FirstElements,
    Sort,
    SortKey,
    compare_keys,
    complete,
    keys_of,
    parse_sort,
)
from everlog.documents.page_place import PagePlace, page_token, parse_token
from everlog.documents.port import Batch, FoundElement
from everlog.documents.query_plan import IndexRange, QueryPlan, helpful_index, make_plan, source_key
from everlog.errors import InvalidDocument, QueryLimited
from everlog.runtime.clock import Clock

COUNT_ROWS = 1000  # that are read at once
COUNT_BYTES = 4 * 1024 * 1024
MAX_LINKED_CHARS = 500  # of a filter in a link to a next page
MAX_LINKED_DEPTH = 20
ROWS_AT_ONCE = 50  # of pending elements


class QueryLimits(msgspec.Struct, frozen=True):
    """How much a query may do."""

    page_size: int = 100
    max_page_size: int = 10_000
    max_skip: int = 10_000
    max_skip_limit: int = 1_000_000
    max_requests: int = 20
    timeout_s: float = 15.0
    max_bytes: int = 64 * 1024 * 1024

    @classmethod
    def of(cls, config: DocumentsConfig) -> QueryLimits:
        """Those that are configured."""
        return cls(
            page_size=config.page_size,
            max_page_size=config.max_page_size,
            max_skip=config.max_skip,
            max_requests=config.max_query_requests,
            timeout_s=config.request_timeout_s,
            max_bytes=config.max_query_bytes,
        )


class Query(msgspec.Struct, frozen=True):
    """What a user asks of a collection."""

    filter: str = ""
    sort: str = ""
    size: int | None = None
    max_skip: int | None = None
    after: str | None = None
    explain: bool = False
    fields: str | Sequence[str] = ""


class QueryRead(msgspec.Struct, frozen=True):
    """One request to the store, for `explain`."""

    limit: int
    rows: int


class Explanation(msgspec.Struct, frozen=True):
    """How a query was answered."""

    index: str | None
    order: str
    reverse: bool
    narrowed: bool
    sorted_in_memory: bool
    reads: tuple[QueryRead, ...]
    rows_read: int
    rows_rejected: int
    helpful_index: str | None
    rows_pending: int = 0
    """Elements of writes that the index may not know, looked at beside it."""


class QueryAnswer(NamedTuple):
    """A page, and where the next one is (`filter=…` or `after=…`). Elements that were not decoded are raw JSON."""

    page: list[Any]
    plan: QueryPlan
    next: dict[str, str] | None
    explanation: Explanation
    held: int | None = None
    """How many elements the index holds, if there is one and the store counts."""

    @property
    def elements(self) -> list[Any]:
        """The page as exact JSON."""
        return [_decoded(one) for one in self.page]


class CountAnswer(NamedTuple):
    """How many elements match, and how that was found out."""

    matching: int
    explanation: Explanation


Fetch = Callable[[Index | None, IndexRange, bool, int, int], Awaitable[Batch]]
"""fetch(index, range, reverse, limit, max_bytes)"""

FetchRows = Callable[[Sequence[str]], Awaitable[list[FoundElement]]]


class PendingElements(NamedTuple):
    """The ids of elements that indexes may hold as they were, how they are read as they are now, and how many others
    an index holds (None: the store does not count).
    """

    items: Sequence[str]
    fetch: FetchRows
    count_others: Callable[[Index], Awaitable[int | None]]


class QueryRunner:
    """Answers one query."""

    def __init__(
        self,
        query: Query,
        indexes: Sequence[Index],
        fetch: Fetch,
        *,
        clock: Clock,
        limits: QueryLimits,
        evaluator: Evaluator,
        pending: PendingElements | None = None,
    ) -> None:
        self._fetch = fetch
        self._evaluator = evaluator
        self._clock = clock
        self._limits = limits
        self._deadline = clock.monotonic() + limits.timeout_s
        self._budget = evaluator.of_query(lambda: clock.monotonic() > self._deadline)
        self._now_ms = clock.now_ms()
        self._size = bounded("size", query.size, 0, limits.max_page_size, default=limits.page_size)
        self._skip_max = bounded("skipMax", query.max_skip, 0, limits.max_skip_limit, default=limits.max_skip)
        self._condition: FilterNode | None = parse_filter(query.filter)
        self._sort: Sort = complete(parse_sort(query.sort))
        self._place = None if query.after is None else parse_token(query.after, self._sort)
        self._after: Sequence[SortKey] | None = None if self._place is None else self._place.keys
        self._indexes = indexes
        self._plan = make_plan(self._condition, self._sort, indexes, self._after)
        self._matches = make_matcher(self._condition)
        self._pending = pending
        self._left_out: frozenset[str] = frozenset()
        self._count: int | None = None
        # Then rows are the page as they come: decoding them only to encode them again costs as much as reading them.
        self._as_they_are = self._condition is None and self._after is None and self._plan.exact and pending is None
        self._reads: list[QueryRead] = []
        self._rows = self._rejected = self._bytes = self._looked_at = 0

    async def run(self) -> QueryAnswer:
        if self._place is not None and self._place.digest is not None:
            await self._find_place(self._place)
        plan, budget = self._plan, self._budget
        self._count = None if plan.index is None else plan.index.count
        changed = await self._look_at(plan.index, self._pending) if plan.index and self._pending else []
        page: list[Any] = [] if self._size == 0 else changed + await self._collect()
        if page and (changed or not plan.exact):
            first = FirstElements(page, self._sort, self._size)
            page = await self._evaluator.run(budget, lambda: first.take(budget))
        page = page[: self._size]
        return QueryAnswer(page, plan, self._next(page), self._explain(), self._count)

    async def _look_at(self, index: Index, pending: PendingElements) -> list[Any]:
        """The pending elements that belong to the answer, as they are now. Before the index is read: what is written in
        between, it may know or not.
        """
        found: list[Any] = []
        count = await pending.count_others(index)
        for at in range(0, len(pending.items), ROWS_AT_ONCE):
            rows = await pending.fetch(pending.items[at : at + ROWS_AT_ONCE])
            if count is not None:
                count += await self._count_held(index, rows)
            await self._take(Batch(rows, more=False), found)
            if self._bytes >= self._limits.max_bytes:
                raise self._limited("query-bytes-limited", f"{self._bytes:,} bytes were read")
        self._looked_at, self._rows, self._rejected, self._count = self._rows, 0, 0, count
        self._left_out = frozenset(pending.items)
        return found

    async def _count_held(self, index: Index, rows: Sequence[FoundElement]) -> int:
        """How many elements are the index's."""
        if not index.filter_by:
            return len(rows)
        matches = self._evaluator.matches
        return sum([await matches(index.filter_by, stored_body(row.body), self._now_ms) for row in rows])

    async def count(self, *, known: int) -> CountAnswer:
        """How many elements match. All that the plan names is read, in whichever order that is the least.

        `known`: how many there are; without a condition that is all.
        """
        if self._condition is None:
            return CountAnswer(known, self._explain())
        self._plan = plan = make_plan(self._condition, self._sort, self._indexes, ordered=False)
        count = len(await self._look_at(plan.index, self._pending)) if plan.index and self._pending else 0
        waiting = list(plan.ranges)
        while waiting:
            self._check_reading()
            max_bytes = min(COUNT_BYTES, self._limits.max_bytes - self._bytes)
            batch = await self._fetch(plan.index, waiting[0], plan.reverse, COUNT_ROWS, max_bytes)
            self._reads.append(QueryRead(COUNT_ROWS, len(batch.entries)))
            found: list[Any] = []
            await self._take(batch, found)
            count += len(found)
            self._leave(waiting, batch)
        return CountAnswer(count, self._explain(counted=True))

    async def _find_place(self, place: PagePlace) -> None:
        """Where the page begins if the token has no room for it: the element knows, while it is what it was."""
        where = IndexRange(place.id, place.id + "\0")
        batch = await self._fetch(None, where, False, 1, self._limits.max_bytes)
        for entry in batch.entries:
            element = stored_body(entry.body)
            if place.fits(element, self._sort):
                self._after = keys_of(element, self._sort)
                self._plan = make_plan(self._condition, self._sort, self._indexes, self._after)

    async def _collect(self) -> list[Any]:
        plan, size = self._plan, self._size
        unordered = plan.matched == 0
        first = size + self._skip_max if unordered else size
        allowed = size + self._skip_max if unordered else self._skip_max
        accepted: list[Any] = []
        waiting = list(plan.ranges)
        while waiting and not self._full(accepted):
            self._check(allowed)
            limit = first + len(self._reads) * max(0, allowed - first) // self._limits.max_requests
            batch = await self._fetch(plan.index, waiting[0], plan.reverse, limit, self._limits.max_bytes - self._bytes)
            self._reads.append(QueryRead(limit, len(batch.entries)))
            await self._take(batch, accepted)
            if unordered and self._rows >= first:
                raise self._limited("query-skipped-rows-limited", f"{self._rows:,} rows were read to be sorted")
            self._leave(waiting, batch)
        return accepted

    def _leave(self, waiting: list[IndexRange], batch: Batch) -> None:
        """What is left of the ranges behind a batch."""
        if not batch.more:
            waiting.pop(0)
        else:
            waiting[0] = _rest(waiting[0], batch.entries[-1].key, self._plan.reverse)

    def _check(self, allowed: int) -> None:
        if len(self._reads) >= self._limits.max_requests:
            raise self._limited("query-count-limited", f"{len(self._reads)} requests to the store were not enough")
        if self._rejected >= allowed > 0 or (allowed == 0 and self._rejected > 0):
            raise self._limited("query-skipped-rows-limited", f"{self._rejected:,} rows were read and rejected")
        self._check_reading()

    def _check_reading(self) -> None:
        if self._clock.monotonic() > self._deadline:
            raise self._limited("query-timeout", f"{self._limits.timeout_s:g} s were not enough")
        if self._bytes >= self._limits.max_bytes:
            raise self._limited("query-bytes-limited", f"{self._bytes:,} bytes were read")

    async def _take(self, batch: Batch, accepted: list[Any]) -> None:
        """Keep what matches. The work goes on behind the last row when its turn begins again."""
        if self._as_they_are:
            accepted += [msgspec.Raw(entry.body) for entry in batch.entries]
            self._rows += len(batch.entries)
            self._bytes += sum(len(entry.body) for entry in batch.entries)
            return
        rows = iter(batch.entries)
        waiting = next(rows, None)

        def work() -> None:
            nonlocal waiting
            while waiting is not None:
                accepted.extend(self._kept(waiting.body))
                self._rows += 1
                self._bytes += len(waiting.body)
                budget.mark = budget.left
                waiting = next(rows, None)

        budget = self._budget
        await self._evaluator.run(budget, work)

    def _kept(self, body: str) -> tuple[Any, ...]:
        """The element if it belongs to the answer, or nothing."""
        budget = self._budget
        element = pay_decoding(body, budget)
        if element["id"] in self._left_out:
            return ()
        if self._follows(element) and self._matches(element, self._now_ms, budget):
            return (element,)
        self._rejected += 1
        return ()

    def _follows(self, element: Any) -> bool:
        """Whether it is behind the page before."""
        after, sort = self._after, self._sort
        return after is None or compare_keys(keys_of(element, sort, self._budget), after, sort) > 0

    def _full(self, accepted: list[Any]) -> bool:
        """Whether the page is complete: also the last element's equals, if the source does not order them."""
        if len(accepted) < self._size or self._plan.matched == 0:
            return False
        if self._plan.exact:
            return True
        return source_key(accepted[-1], self._plan) != source_key(accepted[self._size - 1], self._plan)

    def _next(self, page: list[Any]) -> dict[str, str] | None:
        """The parameters of the next page, if there may be one."""
        if len(page) < self._size or not page:
            return None
        last = _decoded(page[-1])
        if len(self._sort) == 1 and self._sort[0].names == BY_ID[0].names:
            following = behind(self._condition, last["id"], descending=self._sort[0].descending)
            if following is not None:
                return {"filter": following}
        return {"after": page_token(last, self._sort)}

    def _explain(self, *, counted: bool = False) -> Explanation:
        plan = self._plan
        in_memory = not plan.exact and not counted
        wasteful = in_memory or self._rejected > 0
        return Explanation(
            index=None if plan.index is None else plan.index.index_id,
            order=", ".join(map(str, plan.source_sort)),
            reverse=plan.reverse,
            narrowed=plan.narrowed or bool(plan.pinned),
            sorted_in_memory=in_memory,
            reads=tuple(self._reads),
            rows_read=self._rows,
            rows_rejected=self._rejected,
            helpful_index=self._helpful() if wasteful else None,
            rows_pending=self._looked_at,
        )

    def _helpful(self) -> str:
        fields = helpful_index(self._condition, self._sort)
        where = "" if self._condition is None else f", filterBy {text_of(self._condition)}"
        return f"sortBy [{fields}]{where}"

    def _limited(self, code: str, what: str) -> QueryLimited:
        return QueryLimited(code, f"{what}; an index would help: {self._helpful()}")


def _decoded(element: Any) -> Any:
    return stored_body(bytes(element).decode()) if isinstance(element, msgspec.Raw) else element


def bounded(name: str, value: int | None, minimum: int, maximum: int, *, default: int = 0) -> int:
    """A number that a caller gives, or the default; InvalidDocument if it is out of its bounds."""
    if value is None:
        return default
    if not minimum <= value <= maximum:
        message = f"{name} is between {minimum} and {maximum:,}"
        raise InvalidDocument("invalid-parameter", message, parameter=name)
    return value


def _rest(range_: IndexRange, last: Any, reverse: bool) -> IndexRange:
    """What follows a row in its range."""
    if reverse:
        return IndexRange(range_.low, last)
    return IndexRange(last + ("\0" if isinstance(last, str) else b"\0"), range_.high)


def behind(condition: FilterNode | None, last_id: str, *, descending: bool) -> str | None:
    """A filter for what follows an id; an older bound of the same kind gives way. None if it is long: a token is not.

    >>> from everlog.documents.filters.parser import parse_filter
    >>> behind(parse_filter('id > "a" and b > 0'), "c", descending=False)
    '(id > "c") and (b > 0)'
    """
    operator = "<" if descending else ">"
    bound: FilterNode = Binary(operator, Field(ID), Literal(last_id))
    parts = list(conjuncts(condition))
    if not all(map(is_boolean, parts)):
        return None  # numbers are combined bit by bit: not in another order
    whole = bound
    for one in parts:
        whole = whole if _is_bound(one, operator) else Binary("and", whole, one)
    if depth_of(whole) > MAX_LINKED_DEPTH:
        return None
    text = text_of(whole)
    return text if len(text) <= MAX_LINKED_CHARS else None


def _is_bound(node: FilterNode, operator: str) -> bool:
    return (
        isinstance(node, Binary)
        and node.operator == operator
        and node.left == Field(ID)
        and isinstance(node.right, Literal)
        and isinstance(node.right.value, str)
    )
