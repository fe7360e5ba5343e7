"""`log.projections`: run them, look at them, tell them what to do. All of it goes through the store.

So commands work from any process, and while nobody runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from everlog.errors import InvalidInput, InvalidProjection, StillBehind, UnknownProjection
from everlog.journal.journal import Parts
from everlog.journal.values import Position
from everlog.projections.backend import open_offset_store
from everlog.projections.ids import ProjectionId
from everlog.projections.kinds import source_of
from everlog.projections.offsets import Offset
from everlog.projections.projection import Projection
from everlog.projections.runner import Runner
from everlog.projections.source import Lag
from everlog.projections.store import ANYTHING, Anything, DeadLetter, Known, OffsetStore
from everlog.projections.streams import Hub

LOOK_SECONDS = 0.02


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one instance of a projection is. `lag` is None if its source cannot tell."""

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


class Projections:
    """The projections of a log."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._store: OffsetStore | None = None
        self._opening = asyncio.Lock()
        self._hub = Hub()

    async def store(self) -> OffsetStore:
        """Where offsets are kept; opened by the first use."""
        async with self._opening:
            if self._store is None:
                self._store = await open_offset_store(self._parts.config, clock=self._parts.clock)
            return self._store

    async def runner(self, *projections: Projection) -> Runner:
        """What runs these projections, not started yet: it has `start`, `stop` and `status`."""
        settings = self._parts.config.projections
        return Runner(
            projections,
            store=await self.store(),
            parts=self._parts,
            hub=self._hub,
            clock=self._parts.clock,
            lease=settings.lease,
            poll=settings.poll,
            timeout=settings.handler_timeout,
        )

    @asynccontextmanager
    async def run(self, *projections: Projection) -> AsyncIterator[Runner]:
        """Run them as long as the block lasts: `async with log.projections.run(carts): ...`."""
        async with await self.runner(*projections) as runner:
            yield runner

    # Looking

    async def list(self, name: str | None = None) -> list[ProjectionStatus]:
        """All instances that ever ran here, or those of one projection."""
        return [await self._status(one) for one in await (await self.store()).known(name)]

    async def get(self, name: str, key: str | None = None) -> ProjectionStatus:
        """One instance. The key may be left out if the projection has only one."""
        return await self._status(await self._known(name, key))

    async def offset(self, name: str, key: str | None = None) -> Offset | None:
        """The stored offset."""
        return (await self._known(name, key)).offset

    async def _known(self, name: str, key: str | None) -> Known:
        found = await (await self.store()).known(name)
        if key is not None:
            found = [one for one in found if one.key == key]
        if not found:
            raise UnknownProjection(name, key)
        if len(found) > 1:
            keys = ", ".join(one.key for one in found[:10])
            raise InvalidProjection(f"the projection {name} has the keys {keys}: name one")
        return found[0]

    async def _id(self, name: str, key: str | None) -> ProjectionId:
        return ProjectionId(name, (await self._known(name, key)).key)

    async def _status(self, known: Known) -> ProjectionStatus:
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
        )

    async def _lag(self, known: Known) -> Lag | None:
        """What the source says about itself in the store is enough: nobody has to run."""
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

    async def pause(self, name: str, key: str | None = None, *, wait: float | None = None) -> None:
        """Handle nothing until `resume`; with `wait`, come back only when its owner obeys (else StillBehind)."""
        await self._pause(name, key, True, wait)

    async def resume(self, name: str, key: str | None = None, *, wait: float | None = None) -> None:
        """Go on."""
        await self._pause(name, key, False, wait)

    async def _pause(self, name: str, key: str | None, paused: bool, wait: float | None) -> None:
        identity = await self._id(name, key)
        desired = await (await self.store()).pause(identity, paused)
        if wait is not None:
            await self._settled(identity, desired.version, wait)

    async def _settled(self, identity: ProjectionId, version: int, seconds: float) -> None:
        """Until the owner follows this version, or nobody owns it."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    known = await self._known(identity.name, identity.key)
                    if known.lease is None or known.lease.owner is None or known.report.seen >= version:
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError as error:
            raise StillBehind(f"{identity}: its owner has not followed within {seconds:g} s; it will") from error

    async def skip(self, name: str, key: str | None = None, *, offset: str | None = None) -> str:
        """Leave out the envelope that is failing now, or the one at this offset; it becomes a dead letter."""
        known = await self._known(name, key)
        wanted = known.report.failing if offset is None else offset
        if wanted is None:
            raise InvalidInput(f"{name}, key {known.key}: nothing is failing, so there is nothing to skip")
        await (await self.store()).skip(ProjectionId(name, known.key), wanted)
        return wanted

    # Dead letters

    async def dead_letters(self, name: str, key: str | None = None, *, limit: int = 1000) -> Sequence[DeadLetter]:
        """Envelopes that were given up, oldest first."""
        if not await (await self.store()).known(name):
            raise UnknownProjection(name)
        return await (await self.store()).dead_letters(name, key, limit=limit)

    async def replay(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        """Let the owner handle dead letters again, all or one; how many it will."""
        return await (await self.store()).request_replay(await self._id(name, key), offset)

    async def forget(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        """Drop dead letters, all or one; how many."""
        return await (await self.store()).drop_letters(await self._id(name, key), offset)

    # Reading one's own writes

    def view(self, name: str) -> ProjectionView:
        """The view that a projection fills in the store."""
        return ProjectionView(self, name)

    async def wait(self, name: str, token: Position | str, *, seconds: float | None = 30.0) -> None:
        """Until all keys have passed what this token stands for, filtered events included (else StillBehind)."""
        position = Position.parse(token) if isinstance(token, str) else token
        try:
            async with asyncio.timeout(seconds):
                while not await self._reached(name, position):
                    await self._hub.wait(LOOK_SECONDS)
        except TimeoutError as error:
            raise StillBehind(
                f"the projection {name} has not reached {position} within {seconds:g} s: is it running, and does its "
                "source tell positions?"
            ) from error

    async def _reached(self, name: str, position: Position) -> bool:
        store, place = await self.store(), (position.topic, position.partition)
        stored = await store.positions(name)
        keys = {one.key: one.report.tracks_all for one in await store.known(name)}
        tracked = False
        for key in {*keys, *stored}:
            handled = self._hub.position(name, key, place)
            saved = stored.get(key, {}).get(place, -1)
            if max(handled, saved) < 0 and not keys.get(key, False):
                continue  # another key has this partition
            tracked = True
            if max(handled, saved) < position.offset:
                return False
        return tracked

    async def close(self) -> None:
        """Let go of the store."""
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()


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
        return await (await self._projections.store()).view().fetch(statement, *values)

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement, such as one that makes the view's tables."""
        return await (await self._projections.store()).view().execute(statement, *values)
