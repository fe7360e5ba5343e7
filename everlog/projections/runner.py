"""Runs projections: takes the keys that are this instance's share, keeps their leases, follows commands."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from everlog.errors import EverlogError, InvalidProjection
from everlog.journal.parts import JournalParts
from everlog.projections.copies import WAITING_S, Copies, copy_name
from everlog.projections.event_stream import ProgressHub, describe
from everlog.projections.lifecycle import ENDED
from everlog.projections.port import Desired, OffsetStore, Report
from everlog.projections.projection import Projection, check_projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.source import Feed
from everlog.projections.strategies import OnSpark
from everlog.projections.worker import ProjectionWorker
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.failpoints import failpoint
from everlog.runtime.lease import BEATS_PER_LEASE, Lease, LeaseWatch, share
from everlog.runtime.repeat_log import RepeatLog
from everlog.runtime.service import finish

log = logging.getLogger("everlog.projections")

LEASE_S = 5.0
POLL_S = 0.1
HANDLER_TIMEOUT_S = 300.0
# Between an instance's name and the number of keys that it divides the source into.
DIVIDED = "/"


class Runner:
    """A service: `start`, `stop`, `status`; or `async with`. Many runners, here and elsewhere, share the keys."""

    def __init__(
        self,
        projections: Sequence[Projection],
        *,
        store: OffsetStore,
        parts: JournalParts | None = None,
        hub: ProgressHub | None = None,
        clock: Clock | None = None,
        chance: Callable[[], float] = random.random,
        lease_s: float = LEASE_S,
        poll_s: float = POLL_S,
        timeout_s: float | None = HANDLER_TIMEOUT_S,
    ) -> None:
        names = [check_projection(one).name for one in projections]
        doubled = {name for name in names if names.count(name) > 1}
        if doubled:
            raise InvalidProjection(f"two projections have the name {sorted(doubled)[0]!r}: give one another name")
        for one in projections:
            if isinstance(one.strategy, OnSpark):
                raise InvalidProjection(f"{one.name} runs on Spark: 'everlog replicate --projections module:app'")
            if one.shape.takes_view and one.view is None and not store.has_views:
                raise InvalidProjection(
                    f"{one.name}: this store has no tables for views: let the handler take the envelope alone, or give "
                    "the projection a view of its own (view=…, not with exactly_once)"
                )
        clock = clock or SystemClock()
        self.owner = clock.new_id()
        hub = hub or ProgressHub()
        self._parts = parts
        self._supervisors = {
            one.name: Supervisor(
                one,
                self.owner,
                store=store,
                feed=one.source.open(parts),
                hub=hub,
                clock=clock,
                chance=chance,
                lease_s=lease_s,
                poll_s=poll_s,
                timeout_s=timeout_s,
            )
            for one in projections
        }

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def start(self) -> None:
        """Begin; needs a running event loop. A second call changes nothing."""
        for supervisor in self._supervisors.values():
            supervisor.start()

    async def stop(self) -> None:
        """Let open calls finish, save what is done, give the keys back."""
        await finish(self._stop())

    async def _stop(self) -> None:
        await asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors.values()))

    def status(self) -> dict[str, dict[str, Report]]:
        """By name and key: how the instances of this runner are."""
        return {name: supervisor.status() for name, supervisor in self._supervisors.items()}

    async def ended(self) -> None:
        """Wait until every key that this runner has, has ended: completed, failed or stopped."""
        await asyncio.gather(*(supervisor.ended() for supervisor in self._supervisors.values()))

    async def owns(self, name: str, count: int) -> None:
        """Wait until this runner has `count` keys of a projection."""
        await self._supervisors[name].owns(count)


def of_division(instances: Mapping[str, int], keys: int) -> dict[str, int]:
    """The instances that divide the source into as many keys, by owner; others do not take a share of these.

    >>> of_division({"a/2": 7, "b/4": 8}, 4)
    {'b': 8}
    """
    parts = {name: name.rpartition(DIVIDED) for name in instances}
    return {owner: instances[name] for name, (owner, _, count) in parts.items() if count == str(keys)}


class Supervisor:
    """The instances of one projection in this process."""

    def __init__(
        self,
        projection: Projection,
        owner: str,
        *,
        store: OffsetStore,
        feed: Feed,
        hub: ProgressHub,
        clock: Clock,
        chance: Callable[[], float],
        lease_s: float,
        poll_s: float,
        timeout_s: float | None,
    ) -> None:
        self._declared = projection
        self._projection = projection  # for the copy of the view that is the current one
        self._copy = 0
        self._waits = False  # for a copy of this version
        self._owner = owner
        self._store = store
        self._feed = feed
        self._hub = hub
        self._clock = clock
        self._chance = chance
        self._lease_s = lease_s
        self._poll_s = max(poll_s, store.look_s)
        self._timeout_s = timeout_s
        self._workers: dict[str, ProjectionWorker] = {}
        self._giving: dict[str, asyncio.Task[None]] = {}
        # Workers that lost their key with a call still open: the key is not taken again before that ends.
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._leases = LeaseWatch(lease_s)
        self._instances = LeaseWatch(lease_s)
        self._stopping = asyncio.Event()
        self._changed = asyncio.Condition()
        self._beats = 0
        self._keys = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"everlog-projection-{self._projection.name}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping.set()
        for worker in self._workers.values():
            worker.signal.set("stop")
        await task  # it keeps the leases of calls that are still open
        await asyncio.gather(*self._giving.values())
        await asyncio.gather(*(self._give(key) for key in list(self._workers)))
        await asyncio.gather(*self._ending.values(), return_exceptions=True)
        try:
            await self._store.leave(self._projection.name, self._name())
            if self._waits:
                version = self._declared.version
                await self._store.update_copies(self._declared.name, lambda seen: seen.waits(version, None))
        except EverlogError as error:
            log.warning("%s: could not remove its registration: %s", self._projection.name, error)
        await self._feed.close()
        self._stopping.clear()

    def status(self) -> dict[str, Report]:
        return {key: worker.report() for key, worker in sorted(self._workers.items())}

    async def ended(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._beats > 0 and self._all_ended())

    def _all_ended(self) -> bool:
        return all(worker.report().state in ENDED for worker in self._workers.values())

    async def owns(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._workers) == count)

    async def _run(self) -> None:
        """A beat every third of a lease, until the last worker has ended; in between, look for commands."""
        loop = asyncio.get_running_loop()
        stamp: object = None
        said: object = None
        repeats = RepeatLog(log, loop.time)
        next_beat = loop.time()
        while not self._stopping.is_set() or self._running():
            try:
                if loop.time() >= next_beat:
                    next_beat = loop.time() + self._lease_s / BEATS_PER_LEASE
                    await self._beat()
                found = self._store.stamp()
                if (found is None or found != stamp) and not self._stopping.is_set():
                    await self._follow()
                    stamp = found
                if self._said() != said:
                    said = self._said()
                    await self._renew(loop.time())  # callers that wait for a command to be obeyed look at the reports
                repeats.clear("beat")
            except EverlogError as error:
                repeats.warn("beat", str(error), f"{self._projection.name}: {error}; trying again")
            except Exception as error:  # its workers depend on the next beat
                text = f"{self._projection.name}: {describe(error)}; trying again"
                repeats.warn("beat", (type(error), str(error)), text, error)
            async with self._changed:
                self._changed.notify_all()
            await self._pause(min(self._poll_s, max(0.0, next_beat - loop.time())))

    def _said(self) -> object:
        """What others may be waiting to see in a report."""
        reports = {key: worker.report() for key, worker in self._workers.items()}
        return {key: (report.state, report.seen, report.failing) for key, report in reports.items()}

    async def _pause(self, seconds: float) -> None:
        """Until the next look, or until a worker ends, or the runner stops."""
        waited: set[asyncio.Future[Any]] = {*self._running()}
        stop = None if self._stopping.is_set() else asyncio.ensure_future(self._stopping.wait())
        if stop is not None:
            waited.add(stop)
        try:
            if waited:
                await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if stop is not None:
                stop.cancel()

    def _running(self) -> list[asyncio.Task[None]]:
        return [worker.task for worker in self._workers.values() if not worker.task.done()]

    async def _beat(self) -> None:
        """Renew, see which instances live, take and give."""
        if not await self._follow_copies():
            return
        asked = asyncio.get_running_loop().time()
        name = self._projection.name
        keys = await self._feed.keys()
        self._keys = len(keys)
        instances = await self._store.join(name, self._name())
        if self._feed.divides:
            instances = of_division(instances, self._keys)
        await self._renew(asked)
        if self._stopping.is_set():
            return
        leases = await self._store.leases(name)
        now = asyncio.get_running_loop().time()
        alive = [one for one, beat in instances.items() if self._instances.look(one, beat, now)]
        owners = {
            key: lease.owner if self._leases.look(key, lease.sign, now) else None for key, lease in leases.items()
        }
        owners |= dict.fromkeys(self._workers, self._owner)
        self._instances.keep(instances)
        self._leases.keep(leases)
        await self._claim_again(leases, keys, owners)
        shares = share(self._owner, keys, owners, alive)
        for key in shares.give:
            if key not in self._giving:
                self._giving[key] = asyncio.create_task(self._give_away(key))
        self._ending = {key: task for key, task in self._ending.items() if not task.done()}
        for key in shares.take:
            if key not in self._ending:
                await self._take(key, leases.get(key))
        self._beats += 1

    def _name(self) -> str:
        """The name under which this instance shares keys: with those that divide the source as it does."""
        return f"{self._owner}{DIVIDED}{self._keys}" if self._feed.divides else self._owner

    async def _claim_again(
        self, leases: Mapping[str, Lease], keys: Collection[str], owners: Mapping[str, str | None]
    ) -> None:
        """Another division of the source took parts over, and its owners are gone: take them back."""
        if any(owners[key] is not None for key in leases if key not in keys):
            return
        for key, worker in list(self._workers.items()):
            if self._workers.get(key) is worker and worker.outclaimed and key in leases and key not in self._giving:
                asked = asyncio.get_running_loop().time()
                lease = await self._store.take(worker.id, self._owner, leases[key])
                if lease is None:
                    continue
                if self._workers.get(key) is worker:
                    worker.renewed(lease, asked + self._lease_s)
                else:  # it was given away meanwhile
                    await self._store.release(lease, worker.report())

    async def _follow_copies(self) -> bool:
        """Go to the copy of the view that is the current one; False if that is for another version of the projection.

        What runs ends in good order first.
        """
        declared = self._declared
        if self._stopping.is_set() or not declared.has_copies:
            return True
        copies = await self._store.copies(declared.name)
        if copies.current not in copies.versions:
            # Before anything is written: so another version never takes this view for its own.
            copies = await self._store.update_copies(declared.name, lambda seen: seen.recorded(declared.version))
            failpoint("projection.recorded")
        wanted = copies.is_for(declared.version)
        await self._say_waiting(copies, not wanted)
        if copies.current != self._copy or (self._workers and not wanted):
            await asyncio.gather(*self._giving.values())
            await asyncio.gather(*(self._give(key) for key in list(self._workers)))
            if self._beats:
                await self._store.leave(self._projection.name, self._name())
            self._projection = declared.as_copy(copies.current, copies.tables.get(copies.current, ()))
            self._copy = copies.current
            self._leases, self._instances = LeaseWatch(self._lease_s), LeaseWatch(self._lease_s)
        return wanted

    async def _say_waiting(self, copies: Copies, waits: bool) -> None:
        """Let the store say that this version waits for a copy of its own, as long as it does."""
        name, version, now_ms = self._declared.name, self._declared.version, self._clock.now_ms()
        said = copies.waiting.get(version)
        if waits and not self._waits:
            await self._make_known(copy_name(name, copies.current))
        if waits and (said is None or abs(now_ms - said) > WAITING_S * 1000 / BEATS_PER_LEASE):
            copies = await self._store.update_copies(name, lambda seen: seen.waits(version, now_ms))
            if not self._waits:
                log.warning("%s: %s", name, copies.remedy(name, now_ms))
        elif not waits and said is not None:
            await self._store.update_copies(name, lambda seen: seen.waits(version, None))
        self._waits = waits

    async def _make_known(self, name: str) -> None:
        """Free keys, so that the status has something to say: the version before may have died before it took one."""
        if await self._store.leases(name):
            return  # the keys of that version are what counts: this one's may be others
        source, strategy = self._declared.source.describe(), type(self._declared.strategy).__name__
        for key in await self._feed.keys():
            lease = await self._store.take(ProjectionId(name, key), self._owner, None)
            if lease is not None:
                await self._store.release(lease, Report(state="stopped", source=source, strategy=strategy))

    async def _renew(self, asked: float) -> None:
        for key, worker in list(self._workers.items()):
            if key in self._giving and worker.task.done():
                continue
            lease = await self._store.renew(worker.lease, worker.report())
            if self._workers.get(key) is not worker:
                continue  # it was given away meanwhile
            if lease is None:
                log.warning("%s: another instance has taken it over", worker.id)
                worker.signal.set("lost")
                self._ending[key] = self._workers.pop(key).task
            else:
                self._revive(key, worker, lease, asked + self._lease_s)

    def _revive(self, key: str, worker: ProjectionWorker, lease: Lease, owned_until: float) -> None:
        """A worker that has ended begins anew if a command has given it a new epoch, or if it only thought that it
        had lost its key: it could not renew in time, but no other instance took it.
        """
        ended = worker.task.done() and not self._stopping.is_set()
        if ended and (lease.epoch != worker.lease.epoch or worker.signal.reason == "lost"):
            self._start(key, lease, owned_until)
        else:
            worker.renewed(lease, owned_until)

    async def _take(self, key: str, seen: Lease | None) -> None:
        asked = asyncio.get_running_loop().time()
        lease = await self._store.take(ProjectionId(self._projection.name, key), self._owner, seen)
        if lease is not None and not self._stopping.is_set():
            self._start(key, lease, asked + self._lease_s)
        elif lease is not None:
            await self._store.release(lease, Report(state="stopped"))

    def _start(self, key: str, lease: Lease, owned_until: float | None) -> None:
        self._workers[key] = ProjectionWorker(
            self._projection,
            lease,
            feed=self._feed,
            store=self._store,
            hub=self._hub,
            clock=self._clock,
            chance=self._chance,
            timeout_s=self._timeout_s,
            owned_until=owned_until,
            keys=self._keys,
        )

    async def _give_away(self, key: str) -> None:
        """Give the key to an instance that has fewer."""
        try:
            await self._give(key)
        finally:
            self._giving.pop(key, None)

    async def _give(self, key: str) -> None:
        worker = self._workers.get(key)
        if worker is None:
            return  # it was lost meanwhile
        worker.signal.set("stop")
        await asyncio.gather(worker.task, return_exceptions=True)
        if self._workers.get(key) is worker:
            del self._workers[key]
        try:
            await self._store.release(worker.lease, worker.report())
        except EverlogError as error:
            log.warning("%s: its lease was not given back, it will run out: %s", worker.id, error)

    async def _follow(self) -> None:
        """Commands: what is wanted of each key, and epochs that they raised."""
        desired: Mapping[str, Desired] = await self._store.desired(self._projection.name)
        leases = await self._store.leases(self._projection.name)
        for key, worker in list(self._workers.items()):
            lease = leases.get(key)
            if lease is not None and lease.owner == self._owner and lease.epoch != worker.lease.epoch:
                await self._renew(asyncio.get_running_loop().time())
                return
            wants = desired.get(key, Desired())
            if worker.task.done() and wants.version != worker.report().seen and key not in self._giving:
                self._start(key, worker.lease, worker.owned_until)
            else:
                worker.wanted(wants)
