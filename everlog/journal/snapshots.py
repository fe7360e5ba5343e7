"""Snapshots: a ring of ten states per journal, straight in the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from everlog.core.codec import check_json_metadata
from everlog.core.events import EventRecord, encode_payload
from everlog.core.head import Head, exists, seq_nr_of
from everlog.core.values import MAX_SEQ_NR, SeqNr
from everlog.errors import InvalidInput, JournalNotFound
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

    def fits(self, snapshot: Snapshot) -> bool:
        return (
            self.min_seq_nr <= snapshot.seq_nr <= self.max_seq_nr
            and self.min_timestamp <= snapshot.timestamp <= self.max_timestamp
        )


ANY = Criteria()


@dataclass(frozen=True, slots=True)
class Recovered:
    """A journal's state: the newest snapshot, the events after it, and the seqNr that they lead to.

    Without a snapshot and with all events deleted this is the zero state at `seq_nr`.
    """

    seq_nr: int
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


class LocalSnapshots(Snapshots):
    """The snapshots of one topic's journals, in the store."""

    def __init__(self, journal: LocalJournal) -> None:
        self._journal = journal

    async def save(self, journal_id: str, *, seq_nr: int, payload: Any, metadata: Any = None) -> None:
        head = await self._head(journal_id)
        if not exists(head):
            raise JournalNotFound(f"there is no journal {journal_id!r}: append to it before you snapshot it")
        if SeqNr(seq_nr) > seq_nr_of(head):
            raise InvalidInput(f"a snapshot at seqNr {seq_nr} is beyond the journal, which is at {seq_nr_of(head)}")
        payload_type, data = encode_payload(payload)
        assert head is not None
        parts = self._journal.parts
        encoded = "" if metadata is None else msgspec.json.encode(check_json_metadata("metadata", metadata)).decode()
        snapshot = Snapshot(
            seq_nr=seq_nr,
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
        head = await self._head(journal_id, after)
        if head is None or not exists(head):
            return []
        stored = await self._journal.parts.store.snapshots(self._journal.log_name, journal_id)
        fitting = [
            snapshot
            for snapshot in stored.values()
            if snapshot.record_id == head.record_id and snapshot.seq_nr <= head.seq_nr and criteria.fits(snapshot)
        ]
        return sorted(fitting, key=lambda snapshot: (snapshot.seq_nr, snapshot.timestamp))

    async def _drop(self, journal_id: str, criteria: Criteria) -> int:
        found = [snapshot.seq_nr for snapshot in await self.list(journal_id, criteria)]
        return await self._journal.parts.store.delete_snapshots(self._journal.log_name, journal_id, found)

    async def _head(self, journal_id: str, after: After = None) -> Head | None:
        return await self._journal.head(journal_id, after=after)
