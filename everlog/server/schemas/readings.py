"""The ways to read a document, an element or a collection, and the parameters that fit each of them: one table.

The route refuses what does not fit by it, before anything is read, and the OpenAPI document is made of it. A new
parameter is a row of `_MEANINGS`, and its name stands in each way that it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from litestar.openapi.spec import OpenAPIType, Parameter, Schema

from everlog.documents.paths import PathKind
from everlog.errors import InvalidDocument

_TEXT = Schema(type=OpenAPIType.STRING)
_NUMBER = Schema(type=OpenAPIType.INTEGER)
_SINGLE: tuple[PathKind, ...] = ("document", "element")
_COLLECTION: tuple[PathKind, ...] = ("collection",)


class Reading(NamedTuple):
    """One way to read: the parameter that asks for it ("": none does), of which kinds of path, what else fits."""

    asked_by: str
    kinds: tuple[PathKind, ...]
    fits: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.asked_by, *self.fits) if self.asked_by else self.fits

    @property
    def text(self) -> str:
        """What it reads, for a message or a description."""
        if self.asked_by:
            return f"`{self.asked_by}`" + (" of a collection" if self.kinds == _COLLECTION else "")
        return "a page of a collection" if self.kinds == _COLLECTION else "a document or an element"


READINGS = (
    Reading("feed", _SINGLE + _COLLECTION, ("after",)),
    Reading("live", _COLLECTION, ("filter", "after")),
    Reading("count", _COLLECTION, ("filter", "after", "position", "explain")),
    Reading("history", _SINGLE + _COLLECTION, ("size", "after", "before", "position")),
    Reading("at", _SINGLE, ("after", "position")),
    Reading("at", _COLLECTION, ("size", "after", "position")),
    Reading("diff", _SINGLE, ("after", "position")),
    Reading("", _COLLECTION, ("filter", "sort", "size", "skipMax", "after", "position", "explain", "fields")),
    Reading("", _SINGLE, ("after", "position", "fields")),
)
_MEANINGS: dict[str, tuple[str, Schema]] = {
    "filter": ('Which elements: `total > 10 and customer = "ann"`', _TEXT),
    "sort": ("In which order: `-total,customer`", _TEXT),
    "size": ("How many elements or changes a page has", _NUMBER),
    "skipMax": ("How many rows may be read and rejected", _NUMBER),
    "after": (
        "Where the page begins, as `_links.next` has it; for history and feed, a revision; for live, a position; "
        "for `at`, an id in quotes; "
        "or a Journal-Position that the answer must include",
        _TEXT,
    ),
    "before": ("Only changes below this revision", _NUMBER),
    "position": ("A Journal-Position that the answer must include, besides an `after`", _TEXT),
    "fields": ("Only these fields of a body, `a,b.c`; an element keeps its id", _TEXT),
    "explain": ("1: how the query was answered", _TEXT),
    "history": ("The changes, oldest first; `reverse`: newest first", _TEXT),
    "at": ("The body at a revision or a time", _TEXT),
    "diff": ("`a,b`: the merge patch from one revision to another", _TEXT),
    "count": ('How many elements match the filter: `{"count": 12}`', _TEXT),
    "feed": ("The changes as they come, as server-sent events", _TEXT),
    "live": ("What matches now, then what enters, changes and leaves the filter, as server-sent events", _TEXT),
}


def reading_of(kind: PathKind, given: Mapping[str, str]) -> Reading:
    """The way to read that these parameters ask for; InvalidDocument if one of them does not fit it."""
    asked = [one for one in READINGS if kind in one.kinds and one.asked_by in given]
    found = asked[0] if asked else next(one for one in READINGS if not one.asked_by and kind in one.kinds)
    for name in given:
        if name not in found.names:
            allowed = sorted(found.names)
            what = f"{found.asked_by} of a {kind}" if found.asked_by else f"reading a {kind}"
            message = f"{name} does not fit here: {what} takes {', '.join(allowed)}"
            raise InvalidDocument("unfit-parameter", message, parameter=name, allowed=allowed)
    return found


def read_parameters() -> list[Parameter]:
    """What the OpenAPI document says of them."""
    return [
        Parameter(name, "query", schema=schema, description=f"{text}. Fits {_where(name)}")
        for name, (text, schema) in _MEANINGS.items()
    ]


def _where(name: str) -> str:
    return ", ".join(dict.fromkeys(one.text for one in READINGS if name in one.names))
