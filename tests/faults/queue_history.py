"""One checker for all runs of queues under faults: what was asked and answered, as a history, against what must hold.

A history is a list of operations, one JSON object each: `id`, `process`, `queue`, `op`, `start`, `end` (whole
milliseconds, rounded down, of one machine's clock), `outcome` (`ok`, `fail`: it certainly had no effect, `unknown`).

    put        key, data, inserted, due, expires; if it was acknowledged: result, entry
    claim      leases: [{entry, token, key, data, claimed, deadline, due, expires, inserted, dated, group}, …]
    heartbeat, done, fail, release    entry, token
    run        entry, token: a function was called for this claim; blocks: it holds its loop up for longer than a lease
    cancel     key: what waits for it, also behind a job that runs, may be gone
    set        name, every, catch_up: a schedule; `pause` ends it
    count      stats, waiting, running, dead: all that is there while nothing happens; the last one is the end

What must hold is named in RULES. The checker is sound, not complete: operations that overlap count in favour of the
queue, and so does what a killed process did without writing it down. `due` and `data` of a put are those that were
sent; every put has data of its own, so that a run says which put it has seen.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

Operation = dict[str, Any]

STORED = ("CREATED", "MERGED", "SUCCESSOR", "SUCCESSOR_MERGED")
SUCCESSORS = ("SUCCESSOR", "SUCCESSOR_MERGED")
LEASE_FIELDS = ("entry", "token", "key", "data", "claimed", "deadline", "due", "expires", "inserted", "dated", "group")
MAX_LINES = 40


class QueueLimits(NamedTuple):
    """What the checker needs to know of a queue's options."""

    max_in_flight: int | None = None
    rate: tuple[int, int] | None = None  # so many starts within so many milliseconds
    max_in_flight_per_group: int | None = None
    rate_per_group: tuple[int, int] | None = None
    refuses_busy: bool = False  # a time of a schedule that finds its key busy is refused, as any put is


class Finding(NamedTuple):
    """A rule that does not hold, and the operations that show it."""

    rule: str
    text: str
    lines: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        shown = [json.dumps(line) for line in self.lines[:MAX_LINES]]
        if len(self.lines) > MAX_LINES:
            shown.append(f"… and {len(self.lines) - MAX_LINES} more")
        return "\n    ".join([f"{self.rule}: {self.text}", *shown])


@dataclass
class Lease:
    """One claim of a job, and what was done under its handle."""

    claim: Operation
    entry: int
    token: int
    key: str
    data: str
    claimed: int
    deadline: int
    due: int
    expires: int
    inserted: int
    dated: int
    group: str = ""
    ends: list[Operation] = field(default_factory=list)
    beats: list[Operation] = field(default_factory=list)
    runs: list[Operation] = field(default_factory=list)

    @property
    def lease_ms(self) -> int:
        return self.deadline - self.claimed

    @property
    def held_until(self) -> int:
        """The last moment at which it was certainly valid, unless it was ended before: heartbeats extend it."""
        accepted = [beat["start"] + self.lease_ms for beat in self.beats if beat["outcome"] == "ok"]
        return max([self.deadline, *accepted])

    @property
    def maybe_ended(self) -> int | None:
        """The first moment at which its worker may have ended it."""
        return min((end["start"] for end in self.ends if end["outcome"] != "fail"), default=None)

    @property
    def maybe_done(self) -> bool:
        return any(end["op"] == "done" and end["outcome"] != "fail" for end in self.ends)

    @property
    def done_at(self) -> int | None:
        """When it was known to be done."""
        return min((end["end"] for end in self.ends if end["op"] == "done" and end["outcome"] == "ok"), default=None)

    @property
    def lines(self) -> list[Operation]:
        own = {**self.claim, "leases": [self.shown]}
        return [own, *self.runs, *self.beats, *self.ends]

    @property
    def shown(self) -> Operation:
        return {name: getattr(self, name) for name in LEASE_FIELDS}


