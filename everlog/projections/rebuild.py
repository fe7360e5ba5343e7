"""Fill a second copy of a view beside the running one, switch to it, or go back.

Every step is one conditional write of the row that says which copies there are, and can be repeated: a process that
dies in between leaves that row as it was before or as it is after, and what must be dropped stands in it as garbage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from everlog.errors import InvalidProjection, StorageFailed
from everlog.projections.claims import current_division
from everlog.projections.copies import Copies, CopyRequest, copy_name
from everlog.projections.lifecycle import Restart
from everlog.projections.offsets import same
from everlog.projections.port import KnownProjection, OffsetStore
from everlog.projections.projection import Projection
from everlog.projections.runner import Runner
from everlog.projections.source import Lag
from everlog.projections.strategies import OnSpark
from everlog.projections.tag_source import MAX_LAG
from everlog.runtime.failpoints import failpoint

LOOK_S = 0.1

OnRebuilt = Callable[[int, int | None], None]
"""How many events were handled, and how many wait; None if the source cannot tell."""
LagOf = Callable[[KnownProjection], Awaitable[Lag | None]]


class Rebuild:
    """The rebuild of one projection's view."""

    def __init__(self, store: OffsetStore, projection: Projection, *, lag: LagOf) -> None:
        if not projection.shape.takes_view or projection.view is not None or not store.has_views:
            raise InvalidProjection(f"{projection.name} does not fill tables of the store: there is nothing to rebuild")
        if isinstance(projection.strategy, OnSpark):
            raise InvalidProjection(f"{projection.name} runs on Spark: a copy beside it cannot be filled")
        if not projection.tables:
            raise InvalidProjection(f"{projection.name}: say which tables it fills: Projection(…, tables=[…])")
        self._store = store
        self._projection = projection
        self._lag = lag

    async def begin(self, create: Sequence[str] = ()) -> int:
        """Empty tables for the copy; its number. One that was begun before is gone on with.

        `create`: statements that make tables which are to look different from now on.
        """
        name, version = self._projection.name, self._projection.version
        seen = await self._store.drop_garbage(name)
        while seen.building is None:
            number = seen.last + 1
            tables, versions = {**seen.tables, number: self._projection.tables}, {**seen.versions, number: version}
            after = replace(seen, building=number, filled=False, last=number, tables=tables, versions=versions)
            await self._store.change_copies(name, seen, after)
            seen = await self._store.copies(name)
        if (found := seen.versions.get(seen.building, version)) != version:
            raise InvalidProjection(
                f"{name}: copy {seen.building} is being filled by version {found!r}, not {version!r}: "
                f"'everlog projections abort {name}' drops it"
            )
        failpoint("rebuild.begun")
        old, new = seen.names(seen.current), seen.names(seen.building)
        for statement in create:
            await self._store.view(new).execute(statement)
        await self._store.copy_tables({old.get(table, table): copied for table, copied in new.items()})
        failpoint("rebuild.tables")
        return seen.building

    async def fill(
        self,
        number: int,
        run: Callable[[Projection], Runner],
        *,
        on_progress: OnRebuilt | None = None,
        follow: bool = False,
    ) -> None:
        """Run the projection into the copy until that has what the current one has; with `follow`, until a switch."""
        name = self._projection.name
        tables = (await self._store.copies(name)).tables[number]
        second = self._projection.as_copy(number, tables)
        second.restart = Restart(max_restarts=0)  # what fails is reported; the next rebuild goes on from there
        async with run(second) as runner:
            while await self._goes_on(number):
                for key, report in runner.status()[second.name].items():
                    if report.state == "failed":
                        raise StorageFailed(f"{name}, key {key}, could not be filled: {report.error}")
                filled = await self._is_filled(number, runner, on_progress)
                if filled and await self._note_filled(number):
                    failpoint("rebuild.filled")
                    if not follow:
                        return
                await asyncio.sleep(max(LOOK_S, self._store.look_s))
        if (await self._store.copies(name)).current != number:
            raise InvalidProjection(f"{name}: the rebuild was aborted")

    async def _goes_on(self, number: int) -> bool:
        return (await self._store.copies(self._projection.name)).building == number

    async def _note_filled(self, number: int) -> bool:
        seen = await self._store.copies(self._projection.name)
        if seen.building != number:
            return False
        return seen.filled or await self._store.change_copies(self._projection.name, seen, replace(seen, filled=True))

    async def _is_filled(self, number: int, runner: Runner, on_progress: OnRebuilt | None) -> bool:
        """Whether every key of the copy is as far as the same key of the current one, or has nothing left to do.

        A key that no instance has begun is not known yet, and one that has just begun has not said how many there are.
        """
        name = self._projection.name
        current = copy_name(name, (await self._store.copies(name)).current)
        live = {one.key: one for one in await self._store.known(current)}
        new = current_division(await self._store.known(copy_name(name, number)))
        reports = runner.status()[copy_name(name, number)]
        filled = bool(new) and all(one.report.state != "new" and len(new) >= one.report.keys for one in new)
        waiting, unknown = 0, False
        for one in new:
            if one.key in reports and reports[one.key].state == "completed":
                continue
            lag = await self._lag(one)
            if lag is None:
                unknown = True
                filled = filled and one.key in live and same(one.offset, live[one.key].offset)
            else:
                waiting += lag.events
                filled = filled and await self._is_level(lag, live.get(one.key))
        if on_progress is not None:
            on_progress(sum(report.handled for report in reports.values()), None if unknown else waiting)
        return filled

    async def _is_level(self, lag: Lag, live: KnownProjection | None) -> bool:
        behind = None if lag.events == 0 or live is None else await self._lag(live)
        return lag.events <= min(0 if behind is None else behind.events, MAX_LAG - 1)  # beyond that, it is not counted


