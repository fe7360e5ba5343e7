"""Which schemas hold, and whether a decided write may be stored.

Definitions are read again every second, and at once where they were changed: so a write may be decided on definitions
that are at most a second old. A write is decided twice when schemas apply: once to see which bodies it would store,
then, with what the examiner found about exactly these bodies, for good. The decision stays pure, and no body gets
past it that was not examined. What is examined is what is stored: merged, with the id of an element, without nulls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from everlog.documents.model import BodyCheck, accept_all
from everlog.documents.paths import DocumentPlace
from everlog.documents.port import DocumentStore
from everlog.documents.schemas.examiner import Examiner
from everlog.documents.schemas.model import DocumentSchema, SchemaViolation
from everlog.documents.schemas.targets import applies
from everlog.errors import Busy, EverlogError, SchemaViolated
from everlog.runtime.clock import Clock
from everlog.runtime.side_loop import SideLoop

CACHE_S = 1.0
MAX_ERRORS = 20

T = TypeVar("T")


class SchemaBook:
    """The schemas as they are now."""

    def __init__(self, store: DocumentStore, examiner: Examiner, *, clock: Clock, side: SideLoop) -> None:
        self._store = store
        self._examiner = examiner
        self._clock = clock
        self._side = side
        self._schemas: dict[str, DocumentSchema] = {}
        self._read_at: float | None = None
        self._changes = 0

    def forget(self) -> None:
        """Definitions have changed."""
        self._read_at = None
        self._changes += 1

    @property
    def known(self) -> Sequence[DocumentSchema]:
        """As they were when they were last read."""
        return list(self._schemas.values())

    async def schemas(self) -> Sequence[DocumentSchema]:
        """All of them; the texts of those that are known already are not read again."""
        now, changes = self._clock.monotonic(), self._changes
        if self._read_at is None or now - self._read_at > CACHE_S:
            found: dict[str, DocumentSchema] = {}
            for key in await self._store.schema_keys():
                known = self._schemas.get(key.schema_id)
                schema = known if known is not None and known.key == key else await self._store.schema(key.schema_id)
                if schema is not None:
                    found[key.schema_id] = schema
            if changes == self._changes:
                self._schemas, self._read_at = found, now
            return list(found.values())
        return list(self._schemas.values())

    async def decided(self, make: Callable[[BodyCheck], T], *, large: bool, timeout_s: float) -> T:
        """What `make` decides; the check that it is given raises for a body that does not fit, or of which that cannot
        be said: SchemaViolated, InvalidDocument, Busy. Such an error is of that body alone, and stops no other.

        `make` is called twice and must do the same both times up to the first error, in a thread where bodies are
        large. Bodies behind the first that is refused are not examined, so it must not store them in this decision.
        """
        schemas = await self.schemas()
        if not schemas:
            return await self._called(make, accept_all, large)
        trial = _Trial(schemas)
        made = await self._called(make, trial.note, large)
        if not trial.bodies:
            return made
        await self._examine(trial, schemas, timeout_s)
        return await self._called(make, trial.hold, large)

    async def _examine(self, trial: _Trial, schemas: Sequence[DocumentSchema], timeout_s: float) -> None:
        """Look at the bodies in their order, up to the first that must not be stored."""
        for place, text in trial.bodies:
            error: EverlogError | None = None
            try:
                async with asyncio.timeout_at(trial.began + timeout_s):
                    found = await self.violations(schemas, place, text)
                    error = violated(place, found) if found else None
            except TimeoutError:
                message = f"bodies wait to be validated for more than {timeout_s:g} s: nothing was stored, try again"
                error = Busy(message)
            except EverlogError as refused:
                error = refused
            trial.found[place, text] = error
            if error is not None:
                return

    async def _called(self, make: Callable[[BodyCheck], T], check: BodyCheck, large: bool) -> T:
        return await self._side.call(lambda: make(check)) if large else make(check)

    async def violations(
        self, schemas: Sequence[DocumentSchema], place: DocumentPlace, text: str
    ) -> Sequence[tuple[str, SchemaViolation]]:
        """Where a body does not fit, with the ids of the schemas that say so. Each that applies must hold."""
        found: list[tuple[str, SchemaViolation]] = []
        for schema in schemas:
            if applies(schema.template, place):
                finding = await self._examiner.examine(schema.version, schema.text, text)
                if finding.violations is not None:
                    places = finding.violations or [SchemaViolation("", "", finding.refused or "it does not fit")]
                    found += [(schema.schema_id, one) for one in places]
        return found[:MAX_ERRORS]


class _Trial:
    """The bodies of one decision, and what was found about them."""

    def __init__(self, schemas: Sequence[DocumentSchema]) -> None:
        self._schemas = schemas
        self.began = asyncio.get_running_loop().time()
        self.bodies: list[tuple[DocumentPlace, str]] = []
        self.found: dict[tuple[DocumentPlace, str], EverlogError | None] = {}

    def note(self, place: DocumentPlace, text: str) -> None:
        if any(applies(schema.template, place) for schema in self._schemas):
            self.bodies.append((place, text))

    def hold(self, place: DocumentPlace, text: str) -> None:
        if not any(applies(schema.template, place) for schema in self._schemas):
            return
        error = self.found[place, text]  # a body that was not examined is a defect, and stores nothing
        if error is not None:
            raise error


def violated(place: DocumentPlace, found: Sequence[tuple[str, SchemaViolation]]) -> SchemaViolated:
    """The refusal, with all places."""
    schema_id, first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    where = f"at {first.path}" if first.path else "as a whole"
    return SchemaViolated(
        "schema-violated",
        f"{place.path} does not fit the schema {schema_id!r} {where}: {first.message}{more}",
        errors=[
            {"schema": name, "path": one.path, "schemaPath": one.schema_path, "message": one.message}
            for name, one in found
        ],
    )
