"""What `log.projections` can do, wherever the log is: look at projections, and tell them what to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from everlog.core.values import Position
from everlog.errors.storage import needs_storage
from everlog.projections.copies import Copies, Difference
from everlog.projections.dead_letters import ShownDeadLetter
from everlog.projections.offsets import Offset
from everlog.projections.port import ANY_OFFSET, AnyOffset, KnownProjection, OffsetStore, View
from everlog.projections.projection import Projection
from everlog.projections.rebuild import OnRebuilt
from everlog.projections.runner import Runner
from everlog.projections.source import Lag
from everlog.projections.verification import OnCounted


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one instance of a projection is. `lag` is None if its source cannot tell.

    `state`: new, running, paused, backoff, completed, failed or stopped, as its owner reports it; `silent` if the owner
    stopped reporting for longer than its lease without shutting down; `waiting` if no process runs it but one with
    another version, which waits for a copy of its own. `reported_ms`: when its owner said something last, by that one's
    clock; it does so three times per lease. `version`: of the code that fills its view; None if it has none in the
    store. `pipeline_lag`: for events by tag, how far these views are behind the log; `lag` counts what they hold.
    `remedy`: what to do, if something is to be done.
    """

    name: str
    key: str
    state: str
    paused: bool
    offset: Offset | None
    updated_ms: int | None
    owner: str | None
    epoch: int
    handled: int
    skipped: int
    restarts: int
    dead_letters: int
    failing: str | None
    attempts: int
    error: str | None
    lag: Lag | None
    reported_ms: int | None = None
    version: str | None = None
    pipeline_lag: Lag | None = None
    remedy: str | None = None


class Projections(ABC):
    """The projections of a log."""

    @abstractmethod
    async def list(self, name: str | None = None) -> list[ProjectionStatus]:
        """All instances that ever ran here, or those of one projection."""

    @abstractmethod
    async def get(self, name: str, key: str | None = None) -> ProjectionStatus:
        """One instance. The key may be left out if the projection has only one."""

    async def offset(self, name: str, key: str | None = None) -> Offset | None:
        """The stored offset."""
        return (await self.get(name, key)).offset

    @abstractmethod
    async def pause(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        """Handle nothing until `resume`; with `wait_s`, come back only when its owner obeys (else StillBehind)."""

    @abstractmethod
    async def resume(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        """Go on."""

    @abstractmethod
    async def skip(self, name: str, key: str | None = None, *, offset: str | None = None) -> str:
        """Leave out the envelope that is failing now, or the one at this offset; it becomes a dead letter."""

    @abstractmethod
    async def wait(self, name: str, token: Position | str, *, seconds: float | None = 30.0) -> None:
        """Until all keys have passed what this token stands for, filtered events included (else StillBehind)."""

    # Copies

    @abstractmethod
    async def copies(self, name: str) -> Copies:
        """Which copies of a view there are, and which one is read."""

    @abstractmethod
    async def request_rebuild(self, name: str) -> Copies:
        """Let the process that runs the projection fill a second copy of its view, up to date until `switch`.

        It needs the handler's code, so it begins when a process with the projection runs. `copies` says how far it is.
        """

    @abstractmethod
    async def request_verify(self, name: str) -> Copies:
        """Let the process that runs the projection count its view again; `copies` says how far it is."""

    @abstractmethod
    async def cancel_verify(self, name: str) -> Copies:
        """Stop a verification that was asked for, or forget what the last one found."""

    @abstractmethod
    async def switch(self, name: str, *, back: bool = False) -> Copies:
        """Read the copy that was filled from now on, or with `back` the one before; runners follow."""

    @abstractmethod
    async def abort(self, name: str) -> Copies:
        """Drop the copy that is being built."""

    # What needs the store itself: a server does not hand these out.

    async def store(self) -> OffsetStore:
        """Where offsets are kept; opened by the first use."""
        raise needs_storage()

    async def runner(self, *projections: Projection) -> Runner:
        """What runs these projections, not started yet: it has `start`, `stop` and `status`."""
        raise needs_storage()

    def run(self, *projections: Projection) -> AbstractAsyncContextManager[Runner]:
        """Run them as long as the block lasts: `async with log.projections.run(carts): ...`.

        Rebuilds and verifications that others ask for are done here, too: they need the handlers.
        """
        raise needs_storage()

    async def set(
        self, name: str, key: str | None, offset: Offset, *, expected: Offset | AnyOffset | None = ANY_OFFSET
    ) -> None:
        """Go on after this offset; with `expected`, only if it is that one now (else OffsetConflict)."""
        raise needs_storage()

    async def clear(
        self, name: str, key: str | None = None, *, expected: Offset | AnyOffset | None = ANY_OFFSET
    ) -> None:
        """Begin at the beginning of the source."""
        raise needs_storage()

    async def dead_letters(self, name: str, key: str | None = None, *, limit: int = 1000) -> Sequence[ShownDeadLetter]:
        """Envelopes that were given up, oldest first, each with the event that it is."""
        raise needs_storage()

    async def replay(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        """Let the owner handle dead letters again, all or one; how many it will."""
        raise needs_storage()

    async def forget(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        """Drop dead letters, all or one; how many."""
        raise needs_storage()

    async def rebuild(
        self,
        projection: Projection,
        *,
        create: Sequence[str] = (),
        on_progress: OnRebuilt | None = None,
        follow: bool = False,
    ) -> int:
        """Fill a second copy of a view beside the running one; its number. `switch` makes it the one that is read.

        `create`: statements that make tables which shall look different from now on; the others are made as they are.
        `on_progress(handled, waiting)` is called now and then. `follow`: keep it up to date until a switch.
        """
        raise needs_storage()

    async def verify(
        self, projection: Projection, *tables: str, on_progress: OnCounted | None = None
    ) -> Sequence[Difference]:
        """Count a view again from the beginning, into a copy, and compare tables of it: these, or all declared ones.

        On Cassandra the projection is paused meanwhile. `on_progress(handled, total)` is called now and then.
        """
        raise needs_storage()

    async def check_view(self, name: str) -> Sequence[KnownProjection]:
        """The instances of a projection, which may have copies; UnknownProjection if it never ran, or is a copy."""
        raise needs_storage()

    def view(self, name: str) -> ProjectionView:
        """The view that a projection fills in the store."""
        return ProjectionView(self, name)


class ProjectionView:
    """What a projection has written into the store's own tables."""

    def __init__(self, projections: Projections, name: str) -> None:
        self._projections = projections
        self._name = name

    async def wait(self, token: Position | str, *, seconds: float | None = 30.0) -> None:
        """Until the view has what this token stands for."""
        await self._projections.wait(self._name, token, seconds=seconds)

    async def fetch(self, statement: str, *values: Any, after: Position | str | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query; with `after=token`, once the view has what that token stands for."""
        if after is not None:
            await self.wait(after)
        return await (await self._view()).fetch(statement, *values)

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement, such as one that makes the view's tables."""
        return await (await self._view()).execute(statement, *values)

    async def _view(self) -> View:
        """The copy that is the current one; each statement sees one copy, whatever is switched meanwhile."""
        store = await self._projections.store()
        copies = await store.copies(self._name)
        return store.view(copies.names(copies.current))
