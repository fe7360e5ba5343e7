"""What `log.documents` can do, wherever the log is. The HTTP routes call the same methods."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from everlog.documents.batch import DocumentOperation
from everlog.documents.bodies import body_of, plain_body, stored_body
from everlog.documents.bulk import BulkResult
from everlog.documents.change_stream import StreamedChange
from everlog.documents.collections import CollectionsPage
from everlog.documents.history import DocumentEvent, HistoryPage
from everlog.documents.indexes import Index, IndexNew
from everlog.documents.live_change import LiveChange
from everlog.documents.model import DocumentTransaction, Method, WrittenDocument
from everlog.documents.port import DocumentView, TemplateIndex
from everlog.documents.query import Explanation, Query
from everlog.documents.schemas.model import DocumentSchema, SchemaCheck
from everlog.documents.unshown import RetriedElements, UnshownElement
from everlog.documents.workers import Workers
from everlog.errors.storage import needs_storage
from everlog.journal.journal import After

if TYPE_CHECKING:
    from everlog.documents.change_stream import ChangeStream
    from everlog.documents.documents import OpenDocuments
    from everlog.documents.live_query import LiveQuery


MAX_HISTORY_PAGE = 1000


class Document(msgspec.Struct, frozen=True):
    """A stored document or element. `etag` is of the body itself, `revision` of its document or collection."""

    path: str
    json: str
    revision: int
    etag: str
    created_ms: int
    modified_ms: int
    expires_ms: int | None = None
    """When it will be deleted, if it has a time to live."""

    @property
    def body(self) -> Any:
        return plain_body(self.json)

    @property
    def exact(self) -> Any:
        """The body with a Decimal for every number with a fraction, so that no digit of it is lost."""
        return stored_body(self.json)


class CollectionPage(msgspec.Struct, frozen=True):
    """Elements of a collection. `next`: the parameters that lead to the next page."""

    json: str
    revision: int
    count: int | None
    next: dict[str, str] | None = None
    explanation: Explanation | None = None

    @property
    def elements(self) -> list[Any]:
        found: list[Any] = plain_body(self.json)
        return found

    @property
    def exact(self) -> list[Any]:
        """The elements with a Decimal for every number with a fraction."""
        found: list[Any] = stored_body(self.json)
        return found


class CollectionCount(msgspec.Struct, frozen=True):
    """How many elements of a collection match, at this revision of it."""

    count: int
    revision: int
    explanation: Explanation | None = None


class Documents(ABC):
    """JSON documents and collections. Every accepted change has a revision, and an event in the log."""

    async def put(self, /, path: str, body: Any = None, **options: Any) -> WrittenDocument:
        """Store a document or an element, or begin an empty collection.

        Options of all writes: `if_match`, `if_none_match` (entity tags), `message_id` (a repeat is answered, not
        repeated), `correlation_id`, `wait=True` (return when the event is out, with its `position` in the log), and
        `by`: who makes the change, as its event says. Over HTTP that is the name of the token. With a body also
        `ttl_s`: it is deleted after so many seconds, unless it is written again before that.
        """
        return await self.write("put", path, body_of(body), **options)

    async def patch(self, /, path: str, patch: Any, **options: Any) -> WrittenDocument:
        """Merge into what is stored: null removes a field (RFC 7396)."""
        return await self.write("patch", path, body_of(patch), **options)

    async def delete(self, /, path: str, **options: Any) -> WrittenDocument:
        """Delete a document, an element, or a collection with all its elements and indexes."""
        return await self.write("delete", path, **options)

    async def post(self, /, path: str, body: Any, **options: Any) -> WrittenDocument:
        """Add an element to a collection; its id is above all ids that were made for it before."""
        return await self.write("post", path, body_of(body), **options)

    @abstractmethod
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
        """Any of the four; the body is exact JSON."""

    @abstractmethod
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
        """Several writes of one document or collection, all or none; each sees those before it.

        Each is `{"method": "put", "id": "o-1", "body": {…}, "if_match": …, "if_none_match": …, "ttl_s": …}`;
        without `id` it is of the document or the collection itself. The error of one that is refused says which,
        counted from 0: `error.facts["operation"]`. With `message_id`, a repetition is answered as a whole. `wait`: the
        last answer has the position of the last event.
        """

    @abstractmethod
    def bulk(self, writes: Iterable[Any] | AsyncIterable[Any], *, by: str = "") -> AsyncGenerator[BulkResult, None]:
        """Many writes, each for itself, of any documents: one result for each, in their order.

        Each is `{"method": "put", "path": "orders~/o-1", "body": {…}}`, with `if_match`, `if_none_match`, `message_id`,
        `correlation_id` and `ttl_s` if you like, or a `BulkWrite`. What is refused is the `error` of its result. Writes
        of one document keep their order; those of others go on meanwhile.
        """

    @abstractmethod
    async def get(self, path: str, *, fields: str | Sequence[str] = "", token: After = None) -> Document:
        """A document or an element; DocumentNotFound if there is none. `fields`: only these, as `["a", "b.c"]`.

        `token`, here and at all reads: a position in the log that the answer must include.
        """

    @abstractmethod
    async def list(
        self, /, path: str, query: Query | None = None, *, token: After = None, **parameters: Any
    ) -> CollectionPage:
        """A page of a collection: `filter`, `sort`, `size`, `max_skip`, `after`, `explain`, `fields`."""

    @abstractmethod
    async def count(
        self,
        path: str,
        *,
        filter: str = "",  # noqa: A002
        explain: bool = False,
        token: After = None,
    ) -> CollectionCount:
        """How many elements of a collection match a filter, exactly; without a filter, how many there are.

        An index that fits is used once all writes have reached it. What is read is bounded, as for a page.
        """

    @abstractmethod
    async def transaction(self, transaction_id: str) -> DocumentTransaction:
        """One write, by its id; with the `position` of its event, once it is completed."""

    @abstractmethod
    async def pending(self, path: str, *, limit: int = 100) -> Sequence[DocumentTransaction]:
        """Accepted writes of a document whose events are not out yet."""

    @abstractmethod
    async def settle(self, path: str) -> None:
        """Let the events of all writes before this call get out."""

    @abstractmethod
    async def collections(self, prefix: str = "", *, after: str = "", size: int = 100) -> CollectionsPage:
        """The collections whose paths begin like this, in the order of their paths, behind another one."""

    # What was

    async def history(
        self,
        path: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        reverse: bool = False,
        token: After = None,
    ) -> AsyncIterator[DocumentEvent]:
        """The changes of a document, a collection or an element, as they are asked for: above a revision, below one."""
        left = limit
        await self.settle(path)
        while left != 0:
            size = MAX_HISTORY_PAGE if left is None else min(left, MAX_HISTORY_PAGE)
            page = await self.history_page(path, after=after, before=before, size=size, reverse=reverse, token=token)
            for event in page.events:
                yield event
            if page.next is None:
                return
            left = None if left is None else left - len(page.events)
            after, before = (after, page.next) if reverse else (page.next, before)

    @abstractmethod
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
        """Some changes: at most `size`, fewer if they are large; `next` is the next page's `after`, or `before`."""

    @abstractmethod
    async def revision_at(self, path: str, moment: datetime, *, token: After = None) -> int:
        """The revision that was the newest at a time."""

    @abstractmethod
    async def at(self, path: str, revision: int, *, token: After = None, exact: bool = False) -> Any:
        """The body at a revision; for a collection, all its elements: `elements_at` gives them page by page.

        `exact`, here and at `diff`: a Decimal for every number with a fraction, so that it can be written as JSON again
        digit by digit. Otherwise only where no float is exactly that number.
        """

    @abstractmethod
    async def elements_at(
        self, path: str, revision: int, *, size: int | None = None, after: str = "", token: After = None
    ) -> CollectionPage:
        """Elements of a collection at a revision with ids above `after`, by their ids."""

    @abstractmethod
    async def diff(self, path: str, old: int, new: int, *, token: After = None, exact: bool = False) -> Any:
        """The merge patch that leads from one revision to another."""

    @abstractmethod
    def feed(self, path: str, *, after: int | None = None) -> AsyncGenerator[DocumentEvent | int, None]:
        """Changes as they come, after a revision or from now on; a number is a checkpoint: all up to it was given.

        DocumentConflict `feed-beyond-end` if there is no such revision; `facts["newest"]` is the one to go on from.
        """

    async def live(
        self,
        path: str,
        *,
        filter: str = "",  # noqa: A002
        after: str | None = None,
    ) -> AsyncGenerator[LiveChange, None]:
        """What matches now, and then what enters, changes and leaves, as it happens.

        `after`: the `position` of a step of the same query: what followed on it.
        """
        query = await self.open_live(path, filter=filter, after=after)
        async with contextlib.aclosing(query.steps()) as steps:
            async for some in steps:
                for change in some:
                    yield change

    async def changes(
        self,
        prefix: str = "",
        *,
        template: str | None = None,
        filter: str = "",  # noqa: A002
        after: str | None = None,
    ) -> AsyncGenerator[StreamedChange, None]:
        """The changes of all documents below a path, as they come: from now on, or behind a position ("0": all).

        `template`: only of paths that match it. `filter`: only those that lead to a body that matches, and deletions.
        """
        stream = await self.open_changes(prefix, template=template, filter=filter, after=after)
        async with contextlib.aclosing(stream.pages()) as pages:
            async for page in pages:
                for change in page:
                    yield change

    # Indexes and views

    @abstractmethod
    async def create_index(self, path: str, new: IndexNew) -> Index:
        """Define an index of a collection, which need not exist yet; it is built in the background."""

    @abstractmethod
    async def index(self, path: str, index_id: str) -> Index:
        """One index; DocumentNotFound if there is none, or it is being deleted."""

    @abstractmethod
    async def indexes(self, path: str) -> Sequence[Index]:
        """The indexes of a collection."""

    @abstractmethod
    async def delete_index(self, path: str, index_id: str) -> None:
        """Queries stop using it at once; its entries go in the background."""

    @abstractmethod
    async def put_view(self, path: str, template: str, condition: str | None = None, *, by: str = "") -> DocumentView:
        """Make a read-only collection of everything that matches a template; what is there already follows soon."""

    @abstractmethod
    async def view(self, path: str) -> DocumentView:
        """One view, with the number of elements that match and are set aside."""

    @abstractmethod
    async def views(self) -> Sequence[DocumentView]:
        """All views."""

    @abstractmethod
    async def unshown(self, path: str, *, after: str = "", limit: int = 100) -> Sequence[UnshownElement]:
        """What matches a view and cannot be shown in it, by the paths of the sources, and why."""

    @abstractmethod
    async def retry_unshown(
        self, path: str, *, source: str | None = None, after: str = "", limit: int = 100
    ) -> RetriedElements:
        """Try again what a view has set aside: one source, or the next ones after a path."""

    @abstractmethod
    async def delete_view(self, path: str, *, by: str = "") -> None:
        """Remove a view and what it shows."""

    @abstractmethod
    async def put_template_index(self, index_id: str, template: str, new: IndexNew) -> TemplateIndex:
        """Every collection that matches gets this index with its next write."""

    @abstractmethod
    async def template_index(self, index_id: str) -> TemplateIndex:
        """One template index."""

    @abstractmethod
    async def delete_template_index(self, index_id: str) -> None:
        """Collections keep the indexes that they have got."""

    # Schemas

    @abstractmethod
    async def put_schema(self, schema_id: str, template: str, schema: Any, *, check: bool = False) -> DocumentSchema:
        """Define or replace a JSON Schema for all documents that match: each write that does not fit is SchemaViolated.

        `shop/orders~` are the elements of a collection, `shop/{*}~` those of several, `people/{*}` documents. What is
        stored already stays as it is; `check=True` begins to look through it.
        """

    @abstractmethod
    async def schema(self, schema_id: str) -> DocumentSchema:
        """One schema; DocumentNotFound if there is none."""

    @abstractmethod
    async def schemas(self) -> Sequence[DocumentSchema]:
        """All schemas, by id."""

    @abstractmethod
    async def delete_schema(self, schema_id: str) -> None:
        """Writes need not fit it any more."""

    @abstractmethod
    async def check_schema(self, schema_id: str) -> SchemaCheck:
        """Begin to look through what is stored for documents that do not fit, in the background."""

    @abstractmethod
    async def schema_check(self, schema_id: str) -> SchemaCheck:
        """How far the newest check of a schema is, and what it has found."""

    # What needs the log and the store themselves: a server does not hand these out.

    async def build_indexes(self) -> int:
        """Build and drop what waits for it, now; how many indexes. A server does so by itself."""
        raise needs_storage()

    async def open_live(self, path: str, *, filter: str = "", after: str | None = None) -> LiveQuery:  # noqa: A002
        """A live query whose filter and position are checked."""
        raise needs_storage()

    async def open_changes(self, prefix: str = "", **options: Any) -> ChangeStream:
        """A stream of changes whose parameters are checked."""
        raise needs_storage()

    async def open(self) -> OpenDocuments:
        """The parts; the store is opened by the first call."""
        raise needs_storage()

    @property
    def writers(self) -> Workers:
        """The turns of those who write, by document."""
        raise needs_storage()

    @property
    def completers(self) -> Workers:
        """The turns of those who publish events, by document."""
        raise needs_storage()
