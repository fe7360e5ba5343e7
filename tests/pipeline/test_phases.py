"""Where a batch's time goes, what it wrote, and which journals were slow: measured in virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.console.charts import BAR, GAP, make_bars
from everlog.console.pages.pipeline import phase_rows, table_rows
from everlog.pipeline import apply as apply_module
from everlog.pipeline.apply import Applied, apply
from everlog.pipeline.meter import RECENT_CYCLES, Meter, by_phase, in_ms
from everlog.pipeline.phases import PHASES, SLOWEST, SlowKey, longest, slowest
from everlog.pipeline.status import CycleStatus, PipelineStatus
from everlog.runtime.clock import Stopwatch
from everlog.runtime.failpoints import POINTS
from everlog.server.metrics import pipeline_metrics, text_of
from tests.lap_support import check_laps, note_laps
from tests.pipeline.test_apply import TOPIC, Recorder, grouped
from tests.support import ManualClock, append_record, delete_record

NAMES = [phase.name for phase in PHASES]
SECONDS = st.floats(0, 1e5)
MEASURED = st.dictionaries(st.sampled_from(NAMES), SECONDS, max_size=4)


def test_phases_and_labelled_points_agree() -> None:
    """Whoever knows at which points a test kills the pipeline knows where a phase ends."""
    ends = [phase.point for phase in PHASES if phase.point]
    assert sorted(ends) == sorted(set(POINTS) - {"cycle.started"})


@given(st.lists(st.tuples(SECONDS, st.sampled_from(NAMES), st.none() | MEASURED)))
def test_phases_add_up_to_the_time_that_passed(steps) -> None:
    """Whatever is measured elsewhere, even by a clock that runs faster than ours."""
    now = 0.0
    watch = Stopwatch(lambda: now)
    for passed, phase, inside in steps:
        now += passed
        if inside is None:
            watch.lap(phase)
        else:
            watch.split(inside, rest=phase)
    assert sum(watch.seconds.values()) == pytest.approx(now)
    assert all(seconds >= 0 for seconds in watch.seconds.values())


@given(MEASURED, SECONDS)
def test_milliseconds_are_cut_off_not_rounded(phases, more) -> None:
    """So that thirteen roundings cannot make a batch's phases longer than the batch."""
    assert sum(by_phase(phases).values()) <= in_ms(sum(phases.values()) + more) + 0.002


class Slow(Recorder):
    """A store for which every step takes its own time."""

    def __init__(self, clock: ManualClock, **options) -> None:
        super().__init__(**options)
        self._clock = clock

    @asynccontextmanager
    async def task(self, topic, partition):
        self._clock.advance(1)
        yield self
        self._clock.advance(2)

    async def pointer(self):
        self._clock.advance(4)
        return await super().pointer()

    async def heads(self, ids):
        self._clock.advance(8)
        return await super().heads(ids)

    async def write_rows(self, changes):
        self._clock.advance(16)
        self.lap("rows")
        self._clock.advance(32)
        self.lap("tags")
        self._clock.advance(64)
        return await super().write_rows(changes)

    async def write_heads(self, changes):
        self._clock.advance(128)
        return await super().write_heads(changes)

    async def delete_garbage(self, changes):
        self._clock.advance(256)
        return await super().delete_garbage(changes)


async def measure(clock: ManualClock, *records) -> tuple[Applied, dict[str, float]]:
    watch = Stopwatch(clock.monotonic, busy=clock.monotonic)
    done = await apply(Slow(clock), TOPIC, 0, grouped(*records), watch=watch)
    return done, {phase: round(seconds, 6) for phase, seconds in watch.seconds.items()}


async def test_each_step_is_its_own_phase(clock) -> None:
    """Powers of two: any time that is counted twice, or for another phase, shows."""
    _, phases = await measure(clock, append_record(0, 1, 3), delete_record(1, 2))
    assert phases == {
        "open": 1,
        "load": 4 + 8,
        "fold": 0,
        "rows": 16 + 64,
        "tags": 32,
        "heads": 128,
        "garbage": 256,
        "commit": 2,
    }


async def test_the_phases_of_a_task_end_at_its_points(clock, monkeypatch) -> None:
    noted = note_laps(monkeypatch, apply_module)
    await measure(clock, append_record(0, 1))
    check_laps(noted)
    assert [phase for phase in noted if phase[0] == "="] == [
        *("=open", "=load", "=fold", "=rows", "=tags", "=rows", "=heads", "=garbage", "=commit")
    ]


async def test_the_slowest_journals_are_few_and_those_with_most_rows(clock) -> None:
    """The rows' time is shared by rows: 112 s for 12 rows, of which one journal has 5."""
    small = [append_record(number, 1, key=b"k%d" % number) for number in range(7)]
    done, phases = await measure(clock, *small, append_record(7, 1, 4, key=b"big"), append_record(8, 5, key=b"big"))
    assert len(done.slowest) == SLOWEST
    assert done.slowest[0] == SlowKey(TOPIC.name, "big", round(112_000 * 5 / 12, 3), records=2, events=5)
    assert {key.ms for key in done.slowest[1:]} == {round(112_000 / 12, 3)}
    assert sum(key.ms for key in done.slowest) / 1000 <= phases["fold"] + phases["rows"] + phases["tags"]


