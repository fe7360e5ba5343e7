"""What every store of queues must do. Schedules: each time becomes one put, whatever became of the jobs before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from everlog.errors import EverlogError, InvalidInput, PayloadTooLarge, QueueNotFound, ScheduleNotFound
from everlog.queues import recurrence
from everlog.queues.columns import Column
from everlog.queues.declaration import ColumnSchema
from everlog.queues.keys import decode_key
from everlog.queues.operations import AskSchedules, FireSchedules
from everlog.queues.queue import Queue
from everlog.queues.schedule import MAX_DATA_BYTES, MAX_MISSED, MISSED_MS, CatchUp
from everlog.queues.schedules import QueueSchedules
from everlog.testing.queue_desk import HOUR, T, VirtualClock, VirtualQueue, keys

FIRST = T // HOUR * HOUR + HOUR
"""The first full hour of virtual time."""
MINUTE = 60_000


def schedules_of(desk: VirtualQueue) -> QueueSchedules:
    return Queue(desk.name, desk.store).schedules


async def waiting(desk: VirtualQueue) -> list[tuple[Any, int]]:
    """The keys and the due times of what waits, by time."""
    rows = [(decode_key(row.key), row.image.process_ms) for row in await desk.peek(1000)]
    return sorted(rows, key=lambda row: row[1])


def _unknown_zone(name: str) -> ZoneInfo:
    raise InvalidInput(f"timezone: {name!r} is not known here")


def at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class QueueScheduleSuite:
    """Tests that take the fixture `desk`: see `QueueConformance`."""

    async def test_a_schedule_puts_a_job_when_its_time_comes(self, desk: VirtualQueue) -> None:
        """Not before, once, with its data and priority, due at its time however late it is put."""
        schedules = schedules_of(desk)
        set_ = await schedules.set("hourly", every="1h", data={"n": 1}, priority=7)
        assert (set_.name, set_.every, set_.cron, set_.data, set_.priority) == ("hourly", "1h", None, {"n": 1}, 7)
        assert set_.next is not None
        assert (round(set_.next.timestamp() * 1000), set_.last, set_.paused) == (FIRST, None, False)
        assert (await schedules.fire(), await desk.peek()) == (0, [])
        assert await desk.do(AskSchedules()) == FIRST - T
        desk.clock.now = FIRST - 1
        assert await schedules.fire() == 0
        desk.clock.now = FIRST + 5
        assert await desk.do(AskSchedules()) == 0
        assert (await schedules.fire(), await schedules.fire()) == (1, 0)
        assert await waiting(desk) == [("hourly", FIRST)]
        (job,) = await Queue(desk.name, desk.store).claim()
        assert (job.key, job.data, job.priority, job.attempt) == ("hourly", {"n": 1}, 7, 1)
        (info,) = await schedules.list()
        assert info.last is not None
        assert info.next is not None
        assert (info.last.timestamp() * 1000, info.next.timestamp() * 1000) == (FIRST, FIRST + HOUR)

    @pytest.mark.parametrize("catch_up", ["one", "all"])
    async def test_its_jobs_have_its_kind(self, desk: VirtualQueue, catch_up: CatchUp) -> None:
        schedules = schedules_of(desk)
        assert (await schedules.set("plain", every="1h", catch_up=catch_up)).kind is None
        assert (await schedules.set("hourly", every="1h", catch_up=catch_up, kind="digest")).kind == "digest"
        desk.clock.now = FIRST
        assert await schedules.fire() == 2
        found = await Queue(desk.name, desk.store).peek()
        assert sorted((str(job.key).partition("@")[0], job.kind) for job in found) == [
            ("hourly", "digest"),
            ("plain", None),
        ]
        assert (await schedules.set("hourly", every="1h", catch_up=catch_up, kind="report")).kind == "report"
        assert (await schedules.get("hourly")).kind == "report"
        assert (await schedules.get("hourly")).last is not None, "the schedule is the same one"
        for wrong in ("no blanks", "x" * 101, 7):
            with pytest.raises(InvalidInput, match="a kind is"):
                await schedules.set("wrong", every="1h", kind=wrong)  # type: ignore[arg-type]

    async def test_many_that_fire_at_once_put_one_job(self, desk: VirtualQueue) -> None:
        """In a queue that merges nothing, where a second put would show."""
        await desk.declare(merge=False)
        await schedules_of(desk).set("hourly", every="1h")
        for number in range(3):
            desk.clock.now = FIRST + number * HOUR
            fired = await asyncio.gather(*(desk.do(FireSchedules()) for _ in range(10)))
            assert sorted(fired) == [0] * 9 + [1]
        assert await waiting(desk) == [("hourly", FIRST + number * HOUR) for number in range(3)]

    @pytest.mark.parametrize("ending", ["done", "dead", "cancelled", "waits", "runs", "waits again"])
    async def test_no_outcome_of_a_job_stops_its_schedule(self, desk: VirtualQueue, ending: str) -> None:
        """A job that waits takes the next time in; one that runs gets a successor."""
        schedules = schedules_of(desk)
        await schedules.set("hourly", every="1h")
        desk.clock.now = FIRST
        await schedules.fire()
        if ending == "cancelled":
            await desk.cancel("hourly")
        elif ending != "waits":
            lease = await desk.one(lease=10 * HOUR)
            if ending == "done":
                await desk.done(lease)
            elif ending in ("dead", "waits again"):
                await desk.fail(lease, "no", retry=ending != "dead", delay=0)
        for number in (1, 2):
            desk.clock.now = FIRST + number * HOUR
            assert await schedules.fire() == 1
        row = await desk.row("hourly")
        image = row.slot if ending == "runs" else row.image
        assert image is not None
        assert image.process_ms == FIRST + 2 * HOUR

    @pytest.mark.parametrize(("on_busy", "flagged"), [("reject", 2), ("drop", 0), ("successor", 0)])
    async def test_a_time_that_is_refused_raises_a_flag(self, desk: VirtualQueue, on_busy: str, flagged: int) -> None:
        """In a queue that refuses puts while their key runs. What is dropped was to be dropped."""
        await desk.declare(on_busy=on_busy)
        schedules = schedules_of(desk)
        await schedules.set("hourly", every="1h")
        desk.clock.now = FIRST
        await schedules.fire()
        lease = await desk.one(lease=10 * HOUR)
        for number in (1, 2):
            desk.clock.now = FIRST + number * HOUR
            assert await schedules.fire() == 1, "the time is dealt with"
        assert [flag.count for flag in (await desk.flags()).values()] == ([flagged] if flagged else [])
        if flagged:
            flag = (await desk.flags())["schedule_refused"]
            assert decode_key(flag.key or b"") == "hourly"
            assert (flag.first_ms, flag.last_ms) == (FIRST + HOUR, desk.clock.now)
            assert desk.counted("REJECTED") == flagged
        await desk.done(lease)
        desk.wait(HOUR)
        await schedules.fire()
        assert len(await desk.claim()) == 1

    @pytest.mark.parametrize(
        ("catch_up", "late_ms", "expected"),
        [
            ("one", 10 * MINUTE, [3]),
            ("none", 10 * MINUTE, []),
            ("none", MISSED_MS, [3]),
            ("none", MISSED_MS + 1, []),
            ("all", 10 * MINUTE, [0, 1, 2, 3]),
        ],
    )
    async def test_times_that_were_missed(
        self, desk: VirtualQueue, catch_up: Any, late_ms: int, expected: list[int]
    ) -> None:
        """Four times passed and no process looked: the last is put, all are, or none. Later times come as ever."""
        schedules = schedules_of(desk)
        await schedules.set("hourly", every="1h", catch_up=catch_up)
        desk.clock.now = FIRST + 3 * HOUR + late_ms
        assert await schedules.fire() == len(expected)
        desk.clock.now = FIRST + 4 * HOUR
        leases = await desk.claim(10)
        assert await schedules.fire() == 1
        put = [lease.row.image.process_ms for lease in leases]
        assert sorted(put) == [FIRST + number * HOUR for number in expected]
        if catch_up == "all":
            assert sorted(keys(leases)) == [f"hourly@{at(FIRST + number * HOUR)}" for number in expected]
        (_, due), *_ = await waiting(desk) or [(None, (await desk.row("hourly")).slot.process_ms)]  # type: ignore[union-attr]
        assert due == FIRST + 4 * HOUR

    async def test_all_has_a_limit(self, desk: VirtualQueue) -> None:
        """A year of missed minutes is not put: the last ones are."""
        schedules = schedules_of(desk)
        await schedules.set("minutely", cron="* * * * *", catch_up="all")
        desk.clock.now = T // MINUTE * MINUTE + 365 * 24 * HOUR
        assert (await schedules.fire(), await schedules.fire()) == (MAX_MISSED, 0)
        found = await waiting(desk)
        last = desk.clock.now
        assert [due for _, due in found] == [last - number * MINUTE for number in reversed(range(MAX_MISSED))]

    async def test_a_pause_skips_times_on_purpose(self, desk: VirtualQueue) -> None:
        """They are not caught up with, not even by `all`; and no declaration ends a pause."""
        schedules = schedules_of(desk)
        await schedules.set("hourly", every="1h", catch_up="all")
        assert (await schedules.pause("hourly"), await schedules.pause("hourly")) == (True, False)
        (info,) = await schedules.list()
        assert (info.paused, info.next) == (True, None)
        assert await desk.do(AskSchedules()) is None
        desk.clock.now = FIRST + 2 * HOUR + 1
        again = await schedules.set("hourly", every="1h", catch_up="all", data="new")
        assert (again.paused, again.data) == (True, "new")
        assert await schedules.fire() == 0
        assert (await schedules.resume("hourly"), await schedules.resume("hourly")) == (True, False)
        assert await schedules.fire() == 0
        desk.clock.now = FIRST + 3 * HOUR
        assert await schedules.fire() == 1

    async def test_a_pause_skips_nothing_that_was_due_before(self, desk: VirtualQueue) -> None:
        schedules = schedules_of(desk)
        await schedules.set("hourly", every="1h", catch_up="all")
        desk.clock.now = FIRST + HOUR + 1
        assert await schedules.pause("hourly")
        desk.clock.now = FIRST + 5 * HOUR + 1
        assert await schedules.resume("hourly")
        assert await schedules.fire() == 0
        assert [due for _, due in await waiting(desk)] == [FIRST, FIRST + HOUR]

    async def test_a_time_zone_that_is_not_known_here_stops_nothing_else(self, desk: VirtualQueue) -> None:
        """Another process has stored it, with another database of time zones: that schedule waits, all else goes on."""
        schedules = schedules_of(desk)
        await schedules.set("far", cron="@hourly", timezone="Europe/Berlin")
        await schedules.set("hourly", every="1h")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recurrence, "_zone", _unknown_zone)
            recurrence._parsed.cache_clear()
            assert await desk.do(AskSchedules()) == FIRST - T
            desk.clock.now = FIRST
            assert (await schedules.fire(), await waiting(desk)) == (1, [("hourly", FIRST)])
            far, hourly = await schedules.list()
            assert (far.timing, far.next) == ("@hourly Europe/Berlin", None)
            assert hourly.next is not None
            assert await schedules.pause("far")
            assert await schedules.resume("far")
        recurrence._parsed.cache_clear()
        desk.clock.now = FIRST + HOUR
        assert await schedules.fire() == 2

    async def test_a_changed_declaration(self, desk: VirtualQueue) -> None:
        """It replaces the old one, whose due times are put first; times of the new one count from then on."""
        schedules = schedules_of(desk)
        await schedules.set("daily", every="1h", data="old")
        desk.clock.now = FIRST
        assert (await schedules.set("daily", every="1h", data="newer")).last is None
        desk.clock.now = FIRST + 1
        changed = await schedules.set("daily", every="10m", data="new")
        assert changed.last is not None
        assert changed.last.timestamp() * 1000 == FIRST
        (row,) = await desk.peek()
        assert (row.image.process_ms, row.image.data) == (FIRST, b"tnewer")
        assert await schedules.fire() == 0
        await schedules.set("daily", every="1m")
        desk.clock.now = FIRST + 1 + 30_000
        assert await schedules.fire() == 0
        desk.clock.now = FIRST + MINUTE
        assert await schedules.fire() == 1
        assert (await desk.peek())[0].image.process_ms == FIRST + MINUTE

    async def test_schedules_are_listed_and_removed(self, desk: VirtualQueue) -> None:
        schedules = schedules_of(desk)
        assert await schedules.list() == []
        await schedules.set("b", every="1h")
        await schedules.set("a", cron="@daily", timezone="America/New_York", catch_up="none")
        found = await schedules.list()
        assert [(one.name, one.timing, one.catch_up) for one in found] == [
            ("a", "@daily America/New_York", "none"),
            ("b", "every 1h", "one"),
        ]
        assert (await schedules.get("b")).timezone == "UTC"
        desk.clock.now = FIRST
        assert await schedules.fire() == 1
        await schedules.remove("b")
        desk.clock.now = FIRST + 5 * HOUR
        assert await schedules.fire() == 0
        assert [one.name for one in await schedules.list()] == ["a"]
        assert len(await desk.peek()) == 1, "what it has put stays"
        for call in (schedules.get, schedules.pause, schedules.resume, schedules.remove):
            with pytest.raises(ScheduleNotFound, match="there are: a"):
                await call("b")
        assert (await schedules.set("b", every="1h")).last is None, "it begins anew"
        assert await schedules.fire() == 0

    async def test_a_clock_that_goes_back_fires_no_time_twice(self, desk: VirtualQueue) -> None:
        schedules = schedules_of(desk)
        await schedules.set("hourly", every="1h")
        desk.clock.now = FIRST
        assert await schedules.fire() == 1
        desk.clock.now = FIRST - HOUR // 2
        assert await schedules.fire() == 0
        desk.clock.now = FIRST + 1
        assert await schedules.fire() == 0

    async def test_what_no_schedule_can_be(self, desk: VirtualQueue) -> None:
        """An error that says why; nothing is stored."""
        schedules = schedules_of(desk)
        wrong: list[dict[str, Any]] = [
            {},
            {"every": "1h", "cron": "@daily"},
            {"every": 0},
            {"every": "soon"},
            {"every": "1h", "timezone": "UTC"},
            {"cron": "0 0 30 2 *"},
            {"cron": "@never"},
            {"cron": "* * * *"},
            {"cron": "@daily", "timezone": "Mars/Olympus"},
            {"cron": "@daily", "timezone": "../../etc/passwd"},
            {"cron": "@daily", "timezone": "Europe"},
            {"every": "1h", "catch_up": "some"},
            {"every": "1h", "priority": 256},
            {"every": "1h", "data": float("nan")},
        ]
        for given in wrong:
            with pytest.raises(InvalidInput):
                await schedules.set("x", **given)
        with pytest.raises(PayloadTooLarge):
            await schedules.set("x", every="1h", data="x" * (MAX_DATA_BYTES + 1))
        for name in ("", "x" * 201, "\ud800", "a\nb", 5, None):
            with pytest.raises(InvalidInput):
                await schedules.set(name, every="1h")  # type: ignore[arg-type]
        assert await schedules.list() == []

    async def test_there_is_no_schedule_without_its_queue(self, desk: VirtualQueue) -> None:
        schedules = Queue(f"{desk.name}-not", desk.store).schedules
        calls: list[Callable[[], Any]] = [
            lambda: schedules.set("x", every="1h"),
            schedules.list,
            schedules.fire,
            lambda: schedules.get("x"),
            lambda: schedules.pause("x"),
            lambda: schedules.remove("x"),
        ]
        for call in calls:
            with pytest.raises(QueueNotFound):
                await call()
        assert f"{desk.name}-not" not in await desk.store.names()

    async def test_schedules_of_a_queue_with_columns(self, desk: VirtualQueue) -> None:
        """The name stands for the key as a user would type it; the data are checked."""
        columns = (Column("site", "string"), Column("page", "uint32"), Column("title", "string"))
        await desk.declare(ColumnSchema(1, ("site", "page"), columns))
        schedules = schedules_of(desk)
        for name, data, catch_up in (("s", {}, "one"), ("s,7", {"x": 1}, "one"), ("s,7", {}, "all")):
            with pytest.raises(EverlogError):
                await schedules.set(name, every="1h", data=data, catch_up=catch_up)  # type: ignore[arg-type]
        await schedules.set("s,7", every="1h", data={"title": "t"})
        desk.clock.now = FIRST
        await schedules.fire()
        (job,) = await Queue(desk.name, desk.store).claim()
        assert (job.key, job.data["title"]) == (("s", 7), "t")

    async def test_schedules_outlive_their_process(
        self, make_store: Callable[..., Any], desk: VirtualQueue, clock: VirtualClock
    ) -> None:
        """Another store on the same data knows them, and fires what the first one did not. Memory has no second."""
        schedules = schedules_of(desk)
        await schedules.set("hourly", every="1h", catch_up="all", data="d")
        clock.now = FIRST
        assert await schedules.fire() == 1
        await schedules.set("gone", every="1h")
        await schedules.remove("gone")
        await schedules.set("still", every="1h")
        await schedules.pause("still")
        await desk.store.close()
        clock.now = FIRST + 2 * HOUR
        store = await make_store(clock)
        again = VirtualQueue(store, clock, desk.name)
        if desk.name in await store.names():
            assert await schedules_of(again).fire() == 2
            assert [due for _, due in await waiting(again)] == [FIRST, FIRST + HOUR, FIRST + 2 * HOUR]
            assert [(one.name, one.paused) for one in await schedules_of(again).list()] == [
                ("hourly", False),
                ("still", True),
            ]
        await store.close()
