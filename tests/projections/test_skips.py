"""Skips by command: whichever events are poisoned, repeated skips lead past all of them, and past nothing else."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

import everlog
from everlog import (
    Event,
    Restart,
    at_least_once,
    at_most_once,
    events,
    exactly_once,
    flow,
    grouped,
    on_spark,
    records,
    slices,
    tag,
)
from everlog.config import TagsConfig
from everlog.errors import InvalidInput
from everlog.projections.event_stream import UP_TO
from everlog.projections.port import Report
from everlog.projections.projection import Projection
from everlog.projections.runner import Runner
from everlog.testing import replicate
from everlog.testing.projections import own
from tests.http_support import server
from tests.models.projection_fixture import ENVELOPES, ID, Six, declare
from tests.projections.test_commands import report
from tests.projections.test_runs import virtually
from tests.support import small_config
from tests.waiting import until

SLOW = Restart(min_s=1.0, max_s=1.0, random_factor=0.0)
MAX_COMMANDS = 10
POISONED = [set(some) for count in range(1, 5) for some in itertools.combinations((1, 2, 4, 6), count)]
STRATEGIES = [
    at_least_once(),
    at_least_once(save_every=1),
    at_least_once(save_every=2),
    at_least_once(parallelism=4),
    grouped(size=3),
    grouped(size=6),
    exactly_once(),
]


class Poisoned:
    """Handles texts, and fails at these offsets for ever."""

    def __init__(self, offsets: set[int]) -> None:
        self.offsets = offsets
        self.handled: list[int] = []

    async def __call__(self, envelope) -> None:
        if envelope.offset in self.offsets:
            raise ValueError(f"cannot take {envelope.text}")
        self.handled.append(envelope.offset)

    async def ignore(self, envelope) -> None:
        """Whatever it is."""

    async def with_view(self, envelope, view) -> None:
        await self(envelope)

    async def group(self, envelopes) -> None:
        if found := [one for one in envelopes if one.offset in self.offsets]:
            raise ValueError(f"cannot take {found}")
        self.handled.extend(one.offset for one in envelopes)

    def for_(self, strategy):
        if strategy == exactly_once():
            return self.with_view
        return self.group if isinstance(strategy, type(grouped())) else self


def journals(count: int) -> Six:
    """The six envelopes of as many journals, so that some are handled at once; they go on."""
    return Six(completes=False, extract_journal=lambda envelope: str(envelope.offset % count))


async def failing(store, runner) -> str | None:
    """What the projection is stuck at; None once it is through."""

    async def look() -> str | None:
        return report(runner).failing or (await store.load(ID) == 6 and "through")

    found = await until(look)
    return None if found == "through" else found


@pytest.mark.parametrize("poisoned", POISONED, ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_repeated_skips_lead_past_every_poisoned_event(strategy, poisoned):
    """One skip after the other of what fails now, and of single events of a group: each gives one dead letter."""

    @virtually
    async def run(store) -> None:
        handler = Poisoned(poisoned)
        projection = declare(handler.for_(strategy), journals(3), strategy=strategy, restart=SLOW)
        wanted = iter(sorted(poisoned, reverse=True))
        async with Runner([projection], store=store) as runner:
            for _ in range(MAX_COMMANDS):
                if (found := await failing(store, runner)) is None:
                    break
                await store.skip(ID, str(next(wanted, 0)) if UP_TO in found else found)
                await asyncio.sleep(10)
            assert report(runner).skipped == len(poisoned)
        assert {*handler.handled} == {one.offset for one in ENVELOPES} - poisoned
        letters = await store.dead_letters("words")
        assert sorted(int(one.offset) for one in letters) == sorted(poisoned)
        assert (await store.desired("words"))["all"].skips == (), "each is fulfilled"

    run()


@virtually
async def test_at_most_once_skips_an_event_that_is_named_before_it_comes(store):
    """It never tries an event twice, so what fails is behind it already; what is yet to come can be left out."""
    handler = Poisoned(set())
    projection = declare(handler, journals(1), strategy=at_most_once(), restart=SLOW)
    async with Runner([projection], store=store):
        await until(lambda: store.last_offset == 6)
        await store.skip(ID, "4")
        await store.set_offset(ID, 2)
        await until(lambda: len(handler.handled) == 9)
    assert handler.handled == [1, 2, 3, 4, 5, 6, 3, 5, 6]
    assert [one.offset for one in await store.dead_letters("words")] == ["4"]


@pytest.mark.parametrize(
    "strategy", [at_least_once(), at_least_once(parallelism=4), grouped(size=5, within_s=0.2)], ids=str
)
async def test_two_bad_events_are_skipped_one_after_the_other(tmp_path, strategy):
    """With the strategies that save several events at once; a replay of what was left out handles each once."""
    bad, handled = {1, 3}, []

    async def one(event) -> None:
        if event.payload in bad:
            raise ValueError("poison")
        handled.append(event.payload)

    async def group(found) -> None:
        if any(event.payload in bad for event in found):
            raise ValueError("poison")
        handled.extend(event.payload for event in found)

    grouping = isinstance(strategy, type(grouped()))
    handler, restart = group if grouping else one, Restart(min_s=0.02, max_s=0.02)
    projection = Projection("sums", source=events("orders"), handler=handler, strategy=strategy, restart=restart)
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        tokens = [await log.journal("orders").append("o", Event(number)) for number in range(5)]
        async with log.projections.run(projection):
            for number in (1, 3):
                place = f"journal-orders-{tokens[number].partition}={tokens[number].offset}"

                async def fails_there(place=place) -> bool:
                    found = await log.projections.list("sums")
                    failing = found[0].failing if found else None
                    return failing is not None and (grouping or failing == place)

                await until(fails_there)
                assert await log.projections.skip("sums", offset=place if grouping else None) == place
            await log.projections.wait("sums", tokens[-1])

            async def both_are_letters() -> bool:
                found = [letter.event.payload for letter in await log.projections.dead_letters("sums")]
                assert {*found} <= {1, 3}
                return sorted(found) == [1, 3]

            await until(both_are_letters)
            assert {*handled} == {0, 2, 4}
            bad.clear()
            assert await log.projections.replay("sums") == 2
            await until(lambda: {1, 3} <= {*handled})
        assert [handled.count(number) for number in (1, 3)] == [1, 1]


ENTRY = "journal-orders"
NOWHERE = ["no such thing", "3", "", "=", f"{ENTRY}-0", f"{ENTRY}-0=", f"{ENTRY}-0=x", f"{ENTRY}-9=0"]


@pytest.mark.parametrize("source", [events("orders"), records("orders")], ids=["events", "records"])
async def test_a_skip_is_refused_where_it_could_do_nothing(tmp_path, source):
    """A place that the source does not have, will perhaps never have, or that is done already; here and over HTTP."""
    async with server(small_config(tmp_path / "data"), writable=True) as (log, http):
        token = await log.journal("orders").append("o", Event("x"))
        entry = f"journal-orders-{token.partition}"
        async with log.projections.run(Projection("seen", source=source, handler=Poisoned(set()).ignore)):
            await log.projections.wait("seen", token)
            await until(lambda: log.projections.offset("seen"))
        for offset in (*NOWHERE, f"{entry}=1000000", f"{entry}=-1", f"{entry}=0", f"{entry}=0..{entry}=1000000"):
            with pytest.raises(InvalidInput):
                await log.projections.skip("seen", offset=offset)
            answer = await http.post("/projections/seen/journal-orders/skip", json={"offset": offset})
            assert answer.status_code == 400, offset
        with pytest.raises(InvalidInput, match="done already"):
            await log.projections.skip("seen", offset=f"{entry}=0")
        later = await log.journal("orders").append("o", Event("y"))
        place = f"{entry}={later.offset}"
        assert await log.projections.skip("seen", offset=place) == place
        store = await log.projections.store()
        assert (await store.desired("seen"))["journal-orders"].skips == (place,)


@pytest.mark.parametrize("source", [tag("eu"), slices()], ids=["tag", "slices"])
async def test_a_skip_among_tagged_events_is_checked_too(tmp_path, source):
    config = msgspec.structs.replace(small_config(tmp_path / "data"), tags=TagsConfig(slices=True))
    async with everlog.connect(config) as log:
        token = await log.journal("orders").append("o", Event("x", tags={"eu"}))
        await replicate(log)
        async with log.projections.run(Projection("seen", source=source, handler=Poisoned(set()).ignore)):
            await log.projections.wait("seen", token)
            stored = await until(lambda: log.projections.offset("seen"))
        done = str(stored)
        if isinstance(stored, dict):
            ((part, place),) = stored.items()
            done = f"{part}={place}"
        for offset in ("no such thing", "3", done):
            with pytest.raises(InvalidInput):
                await log.projections.skip("seen", offset=offset)


async def test_a_flow_says_that_nothing_of_it_can_be_skipped(tmp_path):
    async def fails(items):
        async for item in items:
            if item.envelope.payload == "bad":
                raise ValueError("poison")
            yield item

    async with everlog.connect(small_config(tmp_path / "data")) as log:
        token = await log.journal("orders").append("o", Event("bad"))
        flowing = Projection("flowing", source=events("orders"), handler=fails, strategy=flow())
        async with log.projections.run(flowing):
            await until(lambda: log.projections.list("flowing"))
            place = f"journal-orders-{token.partition}={token.offset}"
            for offset in (None, place):
                with pytest.raises(InvalidInput, match="is a flow"):
                    await log.projections.skip("flowing", offset=offset)


async def test_spark_says_that_nothing_of_it_can_be_skipped(tmp_path):
    """Its runner reports as the others do, and looks for no skips."""
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        store = await log.projections.store()
        lease = await own(store, ID)
        await store.release(lease, Report(state="stopped", strategy=type(on_spark()).__name__))
        with pytest.raises(InvalidInput, match="runs on Spark"):
            await log.projections.skip("words", offset="3")
