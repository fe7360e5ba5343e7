"""`pekko_tag` as a source of projections, on tables in memory and in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import everlog
from everlog.core.resume_point import ResumePoint
from everlog.errors import InvalidConfig, InvalidOffset, InvalidProjection, InvalidTag
from everlog.pekko.events import PekkoEvent
from everlog.pekko.reader import PekkoReader
from everlog.pekko.source import PekkoTagFeed, described_source, pekko_tag
from everlog.projections.offsets import Offset, decode, encode
from everlog.projections.source import Delivery
from tests.pekko.support import TAG, TimeUp, World, label
from tests.support import START_MS, small_config


def feed_of(world: World) -> PekkoTagFeed:
    @asynccontextmanager
    async def opened() -> AsyncIterator[PekkoReader]:
        yield world.reader()

    return PekkoTagFeed([TAG], opened, world.clock)


async def deliveries(world: World, stored: Offset | None, until: int) -> list[Delivery]:
    """What a projection gets up to that time."""
    world.limit = START_MS + until
    found: list[Delivery] = []
    try:
        async for page in feed_of(world).read(TAG, stored):
            found += page
    except TimeUp:
        pass
    return found


def late_world() -> World:
    """p2 is written after its delay, when q1 and q2, which are later, have gone out."""
    world = World(hold="journal")
    world.write("p", 1, 10)
    world.write("p", 2, 20, seen=9000)
    world.write("q", 1, 30)
    world.write("q", 2, 40)
    world.write("p", 3, 12_000)
    return world


async def test_events_come_with_their_offsets_journals_and_numbers():
    world = late_world()
    found = await deliveries(world, None, 30_000)
    assert [label(one.envelope) for one in found] == ["p1", "q1", "q2", "p2", "p3"]
    events = [one.envelope for one in found]
    assert [one.numbered for one in found] == [(one.persistence_id, one.tag_seq_nr, one.offset) for one in events]
    assert [one.created_ms - START_MS for one in found] == [10, 30, 40, 20, 12_000]
    assert [one.offset for one in found[:3]] == [one.envelope.offset for one in found[:3]], "their time-UUIDs"
    late = found[3].offset
    assert isinstance(late, ResumePoint)
    assert late.last["p"] == 2
    assert len({str(one.offset) for one in found}) == 5, "each names one event"


async def test_a_projection_goes_on_behind_each_stored_offset():
    """As it is stored, and as Pekko Projection stores it: the event's UUID."""
    found = await deliveries(late_world(), None, 30_000)
    for index, one in enumerate(found):
        world = late_world()
        await world.sleep_through(20_000)
        rest = await deliveries(world, decode(*encode(one.offset)), 40_000)
        names = [label(other.envelope) for other in rest]
        if index < 3:  # p2 is there by now, and behind the offset of q1 and q2: as in the original
            assert names == [["p2", "q1", "q2", "p3"], ["q2", "p3"], ["p3"]][index]
        else:
            assert names == [label(other.envelope) for other in found[index + 1 :]]


async def test_a_recount_ends_where_the_offset_is():
    """Exactly what had gone out then, although by now the event that held its journal back is in its place."""
    world = World(hold="journal")
    world.write("p", 1, 10)
    world.write("p", 2, 20, seen=9000)
    world.write("p", 3, 30)
    for number in range(1, 4):
        world.write("q", number, 30 + number)
    found = await deliveries(world, None, 40_000)
    names = [label(one.envelope) for one in found]
    assert names == ["p1", "q1", "q2", "q3", "p2", "p3"]
    for index, one in enumerate(found):
        assert one.offset is not None
        world.limit = START_MS + 1_000_000
        again = [label(other.envelope) async for (other,) in feed_of(world).read_to(TAG, None, one.offset)]
        assert sorted(again) == sorted(names[: index + 1])


async def test_the_lag_is_counted_at_once():
    world = World()
    assert await feed_of(world).lag(TAG, None) == (0, 0.0)
    for number in range(1, 6):
        world.write("p", number, 1000 * number)
    await world.sleep_through(9500)  # of five events, the delay of four is over
    feed = feed_of(world)
    assert await feed.lag(TAG, None) == (4, pytest.approx(8.5))
    (first, *_) = await deliveries(world, None, 9600)
    assert (await feed.lag(TAG, first.offset)).events == 3
    assert (await feed.lag(TAG, ResumePoint(first.envelope.offset, {"p": 3}))).events == 1
    await feed.close()


async def test_a_dead_letter_comes_back_as_it_was():
    world = World()
    world.write("p", 1, 1)
    (one,) = await deliveries(world, None, 20_000)
    feed = feed_of(world)
    payload = feed.write_down(one.envelope)
    assert payload is not None
    again = feed.read_back(payload)
    assert isinstance(again, PekkoEvent)
    assert again == one.envelope


async def test_what_cannot_be_is_said_at_once(tmp_path):
    wrong: list[tuple[Any, ...]] = [(), ("",), (5,), ("a" * 2000,)]
    for names in wrong:
        with pytest.raises(InvalidTag):
            everlog.pekko_tag(*names)
    for names in (("a", "a"), ("\ud800",), (" ",)):
        with pytest.raises(InvalidProjection):
            everlog.pekko_tag(*names)
    with pytest.raises(InvalidProjection, match="open log"):
        pekko_tag("carts").open(None)
    async with everlog.connect(small_config(tmp_path / "data")) as log:
        with pytest.raises(InvalidConfig, match="Cassandra"):
            pekko_tag("carts").open(log.parts)
    with pytest.raises(InvalidOffset, match="time-UUID"):
        await anext(aiter(feed_of(World()).read(TAG, 5)))


def test_a_source_is_known_by_its_description():
    source = pekko_tag("carts-0", "carts-1")
    found = described_source(source.describe())
    assert found is not None
    assert found.describe() == source.describe()
    assert described_source({"kind": "tag", "tag": "eu"}) is None
