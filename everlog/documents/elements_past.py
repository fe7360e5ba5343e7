"""A page of a collection as it was, folded from its events with the newest first.

The first event of an element that is met decides about it: a deletion ends it, a body is its body, a patch waits for
what it was merged into. So what is known of an element never changes later, and only the lowest ids behind `after`
must be kept, as many as a page has and its bytes allow: whatever the collection held, memory is that of one page, and
one id for each element that was deleted.
"""

from __future__ import annotations

from bisect import insort
from typing import Any

from everlog.documents.bodies import merge, without_nulls


class ElementsPast:
    """Takes the events of elements, newest first."""

    def __init__(self, after: str, size: int, max_bytes: int) -> None:
        self._after = after
        self._size = size
        self._max_bytes = max_bytes
        self._end: str | None = None  # this id and all above are of later pages
        self._ids: list[str] = []
        self._patches: dict[str, list[Any]] = {}
        self._bodies: dict[str, Any] = {}
        self._gone: set[str] = set()
        self._weights: dict[str, int] = {}
        self._bytes = 0

    def take(self, item: str, method: str, body: Any, size: int) -> None:
        """One event of an element, which takes so many bytes."""
        if item <= self._after or (self._end is not None and item >= self._end):
            return
        if item in self._gone or item in self._bodies:
            return
        if method == "feed:delete" and item not in self._patches:
            self._gone.add(item)
            return
        if item not in self._weights:
            insort(self._ids, item)
            self._weights[item] = 0
        self._weights[item] += size
        self._bytes += size
        if method == "feed:patch":
            self._patches.setdefault(item, []).append(body)
        else:
            self._bodies[item] = self._merged(item, None if method == "feed:delete" else body)
        while len(self._ids) > self._size or (self._bytes > self._max_bytes and len(self._ids) > 1):
            self._leave(self._ids.pop())

    def _leave(self, item: str) -> None:
        """To a later page."""
        self._end = item
        self._bytes -= self._weights.pop(item)
        self._patches.pop(item, None)
        self._bodies.pop(item, None)

    def _merged(self, item: str, body: Any) -> Any:
        for patch in reversed(self._patches.pop(item, ())):
            body = without_nulls(merge(body, patch))
        return body

    def page(self) -> tuple[list[Any], str | None]:
        """The elements in the order of their ids, and the id behind which the next page begins, if there is one."""
        for item in list(self._patches):  # the log no longer has what these were merged into
            self._bodies[item] = self._merged(item, None)
        last = self._ids[-1] if self._end is not None else None
        return [self._bodies[item] for item in self._ids], last
