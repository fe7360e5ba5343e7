"""The schemas of the documents: defined, looked at, deleted, and checked against what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlog.documents.bodies import body_of
from everlog.documents.port import DocumentStore
from everlog.documents.schemas.book import SchemaBook
from everlog.documents.schemas.checks import SchemaChecks
from everlog.documents.schemas.definition import MAX_SCHEMAS, check_schema_id, checked_text
from everlog.documents.schemas.examiner import Examiner, need_validator
from everlog.documents.schemas.model import DocumentSchema, SchemaCheck
from everlog.documents.schemas.targets import compile_target
from everlog.errors import DocumentConflict, DocumentNotFound
from everlog.runtime.clock import Clock
from everlog.runtime.side_loop import SideLoop


class SchemaRegistry:
    """Schemas, and what works with them."""

    def __init__(self, store: DocumentStore, *, clock: Clock, side: SideLoop) -> None:
        self._store = store
        self._clock = clock
        self._examiner = Examiner(clock)
        self.book = SchemaBook(store, self._examiner, clock=clock, side=side)
        self.checks = SchemaChecks(store, self.book, clock=clock)

    async def put(self, schema_id: str, template: str, schema: Any) -> tuple[DocumentSchema, bool]:
        """Define or replace a schema; and whether it is new. Nothing is stored of one that cannot be used."""
        check_schema_id(schema_id)
        compile_target(template)
        text = checked_text(body_of(schema))
        need_validator()
        await self._examiner.try_schema(text)
        known = await self._store.schema_keys()
        if len(known) >= MAX_SCHEMAS and all(one.schema_id != schema_id for one in known):
            raise DocumentConflict("too-many-schemas", f"there are {len(known)} schemas: delete one first")
        made = DocumentSchema(schema_id, template, text, self._clock.new_id(), self._clock.now_ms())
        try:
            created = await self._store.put_schema(made)
        finally:
            self.book.forget()
        await self.book.schemas()
        return made, created

    async def get(self, schema_id: str) -> DocumentSchema:
        found = await self._store.schema(schema_id)
        if found is None:
            raise DocumentNotFound("schema-not-found", f"there is no schema {schema_id!r}")
        return found

    async def all(self) -> Sequence[DocumentSchema]:
        self.book.forget()
        return await self.book.schemas()

    async def overview(self) -> Sequence[tuple[DocumentSchema, SchemaCheck | None]]:
        """All schemas, each with its newest check."""
        checks = {one.check.schema_id: one.check for one in await self._store.schema_checks()}
        return [(one, checks.get(one.schema_id)) for one in await self.all()]

    async def delete(self, schema_id: str) -> None:
        try:
            if not await self._store.delete_schema(schema_id):
                raise DocumentNotFound("schema-not-found", f"there is no schema {schema_id!r}")
        finally:
            self.book.forget()
        await self.book.schemas()

    async def look_after(self) -> str:
        """What a server does every few seconds: know the schemas, and take over checks that another one has left."""
        await self.book.schemas()
        return f"{await self.checks.resume()} checks"

    async def check(self, schema_id: str) -> SchemaCheck:
        """Begin to check what is stored."""
        need_validator()
        return await self.checks.begin(await self.get(schema_id))

    async def checked(self, schema_id: str) -> SchemaCheck:
        """How far the newest check is."""
        await self.get(schema_id)
        return (await self.checks.get(schema_id)).check

    async def close(self) -> None:
        await self.checks.close()
        await self._examiner.close()