class QueueHistory:
    """The history of one queue, by key and by handle."""

    def __init__(self, name: str, operations: Iterable[Operation], limits: QueueLimits) -> None:
        self.name = name
        self.limits = limits
        self.puts: dict[str, list[Operation]] = defaultdict(list)
        self.put_of: dict[str, Operation] = {}
        self.leases: dict[str, list[Lease]] = defaultdict(list)
        self.by_handle: dict[tuple[int, int], list[Lease]] = defaultdict(list)
        self.schedules: dict[str, list[Operation]] = defaultdict(list)
        self.pauses: dict[str, Operation] = {}
        self.cancels: dict[str, list[Operation]] = defaultdict(list)
        self.counts: list[Operation] = []
        self.orphans: list[Operation] = []
        later = []
        for operation in operations:
            kind = operation["op"]
            if kind == "put":
                self.puts[operation["key"]].append(operation)
                self.put_of[operation["data"]] = operation
            elif kind == "claim":
                self._add_claim(operation)
            elif kind == "set":
                self.schedules[operation["name"]].append(operation)
            elif kind == "cancel":
                self.cancels[operation["key"]].append(operation)
            elif kind == "pause":
                self.pauses[operation["name"]] = operation
            elif kind == "count":
                self.counts.append(operation)
            else:
                later.append(operation)
        for operation in later:
            self._add_to_lease(operation)
        for leases in self.leases.values():
            leases.sort(key=lambda lease: (lease.claimed, lease.token))

    def _add_claim(self, operation: Operation) -> None:
        for found in operation.get("leases", ()):
            lease = Lease(operation, **found)
            self.leases[lease.key].append(lease)
            self.by_handle[lease.entry, lease.token].append(lease)

    def _add_to_lease(self, operation: Operation) -> None:
        found = self.by_handle.get((operation["entry"], operation["token"]))
        if found is None:
            self.orphans.append(operation)
            return
        name = {"heartbeat": "beats", "run": "runs"}.get(operation["op"], "ends")
        getattr(found[0], name).append(operation)

    @property
    def all_leases(self) -> Iterator[Lease]:
        for leases in self.leases.values():
            yield from leases

    def inserted(self, data: str) -> int | None:
        """The date of the data; None for those of a schedule."""
        put = self.put_of.get(data)
        return None if put is None else put["inserted"]

    def maybe_cancelled(self, put: Operation) -> bool:
        """Whether a cancellation may have come after a put: it did not end before that began."""
        return any(one["end"] is None or one["end"] >= put["start"] for one in self.cancels[put["key"]])

    def lines(self, key: str) -> tuple[Operation, ...]:
        """All that was done with a key, in the order of its beginnings."""
        found = [*self.puts[key], *self.cancels[key], *(line for lease in self.leases[key] for line in lease.lines)]
        return tuple(sorted(found, key=lambda line: line["start"]))

    def finding(self, rule: str, key: str, text: str) -> Finding:
        return Finding(rule, f"{self.name}, {key!r}: {text}", self.lines(key))


def load(paths: Iterable[Path]) -> list[Operation]:
    """The operations of some files. Each has a line when it began, and one with the same id when it ended.

    The last line of a killed process may be cut off.
    """
    found: dict[str, Operation] = {}
    for path in paths:
        for line in path.read_bytes().split(b"\n")[:-1]:
            part = json.loads(line)
            found.setdefault(part["id"], {"end": None, "outcome": "unknown"}).update(part)
    return sorted(found.values(), key=lambda operation: operation["start"])


def check(operations: Sequence[Operation], queues: Mapping[str, QueueLimits]) -> list[Finding]:
    """What does not hold; nothing, if all is well."""
    by_queue: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_queue[operation["queue"]].append(operation)
    histories = [QueueHistory(name, by_queue[name], limits) for name, limits in queues.items()]
    return [finding for history in histories for rule in RULES for finding in rule(history)]


def nothing_lost(history: QueueHistory) -> Iterator[Finding]:
    """What was acknowledged was done in a run that began after it, with its data or newer ones, or it is still there:
    waiting, running, or as a dead letter that says why."""
    there, dead = _remains(history)
    for key, puts in history.puts.items():
        for put in puts:
            if put["outcome"] != "ok" or put["result"] not in STORED or put["expires"]:
                continue
            if history.maybe_cancelled(put):
                continue
            remains = [*there.get(key, ()), *dead.get(key, ())]
            if any(_covers(history, found["data"], put) for found in remains):
                continue
            runs = [lease for lease in history.leases[key] if lease.claimed >= put["start"]]
            if not any(lease.maybe_done and _covers(history, lease.data, put) for lease in runs):
                yield history.finding("lost", key, f"{put['data']} was acknowledged, and neither done nor there")
    for key, letters in dead.items():
        for letter in letters:
            if not letter["cause"] or not letter["reason"]:
                yield history.finding("lost", key, f"the dead letter {letter['entry']} does not say why")


