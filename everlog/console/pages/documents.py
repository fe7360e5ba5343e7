"""Documents: browse, filter with the plan next to the result, indexes, history, and the difference of two revisions."""

from __future__ import annotations

from typing import Any

import msgspec

from everlog.console.console import ConsolePage, Context, Model
from everlog.console.pages.journal import first_keys
from everlog.documents.api import Documents
from everlog.documents.collections import CollectionSummary
from everlog.documents.history import DocumentEvent
from everlog.documents.indexes import Index, IndexStatus
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.documents.query import Query
from everlog.documents.schemas.model import DocumentSchema, SchemaCheck
from everlog.documents.schemas.targets import applies
from everlog.errors import DocumentNotFound, QueryLimited
from everlog.server.documents import content_url
from everlog.server.requests import AnyRequest, parameters
from everlog.wire.documents import check_body

SIZE = 50
HISTORY = 30


async def build_documents(context: Context) -> Model:
    path = context.text("path").strip("/")
    model: Model = {"path": path, "paths": [], "more": False, "kind": None, "collections": []}
    if not path:
        model["paths"], model["more"] = await _paths(context, context.text("text"))
        model["schemas"] = await _schemas(context, None)
        model["collections"] = await _collections(context)
        return model
    docs = context.log.documents
    kind = parse_path(path).kind
    model["schemas"] = await _schemas(context, path)
    model |= {"kind": kind, "url": content_url(path), "parent": parse_path(path).uri if kind == "element" else None}
    if kind == "collection":
        model |= await _collection(context, docs, path)
    else:
        model |= await _document(docs, path)
    model["history"] = [_event(one) async for one in docs.history(path, limit=HISTORY, reverse=True)]
    model["diff"] = await _diff(context, docs, path) if kind != "collection" else None
    return model


async def _schemas(context: Context, path: str | None) -> list[dict[str, Any]]:
    """The schemas that hold for a path, or all, with what their last checks have found.

    A check counts and names all documents of its template: it is for visitors who may read all of these.
    """
    visitor = context.visitor
    found = await (await context.log.documents.open()).schemas.overview()
    if path is None:
        found = [(schema, check) for schema, check in found if visitor.may_cover("read", schema.template)]
    if path is not None:
        place = parse_path(path)
        # Of a collection, those that are for its elements.
        place = DocumentPlace(place.uri, "-") if place.kind == "collection" else place
        found = [(schema, check) for schema, check in found if applies(schema.template, place)]
    return [_schema(schema, check if visitor.may_cover("read", schema.template) else None) for schema, check in found]


def _schema(schema: DocumentSchema, check: SchemaCheck | None) -> dict[str, Any]:
    stale = check is not None and check.version != schema.version
    problems = [] if check is None else check.problems[:SIZE]
    return {
        "id": schema.schema_id,
        "template": schema.template,
        "schema": schema.body,
        "modified_ms": schema.modified_ms,
        "check": check and {**msgspec.to_builtins(check_body(check)), "problems": problems, "stale": stale},
    }


async def _collections(context: Context) -> list[CollectionSummary]:
    """The first collections, those among them that the visitor may read."""
    found = await context.log.documents.collections(context.text("text"), size=SIZE)
    return [one for one in found.collections if context.visitor.may_reach("read", one.path)]


def _asked_for(request: AnyRequest) -> list[str]:
    """The path that the page is about; without one it lists those that its visitor may read."""
    path = parameters(request).get("path", "").strip("/")
    return [path] if path else []


async def _paths(context: Context, text: str) -> tuple[list[dict[str, Any]], bool]:
    """Every document that ever had a change: each is a journal of the topic of documents.

    To a visitor who may read only some of them it is not said whether there are more: that would be about the others.
    """
    log, visitor = context.log, context.visitor
    topic = log.config.documents.topic
    if topic not in await log.topics():
        return [], visitor.limited
    uris, more = await first_keys(log, topic, lambda uri: text in uri and visitor.may_reach("read", uri))
    more = more or visitor.limited
    return [{"path": uri, "kind": "collection" if uri.endswith("~") else "document"} for uri in sorted(uris)], more


async def _collection(context: Context, docs: Documents, path: str) -> Model:
    """A page of elements and how it was found; a query that reads too much says which index would help."""
    query = Query(
        filter=context.text("filter"),
        sort=context.text("sort"),
        size=SIZE,
        after=context.text("after") or None,
        explain=True,
    )
    found: Model = {"elements": [], "plan": None, "next": None, "revision": None, "count": None, "limited": None}
    try:
        page = await docs.list(path, query)
        found |= {"elements": page.exact, "plan": page.explanation, "next": page.next}
        found |= {"revision": page.revision, "count": page.count}
    except QueryLimited as error:
        found["limited"] = str(error)
    indexes = [_index(one, found["count"]) for one in await docs.indexes(path)]
    return {**found, "indexes": indexes, "view": await _view(docs, path)}


async def _view(docs: Documents, path: str) -> dict[str, Any] | None:
    """If the collection is a view: what it shows, and what it cannot show."""
    try:
        view = await docs.view(path)
    except DocumentNotFound:
        return None
    aside = await docs.unshown(path, limit=SIZE) if view.unshown else []
    return {
        "template": view.template,
        "filter": view.filter,
        "status": view.status,
        "count": view.unshown or 0,
        "unshown": aside,
    }


async def _document(docs: Documents, path: str) -> Model:
    """The body as it is now; what is deleted still has its history."""
    try:
        found = await docs.get(path)
    except DocumentNotFound:
        return {"document": None, "revision": None}
    return {
        "document": found.exact,
        "revision": found.revision,
        "etag": found.etag,
        "created_ms": found.created_ms,
        "modified_ms": found.modified_ms,
    }


async def _diff(context: Context, docs: Documents, path: str) -> dict[str, Any] | None:
    old, new = context.whole("old"), context.whole("new")
    if old is None or new is None:
        return None
    try:
        patch = await docs.diff(path, old, new, exact=True)
        return {"old": old, "new": new, "patch": patch, "missing": None}
    except DocumentNotFound as error:
        return {"old": old, "new": new, "patch": None, "missing": str(error)}


def _index(one: Index, elements: int | None) -> dict[str, Any]:
    building = one.status is IndexStatus.INDEXING
    # With a filter the number of elements is unknown: then only the place in the collection is shown.
    counted = building and not one.filter_by and bool(elements) and one.count is not None
    return {
        "id": one.index_id,
        "status": one.status.name.lower(),
        "sort_by": [f"{item.field_name} {item.order}" for item in one.sort_by],
        "filter_by": one.filter_by,
        "count": one.count,
        "built_to": one.built_to or None,
        "reason": one.reason,
        "progress": min(99, 100 * (one.count or 0) // (elements or 1)) if counted else None,
    }


def _event(one: DocumentEvent) -> dict[str, Any]:
    return {
        "revision": one.revision,
        "method": one.method.removeprefix("feed:"),
        "path": one.path,
        "time_ms": one.time_ms,
        "message_id": one.message_id,
        "by": one.by,
        "body": one.exact,
    }


DOCUMENTS = ConsolePage("documents", "Documents", "documents.html", build_documents, paths=_asked_for)
