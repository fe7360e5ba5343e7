"""Documents in plain dictionaries: what any number of steps should lead to, straight from the documentation."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from everlog.documents.bodies import without_nulls


class Reply(NamedTuple):
    """What a write is answered with; `revision` is None where it is refused."""

    status: int
    revision: int | None = None


class NaiveRow(NamedTuple):
    """A body, and the revision at which it was written."""

    body: Any
    revision: int


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, word by word."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


class NaiveDocuments:
    """`rows[uri]` is what exists: the elements of a collection by id, or a document's only row under ""."""

    def __init__(self) -> None:
        self.revisions: dict[str, int] = {}
        self.rows: dict[str, dict[str, NaiveRow]] = {}
        self.past: dict[tuple[str, int], dict[str, Any] | None] = {}

    def tag(self, uri: str, item: str) -> str | None:
        """The entity tag of what is there."""
        if uri not in self.rows:
            return None
        if uri.endswith("~") and not item:
            return f'"{self.revisions[uri]:x}"'
        row = self.rows[uri].get(item)
        return None if row is None else f'"{row.revision:x}"'

    def write(
        self, method: str, uri: str, item: str, body: Any = None, *, if_match: str | None = None, absent: bool = False
    ) -> Reply:
        """`absent`: with `If-None-Match: *`."""
        collection = uri.endswith("~") and not item
        tag = self.tag(uri, item)
        if collection and method == "put" and tag is not None:
            return Reply(409)
        if method in ("patch", "delete") and tag is None:
            return Reply(404)
        if (if_match is not None and if_match != tag) or (absent and tag is not None):
            return Reply(412)
        revision = self.revisions[uri] = self.revisions.get(uri, 0) + 1
        rows = self.rows.get(uri, {})
        if method == "delete" and not item:
            self.rows.pop(uri, None)
        elif method == "delete":
            del rows[item]
        elif collection:
            self.rows[uri] = {}
        else:
            old = rows[item].body if method == "patch" else None
            new = without_nulls(merged(old, body) if method == "patch" else body)
            rows[item] = NaiveRow({**new, "id": item} if item else new, revision)
            self.rows[uri] = rows
        self.past[uri, revision] = copy.deepcopy(self.bodies(uri))
        return Reply(201 if tag is None and method != "delete" else 200, revision)

    def bodies(self, uri: str) -> dict[str, Any] | None:
        """All bodies of a document or a collection by their ids; None: there is none."""
        return None if uri not in self.rows else {item: row.body for item, row in self.rows[uri].items()}


def replay(state: dict[str, Any] | None, events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What a reader of the feed comes to, who starts at a state."""
    for event in events:
        uri, item = split(event["path"])
        method, body = event["method"].removeprefix("feed:"), event["body"]
        if method == "delete" and not item:
            state = None
            continue
        state = dict(state or {})
        if uri.endswith("~") and not item:
            state = {}
        elif method == "delete":
            del state[item]
        else:
            state[item] = without_nulls(merged(state[item], body)) if method == "patch" else body
    return state


def split(path: str) -> tuple[str, str]:
    """The uri, and the id of an element."""
    parent, _, last = path.rpartition("/")
    return (parent, last) if parent.endswith("~") else (path, "")
