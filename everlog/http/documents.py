"""The routes of documents. Paths are taken as they were sent, so that an encoded slash stays part of its segment."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, patch, post, put, route
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import QueryParameter
from litestar.response import Stream

from everlog.config import DocumentsConfig
from everlog.documents.bodies import decode_body
from everlog.documents.conditional import Preconditions
from everlog.documents.documents import Documents
from everlog.documents.indexes import Index, IndexNew, IndexSortItem
from everlog.documents.model import Method, Transaction
from everlog.documents.paths import parse_path
from everlog.documents.query import Query
from everlog.errors import InvalidDocument
from everlog.http.answers import (
    PREFIX,
    document_answer,
    event_body,
    json_answer,
    page_answer,
    page_etag,
    revision_headers,
    server_sent,
    written_answer,
)
from everlog.http.errors import ErrorBody
from everlog.http.requests import AnyRequest, decode, flag, parameters, raw_rest, read_body, whole_number

CONTENT = f"{PREFIX}/content/"
HISTORY_PAGE = 100


class ViewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a view shows."""

    template_uri: str
    filter: str | None = None


class TemplateIndexBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which collections get which index."""

    template_uri: str
    sort_by: tuple[IndexSortItem, ...] = ()
    filter: str | None = None


def _also(*statuses: int) -> dict[int, ResponseSpec]:
    """What else a route may answer: errors, and a second way to succeed."""
    return {
        status: ResponseSpec(
            ErrorBody if status >= 400 else None,
            generate_examples=False,
            description=HTTPStatus(status).phrase,
        )
        for status in sorted({*statuses, 400, 414, 500, 503, 507})
    }


def _documents(request: AnyRequest) -> Documents:
    found: Documents = request.app.state.documents
    return found


def _config(request: AnyRequest) -> DocumentsConfig:
    found: DocumentsConfig = request.app.state.config.documents
    return found


def _correlation(request: AnyRequest) -> dict[str, str]:
    """The request's own id comes back with the answer."""
    found = request.headers.get("hyperbus-correlation-id")
    return {} if found is None else {"Hyperbus-Correlation-Id": found}


def _content_path(request: AnyRequest) -> str:
    return decode(raw_rest(request, CONTENT))


async def _json_body(request: AnyRequest) -> Any:
    config = _config(request)
    data = await read_body(request, limit=config.max_body_bytes, seconds=config.request_timeout)
    return decode_body(data)


async def _typed_body(request: AnyRequest, kind: Any) -> Any:
    try:
        return msgspec.convert(await _json_body(request), kind)
    except msgspec.ValidationError as error:
        raise InvalidDocument("invalid-body", f"this body is not what is expected here: {error}") from error


async def _write(request: AnyRequest, method: Method, body: Any) -> Response[bytes]:
    headers = request.headers
    message_id = headers.get("hyperbus-message-id", headers.get("idempotency-key"))
    wait = headers.get("hyper-storage-wait")
    if wait not in (None, "full", "none"):
        raise InvalidDocument("invalid-header", "Hyper-Storage-Wait is 'full' or 'none'")
    written = await _documents(request).write(
        method,
        _content_path(request),
        body,
        if_match=headers.get("if-match"),
        if_none_match=headers.get("if-none-match"),
        message_id=message_id,
        correlation_id=headers.get("hyperbus-correlation-id"),
        wait=wait == "full",
    )
    answer = _correlation(request)
    if message_id is not None:
        answer["Hyperbus-Message-Id"] = message_id
    return written_answer(written, answer)


@route(
    "/hyper-storage/content/{path:path}",
    http_method=["GET", "HEAD"],
    name="content.get",
    responses=_also(304, 404, 504),
    description="A document, an element, or a page of a collection; with `feed`, `history`, `at`, `diff` its changes.",
)
async def get_content(
    request: AnyRequest,
    size: Annotated[str | None, QueryParameter(description="How many elements a page has")] = None,
    filter_: Annotated[str | None, QueryParameter(name="filter", description="Which elements")] = None,
    sort: Annotated[str | None, QueryParameter(description="-field1,+field2")] = None,
) -> Response[Any]:
    docs, given, headers = _documents(request), parameters(request), _correlation(request)
    name = _content_path(request)
    if "feed" in given and request.method == "GET":
        return await _feed(request, name, given)
    if "history" in given:
        return await _history(docs, name, given, headers)
    if "at" in given:
        return await _at(docs, name, given["at"], headers)
    if "diff" in given:
        return await _diff(docs, name, given["diff"], headers)
    conditions = Preconditions.of(request.headers.get("if-match"), request.headers.get("if-none-match"))
    if parse_path(name).kind == "collection":
        page = await docs.list(name, _query(given))
        if conditions.unchanged(page_etag(page)):
            return _unchanged(page_etag(page), page.revision, headers)
        return page_answer(name, page, given, headers)
    found = await docs.get(name)
    if conditions.unchanged(found.etag):
        return _unchanged(found.etag, found.revision, headers)
    return document_answer(found, headers)