def _remains(history: QueueHistory) -> tuple[dict[str, list[Operation]], dict[str, list[Operation]]]:
    there: dict[str, list[Operation]] = defaultdict(list)
    dead: dict[str, list[Operation]] = defaultdict(list)
    if history.counts:
        end = history.counts[-1]
        for found in (*end["waiting"], *end["running"]):
            there[found["key"]].append(found)
        for found in end["dead"]:
            dead[found["key"]].append(found)
    return there, dead


def _covers(history: QueueHistory, data: str, put: Operation) -> bool:
    """Whether these are the data of a put, or newer ones."""
    inserted = history.inserted(data)
    return inserted is not None and inserted >= put["inserted"]


def handles_never_repeat(history: QueueHistory) -> Iterator[Finding]:
    """One claim has a handle, and a function runs once under it."""
    for handle, leases in history.by_handle.items():
        if len(leases) > 1:
            yield history.finding("handle", leases[0].key, f"the handle {handle} was given {len(leases)} times")
        for lease in leases:
            if len(lease.runs) > 1:
                yield history.finding("handle", lease.key, f"{len(lease.runs)} runs under the handle {handle}")
    for operation in history.orphans:
        yield Finding("handle", f"{history.name}: no claim had this handle", (operation,))


def one_at_a_time(history: QueueHistory) -> Iterator[Finding]:
    """No key has two valid handles at once: the next claim comes after the last one's end, or after its lease.

    A handle that was lost to another claim changes nothing any more.
    """
    for key, leases in history.leases.items():
        for number, lease in enumerate(leases):
            for later in leases[number + 1 :]:
                ended = lease.maybe_ended
                if (ended is None or ended > later.claimed) and lease.held_until >= later.claimed:
                    text = f"{lease.entry, lease.token} was valid when {later.entry, later.token} was claimed"
                    yield history.finding("twice", key, text)
                for operation in (*lease.beats, *lease.ends):
                    if operation["outcome"] == "ok" and operation["start"] > later.claimed:
                        text = f"{operation['op']} under {lease.entry, lease.token}, lost at {later.claimed}"
                        yield history.finding("fence", key, text)


def latest_data(history: QueueHistory) -> Iterator[Finding]:
    """A run sees what was acknowledged before it began, or newer data; and only what was put."""
    for key, leases in history.leases.items():
        acknowledged = [put for put in history.puts[key] if put["outcome"] == "ok" and put["result"] in STORED]
        for lease in leases:
            seen = history.put_of.get(lease.data)
            if seen is None:
                if not _is_scheduled(history, key):
                    yield history.finding("phantom", key, f"no put had the data {lease.data}")
                continue
            if seen["key"] != key or seen["outcome"] == "fail" or seen["start"] > lease.claimed:
                yield history.finding("phantom", key, f"{lease.data} was refused, or put later or elsewhere")
            for put in acknowledged:
                newer = put["end"] < lease.claimed and put["inserted"] > seen["inserted"]
                # A successor that waited for too long is gone, and what ran before it may run again.
                newer = newer and not (put["result"] in SUCCESSORS and 0 < put.get("expires", 0) < lease.claimed)
                if newer and not _was_over(history, leases, put, seen) and not history.maybe_cancelled(put):
                    text = f"{lease.entry, lease.token} has {lease.data}, and {put['data']} was acknowledged before"
                    yield history.finding("stale", key, text)


def _was_over(history: QueueHistory, leases: Sequence[Lease], put: Operation, late: Operation) -> bool:
    """Whether newer data may have been done before a late put, whose answer came after that, was stored."""
    covering = [lease for lease in leases if lease.maybe_done and _covers(history, lease.data, put)]
    ends = [lease.maybe_ended for lease in covering]
    return any(end is not None and (late["end"] is None or end <= late["end"]) for end in ends)


def done_stays_done(history: QueueHistory) -> Iterator[Finding]:
    """What was put, done, and acknowledged both times does not run again."""
    for key, leases in history.leases.items():
        for number, lease in enumerate(leases):
            put, done_at = history.put_of.get(lease.data), lease.done_at
            if put is None or put["end"] is None or put["end"] >= lease.claimed or done_at is None:
                continue
            if _has_late_successor(history, lease, put, done_at):
                continue
            for later in leases[number + 1 :]:
                if later.data == lease.data and later.claimed > done_at:
                    yield history.finding("again", key, f"{lease.data} was done and runs again")


