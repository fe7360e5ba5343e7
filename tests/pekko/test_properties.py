"""Rows that appear late, in any order: each goes out once, each journal in order, and a restart sees the rest."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from everlog.pekko.events import ResumePoint
from tests.pekko.support import TAG, World, label
from tests.support import examples

DELAY = 5000


class Written(NamedTuple):
    """An event of a journal `ms` after the start, visible `late` ms after that."""

    pid: str
    number: int
    time: int
    late: int

    @property
    def name(self) -> str:
        return f"{self.pid}{self.number}"


@st.composite
def histories(draw: Any, most_late: int) -> list[Written]:
    """Events of a few journals, their times ascending, over a few minutes. Each journal's first may come any time."""
    numbers: dict[str, int] = {}
    time = draw(st.integers(0, 30_000))
    rows = []
    for _ in range(draw(st.integers(1, 14))):
        pid = draw(st.sampled_from("pqr"))
        numbers[pid] = numbers.get(pid, 0) + 1
        time += draw(st.sampled_from([1, 3, 40, 900, 4000, 11_000]))
        rows.append(Written(pid, numbers[pid], time, draw(st.integers(0, most_late))))
    return rows


def built(rows: list[Written], page_size: int, **changed: Any) -> World:
    """The same rows give the same places, so that a world can be built again and entered later."""
    world = World(
        bucket_ms=60_000, page_size=page_size, bucket_size="Minute", first_time_bucket="20231114T22:12", **changed
    )
    for row in rows:
        world.write(row.pid, row.number, row.time, seen=row.time + row.late)
    return world


def ascending(names: list[str]) -> bool:
    """Whether each journal's numbers ascend."""
    return all(
        [int(name[1:]) for name in names if name[0] == pid]
        == sorted({int(name[1:]) for name in names if name[0] == pid})
        for pid in "pqr"
    )


async def timed(world: World, stream: Any, until: int) -> list[tuple[Any, int]]:
    """Events with the time of their arrival."""
    found = []
    while more := await world.gather_one(stream, until):
        found.append((more[0], world.now))
    return found


page_sizes = st.integers(1, 4)
holds = st.sampled_from(["tag", "journal"])
refreshes = st.sampled_from([0.3, 1.0, 3.0])


@settings(max_examples=examples(50))
@given(histories(DELAY - 1), page_sizes, holds, refreshes)
def test_within_the_delay_all_come_once_and_in_the_order_of_time(rows, page_size, hold, refresh):
    """And nothing comes before its delay is over."""

    async def run() -> None:
        world = built(rows, page_size, hold=hold, refresh_interval=refresh)
        found = await timed(world, world.reader().tag(TAG).live(), rows[-1].time + 20_000)
        assert [label(one) for one, _ in found] == [row.name for row in rows]
        assert all(at >= row.time + DELAY for (_, at), row in zip(found, rows, strict=True))

    asyncio.run(run())


@settings(max_examples=examples(20))
@given(histories(DELAY - 1), page_sizes, holds, st.integers(0, 8000), st.sampled_from([0.0, 1.0]))
def test_within_the_delay_a_restart_from_each_offset_sees_the_rest(rows, page_size, hold, pause, new_pid):
    """Restarted right after the delivery or some time later, when other rows are still to appear."""
    changed = {"hold": hold, "new_persistence_id_scan_timeout": new_pid}
    end = rows[-1].time + 40_000

    async def run() -> None:
        world = built(rows, page_size, **changed)
        found = await timed(world, world.reader().tag(TAG).live(), end)
        assert len(found) == len(rows)
        for index, (one, at) in enumerate(found):
            again = built(rows, page_size, **changed)
            await again.sleep_through(at + pause)
            rest = await again.until(again.reader().tag(TAG).live(after=one.offset), end)
            expected = [row.name for row in rows[index + 1 :]]
            if hold == "journal" and new_pid:  # an unseen journal is given time, and only it waits
                assert ascending(rest)
                rest, expected = sorted(rest), sorted(expected)
            assert rest == expected

    asyncio.run(run())