def _unchanged(etag: str, revision: int, headers: dict[str, str]) -> Response[None]:
    return Response(None, status_code=304, headers=headers | revision_headers(revision) | {"ETag": etag})


def _query(given: dict[str, str]) -> Query:
    return Query(
        filter=given.get("filter", ""),
        sort=given.get("sort", ""),
        size=whole_number(given, "size"),
        skip_max=whole_number(given, "skipMax"),
        after=given.get("after"),
        explain=flag(given, "explain"),
    )


async def _feed(request: AnyRequest, path: str, given: dict[str, str]) -> Stream:
    """`Last-Event-ID`, or `after` for those who cannot set headers: go on behind that revision."""
    last = request.headers.get("last-event-id", given.get("after"))
    after = whole_number({"Last-Event-ID": last}, "Last-Event-ID") if last is not None else None
    if after is not None and after < 0:
        raise InvalidDocument("invalid-parameter", "Last-Event-ID is a revision, 0 for the beginning")
    docs, config = _documents(request), _config(request)
    parse_path(path)
    return Stream(
        lambda: server_sent(docs.feed(path, after=after), every=config.feed_checkpoint),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store"},
    )


async def _history(docs: Documents, path: str, given: dict[str, str], headers: dict[str, str]) -> Response[bytes]:
    """Changes, oldest first, or newest first with `history=reverse`; `after` is a revision."""
    size = whole_number(given, "size")
    limit = HISTORY_PAGE if size is None else size
    after = whole_number(given, "after") or 0
    if not 1 <= limit <= 1000 or after < 0:
        raise InvalidDocument("invalid-parameter", "size is between 1 and 1,000, after is a revision")
    reverse = given["history"] == "reverse"
    found = [event async for event in docs.history(path, after=after, limit=limit, reverse=reverse)]
    body: dict[str, Any] = {"_embedded": {"els": [event_body(event) for event in found]}}
    if len(found) == limit and not reverse:
        body["_links"] = {"next": {"href": f"?history&size={limit}&after={found[-1].revision}"}}
    return json_answer(body, headers=headers)


async def _at(docs: Documents, path: str, text: str, headers: dict[str, str]) -> Response[bytes]:
    """A revision, or a time such as 2026-01-31T12:00:00Z."""
    if text.isdecimal() and len(text) <= 18:
        revision = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text.replace(" ", "+"))
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise InvalidDocument("invalid-parameter", "at is a revision, or a time such as 2026-01-31T12:00:00Z")
        revision = await docs.revision_at(path, moment)
    body = await docs.at(path, revision)
    wrapped = {"_embedded": {"els": body}} if parse_path(path).kind == "collection" else body
    return json_answer(wrapped, headers=headers | revision_headers(revision))


async def _diff(docs: Documents, path: str, text: str, headers: dict[str, str]) -> Response[bytes]:
    old, comma, new = text.partition(",")
    if not comma or not old.isdecimal() or not new.isdecimal() or len(text) > 37:
        raise InvalidDocument("invalid-parameter", "diff is two revisions: diff=3,5")
    patch_ = await docs.diff(path, int(old), int(new))
    return json_answer(patch_, headers=headers | {"Content-Type": "application/merge-patch+json"})


@put(
    "/hyper-storage/content/{path:path}", status_code=200, responses=_also(201, 404, 408, 409, 412, 413, 422, 429, 504)
)
async def put_content(request: AnyRequest) -> Response[bytes]:
    """Store a document or an element; without a body, begin an empty collection."""
    config = _config(request)
    data = await read_body(request, limit=config.max_body_bytes, seconds=config.request_timeout)
    place = parse_path(_content_path(request))
    return await _write(request, "put", None if not data and place.kind == "collection" else decode_body(data))


@patch("/hyper-storage/content/{path:path}", status_code=200, responses=_also(404, 408, 409, 412, 413, 422, 429, 504))
async def patch_content(request: AnyRequest) -> Response[bytes]:
    """Merge into what is stored (RFC 7396)."""
    return await _write(request, "patch", await _json_body(request))


@delete("/hyper-storage/content/{path:path}", status_code=200, responses=_also(404, 409, 412, 422, 429, 504))
async def delete_content(request: AnyRequest) -> Response[bytes]:
    """Delete a document, an element or a collection."""
    return await _write(request, "delete", None)


@post(
    "/hyper-storage/content/{path:path}",
    status_code=201,
    responses=_also(405, 408, 409, 412, 413, 422, 429, 504),
)
async def post_content(request: AnyRequest) -> Response[bytes]:
    """Add an element to a collection under a new id."""
    return await _write(request, "post", await _json_body(request))


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


def _segments(request: AnyRequest, prefix: str, most: int) -> list[str]:
    """Percent-encoded segments behind a prefix."""
    found = [decode(segment) for segment in raw_rest(request, f"{PREFIX}/{prefix}/").split("/")]
    if not 1 <= len(found) <= most or not all(found):
        raise InvalidDocument("invalid-path", "a slash inside a path or an id is written as %2F here")
    return found


