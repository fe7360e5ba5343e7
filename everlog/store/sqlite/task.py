"""A chunk's writes for one log partition, in one IMMEDIATE transaction with the heads read inside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from everlog.core.change import Quarantined
from everlog.core.head import Deletion, Head, Topic
from everlog.core.record import record_from
from everlog.core.values import MAX_SEQ_NR
from everlog.sqlite.connection import is_fatal
from everlog.store.port import MAX_REJECTED, KeyChange, StoreTask
from everlog.store.sqlite.rows import (
    SQL,
    event_values,
    head_from,
    head_values,
    rejected_values,
    segments_for,
    verdict_values,
    waiting_values,
)
from everlog.store.sqlite.tag_tables import delete_tagged, put_tagged
from everlog.store.tag_port import TagEntry


class SqliteTask(StoreTask):
    """Runs inside a transaction that the store opened."""

    def __init__(self, connection: sqlite3.Connection, topic: Topic, partition: int) -> None:
        self._connection = connection
        self._topic = topic
        self._partition = partition

    async def pointer(self) -> int:
        row = self._connection.execute(SQL["pointer"], (self._topic.name, self._partition)).fetchone()
        return -1 if row is None else int(row[0])

    async def heads(self, ids: Sequence[str]) -> dict[str, Head]:
        execute, sql, name = self._connection.execute, SQL["head"], self._topic.name
        found = {}
        for journal_id in ids:
            rows = execute(sql, (name, journal_id, *segments_for(journal_id))).fetchall()
            if rows:
                found[journal_id] = head_from(rows, journal_id)
        return found

    async def waiting(self, journal_id: str) -> list[Quarantined]:
        rows = self._connection.execute(SQL["waiting"], (self._topic.name, journal_id)).fetchall()
        return [Quarantined(record_from(row), row[7]) for row in rows]

    async def write_rows(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return self._each_or_all(changes, self._insert_rows)

    def _insert_rows(self, changes: Sequence[KeyChange]) -> None:
        name = self._topic.name
        rows: dict[bool, list[tuple[object, ...]]] = {False: [], True: []}
        verdicts, rejected, waiting = [], [], []
        tagged: list[TagEntry] = []
        untagged: list[TagEntry] = []
        for key in changes:
            change = key.change
            tagged += key.tagged
            untagged += key.untagged
            if key.propagate:
                # Already here: a row of a new life may take the place of the one that says where its views' rows are.
                for deletion in key.garbage:
                    self._delete_tagged(key.id, deletion)
            if change.rows:
                assert change.head is not None
                size = change.head.segment_size
                for row in change.rows:
                    rows[row.payload_type == "binary"].append(event_values(name, key.id, size, row))
            verdicts += [verdict_values(name, self._partition, found) for found in key.verdicts]
            rejected += [rejected_values(name, self._partition, key.id, lost) for lost in change.rejected]
            waiting += [waiting_values(name, key.id, "halted", found) for found in change.quarantined]
        self._connection.executemany(SQL["put_row"], rows[False])
        self._connection.executemany(SQL["put_binary_row"], rows[True])
        self.lap("rows")
        if tagged or untagged:
            put_tagged(self._connection, tagged, untagged)
        self.lap("tags")
        if verdicts:
            self._connection.executemany(SQL["put_verdict"], verdicts)
        if rejected:
            self._connection.executemany(SQL["put_rejected"], rejected)
            place = (name, self._partition)
            self._connection.execute(SQL["trim_rejected"], (*place, *place, MAX_REJECTED))
        if waiting:
            self._connection.executemany(SQL["put_waiting"], waiting)

    async def write_misplaced(self, records: Sequence[Quarantined]) -> None:
        values = [waiting_values(self._topic.name, None, "misplaced", found) for found in records]
        self._connection.executemany(SQL["put_waiting"], values)

    async def write_heads(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return self._each_or_all(changes, self._upsert_heads)

    def _upsert_heads(self, changes: Sequence[KeyChange]) -> None:
        values = [head_values(self._topic.name, key.id, head) for key in changes if (head := key.head) is not None]
        self._connection.executemany(SQL["put_head"], values)

    async def delete_garbage(self, changes: Sequence[KeyChange]) -> dict[str, Exception]:
        return self._each_or_all([key for key in changes if key.garbage], self._delete)

    def _delete(self, changes: Sequence[KeyChange]) -> None:
        for key in changes:
            for deletion in key.garbage:
                self._carry_out(key.id, deletion, propagate=key.propagate)

    def _carry_out(self, journal_id: str, deletion: Deletion, *, propagate: bool) -> None:
        execute, name = self._connection.execute, self._topic.name
        if deletion.last >= deletion.first:
            if propagate:
                self._delete_tagged(journal_id, deletion)
            execute(SQL["delete_rows"], (journal_id, name, *_bounds(deletion)))
        if deletion.purge:
            execute(SQL["delete_life_snapshots"], (journal_id, name, deletion.record_id))
        if deletion.quarantine is not None:
            execute(SQL["delete_waiting"], (name, journal_id, deletion.quarantine))

    def _delete_tagged(self, journal_id: str, deletion: Deletion) -> None:
        if deletion.last >= deletion.first:
            delete_tagged(self._connection, self._topic.name, journal_id, _bounds(deletion))

    def _each_or_all(
        self, changes: Sequence[KeyChange], write: Callable[[Sequence[KeyChange]], None]
    ) -> dict[str, Exception]:
        """All at once; if the store refuses something, journal by journal, so that only that one fails."""
        try:
            self._saved(write, changes)
        except sqlite3.Error as error:
            if is_fatal(error):
                raise
        else:
            return {}
        failed: dict[str, Exception] = {}
        for key in changes:
            try:
                self._saved(write, [key])
            except sqlite3.Error as error:
                if is_fatal(error):
                    raise
                failed[key.id] = error
        return failed

    def _saved(self, write: Callable[[Sequence[KeyChange]], None], changes: Sequence[KeyChange]) -> None:
        self._connection.execute("SAVEPOINT part")
        try:
            write(changes)
        except sqlite3.Error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO part")
            raise
        finally:
            if self._connection.in_transaction:
                self._connection.execute("RELEASE part")


def _bounds(deletion: Deletion) -> tuple[int, int, int, int]:
    """The segments, the last seqNr, and the offset before which a row must have been written."""
    to = MAX_SEQ_NR if deletion.to is None else deletion.to
    return deletion.first, deletion.last, to, deletion.offset
