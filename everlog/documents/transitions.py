"""What a change did to an element: its body before it and after it.

An event alone does not tell: a PATCH holds only the patch, a DELETE nothing, and a PUT does not say what it replaced.
The body before a write stands in its outbox row, which is kept for days after the event is out; of an element that
changed shortly before it is remembered; and for what is older it is folded from the history, within the limit of that.
So a reader needs no state but a bounded cache, and may begin at any revision.

The revisions of a collection are 1, 2, 3 … without hole, and so are those that a reader hands out: a hole is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

from everlog.documents.bodies import encode_body, merge, stored_body, without_nulls
from everlog.documents.body_cache import BodyCache
from everlog.documents.history import DocumentEvent, History
from everlog.documents.ids import TransactionId
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.documents.port import DocumentStore
from everlog.errors import DocumentConflict, DocumentNotFound, QueryLimited

PAGE = 32


class Transition(NamedTuple):
    """A change of a collection. `item` is "" for one of the collection as a whole; no body is None.

    `json` is the body after it as text.
    """

    event: DocumentEvent
    item: str
    before: Any
    after: Any
    json: str

    @property
    def revision(self) -> int:
        return self.event.revision

    @property
    def clears(self) -> bool:
        """Whether the collection was deleted with all its elements."""
        return not self.item and self.event.method == "feed:delete"


class TransitionReader:
    """Reads the transitions of one collection, in order. `reached` is the revision of the last one."""

    def __init__(self, history: History, store: DocumentStore, uri: str, after: int) -> None:
        self.reached = after
        self._history = history
        self._store = store
        self._uri = uri
        self._bodies = BodyCache()

    async def pages(self, upto: int) -> AsyncGenerator[list[Transition], None]:
        """All up to a revision whose event is out."""
        page: list[DocumentEvent] = []
        read = self._history.events(DocumentPlace(self._uri), after=self.reached, upto=upto)
        async with contextlib.aclosing(read) as events:
            async for event in events:
                if event.revision != self.reached + len(page) + 1:
                    raise self._gone()
                page.append(event)
                if len(page) == PAGE:
                    yield await self._transitions(page)
                    page = []
        if page:
            yield await self._transitions(page)
        if self.reached < upto:
            raise self._gone()

    async def _transitions(self, page: Sequence[DocumentEvent]) -> list[Transition]:
        unknown = self._unknown(page)
        bodies = await asyncio.gather(*[self._before(event) for event in unknown])
        known = {event.revision: body for event, body in zip(unknown, bodies, strict=True)}
        found = [await self._transition(event, known) for event in page]
        self.reached = page[-1].revision
        return found

    def _unknown(self, page: Sequence[DocumentEvent]) -> list[DocumentEvent]:
        """The first change of each element that is not remembered."""
        found: list[DocumentEvent] = []
        seen: set[str] = set()
        cleared = False
        for event in page:
            item = parse_path(event.path).item
            if not item:
                cleared = True
                seen.clear()
            elif item not in seen and (cleared or item not in self._bodies):
                found.append(event)
            seen.add(item)
        return found

    async def _transition(self, event: DocumentEvent, known: dict[int, Any]) -> Transition:
        item = parse_path(event.path).item
        if not item:
            self._bodies.clear()
            return Transition(event, "", None, None, "null")
        if event.revision in known:
            before = known[event.revision]
        elif item in self._bodies:
            _, before = self._bodies.get(item)
        else:  # it did not fit into the cache
            before = await self._before(event)
        after = after_event(event, item, before)
        json = encode_body(after)
        self._bodies.put(item, after, len(json) + len(item))
        return Transition(event, item, before, after, json)

    async def _before(self, event: DocumentEvent) -> Any:
        """The body that a change found; None if there was none."""
        if event.transaction_id:
            row = await self._store.transaction(TransactionId.parse(event.transaction_id))
            if row is not None:
                return None if row.old_body is None else stored_body(row.old_body)
        try:
            return await self._history.body_at(parse_path(event.path), event.revision - 1)
        except DocumentNotFound:
            return None
        except QueryLimited as error:
            raise self._gone() from error

    def _gone(self) -> DocumentConflict:
        return DocumentConflict(
            "position-too-old",
            f"what {self._uri} was at revision {self.reached} can no longer be told: begin again, without a position",
        )


def after_event(event: DocumentEvent, item: str, before: Any) -> Any:
    """The body of an element after a change; None if it is gone."""
    match event.method:
        case "feed:put":
            return event.exact
        case "feed:patch":
            return {**without_nulls(merge(before, event.exact)), "id": item}
        case _:
            return None
