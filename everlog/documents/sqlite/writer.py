"""Writes that come at the same time share a commit, each as if it were alone."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from everlog.errors import StorageFailed
from everlog.runtime.trace import Trace
from everlog.sqlite.connection import connect, is_fatal, transaction, translated

MAX_SHARED = 100
T = TypeVar("T")

WriterWork = Callable[[sqlite3.Connection], Any]


class _Waiting(NamedTuple):
    work: WriterWork
    done: asyncio.Future[Any]
    lazy: bool


class SharedWriter:
    """One connection, used in a thread; what waits while a commit runs goes into the next one."""

    def __init__(self, path: Path, *, synchronous: str, trace: Trace | None) -> None:
        self._path = path
        self._synchronous = synchronous
        self._trace = trace
        self._connection: sqlite3.Connection | None = None
        self._waiting: list[_Waiting] = []
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self, work: Callable[[sqlite3.Connection], T], *, lazy: bool = False) -> T:
        """Do the work in a transaction; an error of its own undoes only this work.

        `lazy`: a power failure may undo it. A commit of lazy work alone does not wait for the disk; the
        next one that does takes it along, for the WAL is written in order.
        """
        if self._closed:
            raise StorageFailed(f"{self._path} is closed")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(work, done, lazy))
        if self._running is None:
            self._running = asyncio.create_task(self._drain())
        return await done

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_SHARED], self._waiting[MAX_SHARED:]
                lazy = all(one.lazy for one in batch)
                try:
                    results = await asyncio.to_thread(self._commit, [one.work for one in batch], lazy)
                except BaseException as error:
                    for one in batch:
                        if not one.done.done():
                            one.done.set_exception(error)
                    if not isinstance(error, Exception):
                        raise
                    continue
                for one, result in zip(batch, results, strict=True):
                    if one.done.done():
                        continue  # the caller no longer waits
                    if isinstance(result, Exception):
                        one.done.set_exception(result)
                    else:
                        one.done.set_result(result)
        finally:
            self._running = None

    def _commit(self, works: list[WriterWork], lazy: bool) -> list[Any]:
        with translated(self._path):
            if self._connection is None:
                self._connection = connect(self._path, synchronous=self._synchronous, trace=self._trace)
            self._connection.execute(f"PRAGMA synchronous = {'NORMAL' if lazy else self._synchronous}")
            with transaction(self._connection):
                return [self._one(self._connection, work) for work in works]

    def _one(self, connection: sqlite3.Connection, work: WriterWork) -> Any:
        connection.execute("SAVEPOINT one")
        try:
            result = work(connection)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and is_fatal(error):
                raise
            connection.execute("ROLLBACK TO one")
            result = error
        connection.execute("RELEASE one")
        return result

    async def close(self) -> None:
        """Finish what waits."""
        self._closed = True
        if self._running is not None:
            await self._running
        if self._connection is not None:
            self._connection.close()
            self._connection = None
