"""A list of collections: what there is, page by page in the order of their paths.

A page reads at most as many collections as it may have, so it may be short, even empty, and still lead to the next one.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from everlog.documents.paths import FORBIDDEN, MAX_URI_BYTES
from everlog.errors import InvalidDocument

MAX_COLLECTIONS = 1000


class CollectionSummary(msgspec.Struct, frozen=True):
    """A collection at one glance. `view`: it shows what is elsewhere; `indexes`: how many are not being deleted."""

    path: str
    revision: int
    count: int
    view: bool
    indexes: int


class CollectionsPage(msgspec.Struct, frozen=True):
    """Some collections. `next`: the path that the next page begins behind; None at the end."""

    collections: list[CollectionSummary]
    next: str | None = None


class PrefixRange(NamedTuple):
    """Paths from `low` on and below `high`.

    No path has the last code point, so it ends all that begin alike.
    """

    low: str
    high: str


def prefix_range(prefix: str, after: str) -> PrefixRange:
    """The paths that begin like this and lie behind another one."""
    for name, text in (("prefix", prefix), ("after", after)):
        if not isinstance(text, str) or FORBIDDEN.search(text) or len(text.encode()) > MAX_URI_BYTES:
            raise InvalidDocument("invalid-parameter", f"{name} is a path, or its beginning", parameter=name)
    return PrefixRange(max(prefix, after + "\0" if after else ""), prefix + "\U0010ffff")
