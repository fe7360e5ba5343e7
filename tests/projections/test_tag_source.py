"""Tags and slices as sources of projections, on the embedded log, store and views."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everlog
from everlog import Event, at_least_once
from everlog.config import ProjectionsConfig, TagsConfig
from everlog.errors import InvalidOffset, InvalidProjection, InvalidTag
from everlog.projections.projection import Projection
from everlog.projections.recovery import Recovery
from everlog.testing import replicate
from tests.support import small_config
from tests.waiting import until

Seen = list[tuple[str, int]]


def collecting(seen: Seen, source: Any, *, failing: bool = False) -> Projection:
    async def take(event: everlog.TaggedEvent) -> None:
        if failing and event.id == "bad":
            raise ValueError("poison")
        seen.append((event.id, event.seq_nr))

    return everlog.projection(
        "seen", source=source, strategy=at_least_once(save_every=1), recovery=Recovery.skip() if failing else None
    )(take)


async def append(log: everlog.Everlog, journal_id: str, *tags: str) -> everlog.Position:
    return await log.journal("orders").append(journal_id, [Event({"id": journal_id}, tags=set(tags))])


async def test_a_tag_is_followed_from_the_stored_offset_on(tmp_path: Path) -> None:
    """Untagged events are passed, too: whoever waits for their token is not left waiting."""
    seen: Seen = []
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        for journal_id, tags in (("a", ["eu"]), ("b", ["us"]), ("a", ["eu", "us"])):
            await append(log, journal_id, *tags)
        untagged = await append(log, "c")
        async with log.projections.run(collecting(seen, everlog.tag("eu"))):
            await replicate(log)
            await log.projections.wait("seen", untagged)
            assert seen == [("a", 1), ("a", 2)]
        token = await append(log, "d", "eu")
        await replicate(log)
        (known,) = await log.projections.list("seen")
        assert known.lag is not None
        assert known.lag.events == 1
        async with log.projections.run(collecting(seen, everlog.tag("eu"))):
            await log.projections.wait("seen", token)
        assert seen == [("a", 1), ("a", 2), ("d", 1)]


async def test_slices_are_all_events_in_parts(tmp_path: Path) -> None:
    """Four keys share the journals; each event is handled once, those of a journal in their order."""
    seen: Seen = []
    config = msgspec.structs.replace(small_config(tmp_path / "data"), tags=TagsConfig(slices=True))
    async with everlog.connect(config) as log:
        tokens = [await append(log, f"j{number % 7}") for number in range(21)]
        async with log.projections.run(collecting(seen, everlog.slices(4))):
            await replicate(log)
            for token in tokens:
                await log.projections.wait("seen", token)
        assert sorted(seen) == sorted((f"j{number}", seq_nr) for number in range(7) for seq_nr in (1, 2, 3))
        for number in range(7):
            assert [seq_nr for journal_id, seq_nr in seen if journal_id == f"j{number}"] == [1, 2, 3]
        assert len(await log.projections.list("seen")) == 4


def counting(split: int, *, poison: str = "") -> Projection:
    """Counts each event in a row of its own, exactly once."""

    async def count(event: everlog.TaggedEvent, view: Any) -> None:
        if event.id == poison:
            raise ValueError("poison")
        await view.execute(
            "INSERT INTO counted VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET n = n + 1", event.id, event.seq_nr
        )

    source, strategy = everlog.slices(split), everlog.exactly_once(size=3)
    return Projection("counted", source=source, handler=count, strategy=strategy, recovery=Recovery.skip())


@pytest.fixture
async def sliced(tmp_path: Path) -> AsyncIterator[everlog.Everlog]:
    config = msgspec.structs.replace(
        small_config(tmp_path / "data"),
        tags=TagsConfig(slices=True, poll_interval_s=0.01),
        projections=ProjectionsConfig(lease_s=0.6, poll_interval_s=0.02),
    )
    async with everlog.connect(config) as log:
        table = "CREATE TABLE counted (id TEXT, seq_nr INTEGER, n INTEGER, PRIMARY KEY (id, seq_nr))"
        await log.projections.view("counted").execute(table)
        yield log


async def write(log: everlog.Everlog, count: int = 40) -> list[everlog.Position]:
    tokens = [await append(log, f"j{number}") for number in range(count)]
    await replicate(log)
    return tokens


async def counts(log: everlog.Everlog, tokens: list[everlog.Position]) -> list[tuple[int, int, int]]:
    """How many events were counted, how often at most, and at least, once all of these are."""
    for token in tokens:
        await log.projections.wait("counted", token)
    return await log.projections.view("counted").fetch("SELECT count(*), max(n), min(n) FROM counted")


async def test_slices_are_divided_anew_without_reading_anything_twice(sliced: everlog.Everlog) -> None:
    """More keys, fewer keys, and in between events that no key has seen: every event counts once."""
    for times, split in enumerate((4, 8, 1, 2, 64, 4), 1):
        tokens = await write(sliced, 20)
        async with sliced.projections.run(counting(split)):
            assert await counts(sliced, tokens) == [(20 * times, 1, 1)]
        found = await sliced.projections.list("counted")
        assert len(found) == split, "keys of other divisions are not shown"
        assert sum(one.lag.events for one in found if one.lag is not None) == 0
        assert [one.lag.events for one in await sliced.projections.list("counted") if one.lag] == [0] * split


async def test_parts_that_are_not_as_far_as_others_go_on_where_they_were(sliced: everlog.Everlog) -> None:
    """One key of two was paused long before the slices are divided anew; then a key has parts of both."""
    tokens = await write(sliced)
    async with sliced.projections.run(counting(2)) as runner:
        assert await counts(sliced, tokens) == [(40, 1, 1)]
        await sliced.projections.pause("counted", "0-511", wait_s=60)
        await write(sliced)
        await until(lambda: lag_of(sliced, "512-1023", 0))
        assert (await sliced.projections.get("counted", "0-511")).lag.events > 5
        await runner.stop()
    tokens = await write(sliced)
    async with sliced.projections.run(counting(1)):
        await until(lambda: state_of(sliced, "0-1023", "paused"))
        await sliced.projections.resume("counted")
        assert await counts(sliced, tokens) == [(120, 1, 1)]


async def lag_of(log: everlog.Everlog, key: str, events: int) -> bool:
    found = (await log.projections.get("counted", key)).lag
    return found is not None and found.events == events


async def state_of(log: everlog.Everlog, key: str, state: str) -> bool:
    return any((one.key, one.state) == (key, state) for one in await log.projections.list("counted"))


async def test_two_divisions_at_once_count_nothing_twice(sliced: everlog.Everlog) -> None:
    """A rolling deployment: the old keys still run when the new ones begin, while events keep coming."""
    tokens = await write(sliced)
    async with everlog.connect(sliced.config) as other, other.projections.run(counting(2)):
        await counts(sliced, tokens)
        async with sliced.projections.run(counting(4)):
            for _ in range(5):
                tokens = await write(sliced)
            assert await counts(sliced, tokens) == [(240, 1, 1)]
        tokens = await write(sliced)
        assert await counts(sliced, tokens) == [(280, 1, 1)], "the old keys have their parts again"


async def test_dead_letters_follow_their_slices(sliced: everlog.Everlog) -> None:
    tokens = await write(sliced, 10)
    async with sliced.projections.run(counting(4, poison="j3")):
        assert await counts(sliced, tokens) == [(9, 1, 1)]
    async with sliced.projections.run(counting(1)):
        await until(lambda: state_of(sliced, "0-1023", "running"))
        (letter,) = await sliced.projections.dead_letters("counted", "0-1023")
        assert letter.event is not None
        assert (letter.event.id, letter.event.seq_nr) == ("j3", 1)
        assert await sliced.projections.replay("counted", offset=letter.offset) == 1
        await until(lambda: none_dead(sliced))
    assert await counts(sliced, []) == [(10, 1, 1)]


async def none_dead(log: everlog.Everlog) -> bool:
    return not await log.projections.dead_letters("counted")


async def test_a_recount_knows_the_slices_of_another_division(sliced: everlog.Everlog) -> None:
    tokens = await write(sliced)
    async with sliced.projections.run(counting(4)):
        await counts(sliced, tokens)
    (found,) = await sliced.projections.verify(counting(2), "counted")
    assert (found.rows, found.equal) == (40, True)


async def test_a_dead_letter_comes_back_as_it_was(tmp_path: Path) -> None:
    seen: Seen = []
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        await append(log, "bad", "eu")
        token = await append(log, "good", "eu")
        async with log.projections.run(collecting(seen, everlog.tag("eu"), failing=True)):
            await replicate(log)
            await log.projections.wait("seen", token)
        assert seen == [("good", 1)]
        (letter,) = await log.projections.dead_letters("seen")
        assert letter.payload is not None
        async with log.projections.run(collecting(seen, everlog.tag("eu"))):
            await log.projections.replay("seen")
            async with asyncio.timeout(60):
                while await log.projections.dead_letters("seen"):  # noqa: ASYNC110 - another task answers the letter
                    await asyncio.sleep(0.01)
        assert seen == [("good", 1), ("bad", 1)]


@everlog.event("placed", version=2)
@dataclass
class Placed:
    cents: int


@everlog.upcast(Placed, 1)
def in_cents(old: dict[str, int]) -> dict[str, int]:
    return {"cents": old["euros"] * 100}


@pytest.mark.parametrize("source", [everlog.tag("eu", Placed), everlog.slices(1, [Placed])], ids=["tag", "slices"])
async def test_handlers_get_instances_of_all_versions(source: Any, tmp_path: Path) -> None:
    """Also again, as a dead letter that is replayed; what has no class comes as it is."""
    seen: list[Any] = []

    def declared(*, failing: bool) -> Projection:
        async def take(event: everlog.TaggedEvent) -> None:
            if failing and event.payload == Placed(300):
                raise ValueError("poison")
            seen.append((event.payload, event.event.type_version))

        strategy = at_least_once(save_every=1)
        return everlog.projection("seen", source=source, strategy=strategy, recovery=Recovery.skip())(take)

    config = msgspec.structs.replace(small_config(tmp_path / "data"), tags=TagsConfig(slices=True))
    async with everlog.connect(config) as log:
        events = [Event(Placed(7)), Event({"euros": 3}, type="placed"), Event({"a": 1}, type="other")]
        tagged = [
            Event(one.payload, tags={"eu"}, type=one.event_type[0], type_version=one.event_type[1]) for one in events
        ]
        token = await log.journal("orders").append("o-1", tagged)
        async with log.projections.run(declared(failing=True)):
            await replicate(log)
            await log.projections.wait("seen", token)
        assert seen == [(Placed(7), 2), ({"a": 1}, 1)]
        async with log.projections.run(declared(failing=False)):
            await log.projections.replay("seen")
            async with asyncio.timeout(60):
                while await log.projections.dead_letters("seen"):  # noqa: ASYNC110 - another task answers the letter
                    await asyncio.sleep(0.01)
        assert seen[2:] == [(Placed(300), 1)]


PLACE = uuid.UUID("49225740-2019-11ea-a752-ffae2393b6e4")


async def test_an_offset_that_is_set_fits_its_tag(tmp_path: Path) -> None:
    seen: Seen = []
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        token = await append(log, "a", "eu")
        await replicate(log)
        async with log.projections.run(collecting(seen, everlog.tag("eu"))):
            await log.projections.wait("seen", token)
        before = await log.projections.offset("seen")
        for wrong in (7, "text", {"eu": PLACE}, uuid.uuid4(), True):
            with pytest.raises(InvalidOffset):
                await log.projections.set("seen", None, wrong)
            with pytest.raises(InvalidOffset):
                await log.projections.set("seen", None, PLACE, expected=wrong)
        assert await log.projections.offset("seen") == before
        await log.projections.set("seen", None, PLACE, expected=before)
        assert await log.projections.offset("seen") == PLACE


async def test_an_offset_that_is_set_fits_its_slices(sliced: everlog.Everlog) -> None:
    """One time-UUID for the whole key, or one for some of its parts; a key of before is not known any more."""
    tokens = await write(sliced, 10)
    async with sliced.projections.run(counting(2)):
        await counts(sliced, tokens)
    for wrong in (7, {"slices-0-15": 7}, {"slices-512-527": PLACE}, {"x": PLACE}):
        with pytest.raises(InvalidOffset):
            await sliced.projections.set("counted", "0-511", wrong)
    await sliced.projections.set("counted", "0-511", PLACE)
    offset = await sliced.projections.offset("counted", "0-511")
    assert offset == {f"slices-{first}-{first + 15}": PLACE for first in range(0, 512, 16)}
    await sliced.projections.set("counted", "0-511", {"slices-0-15": PLACE}, expected=PLACE)
    assert await sliced.projections.offset("counted", "0-511") == {"slices-0-15": PLACE}
    async with sliced.projections.run(counting(1)):
        await until(lambda: state_of(sliced, "0-1023", "running"))
    with pytest.raises(everlog.UnknownProjection):
        await sliced.projections.set("counted", "0-511", PLACE)


async def test_what_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidTag):
        everlog.tag("")
    with pytest.raises(InvalidProjection, match="power of two"):
        everlog.slices(128)
    with pytest.raises(InvalidProjection, match="open log"):
        everlog.tag("eu").open(None)
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        feed = everlog.tag("eu").open(log.parts)
        with pytest.raises(InvalidOffset, match="time-UUID"):
            await anext(aiter(feed.read("eu", 5)))
        await feed.close()
