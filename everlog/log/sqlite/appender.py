"""Which offset a record gets, and storing it, in a transaction that holds the log's write lock from its beginning."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from everlog.core.record import NewRecord, pack_headers
from everlog.log.port import Ack
from everlog.runtime.statements import load_statements
from everlog.sqlite.connection import Connection
from everlog.sqlite.group_commit import Committed

logger = logging.getLogger("everlog.log")

SQL = load_statements("everlog.log.sqlite")
MAX_KEYS = 100_000


class Appender:
    """A connection for appends: it remembers where partitions end, and each key's last record, until others write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._version = -1
        self._starts: dict[tuple[int, int], int] = {}
        self._ends: dict[tuple[int, int], int] = {}
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
        ends, last = self._ends, self._last
        rows: list[tuple[object, ...]] = []
        acks: list[Ack] = []
        for topic, record in group:
            partition, key = record.partition, record.key
            offset = ends.get((topic, partition))
            if offset is None:
                offset = self._look_for_end(topic, partition)
            ends[topic, partition] = offset + 1
            previous = last.get((topic, partition, key))
            if previous is None:
                previous = self._look_for_previous(topic, partition, key)
            last[topic, partition, key] = offset
            headers = pack_headers(record.headers)
            rows.append((topic, partition, offset, record.timestamp, key, record.action, record.value, headers))
            acks.append(Ack(offset, previous))
        self._connection.executemany(SQL["append"], rows)
        return acks

    def _notice_others(self) -> None:
        """SQLite's data version changes when another connection has written."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version or len(self._last) > MAX_KEYS:
            self._version = version
            self._starts.clear()
            self._ends.clear()
            self._last.clear()

    def _look_for_end(self, topic: int, partition: int) -> int:
        start, end = self._connection.execute(SQL["bounds"], (topic, partition)).fetchone()
        self._starts[topic, partition] = start
        return int(end)

    def _look_for_previous(self, topic: int, partition: int, key: bytes | None) -> int:
        """The key's last record, not counting this group's: those are remembered."""
        (previous,) = self._connection.execute(SQL["previous"], (topic, partition, key)).fetchone()
        # What was trimmed may have been this key's.
        return self._starts[topic, partition] - 1 if previous is None else int(previous)
