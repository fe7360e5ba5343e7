"""Looking at a shard: what could be claimed and in which order, what is due and when. It changes nothing."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

from everlog.config.queue_options import QueueSettings
from everlog.queues import rules
from everlog.queues.operations import (
    AskDue,
    AskHead,
    AskStats,
    DueAnswer,
    Get,
    JobPlace,
    ListDead,
    ListFlags,
    ListLeases,
    Peek,
    QueueAnswer,
    Stats,
)
from everlog.queues.rows import Flag, JobRow
from everlog.queues.table import QueueTable

END_OF_TIME = 2**62


class Looking:
    """What can be asked of a table under a queue's settings."""

    def __init__(self, table: QueueTable, settings: QueueSettings) -> None:
        self.table = table
        self.settings = settings

    def _room(self, now: int) -> int:
        """How many more may start now: the limits are exact, because every claim is one step after another."""
        room = 1 << 31
        if self.settings.max_in_flight is not None:
            room = min(room, self.settings.max_in_flight - self.table.live_leases(now))
        rate = self.settings.rate_limit
        if rate is not None:
            room = min(room, rate.count - len(self.table.starts(now - rate.window_ms)))
        return max(0, room)

    def _first(self, count: int, now: int, fast_only: bool) -> list[JobRow]:
        """The first `count` claimable rows in order, under the rule for slow ones."""
        if count <= 0:
            return []
        threshold = self.settings.slow_threshold
        if threshold is None:
            return list(islice(self._in_order(count, now), count))
        chosen: list[JobRow] = []
        for row in self._in_order(count, now):
            slow = row.image.priority >= threshold
            if slow and fast_only:
                continue
            chosen.append(row)
            fast_only = fast_only or not slow
            if len(chosen) == count:
                break
        return chosen

    def _in_order(self, count: int, now: int) -> Iterator[JobRow]:
        """Claimable rows, the first one first. Lazy, one priority after the other.

        With aging the priorities are merged: within one, the oldest row is also the most urgent.
        """
        if not self.settings.aging:
            for priority in self.table.priorities():
                yield from self.table.due(priority, now, count)
            return

        def urgency(row: JobRow) -> tuple[int, int, bytes, int]:
            return (rules.effective_priority(row.image, now, self.settings), *row.order[1:])

        lists = [self.table.due(priority, now, count) for priority in self.table.priorities()]
        yield from heapq.merge(*lists, key=urgency)

    def _get(self, operation: Get, now: int) -> list[JobRow]:
        """The rows of a key as they are, unless they have expired; it changes nothing."""
        return [row for row in self.table.find(operation.hash, operation.key) if not rules.is_expired(row.image, now)]

    def _peek(self, operation: Peek, now: int) -> list[JobRow]:
        return list(self.table.page(operation.after, now, operation.limit))

    def _leases(self, operation: ListLeases, now: int) -> list[JobRow]:
        """A lease that ends at some time is over at the end of all time."""
        return list(self.table.overdue(END_OF_TIME, operation.limit))

    def _dead_letters(self, operation: ListDead, now: int) -> QueueAnswer:
        oldest = now - self.settings.dead_letter_ttl
        letters = self.table.dead_letters(operation.before, operation.limit)
        return [letter for letter in letters if letter.dead_ms > oldest]

    def _flags(self, operation: ListFlags, now: int) -> list[Flag]:
        return list(self.table.flags())

    def _stats(self, operation: AskStats, now: int) -> Stats:
        ready, delayed, running, oldest = self.table.counts(now)
        return Stats(ready, delayed, running, self.table.count_dead(), self.table.paused(), oldest)

    def _due(self, operation: AskDue, now: int) -> DueAnswer:
        """What listeners are to be woken for. A limit that blocks everything also says when it ends."""
        times = self.table.times(now)
        moments = [
            times.process_ms,
            None if times.deadline_ms is None else times.deadline_ms + 1,
            None if times.expires_s is None else times.expires_s * 1000 + 1,
        ]
        rate = self.settings.rate_limit
        if rate is not None:
            starts = self.table.starts(now - rate.window_ms)
            if len(starts) >= rate.count:
                moments.append(starts[len(starts) - rate.count] + rate.window_ms)
        future = [moment for moment in moments if moment is not None and moment > now]
        due = 0
        if not self.table.paused():
            limit = min(operation.limit, self._room(now))
            due = len(self._first(limit, now, fast_only=False))
            due = min(limit, due + len(self.table.overdue(now, limit))) if due < limit else due
        return DueAnswer(due, min(future, default=None))

    def _head(self, operation: AskHead, now: int) -> JobPlace | None:
        """What a claim would begin with. An overdue row counts: the claim would turn it over first."""
        if self.table.paused() or not self._room(now):
            return None
        rows = [*self._first(1, now, operation.fast_only), *self.table.overdue(now, 1)]
        return min((row.order for row in rows), default=None)