@post("/hyper-storage/indexes/{path:path}", status_code=201, responses=_also(408, 409, 413))
async def post_index(request: AnyRequest) -> Response[bytes]:
    """Define an index of a collection."""
    (name,) = _segments(request, "indexes", 1)
    index = await _documents(request).create_index(name, await _typed_body(request, IndexNew))
    body = {"indexId": index.index_id, "path": name, "_links": {"self": {"href": request.url.path}}}
    return json_answer(body, status=201, headers=_correlation(request))


@get("/hyper-storage/indexes/{path:path}", responses=_also(404))
async def get_index(request: AnyRequest) -> Response[bytes]:
    """One index, or all of a collection."""
    name, *index_id = _segments(request, "indexes", 2)
    docs = _documents(request)
    if index_id:
        return json_answer(_index_body(await docs.index(name, index_id[0])), headers=_correlation(request))
    found = [_index_body(index) for index in await docs.indexes(name)]
    return json_answer({"_embedded": {"els": found}}, headers=_correlation(request))


@delete("/hyper-storage/indexes/{path:path}", status_code=204, responses=_also(404))
async def delete_index(request: AnyRequest) -> Response[None]:
    """Delete an index."""
    segments = _segments(request, "indexes", 2)
    if len(segments) != 2:
        raise InvalidDocument("invalid-path", "which index? /indexes/{path}/{indexId}")
    await _documents(request).delete_index(*segments)
    return Response(None, status_code=204, headers=_correlation(request))


def _transaction_body(found: Transaction) -> dict[str, Any]:
    return {"transactionId": found.id, "revision": found.revision, "completedAt": found.completed_ms}


@get("/hyper-storage/transactions", responses=_also())
async def list_transactions(
    request: AnyRequest, path: Annotated[str | None, QueryParameter(description="The document's path")] = None
) -> Response[bytes]:
    """Writes of a document whose events are not out yet: `?path=…&incomplete=1`."""
    given = parameters(request)
    if not given.get("path") or not flag(given, "incomplete"):
        raise InvalidDocument("invalid-parameter", "ask for ?path=…&incomplete=1")
    found = await _documents(request).pending(given["path"])
    return json_answer({"_embedded": {"els": [_transaction_body(one) for one in found]}})


@get("/hyper-storage/transactions/{path:path}", responses=_also(404))
async def get_transaction(request: AnyRequest) -> Response[bytes]:
    """One write, by its id."""
    name = decode(raw_rest(request, f"{PREFIX}/transactions/"))
    return json_answer(_transaction_body(await _documents(request).transaction(name)))


@put("/hyper-storage/views/{path:path}", status_code=201, responses=_also(408, 409, 413))
async def put_view(request: AnyRequest) -> Response[bytes]:
    """Make a collection that shows what matches a template."""
    (name,) = _segments(request, "views", 1)
    body: ViewBody = await _typed_body(request, ViewBody)
    view = await _documents(request).put_view(name, body.template_uri, body.filter)
    return json_answer({"path": view.uri, "template_uri": view.template, "filter": view.filter}, status=201)


@get("/hyper-storage/views/{path:path}", responses=_also(404))
async def get_view(request: AnyRequest) -> Response[bytes]:
    """One view."""
    (name,) = _segments(request, "views", 1)
    view = await _documents(request).view(name)
    return json_answer({"path": view.uri, "template_uri": view.template, "filter": view.filter})


@delete("/hyper-storage/views/{path:path}", status_code=204, responses=_also(404))
async def delete_view(request: AnyRequest) -> Response[None]:
    """Remove a view and what it shows."""
    (name,) = _segments(request, "views", 1)
    await _documents(request).delete_view(name)
    return Response(None, status_code=204)


@put("/hyper-storage/template-indexes/{path:path}", status_code=201, responses=_also(408, 409, 413))
async def put_template_index(request: AnyRequest) -> Response[bytes]:
    """Give every matching collection an index."""
    (index_id,) = _segments(request, "template-indexes", 1)
    body: TemplateIndexBody = await _typed_body(request, TemplateIndexBody)
    new = IndexNew(index_id, body.sort_by, body.filter)
    made = await _documents(request).put_template_index(index_id, body.template_uri, new)
    return json_answer({"indexId": made.index_id, "template_uri": made.template}, status=201)


@get("/hyper-storage/template-indexes/{path:path}", responses=_also(404))
async def get_template_index(request: AnyRequest) -> Response[bytes]:
    """One template index."""
    (index_id,) = _segments(request, "template-indexes", 1)
    found = await _documents(request).template_index(index_id)
    definition = msgspec.json.decode(found.definition)
    return json_answer({**definition, "indexId": found.index_id, "template_uri": found.template})


@delete("/hyper-storage/template-indexes/{path:path}", status_code=204, responses=_also(404))
async def delete_template_index(request: AnyRequest) -> Response[None]:
    """Remove a template index; indexes that it made stay."""
    (index_id,) = _segments(request, "template-indexes", 1)
    await _documents(request).delete_template_index(index_id)
    return Response(None, status_code=204)


DOCUMENT_ROUTES = [
    get_content,
    put_content,
    patch_content,
    delete_content,
    post_content,
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
