"""The console's pure parts: problems, samples, charts, answers to "why does this not run?", texts."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from everlog.config.queue_options import QueueOptions
from everlog.console.actions import ACTIONS, check_fields, is_wanted, matches
from everlog.console.charts import make_chart
from everlog.console.observation import Observation, QueueSummary, TagsSummary, ViewSummary
from everlog.console.pages.flow import make_boxes
from everlog.console.problems import BEHIND_S, IDLE_S, MIN_FULL_JOBS, find_notes, find_problems, level_of
from everlog.console.renderer import brief, environment, relative, remedy, render, shown, url
from everlog.console.sampler import TOTALS, MetricSample, rate, sample_of, series
from everlog.errors import InvalidInput
from everlog.log.kafka.topics import concerns
from everlog.pipeline.status import PartitionStatus, PipelineStatus, Status
from everlog.projections.api import ProjectionStatus
from everlog.projections.source import Lag
from everlog.queues.operations import DueAnswer, Stats
from everlog.queues.wait_reasons import explain_queue
from everlog.runtime.supervisor import LoopStatus
from everlog.server.requests import local_path

NOW = 1_700_000_000_000
FAILING = LoopStatus("schedules", "restarting", NOW, 1, 1, "no", NOW - 90_000)


def status(*, lag: int = 0, seconds: float = 0.0, pipeline: PipelineStatus | None = None, **more) -> Status:
    partition = PartitionStatus("orders", 0, 0, 100, 99 - lag, lag, seconds)
    return Status("data", NOW, [partition], pipeline, lag, seconds, more.pop("quarantined", 0), **more)


def pipeline(state: str = "running", *, quiet: int = 0, **more) -> PipelineStatus:
    return PipelineStatus(state=state, pid=1, host="lab", started_ms=NOW, updated_ms=NOW - quiet * 1000, **more)


def projection(**more) -> ProjectionStatus:
    known = {
        "name": "totals",
        "key": "all",
        "state": "running",
        "paused": False,
        "offset": None,
        "updated_ms": NOW,
        "owner": "me",
        "epoch": 1,
        "handled": 5,
        "skipped": 0,
        "restarts": 0,
        "dead_letters": 0,
        "failing": None,
        "attempts": 0,
        "error": None,
        "lag": Lag(0, 0.0),
    }
    return ProjectionStatus(**{**known, **more})


def queue(**more) -> QueueSummary:
    known = {"ready": 0, "delayed": 0, "running": 0, "dead": 0, "paused": False, "oldest_due_ms": None}
    return QueueSummary(name="mails", **{**known, **more})


def look(found: Status | None = None, **more) -> Observation:
    known = {"tags": TagsSummary(True), "projections": [], "queues": []}
    return Observation(time_ms=NOW, status=found or status(pipeline=pipeline()), **{**known, **more})


BEHIND = {"lag": 7, "seconds": BEHIND_S + 1}
LATE = Lag(3, IDLE_S + 1)
OLD = NOW - round(IDLE_S * 1000) - 1000


def test_when_all_keeps_up_nothing_is_coloured():
    fine = look(projections=[projection()], queues=[queue(ready=3, running=1, oldest_due_ms=OLD), queue(ready=1)])
    assert find_problems(fine) == []
    assert level_of([], "log") is None
    # A pipeline that never ran, or is stopped, with nothing to do is no problem either.
    assert find_problems(look(status())) == []
    assert find_problems(look(status(pipeline=pipeline("stopped", quiet=1000)))) == []
    # With a long lease, an owner may be silent for longer.


def test_the_number_above_a_chart_is_the_last_of_the_chart():
    """A rate above a chart of rates, a lag above a chart of lags: in every box."""
    found = look(
        status(lag=7, pipeline=pipeline()),
        tags=TagsSummary(True, lag=6),
        projections=[projection()],
        queues=[queue(ready=3)],
        document_events=4,
    )
    last = sample_of(found)
    grown = {name: getattr(last, name) - 10 * at for at, name in enumerate(TOTALS, 2)}
    samples = [MetricSample(NOW - 10_000, **grown), last]
    sampler = SimpleNamespace(samples=samples, rate=lambda total: rate(samples, total))
    boxes = make_boxes(found, sampler, embedded=True)
    assert [box["lag" if box["heading"] == "lag" else "rate"] for box in boxes] == [box["series"][-1] for box in boxes]
    assert {box["part"] for box in boxes if box["heading"] == "lag"} == {"pipeline", "tags"}


@pytest.mark.parametrize(
    ("found", "part", "level", "what", "todo"),
    [
        (look(status(lag=7)), "pipeline", "warn", "No pipeline ever ran", "everlog up"),
        (look(status(**BEHIND, pipeline=pipeline())), "pipeline", "warn", "is behind", "more cores"),
        (look(status(lag=7, pipeline=pipeline("stopped"))), "pipeline", "warn", "is stopped", "nothing is lost"),
        (
            look(status(lag=7, pipeline=pipeline("lost"))),
            "pipeline",
            "bad",
            "stopped reporting without shutting down",
            "everlog up",
        ),
        (
            look(status(lag=7, pipeline=pipeline(quiet=13))),
            "pipeline",
            "warn",
            "said nothing for 13 s",
            "process 1 on lab",
        ),
        (
            look(status(pipeline=pipeline("retrying", last_error="full", last_error_ms=NOW - 90_000))),
            "pipeline",
            "bad",
            "full (90 s ago)",
            "the cause",
        ),
        (look(status(pipeline=pipeline(left_out={"a": "replaced"}))), "pipeline", "bad", "replaced", "retire it"),
        (look(status(quarantined=2, pipeline=pipeline())), "store", "bad", "2 records in quarantine", "skip it"),
        (look(status(services={"expiry": {"last_error": "no"}})), "store", "warn", "expiry failed: no", "by itself"),
        (look(status(loops=[FAILING])), "queues", "warn", "The loop 'schedules' failed: no (90 s ago)", "by itself"),
        (look(status(concerns={"a": ["one copy"]})), "log", "warn", "a: one copy", "broker"),
        (look(projections=[projection(state="failed", error="x")]), "projections", "bad", "given up: x", "Repair"),
        (look(projections=[projection(failing="7", attempts=3)]), "projections", "bad", "stuck at 7", "skip"),
        (look(projections=[projection(paused=True, lag=LATE)]), "projections", "warn", "is paused; 3", "Resume"),
        (
            look(projections=[projection(owner=None, lag=LATE)]),
            "projections",
            "warn",
            "not run by any process",
            "run module",
        ),
        (look(projections=[projection(lag=LATE)]), "projections", "warn", "is behind by 3 events", "parallelism"),
        (
            look(projections=[projection(state="silent", reported_ms=OLD)]),
            "projections",
            "bad",
            "stopped reporting 61 s ago",
            "run module",
        ),
        (
            look(projections=[projection(state="waiting", owner=None, remedy="'everlog projections rebuild totals'")]),
            "projections",
            "bad",
            "not run by the version",
            "rebuild totals",
        ),
        (look(projections=[projection(dead_letters=1)]), "projections", "warn", "1 dead letter", "replay"),
        (look(views=[ViewSummary("owed", None, ["a"])]), "projections", "bad", "events add up to: a", "Rebuild it"),
        (look(views=[ViewSummary("owed", "a bug")]), "projections", "warn", "failed: a bug", "start it again"),
        (look(queues=[queue(paused=True, ready=1)]), "queues", "warn", "is paused; 1 job ready", "Resume"),
        (look(queues=[queue(ready=1, oldest_due_ms=OLD)]), "queues", "warn", "no worker takes", "everlog work"),
        (
            look(queues=[queue(ready=MIN_FULL_JOBS, running=1, oldest_due_ms=OLD)]),
            "queues",
            "warn",
            "is full",
            "more workers",
        ),
        (look(queues=[queue(dead=4)]), "queues", "warn", "4 dead letters", "reasons"),
        (look(None, errors={"store": "gone"}), "store", "bad", "does not answer: gone", "nothing is lost"),
        (look(None, errors={"queues": "gone"}), "queues", "bad", "The queues do not answer", "folder"),
    ],
)
def test_each_trouble_says_what_is_wrong_and_what_to_do(found, part, level, what, todo):
    (problem,) = find_problems(found)
    assert (problem.part, problem.level) == (part, level)
    assert what in problem.what
    assert todo in problem.remedy
    assert level_of([problem], part) == level


def test_a_cluster_for_trying_things_is_well():
    """That it has one broker is said, but is no problem: it is what somebody wanted."""
    concerned = concerns(SimpleNamespace(partitions=[SimpleNamespace(replicas=[1])]), {}, brokers=1)
    found = status(pipeline=pipeline(), concerns={"a": concerned, "b": concerned})
    assert find_problems(look(found)) == []
    assert find_notes(found) == [f"a, b: {concerned[0]}."]
    assert find_notes(None) == []


@pytest.mark.parametrize(
    ("away", "known"),
    [("log", {"store", "queues"}), ("store", {"log"}), ("queues", {"log", "store"})],
)
def test_of_what_does_not_answer_and_of_what_needs_it_nothing_is_known(away, known):
    found = Observation(time_ms=NOW, status=None, tags=None, projections=[], queues=[], errors={away: "gone"})
    parts = ("log", "pipeline", "store", "tags", "projections", "queues", "documents")
    assert {part for part in parts if found.knows(part)} == known
    assert look().knows("pipeline")


def test_the_worst_comes_first():
    found = find_problems(look(status(quarantined=1, lag=3), queues=[queue(dead=1)]))
    assert [problem.level for problem in found] == sorted(problem.level for problem in found)


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 1000)), min_size=1, max_size=50), st.integers(2, 90))
def test_rates_and_series_are_bounded_and_never_negative(steps, points):
    """Totals may go back (a restart); time only goes on. No rate is negative, no series longer than asked for."""
    times = itertools.accumulate(passed for passed, _ in steps)
    samples = [MetricSample(at, records=total, lag=total) for at, (_, total) in zip(times, steps, strict=True)]
    found = rate(samples, "records")
    assert found is None or found >= 0
    for name in ("records", "lag"):
        values = series(samples, name, points)
        assert len(values) <= points
        assert all(value >= 0 for value in values)
    assert max(series(samples, "lag", points)) == max(total for _, total in steps), "a peak is never lost"


def test_a_rate_is_what_grew_in_the_last_seconds():
    samples = [MetricSample(second * 1000, records=10 * second) for second in range(100)]
    assert rate(samples, "records") == 10
    assert rate(samples[:1], "records") is None


@given(st.lists(st.floats(0, 1e12), min_size=2, max_size=100))
def test_a_chart_stays_within_its_frame(values):
    chart = make_chart(values, width=200, height=40)
    assert chart is not None
    points = [tuple(map(float, point.split())) for point in chart.line[1:].split("L")]
    assert len(points) == len(values)
    assert all(0 <= x <= 200.01 and 0 <= y <= 40 for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_no_chart_without_two_values():
    assert make_chart([]) is None
    assert make_chart([1.0]) is None


def stats(**more) -> Stats:
    return Stats(**{"ready": 0, "delayed": 0, "running": 0, "dead": 0, "paused": False, **more})


@pytest.mark.parametrize(
    ("counts", "due", "options", "what"),
    [
        (stats(paused=True, ready=2), DueAnswer(0, None), {}, "is paused"),
        (stats(), DueAnswer(0, None), {}, "Nothing waits"),
        (stats(running=1), DueAnswer(0, None), {}, "Nothing waits; 1 job running"),
        (stats(delayed=2), DueAnswer(0, NOW + 5000), {}, "Nothing is due yet: 2 jobs delayed, the next in 5.0 s"),
        (stats(ready=2, running=3), DueAnswer(0, None), {"max_in_flight": 3}, "max_in_flight is 3"),
        (stats(ready=2), DueAnswer(0, NOW + 500), {"rate_limit": "10/s"}, "rate limit is reached: 10 starts per 1.0 s"),
        (stats(ready=2), DueAnswer(0, None), {"max_in_flight_per_group": 1}, "All that is ready is of groups at their"),
        (
            stats(ready=2),
            DueAnswer(0, NOW + 500),
            {"rate_limit": "9/s", "rate_limit_per_group": "1/s"},
            "The rate limit is reached, or all that is ready is of groups at their limit (2 jobs)",
        ),
        (stats(ready=2), DueAnswer(1, None), {}, "no worker claims"),
        (stats(ready=2, running=1), DueAnswer(1, None), {}, "Workers are at it"),
    ],
)
def test_why_a_queue_does_not_run(counts, due, options, what):
    (reason,) = explain_queue(counts, due, QueueOptions(**options).settings, NOW)
    assert what in reason.what


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_every_action_checks_its_fields(name):
    action = ACTIONS[name]
    full = dict.fromkeys((*action.fields, *action.optional, "reason"), "x")
    _, target, reason = check_fields(name, {**full, "other": "y"})
    assert set(target) == {*action.fields, *action.optional}
    assert reason == "x"
    for missing in (*action.fields, *(["reason"] if action.needs_reason else [])):
        with pytest.raises(InvalidInput):
            check_fields(name, {**full, missing: " " if missing == "reason" else ""})
    with pytest.raises(InvalidInput):
        check_fields(name, {**full, "reason": "x" * 1001})


def test_what_loses_something_needs_a_reason():
    words = ("skip", "forget", "cancel", "abort", "switch-back", "delete")
    losing = {name for name in ACTIONS if name.partition(".")[2].startswith(words)} - {"projection.cancel-verify"}
    assert {name for name, action in ACTIONS.items() if action.needs_reason} == losing
    with pytest.raises(InvalidInput):
        check_fields("no.such", {})


def test_a_filter_of_dead_letters():
    assert matches("failed", None, "m-1", {})
    assert matches("failed", "No Route", "m-1", {"cause": "failed", "text": "route"})
    assert not matches("failed", "no route", "m-1", {"cause": "cancelled"})
    assert not matches("failed", None, "m-1", {"text": "m-2"})


def test_a_filter_of_waiting_jobs():
    assert is_wanted("m-1", 128, {})
    assert is_wanted("m-1", 20, {"find": "M", "priority": "20"})
    assert not is_wanted("m-1", 128, {"priority": "12"})
    assert not is_wanted("m-1", 128, {"find": "m-2"})


@given(st.text(max_size=30))
def test_one_is_only_ever_led_back_to_this_server(text):
    for back in (text, "/" + text, "//" + text, "/\\" + text, "https://" + text):
        found = local_path(back)
        assert found.startswith("/")
        assert not found.startswith(("//", "/\\"))
        assert found.isprintable()


def test_texts_for_people():
    assert relative(NOW, NOW + 5000) == "5 s ago"
    assert relative(NOW + 7_200_000, NOW) == "in 2 h"
    assert url("queues", name="a&b=c", key="", text=None) == "/console/queues?name=a%26b%3Dc"
    assert url("flow") == "/"
    assert url("flow", ".json", paused=1) == "/index.json?paused=1"
    assert str(remedy("run `everlog <up>` now")) == "run <code>everlog &lt;up&gt;</code> now"
    assert shown(b"\x00\x01") == "base64: AAE="
    assert len(shown("x" * 100_000)) < 5000
    assert len(brief({"a": "x" * 1000})) <= 160
    assert brief("a\n  b") == "a b"


def test_values_are_escaped_and_undefined_names_are_errors():
    template = environment().from_string("{{ value }} {{ value|brief }} {{ value|remedy }}")
    assert "<" not in template.render(value="<i>").replace("&lt;", "")
    with pytest.raises(UndefinedError, match="has no attribute"):
        render("error.html", m={}, fragment=True)
