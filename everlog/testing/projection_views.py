"""What every store of projections promises about the views in its own tables.

The statements are the store's own, so a subclass names them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, ClassVar

import pytest

from everlog.errors import HandlerFailed, InvalidProjection, OwnershipLost, StorageFailed
from everlog.projections.copies import Copies, tables_of
from everlog.projections.lifecycle import Restart
from everlog.projections.port import KnownProjection, OffsetStore, Report, View, ViewChanged, ViewTransaction
from everlog.projections.projection import Projection
from everlog.projections.projection_id import ProjectionId
from everlog.projections.rebuild import Rebuild, abort, switch
from everlog.projections.recovery import Recovery
from everlog.projections.runner import Runner
from everlog.projections.save_window import OffsetProgress
from everlog.projections.strategies import exactly_once
from everlog.testing.projection_kit import ListProvider
from everlog.testing.projections import ID, letter, own

TEXTS = ["abc", "def", "ghi", "jkl", "mno", "pqr"]
WORDS = ProjectionId("words", "all")
QUICK = Restart(min_s=0.0, max_s=0.0, random_factor=0.0)


class ViewStatements:
    """A table `words` with a group, a word and a text."""

    CREATE: ClassVar[str]
    EMPTY: ClassVar[str]
    PUT: ClassVar[str]
    GET: ClassVar[str]
    ALL: ClassVar[str]
    REMOVE: ClassVar[str]


class JoiningHandler:
    """A handler that joins texts in one row, and fails at an offset several times after it has written."""

    def __init__(
        self,
        words: type[ViewStatements],
        *,
        fail_at: int | None = None,
        times: int = 1,
        by: str = "|",
        pause: float = 0.0,
    ) -> None:
        self._words = words
        self._by = by
        self._pause = pause
        self._fail_at = fail_at
        self.times = times
        self.calls = 0

    async def __call__(self, envelope: tuple[int, str], view: View) -> None:
        self.calls += 1
        offset, text = envelope
        await asyncio.sleep(self._pause)
        rows = await view.fetch(self._words.GET, "g", "joined")
        before = [rows[0][0]] if rows else []
        await view.execute(self._words.PUT, "g", "joined", self._by.join([*before, text]))
        if offset == self._fail_at and self.times > 0:
            self.times -= 1
            raise ValueError(f"cannot take {text}")


def six(*, completes: bool = True, offset: Any = lambda one: one[0]) -> ListProvider:
    """Offsets 1 to 6 with texts."""
    return ListProvider(
        list(enumerate(TEXTS, 1)), offset, completes=completes, start_from=lambda stored, one: one[0] <= int(stored)
    )


class ViewConformance(ViewStatements):
    """Subclass it with the statements and a fixture `store`: an OffsetStore.

    `LOCKS`: an open transaction keeps all others out, so that none can take over meanwhile.
    """

    LOCKS: ClassVar[bool] = False

    @pytest.fixture
    async def words(self, store: OffsetStore) -> OffsetStore:
        """The store with an empty table."""
        await store.view().execute(self.CREATE)
        await store.view().execute(self.EMPTY)
        return store

    async def found(self, store: OffsetStore, number: int = 0) -> dict[str, str]:
        rows = await store.view(tables_of(number, ["words"])).fetch(self.ALL)
        return {word: text for _, word, text in sorted(rows)}

    async def put(self, running: ViewTransaction, word: str, text: str = "x", group: str = "g") -> None:
        await running.view.execute(self.PUT, group, word, text)

    # Rows and offset together

    async def test_rows_and_offset_are_stored_together(self, words: OffsetStore) -> None:
        lease = await own(words)
        async with words.transaction(lease) as running:
            running.savepoint(1)
            await self.put(running, "a")
            running.keep()
            running.savepoint(2)
            await self.put(running, "b")
            running.undo()
            running.save(OffsetProgress(1, positions={("orders", 0): 4}))
            running.bury([letter("2")])
            assert await self.found(words) == {}, "it is not seen before the end"
        assert await self.found(words) == {"a": "x"}
        assert await words.load(ID) == 1
        assert await words.positions("carts") == {"carts-0": {("orders", 0): 4}}
        assert [one.offset for one in await words.dead_letters("carts")] == ["2"]

    async def test_an_error_stores_neither(self, words: OffsetStore) -> None:
        lease = await own(words)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with words.transaction(lease) as running:
                await self.put(running, "c")
                running.save(OffsetProgress(2))
                _ = 1 / 0
        assert await self.found(words) == {}
        assert await words.load(ID) is None

    async def test_a_stale_owner_gets_no_transaction(self, words: OffsetStore) -> None:
        stale = await own(words, owner="a")
        await own(words, owner="b")
        with pytest.raises(OwnershipLost):  # noqa: PT012
            async with words.transaction(stale) as running:
                await self.put(running, "a")
                running.save(OffsetProgress(1))
        assert await self.found(words) == {}

    async def test_a_view_is_used_inside_its_handler_only(self, words: OffsetStore) -> None:
        async with words.transaction(await own(words)) as running:
            kept = running.view
        with pytest.raises(HandlerFailed):
            await kept.execute(self.PUT, "g", "a", "x")
        with pytest.raises(HandlerFailed):
            await kept.fetch(self.GET, "g", "a")

    async def test_rows_can_be_replaced_and_removed(self, words: OffsetStore) -> None:
        lease = await own(words)
        for offset, (word, text) in enumerate([("a", "9"), ("b", "9"), ("a", "10"), ("a", "1")], 1):
            async with words.transaction(lease) as running:
                running.savepoint(offset)
                await self.put(running, word, text)
                running.keep()
                running.save(OffsetProgress(offset))
        assert await self.found(words) == {"a": "1", "b": "9"}
        async with words.transaction(lease) as running:
            running.savepoint(5)
            await running.view.execute(self.REMOVE, "g", "a")
            running.keep()
            running.savepoint(6)
            await self.put(running, "a", "again")
            running.keep()
            running.save(OffsetProgress(6))
        assert await self.found(words) == {"a": "again", "b": "9"}, "in their order, whatever they share"

    # The fixture of most projection tests, into a view

    def joining(self, handler: JoiningHandler, *, source: ListProvider | None = None, **settings: Any) -> Projection:
        settings = {"strategy": exactly_once(), "restart": QUICK, "tables": ["words"], **settings}
        return Projection("words", source=source or six(), handler=handler.__call__, **settings)

    async def run(self, store: OffsetStore, projection: Projection) -> None:
        async with Runner([projection], store=store, lease_s=6.0, poll_s=0.02) as runner:
            async with asyncio.timeout(60):
                await runner.ended()

    @pytest.mark.case("tags-and-projections", 52)
    @pytest.mark.parametrize("size", [1, 2, 100])
    async def test_a_failure_at_the_fourth_is_made_up_for(self, words: OffsetStore, size: int) -> None:
        """Rows that a failed call wrote are not there; each text is there once, whatever the window."""
        handler = JoiningHandler(type(self), fail_at=4)
        await self.run(words, self.joining(handler, strategy=exactly_once(size=size)))
        assert await self.found(words) == {"joined": "|".join(TEXTS)}
        assert await words.load(WORDS) == 6
        assert handler.calls > 6

    @pytest.mark.case("tags-and-projections", 55)
    async def test_what_is_skipped_leaves_no_rows(self, words: OffsetStore) -> None:
        """A poison event: a dead letter, a fix, a replay; then the view has it too."""
        handler = JoiningHandler(type(self), fail_at=4, times=4)
        projection = self.joining(handler, recovery=Recovery.retry_and_skip(3, 0.001))
        await self.run(words, projection)
        assert await self.found(words) == {"joined": "abc|def|ghi|mno|pqr"}
        assert await words.load(WORDS) == 6
        (dead,) = await words.dead_letters("words")
        assert (dead.offset, dead.attempts) == ("4", 4)
        assert await words.request_replay(WORDS) == 1
        await self.run(words, projection)
        assert await self.found(words) == {"joined": "abc|def|ghi|mno|pqr|jkl"}
        assert await words.dead_letters("words") == []

    @pytest.mark.case("tags-and-projections", 59)
    async def test_an_offset_that_is_set_back_counts_again(self, words: OffsetStore) -> None:
        """A command is obeyed, whatever the view holds."""
        await self.run(words, self.joining(JoiningHandler(type(self))))
        await words.set_offset(WORDS, 3)
        await self.run(words, self.joining(JoiningHandler(type(self))))
        assert await self.found(words) == {"joined": "|".join([*TEXTS, *TEXTS[3:]])}
        assert await words.load(WORDS) == 6

    async def test_offsets_without_an_order(self, words: OffsetStore) -> None:
        handler = JoiningHandler(type(self), fail_at=4)
        source = six(offset=lambda one: str(one[0]))
        await self.run(words, self.joining(handler, source=source))
        assert await self.found(words) == {"joined": "|".join(TEXTS)}
        assert await words.load(WORDS) == "6"

    # A stale owner

    async def test_a_stale_owner_that_resumes_changes_nothing(self, words: OffsetStore) -> None:
        """It sleeps in the middle of its handler; another one does the rest. Then it goes on, and is refused."""
        asleep, awake = asyncio.Event(), asyncio.Event()
        joining = JoiningHandler(type(self))
        stale = await own(words, WORDS, owner="sleeper")

        async def sleeper() -> None:
            async with words.transaction(stale) as running:
                for envelope in enumerate(TEXTS[:4], 1):
                    running.savepoint(envelope[0])
                    await joining(envelope, running.view)
                    running.keep()
                asleep.set()
                await awake.wait()
                running.save(OffsetProgress(4))

        sleeping = asyncio.create_task(sleeper())
        await asleep.wait()
        if self.LOCKS:  # its transaction keeps all others out: none can take over before it is gone
            awake.set()
            await sleeping
        else:
            await self.run(words, self.joining(JoiningHandler(type(self))))
            awake.set()
            with pytest.raises((OwnershipLost, ViewChanged)):
                await sleeping
        await words.release(stale, Report())
        await self.run(words, self.joining(JoiningHandler(type(self))))
        assert await self.found(words) == {"joined": "|".join(TEXTS)}
        assert await words.load(WORDS) == 6

    # Copies

    async def test_a_copy_has_tables_and_offsets_of_its_own(self, words: OffsetStore) -> None:
        assert await words.copies("words") == Copies()
        await self.run(words, self.joining(JoiningHandler(type(self))))
        await words.copy_tables({"words": "words__1"})
        await words.copy_tables({"words": "words__1"})
        second = self.joining(JoiningHandler(type(self))).as_copy(1, ["words"])
        assert await self.found(words, 1) == {}
        await self.run(words, second)
        assert await self.found(words, 1) == await self.found(words) == {"joined": "|".join(TEXTS)}
        assert await words.load(ProjectionId("words~1", "all")) == 6
        await words.drop_tables(["words__1"])
        await words.drop_tables(["words__1"])
        await words.erase("words~1")
        assert [one.name for one in await words.known()] == ["words"]
        with pytest.raises(InvalidProjection):
            await words.copy_tables({"nothing": "nothing__1"})

    async def test_what_is_known_of_copies_is_compared_and_set(self, words: OffsetStore) -> None:
        first = Copies(building=1, last=1, tables={1: ("words",)})
        with pytest.raises(InvalidProjection):  # it could not be read again
            await words.change_copies("words", Copies(), Copies(versions={0: 2}))  # type: ignore[dict-item]
        assert await words.change_copies("words", Copies(), first)
        assert not await words.change_copies("words", Copies(), Copies(current=5))
        assert await words.copies("words") == first
        assert await words.copies("others") == Copies()
        results = await asyncio.gather(
            *(words.change_copies("words", first, Copies(current=number)) for number in range(2, 6))
        )
        assert sum(results) == 1

    # Rebuild, switch, abort

    async def rebuild(self, store: OffsetStore, handler: JoiningHandler, *, source: ListProvider | None = None) -> int:
        projection = self.joining(handler, source=source or six(completes=False))
        rebuild = Rebuild(store, projection, lag=_no_lag)
        number = await rebuild.begin()
        await rebuild.fill(number, lambda one: Runner([one], store=store, lease_s=6.0, poll_s=0.02))
        return number

    async def filled(self, store: OffsetStore, text: str, number: int = 0) -> None:
        async with asyncio.timeout(60):
            while await self.found(store, number) != {"joined": text}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def test_a_rebuild_beside_the_running_one(self, words: OffsetStore) -> None:
        """The old copy is read until the switch; runners follow it, and the way back is open."""
        old, new = "|".join(TEXTS), "+".join(TEXTS)
        projection = self.joining(JoiningHandler(type(self)), source=six(completes=False))
        async with Runner([projection], store=words, lease_s=3.0, poll_s=0.02) as runner:
            await self.filled(words, old)
            while await words.load(WORDS) != 6:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            slowly = JoiningHandler(type(self), by="+", pause=0.1)  # a reader that looks too early finds too little
            assert await self.rebuild(words, slowly) == 1
            built = Copies(building=1, filled=True, last=1, tables={1: ("words",)}, versions={0: "", 1: ""})
            assert await words.copies("words") == built
            assert (await self.found(words), await self.found(words, 1)) == ({"joined": old}, {"joined": new})
            assert (await words.leases("words"))["all"].owner == runner.owner
            seen = await switch(words, "words")
            assert (seen.current, seen.previous, seen.building) == (1, 0, None)
            async with asyncio.timeout(60):
                while (await words.leases("words~1"))["all"].owner != runner.owner:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await words.leases("words"))["all"].owner is None
        for current in (0, 1):
            seen = await switch(words, "words", back=True)
            assert (seen.current, seen.previous) == (current, 1 - current)
        assert await self.rebuild(words, JoiningHandler(type(self), by="-")) == 2
        seen = await switch(words, "words")
        tables = {1: ("words",), 2: ("words",)}
        assert seen == Copies(current=2, previous=1, last=2, tables=tables, versions={1: "", 2: ""})
        assert await self.found(words, 2) == {"joined": "-".join(TEXTS)}
        assert [one.name for one in await words.known()] == ["words~1", "words~2"], "the first one is gone"
        await words.drop_tables(["words__1", "words__2"])

    def by_version(self, version: str) -> Projection:
        """Joins texts by its version, so that each row says who wrote it."""
        handler = JoiningHandler(type(self), by=version or "|")
        return self.joining(handler, source=six(completes=False), version=version)

    async def first_version(self, words: OffsetStore, **settings: Any) -> None:
        """A view that code without a version has filled."""
        async with Runner([self.by_version("")], **settings):
            await self.filled(words, "|".join(TEXTS))
            while await words.load(WORDS) != 6:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def waits(self, words: OffsetStore, version: str, remedy: str) -> None:
        """Until a runner of this version says that it waits, and what to do."""
        async with asyncio.timeout(60):
            while version not in (await words.copies("words")).waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        found = (await words.copies("words")).remedy("words", round(time.time() * 1000))
        assert f"'everlog projections {remedy}'" in (found or "")

    async def test_a_new_version_does_not_write_to_the_view_of_the_old_one(self, words: OffsetStore) -> None:
        """Before the first rebuild, and after one that was aborted, it waits and says so."""
        settings: dict[str, Any] = {"store": words, "lease_s": 1.5, "poll_s": 0.02}
        await self.first_version(words, **settings)
        await words.set_offset(WORDS, None)  # an owner that takes the key now handles all again
        free = (await words.leases("words"))["all"]
        async with Runner([self.by_version("+")], **settings):
            await self.waits(words, "+", "rebuild words")
            await Rebuild(words, self.by_version("+"), lag=_no_lag).begin()
            with pytest.raises(InvalidProjection, match=r"is being filled by version '\+', not '-'"):
                await Rebuild(words, self.by_version("-"), lag=_no_lag).begin()
            await self.waits(words, "+", "copies words")
            await abort(words, "words")
            await self.waits(words, "+", "rebuild words")
            await asyncio.sleep(1)  # two beats: it would have taken the key, which is free
        assert (await words.leases("words"))["all"] == free
        assert await self.found(words) == {"joined": "|".join(TEXTS)}
        assert (await words.copies("words")).waiting == {}, "a runner that ends no longer waits"

    async def test_each_version_writes_to_its_own_copy(self, words: OffsetStore) -> None:
        """Both run all the time: the old one until the switch, the new one after it, and back."""

        async def owned(name: str, runner: Runner | None) -> None:
            owner = None if runner is None else runner.owner
            async with asyncio.timeout(60):
                while [one.owner for one in (await words.leases(name)).values()] != [owner]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

        settings: dict[str, Any] = {"store": words, "lease_s": 1.5, "poll_s": 0.02}
        await self.first_version(words, **settings)
        async with Runner([self.by_version("+")], **settings) as new:
            rebuild = Rebuild(words, self.by_version("+"), lag=_no_lag)
            await rebuild.fill(await rebuild.begin(), lambda one: Runner([one], **settings))
            async with Runner([self.by_version("")], **settings) as old:
                await owned("words", old)
                await switch(words, "words")
                await owned("words", None)
                await owned("words~1", new)
                await switch(words, "words", back=True)
                await owned("words~1", None)
                await owned("words", old)
                await self.waits(words, "+", "switch words --back")
        assert await self.found(words) == {"joined": "|".join(TEXTS)}
        assert await self.found(words, 1) == {"joined": "+".join(TEXTS)}
        await words.drop_tables(["words__1"])

    async def test_what_cannot_be_switched_or_aborted_is_named(self, words: OffsetStore) -> None:
        for back in (False, True):
            with pytest.raises(InvalidProjection):
                await switch(words, "words", back=back)
        with pytest.raises(InvalidProjection):
            await abort(words, "words")
        number = await Rebuild(words, self.joining(JoiningHandler(type(self))), lag=_no_lag).begin()
        with pytest.raises(InvalidProjection, match="not filled"):
            await switch(words, "words")
        assert await Rebuild(words, self.joining(JoiningHandler(type(self))), lag=_no_lag).begin() == number, (
            "it goes on"
        )
        assert await abort(words, "words") == Copies(last=1)
        with pytest.raises(InvalidProjection, match="tables"):
            Rebuild(words, self.joining(JoiningHandler(type(self)), tables=[]), lag=_no_lag)

    async def test_a_rebuild_that_fails_says_why(self, words: OffsetStore) -> None:
        await self.run(words, self.joining(JoiningHandler(type(self))))
        with pytest.raises(StorageFailed, match="cannot take jkl"):
            await self.rebuild(words, JoiningHandler(type(self), fail_at=4, times=100))
        await abort(words, "words")

    async def test_an_aborted_rebuild_ends(self, words: OffsetStore) -> None:
        handler = JoiningHandler(type(self))
        filling = asyncio.create_task(self.rebuild(words, handler))  # no instance runs: it has nothing to catch up with
        async with asyncio.timeout(60):
            while handler.calls < 6:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await abort(words, "words")
        with pytest.raises(InvalidProjection, match="aborted"):
            await filling


async def _no_lag(known: KnownProjection) -> None:
    return None
