"""Which offset a record gets, and storing it: inside a transaction that holds the log's write lock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from everlog.log.base import Ack, Bounds, Headers, NewRecord
from everlog.sqlite import Connection, load_statements

SQL = load_statements("everlog.log")
MAX_KEYS = 100_000

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[tuple[str, bytes], ...]).decode


class Appender:
    """Remembers where partitions end, and each key's last record, for as long as nobody else writes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._version = -1
        self._bounds: dict[tuple[int, int], Bounds] = {}
        self._last: dict[tuple[int, int, bytes | None], int] = {}

    def __call__(self, group: Sequence[tuple[int, NewRecord]]) -> list[Ack]:
        """Store the records and say where they went. If they are rolled back, `forget` must follow."""
        self._notice_others()
        rows = [self._place(topic, record) for topic, record in group]
        self._connection.executemany(SQL["append"], [row for row, _ in rows])
        return [ack for _, ack in rows]

    def forget(self) -> None:
        """What was stored last did not come to stay: look at the file again."""
        self._version = -1

    def _notice_others(self) -> None:
        """SQLite's data version changes when another connection has written."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version or len(self._last) > MAX_KEYS:
            self._version = version
            self._bounds.clear()
            self._last.clear()

    def _place(self, topic: int, record: NewRecord) -> tuple[tuple[object, ...], Ack]:
        place = (topic, record.partition)
        found = self._bounds.get(place)
        if found is None:
            found = Bounds(*self._connection.execute(SQL["bounds"], place).fetchone())
        start, offset = found
        self._bounds[place] = Bounds(start, offset + 1)
        key = (topic, record.partition, record.key)
        previous = self._last.get(key)
        if previous is None:
            (previous,) = self._connection.execute(SQL["previous"], key).fetchone()
            if previous is None:
                previous = start - 1  # what was trimmed may have been this key's
        self._last[key] = offset
        headers = pack_headers(record.headers)
        row = (topic, record.partition, offset, record.timestamp, record.key, record.action, record.value, headers)
        return row, Ack(offset, previous)


def pack_headers(headers: Headers) -> bytes | None:
    return _pack(headers) if headers else None


def unpack_headers(packed: bytes | None) -> Headers:
    return _unpack(packed) if packed else ()
