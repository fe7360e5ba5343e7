"""Event rows as statements: one batch for what goes into one partition, bounded in rows and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from everlog.cassandra.session import CassandraRequest, Session, make_batch
from everlog.core.events import EventRecord
from everlog.core.head import Topic
from everlog.errors import Refused
from everlog.store.cassandra.rows import row_values
from everlog.store.port import KeyChange

MAX_ROWS = 100
MAX_BYTES = 256 * 1024
# Just below the 16 MiB that a server takes by default. It does not only refuse a larger request: others on the same
# connection get no answer. So it is not sent.
MAX_ROW_BYTES = 15 * 1024 * 1024
# What a row's columns take besides payload, headers and metadata; a guess on the safe side.
ROW_BYTES = 300
# How many columns of a row may lack a value: the last ones of `put_row`.
OPTIONAL = 10


class RowStatements:
    """The statement `put_row` in the forms that rows need: each names only the columns that have a value.

    A null would be a tombstone, and an unset value still costs the server a sixth. A form is prepared after the first
    batch that could have used it.
    """

    def __init__(self, session: Session, cql: str, optional: int = OPTIONAL) -> None:
        self.cql = cql
        self._session = session
        self._insert = cql[: cql.index("(")]
        self._columns = [name.strip() for name in cql[cql.index("(") + 1 : cql.index(")")].split(",")]
        self._optional = optional
        self._always = len(self._columns) - optional
        self._forms: dict[int, Any] = {}
        self._wanted: set[int] = set()
        self._whole: Any = None

    async def prepare(self) -> None:
        """Make ready what can be used from now on."""
        if self._whole is None:
            self._whole = await self._session.prepare(self.cql)
        while self._wanted:
            shape = self._wanted.pop()
            columns = [self._columns[index] for index in self._indexes(shape)[:-1]]
            names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
            form = f"{self._insert}({names}) VALUES ({marks}) USING TIMESTAMP ?"
            self._forms[shape] = await self._session.prepare(form)

    def bind(self, shape: int, values: list[Any], whole: bool) -> Any:
        """A statement; `whole`: what the row lacks is written as null."""
        form = None if whole else self._forms.get(shape)
        if form is not None:
            return form.bind(values)
        statement = self._whole.bind()
        if whole:
            statement.bind_list([None] * (len(self._columns) + 1))
        else:
            self._wanted.add(shape)
        for index, value in zip(self._indexes(shape), values, strict=True):
            statement.bind(index, value)
        return statement

    def _indexes(self, shape: int) -> list[int]:
        """The places of a shape's columns in the whole statement; the write time is behind them."""
        optional = [self._always + bit for bit in range(self._optional) if shape >> bit & 1]
        return [*range(self._always), *optional, len(self._columns)]


async def run_mutations(
    session: Session, cql: str, mutations: Iterable[Sequence[tuple[str, list[Any]]]]
) -> dict[str, Exception]:
    """Run a statement with many values, each of an owner; those of a mutation are of one partition, and sent at once.

    Returns the owners whose values are refused for good, with the reason: those of a mutation that is refused are tried
    one by one, so that one owner does not fail for another.
    """
    prepared = await session.prepare(cql)
    found = {str(number): mutation for number, mutation in enumerate(mutations)}

    def requests() -> Iterator[tuple[str, CassandraRequest, str]]:
        for number, mutation in found.items():
            bound = [prepared.bind(values) for _, values in mutation]
            yield number, bound[0] if len(bound) == 1 else make_batch(bound), cql

    refused = await session.run_all(requests(), len(found))
    again = [one for number in refused for one in found[number]]
    return await session.run_all(((owner, prepared.bind(values), cql) for owner, values in again), len(again))


def row_requests(put_row: RowStatements, topic: Topic, key: KeyChange) -> list[CassandraRequest]:
    """A statement or a batch for every partition that a journal's new rows go into."""
    change = key.change
    assert change.head is not None
    # Where a purge is yet to be cleaned up, a row may take the place of one of the life before, which is still there:
    # it must not take over what it lacks itself.
    whole = any(deletion.purge for deletion in key.garbage)
    found: list[CassandraRequest] = []
    for segment, rows in partitions(change.rows, change.head.segment_size):
        statements = [put_row.bind(*row_values(topic, key.id, segment, row), whole) for row in rows]
        found.append(statements[0] if len(statements) == 1 else make_batch(statements))
    return found


def partitions(rows: Sequence[EventRecord], segment_size: int) -> list[tuple[int, Sequence[EventRecord]]]:
    """Runs of rows that go into one partition, and its segment; each fits into one batch."""
    found: list[tuple[int, Sequence[EventRecord]]] = []
    start, size, segment = 0, 0, -1
    for at, row in enumerate(rows):
        row_size, row_segment = row_bytes(row), (row.seq_nr - 1) // segment_size
        if row_size > MAX_ROW_BYTES:
            raise Refused(f"the event {row.seq_nr} is too large for a row: {row_size:,} bytes, {MAX_ROW_BYTES:,} go in")
        if at > start and (row_segment != segment or at - start >= MAX_ROWS or size + row_size > MAX_BYTES):
            found.append((segment, rows[start:at]))
            start, size = at, 0
        segment = row_segment
        size += row_size
    found.append((segment, rows[start:] if start else rows))
    return found


def row_bytes(row: EventRecord) -> int:
    """About how many bytes a row takes. In short text that is not plain ASCII every character counts as four."""
    data = row.data
    length = 0 if data is None else len(data)
    if isinstance(data, str) and not data.isascii():
        length = 4 * length if length < MAX_BYTES else len(data.encode())
    return ROW_BYTES + length + len(row.headers_json) + len(row.metadata_json) + len(row.tags_json)
