"""What can be asked of a queue, and what it answers: plain values, which travel as they are."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from everlog.queues.rows import AttemptReason, DeadLetter, EndedRow, Flag, JobRow, Packet
from everlog.queues.schedule import ScheduleRow

Result = Literal["CREATED", "MERGED", "SUCCESSOR", "SUCCESSOR_MERGED", "IGNORED_LATE", "REJECTED", "DROPPED"]
QueueAck = Literal["OK", "LEASE_LOST"]
ReleaseFlag = Literal["unknown_kind"]
WaitCode = Literal[
    "paused",
    "overdue",
    "not_due",
    "in_flight",
    "rate",
    "group_in_flight",
    "group_rate",
    "slow",
    "behind",
    "next",
    "unclaimed",
]
JobPlace: TypeAlias = tuple[int, int, bytes, int]
"""Where a page ends: priority, Process Date, hash, entry."""


LetterPlace: TypeAlias = tuple[int, int]
"""Where a page of dead letters ends: when the last one died, and its entry."""


HistoryPlace: TypeAlias = tuple[int, int, int]
"""Where a page of the history ends: when the last one ended, its entry and token."""


class Handle(NamedTuple):
    """Names one claim; it never repeats."""

    entry: int
    token: int


class Put(msgspec.Struct, frozen=True, tag=True, gc=False):
    packet: Packet


class Claim(msgspec.Struct, frozen=True, tag=True):
    owner: str
    limit: int = 1
    lease_ms: int | None = None
    fast_only: bool = False


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    handle: Handle


class JobResult(NamedTuple):
    """What a job's function returned, as JSON; `left_out`: it returned something that is too large, or no JSON."""

    json: bytes | None = None
    left_out: bool = False


