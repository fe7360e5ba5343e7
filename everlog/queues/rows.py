"""What a queue is made of: images, rows, attempts, dead letters, flags. Plain values; `rules` says how they change.

Nothing in them can refer back to them, so Python's collector need not look at them (`gc=False`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

WAITING: Final = "W"
PROCESSING: Final = "P"
MAX_ATTEMPTS_KEPT = 16

JobStatus = Literal["W", "P"]
Cause = Literal["max_timeouts", "failed", "cancelled"]
JobEnd = Literal["done", "max_timeouts", "failed", "cancelled"]
AttemptReason = Literal[
    "max_timeouts",
    "failed",
    "lifetime_timeouts",
    "clock_skew",
    "bucket_overdue",
    "owner_flap",
    "backlog",
    "unknown_kind",
    "schedule_refused",
]


class Packet(msgspec.Struct, frozen=True, gc=False):
    """A job as a client sends it."""

    key: bytes
    hash: bytes
    data: bytes
    priority: int
    inserted_ms: int
    process_ms: int | None = None
    expires_s: int = 0
    schema: int = 1
    kind: str = ""
    group: str = ""


class Image(msgspec.Struct, frozen=True, gc=False):
    """What is to be done, and when: the part of a row that comes from clients."""

    priority: int
    process_ms: int
    inserted_ms: int
    expires_s: int
    data_date: int
    schema: int
    data: bytes
    kind: str = ""
    group: str = ""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """A run that did not end in done."""

    started_ms: int
    ended_ms: int
    owner: str
    how: Literal["timeout", "failed", "released"]
    reason: str | None = None


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """One job: waiting (W), or being processed (P) under a lease.

    (entry, token) names one claim and never repeats: entry ids are never reused, and a token only grows. `slot` is
    the one successor of a running job: what arrived for its key meanwhile. `claimed_ms` is when the present attempt
    began; its lease begins again, at `start_ms`, with every heartbeat.
    """

    entry: int
    key: bytes
    hash: bytes
    image: Image
    status: JobStatus = WAITING
    claimed_ms: int | None = None
    start_ms: int | None = None
    lease_ms: int = 0
    timeouts: int = 0
    lifetime: int = 0
    token: int = 0
    owner: str | None = None
    slot: Image | None = None
    stop: Literal["cancel", "restart"] | None = None
    stop_reason: str | None = None
    attempts: tuple[Attempt, ...] = ()

    @property
    def deadline_ms(self) -> int:
        """The last moment of the lease."""
        assert self.start_ms is not None
        return self.start_ms + self.lease_ms

    @property
    def order(self) -> tuple[int, int, bytes, int]:
        """The place among the waiting; the entry decides only between two of the same key."""
        return (self.image.priority, self.image.process_ms, self.hash, self.entry)


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A job that will not run again by itself, with all that is known about it."""

    entry: int
    key: bytes
    hash: bytes
    image: Image
    cause: Cause
    reason: str | None
    dead_ms: int
    timeouts: int
    lifetime: int
    attempts: tuple[Attempt, ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        """Among the dead, from the oldest on."""
        return (self.dead_ms, self.entry)


class EndedRow(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a job that has ended. Its entry may live on, as its successor: then under another token."""

    entry: int
    token: int
    key: bytes
    hash: bytes
    how: JobEnd
    reason: str | None
    inserted_ms: int
    claimed_ms: int | None
    ended_ms: int
    owner: str | None
    attempts: tuple[Attempt, ...] = ()
    result: bytes | None = None
    result_left_out: bool = False
    kind: str = ""
    group: str = ""
    due_ms: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Among those that have ended, from the oldest on."""
        return (self.ended_ms, self.entry, self.token)


class Flag(msgspec.Struct, frozen=True, gc=False):
    """Something that an administrator should see. One is open per reason; repeats raise its count."""

    reason: AttemptReason
    count: int
    first_ms: int
    last_ms: int
    key: bytes | None = None
    owner: str | None = None
    dead_entry: int | None = None
