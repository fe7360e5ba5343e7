"""The elements of views: each made equal to its source, or set aside with the reason why it cannot be.

A view's element is made what its source is now, whenever the source was written: so steps may be repeated and may come
late. A task that changed an element, or set it aside, looks at the source once more: of two tasks that do this at once,
the last one to write finds what the other one saw.

Nothing that is wrong with one element holds up its source, the rest of the view, or other views: only what passes by
itself, such as a store that does not answer, is waited for.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from everlog.documents.bodies import same, stored_body
from everlog.documents.evaluator import Evaluator
from everlog.documents.model import VIEWS, DocumentCommand
from everlog.documents.paths import DocumentPlace, parse_path
from everlog.documents.port import DocumentState, DocumentStore, DocumentView
from everlog.documents.query_plan import IndexRange
from everlog.documents.templates import ids_from, item_of, matches, source_of
from everlog.documents.unshown import MAX_REASON_CHARS, MAX_UNSHOWN, RetriedElements, UnshownElement
from everlog.errors import DocumentNotFound, EverlogError, InvalidDocument
from everlog.runtime.clock import Clock
from everlog.runtime.failpoints import failpoint

log = logging.getLogger("everlog.documents")

PAGE = 500
PAGE_BYTES = 8 * 1024 * 1024
MAX_AT_ONCE = 200  # elements of a deleted collection that leave a view before its event counts as done

Apply = Callable[[DocumentCommand], Awaitable[object]]


def passes(error: Exception) -> bool:
    """Whether an error goes away by itself: then all wait for it. Others need a change of the element or view."""
    return isinstance(error, EverlogError) and error.retriable


class ViewCopies:
    """Shows single elements in views."""

    def __init__(self, store: DocumentStore, apply: Apply, *, clock: Clock, evaluator: Evaluator) -> None:
        self._store = store
        self._apply = apply
        self._clock = clock
        self._evaluator = evaluator
        self.unshown = store.unshown_table()

    async def show(self, view: DocumentView, source: DocumentPlace) -> bool:
        """Make the view's element what its source is now; False if the source is set aside instead."""
        if source.kind == "collection" or not matches(view.template, source.path):
            return True
        while True:
            state = await self._store.load(source)
            revision = _revision(state)
            try:
                changed = await self._copy(view, source, state)
            except Exception as error:
                if passes(error):
                    raise
                if not await self._set_aside(view, source, revision, error):
                    return False
                continue
            failpoint("documents.shown")
            if not changed:
                await self._take_back(view, source, revision)
                return True

    async def _copy(self, view: DocumentView, source: DocumentPlace, state: DocumentState) -> bool:
        """Whether something changed: then the source may have, too."""
        head, row = state.head, state.row
        body = None if row is None or head is None or head.deleted else stored_body(row.body)
        if not isinstance(body, dict) or not await self._evaluator.matches(view.filter, body, self._clock.now_ms()):
            body = None
        try:
            item = item_of(view.template, source.path)
        except InvalidDocument:
            if body is None:
                return False  # what cannot be shown was never shown
            raise
        assert item is not None
        target = DocumentPlace(view.uri, item)
        found, shown, _ = await self._store.load(target)
        if body is None:
            if shown is not None:
                await self._remove(target)
            return shown is not None
        wanted = {**body, "id": target.item}
        if shown is not None and same(stored_body(shown.body), wanted):
            return False
        made = found is not None and found.view and not found.deleted
        return await self._put(view, target, wanted, makes_view=not made)

    async def _put(self, view: DocumentView, target: DocumentPlace, body: Any, *, makes_view: bool) -> bool:
        """The first element makes the collection, because the definition may be there before it. Only of a view that is
        defined, before and after: a deletion takes the definition away first, then the collection.
        """
        if makes_view and not await self._is_defined(view):
            return False
        command = DocumentCommand("put", target, body, internal=True, makes_view=makes_view, by=VIEWS)
        try:
            await self._apply(command)
        except DocumentNotFound:
            return True  # the view was deleted meanwhile
        if makes_view and not await self._is_defined(view):
            await self._remove(DocumentPlace(view.uri))
            return False
        return True

    async def _is_defined(self, view: DocumentView) -> bool:
        return any(one.shows_as(view) for one in await self._store.views())

    async def _remove(self, target: DocumentPlace) -> None:
        with contextlib.suppress(DocumentNotFound):  # another node may have been quicker
            await self._apply(DocumentCommand("delete", target, internal=True, by=VIEWS))

    async def _set_aside(self, view: DocumentView, source: DocumentPlace, revision: int, error: Exception) -> bool:
        """Note what cannot be shown; True if the source must be looked at again."""
        before = await self.unshown.find(view.uri, source.path)
        if before is not None and before.revision > revision:
            return True
        if before is None:
            expected = isinstance(error, EverlogError)
            text = "%s is set aside, and not shown in %s: %s"
            log.warning(text, source.path, view.uri, error, exc_info=not expected, extra={"key": view.uri})
            if await self.unshown.count(view.uri) >= MAX_UNSHOWN:
                await self._store.recheck_view(view.uri, self._clock.new_id(), refill=True)
                return False
        made = UnshownElement(
            view.uri,
            source.path,
            getattr(error, "code", type(error).__name__),
            (str(error) or type(error).__name__)[:MAX_REASON_CHARS],
            revision,
            self._clock.now_ms() if before is None else before.since_ms,
            1 if before is None else before.attempts + 1,
        )
        if not await self.unshown.put(made, before):
            return True
        failpoint("documents.unshown")
        if not await self._is_defined(view):
            await self.unshown.remove(made)  # the view is gone, and its rows were
            return False
        return _revision(await self._store.load(source)) != revision

    async def _take_back(self, view: DocumentView, source: DocumentPlace, revision: int) -> None:
        """The element is shown as it is at this revision, or rightly not shown."""
        known = await self.unshown.find(view.uri, source.path)
        if known is not None and known.revision <= revision:
            await self.unshown.remove(known)

    async def follow_deletion(self, view: DocumentView, uri: str) -> bool:
        """The elements of a deleted collection leave a view; True if they are too many to do it now.

        A collection that was made again meanwhile is shown as it is.
        """
        bounds = ids_from(view.template, uri)
        if bounds is None:
            return False
        where = IndexRange(*bounds)
        batch = await self._store.elements(view.uri, where, reverse=False, limit=MAX_AT_ONCE + 1, max_bytes=PAGE_BYTES)
        aside = await self.unshown.page(view.uri, after=f"{uri}/", limit=MAX_AT_ONCE + 1)
        if batch.more or len(batch.entries) > MAX_AT_ONCE or len(aside) > MAX_AT_ONCE:
            await self._store.recheck_view(view.uri, self._clock.new_id())
            return True
        shown = [source_of(view.template, entry.key) for entry in batch.entries]
        for source in (*shown, *(parse_path(one.source) for one in aside)):
            if source is not None and source.uri == uri:
                await self.show(view, source)
        return False

    async def recheck(self, view: DocumentView) -> None:
        """Compare all that the view shows, and all that is set aside, with the sources."""
        where: IndexRange | None = IndexRange("", None)
        while where is not None:
            batch = await self._store.elements(view.uri, where, reverse=False, limit=PAGE, max_bytes=PAGE_BYTES)
            for entry in batch.entries:
                source = source_of(view.template, entry.key)
                if source is None:
                    await self._remove(DocumentPlace(view.uri, entry.key))
                else:
                    await self.show(view, source)
            where = IndexRange(batch.entries[-1].key + "\0", None) if batch.more else None
        after: str | None = ""
        while after is not None:
            after = (await self.retry(view, after=after, limit=PAGE)).next

    async def retry(self, view: DocumentView, *, after: str = "", limit: int) -> RetriedElements:
        """Try again what is set aside, in the order of the paths."""
        found = await self.unshown.page(view.uri, after=after, limit=limit)
        shown = 0
        for one in found:
            shown += await self.retry_one(view, one)
        return RetriedElements(shown, len(found) - shown, found[-1].source if len(found) == limit else None)

    async def retry_one(self, view: DocumentView, one: UnshownElement) -> bool:
        """Whether it is no longer set aside."""
        if matches(view.template, one.source):
            return await self.show(view, parse_path(one.source))
        await self.unshown.remove(one)  # of a view that had this path before
        return True


def _revision(state: DocumentState) -> int:
    """When what is there was written; of what is absent, how far its document or collection is."""
    if state.row is not None:
        return state.row.revision
    return 0 if state.head is None else state.head.revision
