"""What views by tag must do, on whatever store: every event once, in one order that never changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import pytest

from everlog.client import Everlog, make_parts
from everlog.config import TagsConfig, TopicConfig
from everlog.errors import InvalidInput, InvalidOffset, InvalidTag, MissingEvent, NotReplicated, Overtaken, Unreachable
from everlog.journal.events import Event
from everlog.journal.tag_names import slice_of
from everlog.store.tags import TagTables
from everlog.tags.plan import NOTHING, Plan, Watermark
from everlog.tags.tag import Tag, TaggedEvent, Tags
from everlog.tags.timeuuid import TimeUuid, start_of
from everlog.tags.upkeep import Refs, Verified, all_journals, rebuild_journal
from everlog.testing.replication import replicate

PATIENCE = 30.0


class Advancing(Protocol):
    """A clock that is moved by hand."""

    def now_ms(self) -> int: ...

    def advance(self, seconds: float) -> None: ...


def configured(log: Everlog, *, topics: dict[str, TopicConfig] | None = None, **tags: Any) -> Everlog:
    """The same log and store under other settings."""
    parts = log.parts
    config = msgspec.structs.replace(
        log.config, tags=msgspec.structs.replace(log.config.tags, **tags), topics=topics or log.config.topics
    )
    other = Everlog(config, clock=parts.clock)
    other._parts = make_parts(config, parts.log, parts.store, parts.clock)
    return other


async def everything(tag: Tag, **how: Any) -> list[TaggedEvent]:
    return [event async for event in tag.current(**how)]


async def payloads(tag: Tag, **how: Any) -> list[Any]:
    return [event.payload async for event in tag.current(**how)]


async def take(events: AsyncIterator[Any], count: int) -> list[Any]:
    """The next so many, which must come."""
    async with asyncio.timeout(PATIENCE):
        return [await anext(events) for _ in range(count)]


def check_order(events: Sequence[TaggedEvent]) -> None:
    """Offsets grow; per journal the seqNrs do (over one life), and the numbers count from 1."""
    assert all(one.place < two.place for one, two in pairwise(events))
    last: dict[tuple[str, str], int] = {}
    for event in events:
        key = (event.topic, event.id)
        assert event.number == last.get(key, 0) + 1
        last[key] = event.number


class TagConformance:
    """Subclass it with a fixture `everlog`: an open log of your own, with a clock that can be `advance`d."""

    @pytest.fixture
    def everlog(self) -> Any:
        raise NotImplementedError("give an open log with a clock that is moved by hand")

    @pytest.fixture
    def time(self, everlog: Everlog) -> Advancing:
        return everlog.parts.clock  # type: ignore[return-value]

    async def fill(self, log: Everlog, count: int, *, tags: Sequence[str] = ("t",), journals: int = 3) -> list[Any]:
        """So many events, over some journals; their payloads."""
        orders = log.journal("orders")
        for number in range(count):
            await orders.append(f"o-{number % journals}", [Event(number, tags=tags)])
        return list(range(count))

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
        """The pipeline dies before it publishes, again and again: every event is in the view once, in order. Whoever
        appended never has to come back for that."""
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
        tables = _tables(everlog)
        first, second = Plan(1, 10, {"a/0": (0, 3)}, 60_000), Plan(2, 20, {"a/0": (3, 4)}, 60_000, {"t": 2})
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

    # Reading

    async def test_an_empty_view(self, everlog: Everlog) -> None:
        """The current one ends, the live one stays open until something comes; a single event is not kept waiting for
        others to come (there is no buffer that would have to be flushed)."""
        assert await everything(everlog.tag("t")) == []
        live = everlog.tag("t").live()
        first = asyncio.ensure_future(anext(live))
        done, _ = await asyncio.wait([first], timeout=0.1)
        assert not done
        await self.fill(everlog, 1)
        await replicate(everlog)
        assert (await asyncio.wait_for(first, PATIENCE)).payload == 0
        await live.aclose()  # type: ignore[attr-defined]

    async def test_a_current_read_ends_where_it_began(self, everlog: Everlog) -> None:
        """Events that are written during the read are not delivered."""
        given = await self.fill(everlog, 6)
        await replicate(everlog)
        reading = everlog.tag("t").current()
        found = await take(reading, 1)
        await self.fill(everlog, 3)
        await replicate(everlog)
        found += [event async for event in reading]
        assert sorted(event.payload for event in found) == given

    async def test_every_offset_is_a_place_to_go_on(self, everlog: Everlog) -> None:
        """Exclusive, as UUID, text or place; the rest comes, and nothing else."""
        await self.fill(everlog, 9)
        await replicate(everlog, batch=2)
        tag = everlog.tag("t")
        found = await everything(tag)
        check_order(found)
        for at, event in enumerate(found):
            for after in (event.offset, str(event.offset), event.place):
                assert await everything(tag, after=after) == found[at + 1 :]

    async def test_buckets_with_nothing_between(self, everlog: Everlog, time: Advancing) -> None:
        """Rows in five buckets, far apart: all of them, in order, and only buckets that exist are asked for."""
        given = []
        for number in range(5):
            await everlog.journal("orders").append("o", [Event(number, tags={"t"})])
            await replicate(everlog)
            time.advance(3600 * 24 * 7 * number + 3600)
            given.append(number)
        counted = Counting(everlog.parts.store.tags)
        assert await payloads(_counted(everlog, counted)) == given
        assert counted.calls == {"buckets": 1, "rows": 5, "watermark": 1}

    async def test_a_time_to_begin_at(self, everlog: Everlog, time: Advancing) -> None:
        for number in range(4):
            await everlog.journal("orders").append("o", [Event(number, tags={"t"})])
            await replicate(everlog)
            time.advance(3600)
        found = await everything(everlog.tag("t"))
        for at, event in enumerate(found):
            since = datetime.fromtimestamp(event.place.ms / 1000, UTC)
            assert await payloads(everlog.tag("t"), since=since) == list(range(at, 4))

    async def test_a_slow_consumer_holds_one_page(self, everlog: Everlog) -> None:
        """Four rows, pages of three: all arrive. Who asks for two gets two, and no second page was read."""
        await self.fill(everlog, 8, journals=1)
        await replicate(everlog)
        counted = Counting(everlog.parts.store.tags)
        tag = _counted(configured(everlog, page_size=3), counted)
        async with aclosing(tag.current()) as reading:  # type: ignore[type-var]
            assert [event.payload for event in await take(reading, 2)] == [0, 1]
            assert counted.calls["rows"] == 1
            assert [event.payload for event in await take(reading, 2)] == [2, 3]
            assert counted.calls["rows"] == 2
        assert await payloads(tag) == list(range(8))

    async def test_a_live_reader_gets_everything_once(self, everlog: Everlog) -> None:
        live = everlog.tag("t").live()
        found: list[TaggedEvent] = []
        for _ in range(4):
            await self.fill(everlog, 5)
            await replicate(everlog, batch=2)
            found += await take(live, 5)
        await live.aclose()  # type: ignore[attr-defined]
        assert found == await everything(everlog.tag("t"))

    async def test_a_cancelled_reader_disturbs_no_other(self, everlog: Everlog) -> None:
        tag = everlog.tag("t")
        readers = [asyncio.create_task(take(tag.live(), 2)) for _ in range(4)]
        await asyncio.sleep(0.05)
        readers[0].cancel()
        await self.fill(everlog, 1)
        await replicate(everlog)
        readers[1].cancel()
        await self.fill(everlog, 1)
        await replicate(everlog)
        for found in await asyncio.gather(*readers[2:]):
            assert len(found) == 2
        assert len(await asyncio.gather(*readers, return_exceptions=True)) == 4

    async def test_readers_share_one_poll(self, everlog: Everlog) -> None:
        """However many wait, the watermark is asked for by one."""
        counted = Counting(everlog.parts.store.tags)
        other = configured(everlog, poll_interval=0.05)
        tag = _counted(other, counted)
        readers = [asyncio.create_task(take(tag.live(), 1)) for _ in range(20)]
        await asyncio.sleep(0.5)
        assert counted.calls["watermark"] <= 20 + 12
        await self.fill(everlog, 1)
        await replicate(everlog)
        assert len(await asyncio.gather(*readers)) == 20

    async def test_a_token_is_waited_for(self, everlog: Everlog) -> None:
        orders = everlog.journal("orders")
        token = await orders.append("o", [Event(1, tags={"t"})])
        with pytest.raises(NotReplicated, match="pipeline"):
            await everything(configured(everlog, token_timeout=0.05).tag("t"), after=token)
        reading = asyncio.create_task(payloads(everlog.tag("t"), after=str(token)))
        await asyncio.sleep(0.05)
        assert not reading.done()
        await replicate(everlog)
        assert await reading == [1]
        (event,) = await everything(everlog.tag("t"), token=token)
        assert await everything(everlog.tag("t"), after=event.offset, token=token) == []

    async def test_a_short_failure_of_the_store(self, everlog: Everlog) -> None:
        """The stream goes on: nothing is lost, nothing comes twice, nobody has to begin again."""
        given = await self.fill(everlog, 12, journals=1)
        await replicate(everlog)
        counted = Counting(everlog.parts.store.tags, fails_at={2, 3, 5})
        tag = _counted(configured(everlog, page_size=3, retry_first=0.001), counted)
        assert await payloads(tag) == given
        assert counted.failed == 3
        patient = _counted(configured(everlog, retries=1, retry_first=0.001), Counting(counted.inner, {1, 2, 3, 4}))
        with pytest.raises(Unreachable):
            await everything(patient)

    async def test_many_writers_and_many_readers(self, everlog: Everlog) -> None:
        """Each reader has every event once, all in the same order, in order per journal."""
        orders = everlog.journal("orders")

        async def write(writer: int) -> None:
            for number in range(30):
                await orders.append(f"w-{writer}", [Event((writer, number), tags={"t"})])

        readers = [asyncio.create_task(take(everlog.tag("t").live(), 300)) for _ in range(20)]
        writing = [asyncio.create_task(write(writer)) for writer in range(10)]
        while not all(task.done() for task in writing):
            await replicate(everlog)
            await asyncio.sleep(0)
        await replicate(everlog)
        found = await asyncio.gather(*readers)
        check_order(found[0])
        assert all(one == found[0] for one in found)
        assert len({tuple(event.payload) for event in found[0]}) == 300

    # Layout

    async def test_the_size_of_buckets_may_change(self, everlog: Everlog, time: Advancing) -> None:
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
        parts = [event for first in (0, 100, 613) for event in await everything(other.slices(first, _last(first)))]
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
        progress = await _tables(other).progress(orders.log_name, "o-0")
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

    # Listing

    async def test_all_tags_at_one_glance(self, everlog: Everlog) -> None:
        assert await everlog.tags() == []
        await self.fill(everlog, 5, tags=("a", "b"), journals=2)
        await self.fill(everlog, 1, tags=("a",), journals=1)
        await replicate(everlog)
        a, b = await everlog.tags()
        assert [(info.tag, info.events, info.journals) for info in (a, b)] == [("a", 6, 2), ("b", 5, 2)]
        for info in (a, b):
            last = (await everything(everlog.tag(info.tag)))[-1]
            assert info.last_offset == last.offset
            assert info.last_time == datetime.fromtimestamp(last.place.ms / 1000, UTC)

    # Upkeep

    async def test_drop_and_rebuild(self, everlog: Everlog, time: Advancing) -> None:
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

    async def test_a_view_that_is_lost(self, everlog: Everlog, time: Advancing) -> None:
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
        assert await _tables(everlog).buckets("t", 0) == []
        await self.fill(everlog, 1, journals=2)
        await replicate(everlog)
        assert [event.number for event in await everything(tag)] == [5]
        assert await rebuild_all(everlog, ["t"]) == 8
        found = await everything(tag)
        assert found[:8] == before
        check_order(found)
        assert (await tag.verify()).right

    async def test_a_rebuild_after_deletes(self, everlog: Everlog) -> None:
        """What a journal does not hold any more does not come back; numbers stay as they were."""
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
        await _without_views(everlog)
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

    # Bad input

    async def test_bad_input_is_refused(self, everlog: Everlog, time: Advancing) -> None:
        """With named errors, before anything is asked of the store."""
        for name in ("", "x" * 1025, "a\0b"):
            with pytest.raises(InvalidTag):
                everlog.tag(name)
        tag = everlog.tag("t")
        for after in ("cats", "", "6ba7b810-9dad-41d1-80b4-00c04fd430c8", 17):
            with pytest.raises(InvalidOffset):
                tag.current(after=after)  # type: ignore[arg-type]
        with pytest.raises(InvalidOffset):
            tag.live(since=datetime(2020, 1, 1))  # noqa: DTZ001
        with pytest.raises(InvalidInput):
            tag.current(after=start_of(0), since=datetime(2020, 1, 1, tzinfo=UTC))
        with pytest.raises(InvalidInput):
            everlog.slices(5, 4)
        with pytest.raises(InvalidOffset, match="future"):
            await everything(tag, after=start_of(time.now_ms() + 3_700_000))
        assert await everything(tag, after=start_of(time.now_ms() + 3_500_000)) == []
        with pytest.raises(ValueError, match="Day, Hour"):
            TagsConfig(bucket="week")

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


async def rebuild_all(log: Everlog, tags: Sequence[str] | None = None) -> int:
    """What the Spark job does, in this process."""
    parts, refs = log.parts, Refs(log.parts.store)
    written = 0
    async for place in all_journals(parts.store, parts.config):
        ref = await refs.of(*place)
        if ref is not None:
            written += await rebuild_journal(parts.store, parts.config, ref, tags)
    return written


async def _without_views(log: Everlog) -> None:
    """Replicate as a store without views does."""
    store = log.parts.store
    tables, store.tags = store.tags, None
    try:
        await replicate(log)
    finally:
        store.tags = tables


class Counting:
    """Tables that count what is asked of them; the reads with these numbers fail for a passing reason."""

    def __init__(self, inner: TagTables | None, fails_at: set[int] | None = None) -> None:
        assert inner is not None
        self.inner = inner
        self.calls: dict[str, int] = {"buckets": 0, "rows": 0, "watermark": 0}
        self.failed = 0
        self._fails_at = fails_at or set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name not in self.calls:
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name == "rows" and self.calls[name] in self._fails_at:
                self.failed += 1
                raise Unreachable("no answer")
            return await method(*args, **kwargs)

        return call


def _counted(log: Everlog, tables: Any) -> Tag:
    """The tag `t`, read through these tables."""
    tags = Tags(log.parts)
    tags.tables = tables
    tags.watermarks._tables = tables
    return tags.tag("t")


def _tables(log: Everlog) -> TagTables:
    tables = log.parts.store.tags
    assert tables is not None
    return tables


def _last(first: int) -> int:
    return {0: 99, 100: 612, 613: 1023}[first]
