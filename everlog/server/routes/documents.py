"""The routes of documents. Paths are taken as they were sent, so that an encoded slash stays part of its segment."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from litestar import Response, delete, patch, post, put, route
from litestar.response import Stream

from everlog.core.values import MAX_SEQ_NR
from everlog.documents.api import MAX_HISTORY_PAGE, Documents
from everlog.documents.bodies import decode_body, encode_body
from everlog.documents.model import Method
from everlog.documents.paths import parse_path
from everlog.documents.query import Query, bounded
from everlog.errors import InvalidDocument
from everlog.server.answers import hal_answer, json_answer, lines_answer, wants_lines
from everlog.server.documents import (
    WriteHeaders,
    aside,
    body_bytes,
    check_conditions,
    content_path,
    content_paths,
    correlation,
    document_answer,
    documents_of,
    event_body,
    json_body,
    live_sent,
    next_link,
    page_answer,
    revision_headers,
    server_sent,
    turns_of,
    written_answer,
)
from everlog.server.large_turns import LARGE_BYTES
from everlog.server.negotiation import packed
from everlog.server.requests import AnyRequest, check_bare, flag, parameters, whole_number
from everlog.server.routes.nodes import routed
from everlog.server.schemas import document_examples as examples
from everlog.server.schemas.documents import (
    ANY,
    CONTENT_PATH,
    CREATED,
    OBJECT,
    PAGE_OR_BODY,
    READ_HEADERS,
    READ_PARAMETERS,
    REVISION,
    WRITE_HEADERS,
    WRITING,
    WRITTEN,
    answer,
    header,
    operation,
)
from everlog.server.schemas.readings import reading_of
from everlog.server.sse import stream_answer

HISTORY_PAGE = 100
REPLACED = answer("Done", WRITTEN, WRITING, examples=examples.WRITTEN)
MADE = answer("Made", CREATED, WRITING | {"Location": "Where it is"}, examples=examples.CREATED)


async def _write(request: AnyRequest, method: Method, data: bytes, body: Any) -> Response[Any]:
    docs, uri = documents_of(request), parse_path(content_path(request)).uri
    return await routed(request, docs.writers, uri, data, lambda: _write_here(request, method, body))


async def _write_here(request: AnyRequest, method: Method, body: Any) -> Response[bytes]:
    given = WriteHeaders.of(request)
    written = await documents_of(request).write(
        method,
        content_path(request),
        body,
        if_match=request.headers.get("if-match"),
        if_none_match=request.headers.get("if-none-match"),
        **given._asdict(),
    )
    return written_answer(request, method, written, given.back(request))


@route(
    "/hyper-storage/content/{path:path}",
    opt={"paths": content_paths},
    http_method=["GET", "HEAD"],
    name="content.get",
    operation_class=operation(
        CONTENT_PATH,
        *READ_PARAMETERS,
        *READ_HEADERS,
        header("Last-Event-ID", "With feed: go on behind this revision; with live: behind this position"),
        answers={
            200: answer(
                "The body, a page, or changes",
                PAGE_OR_BODY,
                REVISION | {"ETag": "Of the body or the page", "Hyper-Storage-Count": "Elements of the collection"},
                examples=examples.CONTENT,
            ),
            304: answer("What the client has is current", headers=REVISION | {"ETag": "The same"}),
        },
        refusals=(409, 504),
    ),
)
async def get_content(request: AnyRequest) -> Response[Any]:
    """A document, an element, or a page of a collection; with `feed`, `history`, `at`, `diff` its changes."""
    given, name = parameters(request), content_path(request)
    kind = parse_path(name).kind
    reading = reading_of(kind, given).asked_by
    if reading:
        check_conditions(request)
    if reading == "feed":
        return await _feed(request, name, given)
    if reading == "live":
        return await _live(request, name, given)
    token = _token(given)
    if "after" in given and kind != "collection" and reading != "history":
        raise InvalidDocument("invalid-parameter", "after is a Journal-Position here, such as documents:3:42")
    return turns_of(request).pieced(await packed(request, await _read(request, name, reading, given, token)))


async def _read(
    request: AnyRequest, name: str, reading: str, given: dict[str, str], token: str | None
) -> Response[Any]:
    docs, headers = documents_of(request), correlation(request)
    if reading == "history":
        return await _history(request, name, given, token, headers)
    if reading == "count":
        return await _count(docs, name, given, token, headers)
    if reading == "at":
        return await _at(request, name, given, token, headers)
    if reading == "diff":
        return await _diff(docs, name, given["diff"], token, headers)
    if parse_path(name).kind == "collection":
        return page_answer(request, name, await docs.list(name, _query(given), token=token), headers)
    return document_answer(request, await docs.get(name, fields=given.get("fields", ""), token=token), headers)


async def _count(
    docs: Documents, path: str, given: dict[str, str], token: str | None, headers: dict[str, str]
) -> Response[bytes]:
    check_bare(given, "count")
    found = await docs.count(path, filter=given.get("filter", ""), explain=flag(given, "explain"), token=token)
    body: dict[str, Any] = {"count": found.count}
    if found.explanation is not None:
        body["explain"] = found.explanation
    return json_answer(body, headers=headers | revision_headers(found.revision))


def _token(given: dict[str, str]) -> str | None:
    """The position that an answer must include. It may stand as `after`, where a page or a revision has no colon."""
    after = given.get("after", "")
    if ":" in after and not after.startswith('"'):
        return given.pop("after")
    return given.get("position")


def _query(given: dict[str, str]) -> Query:
    return Query(
        filter=given.get("filter", ""),
        sort=given.get("sort", ""),
        size=whole_number(given, "size"),
        max_skip=whole_number(given, "skipMax"),
        after=given.get("after"),
        explain=flag(given, "explain"),
        fields=given.get("fields", ""),
    )


async def _feed(request: AnyRequest, path: str, given: dict[str, str]) -> Stream:
    """`Last-Event-ID`, or `after` for those who cannot set headers: go on behind that revision."""
    last = request.headers.get("last-event-id", given.get("after"))
    after = whole_number({"Last-Event-ID": last}, "Last-Event-ID") if last is not None else None
    if after is not None and after < 0:
        raise InvalidDocument("invalid-parameter", "Last-Event-ID is a revision, 0 for the beginning")
    check_bare(given, "feed")
    items = documents_of(request).feed(path, after=after)
    first = await anext(items)  # what is wrong with the start is an answer of its own
    return stream_answer(lambda: server_sent(request, first, items))


async def _live(request: AnyRequest, path: str, given: dict[str, str]) -> Stream:
    """What is refused is refused before the stream begins."""
    check_bare(given, "live")
    after = request.headers.get("last-event-id", given.get("after"))
    query = await documents_of(request).open_live(path, filter=given.get("filter", ""), after=after)
    return stream_answer(lambda: live_sent(request, query))


async def _history(
    request: AnyRequest, path: str, given: dict[str, str], token: str | None, headers: dict[str, str]
) -> Response[Any]:
    """Changes, oldest first, or newest first with `history=reverse`, above `after` and below `before`."""
    check_bare(given, "history", "reverse")
    docs, reverse, lines = documents_of(request), given["history"] == "reverse", wants_lines(request)
    size = bounded("size", whole_number(given, "size"), 1, MAX_HISTORY_PAGE, default=HISTORY_PAGE)
    after = bounded("after", whole_number(given, "after"), 0, MAX_SEQ_NR)
    before = None if "before" not in given else bounded("before", whole_number(given, "before"), 0, MAX_SEQ_NR)
    if lines:
        limit = size if "size" in given else None
        changes = docs.history(path, after=after, before=before, limit=limit, reverse=reverse, token=token)
        return await lines_answer(request, ([one] async for one in changes), event_body, headers)
    await docs.settle(path)
    page = await docs.history_page(path, after=after, before=before, size=size, reverse=reverse, token=token)
    body: dict[str, Any] = {"_embedded": {"els": [event_body(event) for event in page.events]}}
    if page.next is not None:
        link = {"history": given["history"], "size": size, "after": after or None, "before": before}
        link |= {"before" if reverse else "after": page.next}
        body["_links"] = next_link(path, link)
    if sum(len(event.json) for event in page.events) > LARGE_BYTES:
        return await aside(request, lambda: hal_answer(request, body, headers=headers))
    return hal_answer(request, body, headers=headers)


async def _at(
    request: AnyRequest, path: str, given: dict[str, str], token: str | None, headers: dict[str, str]
) -> Response[bytes]:
    """A revision, or a time such as 2026-01-31T12:00:00Z; of a collection a page of its elements."""
    docs = documents_of(request)
    revision = await _revision_of(docs, path, given["at"], token)
    headers |= revision_headers(revision)
    if parse_path(path).kind != "collection":
        found = await docs.at(path, revision, token=token, exact=True)
        return await aside(request, lambda: json_answer(found, headers=headers))
    size, after = whole_number(given, "size"), _id_of(given.get("after"))
    page = await docs.elements_at(path, revision, size=size, after=after, token=token)
    body: dict[str, Any] = {"_embedded": {"els": msgspec.Raw(page.json.encode())}}
    if page.next is not None:
        after = encode_body(page.next["after"])
        body["_links"] = next_link(path, {"at": revision, "size": size, "after": after})
    return hal_answer(request, body, headers=headers)


async def _revision_of(docs: Documents, path: str, text: str, token: str | None) -> int:
    if text.isdecimal() and len(text) <= 18:
        return int(text)
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidDocument("invalid-parameter", "at is a revision, or a time such as 2026-01-31T12:00:00Z")
    return await docs.revision_at(path, moment, token=token)


def _id_of(text: str | None) -> str:
    """An element's id, in quotes: so it is never taken for a position."""
    found = "" if text is None else decode_body(text)
    if not isinstance(found, str):
        raise InvalidDocument("invalid-parameter", 'after is an id in quotes here, such as "o-1"', parameter="after")
    return found


