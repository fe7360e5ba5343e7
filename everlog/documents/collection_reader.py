"""Pages and counts of a collection, from its elements or from an index of it."""

from __future__ import annotations

from collections.abc import Sequence

from everlog.config import DocumentsConfig
from everlog.documents.api import CollectionCount, CollectionPage
from everlog.documents.bodies import encode_body
from everlog.documents.evaluator import Evaluator
from everlog.documents.field_selection import parse_fields, select_each
from everlog.documents.indexes import Index
from everlog.documents.model import DocumentHead
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import Batch, DocumentStore
from everlog.documents.query import Query, QueryLimits, QueryRunner
from everlog.documents.query_plan import IndexRange
from everlog.errors import DocumentNotFound
from everlog.runtime.clock import Clock


class CollectionReader:
    """Answers queries of the collections in a store; DocumentNotFound if there is none of that name."""

    def __init__(self, store: DocumentStore, evaluator: Evaluator, *, clock: Clock, config: DocumentsConfig) -> None:
        self._store = store
        self._evaluator = evaluator
        self._clock = clock
        self._limits = QueryLimits.of(config)

    async def page(self, uri: str, wanted: Query) -> CollectionPage:
        """One page. Its revision and count are those of the index that it comes from."""
        selected = parse_fields(wanted.fields)
        head = await self._head(uri)
        indexes = await self._store.indexes(uri) if wanted.filter or wanted.sort else []
        answer = await (await self._runner(uri, wanted, indexes)).run()
        index = answer.plan.index
        body = encode_body(answer.page)
        return CollectionPage(
            json=await select_each(body, selected) if selected else body,
            revision=head.revision if index is None else index.revision,
            count=head.count if index is None else index.count,
            next=answer.next,
            explanation=answer.explanation if wanted.explain else None,
        )

    async def count(self, uri: str, condition: str, *, explain: bool) -> CollectionCount:
        """How many elements match. An index lacks what is pending: then the elements themselves are read."""
        head = await self._head(uri)
        indexes = [] if head.pending else await self._store.indexes(uri)
        counting = await self._runner(uri, Query(condition), indexes)
        matching, explanation = await counting.count(known=head.count)
        return CollectionCount(matching, head.revision, explanation if explain else None)

    async def _head(self, uri: str) -> DocumentHead:
        """How many elements there are, and what is pending."""
        head, _, _ = await self._store.load(DocumentPlace(uri))
        if head is None or head.deleted:
            raise DocumentNotFound("not_found", f"there is no {uri}")
        return head

    async def _runner(self, uri: str, wanted: Query, indexes: Sequence[Index]) -> QueryRunner:
        store = self._store

        async def fetch(index: Index | None, where: IndexRange, reverse: bool, limit: int, max_bytes: int) -> Batch:
            if index is None:
                return await store.elements(uri, where, reverse=reverse, limit=limit, max_bytes=max_bytes)
            return await store.entries(uri, index, where, reverse=reverse, limit=limit, max_bytes=max_bytes)

        for text in {wanted.filter, *[one.filter_by or "" for one in indexes]}:
            await self._evaluator.parse(text)
        return QueryRunner(wanted, indexes, fetch, clock=self._clock, limits=self._limits, evaluator=self._evaluator)
