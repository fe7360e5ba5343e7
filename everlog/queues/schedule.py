"""A schedule as a queue keeps it, and the rule for its times. Pure: no clock, no I/O.

What must hold, on every store: **each time of a schedule becomes a put at most once, and exactly once if a worker or a
server looks within what `catch_up` allows.** `done_ms` is the mark: all times up to it are dealt with. The engine puts
the jobs and moves the mark in one operation, which its store makes durable as a whole; a second worker that fires at
the same moment finds the mark moved. Nothing here depends on what became of a job.

* In memory an operation is one step under a lock.
* In SQLite the mark is written to the bucket file in which the job was put, in its transaction; see `sqlite.table`.
* On Cassandra the owner of the shard that has the schedule's key appends mark and jobs to the fenced log in one
  conditional batch; an owner that was deposed cannot write, and the next one replays both or neither.

With `catch_up="all"` every time has a key of its own, `name@2026-01-31T02:30:00Z`: under one key, times that were
missed would merge into one run. To put them one after the other under the same key, each when the last has ended, would
make the schedule wait for the outcome of its jobs.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec

from everlog.errors import InvalidInput
from everlog.queues.recurrence import Recurrence, make_recurrence

CatchUp = Literal["one", "all", "none"]

MAX_SCHEDULES = 1000
MAX_NAME = 200
MAX_DATA_BYTES = 16 * 1024
# Of the times that were missed, as many are put with `all`: the last ones.
MAX_MISSED = 1000
# With `none`, a time that is longer ago was missed. Shorter than that, it may be a takeover or a busy machine.
MISSED_MS = 60_000


class ScheduleRow(msgspec.Struct, frozen=True, gc=False):
    """Puts a job again and again. `key`: that of the job, without the time that `all` adds.

    `fired_ms` is the time that was put last, `done_ms` that up to which all are dealt with: put, skipped, or before it
    began.
    """

    name: str
    key: bytes
    hash: bytes
    data: bytes
    priority: int
    every_ms: int | None = None
    cron: str | None = None
    timezone: str = "UTC"
    catch_up: CatchUp = "one"
    schema: int = 1
    paused: bool = False
    done_ms: int = 0
    fired_ms: int | None = None
    kind: str = ""

    @property
    def recurrence(self) -> Recurrence:
        return make_recurrence(self.every_ms, self.cron, self.timezone)

    @property
    def timing_text(self) -> str:
        """When, in words."""
        return f"{self.cron} {self.timezone}" if self.cron is not None else self.recurrence.text

    @property
    def problem(self) -> str | None:
        """Why no time of it is known here, if so: another process may have stored a time zone that this one lacks."""
        try:
            self.recurrence  # noqa: B018  # it is parsed
        except InvalidInput as error:
            return str(error)
        return None

    @property
    def next_ms(self) -> int | None:
        """The first time that is not dealt with; None while it is paused, and where its time zone is not known."""
        return None if self.paused or self.problem is not None else self.recurrence.after(self.done_ms)

    @property
    def declared(self) -> tuple[object, ...]:
        """What its declaration says: all but what has become of it."""
        return (*self.timing, self.key, self.data, self.priority, self.catch_up, self.schema, self.kind)

    @property
    def timing(self) -> tuple[object, ...]:
        return (self.every_ms, self.cron, self.timezone)


def replaced(before: ScheduleRow | None, wanted: ScheduleRow, now: int) -> ScheduleRow:
    """The schedule under a new declaration: an operator's pause stays, and so does what was fired.

    Times of a changed timing count from now on: it has missed none of those before. What was due by the old one is to
    be fired first.
    """
    if before is None:
        return msgspec.structs.replace(wanted, paused=False, done_ms=now, fired_ms=None)
    done_ms = before.done_ms if before.timing == wanted.timing else max(before.done_ms, now)
    return msgspec.structs.replace(wanted, paused=before.paused, done_ms=done_ms, fired_ms=before.fired_ms)


def paused(row: ScheduleRow, pause: bool, now: int) -> ScheduleRow:
    """The times of a pause are skipped on purpose: they were not missed."""
    if row.paused == pause:
        return row
    return msgspec.structs.replace(row, paused=pause, done_ms=row.done_ms if pause else max(row.done_ms, now))


def due_times(row: ScheduleRow, now: int) -> list[int] | None:
    """The times to be put now, in order; None if no time has come. None of them may be left: it was missed."""
    next_ms = row.next_ms
    if next_ms is None or next_ms > now:
        return None
    last = row.recurrence.up_to(now)
    assert last is not None, "a time has come"
    if row.catch_up == "none" and now - last > MISSED_MS:
        return []
    times = [last]
    while row.catch_up == "all" and len(times) < MAX_MISSED:
        before = row.recurrence.up_to(times[-1] - 1)
        if before is None or before <= row.done_ms:
            break
        times.append(before)
    return times[::-1]


def fired(row: ScheduleRow, times: list[int], now: int) -> ScheduleRow:
    """The schedule after its due times were put."""
    done_ms = row.recurrence.up_to(now)
    assert done_ms is not None, "a time has come"
    return msgspec.structs.replace(row, done_ms=done_ms, fired_ms=times[-1] if times else row.fired_ms)


def time_text(ms: int) -> str:
    """A time in a key, without fractions where there are none.

    >>> time_text(0), time_text(1500)
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:01.500Z')
    """
    spec = "milliseconds" if ms % 1000 else "seconds"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec=spec).replace("+00:00", "Z")
