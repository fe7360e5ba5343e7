"""Reading one journal, and the ids of all, as machines like the one for tags.

A journal's rows lie in partitions of a fixed number of events. An atomic write goes as a whole where its last event
belongs. So the event with a number is in the partition of that number or in the next one, and nowhere else.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from everlog.core.values import MAX_SEQ_NR
from everlog.errors import EverlogError, SeqNrMissing
from everlog.pekko.events import PekkoEvent
from everlog.pekko.forward_scan import first_poll
from everlog.pekko.pending_query import PendingQuery
from everlog.pekko.port import (
    Complete,
    Deliver,
    Effect,
    JournalRow,
    Now,
    ReadDeletedTo,
    ReadEvents,
    ReadIds,
    RowPage,
    Wait,
)
from everlog.pekko.settings import StageSettings
from everlog.pekko.time_buckets import offset_of

logger = logging.getLogger("everlog.pekko")

GAP_LOOK_MS = 200
MAX_EMPTY_PARTITIONS = 6

EventEffect: TypeAlias = Effect[PekkoEvent]


class JournalStage:
    """Events `first` to `last` of one journal, in order, without gaps unless the settings allow them."""

    def __init__(
        self,
        persistence_id: str,
        settings: StageSettings,
        now: Now,
        *,
        live: bool,
        first: int,
        last: int = MAX_SEQ_NR,
        chance: random.Random | None = None,
    ) -> None:
        self._id = persistence_id
        self._settings = settings
        self._live = live
        self._expected = max(first, 1)
        self._last = last
        chance = chance or random.Random()
        self._pending_query = PendingQuery(settings, chance)
        self._poll_at = now.steady + first_poll(settings.refresh_ms, chance)
        self._wait_until = now.steady

        self._asked_deleted = False
        self._pending: deque[JournalRow] = deque()
        self._reading: ReadEvents | None = None
        self._read_any = False
        self._empty = 0
        self._lowest = 0  # partition of the last event: the next one is not before it
        self._seen = 0  # the number that showed a gap; 0: there is none
        self._deadline = 0
        self._look_started = 0
        self._finished = False

    def step(self, now: Now, demand: int) -> Sequence[EventEffect]:
        while True:
            delivered: list[EventEffect] = []
            while len(delivered) < demand and (row := self._next_row(now)) is not None:
                delivered.append(self._deliver(row))
            if delivered or demand == 0:
                return delivered
            effect = self._pending_query.busy(now) or self._next(now)
            if not isinstance(effect, Wait) or effect.until > now.steady:
                return [effect]

    def answer(self, page: RowPage[Any], now: Now) -> None:
        query = self._pending_query.answered()
        if isinstance(query, ReadDeletedTo):
            self._asked_deleted = True
            if page.items[0] >= self._expected:
                self._expected = page.items[0] + 1
                self._seen, self._reading = 0, None
            return
        assert isinstance(query, ReadEvents)
        self._reading = query._replace(cursor=page.cursor)
        self._read_any = self._read_any or bool(page.items)
        self._pending.extend(page.items)

    def failed(self, error: EverlogError, now: Now) -> None:
        self._pending_query.failed(error, now)

    def _next_row(self, now: Now) -> JournalRow | None:
        """The next row that may go out; a gap drops what was read."""
        while self._pending and self._pending_query.error is None:
            row = self._pending.popleft()
            if row.seq_nr < self._expected:
                if row.seq_nr > 0:  # 0: a partition that was used and emptied
                    logger.warning("%s: seqNr %d comes again and is dropped", self._id, row.seq_nr)
                continue
            if row.seq_nr == self._expected or not self._settings.gap_free:
                self._end_gap()
                return row
            self._pending.clear()
            self._reading = None
            self._seen = row.seq_nr
            self._deadline = now.steady + self._settings.journal_gap_timeout_ms
            self._wait_until = now.steady
            self._asked_deleted = False  # perhaps the journal was deleted from meanwhile
        return None

    def _end_gap(self) -> None:
        """The missing one is there: go on reading where it is, all that follows."""
        if self._seen and self._reading is not None:
            self._lowest = self._reading.partition
            self._reading = None
        self._seen = 0

    def _deliver(self, row: JournalRow) -> Deliver[PekkoEvent]:
        assert row.seq_nr >= self._expected, "a journal's events go out by ascending number"
        self._expected = row.seq_nr + 1
        if self._reading is not None:
            self._lowest = self._reading.partition
        more = {"offset": offset_of(row.place), "tags": row.tags}
        return Deliver(PekkoEvent.of(self._id, row.seq_nr, row.place, row.content, **more))

    def _next(self, now: Now) -> EventEffect:
        if not self._asked_deleted:
            return self._pending_query.ask(ReadDeletedTo(self._id))
        if self._finished or self._expected > self._last:
            return Complete()
        if now.steady < self._wait_until:
            return Wait(self._wait_until)
        if self._reading is None:
            partition = max(self._lowest, partition_of(self._expected, self._settings.partition_size))
            self._look_started = now.steady
            return self._read(partition)
        if self._reading.cursor is not None:
            return self._pending_query.ask(self._reading)
        self._exhausted(self._reading.partition, now)
        return Wait(now.steady) if self._reading is None else self._read(self._reading.partition)

    def _read(self, partition: int) -> EventEffect:
        self._read_any = False
        last = self._expected if self._seen else self._last
        return self._pending_query.ask(ReadEvents(self._id, partition, self._expected, last))

    def _exhausted(self, partition: int, now: Now) -> None:
        """A partition has no more: on to the next one, or wait, or that was all."""
        assert self._reading is not None
        self._empty = 0 if self._read_any else self._empty + 1
        if self._settings.gap_free:
            more = partition <= partition_of(self._expected, self._settings.partition_size)
        else:
            more = self._empty < MAX_EMPTY_PARTITIONS
        if more:
            self._reading = self._reading._replace(partition=partition + 1)
            return
        self._reading = None
        if self._seen:
            if self._look_started >= self._deadline:
                self._pending_query.error = SeqNrMissing(self._id, self._expected, self._seen)
            self._wait_until = min(now.steady + GAP_LOOK_MS, max(self._deadline, now.steady))
        elif self._live and self._settings.gap_free:
            if self._poll_at <= now.steady:
                self._poll_at = now.steady + self._settings.refresh_ms
            self._wait_until = self._poll_at
        else:
            self._finished = True


class IdsStage:
    """The ids of all journals, each once; live: also those that appear later."""

    def __init__(self, settings: StageSettings, now: Now, *, live: bool, chance: random.Random | None = None) -> None:
        self._settings = settings
        self._live = live
        chance = chance or random.Random()
        self._pending_query = PendingQuery(settings, chance)
        self._poll_at = now.steady + first_poll(settings.refresh_ms, chance)
        self._wait_until = now.steady
        self._pending: deque[str] = deque()
        self._seen: set[str] = set()
        self._cursor: bytes | None = None
        self._finished = False

    def step(self, now: Now, demand: int) -> Sequence[Effect[str]]:
        if demand == 0 or self._pending:
            count = min(demand, len(self._pending))
            return [Deliver(self._pending.popleft()) for _ in range(count)]
        busy = self._pending_query.busy(now)
        if busy is not None:
            return [busy]
        if self._finished:
            return [Complete()]
        if now.steady < self._wait_until:
            return [Wait(self._wait_until)]
        return [self._pending_query.ask(ReadIds(self._cursor))]

    def answer(self, page: RowPage[Any], now: Now) -> None:
        self._pending_query.answered()
        for found in page.items:
            if found not in self._seen:
                self._seen.add(found)
                self._pending.append(found)
        self._cursor = page.cursor
        if page.cursor is None:
            self._finished = not self._live
            if self._poll_at <= now.steady:
                self._poll_at = now.steady + self._settings.refresh_ms
            self._wait_until = self._poll_at

    def failed(self, error: EverlogError, now: Now) -> None:
        self._pending_query.failed(error, now)


def partition_of(seq_nr: int, size: int) -> int:
    """Where an event is, if it was written alone.

    >>> [partition_of(number, 15) for number in (1, 15, 16, 31)]
    [0, 0, 1, 2]
    """
    return (seq_nr - 1) // size
