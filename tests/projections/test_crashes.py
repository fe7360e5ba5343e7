"""A process dies at every point of every strategy, before or after what it does there; another one goes on.

Exhaustive over six envelopes: what each strategy promises holds wherever the crash was, and after a second one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from everlog.errors import EverlogError
from everlog.projections.lifecycle import Restart
from everlog.projections.runner import Runner
from everlog.projections.strategies import at_least_once, at_most_once, exactly_once, flow, grouped
from tests.models.projection_fixture import ENVELOPES, ID, Envelope, Six, declare, memory
from tests.models.projection_time import run_virtually

WINDOW = 2
ALL = [one.offset for one in ENVELOPES]


class Dead(EverlogError):
    """The process is gone; nothing that it still tries has any effect."""


class Process:
    """A process that dies at its n-th step, before the step or after it. Later steps do nothing."""

    def __init__(self, dies_at: int | None, *, after: bool) -> None:
        self._left = dies_at
        self._after = after
        self.dead = False

    def before(self) -> None:
        if self.dead:
            raise Dead
        if self._left is not None:
            self._left -= 1
            if self._left == 0 and not self._after:
                self.dead = True
                raise Dead

    def behind(self) -> None:
        if self._left == 0:
            self.dead = True
            raise Dead


class Seen:
    """The store as one process sees it."""

    def __init__(self, store, process: Process) -> None:
        self._store = store
        self._process = process

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def call(*arguments, **settings):
            steps = name in ("save", "take", "load")
            if steps or self._process.dead:
                self._process.before()
            result = await found(*arguments, **settings)
            if steps:
                self._process.behind()
            return result

        return call

    @asynccontextmanager
    async def transaction(self, lease, copies=None):
        async with self._store.transaction(lease, copies) as running:
            yield running
            self._process.before()
        self._process.behind()


def handlers(process: Process, handled: list[int], strategy):
    """A handler for the strategy, whose effect is in `handled`, or in the view."""

    def effect(envelope: Envelope) -> None:
        process.before()
        handled.append(envelope.offset)
        process.behind()

    async def plain(envelope: Envelope) -> None:
        effect(envelope)

    async def group(envelopes: list[Envelope]) -> None:
        for envelope in envelopes:
            effect(envelope)

    async def into_view(envelope: Envelope, view) -> None:
        process.before()
        await view.execute("INSERT INTO handled VALUES (?)", envelope.offset)
        process.behind()

    async def stream(items):
        async for item in items:
            effect(item.envelope)
            yield item

    kinds = {"Grouped": group, "ExactlyOnce": into_view, "Flow": stream}
    return kinds.get(type(strategy).__name__, plain)


async def run_process(store, process: Process, handled: list[int], strategy, offsets: list) -> None:
    """Run until all is done, or the process is dead."""
    projection = declare(
        handlers(process, handled, strategy), Six(), strategy=strategy, restart=Restart(max_restarts=0)
    )
    runner = Runner([projection], store=Seen(store, process), lease_s=3.0)
    runner.start()
    while not process.dead and (await store.load(ID)) != 6:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await runner.stop()
    offsets.append(await store.load(ID) or 0)


def crash(strategy, *crashes: tuple[int, bool]) -> tuple[list[int], list[int], int]:
    """What was handled, the offsets after each process, and how many died."""

    async def run():
        store, handled, offsets, died = memory(), [], [], 0
        await store.view().execute("CREATE TABLE handled (nr INTEGER)")
        for dies_at, after in crashes:
            process = Process(dies_at, after=after)
            await run_process(store, process, handled, strategy, offsets)
            died += process.dead
        await run_process(store, Process(None, after=False), handled, strategy, offsets)
        rows = [row[0] for row in await store.view().fetch("SELECT nr FROM handled ORDER BY rowid")]
        await store.close()
        return handled or rows, offsets, died

    return run_virtually(run())[0]


def repeats(handled: list[int]) -> int:
    return len(handled) - len(set(handled))


def check(strategy, handled: list[int], offsets: list[int], crashes: int) -> None:
    assert offsets == sorted(offsets), "the offset never moves back"
    assert offsets[-1] == 6
    name = type(strategy).__name__
    if name == "ExactlyOnce":
        assert handled == ALL
    elif name == "AtMostOnce":
        assert handled == sorted(set(handled)), "none twice, and in order"
        assert len(handled) >= 6 - crashes, "each crash loses one at most"
    else:
        assert set(handled) == set(ALL), "none is lost"
        assert repeats(handled) <= crashes * WINDOW, "each crash repeats a window at most"


STRATEGIES = [
    at_least_once(save_every=WINDOW, within_s=1000.0),
    at_least_once(save_every=WINDOW, within_s=1000.0, parallelism=2),
    grouped(size=WINDOW),
    at_most_once(),
    flow(save_every=WINDOW, within_s=1000.0),
    exactly_once(size=WINDOW),
]
IDS = ["at least once", "parallel", "grouped", "at most once", "flow", "exactly once"]


@pytest.mark.case("tags-and-projections", 52, 54, 56)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=IDS)
def test_a_crash_anywhere(strategy):
    """Every step, before and after: what is promised holds, and some crash did happen in each half."""
    points = 0
    for after in (False, True):
        for dies_at in range(1, 40):
            handled, offsets, died = crash(strategy, (dies_at, after))
            check(strategy, handled, offsets, died)
            points += died
            if not died:
                break
        else:
            pytest.fail("there is no end of steps")
    assert points > 10


@pytest.mark.parametrize("strategy", STRATEGIES, ids=IDS)
def test_two_crashes(strategy):
    """The one that takes over dies too."""
    for first in range(2, 9, 2):
        for second in range(1, 8, 2):
            handled, offsets, died = crash(strategy, (first, False), (second, True))
            check(strategy, handled, offsets, died)
