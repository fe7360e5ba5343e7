"""Documents and collections on the log and the store: writes, reads, and what was."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from everlog.config import DocumentsConfig
from everlog.core.values import Position
from everlog.documents.api import MAX_HISTORY_PAGE, CollectionCount, CollectionPage, Document, Documents
from everlog.documents.batch import DocumentOperation, batch_request, operations_of
from everlog.documents.bodies import encode_body, is_large, plain_of
from everlog.documents.bulk import BulkResult
from everlog.documents.bulk_run import BulkRun, SourcedWrite, sourced
from everlog.documents.change_stream import ChangeLog, ChangeStream, ChangeStreamParts
from everlog.documents.collection_reader import CollectionReader
from everlog.documents.collections import MAX_COLLECTIONS, CollectionsPage, prefix_range
from everlog.documents.completer import Completer
from everlog.documents.document_writer import DocumentWriter, new_entropy
from everlog.documents.evaluator import Evaluator
from everlog.documents.expiry import DocumentExpirer, ExpiredDocuments
from everlog.documents.field_selection import parse_fields, select_from
from everlog.documents.history import DocumentEvent, History, HistoryPage, beyond_end
from everlog.documents.ids import TransactionId, etag_of, next_id
from everlog.documents.indexes import MAX_INDEXES, Index, IndexNew, IndexStatus, check_index
from everlog.documents.live_feed import LiveFeeds
from everlog.documents.live_query import LiveParts, LiveQuery
from everlog.documents.model import (
    DocumentCommand,
    DocumentTransaction,
    Method,
    Preconditions,
    WrittenDocument,
    check_ttl,
    with_author,
)
from everlog.documents.paths import DocumentPlace, parse_collection, parse_path
from everlog.documents.port import DocumentStore, DocumentView, TemplateIndex
from everlog.documents.publisher import Publisher
from everlog.documents.query import Query, bounded
from everlog.documents.recovery import OutboxRecovery
from everlog.documents.schemas.model import DocumentSchema, SchemaCheck
from everlog.documents.schemas.registry import SchemaRegistry
from everlog.documents.side_history import SideChangeLog, SideFiles, SideHistory, SidePublisher
from everlog.documents.templates import compile_template
from everlog.documents.unshown import RetriedElements, UnshownElement
from everlog.documents.views import MAX_TEMPLATE_INDEXES, MAX_VIEWS, Followers
from everlog.documents.workers import Workers
from everlog.errors import (
    DocumentConflict,
    DocumentNotFound,
    EverlogError,
    InvalidDocument,
    WriteUnfinished,
)
from everlog.journal.journal import After
from everlog.runtime.clock import Clock

MAX_HEADER = 200
MAX_LISTED = 1000


class OpenDocuments(NamedTuple):
    """What works once the store is open."""

    store: DocumentStore
    completer: Completer
    history: History
    followers: Followers
    recovery: OutboxRecovery
    expirer: DocumentExpirer
    live: LiveFeeds
    schemas: SchemaRegistry
    collections: CollectionReader


class LocalDocuments(Documents):
    """JSON documents and collections, on the log and the store."""

    __slots__ = ("completers", "evaluator", "writers")  # plain attributes, in front of the properties of the base
    completers: Workers
    writers: Workers

    def __init__(
        self,
        config: DocumentsConfig,
        clock: Clock,
        open_store: Callable[[], Awaitable[DocumentStore]],
        history: Callable[[], History],
        publisher: Callable[[], Publisher],
        change_log: ChangeLog,
        side_files: SideFiles | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._open_store = open_store
        self._make_history = history
        self._make_publisher = publisher
        self._change_log = change_log
        self._side_files = side_files
        self._serves = False
        self.writers = Workers(max_tasks=config.max_workers, max_waiting=config.max_waiting)
        self.evaluator = Evaluator.of(config)
        self.completers = Workers(max_tasks=config.max_workers, max_waiting=config.max_waiting)
        self._writer = DocumentWriter(self.open, self.writers, clock=clock, config=config)
        self._opening = asyncio.Lock()
        self._parts: OpenDocuments | None = None

    def serve(self) -> None:
        """From when they are opened: do long work in a thread of its own, with files of its own. For a process that
        answers many clients; one client is served sooner without.
        """
        self._serves = True

    async def open(self) -> OpenDocuments:
        async with self._opening:
            if self._parts is None:
                store = await self._open_store()
                history, publisher = self._make_history(), self._make_publisher()
                if self._serves and self._side_files is not None:
                    side, files = self.evaluator.side, self._side_files
                    history = SideHistory(side, files, self._config.feed_poll_interval_s)
                    publisher = SidePublisher(side, files, publisher)
                    self._change_log = SideChangeLog(side, files, self._change_log)
                followers = Followers(store, self._writer.apply, clock=self._clock, evaluator=self.evaluator)
                completer = Completer(
                    store,
                    publisher,
                    clock=self._clock,
                    max_completers=self._config.max_completers,
                    evaluator=self.evaluator,
                    follower=followers,
                    published=history.notify,
                    group=self.completers,
                    spark_above=self._config.index_spark_above,
                )
                recovery = OutboxRecovery(store, completer, clock=self._clock, config=self._config)
                live = LiveFeeds(history, store)
                schemas = SchemaRegistry(store, clock=self._clock, side=self.evaluator.side)
                reader = CollectionReader(store, self.evaluator, clock=self._clock, config=self._config)
                expirer = DocumentExpirer(
                    store, self._writer.apply, lambda: self._request_id(None, None), clock=self._clock
                )
                self._parts = OpenDocuments(
                    store, completer, history, followers, recovery, expirer, live, schemas, reader
                )
            return self._parts

    async def close(self) -> None:
        """Let events that are on their way get out, and close the store."""
        async with self._opening:
            parts, self._parts = self._parts, None
        if parts is not None:
            await parts.live.close()
            await parts.schemas.close()
            await parts.completer.close()
            await parts.store.close()
            if isinstance(parts.history, SideHistory) and self._side_files is not None:
                await self.evaluator.side.run(self._side_files.close())
            await self.evaluator.aclose()

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
        _check_author(by)
        made = self._request_id(message_id, correlation_id)
        command = DocumentCommand(
            method,
            parse_path(path),
            body,
            message_id=made,
            correlation_id=correlation_id or made,
            remembered=message_id is not None,
            preconditions=Preconditions.of(if_match, if_none_match),
            by=by,
            ttl_s=check_ttl(ttl_s),
        )
        written = await self._writer.apply(command)
        return await self._placed(written, message_id) if wait else written

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
        _check_author(by)
        made = self._request_id(message_id, correlation_id)
        request = batch_request(
            path,
            operations_of(operations),
            message_id=message_id,
            made_id=made,
            correlation_id=correlation_id or made,
            max_operations=min(self._config.max_operations, self._config.max_pending),
            by=by,
        )

        written = await self._writer.batch(request, message_id)
        return [*written[:-1], await self._placed(written[-1], message_id)] if wait else written

    async def bulk(
        self, writes: Iterable[Any] | AsyncIterable[Any], *, by: str = ""
    ) -> AsyncGenerator[BulkResult, None]:
        async with contextlib.aclosing(self.bulk_of(sourced(writes), by=by)) as results:
            async for some in results:
                for result in some:
                    yield result

    def bulk_of(self, source: AsyncIterator[SourcedWrite], *, by: str) -> AsyncGenerator[list[BulkResult], None]:
        """The same for writes that were read somewhere, several results at a time: some of them may be errors."""
        _check_author(by)
        return BulkRun(self._writer.each, self._request_id(None, None), by=by).run(source)

    def _request_id(self, message_id: str | None, correlation_id: str | None) -> str:
        """The id of a request, its own or a new one."""
        for name, value in (("message id", message_id), ("correlation id", correlation_id)):
            if value is not None and not (0 < len(value) <= MAX_HEADER and value.isprintable()):
                raise InvalidDocument("invalid-header", f"a {name} has 1 to {MAX_HEADER} printable characters")
        return message_id or next_id(self._clock.now_ms(), new_entropy(self._clock))

    async def _placed(self, written: WrittenDocument, message_id: str | None) -> WrittenDocument:
        """The answer, once its event is in the log."""
        return msgspec.structs.replace(written, position=await self._wait_until_out(written, message_id))

    async def _wait_until_out(self, written: WrittenDocument, message_id: str | None) -> Position | None:
        """Where the event is; None if it was in the log and is deleted already. Complete first: that is what is
        missing as a rule, and a look at the log costs more than one at the outbox.
        """
        parts, uri = await self.open(), parse_path(written.path).uri
        try:
            async with asyncio.timeout(self._config.request_timeout_s):
                while True:
                    stuck: EverlogError | None = None
                    try:
                        await parts.completer.complete(uri)
                    except EverlogError as error:
                        stuck = error  # perhaps only a later write of this document is
                    found = await parts.history.position(written.transaction_id)
                    if found is not None:
                        return found
                    if stuck is not None:
                        raise stuck
                    if await parts.history.last_revision(uri) >= written.revision:
                        return await parts.history.position(written.transaction_id)  # it came meanwhile, or is deleted
        except (TimeoutError, EverlogError) as error:
            raise WriteUnfinished(
                f"{written.path} is stored as revision {written.revision}, but its event is not out yet",
                message_id=message_id or "",
                transaction_id=written.transaction_id,
            ) from error

    async def _reach(self, uri: str, token: After) -> None:
        """Refuse a position of another log. A write is in the store, and in the indexes, before its event is in the
        log: so a reader that knows the place of an event there finds the write here.
        """
        if token is not None:
            await (await self.open()).history.last_revision(uri, token)

    async def get(self, path: str, *, fields: str | Sequence[str] = "", token: After = None) -> Document:
        place, selected = parse_path(path), parse_fields(fields)
        if place.kind == "collection":
            raise InvalidDocument("not-a-document", f"{path!r} is a collection: list it")
        await self._reach(place.uri, token)
        head, row, _ = await (await self.open()).store.load(place)
        if head is None or head.deleted or row is None:
            raise DocumentNotFound("not_found", f"there is no {path}")
        body = row.body if not selected else select_from(row.body, selected, place.item)
        tag = etag_of(row.revision)
        return Document(path, body, head.revision, tag, row.created_ms, row.modified_ms, row.expires_ms)

    async def list(
        self, /, path: str, query: Query | None = None, *, token: After = None, **parameters: Any
    ) -> CollectionPage:
        await self._reach(parse_collection(path), token)
        return await (await self.open()).collections.page(path, query or Query(**parameters))

    async def count(
        self,
        path: str,
        *,
        filter: str = "",  # noqa: A002
        explain: bool = False,
        token: After = None,
    ) -> CollectionCount:
        await self._reach(parse_collection(path), token)
        return await (await self.open()).collections.count(path, filter, explain=explain)

    async def transaction(self, transaction_id: str) -> DocumentTransaction:
        parts = await self.open()
        found = await parts.store.transaction(TransactionId.parse(transaction_id))
        if found is None or found.id != transaction_id:
            raise DocumentNotFound("not_found", f"there is no transaction {transaction_id}")
        found = with_author(found)
        if found.completed_ms is None:
            return found
        return msgspec.structs.replace(found, position=await parts.history.position(transaction_id))

    async def pending(self, path: str, *, limit: int = 100) -> Sequence[DocumentTransaction]:
        found = await (await self.open()).store.pending(parse_path(path).uri, limit=limit)
        return [with_author(one) for one in found]

    async def expire(self) -> ExpiredDocuments:
        """Delete what has reached the end of its time to live. Servers do it by themselves."""
        return await (await self.open()).expirer.run_once()

    async def settle(self, path: str) -> None:
        await (await self.open()).completer.complete(parse_path(path).uri)

    async def collections(self, prefix: str = "", *, after: str = "", size: int = 100) -> CollectionsPage:
        bounded("size", size, 1, MAX_COLLECTIONS)
        return await (await self.open()).store.collections(prefix_range(prefix, after), limit=size)

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
        place, history = parse_path(path), (await self.open()).history
        bounded("size", size, 1, MAX_HISTORY_PAGE)
        return await history.page(place, after=after, before=before, size=size, reverse=reverse, token=token)

    async def revision_at(self, path: str, moment: datetime, *, token: After = None) -> int:
        await self.settle(path)
        uri = parse_path(path).uri
        return await (await self.open()).history.revision_at(uri, round(moment.timestamp() * 1000), token)

    async def at(self, path: str, revision: int, *, token: After = None, exact: bool = False) -> Any:
        found = await self._at(parse_path(path), revision, token)
        return found if exact else plain_of(found)

    async def _at(self, place: DocumentPlace, revision: int, token: After) -> Any:
        await self._reach_revision(place, revision, token)
        history = (await self.open()).history
        if place.kind != "collection":
            return await history.body_at(place, revision, token)
        return await history.all_elements_at(place.uri, revision, size=self._config.max_page_size)

    async def elements_at(
        self, path: str, revision: int, *, size: int | None = None, after: str = "", token: After = None
    ) -> CollectionPage:
        wanted = bounded("size", size, 1, self._config.max_page_size, default=self._config.page_size)
        place = DocumentPlace(parse_collection(path))
        await self._reach_revision(place, revision, token)
        past = (await self.open()).history.elements_at(place.uri, revision, after=after, size=wanted, token=token)
        found, last = await past
        text = await self.evaluator.side.call(lambda: encode_body(found)) if is_large(found) else encode_body(found)
        return CollectionPage(text, revision, None, None if last is None else {"after": last})

    async def _reach_revision(self, place: DocumentPlace, revision: int, token: After) -> None:
        await self.settle(place.uri)
        newest = await (await self.open()).history.last_revision(place.uri, token)
        if not 1 <= revision <= newest:
            raise DocumentNotFound("not_found", f"{place.uri} has no revision {revision}: its newest is {newest}")

    async def diff(self, path: str, old: int, new: int, *, token: After = None, exact: bool = False) -> Any:
        place = parse_path(path)
        await self._reach_revision(place, old, token)
        await self._reach_revision(place, new, token)
        found = await (await self.open()).history.diff(place, old, new, token)
        return found if exact else plain_of(found)

    async def feed(self, path: str, *, after: int | None = None) -> AsyncGenerator[DocumentEvent | int, None]:
        place, parts = parse_path(path), await self.open()
        start = await parts.history.last_revision(place.uri)
        if after is not None and after > start:
            await self.settle(path)  # its event may be on its way
            start = await parts.history.last_revision(place.uri)
            if after > start:
                raise beyond_end(place.uri, after, start)
        async with contextlib.aclosing(parts.history.feed(place, after=start if after is None else after)) as items:
            async for item in items:
                yield item

    async def open_live(self, path: str, *, filter: str = "", after: str | None = None) -> LiveQuery:  # noqa: A002
        parts, config = await self.open(), self._config
        limits = (config.max_live_elements, config.request_timeout_s)
        query = LiveParts(parts.store, parts.history, parts.completer, parts.live, self.evaluator, *limits)
        return await LiveQuery.open(query, parse_collection(path), filter, after)

    async def open_changes(self, prefix: str = "", **options: Any) -> ChangeStream:
        parts = await self.open()
        stream = ChangeStreamParts(self._change_log, parts.store, parts.history)
        condition = options.pop("filter", "")
        return await ChangeStream.open(stream, self.evaluator, prefix=prefix, condition=condition, **options)

    async def create_index(self, path: str, new: IndexNew) -> Index:
        uri = parse_collection(path)
        await self.evaluator.parse(new.filter_by or "")
        checked = check_index(new)
        parts = await self.open()
        if len(await parts.store.indexes(uri)) >= MAX_INDEXES:
            raise DocumentConflict("too-many-indexes", f"{uri} has {MAX_INDEXES} indexes already: delete one first")
        index_id = checked.index_id or next_id(self._clock.now_ms(), new_entropy(self._clock))
        head, _, _ = await parts.store.load(DocumentPlace(uri))
        index = parts.followers.new_index(checked, index_id, 0 if head is None else head.revision)
        if not await parts.store.create_index(uri, index):
            raise DocumentConflict("already-exists", f"{uri} has an index {index_id!r} already")
        parts.completer.kick_indexes(self._config.index_step)
        return index

    async def index(self, path: str, index_id: str) -> Index:
        for index in await self.indexes(path):
            if index.index_id == index_id:
                return index
        raise DocumentNotFound("index-not-found", f"{path} has no index {index_id!r}")

    async def indexes(self, path: str) -> Sequence[Index]:
        found = await (await self.open()).store.indexes(parse_collection(path))
        return [index for index in found if index.status is not IndexStatus.DELETING]

    async def delete_index(self, path: str, index_id: str) -> None:
        index = await self.index(path, index_id)
        if not await (await self.open()).store.mark_index(parse_collection(path), index, IndexStatus.DELETING):
            raise DocumentNotFound("index-not-found", f"{path} has no index {index_id!r}")
        (await self.open()).completer.kick_indexes(self._config.index_step)

    async def put_view(self, path: str, template: str, condition: str | None = None, *, by: str = "") -> DocumentView:
        _check_author(by)
        uri = parse_collection(path)
        compile_template(template)
        view = DocumentView(uri, template, None if await self.evaluator.parse(condition or "") is None else condition)
        parts = await self.open()
        known = await self._known_alike(view)
        if known is not None:
            return known
        if len(await parts.store.views()) >= MAX_VIEWS:
            raise DocumentConflict("too-many-views", f"there are {MAX_VIEWS} views already: delete one first")
        head, _, _ = await parts.store.load(DocumentPlace(uri))
        if head is not None and not head.deleted and not head.view:
            raise DocumentConflict("collection_view_conflict", f"{uri} is a collection already")
        if not await parts.store.put_view(view):
            known = await self._known_alike(view)  # another caller may have made the same one meanwhile
            if known is None:
                raise DocumentConflict("already-exists", f"{uri} is another view already: delete it first")
            return known
        with contextlib.suppress(DocumentConflict):  # it is there since an earlier, unfinished call
            await self._writer.apply(DocumentCommand("put", DocumentPlace(uri), internal=True, makes_view=True, by=by))
        parts.followers.forget()
        parts.completer.kick_indexes(self._config.index_step)
        return view

    async def _known_alike(self, view: DocumentView) -> DocumentView | None:
        found = await (await self.open()).store.views()
        return next((known for known in found if known.shows_as(view)), None)

    async def view(self, path: str) -> DocumentView:
        uri = parse_collection(path)
        parts = await self.open()
        for view in await parts.store.views():
            if view.uri == uri:
                return view._replace(unshown=await parts.followers.copies.unshown.count(uri))
        raise DocumentNotFound("not_found", f"there is no view {uri}")

    async def views(self) -> Sequence[DocumentView]:
        return await (await self.open()).store.views()

    async def unshown(self, path: str, *, after: str = "", limit: int = 100) -> Sequence[UnshownElement]:
        view, copies = await self.view(path), (await self.open()).followers.copies
        return await copies.unshown.page(view.uri, after=after, limit=_checked_limit(limit))

    async def retry_unshown(
        self, path: str, *, source: str | None = None, after: str = "", limit: int = 100
    ) -> RetriedElements:
        view, copies = await self.view(path), (await self.open()).followers.copies
        if source is None:
            return await copies.retry(view, after=after, limit=_checked_limit(limit))
        found = await copies.unshown.find(view.uri, source)
        if found is None:
            raise DocumentNotFound("not_found", f"{view.uri} has set nothing aside from {source}")
        shown = await copies.retry_one(view, found)
        return RetriedElements(int(shown), int(not shown))

    async def delete_view(self, path: str, *, by: str = "") -> None:
        _check_author(by)
        uri = parse_collection(path)
        parts = await self.open()
        known = await parts.store.delete_view(uri)
        parts.followers.forget()
        await parts.followers.copies.unshown.clear(uri)
        head, _, _ = await parts.store.load(DocumentPlace(uri))
        if head is not None and head.view and not head.deleted:
            await self._writer.apply(DocumentCommand("delete", DocumentPlace(uri), internal=True, by=by))
        elif not known:
            raise DocumentNotFound("not_found", f"there is no view {uri}")

    async def put_template_index(self, index_id: str, template: str, new: IndexNew) -> TemplateIndex:
        compile_template(template)
        await self.evaluator.parse(new.filter_by or "")
        checked = check_index(msgspec.structs.replace(new, index_id=index_id))
        made = TemplateIndex(index_id, template, msgspec.json.encode(checked).decode())
        parts = await self.open()
        known = await parts.store.template_indexes()
        if len(known) >= MAX_TEMPLATE_INDEXES and made not in known:
            raise DocumentConflict("too-many-indexes", f"there are {MAX_TEMPLATE_INDEXES} already: delete one first")
        if not await parts.store.put_template_index(made) and made not in await parts.store.template_indexes():
            raise DocumentConflict("already-exists", f"there is another template index {index_id!r}: delete it first")
        parts.followers.forget()
        return made

    async def template_index(self, index_id: str) -> TemplateIndex:
        for found in await (await self.open()).store.template_indexes():
            if found.index_id == index_id:
                return found
        raise DocumentNotFound("index-not-found", f"there is no template index {index_id!r}")

    async def delete_template_index(self, index_id: str) -> None:
        parts = await self.open()
        if not await parts.store.delete_template_index(index_id):
            raise DocumentNotFound("index-not-found", f"there is no template index {index_id!r}")
        parts.followers.forget()

    async def put_schema(self, schema_id: str, template: str, schema: Any, *, check: bool = False) -> DocumentSchema:
        registry = (await self.open()).schemas
        made, _ = await registry.put(schema_id, template, schema)
        if check:
            await registry.check(schema_id)
        return made

    async def schema(self, schema_id: str) -> DocumentSchema:
        return await (await self.open()).schemas.get(schema_id)

    async def schemas(self) -> Sequence[DocumentSchema]:
        return await (await self.open()).schemas.all()

    @property
    def known_schemas(self) -> Sequence[DocumentSchema]:
        """All schemas as this process knows them now."""
        return () if self._parts is None else self._parts.schemas.book.known

    async def delete_schema(self, schema_id: str) -> None:
        await (await self.open()).schemas.delete(schema_id)

    async def check_schema(self, schema_id: str) -> SchemaCheck:
        return await (await self.open()).schemas.check(schema_id)

    async def schema_check(self, schema_id: str) -> SchemaCheck:
        return await (await self.open()).schemas.checked(schema_id)

    async def build_indexes(self) -> int:
        return await (await self.open()).completer.build_indexes(self._config.index_step)


def _checked_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_LISTED:
        raise InvalidDocument("invalid-parameter", f"size is between 1 and {MAX_LISTED:,}", parameter="size")
    return limit


def _check_author(by: str) -> None:
    if not isinstance(by, str) or len(by) > MAX_HEADER or not by.isprintable():
        raise InvalidDocument("invalid-parameter", f"by is a name of at most {MAX_HEADER} printable characters")