def _has_late_successor(history: QueueHistory, lease: Lease, newest: Operation, done_at: int) -> bool:
    """Whether a put of older data may have come while this ran: the run that it is due has the newest data."""
    return any(
        put["inserted"] < newest["inserted"]
        and put.get("result", SUCCESSORS[0]) in SUCCESSORS
        and put["start"] <= done_at
        and (put["end"] is None or put["end"] >= lease.claimed)
        for put in history.puts[lease.key]
        if put["outcome"] != "fail"
    )


def blocks_outlasted(operations: Iterable[Operation]) -> int:
    """How many jobs that held up their loops for longer than a lease got heartbeats meanwhile, and were then done.

    No rule: a process that was stopped, or whose server was, loses its leases as it should.
    """
    by_queue: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_queue[operation["queue"]].append(operation)
    count = 0
    for name, found in by_queue.items():
        for lease in QueueHistory(name, found, QueueLimits()).all_leases:
            blocked = [run for run in lease.runs if run.get("blocks") and run["end"] is not None]
            for run in blocked:
                kept = any(
                    beat["outcome"] == "ok" and run["start"] < beat["start"] and beat["end"] < run["end"]
                    for beat in lease.beats
                )
                count += kept and lease.done_at is not None and run["end"] - run["start"] > lease.lease_ms
    return count


def never_early(history: QueueHistory) -> Iterator[Finding]:
    """No claim before the date of any put that it has in it, and none after it has expired."""
    for key, leases in history.leases.items():
        before = 0  # the last claim: what was put before it may be in that one
        for lease in leases:
            own = history.put_of.get(lease.data)
            inside = [put for put in history.puts[key] if _is_inside(put, lease, before)]
            for put in [*inside, *([own] if own is not None else [])]:
                if lease.claimed < put["due"]:
                    text = f"{put['data']} was due at {put['due']}, and claimed at {lease.claimed}"
                    yield history.finding("early", key, text)
            if lease.claimed < lease.due:
                yield history.finding("early", key, f"due at {lease.due}, and claimed at {lease.claimed}")
            if lease.expires and lease.claimed > lease.expires:
                yield history.finding("late", key, f"expired at {lease.expires}, and claimed at {lease.claimed}")
            before = lease.claimed


def _is_inside(put: Operation, lease: Lease, before: int) -> bool:
    """Whether a put is certainly part of what was claimed: acknowledged for this entry, and after the last claim."""
    acknowledged = put["outcome"] == "ok" and put["result"] in STORED and put["entry"] == lease.entry
    return acknowledged and put["start"] > before and put["end"] < lease.claimed


def limits_hold(history: QueueHistory) -> Iterator[Finding]:
    """Never more at once than allowed, never more starts in any window."""
    limits = history.limits
    leases = sorted(history.all_leases, key=_claimed_and_ended)
    yield from _check_limits(history.name, "", leases, limits.max_in_flight, limits.rate)
    for group in sorted({lease.group for lease in leases} - {""}):
        mine = [lease for lease in leases if lease.group == group]
        most, rate = limits.max_in_flight_per_group, limits.rate_per_group
        yield from _check_limits(f"{history.name}, {group}", "group ", mine, most, rate)


def _claimed_and_ended(lease: Lease) -> tuple[int, float]:
    """Which of two that were claimed within a millisecond was first is not known: one that had ended by then may be."""
    return lease.claimed, math.inf if lease.maybe_ended is None else lease.maybe_ended


def _check_limits(
    name: str, rule: str, leases: Sequence[Lease], most: int | None, rate: tuple[int, int] | None
) -> Iterator[Finding]:
    if most is not None:
        for text, lines in _check_in_flight(leases, most):
            yield Finding(f"{rule}in flight", f"{name}: {text}", lines)
    if rate is not None:
        count, window = rate
        for first, last in zip(leases, leases[count:], strict=False):
            if last.claimed - first.claimed < window:
                text = f"{name}: more than {count} starts from {first.claimed} to {last.claimed}"
                yield Finding(f"{rule}rate", text, (*first.lines, *last.lines))


def _check_in_flight(leases: Sequence[Lease], most: int) -> Iterator[tuple[str, tuple[Operation, ...]]]:
    """Each counts as long as it was certainly valid."""
    running: list[tuple[int, Lease]] = []
    for lease in leases:
        running = [(until, one) for until, one in running if until > lease.claimed]
        if len(running) >= most:
            yield f"more than {most} at {lease.claimed}", tuple(line for _, one in running for line in one.lines)
        until, ended = lease.held_until + 1, lease.maybe_ended
        running.append((until if ended is None else min(until, ended), lease))


