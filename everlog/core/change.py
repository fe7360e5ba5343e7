"""What comes out of the fold: the new head, and what changes in the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from everlog.core.events import EventRecord
from everlog.core.head import Deletion, Head
from everlog.core.record import Record
from everlog.core.values import MAX_VALUE_BYTES

# Of a value that is too large, this much is kept for display.
KEPT_BYTES = 64 * 1024

# "life": the expectation fits but for the life, so the journal was purged and has begun again.
RejectReason = Literal["conflict", "life", "fork", "malformed range"]


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """An append that lost, for display."""

    offset: int
    timestamp: int
    reason: RejectReason
    first: int
    last: int
    expected: int | None
    actual: int
    append_id: str | None


class Quarantined(msgspec.Struct, frozen=True, gc=False):
    """A record that waits, with the reason."""

    record: Record
    reason: str

    @classmethod
    def of(cls, record: Record, reason: str) -> Quarantined:
        """Of a value that is too large for any store only the beginning waits: it stays undecodable."""
        if record.value is not None and len(record.value) > MAX_VALUE_BYTES:
            record = msgspec.structs.replace(record, value=record.value[:KEPT_BYTES])
        return cls(record, reason)

    def waits_for(self, head: Head | None) -> bool:
        """Whether the head knows that this record waits.

        The two are read apart: the table may hold records that the head has not seen yet, or has already released.
        """
        return head is not None and head.halted_at is not None and head.halted_at <= self.record.offset <= head.offset


class Resumed(msgspec.Struct, frozen=True, gc=False):
    """An append that waited in quarantine and counts at `offset`, that of the Resume which took it up."""

    offset: int
    record: Record


class TaggedEntry(msgspec.Struct, frozen=True, gc=False):
    """An event for the views of its tags: the number that it has in each of them, and what decides its place.

    `position` is the offset at which the event took effect: that of its own record or, if that had to wait in
    quarantine, of the Resume. `index` counts the events that took effect there, tagged or not.
    """

    row: EventRecord
    position: int
    index: int
    numbers: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Change:
    """What a fold did. `head` is the state after it; `changed` says whether it differs from the state before.

    `quarantined` are the records that this fold set aside, `waiting` all that now wait, `purged_at` the offset of
    the last purge that took effect. `set_aside` are the offsets of all records that did not count where they stand,
    also if this fold took them up again; `resumed` are the appends that counted at a Resume instead. `tagged` are all
    tagged events that were appended, also those that a later record of the same fold removed again: a view by tag does
    not forget them.
    """

    head: Head | None
    changed: bool = False
    rows: list[EventRecord] = field(default_factory=list)
    tagged: list[TaggedEntry] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    quarantined: list[Quarantined] = field(default_factory=list)
    waiting: list[Quarantined] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)
    resumed: list[Resumed] = field(default_factory=list)
    purged_at: int | None = None
