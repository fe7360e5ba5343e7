"""Queues in memory. A table is a map of rows, and heaps for the orders in which they are looked for.

A heap entry carries the version of the row that it was made for; a row that changed since leaves a stale entry
behind, which is dropped when it comes up. A heap with more than twice as many entries as it had live ones is rebuilt.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from everlog.errors import JobsRunning, QueueNotFound
from everlog.queues.declaration import Declaration
from everlog.queues.engine import SWEEP, Engine
from everlog.queues.operations import READS, HistoryPlace, JobPlace, LetterPlace, Operation, QueueAnswer
from everlog.queues.port import QueueStore
from everlog.queues.rows import PROCESSING, WAITING, DeadLetter, EndedRow, Flag, JobRow
from everlog.queues.rules import is_expired
from everlog.queues.schedule import ScheduleRow
from everlog.queues.table import MAX_TURNS, NextMoments, QueueTable, TableCounts
from everlog.runtime.clock import Clock

MIN_HEAP = 1000
# There may be many groups: their heaps are small.
MIN_GROUP_HEAP = 16


class _Heap:
    """Rows by some order. `entries` are (order…, entry, version)."""

    def __init__(self, versions: dict[int, int], *, min_size: int = MIN_HEAP) -> None:
        self._versions = versions
        self._min_size = min_size
        self._limit = min_size
        self.entries: list[Any] = []

    def push(self, order: tuple[Any, ...], entry: int) -> None:
        heapq.heappush(self.entries, (*order, entry, self._versions[entry]))
        if len(self.entries) > self._limit:
            self.entries = [found for found in self.entries if self._is_live(found)]
            heapq.heapify(self.entries)
            self._limit = self._min_size + 2 * len(self.entries)

    def first(self) -> tuple[Any, ...] | None:
        """The first live entry, which stays."""
        while self.entries:
            if self._is_live(self.entries[0]):
                first: tuple[Any, ...] = self.entries[0]
                return first
            heapq.heappop(self.entries)
        return None

    def pop(self) -> None:
        heapq.heappop(self.entries)

    def _is_live(self, found: tuple[Any, ...]) -> bool:
        entry, version = found[-2:]
        return bool(self._versions.get(entry) == version)


class MemoryTable(QueueTable):
    """The rows of one queue in this process.

    `changed` and what follows it collect what was written, for a durable store; `forget_changes` empties them.
    """

    def __init__(self, last_entry: int = 0) -> None:
        self.rows: dict[int, JobRow] = {}
        self.changed: dict[int, JobRow | None] = {}
        self._by_key: dict[bytes, list[int]] = {}
        self._versions: dict[int, int] = {}
        self._version = 0
        self._last_entry = last_entry
        # Waiting rows are in `_delayed` until they are due, then in a heap of their priority, or of priority and group.
        self._ready: defaultdict[int, _Heap] = defaultdict(lambda: _Heap(self._versions))
        self._ready_groups: defaultdict[int, dict[str, _Heap]] = defaultdict(dict)
        self._delayed = _Heap(self._versions)
        self._leases = _Heap(self._versions)
        self._expiring = _Heap(self._versions)
        self._waiting: dict[int, int] = {}
        self._groups_waiting: dict[tuple[int, str], int] = {}
        self._running = 0
        self._group_leases: Counter[str] = Counter()
        self._starts: list[int] = []
        self._group_starts: defaultdict[str, list[int]] = defaultdict(list)
        self._starts_of_all: list[tuple[int, str]] = []
        self._turns: dict[str, int] = {}
        self._last_turn = 0
        self._dead: dict[int, DeadLetter] = {}
        self._ended: dict[HistoryPlace, EndedRow] = {}
        self._flags: dict[str, Flag] = {}
        self._paused = False
        self.meta_changed = False
        self.buried: dict[int, DeadLetter] = {}
        self.unburied: dict[int, DeadLetter] = {}
        self.flagged: dict[str, Flag | None] = {}
        self.ended: list[EndedRow] = []
        self._schedules: dict[str, ScheduleRow] = {}
        self.scheduled: dict[str, ScheduleRow | None] = {}

    def next_entry(self) -> int:
        self._last_entry += 1
        return self._last_entry

    @property
    def last_entry(self) -> int:
        return self._last_entry

    def count_jobs(self) -> int:
        """How many jobs there are, with those that wait behind one that runs."""
        return sum(1 if row.slot is None else 2 for row in self.rows.values())

    def find(self, key_hash: bytes, key: bytes) -> list[JobRow]:
        rows = [self.rows[entry] for entry in self._by_key.get(key_hash, ())]
        return [row for row in rows if row.key == key]

    def get(self, entry: int) -> JobRow | None:
        return self.rows.get(entry)

    def save(self, row: JobRow, before: JobRow | None) -> None:
        assert self.rows.get(row.entry) == before, "a row changed between its reading and its writing"
        if before is None:
            insort(self._by_key.setdefault(row.hash, []), row.entry)
            self._last_entry = max(self._last_entry, row.entry)
        else:
            self._unfile(before)
        self.rows[row.entry] = self.changed[row.entry] = row
        self._version += 1
        self._versions[row.entry] = self._version
        self._file(row)

    def refile(self, row: JobRow, before: JobRow) -> None:
        self.save(row, before)

    def remove(self, row: JobRow) -> None:
        assert self.rows.get(row.entry) == row, "a row changed between its reading and its removal"
        self._unfile(row)
        del self.rows[row.entry], self._versions[row.entry]
        self.changed[row.entry] = None
        entries = self._by_key[row.hash]
        entries.remove(row.entry)
        if not entries:
            del self._by_key[row.hash]

    def _file(self, row: JobRow) -> None:
        priority, group = row.image.priority, row.image.group
        if row.status == PROCESSING:
            self._running += 1
            if group:
                self._group_leases[group] += 1
            self._leases.push((row.deadline_ms,), row.entry)
            return
        self._waiting[priority] = self._waiting.get(priority, 0) + 1
        if group:
            self._groups_waiting[priority, group] = self._groups_waiting.get((priority, group), 0) + 1
        self._delayed.push((row.image.process_ms,), row.entry)
        if row.image.expires_s:
            self._expiring.push((row.image.expires_s,), row.entry)

    def _unfile(self, row: JobRow) -> None:
        """Heap entries go stale by themselves; the counts are kept, and the heap of a group as long as it has rows."""
        priority, group = row.image.priority, row.image.group
        if row.status == PROCESSING:
            self._running -= 1
            if group:
                self._group_leases[group] -= 1
                if not self._group_leases[group]:
                    del self._group_leases[group]
            return
        self._waiting[priority] -= 1
        if not self._waiting[priority]:
            del self._waiting[priority]
        if group:
            self._groups_waiting[priority, group] -= 1
            if not self._groups_waiting[priority, group]:
                del self._groups_waiting[priority, group]
                self._ready_groups[priority].pop(group, None)

    def _advance(self, now: int) -> None:
        """Move what has become due to the heap of its priority and group."""
        while (found := self._delayed.first()) is not None and found[0] <= now:
            self._delayed.pop()
            row = self.rows[found[-2]]
            image = row.image
            heap = self._heap_of(image.priority, image.group) if image.group else self._ready[image.priority]
            heap.push((image.process_ms, row.hash), row.entry)

    def _heap_of(self, priority: int, group: str) -> _Heap:
        heaps = self._ready_groups[priority]
        if group not in heaps:
            heaps[group] = _Heap(self._versions, min_size=MIN_GROUP_HEAP)
        return heaps[group]

    def priorities(self, *, grouped: bool) -> Iterator[int]:
        return iter(sorted(self._waiting))

    def due(self, priority: int, now: int, limit: int, group: str) -> list[JobRow]:
        self._advance(now)
        heap = self._ready_groups[priority].get(group) if group else self._ready[priority]
        if heap is None:
            return []
        taken: list[tuple[Any, ...]] = []
        rows: list[JobRow] = []
        while len(rows) < limit and (found := heap.first()) is not None and found[0] <= now:
            heap.pop()
            taken.append(found)
            row = self.rows[found[-2]]
            if not is_expired(row.image, now):
                rows.append(row)
        for found in taken:
            heap.push(found[:-2], found[-2])
        return rows

    def groups_wait(self) -> bool:
        return bool(self._groups_waiting)

    def heads(self, priority: int, now: int) -> list[tuple[str, JobPlace]]:
        self._advance(now)
        heads: list[tuple[str, JobPlace]] = []
        for group, heap in (("", self._ready[priority]), *self._ready_groups[priority].items()):
            found = heap.first()
            if found is None or found[0] > now:
                continue
            row: JobRow | None = self.rows[found[-2]]
            if row is not None and is_expired(row.image, now):
                row = next(iter(self.due(priority, now, 1, group)), None)
            if row is not None:
                heads.append((group, row.order))
        return heads

    def overdue(self, now: int, limit: int) -> list[JobRow]:
        return self._up_to(self._leases, now - 1, limit)

    def running(self, now: int, limit: int) -> list[JobRow]:
        rows = (row for row in self.rows.values() if row.status == PROCESSING and row.deadline_ms >= now)
        return heapq.nsmallest(limit, rows, key=lambda row: row.deadline_ms)

    def expired(self, now: int, limit: int) -> list[JobRow]:
        return self._up_to(self._expiring, (now - 1) // 1000, limit)

    def _up_to(self, heap: _Heap, last: int, limit: int) -> list[JobRow]:
        taken: list[tuple[Any, ...]] = []
        while len(taken) < limit and (found := heap.first()) is not None and found[0] <= last:
            heap.pop()
            taken.append(found)
        for found in taken:
            heap.push(found[:-2], found[-2])
        return [self.rows[found[-2]] for found in taken]

    def live_leases(self, now: int) -> int:
        return self._running - len(self.overdue(now, self._running))

    def times(self, now: int) -> NextMoments:
        self._advance(now)
        firsts = [heap.first() for heap in (self._delayed, self._leases, self._expiring)]
        process, deadline, expires = (None if found is None else found[0] for found in firsts)
        return NextMoments(process, deadline, expires)

    def counts(self, now: int) -> TableCounts:
        ready = delayed = running = 0
        oldest: int | None = None
        for row in self.rows.values():
            if row.status == PROCESSING and now <= row.deadline_ms:
                running += 1
            elif is_expired(row.image, now):
                continue
            elif row.status == PROCESSING or row.image.process_ms <= now:
                ready += 1
                oldest = row.image.process_ms if oldest is None else min(oldest, row.image.process_ms)
            else:
                delayed += 1
        return TableCounts(ready, delayed, running, oldest)

    def page(self, after: JobPlace | None, now: int, limit: int) -> list[JobRow]:
        waiting = (
            row
            for row in self.rows.values()
            if row.status == WAITING and not is_expired(row.image, now) and (after is None or row.order > after)
        )
        return heapq.nsmallest(limit, waiting, key=lambda row: row.order)

    def starts(self, since: int) -> Sequence[int]:
        return self._starts[bisect_right(self._starts, since) :]

    def add_starts(self, now: int, count: int, since: int) -> None:
        del self._starts[: bisect_right(self._starts, since)]
        for _ in range(count):
            insort(self._starts, now)

    def group_leases(self, group: str) -> int:
        return self._group_leases.get(group, 0)

    def group_starts(self, group: str, since: int) -> Sequence[int]:
        """A start without a group counts for all of them: so a new owner fills windows that it knows nothing of."""
        of_all, own = self._group_starts.get("", ()), self._group_starts.get(group, ())
        starts = sorted([*of_all, *own]) if of_all and group else own
        return starts[bisect_right(starts, since) :]

    def add_group_starts(self, now: int, counts: Mapping[str, int], since: int) -> None:
        old = bisect_right(self._starts_of_all, since, key=itemgetter(0))
        for _, group in self._starts_of_all[:old]:
            starts = self._group_starts[group]
            del starts[0]  # each list is in the order of all
            if not starts:
                del self._group_starts[group]
        del self._starts_of_all[:old]
        for group, count in counts.items():
            for _ in range(count):
                insort(self._group_starts[group], now)
                insort(self._starts_of_all, (now, group))

    def turns(self, groups: Collection[str]) -> dict[str, int]:
        return {group: self._turns[group] for group in groups if group in self._turns}

    def add_turns(self, groups: Sequence[str]) -> None:
        for group in groups:
            self._turns.pop(group, None)
            self._last_turn += 1
            self._turns[group] = self._last_turn
        while len(self._turns) > MAX_TURNS:
            del self._turns[next(iter(self._turns))]

    def bury(self, letter: DeadLetter) -> None:
        if letter.entry not in self._dead:
            self._dead[letter.entry] = self.buried[letter.entry] = letter

    def dead(self, entry: int) -> DeadLetter | None:
        return self._dead.get(entry)

    def unbury(self, entry: int) -> None:
        letter = self._dead.pop(entry, None)
        if letter is not None and self.buried.pop(entry, None) is None:
            self.unburied[entry] = letter

    def dead_letters(self, before: LetterPlace | None, limit: int) -> list[DeadLetter]:
        letters = (one for one in self._dead.values() if before is None or one.place < before)
        return heapq.nlargest(limit, letters, key=lambda letter: letter.place)

    def drop_dead(self, until_ms: int, limit: int) -> int:
        old = [entry for entry, letter in self._dead.items() if letter.dead_ms <= until_ms][:limit]
        for entry in old:
            self.unbury(entry)
        return len(old)

    def count_dead(self) -> int:
        return len(self._dead)

    def keep_ended(self, ended: EndedRow, max_kept: int) -> None:
        self._ended[ended.place] = ended
        self.ended.append(ended)
        while len(self._ended) > max_kept:
            del self._ended[next(iter(self._ended))]

    def history(self, before: HistoryPlace | None, key: tuple[bytes, bytes] | None, limit: int) -> list[EndedRow]:
        rows = (
            row
            for row in self._ended.values()
            if (before is None or row.place < before) and (key is None or (row.hash, row.key) == key)
        )
        return heapq.nlargest(limit, rows, key=lambda row: row.place)

    def ended_of(self, entry: int, limit: int) -> list[EndedRow]:
        return heapq.nlargest(
            limit, (row for row in self._ended.values() if row.entry == entry), key=lambda row: row.place
        )

    def drop_ended(self, until_ms: int, limit: int) -> int:
        old = list(islice((place for place, row in self._ended.items() if row.ended_ms <= until_ms), limit))
        for place in old:
            del self._ended[place]
        return len(old)

    def flag(self, reason: str) -> Flag | None:
        return self._flags.get(reason)

    def put_flag(self, flag: Flag) -> None:
        self._flags[flag.reason] = self.flagged[flag.reason] = flag

    def drop_flag(self, reason: str) -> bool:
        self.flagged[reason] = None
        return self._flags.pop(reason, None) is not None

    def flags(self) -> list[Flag]:
        return [self._flags[reason] for reason in sorted(self._flags)]

    def forget_changes(self) -> None:
        """What was written so far is durable, or need not be."""
        for collected in (self.changed, self.buried, self.unburied, self.flagged, self.ended, self.scheduled):
            collected.clear()
        self.meta_changed = False

    def paused(self) -> bool:
        return self._paused

    def pause(self, paused: bool) -> None:
        self.meta_changed = self.meta_changed or paused != self._paused
        self._paused = paused

    def schedules(self) -> list[ScheduleRow]:
        return [self._schedules[name] for name in sorted(self._schedules)]

    def save_schedule(self, row: ScheduleRow) -> None:
        self._schedules[row.name] = self.scheduled[row.name] = row

    def mark_fired(self, row: ScheduleRow, entry: int | None) -> None:
        self.save_schedule(row)

    def drop_schedule(self, name: str) -> None:
        self._schedules.pop(name, None)
        self.scheduled[name] = None


class MemoryQueueStore(QueueStore):
    """Queues in this process only: for tests, and for work that may be lost with the process."""

    def __init__(self, clock: Clock | None = None, *, sweep: int = SWEEP) -> None:
        super().__init__(clock)
        self._shared = _Shared(sweep)

    async def declare(self, wanted: Declaration) -> Declaration:
        with self._shared.lock:
            engine = self._shared.engines.get(wanted.name)
            before = self._shared.declarations.get(wanted.name)
            now = wanted if before is None else before.evolve(wanted, empty=engine is None or not _rows(engine))
            self._shared.declarations[wanted.name] = now
            if engine is None:
                engine = Engine(MemoryTable(self._shared.last_entry), now.options.settings, sweep=self._shared.sweep)
                self._shared.engines[wanted.name] = engine
            engine.settings = now.options.settings
            return now

    async def delete(self, name: str, *, running: bool = False) -> int:
        with self._shared.lock:
            engine = self._shared.engines.get(name)
            if engine is None:
                raise QueueNotFound(name, sorted(self._shared.engines))
            live = engine.table.live_leases(self.clock.now_ms())
            if live and not running:
                raise JobsRunning(name, live)
            table = _table(engine)
            del self._shared.engines[name], self._shared.declarations[name]
            self._shared.last_entry = max(self._shared.last_entry, table.last_entry)
        self.wake(name)
        return table.count_jobs()

    async def declared(self, name: str) -> Declaration | None:
        return self._shared.declarations.get(name)

    async def names(self) -> list[str]:
        return sorted(self._shared.declarations)

    async def execute(self, name: str, operation: Operation) -> QueueAnswer:
        with self._shared.lock:
            engine = self._shared.engines.get(name)
            if engine is None:
                raise QueueNotFound(name, sorted(self._shared.engines))
            answer = engine.apply(operation, self.clock.now_ms())
            _table(engine).forget_changes()
            raised, engine.raised = engine.raised, []
        self.announce(name, raised)
        if not isinstance(operation, READS):
            self.wake(name, operation)
        return answer

    def sibling(self) -> MemoryQueueStore:
        twin = MemoryQueueStore(self.clock)
        twin._shared = self._shared
        return twin

    def counted(self, name: str) -> Counter[str]:
        found = self._shared.engines.get(name)
        return Counter() if found is None else Counter(found.counted)


class _Shared:
    """What siblings share."""

    def __init__(self, sweep: int) -> None:
        self.lock = threading.Lock()
        self.sweep = sweep
        self.last_entry = 0  # of all queues that were deleted: none of their numbers comes back
        self.engines: dict[str, Engine] = {}
        self.declarations: dict[str, Declaration] = {}


def _table(engine: Engine) -> MemoryTable:
    assert isinstance(engine.table, MemoryTable)
    return engine.table


def _rows(engine: Engine) -> dict[int, Any]:
    return _table(engine).rows
