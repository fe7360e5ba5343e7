"""Queues in SQLite files: any number of processes on one host, each job durable before it is acknowledged."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from everlog.config import prepare_folder
from everlog.errors import Busy, DeclarationRefused, EverlogError, NotTransactional, QueueNotFound
from everlog.queues.declaration import Declaration, encode_declaration
from everlog.queues.engine import SWEEP, Engine
from everlog.queues.operations import (
    READS,
    AskSchedules,
    Done,
    Operation,
    PauseSchedule,
    Put,
    PutAnswer,
    QueueAnswer,
    RaiseFlag,
    SetSchedule,
    Sweep,
)
from everlog.queues.port import LOOK_S, MAX_MAKES, PUT_AT_ONCE, QueueStore
from everlog.queues.rows import Packet
from everlog.queues.sqlite.catalog import SQL, KnownQueue
from everlog.queues.sqlite.deletion import delete_queue
from everlog.queues.sqlite.files import ITEM, BucketFiles, OpenBucket
from everlog.queues.sqlite.table import SqliteTable
from everlog.queues.sqlite.totals import QueueTotals
from everlog.queues.sqlite.upkeep import take_over_marks, tend
from everlog.runtime.clock import Clock
from everlog.runtime.failpoints import failpoint
from everlog.runtime.supervisor import asks_to_end, log_failure
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import transaction, translated
from everlog.sqlite.group_commit import Committed, GroupCommitter

log = logging.getLogger("everlog.queues")

MAX_GROUP = 512
_READS = frozenset(READS)
POINTS = {kind: f"queue.{kind.__name__.lower()}" for kind in get_args(Operation)}

Item = tuple[str, Sequence[Operation]]
"""Operations of one queue that came together."""


class SqliteQueueStore(QueueStore):
    """The queues of a data folder, in its folder `queues`."""

    look_s = LOOK_S
    totals_are_shared = True

    def __init__(
        self,
        folder: Path,
        *,
        synchronous: str = "FULL",
        clock: Clock | None = None,
        trace: Trace | None = None,
        sweep: int = SWEEP,
    ) -> None:
        super().__init__(clock)
        prepare_folder(folder, read=True)
        self._folder = folder
        self._synchronous = synchronous
        self._trace = trace
        self._sweep = sweep
        self._reader = self._open_files(patient=True)
        self._counted: dict[str, Counter[str]] = {}
        self._totals = QueueTotals()
        self._committer = GroupCommitter(
            self._reader.main.path,
            lambda patient: self._open_files(patient=patient),
            self._commit,
            group_by=_queue_of,
            max_group=MAX_GROUP,
        )
        self._rotated: set[str] = set()
        self._tending: set[asyncio.Task[None]] = set()
        self._closed = False

    def _open_files(self, *, patient: bool) -> BucketFiles:
        return BucketFiles(self._folder, synchronous=self._synchronous, patient=patient, trace=self._trace)

    async def declare(self, wanted: Declaration) -> Declaration:
        found = await asyncio.to_thread(self._declare, wanted)
        self.wake(wanted.name)
        return found

    def _declare(self, wanted: Declaration) -> Declaration:
        files = self._open_files(patient=True)
        try:
            with translated(files.main.path):
                for _ in range(MAX_MAKES):
                    if files.known(wanted.name) is None:
                        with transaction(files.main.connection):
                            values = (wanted.name, encode_declaration(wanted))
                            files.main.connection.execute(SQL["insert_queue"], values)
                        files.main.forget()
                    with suppress(QueueNotFound):  # another process has deleted it meanwhile
                        return self._evolve(files, wanted)
                raise Busy(f"the queue {wanted.name} is deleted again and again: try again")
        finally:
            files.close()

    async def delete(self, name: str, *, running: bool = False) -> int:
        count = await asyncio.to_thread(self._delete, name, running)
        self._counted.pop(name, None)
        self.wake(name)
        return count

    def _delete(self, name: str, running: bool) -> int:
        files = self._open_files(patient=True)
        try:
            with translated(files.main.path):
                return delete_queue(files, name, self.clock.now_ms(), running=running)
        finally:
            files.close()

    def _evolve(self, files: BucketFiles, wanted: Declaration) -> Declaration:
        """Under the locks of all buckets, so that nothing comes in while we look whether the queue is empty."""
        with files.transaction(wanted.name, self.clock.now_ms()) as (known, buckets):
            empty = not any(
                opened.connection.execute(ITEM["any_of_queue"], (known.jid,)).fetchone() for opened in buckets
            )
            evolved = known.declaration.evolve(wanted, empty=empty)
            if evolved == known.declaration:
                return evolved
            if known._replace(declaration=evolved).space != known.space:
                if not empty:
                    raise DeclarationRefused(
                        f"{wanted.name}: placement and file cannot change while the queue holds jobs: drain it first"
                    )
                take_over_marks(files, buckets)
            main = files.begin_main()
            main.execute(SQL["update_queue"], (encode_declaration(evolved), known.jid))
        return evolved

    async def declared(self, name: str) -> Declaration | None:
        with translated(self._reader.main.path):
            known = self._reader.known(name)
        return None if known is None else known.declaration

    async def names(self) -> list[str]:
        with translated(self._reader.main.path):
            self._reader.main.refresh()
        return sorted(self._reader.main.queues)

    async def execute(self, name: str, operation: Operation) -> QueueAnswer:
        if type(operation) in _READS:
            with translated(self._reader.main.path):
                return self._read(name, operation)
        (answer,) = await self._committer.execute((name, (operation,)))
        self.wake(name, operation)
        if self._rotated and not isinstance(operation, Sweep):  # a sweep is part of what follows anyway
            self._tend_rotated()
        return answer

    async def execute_all(self, name: str, operations: Sequence[Operation]) -> list[QueueAnswer | BaseException]:
        answers = await self._committer.execute((name, operations))
        self.wake(name)
        self._tend_rotated()
        return list(answers)

    async def put_all(self, name: str, packets: Sequence[Packet]) -> list[PutAnswer]:
        answers: list[Any] = []
        for first in range(0, len(packets), PUT_AT_ONCE):
            puts = tuple(map(Put, packets[first : first + PUT_AT_ONCE]))
            answers += await self._committer.execute((name, puts))
            self.wake(name)
        self._tend_rotated()
        return answers

    def _read(self, name: str, operation: Operation) -> QueueAnswer:
        known = self._known(self._reader, name)
        if isinstance(operation, AskSchedules) and not self._reader.main.has_schedules(known):
            return None  # asked every second: the files of a queue without schedules stay closed
        table = SqliteTable(self._reader, known, self._reader.live(known))
        return self._engine(table, known).apply(operation, self.clock.now_ms())

    def _known(self, files: BucketFiles, name: str) -> KnownQueue:
        known = files.known(name)
        if known is None:
            raise QueueNotFound(name, sorted(files.main.queues))
        return known

    def _engine(self, table: SqliteTable, known: KnownQueue) -> Engine:
        return Engine(table, known.declaration.options.settings, sweep=self._sweep)

    def _commit(self, files: BucketFiles, group: Sequence[Item]) -> Committed[Sequence[QueueAnswer]]:
        """Operations of one queue."""
        started = time.perf_counter()
        answers = iter(self._work(files, group[0][0], [one for _, operations in group for one in operations]))
        apart = [list(islice(answers, len(operations))) for _, operations in group]
        self._totals.save(files.main, self.clock.now_ms())
        return Committed(apart, time.perf_counter() - started)

    def _work(self, files: BucketFiles, name: str, operations: Sequence[Operation]) -> list[QueueAnswer]:
        """A group in one transaction: all of it is durable, or nothing is."""
        with files.transaction(name, self.clock.now_ms()) as (known, buckets):
            now = self.clock.now_ms()  # under the locks: a later operation must not have an earlier time
            engine = self._engine(SqliteTable(files, known, buckets), known)
            answers = engine.apply_all(operations, now)
            for operation in operations:
                failpoint(POINTS[type(operation)])
        if files.rotated:
            files.rotated = False
            self._rotated.add(name)
        self._counted.setdefault(name, Counter()).update(engine.counted)
        self._totals.add(known.jid, engine.counted, now)
        self.announce(name, engine.raised)
        return answers

    def put_in(self, connection: sqlite3.Connection, name: str, packet: Callable[[Declaration], Packet]) -> PutAnswer:
        files = self._reader
        known = self._known(files, name)
        file = known.declaration.options.file
        main_file = connection.execute("PRAGMA database_list").fetchone()[2]
        if file is None or not main_file or not Path(main_file).samefile(file):
            raise NotTransactional(
                f"{name} is not in the file of this connection: declare it with bucket='none' and file={main_file!r}"
            )
        if not connection.in_transaction and connection.isolation_level is None:
            raise NotTransactional("this connection commits every statement by itself: execute BEGIN IMMEDIATE first")
        with translated(Path(file)):
            files.main.open_bucket(known, self.clock.now_ms())  # a queue that was just declared may have none yet
            if not connection.in_transaction:
                # Looking and writing must be one step; Python would begin only at the first write.
                connection.execute("BEGIN IMMEDIATE")
            buckets = files.live(known)
            connection.execute(ITEM["lock"])  # from here on, no process changes the queue before the caller commits
            if self._known(files, name) != known or not buckets:
                raise Busy(f"the queue {name} was changed meanwhile: try again")
            bucket = buckets[-1].bucket
            opened = OpenBucket(bucket, connection)  # type: ignore[arg-type]
            engine = self._engine(SqliteTable(files, known, [opened]), known)
            try:
                answer = engine.apply(Put(packet(known.declaration)), self.clock.now_ms())
                files.commit([])  # dead letters and flags; the job is the caller's to commit
            except BaseException:
                files.rollback([])
                raise
        self.announce(name, engine.raised)
        assert isinstance(answer, PutAnswer)
        return answer

    async def tend(self, name: str) -> None:
        """Old buckets are drained and put away, too."""
        if self._tending:
            await asyncio.wait(self._tending)  # what a new bucket has begun
        await super().tend(name)
        await asyncio.to_thread(self._tend, name)

    def _tend_rotated(self) -> None:
        """A new bucket was opened: see to those before it, also where neither a worker nor a server does.

        That is once a period. It happens beside what the caller does, which need not wait for it.
        """
        while self._rotated:
            task = asyncio.create_task(self._tend_quietly(self._rotated.pop()))
            self._tending.add(task)
            task.add_done_callback(self._tending.discard)

    async def _tend_quietly(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._tend, name)
        except BaseException as error:  # the next upkeep may go well
            if asks_to_end(error):
                raise
            log_failure(log, f"{name}: upkeep failed", error)

    def _tend(self, name: str) -> None:
        files = self._open_files(patient=True)
        try:
            with translated(files.main.path):
                self._tend_files(files, name)
        finally:
            files.close()

    def _tend_files(self, files: BucketFiles, name: str) -> None:
        """A bucket whose jobs cannot be carried on is kept, and a flag says so."""
        try:
            tend(files, self._known(files, name), self.clock.now_ms())
        except QueueNotFound:
            raise  # it was deleted meanwhile: nothing is wrong with the next queue of that name
        except (EverlogError, sqlite3.Error) as error:
            log.warning("%s: the oldest bucket cannot be carried on: %s", name, error)
            with suppress(EverlogError, sqlite3.Error):  # what is wrong with the files may keep the flag out, too
                self._work(files, name, [RaiseFlag("bucket_overdue")])
            raise

    def changes(self, name: str) -> Any:
        with translated(self._reader.main.path):
            known = self._reader.known(name)
            if known is None:
                return None
            return [
                opened.connection.execute("PRAGMA data_version").fetchone()[0] for opened in self._reader.live(known)
            ] + [known.paused]

    def sibling(self) -> SqliteQueueStore:
        return SqliteQueueStore(
            self._folder, synchronous=self._synchronous, clock=self.clock, trace=self._trace, sweep=self._sweep
        )

    def counted(self, name: str) -> Counter[str]:
        return Counter(self._counted.get(name, Counter()))

    async def totals(self, name: str) -> Counter[str]:
        with translated(self._reader.main.path):
            known = self._reader.known(name)
            return Counter() if known is None else self._totals.of(self._reader.main, known.jid)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await super().close()
        if self._tending:
            await asyncio.wait(self._tending)
        await self._committer.close()
        self._totals.save(self._reader.main)
        self._reader.close()


# They write how far a schedule is to the main file, which is committed first. In a transaction with a firing, a crash
# between the commits would leave that note without the job.
_ALONE = (SetSchedule, PauseSchedule)


def _queue_of(item: Item) -> Hashable:
    """Single operations, and ends of jobs, share a transaction with others of their queue; what else comes together has
    one of its own."""
    first = item[1][0]
    shared = isinstance(first, Done) or (len(item[1]) == 1 and not isinstance(first, _ALONE))
    return item[0] if shared else (item[0], id(item))
