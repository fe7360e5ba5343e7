"""Reading by tag with a delay, in virtual time: order, pages, offsets, gaps."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from everlog.errors import AccessDenied, EventsMissing, InvalidOffset, TooManyMissing, Unreachable
from everlog.pekko.delivered import DeliveredNumbers
from everlog.pekko.events import ResumePoint
from everlog.pekko.gap_search import GapSearch, SearchRound
from everlog.pekko.key_scans import FirstLook
from everlog.pekko.port import (
    AskQuery,
    Deliver,
    FetchRows,
    FindBuckets,
    ListBuckets,
    Now,
    ReadKeys,
    ReadRows,
    RowPage,
    Wait,
)
from everlog.pekko.settings import StageSettings
from everlog.pekko.tag_stage import TagStage
from everlog.pekko.time_buckets import first_place, last_place, offset_of, unix_ms
from tests.pekko.support import BUCKET, HOUR, TAG, World, everything, label
from tests.support import START_MS

DELAY = 5000
BOTH = pytest.mark.parametrize("hold", ["tag", "journal"])


@pytest.mark.case("tags-and-projections", 25)
async def test_an_empty_tag():
    """The current query completes, after the delay; the live one stays open."""
    world = World()
    assert await everything(world.reader().tag(TAG).current()) == []
    assert world.now == DELAY
    assert await world.until(world.reader().tag(TAG).live(), 60_000) == []
    assert world.now == 60_000


@pytest.mark.case("tags-and-projections", 26)
async def test_nothing_is_delivered_before_the_delay_is_over():
    """An event of time T comes at T + delay or at the first poll after that."""
    world = World()
    world.write("p", 1, 100)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 100 + DELAY - 1) == []
    assert await world.until(stream, 100 + DELAY + 3000) == ["p1"]


@pytest.mark.case("tags-and-projections", 27)
async def test_a_current_query_ends_where_it_began():
    """Events with later times, written while it runs, are left out; one that became visible late is not."""
    world = World()
    world.write("p", 1, -1000)
    world.write("p", 2, -10, seen=4000)
    world.write("p", 3, 1, seen=1)
    world.write("p", 4, 2000, seen=2000)
    assert await everything(world.reader().tag(TAG).current()) == ["p1", "p2"]
    assert world.now == DELAY


@pytest.mark.case("tags-and-projections", 28)
async def test_pages_follow_demand():
    """Four rows with pages of three: all four arrive. With a demand of two, two arrive, and nothing more is read."""
    world = World()
    for number in range(1, 5):
        world.write("p", number, number - 60_000)
    assert await everything(world.reader().tag(TAG).current()) == ["p1", "p2", "p3", "p4"]

    now = Now(START_MS, 0)
    stage = TagStage(TAG, StageSettings.of(world.config), now, live=True)
    asked = []
    while isinstance((effects := stage.step(now, 2))[0], AskQuery):
        query = effects[0].query
        asked.append(query)
        stage.answer(await answer(world, query), now)
    assert [label(effect.event) for effect in effects] == ["p1", "p2"]
    assert stage.step(now, 0) == []
    assert [query.cursor for query in asked if isinstance(query, ReadRows)] == [None]
    (effect,) = stage.step(now, 2)
    assert label(effect.event) == "p3"
    (ask,) = stage.step(now, 2)
    assert ask.query.cursor is not None


@pytest.mark.case("tags-and-projections", 29)
async def test_empty_buckets_between_are_walked_over():
    """Rows in five buckets of nine, from the beginning: all, in order."""
    world = World(first_time_bucket="20231114T12:00")
    times = [-9 * HOUR, -7 * HOUR, -6 * HOUR, -2 * HOUR, -10_000]
    for number, time in enumerate(times, 1):
        world.write("p", number, time)
        world.write("q", number, time + 1)
    found = await everything(world.reader().tag(TAG).current())
    assert found == [f"{pid}{number}" for number in range(1, 6) for pid in "pq"]
    buckets = [query.bucket for query in world.tables.asked if isinstance(query, ReadRows)]
    assert buckets == sorted(buckets)
    # Those with rows, after each an empty one or the next with rows, and this one.
    assert len(set(buckets)) <= 8


async def test_years_without_events_are_skipped():
    """From the original's first bucket in 2015: buckets that exist are found a hundred at a time."""
    world = World(first_time_bucket="20151120T00:00", back_track_interval="off", back_track_long_interval="off")
    for number, days in enumerate((900, 899, 300, 1), 1):
        world.write("p", number, -days * 24 * HOUR)
    start = world.write("q", 1, -800 * 24 * HOUR)
    assert await everything(world.reader().tag(TAG).current()) == ["p1", "p2", "q1", "p3", "p4"]
    hours = (START_MS - 1447977600000) // HOUR
    assert len(world.tables.asked) < hours / 100 + 20
    world.tables.asked.clear()
    assert await everything(world.reader().tag(TAG).current(after=offset_of(start.key.place))) == ["p3", "p4"]
    assert len(world.tables.asked) < 800 * 24 / 100 + 20


