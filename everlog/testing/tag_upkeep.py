"""Upkeep of views by tag, and reads by journal."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from everlog.api import Everlog
from everlog.core.events import Event
from everlog.errors import InvalidInput, MissingEvent, Overtaken
from everlog.tags.upkeep import Verified
from everlog.testing.replication import replicate
from everlog.testing.tag_support import (
    PATIENCE,
    AdvancingClock,
    TagSuite,
    check_order,
    configured,
    everything,
    rebuild_all,
    replicate_without_views,
    tables_of,
    take,
)


class TagUpkeep(TagSuite):
    """Rebuild, verify and drop; events and ids by journal."""

    # Upkeep

    async def test_drop_and_rebuild(self, everlog: Everlog, time: AdvancingClock) -> None:
        """A journal leaves a view, others stay; a rebuild brings all back, at their places, with numbers from 1."""
        await self.fill(everlog, 12)
        await replicate(everlog, batch=2)
        time.advance(7200)
        await self.fill(everlog, 3, tags=("t", "u"))
        await replicate(everlog)
        tag = everlog.tag("t")
        before = await everything(tag)
        assert (await tag.verify()) == Verified("t", 15, 3)
        assert await tag.drop(topic="orders", journal_id="o-1") == 5
        assert await everything(tag) == [event for event in before if event.id != "o-1"]
        assert "o-1, seqNr 5 is not in the view" in str((await tag.verify()).difference)
        assert [info.journals for info in await everlog.tags()] == [2, 3]
        assert await rebuild_all(configured(everlog, bucket="minute")) == 5
        assert await everything(tag) == before
        assert await rebuild_all(everlog) == 0, "repeating it changes nothing"
        assert [(info.tag, info.events) for info in await everlog.tags()] == [("t", 15), ("u", 3)]

    async def test_a_view_that_is_lost(self, everlog: Everlog, time: AdvancingClock) -> None:
        """All rows, buckets and progress gone: rebuilt from the journals, and the next event goes on counting."""
        await self.fill(everlog, 8, journals=2)
        await replicate(everlog)
        tag = everlog.tag("t")
        before = await everything(tag)
        time.advance(7200)
        await self.fill(everlog, 1, tags=("other",))
        await replicate(everlog)
        assert await tag.drop() == 8
        assert await everything(tag) == []
        assert await tables_of(everlog).buckets("t", 0) == []
        await self.fill(everlog, 1, journals=2)
        await replicate(everlog)
        assert [event.number for event in await everything(tag)] == [5]
        assert await rebuild_all(everlog, ["t"]) == 8
        found = await everything(tag)
        assert found[:8] == before
        check_order(found)
        assert (await tag.verify()).right

    async def test_a_rebuild_after_deletes(self, everlog: Everlog) -> None:
        """What a journal no longer holds does not come back; numbers stay as they were."""
        orders = everlog.journal("orders")
        await self.fill(everlog, 6, journals=1)
        await orders.delete("o-0", to=2)
        await replicate(everlog)
        tag = everlog.tag("t")
        before = await everything(tag)
        assert [event.number for event in before] == [1, 2, 3, 4, 5, 6]
        await tag.drop()
        assert await rebuild_all(everlog) == 4
        assert await everything(tag) == before[2:]
        await orders.purge("o-0")
        await orders.append("o-0", [Event("new", tags={"t"})])
        await replicate(everlog)
        assert (await everything(tag))[-1].number == 7
        assert await rebuild_all(everlog) == 0
        assert (await tag.verify()) == Verified("t", 1, 1)

    async def test_what_was_there_before_the_order_began(self, everlog: Everlog) -> None:
        """Events of a time without views: a rebuild puts them before all others, with numbers below 1."""
        await self.fill(everlog, 4, journals=2)
        await replicate_without_views(everlog)
        await self.fill(everlog, 2, journals=2)
        await replicate(everlog)
        seen = await everything(everlog.tag("t"))
        assert len(seen) == 2
        assert await rebuild_all(everlog) == 4
        found = await everything(everlog.tag("t"))
        assert found[4:] == seen
        assert all(one.place < two.place for one, two in pairwise(found))
        for key in ("o-0", "o-1"):
            own = [event for event in found if event.id == key]
            assert [event.seq_nr for event in own] == [1, 2, 3]
            assert all(two.number == one.number + 1 for one, two in pairwise(own))
        assert await rebuild_all(everlog) == 0

    # By journal

    async def test_the_events_of_one_journal(self, everlog: Everlog) -> None:
        """Both ends are included; 0 is the beginning; deleted events are not there; a live read goes on."""
        orders = everlog.journal("orders")
        await orders.append("o", [Event(number) for number in range(1, 51)])
        await orders.delete("o", to=48)
        for settle in (False, True):
            if settle:
                await replicate(everlog)
            assert [e.seq_nr async for e in everlog.events_by_persistence_id("orders", "o", 0)] == [49, 50]
            assert [e.seq_nr async for e in everlog.events_by_persistence_id("orders", "o", 50, 70)] == [50]
        live = everlog.events_by_persistence_id("orders", "o", 49, 53, live=True)
        assert [event.seq_nr for event in await take(live, 2)] == [49, 50]
        await orders.append("o", [Event("next")])
        assert [event.seq_nr for event in await take(live, 1)] == [51]
        await orders.append("o", [Event("and"), Event("last"), Event("beyond")])
        assert [event.seq_nr async for event in live] == [52, 53]
        await orders.delete("o")
        assert [e.seq_nr async for e in everlog.events_by_persistence_id("orders", "o")] == []
        assert (await orders.append("o", [Event("more")])).range.first == 55

    async def test_a_gap_in_a_journal(self, everlog: Everlog) -> None:
        """Nothing can fill it later: an append below the journal's seqNr loses. So it is told at once, if asked."""
        orders = everlog.journal("orders")
        for numbers in ([1, 2], [4, 5]):
            await orders.append("o", [Event(number, seq_nr=number) for number in numbers])
        for live in (False, True):
            reading = everlog.events_by_persistence_id("orders", "o", live=live, gap_free=True)
            with pytest.raises(MissingEvent, match="seqNr 3") as failure:
                await take(reading, 5)
            assert (failure.value.expected, failure.value.found) == (3, 4)
        assert [e.seq_nr async for e in everlog.events_by_persistence_id("orders", "o")] == [1, 2, 4, 5]

    async def test_a_purge_ends_a_live_read(self, everlog: Everlog) -> None:
        orders = everlog.journal("orders")
        await orders.append("o", [Event(1), Event(2)])
        live = everlog.events_by_persistence_id("orders", "o", live=True)
        await take(live, 2)
        await orders.purge("o")
        await orders.append("o", [Event("new")])
        with pytest.raises(Overtaken, match="purged"):
            await take(live, 1)

    async def test_all_ids(self, everlog: Everlog) -> None:
        """The current ones, then new ones as they come; each once."""
        orders = everlog.journal("orders")
        live = everlog.persistence_ids("orders", live=True)
        first = asyncio.ensure_future(anext(live))
        await asyncio.sleep(0.05)
        await orders.append("a", [Event(1)])
        assert await asyncio.wait_for(first, PATIENCE) == "a"
        await orders.append("b", [Event(1)])
        assert await take(live, 1) == ["b"]
        assert sorted([found async for found in everlog.persistence_ids("orders")]) == ["a", "b"]
        await replicate(everlog)
        await orders.append("a", [Event(2)])
        await orders.append("c", [Event(1)])
        assert await take(live, 1) == ["c"]
        more = asyncio.ensure_future(anext(live))
        await orders.append("b", [Event(3)])
        done, _ = await asyncio.wait([more], timeout=0.2)
        assert not done
        more.cancel()

    @pytest.mark.parametrize(("bad", "name"), [((-1, 5), "seqNr"), ((5, 4), "seqNr"), ((0, 0), "seqNr")])
    async def test_bad_ranges(self, everlog: Everlog, bad: tuple[int, int], name: str) -> None:
        with pytest.raises(InvalidInput, match=name):
            everlog.events_by_persistence_id("orders", "o", *bad)
