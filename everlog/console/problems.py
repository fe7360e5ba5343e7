"""What is wrong, and what to do about it: a pure function of one look at everything.

The home page has colour only where this list has an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from everlog.console.observation import Observation, QueueSummary, UnshownSummary, ViewSummary
from everlog.core.phrases import count, duration
from everlog.pipeline.status import PipelineStatus, Status
from everlog.projections.api import ProjectionStatus

BEHIND_S = 30.0
IDLE_S = 60.0
# A pipeline that works reports every few seconds, whatever its cycles do.
QUIET_S = 12.0
MIN_FULL_JOBS = 10_000
# How the log's concern about a trial cluster begins: there it is no fault, else such a cluster would never be well.
ONE_BROKER = "there is one broker only"

Level = Literal["bad", "warn"]


class Problem(msgspec.Struct, frozen=True):
    """Something that an operator should know. `page` and `target` say where it can be looked at."""

    part: str
    level: Level
    what: str
    remedy: str
    page: str
    target: Mapping[str, str] = {}


def find_problems(found: Observation, *, embedded: bool = True) -> list[Problem]:
    """All that is wrong, the worst first."""
    problems = [*_unanswered(found, embedded)]
    if found.status is not None:
        problems += [*_pipeline(found.status), *_services(found.status)]
    for projection in found.projections:
        problems += _projection(projection, found)
    for view in found.views:
        problems += _view(view)
    for unshown in found.unshown:
        problems.append(_unshown(unshown))
    for queue in found.queues:
        problems += _queue(queue, found.time_ms)
    return sorted(problems, key=lambda problem: problem.level != "bad")


def level_of(problems: list[Problem], part: str) -> Level | None:
    """The worst that concerns a part; None: nothing."""
    levels = {problem.level for problem in problems if problem.part == part}
    return "bad" if "bad" in levels else "warn" if levels else None


_UNANSWERED = {
    "log": ("The log does not answer", "Appends and reads fail until it does. "),
    "store": (
        "The store does not answer",
        "Appends go on; reads, tags, projections, queues and documents wait until it is back, and nothing is lost. ",
    ),
    "tags": ("The views by tag do not answer", "They are in the store: "),
    "projections": ("The projections' offsets cannot be read", "They are in the store: "),
    "queues": ("The queues do not answer", "Jobs are kept, but none can be put or claimed. "),
}


def _unanswered(found: Observation, embedded: bool) -> Iterator[Problem]:
    look = (
        "Check that the data folder is there, is writable and has space left."
        if embedded
        else "Check that its servers run and can be reached from here: `everlog status` says more."
    )
    for part, reason in found.errors.items():
        what, meanwhile = _UNANSWERED[part]
        page = "pipeline" if part in ("log", "store") else part
        yield Problem(part, "bad", f"{what}: {reason}", meanwhile + look, page)


def _pipeline(status: Status) -> Iterator[Problem]:
    pipeline, lag = status.pipeline, status.lag
    waiting = f"{count(lag, 'record')} not in the tables yet{_oldest(status.lag_seconds)}"
    if pipeline is None:
        if lag:
            remedy = "Start it with `everlog up` or `everlog replicate`. Reads are right without it, from the log."
            yield Problem("pipeline", "warn", f"No pipeline ever ran here: {waiting}", remedy, "pipeline")
        return
    yield from _pipeline_state(pipeline, status, waiting)
    for topic, reason in sorted(pipeline.left_out.items()):
        remedy = "Its journals are right up to here. Repair the topic, or retire it: docs/pipeline.md says how."
        yield Problem("pipeline", "bad", f"The topic {topic} is left out: {reason}", remedy, "pipeline")
    if pipeline.tags_wait_for and pipeline.left_out:
        waits = ", ".join(pipeline.tags_wait_for[:5])
        yield Problem(
            "tags", "bad", f"Views by tag wait for {waits}", "Repair or retire the topics that are left out.", "tags"
        )
    if status.quarantined:
        yield Problem(
            "store",
            "bad",
            f"{count(status.quarantined, 'record')} in quarantine: these cannot be applied, and their journals are "
            "halted",
            "Look at each: retry it after an upgrade that can read it, or skip it with a reason.",
            "pipeline",
            {"show": "quarantine"},
        )


def _pipeline_state(pipeline: PipelineStatus, status: Status, waiting: str) -> Iterator[Problem]:
    dated = _dated(pipeline.last_error_ms, status.time_ms)
    reason = f": {pipeline.last_error}{dated}" if pipeline.last_error else ""
    again = "Start it again with `everlog up` or `everlog replicate`: it goes on where it was, and nothing is lost."
    if pipeline.state == "lost":
        where = f"process {pipeline.pid} on {pipeline.host}"
        what = f"The pipeline stopped reporting without shutting down ({where}){reason}; {waiting}"
        yield Problem("pipeline", "bad", what, again, "pipeline")
    elif pipeline.state == "retrying":
        remedy = "It tries again by itself, more and more slowly. Remove the cause; reads stay right meanwhile."
        yield Problem("pipeline", "bad", f"The pipeline fails and tries again{reason}; {waiting}", remedy, "pipeline")
    elif pipeline.state == "stopped" and status.lag:
        yield Problem("pipeline", "warn", f"The pipeline is stopped; {waiting}", again, "pipeline")
    elif pipeline.state == "running" and (quiet := (status.time_ms - pipeline.updated_ms) / 1000) > QUIET_S:
        what = f"The pipeline has said nothing for {duration(quiet)}; {waiting}"
        where = f"Look whether process {pipeline.pid} on {pipeline.host} still runs and reaches the store. "
        yield Problem("pipeline", "warn", what, where + again, "pipeline")
    elif (status.lag_seconds or 0) > BEHIND_S:
        remedy = "If this grows, it needs more cores or less other load: see cycle times and partitions."
        yield Problem("pipeline", "warn", f"The pipeline is behind: {waiting}", remedy, "pipeline")


def _services(status: Status) -> Iterator[Problem]:
    for name, last in sorted(status.services.items()):
        if isinstance(last, dict) and last.get("last_error"):
            part = "documents" if name.startswith("documents") else "queues" if name == "queues" else "store"
            remedy = "It is tried again by itself; the server's log has the details."
            error = f"{last['last_error']}{_dated(last.get('last_run_ms'), status.time_ms)}"
            yield Problem(part, "warn", f"The service {name} failed: {error}", remedy, "pipeline")
    for one in status.loops:
        if one.state == "restarting":
            remedy = "It begins again by itself; the server's log has the details."
            error = f"{one.last_error}{_dated(one.last_error_ms, status.time_ms)}"
            yield Problem("queues", "warn", f"The loop '{one.name}' failed: {error}", remedy, "pipeline")
    for reason, topics in _concerns(status).items():
        if not reason.startswith(ONE_BROKER):
            remedy = "Acknowledged appends may be lost one day: change the topic's settings at the broker."
            yield Problem("log", "warn", f"{_few(topics)}: {reason}", remedy, "pipeline")


def find_notes(status: Status | None) -> list[str]:
    """What is worth knowing, but no fault: a cluster of one broker."""
    found = {} if status is None else _concerns(status)
    return [f"{_few(topics)}: {reason}." for reason, topics in found.items() if reason.startswith(ONE_BROKER)]


def _concerns(status: Status) -> dict[str, list[str]]:
    """By reason, the topics that it holds for."""
    reasons: dict[str, list[str]] = {}
    for topic, found in sorted(status.concerns.items()):
        for reason in found:
            reasons.setdefault(reason, []).append(topic)
    return reasons


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _projection(one: ProjectionStatus, found: Observation) -> Iterator[Problem]:
    name = f"The projection {one.name}" + (f" ({one.key})" if one.key != one.name else "")
    target = {"name": one.name, "key": one.key}

    def problem(level: Level, what: str, remedy: str) -> Problem:
        return Problem("projections", level, f"{name} {what}", remedy, "projections", target)

    behind = one.lag is not None and one.lag.events > 0
    if one.state == "failed":
        yield problem(
            "bad", f"has given up: {one.error or 'no reason is known'}", "Repair its handler, start it again."
        )
    elif one.failing is not None:
        reason = f": {one.error}" if one.error else ""
        yield problem(
            "bad",
            f"is stuck at {one.failing} after {count(one.attempts, 'attempt')}{reason}",
            "Repair its handler, or skip this event with a reason; it is then kept as a dead letter.",
        )
    elif one.state == "silent":
        since = "" if one.reported_ms is None else f" {duration((found.time_ms - one.reported_ms) / 1000)} ago"
        yield problem(
            "bad",
            f"stopped reporting{since} without shutting down: its process is gone, or cannot reach the store",
            "Start it again: `everlog projections run module:app`. It goes on where it was, and nothing is lost.",
        )
    elif one.state == "waiting" and one.remedy is not None:
        yield problem("bad", "is not run by the version that fills its view", one.remedy)
    elif one.paused and behind and one.lag is not None:
        yield problem("warn", f"is paused; {count(one.lag.events, 'event')} wait", "Resume it when you are ready.")
    elif one.owner is None and behind and one.lag is not None and one.lag.seconds > IDLE_S:
        yield problem(
            "warn",
            f"is not run by any process; {count(one.lag.events, 'event')} wait{_oldest(one.lag.seconds)}",
            "Start a process with it: `everlog projections run module:app`.",
        )
    elif one.lag is not None and one.lag.seconds > IDLE_S and behind:
        remedy = "If this grows, make its handler faster, or raise `parallelism` or the number of instances."
        yield problem("warn", f"is behind by {count(one.lag.events, 'event')}{_oldest(one.lag.seconds)}", remedy)
    if one.dead_letters:
        yield problem(
            "warn",
            f"has {count(one.dead_letters, 'dead letter')}",
            "Repair the handler and replay them, or drop them with a reason.",
        )


def _view(one: ViewSummary) -> Iterator[Problem]:
    target = {"name": one.name}
    if one.different:
        what = f"The view of {one.name} is not what its events add up to: {_few(list(one.different))}"
        remedy = "Rebuild it and switch; if it was you who changed it, verify it again."
        yield Problem("projections", "bad", what, remedy, "projections", target)
    if one.failed:
        what = f"The rebuild of {one.name} failed: {one.failed}"
        remedy = "Remove the cause and start it again, or drop the new copy. What is read is not touched."
        yield Problem("projections", "warn", what, remedy, "projections", target)


def _unshown(one: UnshownSummary) -> Problem:
    what = f"The view {one.view} cannot show {count(one.count, 'element')}"
    remedy = "Writes of them go on. Look at the reasons, change the elements or the view, and try again."
    return Problem("documents", "warn", what, remedy, "documents", {"path": one.view})


def _queue(one: QueueSummary, now_ms: int) -> Iterator[Problem]:
    target = {"name": one.name}
    age = 0.0 if one.oldest_due_ms is None else (now_ms - one.oldest_due_ms) / 1000

    def problem(what: str, remedy: str) -> Problem:
        return Problem("queues", "warn", f"The queue {one.name} {what}", remedy, "queues", target)

    if one.paused and one.ready:
        yield problem(f"is paused; {count(one.ready, 'job')} ready", "Resume it when you are ready.")
    elif one.ready and not one.running and age > IDLE_S:
        remedy = "Start a worker: `everlog work module:app`."
        yield problem(f"has {count(one.ready, 'job')} ready that no worker takes{_oldest(age)}", remedy)
    elif one.ready >= MIN_FULL_JOBS and age > IDLE_S:
        remedy = "Start more workers or raise their concurrency; look whether a limit of the queue holds them back."
        yield problem(f"is full: {count(one.ready, 'job')} ready{_oldest(age)}", remedy)
    if one.dead:
        remedy = "Look at the reasons; revive them when the cause is gone."
        yield problem(f"has {count(one.dead, 'dead letter')}", remedy)


def _dated(then_ms: int | None, now_ms: int) -> str:
    """When an error was, unless that is now."""
    seconds = 0.0 if then_ms is None else (now_ms - then_ms) / 1000
    return "" if seconds < 1 else f" ({duration(seconds)} ago)"


def _oldest(seconds: float | None) -> str:
    return "" if not seconds or seconds < 1 else f", the oldest for {duration(seconds)}"
