"""When a copy has all that the current one has, and what becomes of envelopes whose view was changed by others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from everlog.projections.lifecycle import Restart
from everlog.projections.port import View, ViewChanged
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.rebuild import Rebuild
from everlog.projections.recovery import Recovery
from everlog.projections.runner import Runner
from everlog.projections.strategies import exactly_once
from everlog.testing.projection_kit import MemoryOffsets
from tests.models.projection_fixture import ID, TEXTS, Diary, Six, run_to_end
from tests.models.projection_time import run_virtually
from tests.waiting import until

CREATE = "CREATE TABLE words (key TEXT PRIMARY KEY, text TEXT)"
LATE = ProjectionId("words~1", "b")


class Late(MemoryOffsets):
    """The second key of the copy can be begun only after the gate is open: until then one waits for it, or fails."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self._waits = waits

    async def take(self, projection, owner, seen):
        if projection == LATE and not self.gate.is_set():
            if not self._waits:
                return None
            await self.gate.wait()
        return await super().take(projection, owner, seen)


async def note(envelope, view: View) -> None:
    await view.execute("INSERT OR REPLACE INTO words VALUES (?, ?)", str(envelope.offset), envelope.text)


def two_keys() -> Projection:
    source = {"a": Six(completes=False), "b": Six(completes=False)}
    return Projection("words", source=source, handler=note, strategy=exactly_once(), tables=["words"])


async def no_lag(_known) -> None:
    return None


@pytest.mark.parametrize("waits", [True, False], ids=["nothing was said", "one key of two is known"])
def test_a_copy_is_not_filled_before_all_its_keys_have_begun(waits):
    """One key has everything, the other one is not known yet: readers would miss half of the view."""

    async def run() -> None:
        store = Late(waits=waits)
        await store.view().execute(CREATE)
        async with Runner([two_keys()], store=store, lease_s=6.0):
            await until(lambda: both_done(store, "words"))
        rebuild = Rebuild(store, two_keys(), lag=no_lag)
        number = await rebuild.begin()
        looks: list[int] = []
        filling = asyncio.create_task(
            rebuild.fill(
                number,
                lambda one: Runner([one], store=store, lease_s=6.0),
                on_progress=lambda handled, _: looks.append(handled),
            )
        )
        await until(lambda: filling.done() or looks.count(len(TEXTS)) >= 20)
        assert not filling.done()
        assert not (await store.copies("words")).filled
        store.gate.set()
        await filling
        assert (await store.copies("words")).filled
        assert looks[-1] == 2 * len(TEXTS)
        await store.close()

    run_virtually(run())


async def both_done(store, name: str) -> bool:
    return [await store.load(ProjectionId(name, key)) for key in "ab"] == [6, 6]


class Contested(MemoryOffsets):
    """Others write where a handler has read: this many times it finds out when it reads, or when it stores."""

    def __init__(self, *, reads: int = 0, stores: int = 0) -> None:
        super().__init__()
        self.reads = reads
        self.stores = stores

    @asynccontextmanager
    async def transaction(self, lease, copies=None):
        async with super().transaction(lease, copies) as running:
            inner, running.view = running.view, ContestedView(self, running.view)
            try:
                yield running
            finally:
                running.view = inner
            if self.stores:
                self.stores -= 1
                raise ViewChanged("words")


class ContestedView(View):
    def __init__(self, store: Contested, inner: View) -> None:
        self._store = store
        self._inner = inner

    async def execute(self, statement, *values):
        return await self._inner.execute(statement, *values)

    async def fetch(self, statement, *values):
        if self._store.reads:
            self._store.reads -= 1
            raise ViewChanged("words")
        return await self._inner.fetch(statement, *values)


class Joining:
    """Joins texts in a row; fails once at an offset, with others in the way right after that, if so wanted."""

    def __init__(self, store: Contested, *, fail_at: int | None = None, then_reads: int = 0) -> None:
        self._store = store
        self._fail_at = fail_at
        self._then_reads = then_reads

    async def join(self, envelope, view: View) -> None:
        rows = await view.fetch("SELECT text FROM words")
        if envelope.offset == self._fail_at:
            self._fail_at, self._store.reads = None, self._then_reads
            raise ValueError("once")
        joined = "|".join([*(text for (text,) in rows), envelope.text])
        await view.execute("INSERT OR REPLACE INTO words VALUES ('joined', ?)", joined)


async def joined(store) -> str:
    ((text,),) = await store.view().fetch("SELECT text FROM words")
    return text


def joining(handler: Joining, **settings) -> Projection:
    never = Restart(max_restarts=0)
    return Projection("words", source=Six(), handler=handler.join, strategy=exactly_once(2), restart=never, **settings)


@pytest.mark.parametrize("reads", [0, 1, 3])
@pytest.mark.parametrize("stores", [0, 1, 3])
def test_what_others_changed_is_handled_again_and_is_no_failure(reads, stores):
    """Although every failure is skipped: nothing is, and the observers hear of no error."""

    async def run() -> None:
        store, diary = Contested(reads=reads, stores=stores), Diary()
        await store.view().execute(CREATE)
        await run_to_end(joining(Joining(store), recovery=Recovery.skip(), observers=[diary]), store)
        assert (await joined(store), await store.load(ID)) == ("|".join(TEXTS), 6)
        assert (store.reads, store.stores) == (0, 0)
        assert await store.dead_letters("words") == []
        assert diary.count("error") == diary.count("failed") == 0
        await store.close()

    run_virtually(run())


def test_a_change_by_others_is_no_attempt_of_a_recovery():
    """Two attempts are allowed; one fails, in the next one others are in the way, and a third one goes well."""

    async def run() -> None:
        store, diary = Contested(), Diary()
        await store.view().execute(CREATE)
        handler = Joining(store, fail_at=3, then_reads=1)
        projection = joining(handler, recovery=Recovery.retry_and_skip(1, 0.01), observers=[diary])
        await run_to_end(projection, store)
        assert (await joined(store), await store.load(ID)) == ("|".join(TEXTS), 6)
        assert await store.dead_letters("words") == []
        assert diary.count("error 3") == 1
        await store.close()

    run_virtually(run())


def test_a_replay_goes_on_when_others_are_in_the_way():
    """The dead letter is handled once, and is gone; it did not fail again."""

    async def run() -> None:
        store = Contested()
        await store.view().execute(CREATE)
        await run_to_end(joining(Joining(store, fail_at=3), recovery=Recovery.skip()), store)
        assert [letter.offset for letter in await store.dead_letters("words")] == ["3"]
        assert await store.request_replay(ID) == 1
        store.reads = store.stores = 2
        await run_to_end(joining(Joining(store), recovery=Recovery.skip()), store)
        assert await store.dead_letters("words") == []
        assert await joined(store) == "|".join([*TEXTS[:2], *TEXTS[3:], TEXTS[2]])
        await store.close()

    run_virtually(run())


def test_others_that_are_always_in_the_way_end_it():
    """Whoever cannot get on says so, instead of trying for ever."""

    async def run() -> None:
        store = Contested(reads=10_000)
        await store.view().execute(CREATE)
        await run_to_end(joining(Joining(store)), store)
        (report,) = [one.report for one in await store.known("words")]
        assert (report.state, report.handled) == ("failed", 0)
        assert "others change" in (report.error or "")
        assert 9000 < store.reads < 9950, "about a hundred tries"
        await store.close()

    run_virtually(run())
