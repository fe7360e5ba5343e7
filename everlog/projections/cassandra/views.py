"""Tables of views on Cassandra: each statement alone, or rows and their mark in one conditional batch per partition.

The invariant of exactly-once: a partition's mark covers exactly the events whose rows it holds. Rows and mark are one
batch, on the condition that the mark is as it was before the handler read anything of that partition. So

* a crash between partitions, or before the offset is stored, repeats events; where a mark covers one, nothing is
  written again;
* a stale owner writes what the mark does not cover yet, which its successor then finds covered; or it is refused,
  because its successor was faster;
* two instances that write to the same partition cannot overwrite what they did not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everlog.cassandra.schema import quoted
from everlog.cassandra.session import Session
from everlog.core.bounded_map import BoundedMap
from everlog.errors import Busy, HandlerFailed, InvalidInput, OwnershipLost
from everlog.projections.cassandra.cql import Statement, read
from everlog.projections.cassandra.marks import (
    COLUMN,
    NOT_STORED,
    Commands,
    PartitionMark,
    StoredOffset,
    places_of,
    read_mark,
    write_mark,
)
from everlog.projections.copies import Difference
from everlog.projections.offsets import JournalNumber, Offset, is_ordered
from everlog.projections.port import ProjectionDeadLetter, View, ViewChanged, ViewTransaction
from everlog.projections.save_window import OffsetProgress
from everlog.runtime.failpoints import failpoint
from everlog.runtime.lease import Lease

MAX_STATEMENTS = 500
MAX_ROWS = 100
MAX_MARKS = 10_000
MAX_TRIES = 20
PAGE = 1000
_COLUMNS = "SELECT column_name, kind, position FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"


class ViewTable(NamedTuple):
    """A table of a view: its key, and whether it has the column for marks."""

    name: str
    key: tuple[str, ...]
    clustering: tuple[str, ...]
    marked: bool


class ViewPartition(NamedTuple):
    """A partition of a table."""

    table: ViewTable
    values: tuple[Any, ...]


class ViewWrite(NamedTuple):
    """A statement of a handler. `whole`: it binds the whole key of a row. `sweeps`: it deletes more than one row."""

    text: str
    values: Sequence[Any]
    row: tuple[Any, ...]
    whole: bool
    sweeps: bool


ViewRows = dict[tuple[Any, ...], ViewWrite]


class ViewTables:
    """The keyspace's tables as views use them, and the marks of partitions that were written last."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.keyspace = session.config.keyspace
        self._tables: dict[str, ViewTable] = {}
        self._texts: set[str] = set()
        self._marks: BoundedMap[ViewPartition, str | None] = BoundedMap(MAX_MARKS)

    def read(self, text: str, copies: Mapping[str, str]) -> Statement:
        """A statement; they are prepared, so there must not be many different ones."""
        statement = read(text, self.keyspace, tuple(copies.items()))
        if statement.kind != "schema" and statement.text not in self._texts:
            if len(self._texts) >= MAX_STATEMENTS:
                raise InvalidInput(f"more than {MAX_STATEMENTS} different statements: write ? and pass the values")
            self._texts.add(statement.text)
        return statement

    async def table(self, name: str) -> ViewTable:
        found = self._tables.get(name)
        if found is None or not found.marked:  # the column may have been added since
            rows = await self.session.fetch(_COLUMNS, self.keyspace.lower(), name)
            key, clustering = (
                tuple(column for _, column in sorted((place, column) for column, one, place in rows if one == kind))
                for kind in ("partition_key", "clustering")
            )
            marked = any(column == COLUMN and kind == "static" for column, kind, _ in rows)
            found = self._tables[name] = ViewTable(name, key, clustering, marked)
        return found

    async def mark(self, partition: ViewPartition) -> str | None:
        """The mark as it was after our last write, or as it is: an open conditional write is finished first.

        One that is out of date does no harm, as long as it is asked for before the rows: the write is refused then.
        """
        if partition not in self._marks:
            cql = f"SELECT {COLUMN} FROM {self._named(partition)} WHERE {_key(partition)} LIMIT 1"
            rows = await self.session.fetch(cql, *partition.values, serial=True)
            self._remember(partition, rows[0][0] if rows else None)
        return self._marks[partition]

    def _remember(self, partition: ViewPartition, mark: str | None) -> None:
        self._marks.put(partition, mark)

    def _named(self, partition: ViewPartition) -> str:
        return f'{quoted(self.keyspace)}."{partition.table.name}"'

    async def compare(self, table: str, view: str, recount: str) -> Difference:
        """How a table of a view differs from its recount."""
        rows, again = await self._count_rows(view), await self._count_rows(recount)
        return Difference(table, rows.total(), (again - rows).total(), (rows - again).total())

    async def _count_rows(self, table: str) -> Counter[int]:
        """How often there is which row; a row is kept as a number, so that a large view fits."""
        keyspace = self.keyspace.lower()
        found = await self.session.fetch(_COLUMNS, keyspace, table)
        text = ", ".join(f'"{name}"' for name in sorted(row[0] for row in found) if name != COLUMN)
        counts: Counter[int] = Counter()
        async for page in self.session.pages(f'SELECT {text} FROM "{keyspace}"."{table}"', page=PAGE):
            counts.update(hash(repr(row)) for row in page)
        return counts

    async def write(self, partition: ViewPartition, before: str | None, rows: Sequence[ViewWrite], after: str) -> None:
        """Rows and mark, if the mark is as it was before the rows were read; else ViewChanged."""
        cql = f"UPDATE {self._named(partition)} SET {COLUMN} = ? WHERE {_key(partition)} IF {COLUMN} = ?"
        batch = [(cql, [after, *partition.values, before]), *((row.text, row.values) for row in rows)]
        for _ in range(MAX_TRIES):
            self._marks.pop(partition, None)  # until the outcome is known
            if await self.session.batch_if(batch):
                self._remember(partition, after)
                failpoint("view.partition")
                return
            # Refused, or unknown. If it had happened, the events are found covered when they are handled again.
            if await self.mark(partition) != before:
                raise ViewChanged(f"{partition.table.name} {partition.values!r}")
        raise Busy(f"{partition.table.name}: a partition could not be written in {MAX_TRIES} attempts: try again")


