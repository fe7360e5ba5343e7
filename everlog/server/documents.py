"""Requests and answers of documents: paths and bodies; HAL, headers, and server-sent events."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from string import punctuation
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlencode

import msgspec
from litestar import Response

from everlog.config import DocumentsConfig
from everlog.documents.api import CollectionPage, Document, Documents
from everlog.documents.bodies import decode_body, encode_body
from everlog.documents.change_stream import ChangeStream
from everlog.documents.documents import LocalDocuments
from everlog.documents.expiry import parse_ttl
from everlog.documents.history import DocumentEvent
from everlog.documents.ids import TransactionId, etag_of
from everlog.documents.live_change import LiveChange
from everlog.documents.live_query import LiveQuery
from everlog.documents.model import Method, Preconditions, WrittenDocument
from everlog.documents.paths import parse_collection, parse_path
from everlog.errors import InvalidDocument, PreconditionFailed
from everlog.server.answers import hal_answer, json_answer
from everlog.server.byte_answer import ByteAnswer
from everlog.server.large_turns import LARGE_BYTES, LargeTurns
from everlog.server.negotiation import tag_for
from everlog.server.requests import AnyRequest, decode, parameters, raw_rest, read_body
from everlog.server.security.principal import PathFinder, principal_of
from everlog.server.sse import Checkpoint, Frame, Items, event_stream
from everlog.wire.events import moment
from everlog.wire.http import EXPIRES, POSITION, TTL

PREFIX = "/hyper-storage"
CONTENT = f"{PREFIX}/content/"
BATCHES = f"{PREFIX}/batches/"
MAX_CHECKPOINT_S = 10.0
MAX_BYTES_ON_LOOP = 32 * 1024  # of a body that is decoded there: some milliseconds
_NO_TAG = "W/"  # of what is there and has none: only * matches it
_SAFE = "/~:@!$&'()*+,;=-._"
_OF_THIS_PAGE = ("after", "explain", "position")
T = TypeVar("T")
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


# Which documents a request is about, for the guard: `opt={"paths": …}`. The same code as the handlers'.


def content_paths(request: AnyRequest) -> list[str]:
    """The document, element or collection of a request for content."""
    return [parse_path(content_path(request)).path]


def batch_paths(request: AnyRequest) -> list[str]:
    """The document or the collection of a batch: who may not write all of it sends single writes."""
    return [parse_path(content_path(request, BATCHES)).path]


def collection_paths(prefix: str) -> PathFinder:
    """The collection whose index or view a request is about."""

    def find(request: AnyRequest) -> list[str]:
        return [parse_collection(segments(request, prefix, 2)[0])]

    return find


def transaction_paths(request: AnyRequest) -> list[str]:
    """The document that a transaction belongs to; of an element that is its collection."""
    return [TransactionId.parse(decode(raw_rest(request, f"{PREFIX}/transactions/"))).uri]


def pending_paths(request: AnyRequest) -> list[str]:
    """The document whose transactions are asked for; of an element that is its collection."""
    return [parse_path(parameters(request).get("path", "")).uri]


async def body_bytes(request: AnyRequest, setting: str = "max_body_bytes") -> bytes:
    """The whole body, of a size that this setting allows."""
    config = config_of(request)
    limit, seconds = getattr(config, setting), config.request_timeout_s
    return await read_body(request, limit=limit, seconds=seconds, setting=f"[documents] {setting}")


class WriteHeaders(NamedTuple):
    """What a request says about how a write is done, and by whom."""

    message_id: str | None
    correlation_id: str | None
    wait: bool
    by: str
    ttl_s: int | None

    @classmethod
    def of(cls, request: AnyRequest) -> WriteHeaders:
        headers = request.headers
        wait = headers.get("hyper-storage-wait")
        if wait not in (None, "full", "none"):
            raise InvalidDocument("invalid-header", "Hyper-Storage-Wait is 'full' or 'none'")
        message_id = headers.get("hyperbus-message-id", headers.get("idempotency-key"))
        by = principal_of(request).name
        ttl_s = parse_ttl(headers.get(TTL))
        return cls(message_id, headers.get("hyperbus-correlation-id"), wait == "full", by, ttl_s)

    def of_batch(self) -> dict[str, Any]:
        """What is said of a batch as a whole; each of its operations has its own time to live."""
        if self.ttl_s is not None:
            raise InvalidDocument("invalid-ttl", "in a batch the time to live is a field of each operation: ttl")
        return {name: value for name, value in self._asdict().items() if name != "ttl_s"}

    def back(self, request: AnyRequest) -> dict[str, str]:
        """The ids that come back with the answer."""
        known = correlation(request)
        return known if self.message_id is None else known | {"Hyperbus-Message-Id": self.message_id}


async def json_body(request: AnyRequest, data: bytes) -> Any:
    """A body as exact JSON. A large one is decoded in the thread for long work: others are served meanwhile."""
    return decode_body(data) if len(data) <= MAX_BYTES_ON_LOOP else await aside(request, lambda: decode_body(data))


async def aside(request: AnyRequest, work: Callable[[], T]) -> T:
    """What long work comes to, done in the thread for it."""
    docs = documents_of(request)
    assert isinstance(docs, LocalDocuments)
    return await docs.evaluator.side.call(work)


async def typed_body(request: AnyRequest, data: bytes, kind: Any) -> Any:
    try:
        return msgspec.convert(await json_body(request, data), kind)
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


def next_link(path: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The link to a next page: an address that can be asked for as it is."""
    return link_to(content_url(path), parameters)


