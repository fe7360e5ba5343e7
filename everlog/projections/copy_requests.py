"""Work that needs a projection's handler, asked for in the store: a process that runs the projection does it.

A request stands in the row of the copies; every step is one conditional write of that row. One runner has it at a time
and shows that by a beat; if that stands still for a lease, another one goes on. So a request can be made and watched
from any process, waits while there is no runner, and outlives the one that does it. What failed is not tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from msgspec.structs import replace

from everlog.errors import EverlogError, InvalidProjection
from everlog.projections.copies import Copies, CopyRequest, Difference
from everlog.projections.port import OffsetStore
from everlog.projections.projection import Projection
from everlog.projections.verification import OnCounted
from everlog.runtime.clock import Clock
from everlog.runtime.lease import BEATS_PER_LEASE, LeaseWatch
from everlog.runtime.service import finish

log = logging.getLogger("everlog.projections")

RequestKind = Literal["rebuild", "verify"]
KINDS: tuple[RequestKind, ...] = ("rebuild", "verify")
MAX_ERROR = 2000


class RequestedWork(Protocol):
    """What is done on request: that is what `log.projections` does for a process that has the handler."""

    async def rebuild(self, projection: Projection, *, on_progress: OnCounted, follow: bool) -> int:
        """Fill a second copy of the view, and keep it up to date until a switch."""

    async def verify(self, projection: Projection, *, on_progress: OnCounted) -> Sequence[Difference]:
        """Count the view again, and compare."""


async def ask(store: OffsetStore, name: str, kind: RequestKind, now_ms: int) -> Copies:
    """Ask the runners of the projection for this. What was asked for already, and is not done, stays as it is."""

    def asked(seen: Copies) -> Copies:
        before = _request(seen, kind)
        if before is not None and before.open:
            return seen
        if kind == "rebuild" and seen.building is not None and seen.filled:
            raise InvalidProjection(f"{name}: copy {seen.building} is filled: switch to it, or drop it first")
        return replace(seen, **{kind: CopyRequest(now_ms)})

    return await store.update_copies(name, asked)


async def withdraw(store: OffsetStore, name: str, kind: RequestKind) -> Copies:
    """It is not needed any more: the runner that does it stops at the next beat."""
    return await store.update_copies(name, lambda seen: replace(seen, **{kind: None}))


def _request(seen: Copies, kind: RequestKind) -> CopyRequest | None:
    return seen.rebuild if kind == "rebuild" else seen.verify


class RequestProgress:
    """How far the work is, as it reported last. `total`: from the runner before, which did a part of it."""

    def __init__(self, total: int | None = None) -> None:
        self.handled = 0
        self.total = total

    def counted(self, handled: int, total: int | None) -> None:
        self.handled, self.total = handled, total

    def waiting(self, handled: int, waiting: int | None) -> None:
        """What waits counts: handled are only those of the last start, which need not be the first."""
        if waiting is None:
            self.counted(handled, None)
        else:
            total = max(self.total, waiting) if self.total else handled + waiting
            self.counted(total - waiting, total)


class RequestService:
    """A service beside a runner that does what was asked for: `start`, `stop`, `status`; or `async with`."""

    def __init__(
        self,
        projections: Sequence[Projection],
        work: RequestedWork,
        *,
        store: OffsetStore,
        clock: Clock,
        lease_s: float,
    ) -> None:
        self._projections = projections
        self._store = store
        self._clock = clock
        self._owner = clock.new_id()
        self._lease_s = lease_s
        self._work = work
        self._doing: dict[tuple[str, RequestKind], asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def start(self) -> None:
        """Begin; needs a running event loop. A second call changes nothing."""
        if not self._tasks:
            self._stopping.clear()
            self._tasks = [
                asyncio.create_task(self._attend(one), name=f"everlog-requests-{one.name}") for one in self._projections
            ]

    async def stop(self) -> None:
        """End; what is under way is left for another runner, or for the next start."""
        await finish(self._stop())

    async def _stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        self._stopping.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*self._doing.values(), return_exceptions=True)

    def status(self) -> list[tuple[str, RequestKind]]:
        """What is under way here."""
        return sorted(self._doing)

    async def _attend(self, projection: Projection) -> None:
        """Look for requests three times per lease."""
        watch, trouble = LeaseWatch(self._lease_s), ""
        while not self._stopping.is_set():
            try:
                seen = await self._store.copies(projection.name)
                for kind in KINDS:
                    if (projection.name, kind) in self._doing:
                        continue
                    taken = await self._take(projection, kind, seen, watch)
                    if taken is not None:
                        self._start(projection, kind, taken)
                        break  # the rest at the next look: this one changed what was seen
                trouble = ""
            except EverlogError as error:
                if str(error) != trouble:  # once, not at every look
                    trouble = str(error)
                    log.warning("%s: %s; trying again", projection.name, trouble)
            await self._pause()

    def _start(self, projection: Projection, kind: RequestKind, taken: CopyRequest) -> None:
        place = (projection.name, kind)
        task = self._doing[place] = asyncio.create_task(self._do(projection, kind, RequestProgress(taken.total)))

        def ended(task: asyncio.Task[None]) -> None:
            self._doing.pop(place, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("%s: %s ended: %r; it is taken up again", *place, error)

        task.add_done_callback(ended)

    async def _take(
        self, projection: Projection, kind: RequestKind, seen: Copies, watch: LeaseWatch
    ) -> CopyRequest | None:
        """Become the owner of a request without an owner, or whose owner has been silent for a lease."""
        found = _request(seen, kind)
        if found is None or not found.open:
            return None
        silent = not watch.look(kind, (found.asked_ms, found.owner, found.beat), asyncio.get_running_loop().time())
        if not silent and (found.owner is not None or self._leaves_it(projection, kind, seen)):
            return None
        if not self._may(projection, kind, seen):
            return None
        after = replace(seen, **{kind: self._beaten(found, owner=self._owner)})
        return found if await self._store.change_copies(projection.name, seen, after) else None

    def _leaves_it(self, projection: Projection, kind: RequestKind, seen: Copies) -> bool:
        """A rebuild is for the new code: where versions run side by side, the old one waits whether that takes it."""
        sided = bool(projection.version) or bool(seen.waiting_versions(self._clock.now_ms()))
        return kind == "rebuild" and sided and seen.is_for(projection.version)

    def _may(self, projection: Projection, kind: RequestKind, seen: Copies) -> bool:
        """A view is compared by the code that fills it; and not while a copy is begun, which would drop the recount."""
        other = seen.verify if kind == "rebuild" else seen.rebuild
        busy = other is not None and other.open and other.owner is not None
        if kind == "rebuild":
            return not busy
        return seen.is_for(projection.version) and (not busy or seen.filled)

    async def _do(self, projection: Projection, kind: RequestKind, progress: RequestProgress) -> None:
        """Do it, with a beat three times per lease, until it ends, is withdrawn, or the service stops."""
        name = projection.name
        log.info("%s: %s begins", name, kind)
        work = asyncio.ensure_future(self._begin(projection, kind, progress))
        mine = True
        try:
            while mine and not work.done() and not self._stopping.is_set():
                await self._pause(work)
                if not work.done():
                    mine = await self._note(name, kind, handled=progress.handled, total=progress.total)
        finally:
            stopped = not work.done()
            if stopped:
                work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if stopped:
            await self._note(name, kind, owner=None)  # the next runner goes on
        else:
            await self._note(name, kind, ended_ms=self._clock.now_ms(), **_outcome(name, kind, work))

    async def _begin(
        self, projection: Projection, kind: RequestKind, progress: RequestProgress
    ) -> Sequence[Difference]:
        if kind == "rebuild":
            await self._work.rebuild(projection, on_progress=progress.waiting, follow=True)
            return ()
        return await self._work.verify(projection, on_progress=progress.counted)

    async def _note(self, name: str, kind: RequestKind, **facts: Any) -> bool:
        """Change what the request says, if it is still this runner's; whether it is."""
        while True:
            try:
                seen = await self._store.copies(name)
                found = _request(seen, kind)
                if found is None or found.owner != self._owner or not found.open:
                    return False
                after = replace(seen, **{kind: self._beaten(found, **facts)})
                if await self._store.change_copies(name, seen, after):
                    return True
            except EverlogError as error:
                log.warning("%s: how far the %s is could not be stored: %s", name, kind, error)
                return True  # if another one takes it meanwhile, the next beat says so

    def _beaten(self, found: CopyRequest, **facts: Any) -> CopyRequest:
        return replace(found, beat=found.beat + 1, beat_ms=self._clock.now_ms(), **facts)

    async def _pause(self, *also: asyncio.Future[Any]) -> None:
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait(
                [stop, *also], timeout=self._lease_s / BEATS_PER_LEASE, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stop.cancel()


def _outcome(name: str, kind: RequestKind, work: asyncio.Future[Sequence[Difference]]) -> dict[str, Any]:
    """What became of it, for the caller."""
    error = asyncio.CancelledError("it was cancelled") if work.cancelled() else work.exception()
    if error is None:
        found = tuple(work.result())
        return {"differences": found, "error": None}
    log.warning("%s: %s failed: %s", name, kind, error)
    text = str(error) if isinstance(error, EverlogError) else f"{type(error).__name__}: {error}"
    return {"error": text[:MAX_ERROR]}
