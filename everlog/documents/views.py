"""Views and template indexes: what follows from a write elsewhere.

A view's element is made equal to its source as it is now, whenever the source was written: so steps may be repeated
and may come late. A task that changed an element looks at the source once more: of two tasks that do this at once, the
last one to write finds what the other one saw. A view does not feed another view.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from everlog.documents.bodies import same, stored_body
from everlog.documents.evaluator import Evaluator
from everlog.documents.indexes import Index, IndexNew, IndexStatus, check_index
from everlog.documents.model import DocumentCommand, DocumentTransaction
from everlog.documents.paths import MAX_ITEM_BYTES, DocumentPlace
from everlog.documents.port import DocumentStore, DocumentView, TemplateIndex
from everlog.errors import DocumentNotFound, InvalidDocument
from everlog.runtime.clock import Clock

log = logging.getLogger("everlog.documents")

CACHE_S = 1.0
MAX_TEMPLATE = 1024
_PARAMETER = re.compile(r"\{(\*|[A-Za-z_][A-Za-z0-9_]*)\}")
_TEXT = re.compile(r"[A-Za-z0-9\-._~:/\[\]@!$&'()*+,;=]*")

Apply = Callable[[DocumentCommand], Awaitable[object]]


class Followers:
    """Keeps views and template indexes up to date. Definitions are read again every second."""

    def __init__(self, store: DocumentStore, apply: Apply, *, clock: Clock, evaluator: Evaluator) -> None:
        self._store = store
        self._apply = apply
        self._clock = clock
        self._evaluator = evaluator
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
        matching = [one for one in templates if match_template(one.template, uri) is not None]
        if not matching:
            return False
        known = {index.index_id for index in await self._store.indexes(uri)}
        made = False
        for template in matching:
            if template.index_id not in known:
                new = check_index(msgspec.json.decode(template.definition, type=IndexNew))
                index = self.new_index(new, template.index_id, transactions[0].revision)
                made |= await self._store.create_index(uri, index)
        return made

    def new_index(self, new: IndexNew, index_id: str, since: int) -> Index:
        """A definition to be built."""
        return Index(index_id, new.sort_by, new.filter_by, IndexStatus.INDEXING, self._clock.new_id(), since=since)

    async def after_events(self, uri: str, transactions: Sequence[DocumentTransaction]) -> None:
        views, _ = await self._definitions()
        if not views or any(view.uri == uri for view in views):
            return
        for view in views:
            for item in sorted({one.item for one in transactions}):
                await self.show(view, DocumentPlace(uri, item))

    async def fill(self, owns: Callable[[str], bool]) -> int:
        """Show what was there before a view was defined. A fill that is cut off is done again."""
        count = 0
        for view in await self._store.views():
            if view.filled or not owns(view.uri):
                continue
            if await self._fill(view):
                await self._store.mark_filled(view.uri)
                count += 1
        return count

    async def _fill(self, view: DocumentView) -> bool:
        """False if the view is gone meanwhile."""
        async for page in self._store.places(uri_prefix(view.template)):
            views = {one.uri: one for one in await self._store.views()}
            if view.uri not in views or not views[view.uri].shows_as(view):
                return False
            for source in page:
                if source.uri not in views:
                    await self._show_or_leave(view, source)
        return True

    async def _show_or_leave(self, view: DocumentView, source: DocumentPlace) -> None:
        """What a view cannot take, because it is too large, is left out: it must not hold back the rest."""
        try:
            await self.show(view, source)
        except InvalidDocument as error:
            log.warning("%s is not shown in %s: %s", source.path, view.uri, error, extra={"key": view.uri})

    async def show(self, view: DocumentView, source: DocumentPlace) -> None:
        """Make the view's element what its source is now."""
        item = match_template(view.template, source.path)
        if item is None or len(item) > MAX_ITEM_BYTES or source.kind == "collection":
            return
        while await self._copy(view, source, DocumentPlace(view.uri, item)):
            pass

    async def _copy(self, view: DocumentView, source: DocumentPlace, target: DocumentPlace) -> bool:
        """Whether something changed: then the source may have, too."""
        head, row, _ = await self._store.load(source)
        body = None if row is None or head is None or head.deleted else stored_body(row.body)
        # FilterTooExpensive goes out from here: what is not known to match or not is neither shown nor removed.
        if not isinstance(body, dict) or not await self._evaluator.matches(view.filter, body, self._clock.now_ms()):
            body = None
        _, shown, _ = await self._store.load(target)
        if body is None:
            if shown is not None:
                await self._ignore_absent(DocumentCommand("delete", target, internal=True))
            return shown is not None
        wanted = {**body, "id": target.item}
        if shown is not None and same(stored_body(shown.body), wanted):
            return False
        # It makes the view, too: its definition may be there before its collection is.
        await self._apply(DocumentCommand("put", target, wanted, internal=True, makes_view=True))
        return True

    async def _ignore_absent(self, command: DocumentCommand) -> None:
        with contextlib.suppress(DocumentNotFound):  # another node may have been quicker
            await self._apply(command)


@functools.lru_cache(maxsize=1000)
def compile_template(template: str) -> re.Pattern[str]:
    """The pattern of a template; every parameter stands for one or more characters without a slash."""
    pieces = _PARAMETER.split(template)
    literals = pieces[::2]
    valid = len(pieces) > 1 and all(_TEXT.fullmatch(piece) for piece in literals) and len(template) <= MAX_TEMPLATE
    if not valid or template.startswith("/") or template.endswith("/") or "//" in template or "}{" in template:
        raise InvalidDocument(
            "invalid-template", f"{template!r} is no template: it is a path with {{name}} or {{*}} in it"
        )
    return re.compile("([^/]+)".join(re.escape(piece) for piece in literals))


def uri_prefix(template: str) -> str:
    """What the uris of all documents and collections begin with whose paths may match.

    An element's uri ends before its id, so the last segment does not count.

    >>> uri_prefix("shop/orders~/{*}"), uri_prefix("{*}/x")
    ('shop/orders~', '')
    """
    return template.partition("{")[0].rpartition("/")[0]


def match_template(template: str, path: str) -> str | None:
    """The values of the parameters, joined by ':'; None if the path does not match.

    >>> match_template("abc/{*}", "abc/123")
    '123'
    """
    found = compile_template(template).fullmatch(path)
    return None if found is None else ":".join(found.groups())
