"""Requests for work that needs a handler: whoever lives does them, one at a time, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from everlog.errors import InvalidProjection, StorageFailed, Unreachable
from everlog.projections.copies import Copies, CopyRequest, Difference
from everlog.projections.copy_requests import RequestProgress, RequestService, ask, withdraw
from everlog.projections.projection import Projection
from everlog.projections.record_source import records
from everlog.runtime.clock import SystemClock
from tests.projections.test_runs import virtually

LEASE = 6.0
FOUND = (Difference("words", 3, 1, 0),)


async def handler(envelope, view) -> None: ...


def words(version: str = "") -> Projection:
    return Projection("words", source=records("orders"), handler=handler, version=version, tables=["words"])


class Work:
    """Work that takes a while. Counts how many do it at the same time, and who ended it."""

    def __init__(self, seconds: float = 20.0, error: Exception | None = None) -> None:
        self.seconds = seconds
        self.error = error
        self.at_once: dict[str, int] = {"rebuild": 0, "verify": 0}
        self.most = 0
        self.ended: list[str] = []

    async def _do(self, kind: str, on_progress) -> None:
        self.at_once[kind] += 1
        self.most = max(self.most, sum(self.at_once.values()))
        try:
            for second in range(int(self.seconds)):
                on_progress(second, 20)
                await asyncio.sleep(1)
            if self.error is not None:
                raise self.error
            self.ended.append(kind)
        finally:
            self.at_once[kind] -= 1

    async def rebuild(self, projection: Projection, *, on_progress, follow: bool) -> int:
        assert follow
        await self._do("rebuild", on_progress)
        return 1

    async def verify(self, projection: Projection, *, on_progress) -> Sequence[Difference]:
        await self._do("verify", on_progress)
        return FOUND


def errands(store, work: Work, version: str = "") -> RequestService:
    return RequestService([words(version)], work, store=store, clock=SystemClock(), lease_s=LEASE)


async def kill(one: RequestService) -> None:
    """As by kill -9: it says nothing any more."""
    for task in [*one._tasks, *one._doing.values()]:
        task.cancel()
    await asyncio.gather(*one._tasks, *one._doing.values(), return_exceptions=True)


async def until(store, holds) -> Copies:
    async with asyncio.timeout(1000):
        while not holds(seen := await store.copies("words")):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    return seen


@virtually
async def test_a_request_waits_for_somebody_who_can_do_it_and_says_how_far_it_is(store):
    await ask(store, "words", "verify", 7)
    assert await ask(store, "words", "verify", 8) == Copies(verify=CopyRequest(7)), (
        "what is asked for is asked for once"
    )
    await asyncio.sleep(100)
    work = Work()
    async with errands(store, work) as runner:
        seen = await until(store, lambda seen: seen.verify.handled > 10)
        assert (seen.verify.open, seen.verify.total, runner.status()) == (True, 20, [("words", "verify")])
        seen = await until(store, lambda seen: not seen.verify.open)
    assert (seen.verify.differences, seen.verify.error, work.ended) == (FOUND, None, ["verify"])


def test_progress_counts_what_waits():
    """However often the stream began anew, and whoever did a part: done is what does not wait any more."""
    progress = RequestProgress()
    for handled, waiting, shown in ((0, 0, (0, 0)), (3, 27, (3, 30)), (9, 21, (9, 30))):
        progress.waiting(handled, waiting)
        assert (progress.handled, progress.total) == shown
    progress = RequestProgress(total=30)
    for handled, waiting, shown in ((0, 20, (10, 30)), (5, 15, (15, 30)), (0, 12, (18, 30)), (1, 40, (0, 40))):
        progress.waiting(handled, waiting)
        assert (progress.handled, progress.total) == shown
    progress.waiting(7, None)
    assert (progress.handled, progress.total) == (7, None)


@virtually
async def test_what_fails_is_told_and_not_tried_again(store):
    work = Work(2, StorageFailed("words, key all, could not be filled: a bug"))
    async with errands(store, work):
        await ask(store, "words", "rebuild", 0)
        seen = await until(store, lambda seen: not seen.rebuild.open)
        assert "a bug" in seen.rebuild.error
        await asyncio.sleep(100)
        assert await store.copies("words") == seen
        work.error = None
        await ask(store, "words", "rebuild", 1)
        await until(store, lambda seen: not seen.rebuild.open)
        assert work.ended == ["rebuild"]


@virtually
async def test_one_that_is_withdrawn_stops_within_a_lease(store):
    work = Work(1000)
    async with errands(store, work):
        await ask(store, "words", "verify", 0)
        await until(store, lambda seen: seen.verify.handled > 3)
        await withdraw(store, "words", "verify")
        await asyncio.sleep(LEASE)
        assert (work.at_once["verify"], await store.copies("words")) == (0, Copies())


@virtually
async def test_a_filled_copy_is_switched_to_or_dropped_before_the_next(store):
    await store.change_copies("words", Copies(), Copies(building=1, filled=True, last=1))
    with pytest.raises(InvalidProjection, match="copy 1 is filled"):
        await ask(store, "words", "rebuild", 0)


@virtually
async def test_a_view_is_not_compared_while_a_copy_is_begun(store):
    """The first step of a rebuild drops what is no longer needed: the tables of a recount would be among it."""
    work = Work(30)
    async with errands(store, work):
        for kind in ("verify", "rebuild"):
            await ask(store, "words", kind, 0)
        await until(store, lambda seen: not (seen.verify.open or seen.rebuild.open))
    assert sorted(work.ended) == ["rebuild", "verify"]
    assert work.most == 1


@virtually
async def test_the_new_version_rebuilds_and_the_current_one_verifies(store):
    """Both run; the old one takes a rebuild only if the new one does not within a lease."""
    await store.change_copies("words", Copies(), Copies(versions={0: "1"}))
    for versions, rebuilt_by in ((("1", "2"), "2"), (("1",), "1")):
        works = {version: Work(3) for version in versions}
        for kind in ("rebuild", "verify"):
            await ask(store, "words", kind, 0)
        runners = [errands(store, work, version) for version, work in works.items()]
        for one in runners:
            one.start()
        await until(store, lambda seen: not (seen.verify.open or seen.rebuild.open))
        for one in runners:
            await one.stop()
        assert {version: "rebuild" in work.ended for version, work in works.items()} == {
            version: version == rebuilt_by for version in versions
        }
        assert "verify" in works["1"].ended


class Cut:
    """The same store, which cannot be reached for a while."""

    def __init__(self, store) -> None:
        self._store = store
        self.cut = False

    def __getattr__(self, name):
        async def call(*arguments):
            if self.cut:
                raise Unreachable("cut off")
            return await getattr(self._store, name)(*arguments)

        return call


@virtually
async def test_an_owner_that_was_cut_off_leaves_the_request_to_the_next_one(store):
    """Nobody stops what it cannot know of; but what it did is not the outcome of a request that another one has."""
    way, first, second = Cut(store), Work(40), Work(60)
    async with errands(way, first) as old, errands(store, second) as new:
        await new.stop()
        await ask(store, "words", "verify", 0)
        await until(store, lambda seen: seen.verify.owner == old._owner)
        way.cut = True
        new.start()
        await until(store, lambda seen: seen.verify.owner == new._owner)
        way.cut = False
        await asyncio.sleep(LEASE)
        assert (first.at_once["verify"], second.at_once["verify"]) == (0, 1)
        seen = await until(store, lambda seen: not seen.verify.open)
        assert (seen.verify.owner, first.ended, second.ended) == (new._owner, [], ["verify"])


@pytest.mark.parametrize("seed", range(30))
@virtually
async def test_whoever_dies_each_request_is_done_by_one_at_a_time(store, seed):
    """Runners come, go in good order, and are killed; in the end one stays, and all that was asked for is done."""
    rng = random.Random(seed)
    work = Work(rng.randrange(1, 25))
    living: list[RequestService] = []
    for _ in range(12):
        match rng.randrange(4):
            case 0 if living:
                await kill(living.pop(rng.randrange(len(living))))
            case 1 if living:
                await living.pop(rng.randrange(len(living))).stop()
            case 2:
                await ask(store, "words", rng.choice(("rebuild", "verify")), rng.randrange(100))
            case _:
                living.append(errands(store, work))
                living[-1].start()
        await asyncio.sleep(rng.random() * 2 * LEASE)
        assert work.most <= 1
    async with errands(store, work):
        seen = await until(
            store, lambda seen: not any(one is not None and one.open for one in (seen.rebuild, seen.verify))
        )
    for one in living:
        await one.stop()
    assert work.most <= 1
    assert all(one is None or one.error is None for one in (seen.rebuild, seen.verify))
