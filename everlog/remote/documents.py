"""Documents of a server: the same methods, the same answers, the same errors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from everlog.core.values import Position
from everlog.documents.api import CollectionCount, CollectionPage, Document, Documents
from everlog.documents.batch import DocumentOperation, operations_of
from everlog.documents.bodies import body_of, encode_body, plain_body, stored_body
from everlog.documents.bulk import BulkResult, BulkWrite
from everlog.documents.bulk_run import SourcedWrite, sourced
from everlog.documents.change_stream import StreamedChange
from everlog.documents.collections import CollectionsPage, CollectionSummary, prefix_range
from everlog.documents.history import DocumentEvent, HistoryPage
from everlog.documents.ids import PACKED, TransactionId
from everlog.documents.indexes import Index, IndexNew, IndexSortItem, IndexStatus
from everlog.documents.live_change import LiveChange, LiveKind
from everlog.documents.messages import repeat
from everlog.documents.model import DocumentTransaction, Method, WrittenDocument, check_ttl
from everlog.documents.paths import parse_collection, parse_path
from everlog.documents.port import DocumentView, TemplateIndex
from everlog.documents.query import Explanation, Query
from everlog.documents.schemas.model import DocumentSchema, SchemaCheck
from everlog.documents.unshown import RetriedElements, UnshownElement
from everlog.errors import (
    EverlogError,
    InvalidDocument,
    Unreachable,
    WriteUnfinished,
)
from everlog.journal.journal import After
from everlog.remote.connection import Wire, refusal
from everlog.runtime.retry import Backoff
from everlog.wire.documents import SchemaCheckBody, check_of
from everlog.wire.events import timestamp_of
from everlog.wire.http import EXPIRES, POSITION, TTL

if TYPE_CHECKING:
    import httpx
    from httpx_sse import ServerSentEvent

MAX_FAILURES = 10  # in a row: a server that is started again is waited for
MIN_PAUSE_S = 0.1
MAX_PAUSE_S = 10.0
MAX_BULK_LINES = 2000
MAX_BULK_BYTES = 4 * 1024 * 1024
_index_items = tuple[IndexSortItem, ...]


class _LiveData(msgspec.Struct):
    revision: int
    id: str = ""
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Counted(msgspec.Struct):
    count: int
    explain: Explanation | None = None


class RemoteDocuments(Documents):
    """The documents of a server."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def write(
        self,
        method: Method,
        path: str,
        body: Any = None,
        *,
        if_match: str | None = None,
        if_none_match: str | None = None,
        message_id: str | None = None,
        correlation_id: str | None = None,
        wait: bool = False,
        by: str = "",
        ttl_s: int | None = None,
    ) -> WrittenDocument:
        _refuse_author(by)
        ttl_s = check_ttl(ttl_s)
        given = {
            TTL: None if ttl_s is None else str(ttl_s),
            "If-Match": if_match,
            "If-None-Match": if_none_match,
            "Hyperbus-Message-Id": message_id,
            "Hyperbus-Correlation-Id": correlation_id,
            "Hyper-Storage-Wait": "full" if wait else None,
        }
        headers = {name: value for name, value in given.items() if value is not None}
        bodiless = method == "delete" or (body is None and parse_path(path).kind == "collection")
        try:
            answer = await self._wire.send(
                method.upper(), _content(path), headers=headers, content=None if bodiless else encode_body(body)
            )
        except Unreachable as error:
            raise WriteUnfinished(f"{path}: {error}: {repeat(message_id)}", message_id=message_id or "") from error
        found = answer.json()
        transaction = TransactionId.parse(found["transactionId"])
        return WrittenDocument(
            str(transaction),
            found.get("path", path),
            transaction.revision,
            created=answer.status_code == 201,
            position=_position(answer.headers.get(POSITION)),
            expires_ms=_expires(answer),
        )

    async def batch(
        self,
        path: str,
        operations: Iterable[DocumentOperation | Mapping[str, Any]],
        *,
        message_id: str | None = None,
        correlation_id: str | None = None,
        wait: bool = False,
        by: str = "",
    ) -> Sequence[WrittenDocument]:
        _refuse_author(by)
        given = {
            "Hyperbus-Message-Id": message_id,
            "Hyperbus-Correlation-Id": correlation_id,
            "Hyper-Storage-Wait": "full" if wait else None,
        }
        headers = {name: value for name, value in given.items() if value is not None}
        url, body = f"/hyper-storage/batches/{_quoted(path)}", encode_body(operations_of(operations))
        try:
            answer = await self._wire.send("POST", url, headers=headers, content=body)
        except Unreachable as error:
            raise WriteUnfinished(f"{path}: {error}: {repeat(message_id)}", message_id=message_id or "") from error
        found = [_written(one) for one in answer.json()["results"]]
        found[-1] = msgspec.structs.replace(found[-1], position=_position(answer.headers.get(POSITION)))
        return found

    async def bulk(
        self, writes: Iterable[Any] | AsyncIterable[Any], *, by: str = ""
    ) -> AsyncGenerator[BulkResult, None]:
        """So many at a time: a request is sent as a whole before its answer is read."""
        _refuse_author(by)
        group: list[SourcedWrite] = []
        size = 0
        async with contextlib.aclosing(sourced(writes)) as source:
            async for one in source:
                group.append(one)
                size += one.size
                if len(group) >= MAX_BULK_LINES or size >= MAX_BULK_BYTES:
                    for result in await self._bulk(group):
                        yield result
                    group, size = [], 0
        if group:
            for result in await self._bulk(group):
                yield result

    async def _bulk(self, group: Sequence[SourcedWrite]) -> list[BulkResult]:
        """What became of some writes, in one request."""
        found: dict[int, BulkResult] = {}
        sent: list[tuple[int, BulkWrite]] = []
        for one in group:
            if isinstance(one.write, EverlogError):
                found[one.number] = BulkResult(one.number, None, error=one.write)
            else:
                sent.append((one.number, one.write))
        content = "".join([encode_body(write) + "\n" for _, write in sent])
        unknown: EverlogError
        try:
            answer = await self._wire.send("POST", "/hyper-storage/_bulk", content=content)
            lines = [msgspec.json.decode(line) for line in answer.content.splitlines() if line]
            unknown = Unreachable("the server ended its answer early")
        except Unreachable as error:
            lines, unknown = [], error
        for line in lines:
            if "line" not in line:
                unknown = refusal(line["status"], line["error"])
                continue
            number, write = sent[line["line"] - 1]
            found[number] = _bulk_result(number, write, line)
        for number, write in sent:
            if number not in found:
                text = f"{write.path}: {unknown}: {repeat(write.message_id)}"
                lost = WriteUnfinished(text, message_id=write.message_id or "")
                found[number] = BulkResult(number, write.path, error=lost)
        return [found[number] for number in sorted(found)]

    async def get(self, path: str, *, fields: str | Sequence[str] = "", token: After = None) -> Document:
        if parse_path(path).kind == "collection":
            raise InvalidDocument("not-a-document", f"{path!r} is a collection: list it")
        answer = await self._wire.send("GET", _content(path, fields=_fields(fields), token=token))
        tag = answer.headers["etag"].replace(f'{PACKED}"', '"')  # packed or not is of no concern here
        return Document(path, answer.text, _revision(answer), tag, 0, 0, _expires(answer))

    async def list(
        self, /, path: str, query: Query | None = None, *, token: After = None, **parameters: Any
    ) -> CollectionPage:
        wanted = query or Query(**parameters)
        given: dict[str, Any] = {
            "filter": wanted.filter or None,
            "sort": wanted.sort or None,
            "size": wanted.size,
            "skipMax": wanted.max_skip,
            "after": wanted.after,
            "explain": "1" if wanted.explain else None,
            "fields": _fields(wanted.fields),
        }
        if parse_path(path).kind != "collection":
            raise InvalidDocument("not-a-collection", f"{path!r} is no collection: the path of one ends with '~'")
        answer = await self._wire.send("GET", _content(path, token=token, **given))
        found = stored_body(answer.text)
        link = _next_of(found)
        explained = found.get("explain")
        count = answer.headers.get("hyper-storage-count")
        return CollectionPage(
            json=encode_body(found["_embedded"]["els"]),
            revision=_revision(answer),
            count=None if count is None else int(count),
            next=None if link is None else _following(link),
            explanation=None if explained is None else msgspec.convert(explained, Explanation),
        )

    async def count(
        self,
        path: str,
        *,
        filter: str = "",  # noqa: A002
        explain: bool = False,
        token: After = None,
    ) -> CollectionCount:
        given = {"count": "", "filter": filter or None, "explain": "1" if explain else None}
        answer = await self._wire.send("GET", _content(parse_collection(path), token=token, **given))
        found = msgspec.json.decode(answer.content, type=_Counted)
        return CollectionCount(found.count, _revision(answer), found.explain)

    async def create_index(self, path: str, new: IndexNew) -> Index:
        answer = await self._wire.send("POST", f"/hyper-storage/indexes/{_segment(path)}", body=new)
        return await self.index(path, answer.json()["indexId"])

    async def index(self, path: str, index_id: str) -> Index:
        answer = await self._wire.send("GET", f"/hyper-storage/indexes/{_segment(path)}/{_segment(index_id)}")
        return _index(answer.json())

    async def indexes(self, path: str) -> Sequence[Index]:
        answer = await self._wire.send("GET", f"/hyper-storage/indexes/{_segment(path)}")
        return [_index(one) for one in answer.json()["_embedded"]["els"]]

    async def delete_index(self, path: str, index_id: str) -> None:
        await self._wire.send("DELETE", f"/hyper-storage/indexes/{_segment(path)}/{_segment(index_id)}")

    async def put_view(self, path: str, template: str, condition: str | None = None, *, by: str = "") -> DocumentView:
        _refuse_author(by)
        body = {"template_uri": template, "filter": condition}
        return _view((await self._wire.send("PUT", f"/hyper-storage/views/{_segment(path)}", body=body)).json())

    async def view(self, path: str) -> DocumentView:
        return _view((await self._wire.send("GET", f"/hyper-storage/views/{_segment(path)}")).json())

    async def views(self) -> Sequence[DocumentView]:
        found = (await self._wire.send("GET", "/hyper-storage/views")).json()
        return [_view(one) for one in found["_embedded"]["els"]]

    async def unshown(self, path: str, *, after: str = "", limit: int = 100) -> Sequence[UnshownElement]:
        answer = await self._wire.send("GET", _unshown(path, after=after, size=limit))
        return [_unshown_element(path, one) for one in answer.json()["_embedded"]["els"]]

    async def retry_unshown(
        self, path: str, *, source: str | None = None, after: str = "", limit: int = 100
    ) -> RetriedElements:
        given = {"after": after, "size": limit} if source is None else {"source": source}
        return msgspec.convert((await self._wire.send("POST", _unshown(path, **given))).json(), RetriedElements)

    async def delete_view(self, path: str, *, by: str = "") -> None:
        _refuse_author(by)
        await self._wire.send("DELETE", f"/hyper-storage/views/{_segment(path)}")

    async def put_template_index(self, index_id: str, template: str, new: IndexNew) -> TemplateIndex:
        body = {"template_uri": template, "sort_by": new.sort_by, "filter": new.filter_by}
        await self._wire.send("PUT", f"/hyper-storage/template-indexes/{_segment(index_id)}", body=body)
        return await self.template_index(index_id)

    async def template_index(self, index_id: str) -> TemplateIndex:
        answer = await self._wire.send("GET", f"/hyper-storage/template-indexes/{_segment(index_id)}")
        found = answer.json()
        template = found.pop("template_uri")
        return TemplateIndex(index_id, template, encode_body(found))

    async def delete_template_index(self, index_id: str) -> None:
        await self._wire.send("DELETE", f"/hyper-storage/template-indexes/{_segment(index_id)}")

    async def put_schema(self, schema_id: str, template: str, schema: Any, *, check: bool = False) -> DocumentSchema:
        body = {"template_uri": template, "schema": body_of(schema)}
        params = {"check": "1"} if check else {}
        url = f"/hyper-storage/schemas/{_segment(schema_id)}"
        content = encode_body(body)
        return _schema(await self._wire.send("PUT", url, params=params, content=content))

    async def schema(self, schema_id: str) -> DocumentSchema:
        return _schema(await self._wire.send("GET", f"/hyper-storage/schemas/{_segment(schema_id)}"))

    async def schemas(self) -> Sequence[DocumentSchema]:
        answer = await self._wire.send("GET", "/hyper-storage/schemas")
        return [_schema_of(one) for one in stored_body(answer.text)["_embedded"]["els"]]

    async def delete_schema(self, schema_id: str) -> None:
        await self._wire.send("DELETE", f"/hyper-storage/schemas/{_segment(schema_id)}")

    async def check_schema(self, schema_id: str) -> SchemaCheck:
        return _check(await self._wire.send("POST", f"/hyper-storage/schemas/{_segment(schema_id)}/check"))

    async def schema_check(self, schema_id: str) -> SchemaCheck:
        return _check(await self._wire.send("GET", f"/hyper-storage/schemas/{_segment(schema_id)}/check"))

    async def transaction(self, transaction_id: str) -> DocumentTransaction:
        answer = await self._wire.send("GET", f"/hyper-storage/transactions/{_segment(transaction_id)}")
        return _transaction(answer.json())

    async def pending(self, path: str, *, limit: int = 100) -> Sequence[DocumentTransaction]:
        parse_path(path)
        params = {"path": path, "incomplete": "1"}
        answer = await self._wire.send("GET", "/hyper-storage/transactions", params=params)
        return [_transaction(one) for one in answer.json()["_embedded"]["els"]][:limit]

    async def collections(self, prefix: str = "", *, after: str = "", size: int = 100) -> CollectionsPage:
        prefix_range(prefix, after)
        given = {"prefix": prefix or None, "after": after or None, "size": size}
        found = (await self._wire.send("GET", "/hyper-storage/collections", params=given)).json()
        link = _next_of(found)
        collections = msgspec.convert(found["_embedded"]["els"], list[CollectionSummary])
        return CollectionsPage(collections, None if link is None else link["after"])

    async def settle(self, path: str) -> None:
        """Asking for the past makes the server finish what is under way."""
        await self._wire.send("GET", f"{_content(path)}?history&size=1")

    async def history_page(
        self,
        path: str,
        *,
        after: int = 0,
        before: int | None = None,
        size: int = 100,
        reverse: bool = False,
        token: After = None,
    ) -> HistoryPage:
        kind = "reverse" if reverse else ""
        url = _content(path, history=kind, size=size, after=after, before=before, token=token)
        found = stored_body((await self._wire.send("GET", url)).text)
        events = [_event(one) for one in found["_embedded"]["els"]]
        link = _next_of(found)
        return HistoryPage(events, None if link is None else int(link["before" if reverse else "after"]))

    async def revision_at(self, path: str, moment: datetime, *, token: After = None) -> int:
        return _revision(await self._wire.send("GET", _content(path, at=moment.isoformat(), token=token)))

    async def at(self, path: str, revision: int, *, token: After = None, exact: bool = False) -> Any:
        read = stored_body if exact else plain_body
        if parse_path(path).kind != "collection":
            return read((await self._wire.send("GET", _content(path, at=revision, token=token))).text)
        page = await self.elements_at(path, revision, token=token)
        found = read(page.json)
        while page.next is not None:
            page = await self.elements_at(path, revision, after=page.next["after"])
            found += read(page.json)
        return found

    async def elements_at(
        self, path: str, revision: int, *, size: int | None = None, after: str = "", token: After = None
    ) -> CollectionPage:
        behind = encode_body(after) if after else None
        answer = await self._wire.send("GET", _content(path, at=revision, size=size, after=behind, token=token))
        found = stored_body(answer.text)
        link = _next_of(found)
        following = None if link is None else {"after": stored_body(link["after"])}
        return CollectionPage(encode_body(found["_embedded"]["els"]), _revision(answer), None, following)

    async def diff(self, path: str, old: int, new: int, *, token: After = None, exact: bool = False) -> Any:
        read = stored_body if exact else plain_body
        return read((await self._wire.send("GET", _content(path, diff=f"{old},{new}", token=token))).text)

    async def feed(self, path: str, *, after: int | None = None) -> AsyncGenerator[DocumentEvent | int, None]:
        """Ends with Unreachable when the connection does: go on behind the last revision."""
        last = None if after is None else str(after)
        async with contextlib.aclosing(
            self._wire.events(_content(path), {"feed": ""}, last=last, patience=None)
        ) as frames:
            async for frame in frames:
                yield int(frame.id) if frame.event == "checkpoint" else _event(stored_body(frame.data))

    async def changes(
        self,
        prefix: str = "",
        *,
        template: str | None = None,
        filter: str = "",  # noqa: A002
        after: str | None = None,
    ) -> AsyncGenerator[StreamedChange, None]:
        """A stream that is cut goes on behind the last position. Raises if that does not help, and what is refused."""
        params = {"prefix": prefix or None, "template": template, "filter": filter or None}
        async with contextlib.aclosing(self._stream("/hyper-storage/feed", params, after)) as frames:
            async for frame in frames:
                event = None if frame.event == "checkpoint" else _event(stored_body(frame.data))
                yield StreamedChange(frame.id, event)

    async def live(
        self,
        path: str,
        *,
        filter: str = "",  # noqa: A002
        after: str | None = None,
    ) -> AsyncGenerator[LiveChange, None]:
        """A stream that is cut goes on behind the last position, or begins again before the present was complete.

        Raises if that does not help, and what the server refuses.
        """
        params = {"live": "", "filter": filter or None}
        async with contextlib.aclosing(self._stream(_content(parse_collection(path)), params, after)) as frames:
            async for frame in frames:
                yield _live_change(frame)

    async def _stream(
        self, url: str, params: dict[str, str | None], after: str | None
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Frames, each once, over any number of connections; all but a first one that fails are made again."""
        backoff, begun = Backoff(MIN_PAUSE_S, MAX_PAUSE_S), False
        while True:
            try:
                async with contextlib.aclosing(self._wire.events(url, params, last=after)) as frames:
                    async for frame in frames:
                        backoff.reset()
                        begun = True
                        if frame.event != "checkpoint" or frame.id != after:
                            after = frame.id or None
                            yield frame
            except EverlogError as error:
                if not error.retriable or not begun or backoff.failures == MAX_FAILURES:
                    raise
            if backoff.failures == MAX_FAILURES:
                raise Unreachable(f"the server ends every stream of {url} at once")
            await backoff.sleep()


def _live_change(frame: ServerSentEvent) -> LiveChange:
    found = msgspec.json.decode(frame.data, type=_LiveData)
    kind = msgspec.convert(frame.event, LiveKind)
    return LiveChange(kind, found.revision, frame.id or None, found.id, bytes(found.body).decode())


def _fields(names: str | Sequence[str]) -> str | None:
    return (names if isinstance(names, str) else ",".join(names)) or None


def _bulk_result(number: int, write: BulkWrite, line: dict[str, Any]) -> BulkResult:
    if "error" in line:
        return BulkResult(number, write.path, error=refusal(line["status"], line["error"]), method=write.method)
    written = _written(line)
    return BulkResult(number, written.path, written, method=write.method)


def _written(found: dict[str, Any]) -> WrittenDocument:
    """One of several writes."""
    return WrittenDocument(
        found["transactionId"],
        found["path"],
        found["revision"],
        created=found["status"] == 201,
        expires_ms=found.get("expires"),
    )


def _expires(answer: httpx.Response) -> int | None:
    found = answer.headers.get(EXPIRES)
    return None if found is None else timestamp_of(found)


def _segment(text: str) -> str:
    return quote(text, safe="~", errors="surrogatepass")


def _quoted(path: str) -> str:
    return quote(path, safe="/~:@!$&()*+,;=")


def _content(path: str, *, token: After = None, **parameters: Any) -> str:
    """Where a document is; `token` is what the answer must include. A path with dots would lead elsewhere."""
    parse_path(path)
    url = f"/hyper-storage/content/{_quoted(path)}"
    given = {**parameters, "position": None if token is None else str(token)}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    return f"{url}?{query}" if query else url


def _position(text: str | None) -> Position | None:
    return None if text is None else Position.parse(text)


def _revision(answer: httpx.Response) -> int:
    return int(answer.headers["revision"])


def _next_of(found: dict[str, Any]) -> dict[str, str] | None:
    """The parameters of the link to the next page; None on the last one."""
    link = found.get("_links", {}).get("next", {}).get("href")
    return None if link is None else dict(parse_qsl(urlsplit(link).query, keep_blank_values=True))


def _following(given: dict[str, str]) -> dict[str, str]:
    """What leads to the next page of a query: of two, the token is the newer."""
    return {"after": given["after"]} if "after" in given else {"filter": given["filter"]}


def _index(found: dict[str, Any]) -> Index:
    return Index(
        found["indexId"],
        msgspec.convert(found["sortBy"], _index_items),
        found.get("filterBy"),
        IndexStatus[found["status"].upper()],
        "",
        revision=found["revision"],
        count=found["count"],
        reason=found.get("reason"),
    )


def _view(found: dict[str, Any]) -> DocumentView:
    status = found["status"]
    recheck = "" if status != "checking" else status
    shown = (found["path"], found["template_uri"], found["filter"], status != "filling")
    return DocumentView(*shown, recheck or None, found.get("unshown"))


def _unshown(path: str, **parameters: Any) -> str:
    given = {name: value for name, value in parameters.items() if value != ""}
    return f"/hyper-storage/views/{_segment(path)}/unshown?{urlencode(given)}"


def _unshown_element(view: str, found: dict[str, Any]) -> UnshownElement:
    facts = (found["source"], found["code"], found["reason"], found["revision"], found["since"], found["attempts"])
    return UnshownElement(view, *facts)


def _schema(answer: httpx.Response) -> DocumentSchema:
    return _schema_of(stored_body(answer.text))


def _schema_of(found: dict[str, Any]) -> DocumentSchema:
    text = encode_body(found["schema"])
    return DocumentSchema(found["schemaId"], found["template_uri"], text, found["version"], found["modifiedAt"])


def _check(answer: httpx.Response) -> SchemaCheck:
    return check_of(msgspec.json.decode(answer.content, type=SchemaCheckBody))


def _transaction(found: dict[str, Any]) -> DocumentTransaction:
    known = TransactionId.parse(found["transactionId"])
    return DocumentTransaction(
        known.uri,
        str(known.uuid),
        known.revision,
        "",
        "",
        completed_ms=found["completedAt"],
        position=_position(found["position"]),
        by=found["by"],
    )


def _refuse_author(by: str) -> None:
    """Who writes is not the client's to say."""
    if by:
        raise InvalidDocument("invalid-parameter", "over HTTP the token says who makes a change: leave out by=")


def _event(found: dict[str, Any]) -> DocumentEvent:
    headers = found["headers"]
    return DocumentEvent(
        revision=headers["revision"],
        method=found["method"],
        path=found["path"],
        time_ms=found["time"],
        message_id=headers["messageId"],
        correlation_id=headers["correlationId"],
        transaction_id=headers["transactionId"],
        json=encode_body(found["body"]),
        position=Position.parse(found["position"]),
        by=headers["by"],
        expires_ms=headers.get("expires"),
    )
