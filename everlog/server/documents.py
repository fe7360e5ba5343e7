"""Requests and answers of documents: paths and bodies; HAL, headers, and server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from string import punctuation
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urlencode

import msgspec
from litestar import Response

from everlog.config import DocumentsConfig
from everlog.documents.api import CollectionPage, Document, Documents
from everlog.documents.bodies import decode_body, encode_body
from everlog.documents.history import DocumentEvent
from everlog.documents.ids import etag_of
from everlog.documents.live_change import LiveChange
from everlog.documents.live_query import LiveQuery
from everlog.documents.model import WrittenDocument
from everlog.errors import InvalidDocument
from everlog.server.answers import json_answer
from everlog.server.errors import JSON
from everlog.server.request_watch import HttpCounters
from everlog.server.requests import AnyRequest, decode, raw_rest, read_body
from everlog.server.sse import Checkpoint, Frame, Items, event_stream
from everlog.wire.http import POSITION

PREFIX = "/hyper-storage"
CONTENT = f"{PREFIX}/content/"
MAX_CHECKPOINT_S = 10.0
MAX_BYTES_ON_LOOP = 32 * 1024  # of a body that is decoded there: some milliseconds
_SAFE = "/~:@!$&'()*+,;=-._"
_OF_THIS_PAGE = ("after", "explain", "position")
_encode = msgspec.json.Encoder(decimal_format="number").encode


# Requests


def documents_of(request: AnyRequest) -> Documents:
    found: Documents = request.app.state.documents
    return found


def config_of(request: AnyRequest) -> DocumentsConfig:
    found: DocumentsConfig = request.app.state.config.documents
    return found


def correlation(request: AnyRequest) -> dict[str, str]:
    """The request's own id comes back with the answer."""
    found = request.headers.get("hyperbus-correlation-id")
    return {} if found is None else {"Hyperbus-Correlation-Id": found}


def content_path(request: AnyRequest, prefix: str = CONTENT) -> str:
    return decode(raw_rest(request, prefix))


async def body_bytes(request: AnyRequest, setting: str = "max_body_bytes") -> bytes:
    """The whole body, of a size that this setting allows."""
    config = config_of(request)
    limit, seconds = getattr(config, setting), config.request_timeout_s
    return await read_body(request, limit=limit, seconds=seconds, setting=f"[documents] {setting}")


class WriteHeaders(NamedTuple):
    """What the headers of a write say about how it is done."""

    message_id: str | None
    correlation_id: str | None
    wait: bool

    @classmethod
    def of(cls, request: AnyRequest) -> WriteHeaders:
        headers = request.headers
        wait = headers.get("hyper-storage-wait")
        if wait not in (None, "full", "none"):
            raise InvalidDocument("invalid-header", "Hyper-Storage-Wait is 'full' or 'none'")
        message_id = headers.get("hyperbus-message-id", headers.get("idempotency-key"))
        return cls(message_id, headers.get("hyperbus-correlation-id"), wait == "full")

    def back(self, request: AnyRequest) -> dict[str, str]:
        """The ids that come back with the answer."""
        known = correlation(request)
        return known if self.message_id is None else known | {"Hyperbus-Message-Id": self.message_id}


async def json_body(data: bytes) -> Any:
    """A body as exact JSON. A large one is decoded in a thread: others are served meanwhile."""
    return decode_body(data) if len(data) <= MAX_BYTES_ON_LOOP else await asyncio.to_thread(decode_body, data)


