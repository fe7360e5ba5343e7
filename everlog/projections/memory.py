"""Offsets in memory, for tests of projections."""

from __future__ import annotations

from everlog.projections.offsets import Offset
from everlog.projections.save_window import OffsetProgress
from everlog.projections.sqlite.offset_store import SqliteOffsetStore
from everlog.runtime.clock import Clock
from everlog.runtime.lease import Lease
from everlog.sqlite.connection import MEMORY


class MemoryOffsets(SqliteOffsetStore):
    """A store in memory that remembers every offset that was saved."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(MEMORY, clock=clock)
        self.all_offsets: list[Offset] = []  # newest first

    @property
    def last_offset(self) -> Offset | None:
        return self.all_offsets[0] if self.all_offsets else None

    async def save(self, lease: Lease, progress: OffsetProgress) -> None:
        await super().save(lease, progress)
        if progress.offset is not None:
            self.all_offsets.insert(0, progress.offset)
