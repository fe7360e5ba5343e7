"""Which methods an address takes: what OPTIONS answers, and what the `Allow` of every 405 lists.

The routes say it, and below that the kind of a document's path: a collection takes POST and no PATCH, a document and an
element the other way round; of indexes, a collection's take POST, and one of them DELETE; what a view has set aside
takes POST.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everlog.documents.paths import PathKind, parse_path
from everlog.errors import InvalidDocument
from everlog.server.requests import AnyRequest, decode, raw_rest

CONTENT = "/hyper-storage/content/"
INDEXES = "/hyper-storage/indexes/"
VIEWS = "/hyper-storage/views/"
_ORDER = ("GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "OPTIONS")
READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})
_BY_KIND: dict[PathKind, frozenset[str]] = {
    "document": frozenset({"PUT", "PATCH", "DELETE"}) | READ_ONLY,
    "collection": frozenset({"PUT", "POST", "DELETE"}) | READ_ONLY,
    "element": frozenset({"PUT", "PATCH", "DELETE"}) | READ_ONLY,
}


def allow(methods: Iterable[str], request: AnyRequest) -> str:
    """The methods of a route that this address takes, as a header lists them. Whatever has GET has HEAD."""
    found = {*methods, "OPTIONS"}
    if "GET" in found:
        found.add("HEAD")
    narrower = _narrower(request)
    return ", ".join(method for method in _ORDER if method in found and (narrower is None or method in narrower))


def _narrower(request: AnyRequest) -> frozenset[str] | None:
    path: Any = request.scope["path"]
    if path.startswith(CONTENT):
        try:
            return _BY_KIND[parse_path(decode(raw_rest(request, CONTENT))).kind]
        except InvalidDocument:
            return None
    if path.startswith(INDEXES):
        one = "/" in raw_rest(request, INDEXES)
        return READ_ONLY | ({"DELETE"} if one else {"POST"})
    if path.startswith(VIEWS):
        unshown = "/" in raw_rest(request, VIEWS)
        return READ_ONLY | ({"POST"} if unshown else {"PUT", "DELETE"})
    return None
