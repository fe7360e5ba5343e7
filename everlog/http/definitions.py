"""The routes of what is defined rather than stored: indexes, views, template indexes; and of transactions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import QueryParameter

from everlog.documents.indexes import Index, IndexNew, IndexSortItem
from everlog.documents.model import Transaction
from everlog.errors import InvalidDocument
from everlog.http.answers import PREFIX, json_answer
from everlog.http.document_requests import also, correlation, documents_of, segments, typed_body
from everlog.http.requests import AnyRequest, decode, flag, parameters, raw_rest


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


@post("/hyper-storage/indexes/{path:path}", status_code=201, responses=also(408, 409, 413))
async def post_index(request: AnyRequest) -> Response[bytes]:
    """Define an index of a collection."""
    (name,) = segments(request, "indexes", 1)
    index = await documents_of(request).create_index(name, await typed_body(request, IndexNew))
    body = {"indexId": index.index_id, "path": name, "_links": {"self": {"href": request.url.path}}}
    return json_answer(body, status=201, headers=correlation(request))


@get("/hyper-storage/indexes/{path:path}", responses=also(404))
async def get_index(request: AnyRequest) -> Response[bytes]:
    """One index, or all of a collection."""
    name, *index_id = segments(request, "indexes", 2)
    docs = documents_of(request)
    if index_id:
        return json_answer(_index_body(await docs.index(name, index_id[0])), headers=correlation(request))
    found = [_index_body(index) for index in await docs.indexes(name)]
    return json_answer({"_embedded": {"els": found}}, headers=correlation(request))


@delete("/hyper-storage/indexes/{path:path}", status_code=204, responses=also(404))
async def delete_index(request: AnyRequest) -> Response[None]:
    """Delete an index."""
    found = segments(request, "indexes", 2)
    if len(found) != 2:
        raise InvalidDocument("invalid-path", "which index? /indexes/{path}/{indexId}")
    await documents_of(request).delete_index(*found)
    return Response(None, status_code=204, headers=correlation(request))


def _transaction_body(found: Transaction) -> dict[str, Any]:
    return {"transactionId": found.id, "revision": found.revision, "completedAt": found.completed_ms}


@get("/hyper-storage/transactions", responses=also())
async def list_transactions(
    request: AnyRequest, path: Annotated[str | None, QueryParameter(description="The document's path")] = None
) -> Response[bytes]:
    """Writes of a document whose events are not out yet: `?path=…&incomplete=1`."""
    given = parameters(request)
    if not given.get("path") or not flag(given, "incomplete"):
        raise InvalidDocument("invalid-parameter", "ask for ?path=…&incomplete=1")
    found = await documents_of(request).pending(given["path"])
    return json_answer({"_embedded": {"els": [_transaction_body(one) for one in found]}})


@get("/hyper-storage/transactions/{path:path}", responses=also(404))
async def get_transaction(request: AnyRequest) -> Response[bytes]:
    """One write, by its id."""
    name = decode(raw_rest(request, f"{PREFIX}/transactions/"))
    return json_answer(_transaction_body(await documents_of(request).transaction(name)))


@put("/hyper-storage/views/{path:path}", status_code=201, responses=also(408, 409, 413))
async def put_view(request: AnyRequest) -> Response[bytes]:
    """Make a collection that shows what matches a template."""
    (name,) = segments(request, "views", 1)
    body: ViewBody = await typed_body(request, ViewBody)
    view = await documents_of(request).put_view(name, body.template_uri, body.filter)
    return json_answer({"path": view.uri, "template_uri": view.template, "filter": view.filter}, status=201)


@get("/hyper-storage/views/{path:path}", responses=also(404))
async def get_view(request: AnyRequest) -> Response[bytes]:
    """One view."""
    (name,) = segments(request, "views", 1)
    view = await documents_of(request).view(name)
    return json_answer({"path": view.uri, "template_uri": view.template, "filter": view.filter})


@delete("/hyper-storage/views/{path:path}", status_code=204, responses=also(404))
async def delete_view(request: AnyRequest) -> Response[None]:
    """Remove a view and what it shows."""
    (name,) = segments(request, "views", 1)
    await documents_of(request).delete_view(name)
    return Response(None, status_code=204)


@put("/hyper-storage/template-indexes/{path:path}", status_code=201, responses=also(408, 409, 413))
async def put_template_index(request: AnyRequest) -> Response[bytes]:
    """Give every matching collection an index."""
    (index_id,) = segments(request, "template-indexes", 1)
    body: TemplateIndexBody = await typed_body(request, TemplateIndexBody)
    new = IndexNew(index_id, body.sort_by, body.filter)
    made = await documents_of(request).put_template_index(index_id, body.template_uri, new)
    return json_answer({"indexId": made.index_id, "template_uri": made.template}, status=201)


@get("/hyper-storage/template-indexes/{path:path}", responses=also(404))
async def get_template_index(request: AnyRequest) -> Response[bytes]:
    """One template index."""
    (index_id,) = segments(request, "template-indexes", 1)
    found = await documents_of(request).template_index(index_id)
    definition = msgspec.json.decode(found.definition)
    return json_answer({**definition, "indexId": found.index_id, "template_uri": found.template})


@delete("/hyper-storage/template-indexes/{path:path}", status_code=204, responses=also(404))
async def delete_template_index(request: AnyRequest) -> Response[None]:
    """Remove a template index; indexes that it made stay."""
    (index_id,) = segments(request, "template-indexes", 1)
    await documents_of(request).delete_template_index(index_id)
    return Response(None, status_code=204)


DEFINITION_ROUTES = [
    post_index,
    get_index,
    delete_index,
    list_transactions,
    get_transaction,
    put_view,
    get_view,
    delete_view,
    put_template_index,
    get_template_index,
    delete_template_index,
]