MINUTES = {
    "bucket_size": "Minute",
    "first_time_bucket": "20151120T00:00",
    "back_track_interval": "off",
    "back_track_long_interval": "off",
}


async def test_millions_of_empty_buckets_are_not_walked():
    """Eight years by the minute: the table's buckets are listed once, for the start and for every silence after it."""
    world = World(bucket_ms=60_000, **MINUTES)
    for number, hours in enumerate((30_000, 29_000, 25_000, 24_000, 3), 1):
        world.write("p", number, -hours * HOUR)
    names = [f"p{number}" for number in range(1, 6)]
    assert await everything(world.reader().tag(TAG).current()) == names
    assert sum(isinstance(query, ListBuckets) for query in world.tables.asked) == 1
    assert len(world.tables.asked) < 60


@pytest.mark.parametrize("trouble", ["long", "refused"])
async def test_without_a_list_buckets_are_asked_for_in_order(trouble):
    """Other tags have more buckets than are worth listing, or the server refuses: it takes longer, nothing is lost."""
    world = World(bucket_ms=60_000, **{**MINUTES, "first_time_bucket": "20230901T00:00"})
    for number, hours in enumerate((900, 400, 3), 1):
        world.write("p", number, -hours * HOUR)
    if trouble == "long":
        world.tables.other_buckets = set(range(0, 60_000 * 10_000, 60_000))
    else:
        refused = AccessDenied("no list")
        world.tables.failing = lambda query: refused if isinstance(query, ListBuckets) else None
    assert await everything(world.reader().tag(TAG).current()) == ["p1", "p2", "p3"]
    lists = sum(isinstance(query, ListBuckets) for query in world.tables.asked)
    assert lists < (2 if trouble == "refused" else 30)


@pytest.mark.case("tags-and-projections", 30)
async def test_an_offset_is_exclusive():
    """From event k's offset, or its `resume`: k is not delivered, k + 1 is; in an old bucket as in this one."""
    for time in (-3 * HOUR, -60_000):
        world = World(first_time_bucket="20231114T12:00")
        for number in range(1, 6):
            world.write("p", number, time + number)
        events = [event async for event in world.reader().tag(TAG).current()]
        for index, event in enumerate(events):
            rest = [f"p{number}" for number in range(index + 2, 6)]
            assert await everything(world.reader().tag(TAG).current(after=event.offset)) == rest
            assert event.resume == ResumePoint(event.offset, {})
            assert await everything(world.reader().tag(TAG).current(after=ResumePoint.parse(str(event.resume)))) == rest
        assert events[0].timestamp == START_MS + time + 1


@BOTH
@pytest.mark.case("tags-and-projections", 31)
async def test_a_gap_is_waited_for(hold):
    """1, 2, 4 of p and 1 of q: p4 is held until 3 is there, then 3 and 4 follow in order."""
    world = World(hold=hold)
    for pid, number, time in (("p", 1, 1), ("p", 2, 2), ("q", 1, 3), ("p", 4, 5)):
        world.write(pid, number, time)
    world.write("p", 3, 4, seen=12_000)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 11_999) == ["p1", "p2", "q1"]
    assert await world.until(stream, 20_000) == ["p3", "p4"]


async def test_a_gap_holds_back_every_journal_or_only_its_own():
    """With `hold="journal"` other journals go on, in order; nothing of them is skipped, nothing comes twice."""
    for hold, early in (("tag", []), ("journal", ["q1", "q2", "q3", "q4", "q5"])):
        world = World(hold=hold)
        world.write("p", 1, 1)
        world.write("p", 3, 3)
        world.write("p", 2, 2, seen=13_000)
        for number in range(1, 6):
            world.write("q", number, 10 * number)
        stream = world.reader().tag(TAG).live()
        assert await world.until(stream, 12_900) == ["p1", *early]
        late = ["p2", "p3"]
        assert await world.until(stream, 30_000) == (late if early else [*late, "q1", "q2", "q3", "q4", "q5"])


async def test_a_journal_that_is_held_back_may_have_another_gap():
    world = World(hold="journal")
    for number in (1, 3, 5, 6):
        world.write("p", number, number)
    world.write("p", 2, 2, seen=10_000)
    world.write("p", 4, 4, seen=15_000)
    world.write("q", 1, 7)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 9999) == ["p1", "q1"]
    assert await world.until(stream, 14_000) == ["p2", "p3"]
    assert await world.until(stream, 30_000) == ["p4", "p5", "p6"]


