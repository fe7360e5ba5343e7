"""Pages and counts of a collection, from its elements or from an index of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from everlog.config import DocumentsConfig
from everlog.documents.api import CollectionCount, CollectionPage
from everlog.documents.bodies import encode_body, is_large
from everlog.documents.evaluator import Evaluator
from everlog.documents.field_selection import parse_fields, select_each
from everlog.documents.indexes import Index
from everlog.documents.model import DocumentHead
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import Batch, DocumentStore
from everlog.documents.query import PendingElements, Query, QueryLimits, QueryRunner
from everlog.documents.query_plan import IndexRange
from everlog.errors import DocumentNotFound
from everlog.runtime.clock import Clock

MAX_CHARS_ON_LOOP = 32 * 1024  # of elements that are decoded there


class CollectionReader:
    """Answers queries of the collections in a store; DocumentNotFound if there is none of that name."""

    def __init__(self, store: DocumentStore, evaluator: Evaluator, *, clock: Clock, config: DocumentsConfig) -> None:
        self._store = store
        self._evaluator = evaluator
        self._clock = clock
        self._limits = QueryLimits.of(config)

    async def page(self, uri: str, wanted: Query) -> CollectionPage:
        """One page. Its revision is the collection's, its count that of the index that it comes from."""
        selected = parse_fields(wanted.fields)
        head = await self._head(uri)
        answer = await (await self._runner(uri, wanted, head)).run()
        page = answer.page
        work = partial(select_each, page, selected) if selected else partial(encode_body, page)
        raw = sum(len(one) for one in page if isinstance(one, msgspec.Raw)) if selected else 0
        large = raw > MAX_CHARS_ON_LOOP or is_large(page)
        text = await self._evaluator.side.call(work) if large else work()
        return CollectionPage(
            json=text,
            revision=head.revision,
            count=head.count if answer.plan.index is None else answer.held,
            next=answer.next,
            explanation=answer.explanation if wanted.explain else None,
        )

    async def count(self, uri: str, condition: str, *, explain: bool) -> CollectionCount:
        """How many elements match; without a condition, the head counts them."""
        head = await self._head(uri)
        counting = await self._runner(uri, Query(condition), head)
        matching, explanation = await counting.count(known=head.count)
        return CollectionCount(matching, head.revision, explanation if explain else None)

    async def _head(self, uri: str) -> DocumentHead:
        """How many elements there are, and what is pending."""
        head, _, _ = await self._store.load(DocumentPlace(uri))
        if head is None or head.deleted:
            raise DocumentNotFound("not_found", f"there is no {uri}")
        return head

    async def _indexes(self, uri: str, head: DocumentHead) -> tuple[Sequence[Index], PendingElements | None]:
        """The indexes of a collection that a query may use, and what they may not know yet.

        The pending writes are read first: what is no longer among them is in the indexes that are read then. A deletion
        of the collection among them ends all indexes that are older.
        """
        store = self._store
        writes = await store.pending_writes(uri) if head.pending else []
        ended = max((one.revision for one in writes if one.ends_collection), default=0)
        indexes = [index for index in await store.indexes(uri) if index.since >= ended]
        items = sorted({one.item for one in writes if one.item})
        if not items:
            return indexes, None
        return indexes, PendingElements(
            items,
            lambda some: store.rows(uri, some),
            lambda index: store.count_others(uri, index, items),
        )

    async def _runner(self, uri: str, wanted: Query, head: DocumentHead) -> QueryRunner:
        store = self._store
        indexes, pending = await self._indexes(uri, head) if wanted.filter or wanted.sort else ([], None)

        async def fetch(index: Index | None, where: IndexRange, reverse: bool, limit: int, max_bytes: int) -> Batch:
            if index is None:
                return await store.elements(uri, where, reverse=reverse, limit=limit, max_bytes=max_bytes)
            return await store.entries(uri, index, where, reverse=reverse, limit=limit, max_bytes=max_bytes)

        for text in {wanted.filter, *[one.filter_by or "" for one in indexes]}:
            await self._evaluator.parse(text)
        return QueryRunner(
            wanted, indexes, fetch, clock=self._clock, limits=self._limits, evaluator=self._evaluator, pending=pending
        )