async def typed_body(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.convert(await json_body(data), kind)
    except msgspec.ValidationError as error:
        raise InvalidDocument("invalid-body", f"this body is not what is expected here: {error}") from error


def segments(request: AnyRequest, prefix: str, max_count: int) -> list[str]:
    """Percent-encoded segments behind a prefix."""
    found = [decode(segment) for segment in raw_rest(request, f"{PREFIX}/{prefix}/").split("/")]
    if not 1 <= len(found) <= max_count or not all(found):
        raise InvalidDocument("invalid-path", "a slash inside a path or an id is written as %2F here")
    return found


# Answers


def content_url(path: str) -> str:
    """Where a document is."""
    return f"{PREFIX}/content/{quote(path, safe=_SAFE)}"


def revision_headers(revision: int) -> dict[str, str]:
    return {"Revision": str(revision), "Hyperbus-Revision": str(revision)}


def written_answer(written: WrittenDocument, headers: dict[str, str]) -> Response[bytes]:
    """A write: 201 with links and the place, or 200 with the transaction alone."""
    headers |= revision_headers(written.revision)
    if written.position is not None:
        headers[POSITION] = str(written.position)
    if not written.created:
        return json_answer({"transactionId": written.transaction_id}, headers=headers)
    body = {
        "transactionId": written.transaction_id,
        "path": written.path,
        "_links": {
            "self": {"href": f"{PREFIX}/transactions/{{transactionId}}", "templated": True},
            "location": {"href": f"{PREFIX}/content/{{path}}", "templated": True},
        },
    }
    return json_answer(body, status=201, headers=headers | {"Location": content_url(written.path)})


def document_answer(found: Document, headers: dict[str, str]) -> Response[bytes]:
    headers |= revision_headers(found.revision) | {"ETag": found.etag}
    return Response(found.json.encode(), media_type=JSON, headers=headers)


def page_etag(page: CollectionPage) -> str:
    """A weak tag: pages of one revision say the same, perhaps from another index."""
    return "W/" + etag_of(page.revision)


def page_answer(path: str, page: CollectionPage, sent: bytes, headers: dict[str, str]) -> Response[bytes]:
    """A page of a collection, with the link to the next one if there may be one; `sent` is the query of this one."""
    headers |= revision_headers(page.revision)
    headers["ETag"] = page_etag(page)
    if page.count is not None:
        headers["Hyper-Storage-Count"] = str(page.count)
    body: dict[str, Any] = {"_embedded": {"els": msgspec.Raw(page.json.encode())}}
    if page.next is not None:
        body["_links"] = {"next": {"href": f"{content_url(path)}?{_next_query(sent, page.next)}"}}
    if page.explanation is not None:
        body["explain"] = page.explanation
    return json_answer(body, headers=headers)


def _next_query(sent: bytes, new: dict[str, str]) -> str:
    """The parameters as they were sent, not spelled anew: a link longer than the request might be refused."""
    kept = [
        quote(part, safe=punctuation)
        for part in sent.split(b"&")
        if part and unquote_to_bytes(part.partition(b"=")[0]).decode("latin-1") not in (*_OF_THIS_PAGE, *new)
    ]
    return "&".join([*kept, urlencode(new)])


def event_body(event: DocumentEvent) -> dict[str, Any]:
    """An event as history and feeds show it."""
    return {
        "method": event.method,
        "path": event.path,
        "headers": {
            "messageId": event.message_id,
            "correlationId": event.correlation_id,
            "revision": event.revision,
            "transactionId": event.transaction_id,
        },
        "time": event.time_ms,
        "position": str(event.position),
        "body": msgspec.Raw(event.json),
    }


def server_sent(
    items: AsyncGenerator[DocumentEvent | int, None],
    *,
    interval_s: float,
    stopping: asyncio.Event,
    counters: HttpCounters,
) -> AsyncIterator[bytes]:
    """A feed on the wire. The id of an event is its revision."""
    return event_stream(
        _frames(items),
        checkpoint=lambda revision: f'{{"revision":{revision}}}',
        interval_s=min(interval_s, MAX_CHECKPOINT_S),
        stopping=stopping,
        counters=counters,
    )


def live_sent(
    query: LiveQuery, *, interval_s: float, stopping: asyncio.Event, counters: HttpCounters
) -> AsyncIterator[bytes]:
    """A live query on the wire. The id of a step is its position; those of the present have none."""
    return event_stream(
        _live_frames(query),
        checkpoint=lambda position: f'{{"revision":{position.partition("-")[0]}}}',
        interval_s=min(interval_s, MAX_CHECKPOINT_S),
        stopping=stopping,
        counters=counters,
        begin=query.begin,
    )


async def _live_frames(query: LiveQuery) -> Items:
    reached: int | None = None
    async with contextlib.aclosing(query.steps()) as steps:
        async for some in steps:
            last = some[-1]
            frames = [_live_frame(one) for one in some if one.kind != "checkpoint"]
            if frames:
                yield frames
            if last.kind == "checkpoint" and last.position is not None:
                yield Checkpoint(last.position, 0 if reached is None else last.revision - reached)
            reached = last.revision


def _live_frame(change: LiveChange) -> Frame:
    element = f',"id":{encode_body(change.id)}' if change.id else ""
    body = f',"body":{change.json}' if change.json != "null" else ""
    return Frame(change.position or "", change.kind, f'{{"revision":{change.revision}{element}{body}}}')


async def _frames(items: AsyncGenerator[DocumentEvent | int, None]) -> Items:
    reached: int | None = None
    async with contextlib.aclosing(items):
        async for item in items:
            if isinstance(item, DocumentEvent):
                reached = item.revision
                yield [Frame(str(reached), item.method, _encode(event_body(item)).decode())]
            else:
                skipped = 0 if reached is None else item - reached  # of other elements of the collection
                reached = item
                yield Checkpoint(str(item), skipped)
