"""`log.projections`: run them, look at them, tell them what to do. All of it goes through the store.

So commands work from any process, and while no instance runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from everlog.core.values import Position
from everlog.errors import InvalidInput, InvalidProjection, StillBehind, UnknownProjection
from everlog.journal.parts import Parts
from everlog.projections.copies import Copies, Difference, copy_name, is_copy
from everlog.projections.copy_requests import RequestKind, RequestService, ask, withdraw
from everlog.projections.event_stream import ProgressHub
from everlog.projections.factory import open_offset_store
from everlog.projections.offsets import Offset
from everlog.projections.port import ANYTHING, Anything, KnownProjection, OffsetStore, ProjectionDeadLetter, View
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.rebuild import OnRebuilt, Rebuild, abort, switch
from everlog.projections.record_source import RecordSource
from everlog.projections.runner import Runner
from everlog.projections.save_window import LogPlace
from everlog.projections.source import Lag, Source
from everlog.projections.tag_source import TagSource
from everlog.projections.verification import OnCounted, hold_paused, verify
from everlog.runtime.lease import LeaseWatch
from everlog.runtime.trace import Trace

LOOK_S = 0.02


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one instance of a projection is. `lag` is None if its source cannot tell.

    `reported_ms`: when its owner reported last, by the owner's clock; it does so three times per lease.
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


class Projections:
    """The projections of a log."""

    def __init__(self, parts: Parts, *, trace: Trace | None = None) -> None:
        self._parts = parts
        self._trace = trace
        self._store: OffsetStore | None = None
        self._opening = asyncio.Lock()
        self._hub = ProgressHub()

    async def store(self) -> OffsetStore:
        """Where offsets are kept; opened by the first use."""
        async with self._opening:
            if self._store is None:
                config, clock = self._parts.config, self._parts.clock
                self._store = await open_offset_store(config, clock=clock, trace=self._trace)
            return self._store

    async def runner(self, *projections: Projection) -> Runner:
        """What runs these projections, not started yet: it has `start`, `stop` and `status`."""
        await self.store()
        return self._runner(*projections)

    def _runner(self, *projections: Projection) -> Runner:
        settings = self._parts.config.projections
        assert self._store is not None
        return Runner(
            projections,
            store=self._store,
            parts=self._parts,
            hub=self._hub,
            clock=self._parts.clock,
            lease_s=settings.lease_s,
            poll_s=settings.poll_interval_s,
            timeout_s=settings.handler_timeout_s,
        )

    @asynccontextmanager
    async def run(self, *projections: Projection) -> AsyncIterator[Runner]:
        """Run them as long as the block lasts: `async with log.projections.run(carts): ...`.

        Rebuilds and verifications that others ask for are done here, too: they need the handlers.
        """
        async with await self.runner(*projections) as runner:
            assert self._store is not None
            lease_s, clock = self._parts.config.projections.lease_s, self._parts.clock
            async with RequestService(projections, self, store=self._store, clock=clock, lease_s=lease_s):
                yield runner

    # Looking

    async def list(self, name: str | None = None) -> list[ProjectionStatus]:
        """All instances that ever ran here, or those of one projection."""
        name = name if name is None else await self._current(name)
        return [await self._status(one) for one in await (await self.store()).known(name)]

    async def get(self, name: str, key: str | None = None) -> ProjectionStatus:
        """One instance. The key may be left out if the projection has only one."""
        return await self._status(await self._known(name, key))

    async def offset(self, name: str, key: str | None = None) -> Offset | None:
        """The stored offset."""
        return (await self._known(name, key)).offset

    async def _current(self, name: str) -> str:
        """The name of the copy that is read; the name itself, unless it was rebuilt."""
        if is_copy(name):
            return name
        return copy_name(name, (await (await self.store()).copies(name)).current)

    async def _known(self, name: str, key: str | None) -> KnownProjection:
        found = await (await self.store()).known(await self._current(name))
        if key is not None:
            found = [one for one in found if one.key == key]
        if not found:
            raise UnknownProjection(name, key)
        if len(found) > 1:
            keys = ", ".join(one.key for one in found[:10])
            raise InvalidProjection(f"the projection {name} has the keys {keys}: name one")
        return found[0]

    async def _id(self, name: str, key: str | None) -> ProjectionId:
        known = await self._known(name, key)
        return ProjectionId(known.name, known.key)

    async def _status(self, known: KnownProjection) -> ProjectionStatus:
        report, lease = known.report, known.lease
        owner = None if lease is None else lease.owner
        state = report.state if owner is not None or report.state in ("completed", "failed") else "stopped"
        return ProjectionStatus(
            name=known.name,
            key=known.key,
            state=state,
            paused=known.desired.paused,
            offset=known.offset,
            updated_ms=known.updated_ms,
            owner=owner,
            epoch=0 if lease is None else lease.epoch,
            handled=report.handled,
            skipped=report.skipped,
            restarts=report.restarts,
            dead_letters=known.dead_letters,
            failing=report.failing,
            attempts=report.attempts,
            error=report.error,
            lag=await self._lag(known),
            reported_ms=report.updated_ms or None,
        )

    async def _lag(self, known: KnownProjection) -> Lag | None:
        """What the source says about itself in the store is enough: no instance has to run."""
        source = source_of(known.report.source)
        if source is None:
            return None
        feed = source.open(self._parts)
        try:
            return await feed.lag(known.key, known.offset)
        finally:
            await feed.close()

    # Commands

    async def set(
        self, name: str, key: str | None, offset: Offset, *, expected: Offset | Anything | None = ANYTHING
    ) -> None:
        """Go on after this offset; with `expected`, only if it is that one now (else OffsetConflict)."""
        await self._set(await self._id(name, key), offset, expected)

    async def clear(self, name: str, key: str | None = None, *, expected: Offset | Anything | None = ANYTHING) -> None:
        """Begin at the beginning of the source."""
        await self._set(await self._id(name, key), None, expected)

    async def _set(self, identity: ProjectionId, offset: Offset | None, expected: Offset | Anything | None) -> None:
        await (await self.store()).set_offset(identity, offset, expected=expected)
        self._hub.forget(identity)

    async def pause(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        """Handle nothing until `resume`; with `wait_s`, come back only when its owner obeys (else StillBehind)."""
        await self._pause(name, key, True, wait_s)

    async def resume(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        """Go on."""
        await self._pause(name, key, False, wait_s)

    async def _pause(self, name: str, key: str | None, paused: bool, wait_s: float | None) -> None:
        identity = await self._id(name, key)
        desired = await (await self.store()).pause(identity, paused)
        if wait_s is not None:
            await self._settled(identity, desired.version, wait_s)

    async def _settled(self, identity: ProjectionId, version: int, seconds: float) -> None:
        """Until the owner follows this version, or there is no owner, or it is dead: its lease has run out."""
        watch, now = LeaseWatch(self._parts.config.projections.lease_s), asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(seconds):
                while True:
                    known = await self._known(identity.name, identity.key)
                    lease = known.lease
                    if lease is None or lease.owner is None or known.report.seen >= version:
                        return
                    if not watch.look(identity.key, (lease.owner, lease.epoch, lease.beat), now()):
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as error:
            raise StillBehind(f"{identity}: its owner has not followed within {seconds:g} s; it will") from error

    async def skip(self, name: str, key: str | None = None, *, offset: str | None = None) -> str:
        """Leave out the envelope that is failing now, or the one at this offset; it becomes a dead letter."""
        known = await self._known(name, key)
        wanted = known.report.failing if offset is None else offset
        if wanted is None:
            raise InvalidInput(f"{name}, key {known.key}: nothing is failing, so there is nothing to skip")
        await (await self.store()).skip(ProjectionId(known.name, known.key), wanted)
        return wanted

    # Dead letters

    async def dead_letters(
        self, name: str, key: str | None = None, *, limit: int = 1000
    ) -> Sequence[ProjectionDeadLetter]:
        """Envelopes that were given up, oldest first."""
        current = await self._current(name)
        if not await (await self.store()).known(current):
            raise UnknownProjection(name)
        return await (await self.store()).dead_letters(current, key, limit=limit)

    async def replay(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        """Let the owner handle dead letters again, all or one; how many it will."""
        return await (await self.store()).request_replay(await self._id(name, key), offset)

    async def forget(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        """Drop dead letters, all or one; how many."""
        return await (await self.store()).drop_letters(await self._id(name, key), offset)

    # Copies

    async def copies(self, name: str) -> Copies:
        """Which copies of a view there are, and which one is read."""
        return await (await self.store()).copies(name)

    async def rebuild(
        self,
        projection: Projection,
        *,
        create: Sequence[str] = (),
        on_progress: OnRebuilt | None = None,
        follow: bool = False,
    ) -> int:
        """Fill a second copy of a view beside the running one; its number. `switch` makes it the one that is read.

        `create`: statements that make tables which are to look different from now on; the others are made as they are.
        `on_progress(handled, waiting)` is called now and then. `follow`: keep it up to date until a switch.
        """
        store = await self.store()
        rebuild = Rebuild(store, projection, lag=self._lag)
        if not await store.known(await self._current(projection.name)):
            raise UnknownProjection(projection.name)  # it has no view yet: just run it
        number = await rebuild.begin(create)
        await rebuild.fill(number, self._runner, on_progress=on_progress, follow=follow)
        return number

    async def switch(self, name: str, *, back: bool = False) -> Copies:
        """Read the copy that was filled from now on, or with `back` the one before; runners follow."""
        return await switch(await self.store(), name, back=back)

    async def abort(self, name: str) -> Copies:
        """Drop the copy that is being built."""
        return await abort(await self.store(), name)

    async def request_rebuild(self, name: str) -> Copies:
        """Let a process that runs the projection fill a second copy of its view, and keep it up to date until `switch`.

        It needs the handler's code, so it begins when a process with the projection runs. `copies` says how far it is.
        """
        return await self._ask(name, "rebuild")

    async def request_verify(self, name: str) -> Copies:
        """Let a process that runs the projection count its view again; `copies` says how far it is, and the result."""
        return await self._ask(name, "verify")

    async def check_view(self, name: str) -> Sequence[KnownProjection]:
        """The instances of a projection that may have copies. UnknownProjection if it is a copy, or never ran."""
        known = await (await self.store()).known(await self._current(name))
        if is_copy(name) or not known:
            raise UnknownProjection(name)
        return known

    async def _ask(self, name: str, kind: RequestKind) -> Copies:
        known = await self.check_view(name)
        if any(one.report.batch is not None for one in known):
            raise InvalidProjection(f"{name} runs on Spark: there is no copy of its view to fill or to compare")
        return await ask(await self.store(), name, kind, self._parts.clock.now_ms())

    async def cancel_verify(self, name: str) -> Copies:
        """Stop a verification that was asked for, or forget what the last one found."""
        return await withdraw(await self.store(), name, "verify")

    async def verify(
        self, projection: Projection, *tables: str, on_progress: OnCounted | None = None
    ) -> Sequence[Difference]:
        """Count a view again from the beginning, into a copy, and compare tables of it: these, or all declared ones.

        On Cassandra the projection is paused meanwhile. `on_progress(handled, total)` is called now and then.
        """
        store = await self.store()
        names = tables or projection.tables
        if not names:
            raise InvalidProjection(f"{projection.name}: name the tables to compare, or declare them: tables=[…]")
        current = await store.known(await self._current(projection.name))
        if not current:
            raise UnknownProjection(projection.name)
        if not store.recount_pauses:
            return await verify(projection, store, names, parts=self._parts, on_progress=on_progress)
        running = [one.key for one in current if not one.desired.paused]
        async with hold_paused(self, store, projection.name, running):
            return await verify(projection, store, names, parts=self._parts, on_progress=on_progress)

    # Reading your own writes

    def view(self, name: str) -> ProjectionView:
        """The view that a projection fills in the store."""
        return ProjectionView(self, name)

    async def wait(self, name: str, token: Position | str, *, seconds: float | None = 30.0) -> None:
        """Until all keys have passed what this token stands for, filtered events included (else StillBehind)."""
        position = Position.parse(token) if isinstance(token, str) else token
        place = (position.topic, position.partition)
        try:
            async with asyncio.timeout(seconds):
                await self._wait(name, place, position.offset)
        except TimeoutError as error:
            raise StillBehind(
                f"the projection {name} has not reached {position} within {seconds:g} s: is it running, and does its "
                "source tell positions?"
            ) from error

    async def _wait(self, name: str, place: LogPlace, offset: int) -> None:
        """What this process handles is known at once; what others do, by a look at the store now and then."""
        store, loop = await self.store(), asyncio.get_running_loop()
        pause = max(LOOK_S, store.look_s)
        declared = name
        while True:
            name = await self._current(declared)
            known = await store.known(name)
            saved = {key: places[place] for key, places in (await store.positions(name)).items() if place in places}
            next_look = loop.time() + pause
            while loop.time() < next_look:
                if _passed(known, {**saved, **self._hub.positions(name, place)}, offset):
                    return
                await self._hub.wait(next_look - loop.time())

    async def close(self) -> None:
        """Let go of the store."""
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()


def _passed(known: Sequence[KnownProjection], reached: Mapping[str, int], offset: int) -> bool:
    """Whether the projection is past an offset of a partition. `reached`: by key, how far each is there.

    Either every key passes every partition, then all of them must be past it. Or one key has the partition: what
    counts is the key that has it now, not one of an earlier division of the source.
    """
    if any(one.lease is not None and one.report.state == "new" for one in known):
        return False  # it has not said yet what it reads
    tracking = [one for one in known if one.report.tracks_all]
    if tracking:
        complete = len(tracking) >= max(one.report.keys for one in tracking)
        return complete and all(reached.get(one.key, -1) >= offset for one in tracking)
    owned = {one.key for one in known if one.lease is not None and one.lease.owner is not None}
    current = [at for key, at in reached.items() if key in owned] or list(reached.values())
    return bool(current) and max(current) >= offset


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


def source_of(description: Mapping[str, Any]) -> Source | None:
    """The source, or None if it is a user's own or one of a newer version."""
    match description:
        case {"kind": "records", "topic": str(topic), "split": int(split)}:
            return RecordSource(topic, split=split)
        case {"kind": "tag", "tag": str(name)}:
            return TagSource(name)
        case {"kind": "slices", "split": int(split)}:
            return TagSource(None, split)
    return None
