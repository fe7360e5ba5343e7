"""Reading views by tag: as of now and live, from anywhere, however the store fares."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

from everlog.api import Everlog
from everlog.config import TagsConfig
from everlog.core.events import Event
from everlog.core.timeuuid import start_of
from everlog.errors import InvalidInput, InvalidOffset, InvalidTag, NotReplicated, Unreachable
from everlog.tags.tag import TaggedEvent
from everlog.testing.replication import replicate
from everlog.testing.tag_support import (
    PATIENCE,
    AdvancingClock,
    CountingTables,
    TagSuite,
    check_order,
    configured,
    everything,
    payloads,
    tag_through,
    take,
)


class TagReadSuite(TagSuite):
    """Reads, their input, and what is told about tags."""

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

    async def test_buckets_with_nothing_between(self, everlog: Everlog, time: AdvancingClock) -> None:
        """Rows in five buckets, far apart: all of them, in order, and only buckets that exist are asked for."""
        given = []
        for number in range(5):
            await everlog.journal("orders").append("o", [Event(number, tags={"t"})])
            await replicate(everlog)
            time.advance(3600 * 24 * 7 * number + 3600)
            given.append(number)
        counted = CountingTables(everlog.parts.store.tags)
        assert await payloads(tag_through(everlog, counted)) == given
        assert counted.calls == {"buckets": 1, "rows": 5, "watermark": 1}

    async def test_a_time_to_begin_at(self, everlog: Everlog, time: AdvancingClock) -> None:
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
        counted = CountingTables(everlog.parts.store.tags)
        tag = tag_through(configured(everlog, page_size=3), counted)
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
        counted = CountingTables(everlog.parts.store.tags)
        other = configured(everlog, poll_interval_s=0.05)
        tag = tag_through(other, counted)
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
            await everything(configured(everlog, token_timeout_s=0.05).tag("t"), after=token)
        reading = asyncio.create_task(payloads(everlog.tag("t"), after=str(token)))
        await asyncio.sleep(0.05)
        assert not reading.done()
        await replicate(everlog)
        assert await reading == [1]
        (event,) = await everything(everlog.tag("t"), token=token)
        assert await everything(everlog.tag("t"), after=event.offset, token=token) == []

    async def test_a_short_failure_of_the_store(self, everlog: Everlog) -> None:
        """The stream goes on: nothing is lost, nothing comes twice, no reader has to begin again."""
        given = await self.fill(everlog, 12, journals=1)
        await replicate(everlog)
        counted = CountingTables(everlog.parts.store.tags, fails_at={2, 3, 5})
        tag = tag_through(configured(everlog, page_size=3, min_retry_s=0.001), counted)
        assert await payloads(tag) == given
        assert counted.failed == 3
        patient = tag_through(
            configured(everlog, max_retries=1, min_retry_s=0.001), CountingTables(counted.inner, {1, 2, 3, 4})
        )
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

    # Bad input

    async def test_bad_input_is_refused(self, everlog: Everlog, time: AdvancingClock) -> None:
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
