"""What a live query gives, and the filter that decides about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from everlog.documents.bodies import digest, plain_body
from everlog.documents.evaluator import Evaluator, pay_decoding
from everlog.documents.filters.budget import Budget
from everlog.documents.filters.evaluation import make_matcher, uses_time
from everlog.documents.filters.tree import FilterNode, text_of
from everlog.documents.port import StoredElement
from everlog.documents.transitions import Transition
from everlog.errors import InvalidDocument, InvalidPosition

_POSITION = re.compile(r"([0-9]{1,18})-([0-9a-f]{12})")

LiveKind = Literal["reset", "present", "complete", "entered", "changed", "left", "checkpoint"]


class LiveChange(msgspec.Struct, frozen=True):
    """A step of a live query.

    `reset`: there is nothing, at the beginning, and when the collection is deleted. `present`: an element that matches
    now. `complete`: that was all of them. `entered`, `changed`, `left`: what became of an element, by the change of the
    collection that has this revision. `checkpoint`: nothing up to here was left out.

    `position`: go on behind this step with `after=`; None until the present is complete.
    """

    kind: LiveKind
    revision: int
    position: str | None = None
    id: str = ""
    json: str = "null"

    @property
    def body(self) -> Any:
        """The element; None where there is none."""
        return plain_body(self.json)


class LiveFilter:
    """A condition on the elements of one collection. Conditions that mean the same by their trees have one digest."""

    def __init__(self, uri: str, node: FilterNode | None, evaluator: Evaluator) -> None:
        if uses_time(node):
            raise InvalidDocument(
                "invalid-filter", "what matches may not depend on the time in a live query: leave out unix_time"
            )
        self.digest = digest(uri, "" if node is None else text_of(node))[:12]
        self._matches = make_matcher(node)
        self._evaluator = evaluator

    async def matches(self, element: Any) -> bool:
        """Whether an element matches, within the budget of one element; no element does not."""
        if element is None:
            return False
        budget = self._evaluator.of_element()
        return await self._evaluator.run(budget, lambda: self._matches(element, 0, budget))

    def scan_budget(self) -> Budget:
        """What all the elements of the collection may cost together."""
        return self._evaluator.of_query(lambda: False)

    async def matching(self, rows: Sequence[StoredElement], budget: Budget) -> list[StoredElement]:
        """Those of the stored elements that match."""
        found: list[StoredElement] = []
        waiting = list(reversed(rows))

        def work() -> None:
            while waiting:
                row = waiting[-1]
                if self._matches(pay_decoding(row.body, budget), 0, budget):
                    found.append(row)
                budget.done()
                waiting.pop()

        await self._evaluator.run(budget, work)
        return found

    def position(self, revision: int) -> str:
        """Stands for a revision of the collection, for this filter only."""
        return f"{revision}-{self.digest}"

    def revision_of(self, position: str) -> int:
        """The revision that a position stands for; InvalidDocument if it is of another query."""
        found = _POSITION.fullmatch(position)
        if found is None:
            raise InvalidPosition(f"{position[:50]!r} is no position of a live query: give one as it came")
        if found[2] != self.digest:
            raise InvalidDocument(
                "position-of-another-query",
                "this position is of another collection or another filter: begin again, without a position",
            )
        return int(found[1])

    async def change(self, transition: Transition) -> LiveChange | None:
        """What a change of the collection means here; None: nothing."""
        revision = transition.revision
        if not transition.item:
            return LiveChange("reset", revision, self.position(revision)) if transition.clears else None
        was, matches = await self.matches(transition.before), await self.matches(transition.after)
        if not was and not matches:
            return None
        kind: LiveKind = "changed" if was and matches else "entered" if matches else "left"
        json = transition.json if matches else "null"
        return LiveChange(kind, revision, self.position(revision), transition.item, json)

    def checkpoint(self, revision: int) -> LiveChange:
        """Nothing up to this revision was left out."""
        return LiveChange("checkpoint", revision, self.position(revision))
