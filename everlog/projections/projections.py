"""`log.projections`: run them, look at them, tell them what to do. All of it goes through the store.

So commands work from any process, and while no instance runs.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from everlog.core.arguments import check_flag, check_seconds, check_shown_offset, check_whole
from everlog.core.values import Position, check_position
from everlog.errors import InvalidInput, InvalidOffset, InvalidProjection, StillBehind, UnknownProjection
from everlog.journal.parts import JournalParts
from everlog.projections.api import Projections, ProjectionStatus
from everlog.projections.claims import current_division
from everlog.projections.copies import Copies, CopyRequest, Difference, copy_name, copy_of, is_copy, named_version
from everlog.projections.copy_requests import KINDS, RequestKind, RequestService, ask, withdraw
from everlog.projections.dead_letters import ShownDeadLetter, show_letter
from everlog.projections.event_source import EventSource
from everlog.projections.event_stream import UP_TO, ProgressHub
from everlog.projections.factory import open_offset_store
from everlog.projections.offsets import Offset, show
from everlog.projections.offsets import entries as encode_all
from everlog.projections.port import ANY_OFFSET, AnyOffset, KnownProjection, OffsetStore
from everlog.projections.projection import Projection, check_projection
from everlog.projections.projection_id import ProjectionId, check_instance
from everlog.projections.rebuild import OnRebuilt, Rebuild, abort, switch
from everlog.projections.record_source import RecordSource
from everlog.projections.runner import Runner
from everlog.projections.save_window import LogPlace
from everlog.projections.settings import check_tables
from everlog.projections.source import Lag, Source
from everlog.projections.strategies import Flow, OnSpark
from everlog.projections.tag_source import TagSource
from everlog.projections.verification import OnCounted, hold_paused, verify
from everlog.runtime.lease import LeaseWatch
from everlog.runtime.trace import Trace
from everlog.tags.tag_status import TagStatus, read_tag_status

LOOK_S = 0.02
SILENT = (
    "its owner stopped reporting {:,.0f} s ago without shutting down: start it again with 'everlog projections run', "
    "it goes on where it was"
)

# Where a single event cannot be left out by command, by strategy.
NO_SKIPS = {
    Flow.__name__: "is a flow, which starts again as a whole: let the flow itself leave the event out",
    OnSpark.__name__: "runs on Spark, which handles batches: let the handler leave the event out",
}

DescribedSource = Callable[[Mapping[str, Any]], Source | None]
"""The source that describes itself so; None if that is none of its kind."""


class LocalProjections(Projections):
    """The projections of a log, by way of its offset store."""

    def __init__(
        self, parts: JournalParts, *, trace: Trace | None = None, described: Sequence[DescribedSource] = ()
    ) -> None:
        self._parts = parts
        self._trace = trace
        self._described = (source_of, *described)
        self._store: OffsetStore | None = None
        self._opening = asyncio.Lock()
        self._hub = ProgressHub()
        self._watch = LeaseWatch(parts.config.projections.lease_s)

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
        return [*await self._statuses(current_division(await (await self.store()).known(name)))]

    async def get(self, name: str, key: str | None = None) -> ProjectionStatus:
        return (await self._statuses([await self._known(name, key)]))[0]

    async def offset(self, name: str, key: str | None = None) -> Offset | None:
        return (await self._known(name, key)).offset

    async def _current(self, name: str) -> str:
        """The name of the copy that is read; the name itself, unless it was rebuilt."""
        check_instance(name, None)
        if is_copy(name):
            return name
        return copy_name(name, (await (await self.store()).copies(name)).current)

    async def _known(self, name: str, key: str | None) -> KnownProjection:
        check_instance(name, key)
        found = current_division(await (await self.store()).known(await self._current(name)))
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

    async def _statuses(self, known: Sequence[KnownProjection]) -> Sequence[ProjectionStatus]:
        views = {name: await self.copies(name) for name in {copy_of(one.name)[0] for one in known}}
        tagged = any(isinstance(source_of(one.report.source), TagSource) for one in known)
        behind = (
            await read_tag_status(self._parts, self._parts.store.tags) if tagged and self._parts.store.tags else None
        )
        return [await self._status(one, views[copy_of(one.name)[0]], behind) for one in known]

    async def _status(self, known: KnownProjection, copies: Copies, behind: TagStatus | None) -> ProjectionStatus:
        report, lease = known.report, known.lease
        owner = None if lease is None else lease.owner
        state = report.state if owner is not None or report.state in ("completed", "failed") else "stopped"
        name, number = copy_of(known.name)
        silent_s = self._silent_s(known)
        remedies = [
            None if silent_s is None else SILENT.format(silent_s),
            copies.remedy(name, self._parts.clock.now_ms()) if number == copies.current else None,
        ]
        if silent_s is not None:
            state = "silent"
        elif remedies[1] is not None and owner is None:
            state = "waiting"
        if not isinstance(source_of(report.source), TagSource):
            behind = None
        if behind is not None:
            remedies.append(behind.warning)
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
            version=copies.versions.get(number),
            pipeline_lag=None if behind is None else Lag(behind.records, behind.seconds or 0.0),
            remedy="; ".join(one for one in remedies if one is not None) or None,
        )

    def _silent_s(self, known: KnownProjection) -> float | None:
        """For how long its owner has not reported, if that is longer than its lease; None if it is alive, or none."""
        lease = known.lease
        if lease is None or lease.owner is None:
            return None
        return self._since(f"{known.name}\0{known.key}", lease.sign, known.report.updated_ms)

    def _since(self, what: str, beat: object, reported_ms: int) -> float | None:
        """For how long there was no beat, if that is longer than a lease.

        A process that looks again and again sees whether the beat moves. Else the clock tells, which may differ a
        little from that of another machine.
        """
        lease_s, clock = self._parts.config.projections.lease_s, self._parts.clock
        alive = self._watch.look(what, beat, asyncio.get_running_loop().time())
        passed_s = max(0.0, (clock.now_ms() - reported_ms) / 1000) if reported_ms else 0.0
        if not alive:
            return max(passed_s, lease_s)
        assert self._store is not None
        return passed_s if passed_s > lease_s + self._store.max_skew_s else None

    def _source(self, known: KnownProjection) -> Source | None:
        """The source that an instance has described; None if it is a user's own."""
        found = (of(known.report.source) for of in self._described)
        return next((one for one in found if one is not None), None)

    async def _lag(self, known: KnownProjection) -> Lag | None:
        """What the source says about itself in the store is enough: no instance has to run."""
        source = self._source(known)
        if source is None:
            return None
        feed = source.open(self._parts)
        try:
            return await feed.lag(known.key, known.offset)
        finally:
            await feed.close()

    # Commands

    async def set(
        self, name: str, key: str | None, offset: Offset, *, expected: Offset | AnyOffset | None = ANY_OFFSET
    ) -> None:
        known = await self._known(name, key)
        wanted = await self._checked(known, offset, place=True)
        if expected is not None and not isinstance(expected, AnyOffset):
            expected = await self._checked(known, expected)
        await self._set(ProjectionId(known.name, known.key), wanted, expected)

    async def _checked(self, known: KnownProjection, offset: Offset, *, place: bool = False) -> Offset:
        """An offset that fits the source, and with `place` is one of its places; where that is a user's own, one of the
        kind that is stored.
        """
        encode_all(known.key, offset)
        source = self._source(known)
        if source is None:
            if known.offset is not None and kind_of(known.offset) != kind_of(offset):
                raise InvalidOffset(
                    f"{known.name}, key {known.key}: its offsets are such as {show(known.offset)!r}, of another type "
                    f"than {show(offset)!r}; 'clear' it first if that has changed"
                )
            return offset
        feed = source.open(self._parts)
        try:
            found = feed.check_offset(known.key, offset)
            if place:
                await feed.check_place(known.key, found)
            return found
        finally:
            await feed.close()

    async def clear(
        self, name: str, key: str | None = None, *, expected: Offset | AnyOffset | None = ANY_OFFSET
    ) -> None:
        await self._set(await self._id(name, key), None, expected)

    async def _set(self, identity: ProjectionId, offset: Offset | None, expected: Offset | AnyOffset | None) -> None:
        await (await self.store()).set_offset(identity, offset, expected=expected)
        self._hub.forget(identity)

    async def pause(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        await self._pause(name, key, True, wait_s)

    async def resume(self, name: str, key: str | None = None, *, wait_s: float | None = None) -> None:
        await self._pause(name, key, False, wait_s)

    async def _pause(self, name: str, key: str | None, paused: bool, wait_s: float | None) -> None:
        check_seconds("wait_s", wait_s)
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
                    if not watch.look(identity.key, lease.sign, now()):
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError as error:
            raise StillBehind(f"{identity}: its owner has not followed within {seconds:g} s; it will") from error

    async def skip(self, name: str, key: str | None = None, *, offset: str | None = None) -> str:
        check_shown_offset(offset)
        known = await self._known(name, key)
        if (why := NO_SKIPS.get(known.report.strategy)) is not None:
            raise InvalidInput(f"{name} {why}; or go on behind the event: 'everlog projections set {name}'")
        wanted = known.report.failing if offset is None else offset
        if wanted is None:
            raise InvalidInput(f"{name}, key {known.key}: nothing is failing, so there is nothing to skip")
        await self._check_skip(known, wanted)
        await (await self.store()).skip(ProjectionId(known.name, known.key), wanted)
        return wanted

    async def _check_skip(self, known: KnownProjection, wanted: str) -> None:
        """What is skipped must still come: an offset of the source, or the first and last one of a group."""
        source = self._source(known)
        if source is None:
            return  # a user's own source: only that knows its offsets
        feed = source.open(self._parts)
        try:
            for text in wanted.split(UP_TO, 1):
                offset = feed.check_offset(known.key, feed.parse_shown(text))
                await feed.check_place(known.key, offset)
                if feed.is_done(offset, known.offset):
                    raise InvalidInput(
                        f"{known.name}, key {known.key}: {text} is done already, at {show(known.offset)}"
                    )
        finally:
            await feed.close()

    # Dead letters

    async def dead_letters(self, name: str, key: str | None = None, *, limit: int = 1000) -> Sequence[ShownDeadLetter]:
        check_instance(name, key)
        check_whole("limit", limit, min_value=1)
        current = await self._current(name)
        known = {one.key: one for one in await (await self.store()).known(current)}
        if not known:
            raise UnknownProjection(name)
        found = await (await self.store()).dead_letters(current, key, limit=limit)
        sources = {one: self._source(known[one]) for one in {letter.key for letter in found} & known.keys()}
        feeds = {one: source.open(self._parts) for one, source in sources.items() if source is not None}
        try:
            return [show_letter(letter, feeds.get(letter.key)) for letter in found]
        finally:
            for feed in feeds.values():
                await feed.close()

    async def replay(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        check_shown_offset(offset)
        return await (await self.store()).request_replay(await self._id(name, key), offset)

    async def forget(self, name: str, key: str | None = None, *, offset: str | None = None) -> int:
        check_shown_offset(offset)
        return await (await self.store()).drop_letters(await self._id(name, key), offset)

    # Copies

    async def copies(self, name: str) -> Copies:
        check_instance(name, None)
        found = await (await self.store()).copies(name)
        requests = {kind: self._looked_at(name, kind, getattr(found, kind)) for kind in KINDS}
        return replace(found, **requests)

    def _looked_at(self, name: str, kind: RequestKind, found: CopyRequest | None) -> CopyRequest | None:
        """A request with what its owner does not say itself: that it is silent."""
        if found is None or not found.open or found.owner is None:
            return found
        beat = (found.asked_ms, found.owner, found.beat)
        return replace(found, silent_s=self._since(f"{name}\0\0{kind}", beat, found.beat_ms))

    async def rebuild(
        self,
        projection: Projection,
        *,
        create: Sequence[str] = (),
        on_progress: OnRebuilt | None = None,
        follow: bool = False,
    ) -> int:
        check_projection(projection)
        store = await self.store()
        rebuild = Rebuild(store, projection, lag=self._lag)
        await self.check_view(projection.name)  # without a view yet: just run it
        number = await rebuild.begin(create)
        await rebuild.fill(number, self._runner, on_progress=on_progress, follow=follow)
        return number

    async def switch(self, name: str, *, back: bool = False) -> Copies:
        check_instance(name, None)
        return await switch(await self.store(), name, back=check_flag("back", back))

    async def abort(self, name: str) -> Copies:
        check_instance(name, None)
        return await abort(await self.store(), name)

    async def request_rebuild(self, name: str) -> Copies:
        return await self._ask(name, "rebuild")

    async def request_verify(self, name: str) -> Copies:
        return await self._ask(name, "verify")

    async def check_view(self, name: str) -> Sequence[KnownProjection]:
        known = await (await self.store()).known(await self._current(name))
        # A first run that was cut off left a version, and nothing else.
        if is_copy(name) or not (known or (await self.copies(name)).versions):
            raise UnknownProjection(name)
        return known

    async def _ask(self, name: str, kind: RequestKind) -> Copies:
        known = await self.check_view(name)
        if any(one.report.batch is not None for one in known):
            raise InvalidProjection(f"{name} runs on Spark: there is no copy of its view to fill or to compare")
        return await ask(await self.store(), name, kind, self._parts.clock.now_ms())

    async def cancel_verify(self, name: str) -> Copies:
        check_instance(name, None)
        return await withdraw(await self.store(), name, "verify")

    async def verify(
        self, projection: Projection, *tables: str, on_progress: OnCounted | None = None
    ) -> Sequence[Difference]:
        declared = check_projection(projection).tables
        names = check_tables(tables) or declared
        store = await self.store()
        if not names:
            raise InvalidProjection(f"{projection.name}: name the tables to compare, or declare them: tables=[…]")
        current = await store.known(await self._current(projection.name))
        if not current:
            raise UnknownProjection(projection.name)
        copies = await store.copies(projection.name)
        if not copies.is_for(projection.version):
            filled_by, other = (named_version(one) for one in (copies.versions[copies.current], projection.version))
            raise InvalidProjection(
                f"{projection.name}: its view is filled by {filled_by}, not by {other}: compare with that"
            )
        if not store.recount_pauses:
            return await verify(projection, store, names, parts=self._parts, on_progress=on_progress)
        running = [one.key for one in current if not one.desired.paused]
        async with hold_paused(self, store, projection.name, running):
            return await verify(projection, store, names, parts=self._parts, on_progress=on_progress)

    # Reading your own writes

    async def wait(self, name: str, token: Position | str, *, seconds: float | None = 30.0) -> None:
        check_instance(name, None)
        check_seconds("seconds", seconds)
        position = check_position(token)
        place = (position.topic, position.partition)
        try:
            async with asyncio.timeout(seconds):
                await self._wait(name, place, position.offset)
        except TimeoutError as error:
            remedy = next((one.remedy for one in await self.list(name) if one.remedy), None)
            why = remedy or "is it running, and does its source tell positions?"
            text = f"the projection {name} has not reached {position} within {seconds:g} s: {why}"
            raise StillBehind(text) from error

    async def _wait(self, name: str, place: LogPlace, offset: int) -> None:
        """What this process handles is known at once; what others do, by a look at the store now and then."""
        store, loop = await self.store(), asyncio.get_running_loop()
        pause = max(LOOK_S, store.look_s)
        declared = name
        while True:
            name = await self._current(declared)
            known = current_division(await store.known(name))
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


def kind_of(offset: Offset) -> type:
    """What an offset is, apart from how many bits a number has."""
    return next(kind for kind in (str, int, uuid.UUID, Mapping, object) if isinstance(offset, kind))


def source_of(description: Mapping[str, Any]) -> Source | None:
    """The source, or None if it is a user's own or one of a newer version."""
    match description:
        case {"kind": "records", "topic": str(topic), "split": int(split)}:
            return RecordSource(topic, split=split)
        case {"kind": "events", "topic": str(topic), "split": int(split)}:
            return EventSource(topic, split=split)
        case {"kind": "tag", "tag": str(name)}:
            return TagSource(name)
        case {"kind": "slices", "split": int(split)}:
            return TagSource(None, split)
    return None
