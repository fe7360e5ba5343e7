"""What a store is: the tables that the pipeline fills and every read starts from.

Implemented by `everlog.store.sqlite` (one file) and `everlog.store.cassandra`. Everything above uses only what
stands here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from everlog.core.change import Change, Quarantined, Rejected
from everlog.core.events import EventRecord, PayloadType, decode_payload
from everlog.core.head import Deletion, Head, Topic
from everlog.core.json_text import decode_json
from everlog.core.record import Record
from everlog.log.port import LogTopic
from everlog.runtime.clock import Stopwatch
from everlog.store.tag_port import TagEntry, TagTables

# Lost appends that are kept of a partition, the newest ones.
MAX_REJECTED = 10_000


@dataclass(slots=True)
class KeyChange:
    """What a task has to write for one journal.

    `garbage` is what must be deleted now: the fold's own deletions and those that an unfinished earlier cycle
    may have left. It is also stored in the head, so that it survives a crash between the two. `before` is the
    journal's seqNr before the change; 0 if there was none, or if it is not known. `tagged` are the rows of views by
    tag; `propagate`: what the garbage removes leaves the views, too; `untagged`: what the change itself
    removed again, so that it gets into no view.
    """

    id: str
    change: Change
    garbage: tuple[Deletion, ...] = ()
    before: int = 0
    tagged: list[TagEntry] = field(default_factory=list)
    untagged: list[TagEntry] = field(default_factory=list)
    propagate: bool = False

    @property
    def head(self) -> Head | None:
        """The head to write, or None if it stays as it is."""
        head = self.change.head
        if head is None or not self.change.changed:
            return None
        return msgspec.structs.replace(head, garbage=self.garbage)

    @property
    def verdicts(self) -> list[Verdict]:
        """What the log's records alone do not say about the change's appends."""
        change, found = self.change, list[Verdict]()
        if change.rejected or change.set_aside or change.resumed:
            set_aside = set(change.set_aside)
            found += [Verdict(offset, "waiting", self.id) for offset in change.set_aside]
            found += [
                Verdict(lost.offset, "rejected", self.id) for lost in change.rejected if lost.offset not in set_aside
            ]
            found += [Verdict(one.offset, "resumed", self.id, one.record) for one in change.resumed]
        return found


class WaitingRecord(NamedTuple):
    """A row of `quarantine`. `id` is None where the key is no text; `kind` says whether it halts a journal."""

    topic: str
    id: str | None
    kind: Literal["halted", "misplaced"]
    reason: str
    record: Record


class Verdict(NamedTuple):
    """A row of `verdict`: what became of a record that did not simply count where it stands.

    "rejected": an append that lost. "waiting": a record that was set aside in quarantine, even if it was released
    since. "resumed": at `offset` a Resume took up `record`, an append that counts there.
    """

    offset: int
    kind: Literal["rejected", "waiting", "resumed"]
    id: str
    record: Record | None = None

    @property
    def taken(self) -> int:
        """The offset of the record that a Resume took up; -1 for any other verdict."""
        return -1 if self.record is None else self.record.offset


class RejectedAppend(NamedTuple):
    """A row of `rejected`."""

    id: str
    partition: int
    rejected: Rejected


class Snapshot(msgspec.Struct, frozen=True):
    """A stored state of a journal."""

    seq_nr: int
    timestamp: int
    payload_type: PayloadType | None
    data: str | bytes | None
    record_id: str | None = None
    origin: str | None = None
    version: str | None = None
    metadata_json: str = ""

    @property
    def payload(self) -> Any:
        return decode_payload(self.payload_type, self.data)

    @property
    def metadata(self) -> Any:
        return decode_json(self.metadata_json, "metadata_json") if self.metadata_json else None


def ring_slot(taken: Mapping[int, tuple[bool, int, int]], seq_nr: int, slots: int) -> int:
    """Where a snapshot goes: every store keeps a ring of slots per journal.

    `taken`: by slot, whether it is of the same life, its seqNr and its timestamp. The snapshot takes its own
    slot, the lowest free one, or the oldest; those of another life go first, however high their seqNrs.
    """
    for slot, (same_life, found, _) in taken.items():
        if same_life and found == seq_nr:
            return slot
    free = next((slot for slot in range(slots) if slot not in taken), None)
    return free if free is not None else min(taken, key=lambda slot: taken[slot])


class RowCursor(NamedTuple):
    """The last row of a page; the next page starts behind it."""

    seq_nr: int
    timestamp: int


class StoreTask(ABC):
    """The writes of one chunk for one log partition, in this order: rows, heads, garbage.

    Each call writes for many journals and returns the ids for which it failed, with the reason; such a journal
    is left out of the calls that follow. An error that concerns all of them is raised.
    """

    watch: Stopwatch | None = None
    """Set to measure how long the parts of a call take."""

    def lap(self, phase: str) -> None:
        """A part of a call ends here: `rows` when the event rows are written, `tags` when those of the views are."""
        if self.watch is not None:
            self.watch.lap(phase)

    @abstractmethod
    async def pointer(self) -> int:
        """`pointer2` of this partition; -1 when there is none. To be read before heads."""

    @abstractmethod
    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        """The stored heads of those journals that have one, purge markers included."""

    @abstractmethod
    async def waiting(self, journal_id: str) -> list[Quarantined]:
        """The journal's quarantined records, oldest first."""

    @abstractmethod
    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        """New event rows, then their rows in views by tag; verdicts, rejected appends and quarantined records.

        A view's row is never there without the event's own row, so that removing the one finds the other; where
        deletes propagate, what the garbage names leaves the views before any row is written, and again with it.
        """

    @abstractmethod
    async def write_misplaced(self, records: Sequence[Quarantined]) -> None:
        """Records that touch no journal, for display."""

    @abstractmethod
    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        """Whole head rows."""

    @abstractmethod
    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        """What the changes' `garbage` says; repeating it does no harm."""


