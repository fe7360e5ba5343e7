"""A check of what was stored before a schema: a job in the background, with progress that other processes see.

A check belongs to one version of a schema. Its row has a beat, which grows with every change, and is changed only at
the beat that was read: of two servers that work on one check, one goes on. A server that stops releases its checks;
one that dies stops beating, and after the length of a lease another takes over: a check of one collection from where
it was, others from the beginning. It begins when no write can be under way that was decided before the schema held
everywhere, so that what is not named in the end fits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import msgspec

from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentStore
from everlog.documents.query_plan import IndexRange
from everlog.documents.schemas.book import CACHE_S, SchemaBook
from everlog.documents.schemas.model import (
    MAX_PROBLEMS,
    DocumentSchema,
    SchemaCheck,
    SchemaProblem,
    SchemaViolation,
    StoredCheck,
)
from everlog.documents.schemas.targets import applies, place_prefix, whole_collection
from everlog.errors import DocumentNotFound, EverlogError, InvalidDocument
from everlog.runtime.clock import Clock
from everlog.runtime.lease import BEATS_PER_LEASE, LeaseWatch
from everlog.runtime.retry import pause_after

log = logging.getLogger("everlog.documents")

SAVE_S = 1.0
LEASE_S = 15.0
SETTLE_S = CACHE_S + 0.2
PAGE = 200
PAGE_BYTES = 4 * 1024 * 1024
MAX_RUNNING = 2
MAX_FAILURES = 20
MAX_PROBLEM_ERRORS = 3


class SchemaChecks:
    """The checks that this process works on."""

    def __init__(self, store: DocumentStore, book: SchemaBook, *, clock: Clock) -> None:
        self._store = store
        self._book = book
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._watch = LeaseWatch(LEASE_S)
        self._guard: asyncio.Task[None] | None = None

    async def begin(self, schema: DocumentSchema) -> SchemaCheck:
        """Check all that the schema is for; one that is under way already is the answer."""
        stored = await self._store.schema_check(schema.schema_id)
        if stored is not None and not stored.check.ended and stored.check.version == schema.version:
            await self.resume()
            if schema.schema_id not in self._tasks and self._guard is None:
                self._guard = asyncio.create_task(self._stand_by(), name="everlog-schema-checks")
            return stored.check
        check = SchemaCheck(
            self._clock.new_id(), schema.schema_id, schema.version, started_ms=self._clock.now_ms(), released=True
        )
        beat = 1 if stored is None else stored.beat + 1
        if not await self._store.save_schema_check(check, beat, None if stored is None else stored.beat):
            return (await self.get(schema.schema_id)).check  # another caller was quicker
        self._start(StoredCheck(check, beat))
        return check

    async def get(self, schema_id: str) -> StoredCheck:
        found = await self._store.schema_check(schema_id)
        if found is None:
            raise DocumentNotFound("check-not-found", f"the schema {schema_id!r} was not checked: begin a check")
        return found

    async def resume(self) -> int:
        """Take over checks that were released, or whose server is gone; how many run here now."""
        stored = await self._store.schema_checks()
        self._watch.keep([one.check.schema_id for one in stored])
        for one in stored:
            name = one.check.schema_id
            alive = self._watch.look(name, one.beat, self._clock.monotonic())
            if not one.check.ended and name not in self._tasks and (one.check.released or not alive):
                self._start(one)
        return len(self._tasks)

    async def _stand_by(self) -> None:
        """Take over what another process works on, should it die: this one may be no server, which looks by itself."""
        try:
            while any(not one.check.ended for one in await self._store.schema_checks()):
                await self.resume()
                await asyncio.sleep(LEASE_S / BEATS_PER_LEASE)
        except EverlogError as error:
            log.warning("checks of schemas are not looked after: %s", error)
        finally:
            self._guard = None

    def _start(self, stored: StoredCheck) -> None:
        name = stored.check.schema_id
        before = self._tasks.pop(name, None)
        if before is not None:
            before.cancel()
        task = asyncio.create_task(self._work(stored), name=f"everlog-schema-check-{name}")
        self._tasks[name] = task
        task.add_done_callback(lambda ended: self._forget(name, ended))

    def _forget(self, name: str, ended: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is ended:
            del self._tasks[name]

    async def _work(self, stored: StoredCheck) -> None:
        async with self._slots:
            run = _Run(self._store, self._book, self._clock, stored)
            try:
                await run.go()
            except asyncio.CancelledError:
                await run.release()
                raise
            except Exception as error:
                # The row says that it runs: a server takes it over after the lease.
                expected = isinstance(error, EverlogError)
                log.warning("the check of %s stops: %s", run.check.schema_id, error, exc_info=not expected)

    async def close(self) -> None:
        """Release what is under way: another server, or the next start, goes on."""
        tasks = list(self._tasks.values()) + ([] if self._guard is None else [self._guard])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Lost(Exception):
    """Another process works on this check."""


class _Run:
    """One process's work on one check."""

    def __init__(self, store: DocumentStore, book: SchemaBook, clock: Clock, stored: StoredCheck) -> None:
        self._store = store
        self._book = book
        self._clock = clock
        self._beat = stored.beat
        self._saved_at = clock.monotonic()
        self.check = stored.check

    async def go(self) -> None:
        """Take the check, and go through all that is there; try again when a server does not answer."""
        try:
            kept = (
                self.check
                if self.check.cursor
                else msgspec.structs.replace(self.check, checked=0, violations=0, problems=())
            )
            self.check = msgspec.structs.replace(kept, released=False, runs=kept.runs + 1)
            await self._save()
            failures = 0
            while True:
                before = self.check.checked
                try:
                    await self._scan()
                    return
                except EverlogError as error:
                    failures = 1 if self.check.checked > before else failures + 1
                    if not error.retriable or failures > MAX_FAILURES:
                        await self._end("failed", str(error))
                        return
                    await asyncio.sleep(pause_after(failures, 0.1, 5.0))
        except _Lost:
            log.info("the check of %s goes on elsewhere", self.check.schema_id)

    async def release(self) -> None:
        """Let another process go on at once."""
        if self.check.ended:
            return
        self.check = msgspec.structs.replace(self.check, released=True)
        try:
            await self._save()
        except (_Lost, EverlogError) as error:
            log.info("the check of %s was not released: %s", self.check.schema_id, error)

    async def _scan(self) -> None:
        schema = await self._store.schema(self.check.schema_id)
        if schema is None or schema.version != self.check.version:
            await self._end("failed", "the schema was changed meanwhile: check it again")
            return
        await asyncio.sleep(max(0.0, schema.modified_ms / 1000 + SETTLE_S - self._clock.now_ms() / 1000))
        views = {view.uri for view in await self._store.views()}
        async for place, text in self._bodies(schema):
            if place.uri not in views:
                await self._look(schema, place, text)
            if self._clock.monotonic() - self._saved_at >= SAVE_S:
                await self._save()
        await self._end("done")

    async def _bodies(self, schema: DocumentSchema) -> AsyncGenerator[tuple[DocumentPlace, str], None]:
        uri = whole_collection(schema.template)
        if uri is not None:
            head, _, _ = await self._store.load(DocumentPlace(uri))
            self._note(total=0 if head is None or head.deleted else head.count)
            more = True
            while more:
                low = self.check.cursor[0] + "\0" if self.check.cursor else ""
                batch = await self._store.elements(
                    uri, IndexRange(low, None), reverse=False, limit=PAGE, max_bytes=PAGE_BYTES
                )
                for key, text in batch.entries:
                    if applies(schema.template, DocumentPlace(uri, key)):
                        yield DocumentPlace(uri, key), text
                    self._note(cursor=(key,))
                more = batch.more and bool(batch.entries)
            return
        self._note(checked=0, violations=0, problems=())
        async for page in self._store.places(place_prefix(schema.template)):
            for place in page:
                if applies(schema.template, place):
                    _, row, _ = await self._store.load(place)
                    if row is not None:
                        yield place, row.body

    def _note(self, **changes: object) -> None:
        self.check = msgspec.structs.replace(self.check, **changes)

    async def _look(self, schema: DocumentSchema, place: DocumentPlace, text: str) -> None:
        try:
            found = [one for _, one in await self._book.violations([schema], place, text)]
        except InvalidDocument as error:  # it takes too long to say: so it could not be written again
            found = [SchemaViolation("", "", str(error))]
        self._note(checked=self.check.checked + 1)
        if found:
            problem = SchemaProblem(place.path, tuple(found[:MAX_PROBLEM_ERRORS]))
            kept = self.check.problems if len(self.check.problems) >= MAX_PROBLEMS else (*self.check.problems, problem)
            self._note(violations=self.check.violations + 1, problems=kept)

    async def _end(self, state: str, reason: str | None = None) -> None:
        self._note(state=state, reason=reason, ended_ms=self._clock.now_ms())
        await self._save()

    async def _save(self) -> None:
        if not await self._store.save_schema_check(self.check, self._beat + 1, self._beat):
            raise _Lost
        self._beat += 1
        self._saved_at = self._clock.monotonic()
