"""The ring of snapshots, by conditional writes: two that come at once must not take the same slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everlog.cassandra.session import Session
from everlog.cassandra.values import timestamp
from everlog.errors import Busy
from everlog.store.cassandra.rows import snapshot_from, snapshot_values
from everlog.store.port import Snapshot, ring_slot

MAX_TRIES = 20


class SnapshotRing:
    """Snapshots of journals in the table `snapshot_buffer`."""

    def __init__(self, session: Session, cql: Mapping[str, str]) -> None:
        self._session = session
        self._cql = cql

    async def load(self, topic: str, journal_id: str, *, serial: bool = False) -> dict[int, Snapshot]:
        """The journal's snapshots by slot."""
        rows = await self._session.fetch(self._cql["snapshots"], journal_id, topic, serial=serial)
        return {row[0]: snapshot_from(row[1:]) for row in rows}

    async def put(self, topic: str, journal_id: str, snapshot: Snapshot, *, slots: int) -> None:
        """Take a slot, and look again if another writer was faster, or if the outcome is unknown."""
        for _ in range(MAX_TRIES):
            found = await self.load(topic, journal_id, serial=True)
            if snapshot in found.values():
                return
            taken = {at: (one.record_id == snapshot.record_id, one.seq_nr, one.timestamp) for at, one in found.items()}
            slot = ring_slot(taken, snapshot.seq_nr, slots)
            key, values = (journal_id, topic, slot), snapshot_values(snapshot)
            if slot in found:
                old = found[slot]
                condition = (old.seq_nr, timestamp(old.timestamp), old.record_id)
                done = await self._session.write_if(self._cql["replace_snapshot"], *values, *key, *condition)
            else:
                done = await self._session.write_if(self._cql["insert_snapshot"], *key, *values)
            if done:
                return
        raise _too_busy(topic, journal_id)

    async def delete(self, topic: str, journal_id: str, seq_nrs: Sequence[int]) -> int:
        """Delete those; returns how many there were."""
        wanted, deleted = set(seq_nrs), 0
        for slot, one in (await self.load(topic, journal_id, serial=True)).items():
            if one.seq_nr in wanted:
                deleted += await self._delete(topic, journal_id, slot, one)
        return deleted

    async def _delete(self, topic: str, journal_id: str, slot: int, snapshot: Snapshot) -> bool:
        """Unless another one took its slot meanwhile."""
        for _ in range(MAX_TRIES):
            values = (journal_id, topic, slot, snapshot.seq_nr, snapshot.record_id)
            done = await self._session.write_if(self._cql["delete_snapshot"], *values)
            if done is not None:
                return done
            if (await self.load(topic, journal_id, serial=True)).get(slot) != snapshot:
                return True
        raise _too_busy(topic, journal_id)


def _too_busy(topic: str, journal_id: str) -> Busy:
    return Busy(
        f"{topic}:{journal_id}: a snapshot could not be changed in {MAX_TRIES} attempts, because others change the "
        "same journal's snapshots or Cassandra gives no clear answer: try again"
    )
