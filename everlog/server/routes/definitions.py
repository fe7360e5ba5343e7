"""The routes of what is defined rather than stored: indexes, views, template indexes; and of transactions."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
from litestar import Response, delete, get, post, put
from litestar.openapi.spec import Schema

from everlog.documents.indexes import Index, IndexNew, IndexSortItem
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import parse_collection
from everlog.documents.port import DocumentView, TemplateIndex
from everlog.documents.unshown import UnshownElement
from everlog.errors import DocumentNotFound, InvalidDocument
from everlog.server.answers import hal_answer, json_answer
from everlog.server.documents import (
    PREFIX,
    body_bytes,
    collection_paths,
    correlation,
    documents_of,
    pending_paths,
    segments,
    transaction_paths,
    typed_body,
)
from everlog.server.requests import AnyRequest, decode, flag, parameters, raw_rest, whole_number
from everlog.server.routes.nodes import routed
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import (
    COLLECTION_PATH,
    CORRELATION,
    INDEX,
    INDEX_CREATED,
    INDEX_NEW,
    NUMBER,
    RETRIED,
    TEMPLATE,
    TEMPLATE_CREATED,
    TEMPLATE_NEW,
    TRANSACTION,
    VIEW,
    VIEW_NEW,
    VIEW_OR_UNSHOWN,
    answer,
    elements,
    operation,
    path_parameter,
    query,
)
from everlog.server.security.guard import check_template, in_body
from everlog.server.security.principal import Verb, principal_of

GONE = answer("Gone")
VIEW_PATH = path_parameter("The view's path, one segment: a slash is %2F. What it cannot show: `…/unshown`", "rich~")
TEMPLATE_PATH = path_parameter("The id of the template index", "by-name")


class ViewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a view shows."""

    template_uri: str
    filter: str | None = None


class TemplateIndexBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which collections get which index."""

    template_uri: str
    sort_by: tuple[IndexSortItem, ...] = ()
    filter: str | None = None


def _index_body(index: Index) -> dict[str, Any]:
    found: dict[str, Any] = {
        "indexId": index.index_id,
        "sortBy": index.sort_by,
        "status": index.status.name.lower(),
        "revision": index.revision,
        "count": index.count,
    }
    if index.filter_by is not None:
        found["filterBy"] = index.filter_by
    if index.reason is not None:
        found["reason"] = index.reason
    return found


@post(
    "/hyper-storage/indexes/{path:path}",
    opt={"paths": collection_paths("indexes")},
    status_code=201,
    operation_class=operation(
        COLLECTION_PATH,
        CORRELATION,
        answers={201: answer("Defined; it is being built", INDEX_CREATED, examples=examples.INDEX_CREATED)},
        refusals=(408, 409, 413, 421, 504),
        body=INDEX_NEW,
        example=examples.INDEX_NEW,
    ),
)
async def post_index(request: AnyRequest) -> Response[Any]:
    """Define an index of a collection."""
    (name,) = segments(request, "indexes", 1)
    data = await body_bytes(request)
    new: IndexNew = await typed_body(request, data, IndexNew)
    docs, uri = documents_of(request), parse_collection(name)
    return await routed(request, docs.completers, uri, data, lambda: _create_index(request, name, new))


async def _create_index(request: AnyRequest, name: str, new: IndexNew) -> Response[bytes]:
    index = await documents_of(request).create_index(name, new)
    body = {"indexId": index.index_id, "path": name, "_links": {"self": {"href": request.url.path}}}
    return hal_answer(request, body, status=201, headers=correlation(request))


@get(
    "/hyper-storage/indexes/{path:path}",
    opt={"paths": collection_paths("indexes")},
    operation_class=operation(
        COLLECTION_PATH,
        CORRELATION,
        answers={200: answer("One index, or all", Schema(any_of=[INDEX, elements(INDEX)]), examples=examples.INDEX)},
    ),
)
async def get_index(request: AnyRequest) -> Response[bytes]:
    """One index, or all of a collection."""
    name, *index_id = segments(request, "indexes", 2)
    docs = documents_of(request)
    if index_id:
        return json_answer(_index_body(await docs.index(name, index_id[0])), headers=correlation(request))
    found = [_index_body(index) for index in await docs.indexes(name)]
    return hal_answer(request, {"_embedded": {"els": found}}, headers=correlation(request))


@delete(
    "/hyper-storage/indexes/{path:path}",
    opt={"paths": collection_paths("indexes")},
    status_code=200,  # what another node answers has a body when it is an error; so this route may have one
    operation_class=operation(COLLECTION_PATH, CORRELATION, answers={204: GONE}, refusals=(421, 504)),
)
async def delete_index(request: AnyRequest) -> Response[Any]:
    """Delete an index."""
    found = segments(request, "indexes", 2)
    if len(found) != 2:
        raise InvalidDocument("invalid-path", "which index? /indexes/{path}/{indexId}")
    docs, uri = documents_of(request), parse_collection(found[0])
    return await routed(request, docs.completers, uri, b"", lambda: _delete_index(request, *found))


async def _delete_index(request: AnyRequest, name: str, index_id: str) -> Response[None]:
    await documents_of(request).delete_index(name, index_id)
    return Response(None, status_code=204, headers=correlation(request))


def _transaction_body(found: DocumentTransaction) -> dict[str, Any]:
    return {
        "transactionId": found.id,
        "revision": found.revision,
        "completedAt": found.completed_ms,
        "position": None if found.position is None else str(found.position),
        "by": found.by,
    }


@get(
    "/hyper-storage/transactions",
    opt={"paths": pending_paths},
    operation_class=operation(
        query("path", "The document's path"),
        query("incomplete", "1: those whose events are not out yet"),
        answers={200: answer("The writes", elements(TRANSACTION), examples=examples.TRANSACTIONS)},
    ),
)
async def list_transactions(request: AnyRequest) -> Response[bytes]:
    """Writes of a document whose events are not out yet: `?path=…&incomplete=1`."""
    given = parameters(request)
    if not given.get("path") or not flag(given, "incomplete"):
        raise InvalidDocument("invalid-parameter", "ask for ?path=…&incomplete=1")
    found = await documents_of(request).pending(given["path"])
    return hal_answer(request, {"_embedded": {"els": [_transaction_body(one) for one in found]}})


@get(
    "/hyper-storage/transactions/{path:path}",
    opt={"paths": transaction_paths},
    operation_class=operation(
        path_parameter("`path:uuid:revision`, as a write answers", examples.TRANSACTION_ID),
        answers={200: answer("The write", TRANSACTION, examples=examples.TRANSACTION)},
    ),
)
async def get_transaction(request: AnyRequest) -> Response[bytes]:
    """One write, by its id."""
    name = decode(raw_rest(request, f"{PREFIX}/transactions/"))
    return json_answer(_transaction_body(await documents_of(request).transaction(name)))


def _view_body(view: DocumentView) -> dict[str, Any]:
    found = {"path": view.uri, "template_uri": view.template, "filter": view.filter, "status": view.status}
    return found if view.unshown is None else {**found, "unshown": view.unshown}


@put(
    "/hyper-storage/views/{path:path}",
    opt={"paths": collection_paths("views")},
    status_code=201,
    operation_class=operation(
        COLLECTION_PATH,
        answers={201: answer("Defined", VIEW, examples=examples.VIEW)},
        refusals=(408, 409, 413, 421, 429, 504),
        body=VIEW_NEW,
        example=examples.VIEW_NEW,
    ),
)
async def put_view(request: AnyRequest) -> Response[Any]:
    """Make a collection that shows what matches a template."""
    (name,) = segments(request, "views", 1)
    data = await body_bytes(request)
    body: ViewBody = await typed_body(request, data, ViewBody)
    # Else a view would show what its maker, or its readers, may not see.
    check_template(request, "read", body.template_uri)
    docs, uri = documents_of(request), parse_collection(name)
    return await routed(request, docs.completers, uri, data, lambda: _put_view(request, name, body))


async def _put_view(request: AnyRequest, name: str, body: ViewBody) -> Response[bytes]:
    view = await documents_of(request).put_view(name, body.template_uri, body.filter, by=principal_of(request).name)
    return json_answer(_view_body(view), status=201)


@get(
    "/hyper-storage/views",
    operation_class=operation(answers={200: answer("The views", elements(VIEW), examples=examples.VIEWS)}),
)
async def list_views(request: AnyRequest) -> Response[bytes]:
    """All views."""
    found = [_view_body(view) for view in await documents_of(request).views()]
    return json_answer({"_embedded": {"els": found}})


@get(
    "/hyper-storage/views/{path:path}",
    opt={"paths": collection_paths("views")},
    operation_class=operation(
        VIEW_PATH,
        query("after", "With `/unshown`: the path behind which the page begins"),
        query("size", "With `/unshown`: how many elements a page has", NUMBER),
        answers={200: answer("The view, or a page of what it cannot show", VIEW_OR_UNSHOWN, examples=examples.VIEW)},
    ),
)
async def get_view(request: AnyRequest) -> Response[bytes]:
    """One view; with `/unshown` behind it, what matches it and is set aside, with the reasons."""
    name, *rest = _view_segments(request)
    given = parameters(request)
    if not rest:
        if given:
            raise InvalidDocument(
                "unfit-parameter", f"{next(iter(given))} goes with /unshown behind a view", allowed=[]
            )
        return json_answer(_view_body(await documents_of(request).view(name)))
    await _check_shown(request, name)
    limit = _limit(given)
    found = await documents_of(request).unshown(name, after=given.get("after", ""), limit=limit)
    body: dict[str, Any] = {"_embedded": {"els": [_unshown_body(one) for one in found]}}
    if len(found) == limit:
        query_text = urlencode({"size": limit, "after": found[-1].source})
        body["_links"] = {"next": {"href": f"{request.url.path}?{query_text}"}}
    return json_answer(body)


@post(
    "/hyper-storage/views/{path:path}",
    opt={"paths": collection_paths("views")},
    status_code=200,
    operation_class=operation(
        VIEW_PATH,
        query("source", "Only this path"),
        query("after", "The path behind which to begin"),
        query("size", "How many to try", NUMBER),
        answers={200: answer("What became of them", RETRIED, examples=examples.RETRIED)},
        refusals=(429, 504),
    ),
)
async def retry_view(request: AnyRequest) -> Response[bytes]:
    """`…/unshown`: try again what a view has set aside."""
    name, *rest = _view_segments(request)
    if not rest:
        raise InvalidDocument("invalid-path", "try again what is set aside: POST /views/{path}/unshown")
    await _check_shown(request, name)
    given = parameters(request)
    retried = await documents_of(request).retry_unshown(
        name, source=given.get("source"), after=given.get("after", ""), limit=_limit(given)
    )
    return json_answer(retried)


async def _check_shown(request: AnyRequest, name: str) -> None:
    """What a view cannot show is not in it: to see its paths takes the right to read what the view may show."""
    check_template(request, "read", (await documents_of(request).view(name)).template)


def _view_segments(request: AnyRequest) -> list[str]:
    found = segments(request, "views", 2)
    if found[1:] not in ([], ["unshown"]):
        raise InvalidDocument("invalid-path", "behind a view stands /unshown, or nothing")
    return found


def _limit(given: dict[str, str]) -> int:
    size = whole_number(given, "size")
    return 100 if size is None else size


def _unshown_body(one: UnshownElement) -> dict[str, Any]:
    return {
        "source": one.source,
        "code": one.code,
        "reason": one.reason,
        "revision": one.revision,
        "since": one.since_ms,
        "attempts": one.attempts,
    }


@delete(
    "/hyper-storage/views/{path:path}",
    opt={"paths": collection_paths("views")},
    status_code=204,
    operation_class=operation(COLLECTION_PATH, answers={204: GONE}, refusals=(429, 504)),
)
async def delete_view(request: AnyRequest) -> Response[None]:
    """Remove a view and what it shows."""
    (name,) = segments(request, "views", 1)
    await documents_of(request).delete_view(name, by=principal_of(request).name)
    return Response(None, status_code=204)


@put(
    "/hyper-storage/template-indexes/{path:path}",
    opt={"paths": in_body},
    status_code=201,
    operation_class=operation(
        TEMPLATE_PATH,
        answers={201: answer("Defined", TEMPLATE_CREATED, examples=examples.TEMPLATE_CREATED)},
        refusals=(408, 409, 413),
        body=TEMPLATE_NEW,
        example=examples.TEMPLATE_NEW,
    ),
)
async def put_template_index(request: AnyRequest) -> Response[bytes]:
    """Give every matching collection an index."""
    (index_id,) = segments(request, "template-indexes", 1)
    body: TemplateIndexBody = await typed_body(request, await body_bytes(request), TemplateIndexBody)
    check_template(request, "write", body.template_uri)
    new = IndexNew(index_id, body.sort_by, body.filter)
    made = await documents_of(request).put_template_index(index_id, body.template_uri, new)
    return json_answer({"indexId": made.index_id, "template_uri": made.template}, status=201)


@get(
    "/hyper-storage/template-indexes/{path:path}",
    opt={"paths": in_body},
    operation_class=operation(
        TEMPLATE_PATH, answers={200: answer("The template", TEMPLATE, examples=examples.TEMPLATE)}
    ),
)
async def get_template_index(request: AnyRequest) -> Response[bytes]:
    """One template index."""
    (index_id,) = segments(request, "template-indexes", 1)
    found = await _template_index(request, "read", index_id)
    definition = msgspec.json.decode(found.definition)
    return json_answer({**definition, "indexId": found.index_id, "template_uri": found.template})


@delete(
    "/hyper-storage/template-indexes/{path:path}",
    opt={"paths": in_body},
    status_code=204,
    operation_class=operation(TEMPLATE_PATH, answers={204: GONE}),
)
async def delete_template_index(request: AnyRequest) -> Response[None]:
    """Remove a template index; indexes that it made stay."""
    (index_id,) = segments(request, "template-indexes", 1)
    await _template_index(request, "write", index_id)
    await documents_of(request).delete_template_index(index_id)
    return Response(None, status_code=204)


async def _template_index(request: AnyRequest, verb: Verb, index_id: str) -> TemplateIndex:
    """A template index. One for documents that the sender may not reach is as if it were not there: its id says
    nothing about them, so a refusal would.
    """
    found = await documents_of(request).template_index(index_id)
    if not principal_of(request).may_cover(verb, found.template):
        raise DocumentNotFound("index-not-found", f"there is no template index {index_id!r}")
    return found


DEFINITION_ROUTES = [
    post_index,
    get_index,
    delete_index,
    list_transactions,
    get_transaction,
    put_view,
    list_views,
    get_view,
    retry_view,
    delete_view,
    put_template_index,
    get_template_index,
    delete_template_index,
]
