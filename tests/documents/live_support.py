"""A naive model of a collection by revision, and a client of a live query that checks each step against it."""

from __future__ import annotations

import contextlib
from typing import Any

from everlog.documents.api import Documents
from everlog.documents.bodies import merge
from everlog.documents.filters.parser import parse_filter
from everlog.documents.live_change import LiveChange
from everlog.errors import DocumentNotFound
from tests.models.document_filter import naive_match

Step = tuple[str, str, Any]


class CollectionModel:
    """Writes a collection, and knows all its elements at each revision."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.states: list[dict[str, Any] | None] = [None]

    async def write(self, docs: Documents, step: Step) -> None:
        """`put`, `patch`, `delete` an element, `put` several in a `batch`; `clear` or `create` the collection."""
        kind, item, value = step
        now = self.states[-1]
        with contextlib.suppress(DocumentNotFound):
            if kind == "put":
                written = await docs.put(f"{self.uri}/{item}", value)
                kept = {name: one for name, one in value.items() if one is not None}
                self._at(written.revision, {**(now or {}), item: {**kept, "id": item}})
            elif kind == "patch":
                written = await docs.patch(f"{self.uri}/{item}", value)
                self._at(written.revision, {**(now or {}), item: merge((now or {})[item], value)})
            elif kind == "delete":
                written = await docs.delete(f"{self.uri}/{item}")
                self._at(written.revision, {name: one for name, one in (now or {}).items() if name != item})
            elif kind == "clear":
                self._at((await docs.delete(self.uri)).revision, None)
            elif kind == "batch":
                operations = [{"method": "put", "id": name, "body": body} for name, body in value]
                for written, (name, body) in zip(await docs.batch(self.uri, operations), value, strict=True):
                    kept = {key: one for key, one in body.items() if one is not None}
                    self._at(written.revision, {**(self.states[-1] or {}), name: {**kept, "id": name}})
            elif kind == "create" and now is None:
                self._at((await docs.put(self.uri)).revision, {})

    def _at(self, revision: int, state: dict[str, Any] | None) -> None:
        assert revision == len(self.states)
        self.states.append(state)

    @property
    def revision(self) -> int:
        return len(self.states) - 1

    def matching(self, condition: str, revision: int) -> dict[str, Any]:
        """What the naive query says at a revision."""
        node, state = parse_filter(condition), self.states[revision] or {}
        return {item: one for item, one in state.items() if naive_match(node, one)}


class LiveClient:
    """Applies the steps of a live query."""

    def __init__(self, model: CollectionModel, condition: str) -> None:
        self.model = model
        self.condition = condition
        self.elements: dict[str, Any] = {}
        self.position: str | None = None
        self.revision = 0
        self.changes: list[tuple[str, int]] = []

    def take(self, change: LiveChange) -> None:
        known = change.id in self.elements
        match change.kind:
            case "reset":
                self.elements.clear()
            case "present" | "entered":
                assert not known, change
                self.elements[change.id] = change.body
            case "changed":
                assert known, change
                self.elements[change.id] = change.body
            case "left":
                assert known, change
                assert change.body is None
                del self.elements[change.id]
        if change.kind in ("entered", "changed", "left"):
            assert change.revision > self.revision, change
            self.changes.append((change.kind, change.revision))
        self.position = change.position
        if change.position is not None:
            assert change.revision >= self.revision, change
            self.revision = change.revision
            assert self.elements == self.model.matching(self.condition, change.revision), change

    def has(self, revision: int) -> bool:
        return self.position is not None and self.revision >= revision