@BOTH
@pytest.mark.case("tags-and-projections", 32)
async def test_a_gap_that_stays_fails_the_stream(hold):
    """After the gap time-out: the error names the tag, what is missing of whom, and where."""
    world = World(hold=hold)
    rows = {number: world.write("p", number, number) for number in (1, 2, 4, 6)}
    world.write("p", 5, 5)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, DELAY + 3000) == ["p1", "p2"]
    begun = world.now
    with pytest.raises(EventsMissing) as raised:
        await world.until(stream, 60_000)
    error = raised.value
    assert (error.tag, error.missing) == (TAG, {"p": [3]})
    assert (error.min_offset, error.max_offset) == (offset_of(rows[2].key.place), offset_of(rows[4].key.place))
    assert begun - 3000 + 10_000 <= world.now <= begun + 10_000
    with pytest.raises(EventsMissing):
        await anext(stream)


async def test_one_last_look_is_made_at_the_deadline():
    """The event appears just before the deadline, between two polls: it is found."""
    world = World(gap_timeout=10.0, refresh_interval=7.0, eventual_consistency_delay=0.0, back_track_interval="off",
                  back_track_long_interval="off")  # fmt: skip
    world.write("p", 1, -60_000)
    world.write("p", 3, -50_000)
    world.write("p", 2, -55_000, seen=9990)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 9999) == ["p1"]
    assert await world.until(stream, 10_001) == ["p2", "p3"]


async def test_a_slow_consumer_does_not_turn_a_gap_into_an_error():
    """Nobody asked while the deadline passed: there is still one look before the stream fails."""
    world = World()
    world.write("p", 1, 1)
    world.write("p", 3, 3)
    world.write("q", 1, 2)
    world.write("p", 2, 2, seen=15_000)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 9000) == ["p1", "q1"]
    await world.sleep_through(40_000)
    assert await world.until(stream, 41_000) == ["p2", "p3"]


@BOTH
@pytest.mark.case("tags-and-projections", 34)
async def test_a_search_looks_into_two_buckets(hold):
    """The missing event is in the previous bucket: found. Two buckets back: not, and the stream fails."""
    for back, found in ((1, True), (2, False)):
        world = World(hold=hold, back_track_interval="off", back_track_long_interval="off")
        world.write("p", 1, -2 * HOUR)
        world.write("p", 3, -10_000)
        world.write("p", 2, -back * HOUR + 1, seen=8000)
        stream = world.reader().tag(TAG).live()
        assert await world.until(stream, 7999) == ["p1"]
        if found:
            assert await world.until(stream, 60_000) == ["p2", "p3"]
        else:
            with pytest.raises(EventsMissing):
                await world.until(stream, 60_000)


@pytest.mark.case("tags-and-projections", 35)
async def test_too_many_missing_fail_at_once():
    """From 1 to 10,000: the stream fails with 9,998 missing and does not look for them."""
    world = World()
    world.write("p", 1, -60_000)
    world.write("p", 10_000, -59_000)
    with pytest.raises(TooManyMissing) as raised:
        await everything(world.reader().tag(TAG).current())
    assert (raised.value.tag, raised.value.persistence_id, raised.value.count) == (TAG, "p", 9998)
    assert world.now == 0
    assert not [query for query in world.tables.asked if isinstance(query, ReadKeys)]


@pytest.mark.case("tags-and-projections", 37)
async def test_a_first_look_behind_an_offset():
    """6 and 7 are visible, 5 appears within the scanning period: 5 is the first delivered."""
    world = World(eventual_consistency_delay=0.0)
    first = world.write("p", 4, -1000)
    world.write("p", 6, -800)
    world.write("p", 7, -700)
    world.write("p", 5, -600, seen=150)  # its writer's clock is ahead: without the look, 6 would be taken as the first
    found = await world.until(world.reader().tag(TAG).live(after=offset_of(first.key.place)), 20_000)
    assert found == ["p5", "p6", "p7"]

    world = World(eventual_consistency_delay=0.0, offset_scanning_period=0.0)
    first = world.write("p", 4, -1000)
    world.write("p", 6, -800)
    world.write("p", 7, -700)
    world.write("p", 5, -600)
    found = await world.until(world.reader().tag(TAG).live(after=offset_of(first.key.place)), 20_000)
    assert found == ["p6", "p7"]


async def test_a_first_look_does_not_hide_what_appears_after_it():
    """A lower number that becomes visible within the delay, but after the look, is delivered first all the same."""
    world = World()
    first = world.write("p", 4, -2000)
    world.write("p", 5, -1000, seen=3000)
    world.write("p", 6, -900)
    stream = world.reader().tag(TAG).live(after=offset_of(first.key.place))
    assert await world.until(stream, 20_000) == ["p5", "p6"]