def counts_are_true(history: QueueHistory) -> Iterator[Finding]:
    """What `stats` says equals what is there, counted one by one."""
    for count in history.counts:
        stats = count["stats"]
        said = (stats["ready"] + stats["delayed"], stats["running"], stats["dead"])
        found = tuple(len(count[name]) for name in ("waiting", "running", "dead"))
        if said != found:
            text = f"{history.name}: stats say {said} wait, run, are dead, and a count {found}"
            yield Finding("count", text, ({**count, "waiting": [], "running": [], "dead": []},))
        keys = [found["key"] for found in (*count["waiting"], *count["running"])]
        for key in {key for key in keys if keys.count(key) > 1}:
            yield history.finding("count", key, "a key has two rows")


def schedules_fire_once(history: QueueHistory) -> Iterator[Finding]:
    """Each time from the first `set` to the `pause` is put once; with `one`, times that wait together are one run.

    With `none` times that nothing looked at in time are left out.
    """
    for name, sets in history.schedules.items():
        accepted = [one for one in sets if one["outcome"] == "ok"]
        if not accepted:
            continue
        known = min(accepted, key=lambda one: one["end"])
        if known["catch_up"] == "all":
            yield from _check_all_times(history, name, known)
        else:
            yield from _check_one_key(history, name, known)


def _due_times(history: QueueHistory, name: str, known: Operation) -> range:
    """The times that certainly had to come. The latest moment at which the schedule was looked at is its pause."""
    every, pause = known["every"], history.pauses.get(name)
    until = 0 if pause is None or pause["outcome"] != "ok" else pause["start"]
    first = (known["end"] + 1 + every - 1) // every * every
    return range(first, max(first, until), every)


def _check_all_times(history: QueueHistory, name: str, known: Operation) -> Iterator[Finding]:
    """Each time has a key of its own, `name@…`, which nothing else puts."""
    by_time: dict[int, str] = {}
    for key in (*history.leases, *_keys_that_remain(history)):
        if key.startswith(f"{name}@"):
            by_time[_time_of(key)] = key
    for time in _due_times(history, name, known):
        if time not in by_time:
            yield Finding("missed", f"{history.name}, {name}: nothing was put for {time}", (known,))
    for time, key in by_time.items():
        if time % known["every"]:
            yield history.finding("schedule", key, f"{time} is no time of it")
        yield from _check_done_once(history, key)


def _check_done_once(history: QueueHistory, key: str) -> Iterator[Finding]:
    done = False
    for lease in history.leases[key]:
        if done:
            yield history.finding("fired twice", key, f"claimed at {lease.claimed} after it was done")
        done = done or lease.done_at is not None


def _keys_that_remain(history: QueueHistory) -> list[str]:
    there, dead = _remains(history)
    return [*there, *dead]


def _time_of(key: str) -> int:
    return round(datetime.fromisoformat(key.rpartition("@")[2]).timestamp() * 1000)


def _check_one_key(history: QueueHistory, name: str, known: Operation) -> Iterator[Finding]:
    """All times have one key. A job has those from its `inserted` to its `dated`: no time is in two that were done."""
    leases = history.leases[name]
    there, dead = _remains(history)
    last = max((lease.dated for lease in leases if lease.maybe_done), default=0)
    for time in _due_times(history, name, known):
        left_out = history.limits.refuses_busy or known["catch_up"] == "none"
        if time > last and name not in there and name not in dead and not left_out:
            yield history.finding("missed", name, f"nothing ran for {time}")
            break
    done = [lease for lease in leases if lease.done_at is not None]
    for lease in leases:
        if lease.inserted % known["every"] or lease.dated % known["every"]:
            yield history.finding("schedule", name, f"{lease.inserted} to {lease.dated} are no times of it")
    for lease, later in pairwise(done):
        if later.inserted <= lease.dated:
            text = f"{lease.entry, lease.token} and {later.entry, later.token} are both done, for {later.inserted}"
            yield history.finding("fired twice", name, text)


def _is_scheduled(history: QueueHistory, key: str) -> bool:
    return key.partition("@")[0] in history.schedules


RULES: tuple[Callable[[QueueHistory], Iterator[Finding]], ...] = (
    nothing_lost,
    handles_never_repeat,
    one_at_a_time,
    latest_data,
    done_stays_done,
    never_early,
    limits_hold,
    counts_are_true,
    schedules_fire_once,
)
