"""Where filters are evaluated: short work on the event loop, long work beside it.

Work is done in turns of a budget. A turn on the event loop takes some milliseconds at most, and others are served
before the next one. A piece of work that does not fit into a turn, such as one element with a costly filter, goes into
a thread, of which there is one, so that it competes with the event loop for one processor and not for all; it pauses
often. Whatever waits for the thread gets its turns there one after the other.

Measured beside threads alone: a hop to a thread costs 50 µs, which is more than most pages take as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from everlog.config import DocumentsConfig
from everlog.documents.bodies import stored_body
from everlog.documents.filters.budget import Budget, BudgetLimits, TurnOver
from everlog.documents.filters.evaluation import matcher_of
from everlog.documents.filters.parser import is_parsed, parse_filter
from everlog.documents.filters.tree import FilterNode
from everlog.documents.indexes import MAX_KEY_BYTES, Index
from everlog.documents.order import index_key
from everlog.errors import InvalidDocument
from everlog.runtime.side_loop import SideLoop

MAX_CHARS_ON_LOOP = 256  # of a filter that is parsed there: some 30 µs each
DECODE_SHIFT = 3  # a step pays for 8 bytes of JSON
T = TypeVar("T")


class Evaluator:
    """Evaluates filters within their budgets."""

    def __init__(self, limits: BudgetLimits | None = None) -> None:
        self.limits = limits or BudgetLimits()
        self.side = SideLoop()

    @classmethod
    def of(cls, config: DocumentsConfig) -> Evaluator:
        """With the limits that are configured."""
        limits = BudgetLimits(config.max_query_steps, config.max_element_steps, config.max_element_bytes)
        return cls(limits)

    def of_query(self, deadline: Callable[[], bool]) -> Budget:
        """What a query may spend on all that it reads; `deadline`: whether its time is over."""
        limits = self.limits
        return Budget(limits.query_steps, limits.element_bytes, deadline=deadline, setting="max_query_steps")

    def of_element(self) -> Budget:
        """What an element may cost in an index or a view."""
        return Budget(self.limits.element_steps, self.limits.element_bytes)

    async def run(self, budget: Budget, work: Callable[[], T]) -> T:
        """Do work that spends the budget. At `TurnOver` it is called again, and goes on behind its last `done`."""
        threaded = False
        while True:
            before = budget.mark
            budget.begin_turn(threaded=threaded)
            try:
                return await self.side.call(work) if threaded else work()
            except TurnOver:
                if not threaded:
                    threaded = budget.mark == before
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                budget.stop()
                raise

    async def parse(self, text: str) -> FilterNode | None:
        """The tree of a filter. A long one is parsed in the thread, the first time."""
        if len(text) > MAX_CHARS_ON_LOOP and not is_parsed(text):
            return await self.side.call(lambda: parse_filter(text))
        return parse_filter(text)

    async def matches(self, condition: str | None, element: Any, now_ms: int) -> bool:
        """Whether one element matches, within a budget of its own; FilterTooExpensive if that does not suffice."""
        if not condition:
            return True
        await self.parse(condition)
        matches, budget = matcher_of(condition), self.of_element()
        return await self.run(budget, lambda: matches(element, now_ms, budget))

    async def locate(self, index: Index, bodies: Sequence[str]) -> list[bytes | None]:
        """Where elements belong in an index; None for those that it leaves out. Each has a budget of its own."""
        await self.parse(index.filter_by or "")
        found: list[bytes | None] = []
        for body in bodies:
            budget = self.of_element()
            found.append(await self.run(budget, lambda: locate(index, body, budget)))  # noqa: B023  # called before the next
            if len(found) % 16 == 0:
                await asyncio.sleep(0)
        return found

    async def aclose(self) -> None:
        """Wait until the thread has ended."""
        await self.side.aclose()


def pay_decoding(body: str, budget: Budget) -> Any:
    """A stored body, decoded at the budget's cost."""
    budget.take(len(body) >> DECODE_SHIFT)
    return stored_body(body)


def locate(index: Index, body: str, budget: Budget) -> bytes | None:
    """Where an element belongs in an index; None if the index leaves it out."""
    element = pay_decoding(body, budget)
    if not matcher_of(index.filter_by)(element, 0, budget):
        return None
    key = index_key(element, index.sort, budget)
    if len(key) > MAX_KEY_BYTES:
        raise InvalidDocument("key-too-long", f"the element {element.get('id')!r} has sort values over 16 KiB")
    return key
