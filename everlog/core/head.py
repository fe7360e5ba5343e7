"""The head: everything the tables know about one journal, apart from its events."""

from __future__ import annotations

import uuid
from datetime import date
from typing import NamedTuple

import msgspec

from everlog.core.duration import ExpireAfter

_LIVES = uuid.UUID("5a0e7c1c-6a52-5d0f-9d0b-3f4f1f7d2c11")


class Topic(NamedTuple):
    """What is pinned for a topic when it is first used, and never changes."""

    name: str
    id: str
    partitions: int
    segment_size: int
    base: int

    def life(self, partition: int, offset: int) -> str:
        """The record_id of the life that starts with the record at this place of the log, if it names none itself."""
        return str(uuid.uuid5(_LIVES, f"{self.name}/{partition}/{offset}"))


class Deletion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows to remove from the tables because of the Delete, Purge or Resume at `offset`.

    Event rows of segments `first` to `last` up to seqNr `to` (None: all of them) that are older than
    `offset`; with `purge`, also the snapshots of the life `record_id`; and quarantined records up to
    `quarantine`. A deletion may be repeated at any time: nothing newer than `offset` is touched.
    """

    offset: int
    first: int = 0
    last: int = -1
    to: int | None = None
    purge: bool = False
    record_id: str | None = None
    quarantine: int | None = None


class Head(msgspec.Struct, frozen=True, gc=False):
    """The exact fold of a prefix of the log, for one journal.

    `offset` is that of the last record that counted. A purged journal keeps a head with `purged` set: it
    counts as absent, but its offset still guards against old records. `delete_to` 0 means none.
    `expire_at` is when it expires, `expire_on` the day of that; a head taken over may know the day only.
    `halted_at` is the offset of a record that could not be applied. `garbage` lists deletions that may
    not have been carried out yet. `tag_seq` is the last number that an event of each tag got; it outlives purges.
    """

    partition: int
    offset: int
    segment_size: int
    seq_nr: int = 0
    delete_to: int = 0
    created: int | None = None
    updated: int | None = None
    expire_after: ExpireAfter | None = None
    expire_on: date | None = None
    expire_at: int | None = None
    record_id: str | None = None
    origin: str | None = None
    purged: bool = False
    halted_at: int | None = None
    garbage: tuple[Deletion, ...] = ()
    legacy_segment: bool = False
    tag_seq: dict[str, int] | None = None


def exists(head: Head | None) -> bool:
    """Whether there is a journal, as readers see it."""
    return head is not None and not head.purged


def life_of(head: Head | None) -> str | None:
    """Which life the journal is in; None when it does not exist, or when its tables came from elsewhere without one."""
    return head.record_id if head is not None and not head.purged else None


def seq_nr_of(head: Head | None) -> int:
    """The journal's seqNr; 0 when it does not exist."""
    return head.seq_nr if head is not None and not head.purged else 0
