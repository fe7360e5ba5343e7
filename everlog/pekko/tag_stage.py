"""The reading of one tag, as a machine without clock and without I/O.

Rows are read in the order of time, up to a delay before now. Three things go beyond that: a hole in a journal's
numbers starts a search; a look back every second finds events that came so late that the read had passed them; and
what was held back or found late goes out before anything else. Invariants:

* A journal's events go out by ascending number, each once. A number is left out only if the journal was not known yet.
* Every row up to the position was delivered, dropped as a repetition, or waits in a search or in `_late`.
* `ResumePoint` of an event names a place up to which all went out, and the journals that are ahead of it. No such place
  lies behind all events that went out.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias
from uuid import UUID

from everlog.errors import EventsMissing, EverlogError, TooManyMissing
from everlog.pekko.delivered import DeliveredNumbers, LastDelivered
from everlog.pekko.events import PekkoEvent, ResumePoint
from everlog.pekko.forward_scan import ForwardScan
from everlog.pekko.gap_search import AwaitedEvent, GapSearch, SearchRound, in_order
from everlog.pekko.key_scans import Backtrack, BacktrackScan, FirstLook, SeenNumbers
from everlog.pekko.pending_query import PendingQuery
from everlog.pekko.port import (
    Complete,
    Deliver,
    Effect,
    FetchRows,
    ListBuckets,
    Now,
    ReadRows,
    RowPage,
    TableQuery,
    TaggedRow,
    Wait,
)
from everlog.pekko.settings import StageSettings
from everlog.pekko.time_buckets import first_place, offset_of

logger = logging.getLogger("everlog.pekko")

# Rows that wait and missing numbers, of all searches together; beyond that, all rows wait and no search is opened.
MAX_HELD = 10_000

TagEffect: TypeAlias = Effect[PekkoEvent]


class TagStage:
    """Reads one tag after `origin`, up to a fixed end or forever."""

    def __init__(
        self,
        tag: str,
        settings: StageSettings,
        now: Now,
        *,
        live: bool,
        after: int | None = None,
        last: Iterable[tuple[str, int]] = (),
        chance: random.Random | None = None,
    ) -> None:
        self._tag = tag
        self._tags = frozenset((tag,))
        self._settings = settings
        self._buckets = settings.buckets
        chance = chance or random.Random()
        self._pending_query = PendingQuery(settings, chance)
        self._told: Callable[[TableQuery, RowPage[Any], Now], None] = self._rows_read
        self._read_next = False

        self._with_offset = after is not None
        self._origin = self._highest = first_place(settings.first_bucket) if after is None else after
        self._forward = ForwardScan(
            tag, settings, now, origin=self._origin, skip=after is None, live=live, chance=chance
        )
        self._known = DeliveredNumbers()
        for persistence_id, number in last:
            self._known.put(persistence_id, LastDelivered(number, self._origin, self._origin, now.steady))

        self._late: deque[AwaitedEvent] = deque()
        self._late_floor = 0
        self._searches: dict[str, GapSearch] = {}
        self._held = 0
        self._round: SearchRound | None = None

        self._forget_at = now.steady + (settings.forget_after_ms or 0)
        self._back = Backtrack(settings, now)
        self._back_scan: BacktrackScan | None = None
        self._stepped = now.steady
        self._look_since: int | None = None  # no read before a look back that begins then or later has ended
        self._first_look: FirstLook | None = None
        if after is not None and FirstLook.needed(after, settings, now):
            self._first_look = FirstLook(tag, after, settings, self._known, now)

    # What to do next.

    def step(self, now: Now, demand: int) -> Sequence[TagEffect]:
        if now.steady - self._stepped >= self._buckets.size and self._back.hurry(now):
            # The consumer paused. Reading on would skip more buckets than a look back covers.
            self._look_since = now.steady
        self._stepped = now.steady
        while True:
            delivered: list[TagEffect] = []
            while len(delivered) < demand and (row := self._next_row(now)) is not None:
                delivered.append(self._deliver(row, now))
            if delivered or demand == 0:
                return delivered
            effect = self._pending_query.busy(now) or self._next(now)
            if not isinstance(effect, Wait) or effect.until > now.steady:
                return [effect]

    def answer(self, page: RowPage[Any], now: Now) -> None:
        self._told(self._pending_query.answered(), page, now)

    def failed(self, error: EverlogError, now: Now) -> None:
        if self._back_scan is not None and self._told == self._looked_back and error.retriable:
            logger.warning("tag %s: a look back failed, the next one follows soon: %s", self._tag, error)
            self._pending_query.give_up()
            self._back_scan = None
        elif isinstance(self._pending_query.query, ListBuckets):
            logger.warning("tag %s: its buckets cannot be listed, they are looked for in order: %s", self._tag, error)
            self._pending_query.give_up()
            self._forward.give_up_list()
        else:
            self._pending_query.failed(error, now)

    def _next(self, now: Now) -> TagEffect:
        """The next query, or until when to wait. A wait that is over means: something changed, look again."""
        self._forget(now)
        looks = (self._search, self._look_back)
        # In turns: a long search does not hold up the read, nor the read a search.
        turns = (self._read, *looks) if self._read_next else (*looks, self._read)
        for choose in (self._look_first, *turns):
            effect = choose(now)
            if effect is not None:
                return effect
        return Wait(max(now.steady + 1, self._wake_at()))

    def _ask(self, query: TableQuery, told: Callable[[TableQuery, RowPage[Any], Now], None]) -> TagEffect:
        self._told = told
        self._read_next = not isinstance(query, ReadRows)
        return self._pending_query.ask(query)

    def _wake_at(self) -> int:
        times = [search.next_at for search in self._searches.values() if search.missing]
        if not self._blocked() and not self._forward.finished and self._look_since is None:
            times.append(self._forward.next_at)
        if self._back.next_at is not None and not (self._searches and self._settings.hold_all):
            times.append(self._back.next_at)
        assert times, "a reader that waits for nothing"
        return min(times)

    # Rows, and what becomes of them.

    def _blocked(self) -> bool:
        """Whether rows must not be looked at now, because a gap holds them all back."""
        return bool(self._searches) if self._settings.hold_all else self._held >= MAX_HELD

    def _next_row(self, now: Now) -> TaggedRow | None:
        """The next row that may go out."""
        while self._pending_query.error is None:
            if self._late:
                waiting = self._late.popleft()
                if self._may_go(waiting.row, now, sure=waiting.sure):
                    return waiting.row
            elif self._forward.pending and not self._blocked():
                row = self._forward.take()
                if self._may_go(row, now, sure=False):
                    return row
            else:
                return None
        return None

    def _may_go(self, row: TaggedRow, now: Now, *, sure: bool) -> bool:
        _, persistence_id, number = row.key
        search = self._searches.get(persistence_id)
        if search is not None:
            self._hold(search, row, now)
            return False
        last = self._known.get(persistence_id)
        if last is None:
            return sure or self._first_of_journal(row, now)
        if number <= last.number and not last.guess:
            expected = last.place == self._origin  # it went out before this reader was resumed
            level = logging.DEBUG if expected else logging.WARNING
            logger.log(level, "tag %s: number %d of %s comes again and is dropped", self._tag, number, persistence_id)
            return False
        if sure or number <= last.number + 1:
            return True
        self._open(
            persistence_id,
            range(last.number + 1, number),
            row,
            floor=last.place,
            timeout_ms=self._settings.gap_timeout_ms,
            now=now,
        )
        return False

    def _first_of_journal(self, row: TaggedRow, now: Now) -> bool:
        """Whether the first row of an unknown journal may go; if not, a search for the ones before it was opened."""
        place, persistence_id, number = row.key
        settings, bucket = self._settings, self._buckets.of_place(place)
        if number == 1:
            return True
        missing = range(1, number)
        if self._with_offset:
            if settings.new_id_timeout_ms == 0 or bucket < self._buckets.at(now.wall):
                return True
            # What is before the offset cannot be told from what is missing: look for the nearest only.
            missing = missing[-settings.max_missing :]
        elif self._known.forgot and len(missing) > settings.max_missing:
            return True  # known once, and all that a search could find would be known still
        floor = max(first_place(bucket - self._buckets.size), self._origin)
        self._open(persistence_id, missing, row, floor=floor, timeout_ms=settings.new_id_timeout_ms, now=now, soft=True)
        return False

    def _deliver(self, row: TaggedRow, now: Now) -> Deliver[PekkoEvent]:
        place, persistence_id, number = row.key
        last = self._known.get(persistence_id)
        assert last is None or last.guess or last.number < number, "a journal's events go out by ascending number"
        self._known.put(
            persistence_id, LastDelivered(number, place, max(place, last.highest) if last else place, now.steady)
        )
        self._highest = max(self._highest, place)
        if self._settings.verbose:
            logger.debug("tag %s: number %d of %s, seqNr %d", self._tag, number, persistence_id, row.seq_nr)
        offset = offset_of(place)
        more = {"tags": self._tags, "tag_seq_nr": number, "resume": self._resume(offset, place)}
        return Deliver(PekkoEvent.of(persistence_id, row.seq_nr, place, row.content, offset=offset, **more))

    def _resume(self, offset: UUID, place: int) -> ResumePoint:
        # Not behind the last event, though the read may be in a later bucket: what appears between is still found.
        position = min(self._forward.position, self._highest)
        if not self._searches and not self._late and position == place == self._highest:
            return ResumePoint(offset)
        floors = [search.floor for search in self._searches.values()]
        floor = min(position, *floors, self._late_floor if self._late else position)
        return ResumePoint(offset_of(floor), self._known.since(floor) if floor < self._highest else {})

    # Gaps and the search for what is missing.

    def _open(
        self,
        persistence_id: str,
        missing: range,
        shown: TaggedRow | int,
        *,
        floor: int,
        timeout_ms: int,
        now: Now,
        soft: bool = False,
    ) -> None:
        """Search numbers that a row has shown to be missing, or a look back up to a place."""
        if len(missing) > self._settings.max_missing:
            self._pending_query.error = TooManyMissing(
                self._tag, persistence_id, len(missing), self._settings.max_missing
            )
            return
        top = shown if isinstance(shown, int) else shown.key.place
        search = GapSearch(persistence_id, missing, floor=floor, top=top, deadline=now.steady + timeout_ms, soft=soft)
        search.next_at = now.steady
        self._searches[persistence_id] = search
        self._held += len(missing)
        if not isinstance(shown, int):
            search.held.append(shown)
            self._held += 1

    def _hold(self, search: GapSearch, row: TaggedRow, now: Now) -> None:
        """A row of a journal that is held back; it may be the very one that is missing."""
        if row.key.tag_seq_nr not in search.missing:
            search.held.append(row)
            self._held += 1
            return
        search.add(row)
        if not search.missing:
            self._release([search], now)

    def _search(self, now: Now) -> TagEffect | None:
        if self._round is None:
            due = [one for one in self._searches.values() if one.missing and one.next_at <= now.steady]
            if not due:
                return None
            for search in due:
                search.aim(self._buckets, origin=self._origin, to=self._forward.to(now))
            self._round = SearchRound(self._tag, due, self._buckets, self._settings.page_size, now.steady)
        query = self._round.query()
        if query is not None:
            return self._ask(query, self._searched)
        self._settle(self._round, now)
        self._round = None
        return Wait(now.steady)

    def _searched(self, query: TableQuery, page: RowPage[Any], now: Now) -> None:
        assert self._round is not None
        if isinstance(query, FetchRows):
            self._round.fetched(query, page)
        else:
            self._round.found_keys(page)

    def _settle(self, looked: SearchRound, now: Now) -> None:
        """After a look: a search that has all is done; one whose time was over when the look began is done or fails."""
        late = [one for one in looked.searches if one.missing and looked.started >= one.deadline]
        failed = [one for one in late if not one.soft]
        if failed:
            missing = {one.persistence_id: sorted(one.missing) for one in failed}
            low, high = min(one.floor for one in failed), max(one.top for one in failed)
            self._pending_query.error = EventsMissing(self._tag, missing, offset_of(low), offset_of(high))
            return
        for search in late:
            search.missing.clear()
        for search in looked.searches:
            search.next_at = min(now.steady + self._settings.refresh_ms, max(search.deadline, now.steady))
        done = [one for one in self._searches.values() if not one.missing]
        if not self._settings.hold_all or len(done) == len(self._searches):
            self._release(done, now)

    def _release(self, searches: Sequence[GapSearch], now: Now) -> None:
        if not searches:
            return
        floor = min(one.floor for one in searches)
        self._late_floor = min(floor, self._late_floor) if self._late else floor
        for search in searches:
            del self._searches[search.persistence_id]
            self._held -= len(search.held) + search.size
        self._late.extend(in_order(one.release() for one in searches))
        self._forward.hurry(now)

    def _look_first(self, now: Now) -> TagEffect | None:
        if self._first_look is None:
            return None
        if now.steady < self._first_look.at:
            return Wait(self._first_look.at)
        query = self._first_look.query()
        if query is not None:
            return self._ask(query, self._looked_first)
        self._first_look = None
        return None

    def _looked_first(self, query: TableQuery, page: RowPage[Any], now: Now) -> None:
        assert self._first_look is not None
        self._first_look.answer(page)

    # Looking back: events that came so late that the read had passed them.

    def _look_back(self, now: Now) -> TagEffect | None:
        if self._back_scan is None:
            if self._searches and self._settings.hold_all:
                return None
            if not self._back.due(now):
                return None
            self._back_scan = self._back.begin(self._tag, now, position=self._forward.position, origin=self._origin)
        query = self._back_scan.query()
        if query is not None:
            return self._ask(query, self._looked_back)
        scan, self._back_scan = self._back_scan, None
        if self._look_since is not None and scan.began >= self._look_since:
            self._look_since = None
        for persistence_id, seen in scan.seen.items():
            self._compare(persistence_id, seen, scan.upto, now)
        return Wait(now.steady)

    def _looked_back(self, query: TableQuery, page: RowPage[Any], now: Now) -> None:
        assert self._back_scan is not None
        self._back_scan.answer(page)

    def _compare(self, persistence_id: str, seen: SeenNumbers, upto: int, now: Now) -> None:
        """Open a search if a journal has rows that did not go out, up to where the look back went.

        That is where the position was when it began. The read has gone on meanwhile, perhaps by several buckets.
        """
        if persistence_id in self._searches or self._pending_query.error is not None or self._held >= MAX_HELD:
            return  # searched already, or later
        last = self._known.get(persistence_id)
        if last is None:
            floor = max(first_place(self._buckets.of_place(upto) - self._buckets.size), self._origin)
            # Numbers below may lie before the offset, or went out before the journal was forgotten.
            first = seen.lowest if self._with_offset or self._known.forgot else 1
        else:
            floor = last.place
            first = min(seen.lowest, last.number + 1) if last.guess else last.number + 1
        if seen.highest >= first:
            missing = range(first, seen.highest + 1)
            self._open(persistence_id, missing, upto, floor=floor, timeout_ms=self._settings.gap_timeout_ms, now=now)

    def _read(self, now: Now) -> TagEffect | None:
        if self._blocked() or self._forward.pending or self._look_since is not None:
            return None
        query = self._forward.query(now)
        if query is not None:
            return self._ask(query, self._rows_read)
        busy = self._searches or self._back_scan is not None
        return Complete() if self._forward.finished and not busy else None

    def _rows_read(self, query: TableQuery, page: RowPage[Any], now: Now) -> None:
        self._forward.told(query, page)

    # Bounded memory.

    def _forget(self, now: Now) -> None:
        after = self._settings.forget_after_ms
        if after is not None and now.steady >= self._forget_at:
            self._forget_at = now.steady + after
            below = first_place(self._buckets.of_place(self._forward.position) - self._buckets.size)
            if self._back_scan is not None:  # it began further back, and compares at its end
                below = min(below, self._back_scan.after)
            self._known.forget(updated_before=now.steady - after, below=below, spare=self._searches)