async def _diff(docs: Documents, path: str, text: str, token: str | None, headers: dict[str, str]) -> Response[bytes]:
    old, comma, new = text.partition(",")
    if not comma or not old.isdecimal() or not new.isdecimal() or len(text) > 37:
        raise InvalidDocument("invalid-parameter", "diff is two revisions: diff=3,5")
    patch_ = await docs.diff(path, int(old), int(new), token=token, exact=True)
    return json_answer(patch_, headers=headers | {"Content-Type": examples.MERGE_PATCH})


@put(
    "/hyper-storage/content/{path:path}",
    opt={"paths": content_paths},
    status_code=200,
    operation_class=operation(
        CONTENT_PATH,
        *WRITE_HEADERS,
        answers={200: REPLACED, 201: MADE},
        refusals=(408, 409, 412, 413, 421, 422, 429, 504),
        body=ANY,
        example=examples.ORDER,
        optional=True,
    ),
)
async def put_content(request: AnyRequest) -> Response[Any]:
    """Store a document or an element; without a body, begin an empty collection."""
    data = await body_bytes(request)
    place = parse_path(content_path(request))
    body = None if not data and place.kind == "collection" else await json_body(request, data)
    return await _write(request, "put", data, body)


@patch(
    "/hyper-storage/content/{path:path}",
    opt={"paths": content_paths},
    status_code=200,
    operation_class=operation(
        CONTENT_PATH,
        *WRITE_HEADERS,
        answers={200: REPLACED},
        refusals=(408, 409, 412, 413, 421, 422, 429, 504),
        body=OBJECT,
        example=examples.CHANGE,
    ),
)
async def patch_content(request: AnyRequest) -> Response[Any]:
    """Merge into what is stored (RFC 7396)."""
    data = await body_bytes(request)
    return await _write(request, "patch", data, await json_body(request, data))


@delete(
    "/hyper-storage/content/{path:path}",
    opt={"paths": content_paths},
    status_code=200,
    operation_class=operation(
        CONTENT_PATH,
        *WRITE_HEADERS,
        answers={200: REPLACED},
        refusals=(409, 412, 421, 422, 429, 504),
    ),
)
async def delete_content(request: AnyRequest) -> Response[Any]:
    """Delete a document, an element or a collection."""
    return await _write(request, "delete", b"", None)


@post(
    "/hyper-storage/content/{path:path}",
    opt={"paths": content_paths},
    status_code=201,
    operation_class=operation(
        CONTENT_PATH,
        *WRITE_HEADERS,
        answers={201: MADE},
        refusals=(405, 408, 409, 412, 413, 421, 422, 429, 504),
        body=OBJECT,
        example=examples.ORDER,
    ),
)
async def post_content(request: AnyRequest) -> Response[Any]:
    """Add an element to a collection under a new id."""
    data = await body_bytes(request)
    return await _write(request, "post", data, await json_body(request, data))


CONTENT_ROUTES = [get_content, put_content, patch_content, delete_content, post_content]
