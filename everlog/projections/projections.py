"""`log.projections`: run them, look at them, tell them what to do. All of it goes through the store.

So commands work from any process, and while no instance runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from everlog.core.values import Position
from everlog.errors import InvalidInput, InvalidProjection, StillBehind, UnknownProjection
from everlog.journal.parts import Parts
from everlog.projections.api import Projections, ProjectionStatus
from everlog.projections.copies import Copies, Difference, copy_name, is_copy
from everlog.projections.copy_requests import RequestKind, RequestService, ask, withdraw
from everlog.projections.event_stream import ProgressHub
from everlog.projections.factory import open_offset_store
from everlog.projections.offsets import Offset
from everlog.projections.port import ANYTHING, Anything, KnownProjection, OffsetStore, ProjectionDeadLetter
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


class LocalProjections(Projections):
    """The projections of a log, by way of its offset store."""

    def __init__(self, parts: Parts, *, trace: Trace | None = None) -> None:
        self._parts = parts
        self._trace = trace
        self._store: OffsetStore | None = None
        self._opening = asyncio.Lock()
        self._hub = ProgressHub()

    async def store(self) -> OffsetStore:
        async with self._opening:
            if self._store is None:
                config, clock = self._parts.config, self._parts.clock
                self._store = await open_offset_store(config, clock=clock, trace=self._trace)
            return self._store

    async def runner(self, *projections: Projection) -> Runner:
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
        async with await self.runner(*projections) as runner:
            assert self._store is not None
            lease_s, clock = self._parts.config.projections.lease_s, self._parts.clock
            async with RequestService(projections, self, store=self._store, clock=clock, lease_s=lease_s):
                yield runner

    # Looking

    async def list(self, name: str | None = None) -> list[ProjectionStatus]:
        name = name if name is None else await self._current(name)
        return [await self._status(one) for one in await (await self.store()).known(name)]

    async def get(self, name: str, key: str | None = None) -> ProjectionStatus:
        return await self._status(await self._known(name, key))

    async def offset(self, name: str, key: str | None = None) -> Offset | None:
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
        await self._set(await self._id(name, key), offset, expected)

    async def clear(self, name: str, key: str | None = None, *, expected: Offset | Anything | None = ANYTHING) -> None:
        await self._set(await self._id(name, key), None, expected)

    async def _set(self, identity: ProjectionId, offset: Offset | None, expected: Offset | Anything | None) -> None:
        await (await self.store()).set_offset(identity, offset, expected=expected)
        self._hub.forget(identity)

    async def pause(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        await self._pause(name, key, True, wait_s)

    async def resume(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
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
        current = await self._current(name)
        if not await (await self.store()).known(current):
            raise UnknownProjection(name)
        return await (await self.store()).dead_letters(current, key, limit=limit)

    async def replay(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        return await (await self.store()).request_replay(await self._id(name, key), offset)

    async def forget(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        return await (await self.store()).drop_letters(await self._id(name, key), offset)

    # Copies

    async def copies(self, name: str) -> Copies:
        return await (await self.store()).copies(name)

    async def rebuild(
        self,
        projection: Projection,
        *,
        create: Sequence[str] = (),
        on_progress: OnRebuilt | None = None,
        follow: bool = False,
    ) -> int:
        store = await self.store()
        rebuild = Rebuild(store, projection, lag=self._lag)
        if not await store.known(await self._current(projection.name)):
            raise UnknownProjection(projection.name)  # it has no view yet: just run it
        number = await rebuild.begin(create)
        await rebuild.fill(number, self._runner, on_progress=on_progress, follow=follow)
        return number

    async def switch(self, name: str, *, back: bool = False) -> Copies:
        return await switch(await self.store(), name, back=back)

    async def abort(self, name: str) -> Copies:
        return await abort(await self.store(), name)

    async def request_rebuild(self, name: str) -> Copies:
        return await self._ask(name, "rebuild")

    async def request_verify(self, name: str) -> Copies:
        return await self._ask(name, "verify")

    async def check_view(self, name: str) -> Sequence[KnownProjection]:
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
        return await withdraw(await self.store(), name, "verify")

    async def verify(
        self, projection: Projection, *tables: str, on_progress: OnCounted | None = None
    ) -> Sequence[Difference]:
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

    async def wait(self, name: str, token: Position | str, *, seconds: float | None = 30.0) -> None:
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
