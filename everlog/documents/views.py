"""Views and template indexes: what follows from a write elsewhere.

Whatever is wrong with one of them, the writes that it follows go on: an element that a view cannot show is set aside, a
template index that cannot be made is there as a failed one. Only what passes by itself is waited for. A view does not
feed another view.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from everlog.documents.evaluator import Evaluator
from everlog.documents.indexes import Index, IndexNew, IndexStatus, check_index
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentStore, DocumentView, TemplateIndex
from everlog.documents.templates import matches, uri_prefix
from everlog.documents.unshown import MAX_UNSHOWN
from everlog.documents.view_copies import Apply, ViewCopies, passes
from everlog.errors import EverlogError
from everlog.runtime.clock import Clock

log = logging.getLogger("everlog.documents")

CACHE_S = 1.0
MAX_VIEWS = 500
MAX_TEMPLATE_INDEXES = 64


class Followers:
    """Keeps views and template indexes up to date. Definitions are read again every second."""

    def __init__(self, store: DocumentStore, apply: Apply, *, clock: Clock, evaluator: Evaluator) -> None:
        self._store = store
        self._clock = clock
        self.copies = ViewCopies(store, apply, clock=clock, evaluator=evaluator)
        self._views: list[DocumentView] = []
        self._templates: list[TemplateIndex] = []
        self._read_at: float | None = None

    def forget(self) -> None:
        """Definitions have changed."""
        self._read_at = None

    async def _definitions(self) -> tuple[list[DocumentView], list[TemplateIndex]]:
        now = self._clock.monotonic()
        if self._read_at is None or now - self._read_at > CACHE_S:
            self._views, self._templates = await self._store.views(), await self._store.template_indexes()
            self._read_at = now
        return self._views, self._templates

    async def before_indexes(self, uri: str, transactions: Sequence[DocumentTransaction]) -> bool:
        _, templates = await self._definitions()
        matching = [one for one in templates if _matches(one, uri)]
        if not matching:
            return False
        known = {index.index_id for index in await self._store.indexes(uri)}
        made = False
        for template in matching:
            if template.index_id not in known:
                index = self._index_of(template, transactions[0].revision)
                made |= await self._store.create_index(uri, index) and index.status is IndexStatus.INDEXING
        return made

    def _index_of(self, template: TemplateIndex, since: int) -> Index:
        """The index of a collection; a failed one if the template has no meaning."""
        try:
            new = check_index(msgspec.json.decode(template.definition, type=IndexNew))
            return self.new_index(new, template.index_id, since)
        except Exception as error:
            log.warning("the template index %s cannot be used: %s", template.index_id, error)
            failed = self.new_index(IndexNew(), template.index_id, since)
            return msgspec.structs.replace(failed, status=IndexStatus.FAILED, reason=str(error))

    def new_index(self, new: IndexNew, index_id: str, since: int) -> Index:
        """A definition to be built."""
        return Index(index_id, new.sort_by, new.filter_by, IndexStatus.INDEXING, self._clock.new_id(), since=since)

    async def after_events(self, uri: str, transactions: Sequence[DocumentTransaction]) -> bool:
        views, _ = await self._definitions()
        if not views or any(view.uri == uri for view in views):
            return False
        places = [DocumentPlace(uri, item) for item in sorted({one.item for one in transactions})]
        ended = any(one.ends_collection for one in transactions)
        rest = False
        for view in views:
            try:
                for place in places:
                    await self.copies.show(view, place)
                rest |= ended and await self.copies.follow_deletion(view, uri)
            except Exception as error:
                if passes(error):
                    raise
                await self._mistrust(view, error)
        return rest

    async def _mistrust(self, view: DocumentView, error: Exception) -> None:
        """A defect, or a definition that can no longer be read: others must not suffer."""
        log.warning("the view %s is behind: %s", view.uri, error, extra={"key": view.uri})
        await self._store.recheck_view(view.uri, self._clock.new_id(), refill=True)

    async def fill(self, owns: Callable[[str], bool]) -> int:
        """Show in views what was there before them, and put right what is to be compared; how many views.

        What is cut off is done again.
        """
        count = 0
        for view in await self._store.views():
            if owns(view.uri):
                try:
                    count += await self._bring_up(view)
                except Exception as error:
                    if passes(error):
                        raise
                    expected = isinstance(error, EverlogError)
                    log.warning("the view %s is not filled: %s", view.uri, error, exc_info=not expected)
        return count

    async def _bring_up(self, view: DocumentView) -> bool:
        done = False
        if view.recheck is not None:
            await self.copies.recheck(view)
            await self._store.mark_checked(view.uri, view.recheck)
            done = True
        if not view.filled and await self._has_room(view) and await self._fill(view):
            if await self._has_room(view):  # else something may have been left out
                await self._store.mark_filled(view.uri)
            done = True
        return done

    async def _has_room(self, view: DocumentView) -> bool:
        """Whether more can be set aside: without, a fill would have to leave out elements, and be done again."""
        return await self.copies.unshown.count(view.uri) < MAX_UNSHOWN

    async def _fill(self, view: DocumentView) -> bool:
        """False if the view is gone meanwhile."""
        async for page in self._store.places(uri_prefix(view.template)):
            views = {one.uri: one for one in await self._store.views()}
            if view.uri not in views or not views[view.uri].shows_as(view):
                return False
            for source in page:
                if source.uri not in views:
                    await self.copies.show(view, source)
        return True


def _matches(template: TemplateIndex, uri: str) -> bool:
    try:
        return matches(template.template, uri)
    except EverlogError:
        return False  # of another version