@BOTH
@pytest.mark.case("tags-and-projections", 38)
async def test_an_unseen_journal_may_be_given_time(hold):
    """Number 2 is the first visible one: with 1 in time, 1 and 2; otherwise 2 after about 600 ms."""
    for seen in (8500, None):
        world = World(hold=hold, new_persistence_id_scan_timeout=0.6, refresh_interval=1.0)
        world.write("p", 2, 3000)
        if seen is not None:
            world.write("p", 1, 2990, seen=seen)
        stream = world.reader().tag(TAG).live()
        assert await world.until(stream, 8599) == []
        assert await world.until(stream, 8601) == (["p2"] if seen is None else ["p1", "p2"])


async def test_a_journal_whose_beginning_is_gone_is_read_from_where_it_begins():
    """From the very start, by default: one look for the lower numbers, then what is there is accepted."""
    world = World()
    for number in (7, 8):
        world.write("p", number, number - 60_000)
    assert await everything(world.reader().tag(TAG).current()) == ["p7", "p8"]
    assert len([query for query in world.tables.asked if isinstance(query, ReadKeys)]) > 0


@pytest.mark.case("tags-and-projections", 39)
@BOTH
async def test_late_events_of_a_silent_journal_are_found_by_looking_back(hold):
    """p is delivered up to 2, q moves the position on, then 3, 4, 5 of p appear with older times."""
    world = World(hold=hold)
    for pid, number, time in (("p", 1, 1), ("p", 2, 2), ("q", 1, 2000)):
        world.write(pid, number, time)
    for number in (3, 4, 5):
        world.write("p", number, 1000 + number, seen=12_000)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 11_999) == ["p1", "p2", "q1"]
    assert await world.until(stream, 13_001) == ["p3", "p4", "p5"]
    assert await world.until(stream, 60_000) == []


@pytest.mark.case("tags-and-projections", 40)
async def test_the_long_look_back_finds_what_the_short_one_does_not():
    """An event older than the short period, in the previous bucket: only after the long interval."""
    world = World()
    world.write("p", 1, -HOUR)
    world.write("q", 1, -10_000)
    world.write("p", 2, -HOUR + 1, seen=20_000)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 119_000) == ["p1", "q1"]
    assert await world.until(stream, 122_000) == ["p2"]


@BOTH
@pytest.mark.case("tags-and-projections", 41)
async def test_late_events_of_several_journals_come_in_the_order_of_time(hold):
    world = World(hold=hold)
    for pid in "pqr":
        world.write(pid, 1, 1)
    world.write("r", 2, 3000)
    for pid, number, time in (("p", 2, 1000), ("q", 2, 1010), ("q", 3, 1020), ("p", 3, 1030), ("q", 4, 1040)):
        world.write(pid, number, time, seen=15_000)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 14_999) == ["p1", "q1", "r1", "r2"]
    assert await world.until(stream, 20_000) == ["p2", "q2", "q3", "p3", "q4"]


@BOTH
async def test_a_look_back_skips_nothing_of_other_journals(hold):
    """Late events are found while rows of others wait to be read: these follow, each once, in order."""
    world = World(hold=hold, refresh_interval=60.0)
    world.write("p", 1, 1)
    world.write("q", 1, 2000)
    world.write("p", 2, 1000, seen=40_000)
    for number in range(2, 8):
        world.write("q", number, 33_000 + number, seen=33_000 + number)
    stream = world.reader().tag(TAG).live()
    found = await world.until(stream, 200_000)
    assert [name for name in found if name[0] == "q"] == [f"q{number}" for number in range(1, 8)]
    assert found.index("p2") < found.index("q2") or found[-1] == "p2"
    assert sorted(found) == sorted({*found})


@pytest.mark.case("tags-and-projections", 42)
async def test_a_repeated_number_is_dropped_with_a_warning(caplog):
    """A second row with a lower number: dropped, said once and not at every poll, and the stream goes on."""
    world = World()
    for number, time in ((1, 1), (2, 2), (2, 3), (1, 4), (3, 5)):
        world.write("p", number, time)
    with caplog.at_level(logging.WARNING):
        assert await world.until(world.reader().tag(TAG).live(), 60_000) == ["p1", "p2", "p3"]
    assert len([record for record in caplog.records if "comes again" in record.getMessage()]) == 2


@BOTH
async def test_a_clock_that_was_off_does_not_hide_an_event(hold):
    """Number 2 carries a later time than 3, or an earlier one than 1: found all the same, in the journal's order."""
    for time in (20, -5000):
        world = World(hold=hold)
        world.write("p", 1, 1)
        world.write("p", 3, 10)
        world.write("q", 1, 15)
        world.write("p", 2, time, seen=15_000 if time < 0 else time)
        found = await world.until(world.reader().tag(TAG).live(), 60_000)
        assert [name for name in found if name[0] == "p"] == ["p1", "p2", "p3"]
        assert found.count("q1") == 1