class Done(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The work is finished. `result` counts only in a queue that keeps a history."""

    handle: Handle
    result: JobResult | None = None


class Fail(msgspec.Struct, frozen=True, tag=True):
    handle: Handle
    reason: str | None = None
    delay_ms: int | None = None
    retry: bool = True


class Release(msgspec.Struct, frozen=True, tag=True):
    """Give a job back, uncounted. `delay_ms`: it is not given out again before that. `flag`: raise that one, too."""

    handle: Handle
    delay_ms: int | None = None
    flag: ReleaseFlag | None = None


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """All jobs of a key, or only the one of this number."""

    key: bytes
    hash: bytes
    reason: str | None = None
    entry: int | None = None


class Pause(msgspec.Struct, frozen=True, tag=True):
    paused: bool


class Revive(msgspec.Struct, frozen=True, tag=True):
    entry: int


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Remove a dead letter."""

    entry: int


class AckFlag(msgspec.Struct, frozen=True, tag=True):
    reason: str


class RaiseFlag(msgspec.Struct, frozen=True, tag=True):
    """Say that an administrator should look; the store itself does that."""

    reason: AttemptReason
    owner: str | None = None


class Sweep(msgspec.Struct, frozen=True, tag=True):
    limit: int = 500


class PurgeJobs(msgspec.Struct, frozen=True, tag=True):
    """Remove what waits, at most about `limit` jobs, and with `running` what runs, too; how many."""

    limit: int = 1000
    running: bool = False


class Clear(msgspec.Struct, frozen=True, tag=True):
    """Forget all that a shard has of a queue that is being deleted; only stores say it, to each other.

    The answer is the same each time that one deletion says it.
    """

    deletion: str


class SetSchedule(msgspec.Struct, frozen=True, tag=True):
    """Keep a schedule, or replace what it is declared to be; None if there are too many."""

    schedule: ScheduleRow


class PauseSchedule(msgspec.Struct, frozen=True, tag=True):
    """`hash` is that of the schedule's key: it says in which shard it is."""

    name: str
    hash: bytes
    paused: bool


class RemoveSchedule(msgspec.Struct, frozen=True, tag=True):
    name: str
    hash: bytes


class FireSchedules(msgspec.Struct, frozen=True, tag=True):
    """Put the jobs of all times that have come, and note that they are; how many. Stops after about `limit`."""

    limit: int = 1000


class Get(msgspec.Struct, frozen=True, tag=True):
    key: bytes
    hash: bytes


class Peek(msgspec.Struct, frozen=True, tag=True):
    limit: int = 10
    after: JobPlace | None = None


class ListLeases(msgspec.Struct, frozen=True, tag=True):
    """Jobs that are being processed, the one whose lease ends first at the head."""

    limit: int = 100


class ListDead(msgspec.Struct, frozen=True, tag=True):
    limit: int = 100
    before: LetterPlace | None = None


class ListHistory(msgspec.Struct, frozen=True, tag=True):
    """Jobs that have ended, the last one first; of all keys, or of one."""

    limit: int = 100
    before: HistoryPlace | None = None
    key: bytes | None = None
    hash: bytes | None = None


class FindJob(msgspec.Struct, frozen=True, tag=True):
    """One job by its number, wherever it is: waiting, running, dead, or ended."""

    entry: int


class ListFlags(msgspec.Struct, frozen=True, tag=True):
    pass


class AskStats(msgspec.Struct, frozen=True, tag=True):
    pass


class AskDue(msgspec.Struct, frozen=True, tag=True):
    """How many could be claimed now, counted up to `limit`, and when to look again."""

    limit: int = 1


class AskHead(msgspec.Struct, frozen=True, tag=True):
    """The place of the first job that could be claimed now."""

    fast_only: bool = False


class ListSchedules(msgspec.Struct, frozen=True, tag=True):
    pass


class AskSchedules(msgspec.Struct, frozen=True, tag=True):
    """In how many milliseconds the next time of a schedule comes; 0: it has come, None: none will."""


WriteOperation: TypeAlias = (
    Put
    | Claim
    | Heartbeat
    | Done
    | Fail
    | Release
    | Cancel
    | Pause
    | Revive
    | Forget
    | AckFlag
    | RaiseFlag
    | Sweep
    | PurgeJobs
    | Clear
    | SetSchedule
    | PauseSchedule
    | RemoveSchedule
    | FireSchedules
)
ReadOperation: TypeAlias = (
    Get
    | Peek
    | ListLeases
    | ListDead
    | ListHistory
    | FindJob
    | ListFlags
    | AskStats
    | AskDue
    | AskHead
    | ListSchedules
    | AskSchedules
)
Operation: TypeAlias = WriteOperation | ReadOperation


READS = (
    Get,
    Peek,
    ListLeases,
    ListDead,
    ListHistory,
    FindJob,
    ListFlags,
    AskStats,
    AskDue,
    AskHead,
    ListSchedules,
    AskSchedules,
)


class PutAnswer(NamedTuple):
    result: Result
    entry: int


class JobLease(NamedTuple):
    """A row that was claimed, and until when."""

    row: JobRow
    deadline_ms: int

    @property
    def attempt(self) -> int:
        return self.row.timeouts + 1


class BeatAnswer(NamedTuple):
    ack: QueueAck
    deadline_ms: int = 0
    stop: Literal["cancel", "restart"] | None = None
    reason: str | None = None


class DueAnswer(NamedTuple):
    due: int
    next_ms: int | None


class WaitCause(NamedTuple):
    """Something that keeps a job from starting: how many there are of it, and until when it lasts, if that is known."""

    code: WaitCode
    number: int | None = None
    until_ms: int | None = None


class FoundJob(msgspec.Struct, frozen=True):
    """What a queue has under one number, as of `now_ms`. One that lives on as its successor may have ended before.

    `ended` has its last ends, the newest first; `causes` say why it does not run, if it waits.
    """

    now_ms: int
    row: JobRow | None = None
    letter: DeadLetter | None = None
    ended: tuple[EndedRow, ...] = ()
    causes: tuple[WaitCause, ...] = ()


class ClearedShard(NamedTuple):
    """How many jobs a shard had, and the last number that it gave to one."""

    jobs: int
    last_entry: int


class Stats(msgspec.Struct, frozen=True):
    """Counts of a queue. Overdue rows count as ready: the next claim finds them."""

    ready: int
    delayed: int
    running: int
    dead: int
    paused: bool
    oldest_due_ms: int | None = None


QueueAnswer: TypeAlias = (
    PutAnswer
    | list[JobLease]
    | BeatAnswer
    | QueueAck
    | int
    | bool
    | list[JobRow]
    | list[DeadLetter]
    | list[EndedRow]
    | list[Flag]
    | list[ScheduleRow]
    | ScheduleRow
    | Stats
    | DueAnswer
    | FoundJob
    | ClearedShard
    | JobPlace
    | None
)
