"""Snapshots: a ring of ten states per journal, straight in the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everlog.core.arguments import check_whole
from everlog.core.events import EventRecord, encode_payload
from everlog.core.head import Head, exists, life_of, seq_nr_of
from everlog.core.json_text import encode_json
from everlog.core.values import MAX_SEQ_NR, SeqNr, Version, check_seq_nr, shown
from everlog.errors import Conflict, InvalidInput, JournalNotFound, SnapshotTooLarge
from everlog.store.port import Snapshot

if TYPE_CHECKING:
    from everlog.journal.journal import After, LocalJournal


@dataclass(frozen=True, slots=True)
class Criteria:
    """Which snapshots are meant; both ends are included."""

    min_seq_nr: int = 1
    max_seq_nr: int = MAX_SEQ_NR
    min_timestamp: int = 0
    max_timestamp: int = MAX_SEQ_NR

    def __post_init__(self) -> None:
        for seq_nr in (self.min_seq_nr, self.max_seq_nr):
            check_seq_nr(seq_nr)
        for timestamp in (self.min_timestamp, self.max_timestamp):
            check_whole("the time of a snapshot, in milliseconds,", timestamp)

    def fits(self, snapshot: Snapshot) -> bool:
        return (
            self.min_seq_nr <= snapshot.seq_nr <= self.max_seq_nr
            and self.min_timestamp <= snapshot.timestamp <= self.max_timestamp
        )


ANY = Criteria()


@dataclass(frozen=True, slots=True)
class Recovered:
    """A journal's state: the newest snapshot, the events after it, and the seqNr that they lead to.

    Without a snapshot and with all events deleted this is the zero state at `seq_nr`. As `expected=` of an append,
    `seq_nr` also says in which life the journal must still be.
    """

    seq_nr: Version
    snapshot: Snapshot | None
    events: AsyncIterator[EventRecord]


class Snapshots(ABC):
    """The snapshots of one topic's journals: `log.journal("orders").snapshots`."""

    @abstractmethod
    async def save(self, journal_id: str, *, seq_nr: int, payload: Any, metadata: Any = None) -> None:
        """Keep a state. Ten are kept per journal: the same seqNr is overwritten, else the oldest goes."""

    async def load(self, journal_id: str, criteria: Criteria = ANY, *, after: After = None) -> Snapshot | None:
        """The newest snapshot that fits; those of an earlier life, or beyond the journal, do not count.

        `after`: of the journal as it is once this position is reached.
        """
        found = await self.list(journal_id, criteria, after=after)
        return found[-1] if found else None

    @abstractmethod
    async def list(self, journal_id: str, criteria: Criteria = ANY, *, after: After = None) -> list[Snapshot]:
        """All snapshots that fit, oldest first."""

    async def delete(self, journal_id: str, *, seq_nr: int | None = None, criteria: Criteria = ANY) -> int:
        """Delete the snapshot at `seq_nr`, or all that fit; returns how many there were."""
        if seq_nr is not None:
            criteria = Criteria(min_seq_nr=SeqNr(seq_nr), max_seq_nr=seq_nr)
        return await self._drop(journal_id, criteria)

    @abstractmethod
    async def _drop(self, journal_id: str, criteria: Criteria) -> int: ...


def check_criteria(criteria: Criteria) -> Criteria:
    """Criteria and nothing else."""
    if not isinstance(criteria, Criteria):
        raise InvalidInput(f"which snapshots are meant is said by Criteria(…), not by {shown(criteria)}")
    return criteria


def encode_snapshot_metadata(metadata: Any) -> str:
    """As the column holds it; empty when there is none."""
    return "" if metadata is None else encode_json("metadata", metadata)


class LocalSnapshots(Snapshots):
    """The snapshots of one topic's journals, in the store."""

    def __init__(self, journal: LocalJournal) -> None:
        self._journal = journal

    async def save(self, journal_id: str, *, seq_nr: int, payload: Any, metadata: Any = None) -> None:
        payload_type, data = encode_payload(payload)
        encoded = encode_snapshot_metadata(metadata)
        self._journal.check_open()
        head = await self._head(journal_id)
        if not exists(head):
            raise JournalNotFound(f"there is no journal {journal_id!r}: append to it before you snapshot it")
        if isinstance(seq_nr, Version) and seq_nr.life != life_of(head):
            raise Conflict(f"{self._journal.topic}:{journal_id}", seq_nr, seq_nr, life_of(head))
        if SeqNr(seq_nr) > seq_nr_of(head):
            raise InvalidInput(f"a snapshot at seqNr {seq_nr} is beyond the journal, which is at {seq_nr_of(head)}")
        assert head is not None
        parts = self._journal.parts
        size = sum(len(part.encode() if isinstance(part, str) else part or b"") for part in (data, encoded))
        if size > parts.config.journal.max_snapshot_bytes:
            raise SnapshotTooLarge(size, parts.config.journal.max_snapshot_bytes)
        snapshot = Snapshot(
            seq_nr=int(seq_nr),
            timestamp=parts.clock.now_ms(),
            payload_type=payload_type,
            data=data,
            record_id=head.record_id,
            origin=parts.origin.host,
            version=parts.origin.version,
            metadata_json=encoded,
        )
        slots = parts.config.journal.max_snapshots
        await parts.store.put_snapshot(self._journal.log_name, journal_id, snapshot, slots=slots)

    async def list(self, journal_id: str, criteria: Criteria = ANY, *, after: After = None) -> list[Snapshot]:
        check_criteria(criteria)
        return [*await self._fitting(journal_id, await self._head(journal_id, after), criteria)]

    async def newest(self, journal_id: str, head: Head | None) -> tuple[Snapshot | None, bool]:
        """The newest snapshot of the journal with this head, and whether there are some of what came after it.

        Those may have taken the place of older ones.
        """
        of_life = await self._of_life(journal_id, head)
        found = [snapshot for snapshot in of_life if snapshot.seq_nr <= seq_nr_of(head)]
        return found[-1] if found else None, len(found) < len(of_life)

    async def _fitting(self, journal_id: str, head: Head | None, criteria: Criteria) -> Sequence[Snapshot]:
        return [
            snapshot
            for snapshot in await self._of_life(journal_id, head)
            if snapshot.seq_nr <= seq_nr_of(head) and criteria.fits(snapshot)
        ]

    async def _of_life(self, journal_id: str, head: Head | None) -> Sequence[Snapshot]:
        """All that are stored of the life that this head is of, oldest first."""
        if head is None or not exists(head):
            return []
        stored = await self._journal.parts.store.snapshots(self._journal.log_name, journal_id)
        found = [snapshot for snapshot in stored.values() if snapshot.record_id == head.record_id]
        return sorted(found, key=lambda snapshot: (snapshot.seq_nr, snapshot.timestamp))

    async def _drop(self, journal_id: str, criteria: Criteria) -> int:
        self._journal.check_open()
        found = [snapshot.seq_nr for snapshot in await self.list(journal_id, criteria)]
        return await self._journal.parts.store.delete_snapshots(self._journal.log_name, journal_id, found)

    async def _head(self, journal_id: str, after: After = None) -> Head | None:
        return await self._journal.head(journal_id, after=after)