def _key(partition: ViewPartition) -> str:
    return " AND ".join(f'"{column}" = ?' for column in partition.table.key)


class CassandraView(View):
    """Each statement on its own."""

    def __init__(self, tables: ViewTables, copies: Mapping[str, str]) -> None:
        self._tables = tables
        self._copies = copies

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement; 1 or 0 if it has a condition, else -1: Cassandra does not count rows."""
        session, found = self._tables.session, self._tables.read(statement, self._copies)
        if found.kind == "schema":
            await session.change_schema(found.text)
            return -1
        if found.conditional:
            return int(bool(await session.write_if(found.text, *values)))
        await session.write(found.text, *values)
        return -1

    async def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._tables.session.fetch(self._tables.read(statement, self._copies).text, *values)


class CassandraOpenView(View):
    """What a handler of exactly-once gets: writes are kept until it has come back, reads see what was before it."""

    def __init__(self, transaction: CassandraTransaction, tables: ViewTables, copies: Mapping[str, str]) -> None:
        self._transaction: CassandraTransaction | None = transaction
        self._tables = tables
        self._copies = copies

    def close(self) -> None:
        self._transaction = None

    def _open(self) -> CassandraTransaction:
        if self._transaction is None:
            raise HandlerFailed("this view was used after its handler had come back: await all it does inside")
        return self._transaction

    async def execute(self, statement: str, *values: Any) -> int:
        transaction, found = self._open(), self._tables.read(statement, self._copies)
        if found.kind not in ("insert", "update", "delete") or found.conditional:
            raise HandlerFailed(
                "with exactly_once, execute() takes INSERT, UPDATE and DELETE without IF and TIMESTAMP: the condition "
                "is the projection's own"
            )
        table = await self._tables.table(found.table)
        if not table.marked:
            raise HandlerFailed(
                f"the table {table.name} has no place for the offset: ALTER TABLE {table.name} ADD {COLUMN} text "
                "static (it must have clustering columns), or use at_least_once"
            )
        transaction.add(_partition(table, found, values), _write(table, found, values))
        return -1

    async def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        transaction, found = self._open(), self._tables.read(statement, self._copies)
        if found.kind != "select":
            raise HandlerFailed("fetch() takes a SELECT")
        table = await self._tables.table(found.table)
        if table.marked:  # any other table is none of this view's
            await transaction.settle(_partition(table, found, values))
        return await self._tables.session.fetch(found.text, *values)


def _partition(table: ViewTable, statement: Statement, values: Sequence[Any]) -> ViewPartition:
    try:
        return ViewPartition(table, tuple(values[statement.bound[column]] for column in table.key))
    except (KeyError, IndexError) as error:
        raise HandlerFailed(
            f"with exactly_once, a statement names the whole partition key of {table.name} and binds its values: "
            + " AND ".join(f"{column} = ?" for column in table.key)
        ) from error


def _write(table: ViewTable, statement: Statement, values: Sequence[Any]) -> ViewWrite:
    row = tuple(values[statement.bound[column]] for column in table.clustering if column in statement.bound)
    whole = len(row) == len(table.clustering)
    # Without its whole key a row is told by its statement: a static one, or one with a fixed value in its key.
    key = row if whole else (statement.text, *row)
    return ViewWrite(statement.text, values, key, whole, sweeps=statement.kind == "delete" and not whole)


class ViewEvent(NamedTuple):
    """What one event writes to a partition."""

    offset: Offset | None
    numbered: JournalNumber | None
    rows: ViewRows


class CassandraTransaction(ViewTransaction):
    """Rows by partition, then dead letters, then the offset. Each step may be repeated after a crash."""

    view: CassandraOpenView

    def __init__(
        self,
        tables: ViewTables,
        lease: Lease,
        commands: Commands,
        copies: Mapping[str, str],
        stored: StoredOffset = NOT_STORED,
    ) -> None:
        self.view = CassandraOpenView(self, tables, copies)
        self.progress: OffsetProgress | None = None
        self.letters: list[ProjectionDeadLetter] = []
        self.forgotten: ProjectionDeadLetter | None = None
        self._tables = tables
        self._lease = lease
        self._commands = commands
        self._stored = stored
        self._offset: Offset | None = None
        self._numbered: JournalNumber | None = None
        self._open: dict[ViewPartition, ViewRows] = {}
        self._kept: dict[ViewPartition, list[ViewEvent]] = {}
        # The marks from before the first read of each partition, or from our last write to it.
        self._seen: dict[ViewPartition, str | None] = {}
        self._error: BaseException | None = None
        self._full = False

    @property
    def full(self) -> bool:
        return self._full

    def close(self) -> None:
        self.view.close()

    def savepoint(self, offset: Offset | None = None, numbered: JournalNumber | None = None) -> None:
        self.keep()
        self._offset, self._numbered = offset, numbered
        places = places_of(self._lease.name, self._lease.key, offset)
        # Which of two events comes first can only be told if there is one of them in question.
        self._full = numbered is None and not all(map(is_ordered, places.values()))

    def keep(self) -> None:
        for partition, rows in self._open.items():
            self._kept.setdefault(partition, []).append(ViewEvent(self._offset, self._numbered, rows))
        self._open, self._offset, self._numbered = {}, None, None

    def undo(self) -> None:
        self._open, self._offset, self._numbered, self._full = {}, None, None, False

    def save(self, progress: OffsetProgress) -> None:
        self.progress = progress

    def bury(self, letters: Sequence[ProjectionDeadLetter]) -> None:
        self.letters.extend(letters)

    def forget(self, letter: ProjectionDeadLetter) -> None:
        self.forgotten = letter

    def add(self, partition: ViewPartition, write: ViewWrite) -> None:
        """All statements of a batch have one time, so that none of them can come after another one."""
        rows = self._open.setdefault(partition, {})
        others = [one for one in rows.values() if one.row != write.row]
        if any(one.sweeps or write.sweeps for one in others) or rows.get(write.row, write).text != write.text:
            raise HandlerFailed(
                f"with exactly_once, a handler changes a row of {partition.table.name} by one statement per event"
            )
        rows[write.row] = write

    async def settle(self, partition: ViewPartition) -> None:
        """Before a read: what earlier events wrote there is stored, and nothing changes there unseen from now on."""
        if partition in self._open:
            raise HandlerFailed(
                f"a handler reads a partition before it writes to it: {partition.table.name} {partition.values!r}"
            )
        await self._write(partition)
        await self._mark(partition)

    async def commit(self) -> None:
        """All rows. Dead letters and the offset are the store's, afterwards."""
        self.keep()
        if self._error is not None:  # the handler may have swallowed it
            raise self._error
        await self._tables.session.together([self._write(partition) for partition in list(self._kept)])

    async def _mark(self, partition: ViewPartition) -> PartitionMark:
        if partition not in self._seen:
            self._seen[partition] = await self._tables.mark(partition)
        return read_mark(self._seen[partition])

    async def _write(self, partition: ViewPartition) -> None:
        events: Sequence[ViewEvent] = self._kept.pop(partition, [])
        try:
            while events:
                events = await self._write_some(partition, events)
        except BaseException as error:
            self._error = error
            raise

    async def _write_some(self, partition: ViewPartition, events: Sequence[ViewEvent]) -> Sequence[ViewEvent]:
        """As many events as go into one batch: each row once, and not too many. What is left."""
        mark = await self._mark(partition)
        batch: ViewRows = {}
        done = 0
        for event in events:
            moved = self._after(mark, event)
            if moved is not None:
                if batch and not _fit(batch, event.rows):
                    break
                batch |= event.rows
                mark = moved
            done += 1
        if batch:
            before, after = self._seen[partition], write_mark(mark)
            await self._tables.write(partition, before, list(batch.values()), after)
            self._seen[partition] = after
        return events[done:]

    def _after(self, mark: PartitionMark, event: ViewEvent) -> PartitionMark | None:
        """The mark with this event; None if it has it already. A higher epoch is another owner's."""
        name, key, epoch = self._lease.name, self._lease.key, self._lease.epoch
        part = f"{name}:{key}"
        if part in mark.journals and mark.journals[part].epoch > epoch:
            raise OwnershipLost(f"{name}-{key}", epoch)
        offset = event.offset if event.offset is not None or self.progress is None else self.progress.offset
        places = places_of(name, key, offset)
        if any(mark.epoch(entry) > epoch for entry in places):
            raise OwnershipLost(f"{name}-{key}", epoch)
        if self.forgotten is not None:
            letter = f"{name}:{key}:{self.forgotten.offset}"
            return None if letter in mark.letters else mark.moved({}, epoch, letter)
        if event.numbered is not None:
            since = self._commands.own
            if mark.has(part, event.numbered, since):
                return None
            return mark.noted(part, event.numbered, epoch, self._stored, since)
        return None if mark.covers(places, self._commands) else mark.moved(places, epoch)


def _fit(batch: ViewRows, rows: ViewRows) -> bool:
    """Whether all of them may have one time: no two change the same row, as far as that can be told."""
    if len(batch) + len(rows) > MAX_ROWS or not batch.keys().isdisjoint(rows):
        return False
    return all(write.whole for write in (*batch.values(), *rows.values()))