def link_to(url: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The same for another address."""
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return {"next": {"href": f"{url}?{query}"}}


def revision_headers(revision: int) -> dict[str, str]:
    return {"Revision": str(revision), "Hyperbus-Revision": str(revision)}


def written_answer(
    request: AnyRequest, method: Method, written: WrittenDocument, headers: dict[str, str]
) -> Response[bytes]:
    """A write: 201 with links and the place, or 200 with the transaction alone; with the tag of what is stored now."""
    headers |= revision_headers(written.revision)
    if written.position is not None:
        headers[POSITION] = str(written.position)
    if (tag := tag_after(method, written)) is not None:
        headers["ETag"] = tag
    headers |= expiry_header(written.expires_ms)
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
    return hal_answer(request, body, status=201, headers=headers | {"Location": content_url(written.path)})


def expiry_header(expires_ms: int | None) -> dict[str, str]:
    """When it will be deleted, if it has a time to live."""
    return {} if expires_ms is None else {EXPIRES: moment(expires_ms)}


def tag_after(method: Method | None, written: WrittenDocument) -> str | None:
    """The entity tag of what is there after a write; None of a collection, and where nothing is left."""
    return None if method in (None, "delete") or parse_path(written.path).kind == "collection" else written.etag


def document_answer(request: AnyRequest, found: Document, headers: dict[str, str]) -> Response[Any]:
    """A body, or that it is the one that the client has."""
    data = found.json.encode()
    headers |= revision_headers(found.revision) | {"ETag": tag_for(request, found.etag, len(data))}
    headers |= expiry_header(found.expires_ms)
    if _unchanged(request, found.etag):
        return ByteAnswer(None, status_code=304, headers=headers)
    return ByteAnswer(data, headers=headers)


def _unchanged(request: AnyRequest, etag: str | None) -> bool:
    """Whether the client has this; PreconditionFailed if it wants another one (RFC 9110, section 13.2.2)."""
    conditions = Preconditions.of(request.headers.get("if-match"), request.headers.get("if-none-match"))
    if conditions.if_match is not None and not conditions.if_match.match(etag or _NO_TAG, weakly=False):
        raise PreconditionFailed("not_matched", "If-Match does not hold: this is not what is there")
    return etag is not None and conditions.unchanged(etag)


def check_conditions(request: AnyRequest) -> None:
    """Of an answer without a tag: only `If-Match: *` holds."""
    _unchanged(request, None)


def page_etag(page: CollectionPage) -> str:
    """A weak tag: pages of one revision say the same, perhaps from another index."""
    return "W/" + etag_of(page.revision)


def page_answer(request: AnyRequest, path: str, page: CollectionPage, headers: dict[str, str]) -> Response[Any]:
    """A page of a collection, with the link to the next one if there may be one; or that the client has it."""
    headers |= revision_headers(page.revision)
    headers["ETag"] = page_etag(page)
    if _unchanged(request, page_etag(page)):
        return ByteAnswer(None, status_code=304, headers=headers | {"Vary": "Accept"})
    if page.count is not None:
        headers["Hyper-Storage-Count"] = str(page.count)
    body: dict[str, Any] = {"_embedded": {"els": msgspec.Raw(page.json.encode())}}
    if page.next is not None:
        sent = request.scope["query_string"]
        body["_links"] = {"next": {"href": f"{content_url(path)}?{_next_query(sent, page.next)}"}}
    if page.explanation is not None:
        body["explain"] = page.explanation
    return hal_answer(request, body, headers=headers)


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
    expires = {} if event.expires_ms is None else {"expires": event.expires_ms}
    return {
        "method": event.method,
        "path": event.path,
        "headers": {
            "messageId": event.message_id,
            "correlationId": event.correlation_id,
            "revision": event.revision,
            "transactionId": event.transaction_id,
            "by": event.by,
            **expires,
        },
        "time": event.time_ms,
        "position": str(event.position),
        "body": msgspec.Raw(event.json),
    }


def server_sent(
    request: AnyRequest, first: DocumentEvent | int, items: AsyncGenerator[DocumentEvent | int, None]
) -> AsyncIterator[bytes]:
    """A feed on the wire, its first item in hand. The id of an event is its revision."""
    return _sent(request, _frames(turns_of(request), first, items), lambda revision: f'{{"revision":{revision}}}')


def turns_of(request: AnyRequest) -> LargeTurns:
    found: LargeTurns = request.app.state.large_turns
    return found


def _sent(
    request: AnyRequest, frames: Items, checkpoint: Callable[[str], str], begin: str | None = None
) -> AsyncIterator[bytes]:
    return event_stream(
        frames,
        checkpoint=checkpoint,
        interval_s=min(config_of(request).feed_checkpoint_interval_s, MAX_CHECKPOINT_S),
        stopping=request.app.state.stopping,
        counters=request.app.state.http_counters,
        begin=begin,
    )


def changes_sent(request: AnyRequest, stream: ChangeStream) -> AsyncIterator[bytes]:
    """Changes of many documents on the wire. The id of each is the position behind it."""
    return _sent(request, _change_frames(turns_of(request), stream), lambda position: "{}", stream.begin)


async def _change_frames(turns: LargeTurns, stream: ChangeStream) -> Items:
    async with contextlib.aclosing(stream.pages()) as pages:
        async for page in pages:
            for one in page:
                if (event := one.event) is not None:
                    await turns.take(len(event.json))
                    yield [Frame(one.position, event.method, _encode(event_body(event)).decode())]
            if page[-1].event is None:
                yield Checkpoint(page[-1].position, 1)


def live_sent(request: AnyRequest, query: LiveQuery) -> AsyncIterator[bytes]:
    """A live query on the wire. The id of a step is its position; those of the present have none."""
    return _sent(
        request,
        _live_frames(turns_of(request), query),
        lambda position: f'{{"revision":{position.partition("-")[0]}}}',
        query.begin,
    )


async def _live_frames(turns: LargeTurns, query: LiveQuery) -> Items:
    reached: int | None = None
    async with contextlib.aclosing(query.steps()) as steps:
        async for some in steps:
            last, frames, size = some[-1], list[Frame](), 0
            for one in some:
                if one.kind == "checkpoint":
                    continue
                size += len(one.json)
                if frames and size > LARGE_BYTES:
                    yield frames
                    frames, size = [], len(one.json)
                await turns.take(len(one.json))
                frames.append(_live_frame(one))
            if frames:
                yield frames
            if last.kind == "checkpoint" and last.position is not None:
                yield Checkpoint(last.position, 0 if reached is None else last.revision - reached)
            reached = last.revision


def _live_frame(change: LiveChange) -> Frame:
    element = f',"id":{encode_body(change.id)}' if change.id else ""
    body = f',"body":{change.json}' if change.json != "null" else ""
    return Frame(change.position or "", change.kind, f'{{"revision":{change.revision}{element}{body}}}')


async def _frames(
    turns: LargeTurns, first: DocumentEvent | int, items: AsyncGenerator[DocumentEvent | int, None]
) -> Items:
    reached: int | None = None
    async with contextlib.aclosing(items):
        item: DocumentEvent | int | None = first
        while item is not None:
            if isinstance(item, DocumentEvent):
                reached = item.revision
                await turns.take(len(item.json))
                yield [Frame(str(reached), item.method, _encode(event_body(item)).decode())]
            else:
                skipped = 0 if reached is None else item - reached  # of other elements of the collection
                reached = item
                yield Checkpoint(str(item), skipped)
            item = await anext(items, None)