class Store(ABC):
    """The tables. Topic names are the log's own (`journal-orders`)."""

    tags: TagTables | None = None
    """The views by tag, if this store keeps any."""

    @abstractmethod
    async def pin(self, topic: LogTopic, *, segment_size: int, base: int) -> Topic:
        """What is pinned for the topic; pinned now, with these values, if it never was."""

    @abstractmethod
    async def pinned(self) -> list[Topic]:
        """All topics that were ever used."""

    @abstractmethod
    async def pointer(self, topic: str, partition: int) -> int:
        """The last replicated offset of a partition; -1 when there is none."""

    @abstractmethod
    async def pointers(self, topic: str) -> dict[int, int]:
        """`pointer2` of every partition that has one."""

    @abstractmethod
    async def publish(self, pointers: Mapping[tuple[str, int], int], now_ms: int) -> None:
        """Say that everything up to these offsets is in the tables. A pointer never moves back."""

    @abstractmethod
    async def head(self, topic: str, journal_id: str) -> Head | None:
        """The stored head, purge markers included."""

    @abstractmethod
    async def rows(
        self,
        topic: str,
        journal_id: str,
        *,
        segment_size: int,
        first: int,
        last: int,
        reverse: bool,
        limit: int,
        after: RowCursor | None = None,
        life: str | None = None,
    ) -> list[EventRecord]:
        """One page of event rows with `first <= seq_nr <= last`, each from its own segment.

        `life` is the record_id of the head that was read: a store that keeps notes on where a life has no rows may
        leave these places out.
        """

    @abstractmethod
    def ids(self, topic: str, *, page: int = 1000) -> AsyncIterator[list[str]]:
        """Pages of the ids of all journals that exist."""

    @abstractmethod
    def expired(self, topic: str, until_ms: int, *, page: int = 1000) -> AsyncIterator[list[str]]:
        """Pages of the ids of journals that expire by this time; of those that know the day only, by the day of it."""

    @abstractmethod
    async def drop_markers(self, topic: str, before_ms: int) -> int:
        """Remove purge markers older than this that no replay can need; returns how many."""

    @abstractmethod
    async def waiting(self, topic: str, journal_id: str) -> list[Quarantined]:
        """The journal's quarantined records, oldest first."""

    @abstractmethod
    def quarantine(self, topic: str | None = None, *, page: int = 100) -> AsyncIterator[list[WaitingRecord]]:
        """Pages of all quarantined records."""

    async def count_quarantined(self, limit: int = 10_000) -> int:
        """How many records are quarantined, counted up to `limit`; a store that can count faster does."""
        count = 0
        async for found in self.quarantine():
            count += len(found)
            if count >= limit:
                break
        return min(count, limit)

    @abstractmethod
    async def rejected(self, topic: str, *, limit: int = 100) -> list[RejectedAppend]:
        """The newest appends that lost."""

    @abstractmethod
    async def verdicts(self, topic: str, partition: int, offsets: Sequence[int]) -> list[Verdict]:
        """The verdicts between the first and the last of these offsets, in order; the offsets are ascending.

        Complete up to `pointer2`, and for one journal up to its head: a caller reads these first.
        """

    @abstractmethod
    async def drop_verdicts(self, starts: Mapping[tuple[str, int], int]) -> None:
        """Remove verdicts below these offsets: by topic and partition, where the log starts now.

        Some below may stay. A caller that reads verdicts checks afterwards that the log still holds the records.
        """

    @abstractmethod
    async def snapshots(self, topic: str, journal_id: str) -> dict[int, Snapshot]:
        """The journal's snapshots by ring slot."""

    @abstractmethod
    async def put_snapshot(self, topic: str, journal_id: str, snapshot: Snapshot, *, slots: int) -> None:
        """Overwrite the slot of the same seqNr, else take a free one, else the oldest."""

    @abstractmethod
    async def delete_snapshots(self, topic: str, journal_id: str, seq_nrs: Sequence[int]) -> int:
        """Delete these snapshots; returns how many there were."""

    @abstractmethod
    async def save_status(self, name: str, status: bytes, now_ms: int) -> None:
        """Keep a service's status, as JSON."""

    @abstractmethod
    async def statuses(self) -> dict[str, bytes]:
        """The last status of every service."""

    @abstractmethod
    def task(self, topic: Topic, partition: int) -> AbstractAsyncContextManager[StoreTask]:
        """The writes of one chunk for one partition."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything."""