async def switch(store: OffsetStore, name: str, *, back: bool = False) -> Copies:
    """Let readers and runners go to the copy that was filled, or back to the one before. One write decides."""
    seen = await store.drop_garbage(name)
    while True:
        if back:
            if seen.previous is None:
                raise InvalidProjection(f"{name}: there is no copy to go back to")
            after = replace(seen, current=seen.previous, previous=seen.current, verify=_undone(seen))
        else:
            if seen.building is None:
                raise InvalidProjection(f"{name}: no copy is being built: 'everlog projections rebuild' fills one")
            if not seen.filled:
                raise InvalidProjection(f"{name}: the copy is not filled yet: let 'everlog projections rebuild' end")
            gone = () if seen.previous is None else (seen.previous,)
            garbage = (*seen.garbage, *gone)
            after = replace(
                seen,
                current=seen.building,
                building=None,
                filled=False,
                previous=seen.current,
                garbage=garbage,
                rebuild=None,
                verify=_undone(seen),
            )
        failpoint("switch.decided")
        if await store.change_copies(name, seen, after):
            break
        seen = await store.copies(name)
    failpoint("switch.moved")
    return await store.drop_garbage(name)


def _undone(seen: Copies) -> CopyRequest | None:
    """What a verification found holds for the copy that was read then, not for the next one."""
    return seen.verify if seen.verify is not None and seen.verify.open else None


async def abort(store: OffsetStore, name: str) -> Copies:
    """Drop the copy that is being built, or that was asked for."""
    while True:
        seen = await store.copies(name)
        if seen.building is None and seen.rebuild is None:
            raise InvalidProjection(f"{name}: no copy is being built")
        gone = () if seen.building is None else (seen.building,)
        after = replace(seen, building=None, filled=False, garbage=(*seen.garbage, *gone), rebuild=None)
        if await store.change_copies(name, seen, after):
            failpoint("abort.moved")
            return await store.drop_garbage(name)