@pytest.mark.case("tags-and-projections", 44)
async def test_a_failed_read_is_tried_again_inside():
    """Every query fails twice of three tries: the same events, no loss, no repetition."""
    world = World(gap_timeout=60.0, retry_attempts=3)
    for pid, number, time in (("p", 1, 1), ("q", 1, 2), ("p", 2, 3), ("p", 4, 5), ("q", 2, 6)):
        world.write(pid, number, time)
    world.write("p", 3, 4, seen=40_000)
    tries: dict[object, int] = {}

    def fail(query: object) -> Unreachable | None:
        tries[query] = tries.get(query, 0) + 1
        return Unreachable("no answer") if tries[query] <= 2 else None

    world.tables.failing = fail
    found = await world.until(world.reader().tag(TAG).live(), 300_000)
    assert found == ["p1", "q1", "p2", "p3", "p4", "q2"]
    assert any(isinstance(query, FetchRows) for query in world.tables.asked)


async def test_retries_end_after_so_many_and_at_once_if_they_cannot_help():
    world = World(retry_attempts=4, back_track_interval="off", back_track_long_interval="off")
    world.tables.failing = lambda query: Unreachable("no answer")
    with pytest.raises(Unreachable):
        await everything(world.reader().tag(TAG).current())
    assert len(world.tables.asked) == 4
    assert 7000 <= world.now <= 7000 * 1.1 + 3
    world.tables.asked.clear()
    world.tables.failing = lambda query: AccessDenied("no right")
    with pytest.raises(AccessDenied):
        await everything(world.reader().tag(TAG).current())
    assert len(world.tables.asked) == 1


async def test_a_failed_look_back_is_no_failure_of_the_stream():
    world = World(retry_attempts=1)
    world.write("p", 1, 1)
    world.write("q", 1, 3000)
    world.write("p", 2, 1000, seen=20_000)
    world.tables.failing = lambda query: (
        Unreachable("no answer") if isinstance(query, ReadKeys) and 15_000 < world.now < 30_000 else None
    )
    found = await world.until(world.reader().tag(TAG).live(), 40_000)
    assert found == ["p1", "q1", "p2"]


async def test_silent_journals_are_forgotten_but_never_delivered_again():
    """After two hours of silence p is unknown; its next number is taken as it is, and what went out stays out."""
    for limit in (5000, 3):
        world = World(max_missing_to_search=limit, refresh_interval=60.0, back_track_interval=30.0)
        for number in range(1, 6):
            world.write("p", number, number)
        world.write("q", 1, 10)
        world.write("p", 6, 5 * HOUR, seen=5 * HOUR)
        world.write("q", 2, HOUR, seen=HOUR)
        world.write("q", 3, 6 * HOUR, seen=6 * HOUR)
        found = await world.until(world.reader().tag(TAG).live(), 8 * HOUR)
        assert found == ["p1", "p2", "p3", "p4", "p5", "q1", "q2", "p6", "q3"]


async def test_a_short_memory_does_not_deliver_again():
    """Even with a clean-up far below two buckets, a look back does not take known events for new ones."""
    world = World(cleanup_old_persistence_ids=10.0)
    for number in range(1, 4):
        world.write("p", number, number)
    world.write("p", 4, 600_000, seen=600_000)
    assert await world.until(world.reader().tag(TAG).live(), 900_000) == ["p1", "p2", "p3", "p4"]


async def test_an_offset_query_does_not_go_back_behind_its_offset():
    """A look back that sees an unknown journal does not deliver its events from before the offset."""
    world = World()
    for number in range(1, 4):
        world.write("p", number, -5000 + number)
    start = world.write("q", 1, -4000)
    world.write("q", 2, 3000)
    world.write("p", 4, 2500, seen=20_000)
    found = await world.until(world.reader().tag(TAG).live(after=offset_of(start.key.place)), 60_000)
    assert found == ["q2", "p4"]


async def test_what_is_held_back_survives_a_restart():
    """With `hold="journal"`: the `resume` of an event that overtook leads to the rest, each event once."""
    world = World(hold="journal")
    world.write("p", 1, 1)
    world.write("p", 3, 3)
    world.write("p", 4, 30)
    world.write("p", 2, 2, seen=13_000)
    for number in range(1, 5):
        world.write("q", number, 10 * number)
    stream = world.reader().tag(TAG).live()
    events = await world.gather(stream, 12_000)
    assert [label(event) for event in events] == ["p1", "q1", "q2", "q3", "q4"]
    everything_there = {"p1", "p2", "p3", "p4", "q1", "q2", "q3", "q4"}
    for index, event in enumerate(events[1:], 1):  # the first went out before the gap was seen
        resumed = world.reader().tag(TAG).live(after=ResumePoint.parse(str(event.resume)))
        rest = await world.until(resumed, world.now + 40_000)
        assert sorted([*map(label, events[: index + 1]), *rest]) == sorted(everything_there)
        assert [name for name in rest if name[0] == "p"] == ["p2", "p3", "p4"]
    assert events[-1].resume.last == {"p": 1, "q": 4}