async def test_ids_that_would_make_the_status_long_are_left_out(clock) -> None:
    done, _ = await measure(clock, append_record(0, 1, key=b"x" * 5000), append_record(1, 1, key=b"k"))
    assert [key.id for key in done.slowest] == ["k"]


def test_of_what_runs_side_by_side_the_longest_counts() -> None:
    slow = {"read": 1.0, "rows": 5.0}
    assert longest([{"read": 4.0, "rows": 1.0}, slow, {}]) is slow
    assert longest([]) == {}


def test_a_journal_is_listed_once_by_its_slowest_batch() -> None:
    keys = [SlowKey("t", f"k{number % 3}", float(number), 1, 1) for number in range(20)]
    assert [key.ms for key in slowest(keys)] == [19, 18, 17]


def test_rows_are_counted_when_they_are_written_and_batches_when_they_are_published(clock) -> None:
    """A batch that fails has written what it reports; its next try does not report that again. Records without a
    journal are written each time: they count with the batch."""
    meter = Meter(clock)
    failed = Applied(records=9, events=5, tagged=2, journals=3, misplaced=1, failed={"bad": "refused"})
    meter.wrote([failed])
    status = meter.status()
    assert (status.cycles, status.records, status.events, status.recent) == (0, 0, 5, [])
    assert status.rows == {"journal": 5, "metajournal": 3, "tag_views": 2, "rejected": 0, "quarantine": 0}
    again = [Applied(records=9, events=1, journals=1, misplaced=1, quarantined=1)]
    meter.wrote(again)
    meter.cycle(again, 2.0, {"rows": 1.5}, [SlowKey("t", "k", 3.0, 1, 1)])
    status = meter.status()
    assert status.rows == {"journal": 6, "metajournal": 4, "tag_views": 2, "rejected": 0, "quarantine": 2}
    assert (status.cycles, status.records, status.quarantined, status.cycle_ms) == (1, 9, 2, 2000.0)
    (batch,) = status.recent
    assert (batch.ms, batch.phases, batch.rows["journal"]) == (2000.0, {"rows": 1500.0}, 1)
    assert [(key.id, key.ended_ms) for key in status.slowest] == [("k", clock.now_ms())]


def test_the_status_is_bounded(clock) -> None:
    meter = Meter(clock)
    for number in range(3 * RECENT_CYCLES):
        slow = [SlowKey("t", f"{number}.{at}", float(at), 1, 1) for at in range(SLOWEST)]
        meter.cycle([Applied(records=number)], 0.25, {"rows": 0.125, "fold": 0.125}, slow)
    status = meter.status()
    assert [batch.records for batch in status.recent] == list(range(2 * RECENT_CYCLES, 3 * RECENT_CYCLES))
    assert len(status.slowest) == SLOWEST
    assert status.phase_ms == {"rows": 4500.0, "fold": 4500.0}
    assert status.cycle_ms == 9000.0


BATCHES = [
    CycleStatus(1, 10.0, 5, {"rows": 6.0, "fold": 2.0}, {"journal": 7}),
    CycleStatus(2, 30.0, 5, {"rows": 9.0, "fold": 4.0, "unheard of": 1.0}, {"journal": 8}),
]
SAID = PipelineStatus(
    "running", 1, "h", 0, cycles=9, phase_ms={"fold": 1500.0}, rows={"journal": 99, "rejected": 0}, recent=BATCHES
)


def test_what_the_page_shows_of_them() -> None:
    """In the order in which phases happen; one of another version comes last."""
    assert [(one["phase"], one["ms"], one["percent"], one["cycles"]) for one in phase_rows(SAID)] == [
        ("fold", 3.0, 15.0, [2.0, 4.0]),
        ("rows", 7.5, 37.5, [6.0, 9.0]),
        ("unheard of", 0.5, 2.5, [0.0, 1.0]),
    ]
    assert table_rows(SAID)[0] == {"table": "journal", "rows": 99, "recent": 15}
    assert phase_rows(PipelineStatus("running", 1, "h", 0)) == []


def test_what_prometheus_gets() -> None:
    lines = text_of(pipeline_metrics(SAID)).splitlines()
    assert "# TYPE everlog_pipeline_phase_seconds summary" in lines
    assert 'everlog_pipeline_phase_seconds_sum{phase="fold"} 1.5' in lines
    assert 'everlog_pipeline_phase_seconds_count{phase="fold"} 9' in lines
    assert "# TYPE everlog_pipeline_rows_total counter" in lines
    assert 'everlog_pipeline_rows_total{table="journal"} 99' in lines
    assert not any(line.startswith("everlog_pipeline_phase_seconds{") for line in lines)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12))
def test_bars_stay_within_their_frame(values) -> None:
    made = make_bars(values, max(values))
    bars = made.path.split("M")[1:]
    heights = [float(bar.split("v-")[1].split("h")[0]) for bar in bars]
    assert [int(bar.split()[0]) for bar in bars] == list(range(0, made.width, BAR + GAP))
    assert all(0 <= height <= made.height for height in heights)
    assert all((height > 0) == (value > 0) for height, value in zip(heights, values, strict=True))
