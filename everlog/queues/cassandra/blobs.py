"""Large data of jobs, outside the log: written in chunks before the record that names them, gone with their segment.

A chunk is a plain write, which no fence keeps out. So every blob has a name of its owner's epoch, which no other owner
uses; and it is in the segment of its record, so that what is carried takes its data along.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec.structs import replace

from everlog.queues.cassandra.shard_log import ShardLog
from everlog.queues.rows import JobRow

INLINE_BYTES = 64 * 1024
_FIELDS = ("image", "slot")


class _Stored(NamedTuple):
    data: bytes
    segment: int
    item: str


class Blobs:
    """The large data of the rows of one shard. `pending` are rows of the log whose data are still to be read."""

    def __init__(self, log: ShardLog) -> None:
        self._log = log
        self._number = 0
        self._stored: dict[tuple[int, str], _Stored] = {}
        self._new: list[_Stored] = []
        self.pending: dict[int, dict[str, list[Any]]] = {}

    def take_out(self, row: JobRow, inline: int = INLINE_BYTES) -> tuple[JobRow, dict[str, tuple[int, str]]]:
        """The row without what has more bytes than that, and where it is; `flush` writes it."""
        places: dict[str, tuple[int, str]] = {}
        for field in _FIELDS:
            image = getattr(row, field)
            if image is None or len(image.data) <= inline:
                self._stored.pop((row.entry, field), None)
                continue
            stored = self._stored.get((row.entry, field))
            if stored is None or stored.segment != self._log.high or stored.data != image.data:
                self._number += 1
                stored = _Stored(image.data, self._log.high, f"{self._log.epoch}.{self._number}")
                self._stored[row.entry, field] = stored
                self._new.append(stored)
            places[field] = (stored.segment, stored.item)
            row = replace(row, **{field: replace(image, data=b"")})
        return row, places

    async def flush(self) -> int:
        """Write what was taken out, before the records that name it; returns the number of bytes."""
        new, self._new = self._new, []
        for stored in new:
            await self._log.write_blob(stored.segment, stored.item, stored.data)
        return sum(len(stored.data) for stored in new)

    def forget(self, entry: int) -> None:
        self.pending.pop(entry, None)
        for field in _FIELDS:
            self._stored.pop((entry, field), None)

    async def put_back(self, row: JobRow, places: dict[str, list[Any]]) -> JobRow:
        """The row with the data that the log names."""
        for field, (segment, item) in places.items():
            data = await self._log.read_blob(segment, item)
            self._stored[row.entry, field] = _Stored(data, segment, item)
            row = replace(row, **{field: replace(getattr(row, field), data=data)})
        return row