async def test_a_jump_of_the_calendar_is_no_time_out():
    """The wall clock jumps an hour ahead while a gap is open: the search still has its ten seconds."""
    settings = StageSettings.of(World(back_track_interval="off", back_track_long_interval="off").config)
    world = World()
    world.write("p", 1, -9000)
    world.write("p", 3, -8000)
    stage = TagStage(TAG, settings, Now(START_MS, 0), live=True)
    jumped = Now(START_MS + HOUR, 4000)
    for now in (Now(START_MS, 0), Now(START_MS, 1), Now(START_MS, 2), jumped):
        for _ in range(30):
            (effect,) = stage.step(now, 1)
            if isinstance(effect, AskQuery):
                stage.answer(await answer(world, effect.query), now)
            elif isinstance(effect, Wait):
                break
            else:
                assert isinstance(effect, Deliver)
                assert label(effect.event) == "p1"
    assert isinstance(effect, Wait)


async def answer(world: World, query: object) -> RowPage[object]:
    tables = world.tables
    ask = {ReadRows: tables.rows, FindBuckets: tables.buckets, ReadKeys: tables.keys, FetchRows: tables.fetch}
    return await ask[type(query)](query)


async def test_a_search_reads_keys_and_only_the_payloads_that_it_needs():
    world = World(page_size=100)
    world.tables.page_size = 100
    world.write("p", 1, 1)
    world.write("p", 4, 60)
    for number in range(1, 50):
        world.write("q", number, number + 1)
    for number in (2, 3):
        world.write("p", number, 20 + number, seen=14_000)
    stream = world.reader().tag(TAG).live()
    found = await world.until(stream, 30_000)
    assert len(found) == 53
    fetched = [key for query in world.tables.asked if isinstance(query, FetchRows) for key in query.keys]
    assert [(key.persistence_id, key.tag_seq_nr) for key in fetched] == [("p", 2), ("p", 3)]


def test_a_search_in_an_old_bucket_of_an_offset_query_is_not_made():
    """With an offset and a bucket of the past, the first number of a journal is accepted even if time is given."""
    settings = StageSettings.of(World(new_persistence_id_scan_timeout=5.0).config)
    world = World()
    row = world.write("p", 9, -2 * HOUR)
    now = Now(START_MS, 0)
    stage = TagStage(TAG, settings, now, live=True, after=first_place(START_MS - 2 * HOUR - 1000))
    (effect,) = stage.step(now, 1)
    assert isinstance(effect, AskQuery)
    stage.answer(RowPage([row]), now)
    (effect,) = stage.step(now, 1)
    assert isinstance(effect, Deliver)
    assert effect.event.tag_seq_nr == 9
    assert effect.event.timestamp == unix_ms(row.key.place)


@BOTH
async def test_a_restart_after_a_clock_that_was_off(hold):
    """Number 2 has a later time than 3 and q1: going on from any event's `resume` repeats nothing and loses nothing."""
    world = World(hold=hold)
    for pid, number, time in (("p", 1, 1), ("p", 3, 10), ("q", 1, 15), ("p", 2, 20), ("q", 2, 30)):
        world.write(pid, number, time)
    events = await world.gather(world.reader().tag(TAG).live(), 30_000)
    names = [label(event) for event in events]
    assert sorted(names) == ["p1", "p2", "p3", "q1", "q2"]
    for index, event in enumerate(events[1:], 1):
        rest = await world.until(world.reader().tag(TAG).live(after=event.resume), world.now + 30_000)
        assert sorted(names[: index + 1] + rest) == sorted(names)


@BOTH
async def test_a_resume_never_lies_behind_the_last_event(hold):
    """A late event went out when the read was in the next bucket already. Another one appears while no reader runs."""
    minutes: dict[str, Any] = {"bucket_ms": 60_000, "bucket_size": "Minute", "first_time_bucket": "20231114T22:12"}
    world = World(hold=hold, back_track_long_interval=2.0, **minutes)
    world.write("p", 1, 30_000)
    world.write("q", 1, 32_000)
    world.write("p", 2, 31_000, seen=46_500)  # the next bucket begins at 40 s, and is read from 45 s on
    events = await world.gather(world.reader().tag(TAG).live(), 60_000)
    assert [label(event) for event in events] == ["p1", "q1", "p2"]
    assert events[-1].resume.after == events[1].offset
    world.write("q", 2, 39_000)
    assert await world.until(world.reader().tag(TAG).live(after=events[-1].resume), 90_000) == ["q2"]


async def test_an_unseen_journal_far_ahead_is_no_error_behind_an_offset():
    """What is before the offset cannot be missing: only the nearest numbers are looked for, for the time given."""
    world = World(new_persistence_id_scan_timeout=0.6, refresh_interval=1.0)
    start = world.write("q", 1, 1)
    world.write("p", 9000, 3000)
    world.write("p", 8999, 2990, seen=8500)
    stream = world.reader().tag(TAG).live(after=offset_of(start.key.place))
    assert await world.until(stream, 8599) == []
    assert await world.until(stream, 9700) == ["p8999", "p9000"]


