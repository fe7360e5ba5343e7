"""What is defined rather than stored: indexes, views and template indexes."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from everlog.config import DocumentsConfig
from everlog.documents.api import Documents
from everlog.documents.completer import Completer
from everlog.documents.filters.parser import parse_filter
from everlog.documents.history import History
from everlog.documents.ids import next_id
from everlog.documents.indexes import Index, IndexNew, IndexStatus, check_index
from everlog.documents.model import DocumentCommand, WrittenDocument
from everlog.documents.paths import DocumentPlace, parse_collection
from everlog.documents.port import DocumentStore, DocumentView, TemplateIndex
from everlog.documents.recovery import OutboxRecovery
from everlog.documents.templates import compile_template
from everlog.documents.views import Followers
from everlog.errors import DocumentConflict, DocumentNotFound
from everlog.runtime.clock import Clock


class OpenDocuments(NamedTuple):
    """What works once the store is open."""

    store: DocumentStore
    completer: Completer
    history: History
    followers: Followers
    recovery: OutboxRecovery


class Definitions(Documents):
    """The part of `Documents` that defines indexes and views."""

    _clock: Clock
    _config: DocumentsConfig

    @abstractmethod
    async def _apply(self, command: DocumentCommand) -> WrittenDocument:
        """Carry out a write."""

    def _entropy(self) -> int:
        return UUID(self._clock.new_id()).int

    async def create_index(self, path: str, new: IndexNew) -> Index:
        uri = parse_collection(path)
        checked = check_index(new)
        parts = await self.open()
        index_id = checked.index_id or next_id(self._clock.now_ms(), self._entropy())
        head, _ = await parts.store.load(DocumentPlace(uri))
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

    async def put_view(self, path: str, template: str, condition: str | None = None) -> DocumentView:
        uri = parse_collection(path)
        compile_template(template)
        view = DocumentView(uri, template, None if parse_filter(condition or "") is None else condition)
        parts = await self.open()
        known = await self._known_alike(view)
        if known is not None:
            return known
        head, _ = await parts.store.load(DocumentPlace(uri))
        if head is not None and not head.deleted and not head.view:
            raise DocumentConflict("collection_view_conflict", f"{uri} is a collection already")
        if not await parts.store.put_view(view):
            known = await self._known_alike(view)  # somebody may have made the same one since we looked
            if known is None:
                raise DocumentConflict("already-exists", f"{uri} is another view already: delete it first")
            return known
        with contextlib.suppress(DocumentConflict):  # it is there since an earlier, unfinished call
            await self._apply(DocumentCommand("put", DocumentPlace(uri), internal=True, makes_view=True))
        parts.followers.forget()
        parts.completer.kick_indexes(self._config.index_step)
        return view

    async def _known_alike(self, view: DocumentView) -> DocumentView | None:
        found = await (await self.open()).store.views()
        return next((known for known in found if known.shows_as(view)), None)

    async def view(self, path: str) -> DocumentView:
        uri = parse_collection(path)
        for view in await (await self.open()).store.views():
            if view.uri == uri:
                return view
        raise DocumentNotFound("not_found", f"there is no view {uri}")

    async def delete_view(self, path: str) -> None:
        uri = parse_collection(path)
        parts = await self.open()
        known = await parts.store.delete_view(uri)
        parts.followers.forget()
        head, _ = await parts.store.load(DocumentPlace(uri))
        if head is not None and head.view and not head.deleted:
            await self._apply(DocumentCommand("delete", DocumentPlace(uri), internal=True))
        elif not known:
            raise DocumentNotFound("not_found", f"there is no view {uri}")

    async def put_template_index(self, index_id: str, template: str, new: IndexNew) -> TemplateIndex:
        compile_template(template)
        checked = check_index(msgspec.structs.replace(new, index_id=index_id))
        made = TemplateIndex(index_id, template, msgspec.json.encode(checked).decode())
        parts = await self.open()
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

    async def build_indexes(self) -> int:
        return await (await self.open()).completer.build_indexes(self._config.index_step)
