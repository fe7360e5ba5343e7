"""What views by tag hold, whatever dies: every event once, at one place that never changes."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import pytest

from everlog.api import Everlog
from everlog.config import TopicConfig
from everlog.core.events import Event
from everlog.core.plan import NOTHING, TagPlan, Watermark
from everlog.core.tag_names import slice_of
from everlog.core.timeuuid import TimeUuid
from everlog.testing.replication import replicate
from everlog.testing.tag_support import (
    AdvancingClock,
    TagSuite,
    check_order,
    configured,
    everything,
    last_slice,
    payloads,
    tables_of,
)


class TagWriteSuite(TagSuite):
    """What is written, where, and what deletes do to it."""

    # What is written

    async def test_one_row_per_tag(self, everlog: Everlog) -> None:
        """An event with two tags: one row in each view, at the same offset, each with a number of its own."""
        orders = everlog.journal("orders")
        await orders.append("o", [Event(0, tags={"b"}), Event(1, tags={"a", "b"})])
        await replicate(everlog)
        (a,), b = await everything(everlog.tag("a")), await everything(everlog.tag("b"))
        assert (a.offset, a.number, a.seq_nr) == (b[1].offset, 1, 2)
        assert [(event.number, event.seq_nr) for event in b] == [(1, 1), (2, 2)]

    async def test_numbers_count_the_tagged_events(self, everlog: Everlog) -> None:
        """Of five events the second and the fourth carry the tag."""
        tags: list[set[str]] = [set(), {"t"}, set(), {"t"}, set()]
        await everlog.journal("orders").append("o", [Event(at, tags=found) for at, found in enumerate(tags)])
        await replicate(everlog)
        found = await everything(everlog.tag("t"))
        assert [(event.number, event.seq_nr) for event in found] == [(1, 2), (2, 4)]

    async def test_an_event_comes_back_whole(self, everlog: Everlog) -> None:
        """A view holds a full copy of the event, whatever its payload is."""
        orders, given = everlog.journal("orders"), [{"a": [1]}, "text", b"\x00\xff", None, ""]
        events = [Event(payload, tags={"t", "ü"}) for payload in given]
        await orders.append("ö", events, metadata={"m": 1}, header_metadata=[2], headers={"h": "v"})
        await replicate(everlog)
        found = await everything(everlog.tag("t"))
        assert [event.payload for event in found] == given
        assert {(event.topic, event.id, event.tags) for event in found} == {("orders", "ö", frozenset({"t", "ü"}))}
        direct = [event async for event in orders.read("ö")]
        for one, other in zip(found, direct, strict=True):
            assert one.offset == TimeUuid.parse(other.ordering or "").uuid
            assert msgspec.structs.replace(other, ordering=None) == one.event

    async def test_events_without_tags_are_in_no_view(self, everlog: Everlog) -> None:
        await everlog.journal("orders").append("o", [Event(1)])
        await replicate(everlog)
        assert await everlog.tags() == []
        assert [event.ordering async for event in everlog.journal("orders").read("o")] == [None]

    async def test_a_life_is_no_end(self, everlog: Everlog) -> None:
        """Numbers go on after a purge, so that no event of a new life looks like one of the old."""
        orders = everlog.journal("orders")
        await orders.append("o", [Event(1, tags={"t"})])
        await orders.purge("o")
        await orders.append("o", [Event(2, tags={"t"})])
        await replicate(everlog, batch=1)
        found = await everything(everlog.tag("t"))
        assert [(event.number, event.seq_nr, event.payload) for event in found] == [(1, 1, 1), (2, 1, 2)]

    @pytest.mark.parametrize("batch", [1, 2, 5, None])
    async def test_a_crash_after_every_batch(self, everlog: Everlog, batch: int | None) -> None:
        """The pipeline dies before it publishes, again and again: every event is in the view once, in order. Their
        writers never have to come back for that."""
        given = await self.fill(everlog, 20, journals=4)
        for leave in (3, 2, 1, 0):
            await replicate(everlog, leave=leave, batch=batch, publish=False)
            if leave % 2:
                await replicate(everlog, leave=leave, batch=batch)
        await replicate(everlog)
        found = await everything(everlog.tag("t"))
        check_order(found)
        assert sorted(event.payload for event in found) == given

    async def test_a_replay_changes_nothing(self, everlog: Everlog) -> None:
        """From any offset, in other batches, under other settings: the same rows at the same places."""
        await self.fill(everlog, 12)
        await replicate(everlog, batch=2)
        before = await everything(everlog.tag("t"))
        for start in range(4):
            await replicate(configured(everlog, bucket="minute", shards={"t": 3}), start=start, batch=3)
        assert await everything(everlog.tag("t")) == before

    async def test_a_crash_and_other_settings(self, everlog: Everlog) -> None:
        """Where rows go was decided before the crash; who repeats the batch under other settings keeps to it."""
        given = await self.fill(everlog, 6)
        await replicate(everlog, publish=False)
        await replicate(configured(everlog, bucket="minute", shards={"t": 3}))
        assert sorted(await payloads(everlog.tag("t"))) == given

    async def test_two_pipelines_at_once(self, everlog: Everlog) -> None:
        """Writes to the same view that overlap (nothing keeps them apart) give one row per event, in order."""
        given = await self.fill(everlog, 24, journals=5)
        await asyncio.gather(*(replicate(configured(everlog), batch=batch) for batch in (1, 2, 3)))
        found = await everything(everlog.tag("t"))
        check_order(found)
        assert sorted(event.payload for event in found) == given

    async def test_a_sleeper_who_wakes_up(self, everlog: Everlog) -> None:
        """What a pipeline does again long after others published it puts nothing below the watermark."""
        await self.fill(everlog, 6)
        await replicate(everlog, publish=False)
        await replicate(everlog)
        tag = everlog.tag("t")
        seen = await everything(tag)
        await replicate(everlog, start=0, publish=False)
        await self.fill(everlog, 3)
        await replicate(everlog, start=0)
        found = await everything(tag)
        assert found[: len(seen)] == seen
        assert len(found) == len(seen) + 3

    async def test_the_order_is_decided_once(self, everlog: Everlog) -> None:
        """A plan is added only behind the last one; a watermark never moves back; what was pinned first stays."""
        tables = tables_of(everlog)
        first, second = TagPlan(1, 10, {"a/0": (0, 3)}, 60_000), TagPlan(2, 20, {"a/0": (3, 4)}, 60_000, {"t": 2})
        assert await tables.plans(0) == []
        assert not await tables.add_plan(second)
        assert await tables.add_plan(first)
        assert not await tables.add_plan(msgspec.structs.replace(first, tick=99))
        assert await tables.add_plan(second)
        assert await tables.plans(0) == [first, second]
        assert await tables.plans(2) == [second]
        await tables.drop_plans(2)
        assert await tables.plans(0) == [second]
        assert not await tables.add_plan(second)
        assert await tables.add_plan(msgspec.structs.replace(second, nr=3))
        assert await tables.watermark() == NOTHING
        for nr in (1, 2, 1):
            await tables.publish(Watermark(nr, 10 * nr, {"a/0": nr}))
        assert await tables.watermark() == Watermark(2, 20, {"a/0": 2})
        assert await tables.pin("tag-test:1", "first", 1) == "first"
        assert await tables.pin("tag-test:1", "second", 2) == "first"
        assert await tables.settings("tag-test:") == {"tag-test:1": "first"}

    # Layout

    async def test_the_size_of_buckets_may_change(self, everlog: Everlog, time: AdvancingClock) -> None:
        """From hours to days and minutes, in the middle of one: one order, nothing lost, nothing twice."""
        given = []
        for number, size in enumerate(["hour", "day", "hour", "minute", "day", "minute"] * 2):
            await everlog.journal("orders").append(f"o-{number % 2}", [Event(number, tags={"t"})])
            await replicate(configured(everlog, bucket=size))
            time.advance(700)
            given.append(number)
        found = await everything(everlog.tag("t"))
        assert [event.payload for event in found] == given
        for at, event in enumerate(found):
            assert await everything(everlog.tag("t"), after=event.offset) == found[at + 1 :]

    async def test_a_hot_tag_may_have_shards(self, everlog: Everlog) -> None:
        """More or fewer of them later, or none: readers need not know."""
        given: list[int] = []
        for shards in ({}, {"t": 4}, {"t": 2}, {}, {"t": 4}):
            for number in range(8):
                await everlog.journal("orders").append(f"o-{number}", [Event(len(given), tags={"t"})])
                given.append(len(given))
            await replicate(configured(everlog, shards=shards), batch=3)
        for page_size in (2, 100):
            found = await everything(configured(everlog, page_size=page_size).tag("t"))
            check_order(found)
            assert sorted(event.payload for event in found) == given
            for at in range(0, len(found), 7):
                assert await everything(everlog.tag("t"), after=found[at].offset) == found[at + 1 :]

    async def test_slices(self, everlog: Everlog) -> None:
        """Every event of a topic with slices is in exactly one slice, tagged or not."""
        other = configured(everlog, topics={"orders": TopicConfig(slices=True)})
        for number in range(20):
            await other.journal("orders").append(f"o-{number}", [Event(number), Event(number, tags={"t"})])
            await other.journal("plain").append(f"p-{number}", [Event(number)])
        await replicate(other)
        whole = await everything(other.slices())
        assert {event.topic for event in whole} == {"orders"}
        assert len(whole) == 40
        assert all(one.place < two.place for one, two in pairwise(whole))
        parts = [event for first in (0, 100, 613) for event in await everything(other.slices(first, last_slice(first)))]
        assert sorted(parts, key=lambda event: event.place) == whole
        assert all(slice_of(event.id) >= 613 for event in await everything(other.slices(613, 1023)))
        assert [info.tag for info in await other.tags()] == ["t"]

    # Deletes

    async def test_deletes_leave_the_view_alone(self, everlog: Everlog) -> None:
        orders, given = everlog.journal("orders"), await self.fill(everlog, 6, journals=1)
        await replicate(everlog)
        await orders.delete("o-0", to=4)
        await replicate(everlog)
        assert [event.seq_nr async for event in orders.read("o-0")] == [5, 6]
        await orders.purge("o-0")
        await replicate(everlog)
        assert await payloads(everlog.tag("t")) == given

    @pytest.mark.parametrize("batch", [1, 3, None])
    async def test_deletes_may_reach_the_view(self, everlog: Everlog, batch: int | None) -> None:
        """Where deletes propagate, the view holds what the journal holds; numbers go on as if nothing had happened."""
        other = configured(everlog, topics={"orders": TopicConfig(on_delete="propagate", slices=True)})
        orders = other.journal("orders")
        await self.fill(other, 6, journals=2)
        await other.journal("kept").append("k", [Event("kept", tags={"t"})])
        await replicate(other, batch=batch)
        await orders.delete("o-0", to=2)
        await orders.append("o-0", [Event(6, tags={"t"}), Event(7, tags={"t"})])
        await orders.purge("o-1")
        await orders.append("o-1", [Event(8, tags={"t"})])
        await orders.delete("o-0", to=4)
        await other.journal("kept").delete("k")
        await replicate(other, batch=batch)
        found = {(event.id, event.payload): event.number for event in await everything(other.tag("t"))}
        assert found == {("o-0", 7): 5, ("o-1", 8): 4, ("k", "kept"): 1}
        assert {event.payload async for event in other.slices().current()} == {7, 8}
        progress = await tables_of(other).progress(orders.log_name, "o-0")
        assert (progress["t"].lowest, progress["t"].number, progress["t"].events) == (5, 5, 1)
        assert [(info.tag, info.events) for info in await other.tags()] == [("t", 3)]

    async def test_a_crash_before_a_delete_that_propagates(self, everlog: Everlog) -> None:
        """Rows of a batch that was never published, removed by the batch that repeats it: nothing is left over."""
        other = configured(everlog, topics={"orders": TopicConfig(on_delete="propagate")})
        await self.fill(other, 4, journals=1)
        await replicate(other, publish=False)
        await other.journal("orders").delete("o-0", to=3)
        await replicate(other)
        assert await payloads(other.tag("t")) == [3]