async def test_rows_that_are_held_back_are_bounded(monkeypatch):
    """Beyond the bound everybody waits; then all come, in order."""
    monkeypatch.setattr("everlog.pekko.tag_stage.MAX_HELD", 6)
    world = World(hold="journal")
    world.write("p", 1, 1)
    world.write("p", 2, 2, seen=14_000)
    for number in range(3, 20):
        world.write("p", number, 10 * number)
        world.write("q", number - 2, 10 * number + 1)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 13_999) == ["p1", "q1", "q2", "q3", "q4"]
    rest = await world.until(stream, 60_000)
    assert [name for name in rest if name[0] == "p"] == [f"p{number}" for number in range(2, 20)]
    assert [name for name in rest if name[0] == "q"] == [f"q{number}" for number in range(5, 18)]


async def test_a_look_back_does_not_search_more_than_the_bound_at_a_time(monkeypatch):
    monkeypatch.setattr("everlog.pekko.tag_stage.MAX_HELD", 2)
    world = World()
    for pid in "pqrs":
        world.write(pid, 1, 1)
    world.write("s", 2, 3000)
    for pid in "pqr":
        world.write(pid, 2, 1000, seen=15_000)
        world.write(pid, 3, 1010, seen=15_000)
    found = await world.until(world.reader().tag(TAG).live(), 30_000)
    assert sorted(found) == ["p1", "p2", "p3", "q1", "q2", "q3", "r1", "r2", "r3", "s1", "s2"]


async def test_after_a_gap_reading_goes_on_at_once():
    """While a gap held everything, time passed: what is readable now is not left to the next poll."""
    world = World(refresh_interval=9.0)
    world.write("p", 1, -60_000)
    world.write("p", 3, -50_000)
    world.write("p", 2, -55_000, seen=5000)
    world.write("q", 1, 1000)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 8999) == ["p1"]
    assert await world.until(stream, 9001) == ["p2", "p3", "q1"]


async def test_a_current_query_waits_for_a_journal_that_is_held_back():
    world = World(hold="journal")
    world.write("p", 1, -60_000)
    world.write("p", 3, -50_000)
    world.write("p", 2, -55_000, seen=8000)
    world.write("q", 1, -1000)
    assert await world.until(world.reader().tag(TAG).current(), 60_000) == ["p1", "q1", "p2", "p3"]
    assert 8000 <= world.now <= 10_000


async def test_late_events_wait_for_each_other_only_if_all_are_held():
    """p2, q2, q3 are late, q2 later still: with `hold="tag"` they come together by time, otherwise p2 comes first."""
    for hold, early in (("tag", []), ("journal", ["p2"])):
        world = World(hold=hold)
        for pid in "pqr":
            world.write(pid, 1, 1)
        world.write("r", 2, 3000)
        for pid, number, time, seen in (("q", 2, 1000, 19_000), ("p", 2, 1010, 15_000), ("q", 3, 1020, 15_000)):
            world.write(pid, number, time, seen=seen)
        stream = world.reader().tag(TAG).live()
        assert await world.until(stream, 18_999) == ["p1", "q1", "r1", "r2", *early]
        assert await world.until(stream, 30_000) == (["q2", "q3"] if early else ["q2", "p2", "q3"])


async def test_a_bucket_is_left_only_when_its_delay_is_over():
    """The clock is in the next bucket already when a row of the last moments appears: it is read first."""
    edge = BUCKET + HOUR - START_MS
    world = World(refresh_interval=0.5, back_track_interval="off", back_track_long_interval="off")
    world.write("p", 1, edge - 100, seen=edge + 4000)
    world.write("q", 1, edge + 100)
    assert await world.until(world.reader().tag(TAG).live(), edge + 20_000) == ["p1", "q1"]


async def test_a_late_event_below_the_first_look_is_found_by_looking_back():
    """The look behind the offset saw 6; 5 appears when the read has passed it and has not come to 6."""
    world = World(refresh_interval=0.5)
    start = world.write("q", 1, -4800)
    world.write("q", 2, -4000)
    world.write("p", 6, -100)
    world.write("p", 5, -4500, seen=2000)
    found = await world.until(world.reader().tag(TAG).live(after=offset_of(start.key.place)), 20_000)
    assert found == ["q2", "p5", "p6"]


async def test_a_missing_event_that_the_read_meets_ends_its_search():
    """Its clock was ahead: the read comes to it by itself, and nobody waits for the next look."""
    world = World(hold="journal", refresh_interval=5.0)
    for number, time in ((1, 1), (3, 10), (4, 15), (2, 20)):
        world.write("p", number, time - 60_000)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 1) == ["p1", "p2", "p3", "p4"]


