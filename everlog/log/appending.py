"""Which offset a record gets, and storing it, in a transaction that holds the log's write lock from its beginning."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from everlog.group_commit import Committed
from everlog.log.base import Ack, Bounds, Headers, NewRecord
from everlog.sqlite import Connection, load_statements

logger = logging.getLogger("everlog.log")

SQL = load_statements("everlog.log")
MAX_KEYS = 100_000

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[tuple[str, bytes], ...]).decode


class Appender:
    """A connection for appends: it remembers where partitions end, and each key's last record, until others write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._version = -1
        self._bounds: dict[tuple[int, int], Bounds] = {}
        self._last: dict[tuple[int, int, bytes | None], int] = {}

    def commit(self, group: Sequence[tuple[int, NewRecord]]) -> Committed[Ack]:
        """Store records in one transaction, and say where they went.

        Only the wait for the disk is counted as time: the rest would not be quicker in another thread.
        """
        started = time.perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            acks = self._store(group)
            committing = time.perf_counter()
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._version = -1  # what was stored last did not come to stay: look at the file again
            raise
        now = time.perf_counter()
        logger.debug("%d appends in %.1f ms", len(group), (now - started) * 1000)
        return Committed(acks, now - committing)

    def close(self) -> None:
        self._connection.close()

    def _store(self, group: Sequence[tuple[int, NewRecord]]) -> list[Ack]:
        self._notice_others()
        rows = [self._place(topic, record) for topic, record in group]
        self._connection.executemany(SQL["append"], [row for row, _ in rows])
        return [ack for _, ack in rows]

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
