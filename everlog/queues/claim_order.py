"""What may start at one moment, and in which order: the limits of a queue and of its groups, and whose turn it is.

The order: the priority; then the group whose last start is longest ago, one that never started first; then the Process
Date, the hash, the entry. Jobs without a group are one group among the others, which no limit of groups holds for.

Starts are noted as turns only while jobs with a group wait: so a queue without groups costs one look per claim. What
did not count then makes its group go first once, and no more.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TypeAlias

from everlog.config.queue_options import QueueSettings
from everlog.queues import rules
from everlog.queues.operations import JobPlace
from everlog.queues.rows import JobRow
from everlog.queues.table import QueueTable

BEGINNING_OF_TIME_MS = 0
NO_LIMIT = 1 << 31
# Turns that are taken here come after all that a table knows.
FIRST_TURN = 1 << 62

_Head: TypeAlias = tuple[int, int, tuple[int, bytes, int], int, str]
"""The first due row of a group in a priority: urgency, turn, place in the priority, priority, group."""
Skip = Callable[[int], bool]
"""Whether jobs of a priority are left out, as it is now."""


class ClaimOrder:
    """The order of a table's due jobs at one moment; it changes nothing but by `note_starts`.

    `unswept`: how many overdue rows the claim to come turns over first; 0: that was done. A lease that is overdue
    counts until it is swept, for its worker may still keep it. `overdue`: a row that is ordered as if it were swept.
    """

    def __init__(
        self, table: QueueTable, settings: QueueSettings, now: int, *, unswept: int = 0, overdue: JobRow | None = None
    ) -> None:
        self._table = table
        self._settings = settings
        self._now = now
        self._unswept = unswept
        self._overdue = overdue
        self._shared: bool | None = None
        self._rooms: dict[str, int] = {"": NO_LIMIT}
        self._turns: dict[str, int] = {}
        self._next_turn = FIRST_TURN
        # Groups that have a job to start and no room: all of them, if fewer rows were found than were wanted.
        self.blocked: set[str] = set()

    def room(self) -> int:
        """How many more of the queue may start now: the limits are exact, because claims are one after the other."""
        room = NO_LIMIT
        if self._settings.max_in_flight is not None:
            in_flight = self._table.live_leases(BEGINNING_OF_TIME_MS)
            if self._unswept:
                in_flight -= len(self._table.overdue(self._now, self._unswept))
            room = min(room, self._settings.max_in_flight - in_flight)
        rate = self._settings.rate_limit
        if rate is not None:
            room = min(room, rate.count - len(self._table.starts(self._now - rate.window_ms)))
        return max(0, room)

    def room_of(self, group: str) -> int:
        """How many more of a group may start now, after those that were chosen here."""
        found = self._rooms.get(group)
        if found is None:
            found = self._rooms[group] = self._count_room(group)
        return found

    def lift_limits(self, group: str) -> None:
        """Order the jobs of a group as if it had no limit."""
        self._rooms[group] = NO_LIMIT

    def _count_room(self, group: str) -> int:
        room = NO_LIMIT
        if self._settings.max_in_flight_per_group is not None:
            room = min(room, self._settings.max_in_flight_per_group - self.in_flight(group))
        rate = self._settings.rate_limit_per_group
        if rate is not None:
            room = min(room, rate.count - len(self._table.group_starts(group, self._now - rate.window_ms)))
        return max(0, room)

    def in_flight(self, group: str) -> int:
        """How many of a group run, under the group that they were claimed under."""
        return self._table.group_leases(group) - self._overdue_groups[group]

    @cached_property
    def _overdue_groups(self) -> Counter[str]:
        overdue = self._table.overdue(self._now, self._unswept) if self._unswept else ()
        return Counter(row.image.group for row in overdue)

    def window_ends(self, group: str) -> int | None:
        """When the rate limit lets the next one of a group start; None if it does so now."""
        rate = self._settings.rate_limit_per_group
        if rate is None or not group:
            return None
        starts = self._table.group_starts(group, self._now - rate.window_ms)
        return None if len(starts) < rate.count else starts[len(starts) - rate.count] + rate.window_ms

    def first(self, count: int, *, fast_only: bool = False) -> list[JobRow]:
        """The first `count` rows that a claim takes, under the rule for slow ones: none of them beside a fast one."""
        threshold = self._settings.slow_threshold
        if count <= 0 or threshold is None:
            return list(islice(self.walk(count), max(0, count)))
        chosen: list[JobRow] = []

        def is_left_out(priority: int) -> bool:
            return fast_only and priority >= threshold

        for row in self.walk(count, is_left_out):
            chosen.append(row)
            fast_only = fast_only or row.image.priority < threshold
            if len(chosen) == count:
                break
        return chosen

    def take_overdue(self, rows: Sequence[JobRow], count: int) -> int:
        """How many of these overdue rows have room in their groups, beside those that were chosen; at most `count`."""
        taken = 0
        for row in rows:
            if taken < count and not self._is_blocked(row.image.group):
                self._rooms[row.image.group] -= 1
                taken += 1
        return taken

    def walk(self, count: int, skip: Skip | None = None) -> Iterator[JobRow]:
        """Due rows, the first one first, each chosen when it is handed out. Lazy, one priority after the other.

        No more than `count` of them are worth a look. With aging the priorities are merged: within one, the oldest row
        of a group is also its most urgent.
        """
        priorities = self._priorities()
        levels = [list(priorities)] if self._settings.aging_ms else ([priority] for priority in priorities)
        for level in levels:
            yield from self._by_turns(level, count, skip) if self._is_shared() else self._by_date(level, count, skip)

    def _is_shared(self) -> bool:
        """Whether groups take turns: as soon as a job with a group waits."""
        if self._shared is None:
            self._shared = self._table.groups_wait() or bool(self._overdue and self._overdue.image.group)
        return self._shared

    def _priorities(self) -> Iterable[int]:
        found = self._table.priorities(grouped=self._is_shared())
        return found if self._overdue is None else sorted({*found, self._overdue.image.priority})

    def _due(self, priority: int, group: str, limit: int) -> Sequence[JobRow]:
        rows = self._table.due(priority, self._now, limit, group)
        late = self._overdue
        if late is None or (late.image.priority, late.image.group) != (priority, group):
            return rows
        return sorted([*rows, late], key=lambda row: row.order)[:limit]

    def _heads(self, priority: int) -> Iterator[tuple[str, JobPlace]]:
        """The place of the first due row of each group."""
        heads = dict(self._table.heads(priority, self._now))
        late = self._overdue
        if late is not None and late.image.priority == priority:
            heads[late.image.group] = min(heads.get(late.image.group, late.order), late.order)
        yield from heads.items()

    def _by_date(self, level: Sequence[int], count: int, skip: Skip | None) -> Iterator[JobRow]:
        lists = [self._due(priority, "", count) for priority in level if skip is None or not skip(priority)]
        rows = lists[0] if len(lists) == 1 else heapq.merge(*lists, key=self._urgency)
        yield from rows if skip is None else (row for row in rows if not skip(row.image.priority))

    def _urgency(self, row: JobRow) -> tuple[int, int, bytes, int]:
        return (self._effective(row.image.priority, row.image.process_ms), *row.order[1:])

    def _effective(self, priority: int, process_ms: int) -> int:
        return rules.aged_priority(priority, process_ms, self._now, self._settings)

    def _by_turns(self, level: Sequence[int], count: int, skip: Skip | None) -> Iterator[JobRow]:
        """The first of all heads, again and again: a group that was chosen has the last turn then.

        A head that stands in the heap under an old turn of its group is put in again.
        """
        heads = self._make_heads(level, skip)
        heapq.heapify(heads)
        share = 1 + -(-count // max(1, len(heads)))
        lists: dict[tuple[int, str], _DueRows] = {}
        while heads:
            _, turn, _, priority, group = heads[0]
            if (skip is not None and skip(priority)) or self._is_blocked(group):
                heapq.heappop(heads)
                continue
            if turn != self._turns[group]:
                heapq.heapreplace(heads, (heads[0][0], self._turns[group], *heads[0][2:]))
                continue
            if (priority, group) not in lists:
                lists[priority, group] = _DueRows(partial(self._due, priority, group), share)
            rows = lists[priority, group]
            row = rows.take()
            if row is None:  # it is gone: what only reads does so without a transaction
                heapq.heappop(heads)
                continue
            self._choose(group)
            following = rows.first()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, self._head(group, following.order))
            yield row

    def _choose(self, group: str) -> None:
        self._rooms[group] -= 1
        self._turns[group] = self._next_turn
        self._next_turn += 1

    def _is_blocked(self, group: str) -> bool:
        if self.room_of(group):
            return False
        self.blocked.add(group)
        return True

    def _make_heads(self, level: Sequence[int], skip: Skip | None) -> list[_Head]:
        """One for each group and priority with a due row."""
        found: list[tuple[str, JobPlace]] = []
        for priority in level:
            if skip is None or not skip(priority):
                found += self._heads(priority)
        unknown = {group for group, _ in found if group not in self._turns}
        self._turns.update(dict.fromkeys(unknown, 0))
        self._turns.update(self._table.turns(unknown))
        return [self._head(group, place) for group, place in found]

    def _head(self, group: str, place: JobPlace) -> _Head:
        urgency = self._effective(*place[:2]) if self._settings.aging_ms else place[0]
        return urgency, self._turns[group], place[1:], place[0], group

    def note_starts(self, rows: Sequence[JobRow]) -> None:
        """Rows that were chosen here are started: it counts for the rates, and as the turns of their groups."""
        if not rows:
            return
        rate, group_rate = self._settings.rate_limit, self._settings.rate_limit_per_group
        if rate is not None:
            self._table.add_starts(self._now, len(rows), self._now - rate.window_ms)
        if not self._is_shared():
            return
        groups = [row.image.group for row in rows]
        self._table.add_turns(list(reversed(dict.fromkeys(reversed(groups)))))
        limited = Counter(group for group in groups if group)
        if limited and group_rate is not None:
            self._table.add_group_starts(self._now, limited, self._now - group_rate.window_ms)


class _DueRows:
    """The due rows of one group in a priority. Fetched in parts that grow: most groups give one or two."""

    def __init__(self, fetch: Callable[[int], Sequence[JobRow]], limit: int) -> None:
        self._fetch = fetch
        self._limit = limit
        self._rows = fetch(limit)
        self._taken = 0

    def first(self) -> JobRow | None:
        if self._taken == len(self._rows) == self._limit:
            self._limit *= 2
            self._rows = self._fetch(self._limit)
        return self._rows[self._taken] if self._taken < len(self._rows) else None

    def take(self) -> JobRow | None:
        row = self.first()
        self._taken += 1
        return row