async def test_a_search_fetches_page_by_page():
    """Five are missing, a page is three: one look finds them all."""
    world = World(back_track_interval="off", back_track_long_interval="off")
    for number in (1, 7):
        world.write("p", number, number)
    for number in range(2, 7):
        world.write("p", number, number, seen=8500)
    stream = world.reader().tag(TAG).live()
    assert await world.until(stream, 8499) == ["p1"]
    assert await world.until(stream, 14_000) == [f"p{number}" for number in range(2, 8)]
    fetched = [at for at, query in enumerate(world.tables.asked) if isinstance(query, FetchRows)]
    assert [len(world.tables.asked[at].keys) for at in fetched] == [3, 2]
    assert fetched[1] == fetched[0] + 1


async def test_time_for_an_unseen_journal_brings_nothing_from_before_the_offset():
    world = World(new_persistence_id_scan_timeout=0.6, refresh_interval=0.2)
    for number, time in ((1, -2000), (2, -1900)):
        world.write("p", number, time)
    start = world.write("q", 1, -1800)
    world.write("p", 3, 3000)
    assert await world.until(world.reader().tag(TAG).live(after=offset_of(start.key.place)), 20_000) == ["p3"]


def test_a_search_never_asks_for_more_than_two_buckets():
    """However long the journal was silent before the gap."""
    search = GapSearch(
        "p", [2], floor=first_place(BUCKET - 9 * HOUR), top=first_place(START_MS), deadline=0, soft=False
    )
    buckets = StageSettings.of(World().config).buckets
    for _ in range(2):
        search.aim(buckets, origin=0, to=first_place(START_MS + HOUR))
        looked, asked = SearchRound(TAG, [search], buckets, 3, 0), []
        while (query := looked.query()) is not None:
            asked.append(query.bucket)
            looked.found_keys(RowPage([]))
        assert asked == [BUCKET, BUCKET - HOUR]


async def test_a_query_may_begin_at_a_time():
    """Events of that millisecond are included."""
    world = World()
    for number in range(1, 6):
        world.write("p", number, number - 10_000)
    since = datetime.fromtimestamp((START_MS + 3 - 10_000) / 1000, UTC)
    assert await everything(world.reader().tag(TAG).current(since=since)) == ["p3", "p4", "p5"]
    for bad in ({"since": since.replace(tzinfo=None)}, {"since": since, "after": offset_of(first_place(START_MS))}):
        with pytest.raises(InvalidOffset):
            world.reader().tag(TAG).live(**bad)


def test_what_a_first_look_remembers():
    """The vector: p1 with 1 and 2, p2 with 5, 6, 7 behind the offset; known are 0 and 4, just before those rows."""
    world, known, now = World(), DeliveredNumbers(), Now(START_MS, 50)
    rows = [
        world.write(pid, number, number - 100) for pid, number in (("b", 7), ("a", 1), ("b", 5), ("a", 2), ("b", 6))
    ]
    settings = StageSettings.of(world.config)
    after = first_place(START_MS - 1000)
    assert FirstLook.needed(after, settings, now)
    assert not FirstLook.needed(first_place(BUCKET - 1), settings, now)
    look = FirstLook(TAG, after, settings, known, now)
    assert look.at == 250
    assert look.query() == ReadKeys(TAG, BUCKET, after, last_place(START_MS + 200))
    look.answer(RowPage([row.key for row in rows[:3]], b"more"))
    look.answer(RowPage([row.key for row in rows[3:]]))
    assert look.query() is None
    assert {pid: last.number for pid, last in known} == {"a": 0, "b": 4}
    last = known.get("b")
    assert last is not None
    assert last.place == first_place(START_MS + 5 - 100 - 1)


async def test_a_long_search_does_not_hold_up_the_read():
    """With `hold="journal"`, pages of the search and of the read alternate as long as there are rows to read."""
    world = World(hold="journal", page_size=1, gap_timeout=1.0)
    world.write("p", 1, -60_000)
    world.write("p", 3, -20_000)
    for number in range(1, 31):
        world.write("q", number, -50_000 + number)
        world.write("r", number, -10_000 + number)
    world.write("p", 2, -55_000, seen=500)
    found = await world.until(world.reader().tag(TAG).live(), 20_000)
    assert sorted(found) == sorted(["p1", "p2", "p3", *(f"{pid}{n}" for pid in "qr" for n in range(1, 31))])
    kinds = [type(query) for query in world.tables.asked]
    last_read = max(at for at, query in enumerate(world.tables.asked) if isinstance(query, ReadRows) and query.cursor)
    first_search = kinds.index(ReadKeys)
    assert first_search < last_read - 50
    assert kinds[first_search : last_read + 1].count(ReadKeys) <= kinds[first_search : last_read + 1].count(ReadRows)
