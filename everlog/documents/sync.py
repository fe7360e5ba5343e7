"""Documents without `await`: the twin that `everlog.sync` hands out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from everlog.documents.api import Documents
from everlog.documents.bulk import MAX_GROUP, BulkResult
from everlog.runtime.twin import Twin, blocking, items_of, iterating


class SyncDocuments(Twin[Documents]):
    """JSON documents and collections."""

    put = blocking(Documents.put)
    patch = blocking(Documents.patch)
    delete = blocking(Documents.delete)
    post = blocking(Documents.post)
    batch = blocking(Documents.batch)

    def bulk(self, writes: Iterable[Any], *, by: str = "") -> Iterator[BulkResult]:
        """Many writes, each for itself: see `Documents.bulk`. `writes` may itself use this log."""
        return items_of(self._portal, self._inner.bulk(_apart(iter(writes)), by=by), MAX_GROUP)

    get = blocking(Documents.get)
    list = blocking(Documents.list)
    count = blocking(Documents.count)
    create_index = blocking(Documents.create_index)
    index = blocking(Documents.index)
    indexes = blocking(Documents.indexes)
    delete_index = blocking(Documents.delete_index)
    build_indexes = blocking(Documents.build_indexes)
    put_view = blocking(Documents.put_view)
    view = blocking(Documents.view)
    views = blocking(Documents.views)
    unshown = blocking(Documents.unshown)
    retry_unshown = blocking(Documents.retry_unshown)
    delete_view = blocking(Documents.delete_view)
    put_schema = blocking(Documents.put_schema)
    schema = blocking(Documents.schema)
    schemas = blocking(Documents.schemas)
    delete_schema = blocking(Documents.delete_schema)
    check_schema = blocking(Documents.check_schema)
    schema_check = blocking(Documents.schema_check)
    transaction = blocking(Documents.transaction)
    pending = blocking(Documents.pending)
    settle = blocking(Documents.settle)
    collections = blocking(Documents.collections)
    history = iterating(Documents.history)
    feed = iterating(Documents.feed, 1)
    live = iterating(Documents.live, 1)
    history_page = blocking(Documents.history_page)
    changes = iterating(Documents.changes, 1)
    revision_at = blocking(Documents.revision_at)
    at = blocking(Documents.at)
    elements_at = blocking(Documents.elements_at)
    diff = blocking(Documents.diff)


async def _apart(source: Iterator[Any]) -> AsyncIterator[Any]:
    """What a plain iterator gives. It runs in a thread, for it may wait for the loop that this runs in."""
    while items := await asyncio.to_thread(lambda: list(itertools.islice(source, MAX_GROUP))):
        for item in items:
            yield item