LATER = {
    "gap_timeout": 40.0,
    "new_persistence_id_scan_timeout": 40.0,
    "back_track_long_interval": 6.0,
}


@settings(max_examples=examples(60))
@given(histories(20_000), page_sizes, holds, refreshes)
def test_beyond_the_delay_all_come_once_and_each_journal_in_order(rows, page_size, hold, refresh):
    """Gaps are searched, and what was passed is found by looking back; others are never skipped."""

    async def run() -> None:
        world = built(rows, page_size, hold=hold, refresh_interval=refresh, **LATER)
        found = await world.until(world.reader().tag(TAG).live(), rows[-1].time + 120_000)
        assert sorted(found) == sorted(row.name for row in rows)
        assert ascending(found)
        event("late" if found != [row.name for row in rows] else "in time")

    asyncio.run(run())


@settings(max_examples=examples(40))
@given(histories(20_000), page_sizes, refreshes)
def test_a_gap_holds_back_no_other_journal(rows, page_size, refresh):
    """With `hold="journal"`, a journal without late events is delivered as if it were alone."""

    async def run() -> None:
        world = built(rows, page_size, hold="journal", refresh_interval=refresh, **LATER)
        found = await timed(world, world.reader().tag(TAG).live(), rows[-1].time + 120_000)
        arrived = {label(one): at for one, at in found}
        for pid in "pqr":
            own = [row for row in rows if row.pid == pid]
            if all(row.late < DELAY for row in own):
                event("a journal in time")
                slack = 3000 + round(refresh * 1000)
                assert all(arrived[row.name] <= row.time + DELAY + slack for row in own)

    asyncio.run(run())


@settings(max_examples=examples(50))
@given(histories(20_000), page_sizes, holds, refreshes, st.integers(0, 13))
def test_a_restart_from_a_resume_repeats_nothing_and_loses_only_what_came_too_late(rows, page_size, hold, refresh, nth):
    """Whatever was visible within the delay, or lies behind all that went out, is delivered before the restart or after
    it, and nothing both times. But for a journal that is new to the second reader, which may begin later."""
    changed = {"hold": hold, "refresh_interval": refresh, **LATER}
    end = rows[-1].time + 60_000

    async def run() -> None:
        world = built(rows, page_size, **changed)
        found = await timed(world, world.reader().tag(TAG).live(), end)
        index = nth % len(rows)
        one, at = found[index]
        before = [label(other) for other, _ in found[: index + 1]]
        again = built(rows, page_size, **changed)
        await again.sleep_through(at)
        resume = ResumePoint.parse(str(one.resume))
        event("others are ahead" if resume.last else "a plain offset")
        rest = await again.until(again.reader().tag(TAG).live(after=resume), end + 60_000)
        assert ascending(before + rest)
        lost = {row.name for row in rows} - {*before, *rest}
        reached = max(row.time for row in rows if row.name in before)
        begun = {row.pid: row.number for row in reversed(rows) if row.name in rest}  # a journal's first may be any then
        for row in rows:
            if row.name in lost:
                assert row.late >= DELAY
                assert row.time <= reached or row.number < begun.get(row.pid, 0)

    asyncio.run(run())


@pytest.mark.parametrize("hold", ["tag", "journal"])
def test_a_current_query_delivers_all_that_was_visible(hold):
    """Exhaustively: three rows of two journals, each visible at once or only when the query runs already."""

    async def run() -> None:
        for lates in [(a, b, c) for a in (0, 2500) for b in (0, 2500) for c in (0, 2500)]:
            world = World(hold=hold)
            for pid, number, late in zip("pqp", (1, 1, 2), lates, strict=True):
                world.write(pid, number, -500 + number, seen=-500 + number + late)
            found = await world.until(world.reader().tag(TAG).current(), 60_000)
            assert sorted(found) == ["p1", "p2", "q1"]
            assert world.now == DELAY

    asyncio.run(run())
