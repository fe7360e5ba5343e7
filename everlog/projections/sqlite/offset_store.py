"""Projections in SQLite: one file, in which view rows and offsets change in one transaction.

Reads run where they are called. Writes run in one thread of their own, because another process may hold the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec

from everlog.errors import OffsetConflict, UnknownProjection
from everlog.projections.copies import Copies, Difference, copy_name
from everlog.projections.offsets import Offset, same, show
from everlog.projections.port import (
    ANY_OFFSET,
    AnyOffset,
    Desired,
    KnownProjection,
    OffsetStore,
    ProjectionDeadLetter,
    Recount,
    Report,
    View,
    ViewTransaction,
    encode_skips,
)
from everlog.projections.projection_id import ProjectionId
from everlog.projections.save_window import LogPlace, OffsetProgress
from everlog.projections.sqlite.recount import compare_files, copy_file, make_tables
from everlog.projections.sqlite.rows import (
    SQL,
    SqliteOffsetRow,
    bury,
    check_owner,
    claim,
    offset_from,
    save_progress,
    wanted,
    with_mirror,
    write_offset,
)
from everlog.projections.sqlite.views import (
    SqliteTransaction,
    SqliteView,
    copy_table,
    quoted,
    read_copies,
    write_copies,
)
from everlog.runtime.clock import Clock, SystemClock
from everlog.runtime.lease import Lease
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import MEMORY, Connection, connect, transaction, translated
from everlog.sqlite.migrations import migrate

FILE = "projections.db"
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_report = msgspec.json.Decoder(Report).decode


class SqliteOffsetStore(OffsetStore):
    """A file with the tables of projections; the tables of views may stand beside them.

    >>> store = SqliteOffsetStore.in_memory()
    """

    has_views = True

    def __init__(
        self, path: Path, *, synchronous: str = "FULL", clock: Clock | None = None, trace: Trace | None = None
    ) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._open: Callable[[], Connection] = lambda: connect(path, synchronous=synchronous, trace=trace)
        self._reader = self._open()
        try:
            migrate(self._reader, path, "everlog.projections.sqlite")
        except BaseException:
            self._reader.close()
            raise
        self._writer: Connection | None = None
        # In memory there is one connection, and no other process to wait for: no thread either.
        self._thread = None if path == MEMORY else ThreadPoolExecutor(1, thread_name_prefix="everlog-projections")
        self._writing = asyncio.Lock()
        self._closed = False

    @classmethod
    def in_memory(cls, *, clock: Clock | None = None) -> SqliteOffsetStore:
        """For tests: it is gone when it is closed."""
        return cls(MEMORY, clock=clock)

    def _connection(self) -> Connection:
        if self._writer is None:
            self._writer = self._reader if self._thread is None else self._open()
        return self._writer

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run to its end, also if the caller is cancelled: a transaction is not left to itself."""
        if self._thread is None:
            return work()
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction, in the writing thread; one at a time."""

        def run() -> T:
            with translated(self.path):
                connection = self._connection()
                with transaction(connection):
                    return work(connection)

        async with self._writing:
            return await self._in_thread(run)

    def _read(self, name: str, *values: object) -> list[tuple[Any, ...]]:
        with translated(self.path):
            return self._reader.execute(SQL[name], values).fetchall()

    # Owners

    async def leases(self, name: str) -> dict[str, Lease]:
        return {key: Lease(name, key, *row) for key, *row in self._read("leases", name)}

    async def take(self, projection: ProjectionId, owner: str, seen: Lease | None) -> Lease | None:
        def work(connection: sqlite3.Connection) -> Lease | None:
            place = (projection.name, projection.key)
            row = connection.execute(SQL["lease"], place).fetchone()
            if (None if row is None else Lease(*place, *row)) != seen:
                return None
            epoch = connection.execute(SQL["next_epoch"], (projection.name,)).fetchone()[0]
            beat = 0 if seen is None else seen.beat + 1
            connection.execute(SQL["take"], (*place, owner, epoch, beat))
            return Lease(*place, owner, epoch, beat)

        return await self._write(work)

    async def renew(self, lease: Lease, report: Report) -> Lease | None:
        def work(connection: sqlite3.Connection) -> Lease | None:
            place = (lease.name, lease.key)
            if not connection.execute(SQL["renew"], (*place, lease.owner, _encode(report).decode())).rowcount:
                return None
            return Lease(*place, *connection.execute(SQL["lease"], place).fetchone())

        return await self._write(work)

    async def release(self, lease: Lease, report: Report) -> None:
        values = (lease.name, lease.key, lease.owner, _encode(report).decode())
        await self._write(lambda connection: connection.execute(SQL["release"], values).rowcount)

    async def join(self, name: str, owner: str) -> dict[str, int]:
        def work(connection: sqlite3.Connection) -> dict[str, int]:
            connection.execute(SQL["join"], (name, owner))
            return dict(connection.execute(SQL["instances"], (name,)).fetchall())

        return await self._write(work)

    async def leave(self, name: str, owner: str) -> None:
        await self._write(lambda connection: connection.execute(SQL["leave"], (name, owner)).rowcount)

    # Offsets

    async def load(self, projection: ProjectionId) -> Offset | None:
        return self._offset(projection.name, projection.key, own=False)

    def _offset(self, name: str, key: str, *, own: bool) -> Offset | None:
        return offset_from(self._offset_rows(name), key, own=own)

    def _offset_rows(self, name: str) -> list[SqliteOffsetRow]:
        return with_mirror(self._read("offsets", name), self._read("mirrored", name))

    async def claim(self, lease: Lease, parts: Sequence[str]) -> None:
        now_ms = self._clock.now_ms()

        def work(connection: sqlite3.Connection) -> None:
            check_owner(connection, lease)
            claim(connection, lease, parts, now_ms)

        await self._write(work)

    async def save(self, lease: Lease, progress: OffsetProgress) -> None:
        now_ms = self._clock.now_ms()

        def work(connection: sqlite3.Connection) -> None:
            check_owner(connection, lease)
            save_progress(connection, lease, progress, now_ms)

        await self._write(work)

    async def set_offset(
        self, projection: ProjectionId, offset: Offset | None, *, expected: Offset | AnyOffset | None = ANY_OFFSET
    ) -> None:
        name, key, now_ms = projection.name, projection.key, self._clock.now_ms()

        def work(connection: sqlite3.Connection) -> None:
            self._must_know(connection, projection)
            own, mirror = (connection.execute(SQL[what], (name,)).fetchall() for what in ("offsets", "mirrored"))
            rows = with_mirror(own, mirror)
            found = offset_from(rows, key, own=True)
            if not isinstance(expected, AnyOffset) and not same(found, expected):
                raise OffsetConflict(str(projection), show(expected), show(found))
            epoch = connection.execute(SQL["next_epoch"], (name,)).fetchone()[0]
            connection.execute(SQL["raise_epoch"], (name, key, epoch))
            connection.execute(SQL["clear_positions"], (name, key))
            write_offset(connection, projection, epoch, offset, rows, now_ms)

        await self._write(work)

    async def positions(self, name: str) -> dict[str, dict[LogPlace, int]]:
        found: dict[str, dict[LogPlace, int]] = {}
        for key, topic, partition, offset in self._read("positions", name):
            found.setdefault(key, {})[topic, partition] = offset
        return found

    # What is wanted

    async def desired(self, name: str) -> dict[str, Desired]:
        return {key: wanted(row) for key, *row in self._read("desired", name)}

    async def pause(self, projection: ProjectionId, paused: bool) -> Desired:
        return await self._want(projection, lambda before: msgspec.structs.replace(before, paused=paused))

    async def skip(self, projection: ProjectionId, offset: str) -> Desired:
        return await self._want(projection, lambda before: before.with_skip(offset))

    async def end_skips(self, projection: ProjectionId, offsets: Collection[str]) -> Desired:
        return await self._want(projection, lambda before: before.without_skips(offsets))

    async def _want(self, projection: ProjectionId, change: Callable[[Desired], Desired]) -> Desired:
        now_ms = self._clock.now_ms()

        def work(connection: sqlite3.Connection) -> Desired:
            self._must_know(connection, projection)
            rows = connection.execute(SQL["desired"], (projection.name,)).fetchall()
            before = next((wanted(row) for key, *row in rows if key == projection.key), Desired())
            after = change(before)
            place = (projection.name, projection.partition, projection.key)
            connection.execute(SQL["want"], (*place, after.paused, now_ms, encode_skips(after.skips)))
            return msgspec.structs.replace(after, version=before.version + 1)

        return await self._write(work)

    def _must_know(self, connection: sqlite3.Connection, projection: ProjectionId) -> None:
        if (projection.name, projection.key) not in connection.execute(SQL["names"]).fetchall():
            raise UnknownProjection(projection.name, projection.key)

    # Dead letters

    async def bury(self, lease: Lease, letters: Sequence[ProjectionDeadLetter]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            check_owner(connection, lease)
            bury(connection, letters)

        await self._write(work)

    async def dead_letters(
        self, name: str, key: str | None = None, *, requested: bool = False, limit: int = 1000
    ) -> list[ProjectionDeadLetter]:
        fields = ProjectionDeadLetter.__struct_fields__
        rows = self._read("dead_letters", name, key, requested, limit)
        return [
            ProjectionDeadLetter(**{**dict(zip(fields, row, strict=True)), "requested": bool(row[8])}) for row in rows
        ]

    async def request_replay(self, projection: ProjectionId, offset: str | None = None) -> int:
        values = (projection.name, projection.key, offset)
        count = await self._write(lambda connection: connection.execute(SQL["request_replay"], values).rowcount)
        if count:
            await self._want(projection, lambda before: before)  # a new version: the owner looks
        return count

    async def answer_replay(self, lease: Lease, letter: ProjectionDeadLetter, cause: str | None) -> None:
        place = (letter.name, letter.key, letter.offset)

        def work(connection: sqlite3.Connection) -> None:
            check_owner(connection, lease)
            if cause is None:
                connection.execute(SQL["forget_letter"], place)
            else:
                connection.execute(SQL["failed_again"], (*place, cause))

        await self._write(work)

    async def drop_letters(self, projection: ProjectionId, offset: str | None = None) -> int:
        values = (projection.name, projection.key, offset)
        return await self._write(lambda connection: connection.execute(SQL["forget_letters"], values).rowcount)

    # All of it

    async def known(self, name: str | None = None) -> list[KnownProjection]:
        leases = {(row[0], row[1]): (Lease(*row[:5]), _report(row[5])) for row in self._read("reports")}
        letters = {(row[0], row[1]): row[2] for row in self._read("count_letters")}
        # Entries of a map are rows of their own; they belong to the key that wrote them.
        found = [place for place in self._read("names") if name in (None, place[0])]
        owners = {(one, row[0]): row[1] for one in {place[0] for place in found} for row in self._read("offsets", one)}
        places = sorted({(one, owners.get((one, key), key)) for one, key in found})
        desired = {one: await self.desired(one) for one in {place[0] for place in places}}
        rows = {one: self._offset_rows(one) for one in desired}
        result: list[KnownProjection] = []
        for one, key in places:
            lease, report = leases.get((one, key), (None, Report()))
            offset = offset_from(rows[one], key, own=True)
            updated = max((row[5] for row in rows[one] if row[1] == key and row[5]), default=None)
            wants = desired[one].get(key, Desired())
            result.append(KnownProjection(one, key, lease, report, offset, updated, wants, letters.get((one, key), 0)))
        return result

    def stamp(self) -> object:
        with translated(self.path):
            changes = self._reader.execute("PRAGMA data_version").fetchone()[0]
        return changes if self._thread is not None else self._reader.total_changes

    # Views

    def view(self, copies: Mapping[str, str] | None = None) -> View:
        return SqliteView(self._write, self._reader, self.path, copies)

    async def copies(self, name: str) -> Copies:
        with translated(self.path):
            return read_copies(self._reader, name)

    async def change_copies(self, name: str, before: Copies, after: Copies) -> bool:
        return await self._write(lambda connection: write_copies(connection, name, before, after))

    async def copy_tables(self, copies: Mapping[str, str]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for table, new in copies.items():
                copy_table(connection, table, new, copies)

        await self._write(work)

    async def drop_tables(self, tables: Sequence[str]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for table in tables:
                connection.execute(f"DROP TABLE IF EXISTS {quoted(table)}")

        await self._write(work)

    @asynccontextmanager
    async def recount(self, name: str, tables: Sequence[str]) -> AsyncIterator[Recount]:
        with TemporaryDirectory(prefix="everlog-verify-") as folder:
            before, again = Path(folder) / "before.db", Path(folder) / "again.db"
            await asyncio.to_thread(copy_file, self.path, before)
            copied, fresh = SqliteOffsetStore(before), SqliteOffsetStore(again, synchronous="OFF")
            try:
                names = await make_tables(copied, fresh, name, tables)
                current = copy_name(name, (await copied.copies(name)).current)
                ends = {one.key: one.offset for one in await copied.known(current)}

                async def compare() -> list[Difference]:
                    await copied.close()
                    await fresh.close()
                    return await asyncio.to_thread(compare_files, before, again, names)

                yield Recount(fresh, 0, ends, compare)
            finally:
                await copied.close()
                await fresh.close()

    async def erase(self, name: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            for one in SQL:
                if one.startswith("erase_"):
                    connection.execute(SQL[one], (name,))

        await self._write(work)

    @asynccontextmanager
    async def transaction(
        self, lease: Lease, copies: Mapping[str, str] | None = None
    ) -> AsyncIterator[ViewTransaction]:
        def begin() -> sqlite3.Connection:
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            return connection

        def end(how: str) -> None:
            connection = self._connection()
            if connection.in_transaction:
                connection.execute(how)

        async with self._writing:
            with translated(self.path):
                try:
                    connection = await self._in_thread(begin)
                    check_owner(connection, lease)
                    running = SqliteTransaction(connection, lease, self.path, self._clock.now_ms(), copies)
                    try:
                        yield running
                    finally:
                        running.close()
                    await self._in_thread(lambda: end("COMMIT"))
                except BaseException:
                    await self._in_thread(lambda: end("ROLLBACK"))
                    raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        async with self._writing:
            if self._writer is not None and self._writer is not self._reader:
                self._writer.close()
            self._reader.close()
            if self._thread is not None:
                self._thread.shutdown()
