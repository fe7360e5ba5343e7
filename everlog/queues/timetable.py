"""The schedules of a queue: set, paused, removed, and fired. See `schedule` for what must hold."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

from everlog.queues.keys import decode_key, encode_key, hash_key
from everlog.queues.operations import PutAnswer
from everlog.queues.rows import Packet
from everlog.queues.schedule import (
    MAX_MISSED,
    MAX_SCHEDULES,
    ScheduleRow,
    due_times,
    fired,
    paused,
    replaced,
    time_text,
)
from everlog.queues.table import QueueTable

logger = logging.getLogger("everlog.queues")


class Timetable:
    """The schedules in a table. Its calls are parts of one operation of the engine."""

    def __init__(self, table: QueueTable) -> None:
        self._table = table

    def set(self, wanted: ScheduleRow, now: int) -> ScheduleRow | None:
        """Keep it, or replace the one of its name; None if there are too many."""
        found = {row.name: row for row in self._table.schedules()}
        before = found.get(wanted.name)
        if before is None and len(found) >= MAX_SCHEDULES:
            return None
        row = replaced(before, wanted, now)
        if row != before:
            self._table.save_schedule(row)
        return row

    def pause(self, name: str, pause: bool, now: int) -> ScheduleRow | None:
        """Pause or resume; None if it is not there."""
        before = self._find(name)
        if before is None:
            return None
        row = paused(before, pause, now)
        if row != before:
            self._table.save_schedule(row)
        return row

    def remove(self, name: str) -> bool:
        """Whether it was there. The jobs that it has put stay."""
        found = self._find(name) is not None
        if found:
            self._table.drop_schedule(name)
        return found

    def wait_ms(self, now: int) -> int | None:
        """How long until the next time; 0 if it has come."""
        rows = self._table.schedules()
        for row in rows:
            if row.problem is not None:
                _warn_once(row.name, row.problem)
        moments = [row.next_ms for row in rows]
        return min((max(0, moment - now) for moment in moments if moment is not None), default=None)

    def fire(self, now: int, limit: int, put: Callable[[Packet], PutAnswer]) -> int:
        """Put the jobs of all times that have come; how many. One schedule is fired whole."""
        count = 0
        for row in self._table.schedules():
            times = due_times(row, now)
            if times is None:
                continue
            if len(times) == MAX_MISSED:
                logger.warning(
                    "the schedule %s was not looked at for long: at most %d times are put", row.name, MAX_MISSED
                )
            entry = None
            for at in times:
                entry = put(_packet(row, at)).entry
            self._table.mark_fired(fired(row, times, now), entry)
            count += len(times)
            if count >= limit:
                break
        return count

    def _find(self, name: str) -> ScheduleRow | None:
        return next((row for row in self._table.schedules() if row.name == name), None)


@lru_cache(maxsize=MAX_SCHEDULES)
def _warn_once(name: str, problem: str) -> None:
    """One schedule that cannot be read here must not stop the others, and is looked at every second."""
    logger.error("the schedule %s is not fired by this process: %s", name, problem)


def _packet(row: ScheduleRow, at: int) -> Packet:
    """The job of one time. It was sent and is due then, however late it is put: that is what `job.due` says."""
    key, key_hash = row.key, row.hash
    if row.catch_up == "all":
        name = decode_key(row.key)
        assert isinstance(name, str), "it was checked when the schedule was set"
        key = encode_key(f"{name}@{time_text(at)}")
        key_hash = hash_key(key)
    return Packet(key, key_hash, row.data, row.priority, at, at, schema=row.schema, kind=row.kind)
