"""The route that lists collections."""

from __future__ import annotations

from typing import Any

from litestar import Response, get

from everlog.documents.collections import MAX_COLLECTIONS
from everlog.documents.query import bounded
from everlog.server.answers import hal_answer
from everlog.server.documents import PREFIX, correlation, documents_of, link_to
from everlog.server.negotiation import packed
from everlog.server.requests import AnyRequest, parameters, whole_number
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import COLLECTION, CORRELATION, NUMBER, answer, elements, operation, query

COLLECTIONS = f"{PREFIX}/collections"
PAGE = 100


@get(
    COLLECTIONS,
    operation_class=operation(
        query("prefix", "Only paths that begin like this"),
        query("after", "Only paths behind this one, as `_links.next` has it"),
        query("size", "How many a page has at most: 100, up to 1,000", NUMBER),
        CORRELATION,
        answers={200: answer("The collections", elements(COLLECTION), examples=examples.COLLECTIONS)},
    ),
)
async def get_collections(request: AnyRequest) -> Response[Any]:
    """The collections in the order of their paths, with how many elements and indexes they have."""
    given = parameters(request)
    prefix, size = (
        given.get("prefix", ""),
        bounded("size", whole_number(given, "size"), 1, MAX_COLLECTIONS, default=PAGE),
    )
    page = await documents_of(request).collections(prefix, after=given.get("after", ""), size=size)
    body: dict[str, Any] = {"_embedded": {"els": page.collections}}
    if page.next is not None:
        body["_links"] = link_to(COLLECTIONS, {"prefix": prefix or None, "size": size, "after": page.next})
    return await packed(request, hal_answer(request, body, headers=correlation(request)))


COLLECTION_ROUTES = [get_collections]
