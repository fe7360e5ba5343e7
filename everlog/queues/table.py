"""What the engine needs of a table: the rows of one queue, in the orders in which they are looked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from everlog.queues.operations import HistoryPlace, JobPlace, LetterPlace
from everlog.queues.rows import DeadLetter, EndedRow, Flag, JobRow
from everlog.queues.schedule import ScheduleRow

# The turns of so many groups are remembered; one that is forgotten counts as never started.
MAX_TURNS = 10_000


class NextMoments(NamedTuple):
    """The next moments at which something happens by itself; None: never."""

    process_ms: int | None
    deadline_ms: int | None
    expires_s: int | None


class TableCounts(NamedTuple):
    """How many rows there are; expired ones do not count, overdue ones do as ready."""

    ready: int
    delayed: int
    running: int
    oldest_due_ms: int | None


TableWrite: TypeAlias = tuple[JobRow, JobRow | None]
"""A row, and what it was before; None for a new one."""


class QueueTable(Protocol):
    """The rows of one queue shard. All calls of one operation see and make one state: a store commits them together."""

    def next_entry(self) -> int:
        """A number that no row ever had."""

    def find(self, key_hash: bytes, key: bytes) -> Sequence[JobRow]:
        """All rows of a key, by entry; hashes may collide, keys do not."""

    def get(self, entry: int) -> JobRow | None: ...

    def save(self, row: JobRow, before: JobRow | None) -> None:
        """Write a row; `before` is what it was, None for a new one."""

    def save_all(self, writes: Sequence[TableWrite]) -> None:
        """Write rows of different entries."""
        for row, before in writes:
            self.save(row, before)

    def refile(self, row: JobRow, before: JobRow) -> None:
        """The same, to the place where new rows go."""

    def remove(self, row: JobRow) -> None: ...

    def end(self, entry: int, token: int) -> bool:
        """Remove a row that is held under this token and has no successor, without a look at it.

        False: it is not there, or not so, or this table has no short way; nothing was done then.
        """
        return False

    def end_all(self, handles: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """The same for many, each an entry and a token: those that were removed."""
        return {handle for handle in handles if self.end(*handle)}

    def find_all(self, hashes: Sequence[bytes]) -> dict[bytes, Sequence[JobRow] | None] | None:
        """All rows with these hashes; None if this table has no quick way to tell.

        The caller may put a None in, for rows that are to be looked up again.
        """
        return None

    def priorities(self, *, grouped: bool) -> Iterable[int]:
        """The priorities of waiting rows, each once, ascending. Lazy: only as far as they are used.

        `grouped`: what `groups_wait` says.
        """

    def due(self, priority: int, now: int, limit: int, group: str) -> Sequence[JobRow]:
        """The first waiting rows of a priority and group with a Process Date up to now, not expired, in their order."""

    def groups_wait(self) -> bool:
        """Whether a row with a group waits, due or not. Every claim asks: one look, however many rows there are."""

    def heads(self, priority: int, now: int) -> Iterable[tuple[str, JobPlace]]:
        """Of each group, and of the rows without one, that has such rows: the place of the first."""

    def overdue(self, now: int, limit: int) -> Sequence[JobRow]:
        """Rows whose lease is over, the longest first."""

    def each_overdue(self, now: int, limit: int) -> Iterable[JobRow]:
        """The same in any order, without all of them, and their data, in memory at once."""
        return self.overdue(now, limit)

    def running(self, now: int, limit: int) -> Sequence[JobRow]:
        """Rows whose lease is not over, the one that ends first at the head."""

    def expired(self, now: int, limit: int) -> Sequence[JobRow]:
        """Waiting rows that have expired."""

    def live_leases(self, now: int) -> int:
        """How many rows are leased and not overdue."""

    def times(self, now: int) -> NextMoments:
        """The next Process Date after now, the first deadline, the first expiration of a waiting row."""

    def counts(self, now: int) -> TableCounts: ...

    def page(self, after: JobPlace | None, now: int, limit: int) -> Sequence[JobRow]:
        """Waiting rows that have not expired, in order, beyond a place."""

    def starts(self, since: int) -> Sequence[int]:
        """When jobs were started after this moment, ascending. Older ones may be forgotten."""

    def add_starts(self, now: int, count: int, since: int) -> None:
        """Remember starts; those up to `since` may be forgotten."""

    def group_leases(self, group: str) -> int:
        """How many rows of a group are leased, overdue or not."""

    def group_starts(self, group: str, since: int) -> Sequence[int]:
        """When jobs of a group were started after this moment, ascending. Older ones may be forgotten."""

    def add_group_starts(self, now: int, counts: Mapping[str, int], since: int) -> None:
        """Remember starts, by group; those up to `since` may be forgotten, of all groups."""

    def turns(self, groups: Collection[str]) -> Mapping[str, int]:
        """Numbers that grow with each start: the last one's of each of these groups that is known to have started."""

    def add_turns(self, groups: Sequence[str]) -> None:
        """These groups have started, in this order; of all, the last `MAX_TURNS` are remembered."""

    def bury(self, letter: DeadLetter) -> None:
        """Keep a dead letter; the same entry again changes nothing."""

    def dead(self, entry: int) -> DeadLetter | None: ...

    def unbury(self, entry: int) -> None: ...

    def dead_letters(self, before: LetterPlace | None, limit: int) -> Sequence[DeadLetter]:
        """Those that died last first; from behind `before` on if that is given."""

    def drop_dead(self, until_ms: int, limit: int) -> int:
        """Forget dead letters of that moment and before; how many."""

    def count_dead(self) -> int: ...

    def keep_ended(self, ended: EndedRow, max_kept: int) -> None:
        """Keep what is known of a job that ended; of all that are kept, only the last `max_kept`."""

    def history(self, before: HistoryPlace | None, key: tuple[bytes, bytes] | None, limit: int) -> Sequence[EndedRow]:
        """Those that ended last first, from behind `before` on. `key`: only those of one key: its hash, and itself."""

    def ended_of(self, entry: int, limit: int) -> Sequence[EndedRow]:
        """Those of one entry, which ended last first."""

    def drop_ended(self, until_ms: int, limit: int) -> int:
        """Forget those that ended at that moment and before; how many."""

    def flag(self, reason: str) -> Flag | None: ...

    def put_flag(self, flag: Flag) -> None: ...

    def drop_flag(self, reason: str) -> bool: ...

    def flags(self) -> Sequence[Flag]: ...

    def paused(self) -> bool: ...

    def pause(self, paused: bool) -> None: ...

    def schedules(self) -> Sequence[ScheduleRow]:
        """All schedules, by name."""

    def save_schedule(self, row: ScheduleRow) -> None: ...

    def mark_fired(self, row: ScheduleRow, entry: int | None) -> None:
        """Write how far a schedule is, so that it is durable if and only if the job that it put is.

        `entry`: the job that holds what was put; None if nothing was.
        """

    def drop_schedule(self, name: str) -> None: ...
