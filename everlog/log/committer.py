"""Group commit: appends that are ready at the same time share one transaction, and one wait for the disk.

They gather until the event loop has run all that is ready, then they are committed on the spot: a quick commit costs
less than handing it to a thread. While commits are slow, or another process holds the file, a thread takes over, and
the next group gathers while it waits.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from everlog.errors import EverlogError, StorageFailed, Unacknowledged
from everlog.log.appending import Appender
from everlog.log.base import Ack, NewRecord
from everlog.sqlite import Connection, error_name, explain

logger = logging.getLogger("everlog.log")

MAX_WAITING = 20_000
# Commits that take longer than this on average would hold up the event loop.
QUICK_SECONDS = 0.005


class Request(NamedTuple):
    """A record on its way, and who waits for it."""

    topic: int
    record: NewRecord
    future: asyncio.Future[Ack]


Answers = list[tuple[Request, Ack | EverlogError]]


class Writing(NamedTuple):
    """A connection, and what stores records through it inside a transaction."""

    connection: Connection
    store: Appender


class Committer:
    """Appends records to one file for one event loop.

    `open_writing` opens a connection, which waits for a locked file or not. `limit`: after so many seconds without
    an answer an append is unacknowledged.
    """

    def __init__(self, path: Path, open_writing: Callable[[bool], Writing], *, limit: float) -> None:
        self._path = path
        self._open = open_writing
        self._limit = limit
        self._gathered: list[Request] = []
        self._waiting = 0
        self._room = asyncio.Event()
        self._pace = 0.0
        self._in_thread = 0
        self._groups: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, list[Request]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._here: Writing | None = None
        self._closed = False

    async def append(self, topic: int, record: NewRecord) -> Ack:
        """Store one record durably."""
        while self._waiting >= MAX_WAITING:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise StorageFailed(f"{self._path} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ack] = loop.create_future()
        if not self._gathered:
            loop.call_soon(self._flush, loop)
        self._gathered.append(Request(topic, record, future))
        self._waiting += 1
        return await future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit what has gathered: here if that is quick, else in the thread."""
        group, self._gathered = self._gathered, []
        try:
            here = not self._in_thread and self._pace < QUICK_SECONDS and self._begin_here()
        except EverlogError as error:
            self._settle([(request, error) for request in group])
            return
        if here:
            assert self._here is not None
            self._settle(self._commit(self._here, group))
        else:
            self._hand_over(loop, group)

    def _begin_here(self) -> bool:
        """Begin a transaction in this thread; False if another process holds the file."""
        if self._here is None:
            self._here = self._open(False)
        try:
            self._here.connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if error_name(error).startswith("SQLITE_BUSY"):
                return False
            raise explain(self._path, error) from error
        return True

    def _commit(self, writing: Writing, group: Sequence[Request]) -> Answers:
        """Store a group in the transaction that was begun; each request with its answer."""
        connection, store = writing
        started = time.perf_counter()
        try:
            acks = store([(topic, record) for topic, record, _ in group])
            committing = time.perf_counter()
            connection.execute("COMMIT")
        except Exception as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            store.forget()
            verdict = _verdict(self._path, error)
            return [(request, verdict) for request in group]
        self._pace += (time.perf_counter() - committing - self._pace) / 8
        logger.debug("%d appends in %.1f ms", len(group), (time.perf_counter() - started) * 1000)
        return list(zip(group, acks, strict=True))

    def _hand_over(self, loop: asyncio.AbstractEventLoop, group: list[Request]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._commit_groups, name="everlog-log", daemon=True)
            self._thread.start()
        self._in_thread += len(group)
        self._groups.put((loop, group))
        loop.call_later(self._limit, self._give_up, group)

    def _give_up(self, group: Sequence[Request]) -> None:
        """Too long: whoever still waits learns that nobody knows. The thread goes on trying."""
        silence = Unacknowledged(f"{self._path}: no answer in {self._limit:g} s")
        for request in group:
            if not request.future.done():
                request.future.set_exception(silence)

    def _commit_groups(self) -> None:
        """The thread: commits group after group, patiently."""
        writing: Writing | None = None
        while (item := self._groups.get()) is not None:
            loop, group = item
            try:
                writing = writing or self._open(True)
                writing.connection.execute("BEGIN IMMEDIATE")
            except (sqlite3.Error, EverlogError) as error:
                verdict = _verdict(self._path, error)
                answers: Answers = [(request, verdict) for request in group]
            else:
                answers = self._commit(writing, group)
            try:
                loop.call_soon_threadsafe(self._take_back, answers)
            except RuntimeError:
                logger.warning("%d appends were decided, but nobody waits for them any more", len(group))
        if writing is not None:
            writing.connection.close()

    def _take_back(self, answers: Answers) -> None:
        self._in_thread -= len(answers)
        self._settle(answers)

    def _settle(self, answers: Answers) -> None:
        self._waiting -= len(answers)
        self._room.set()
        for request, answer in answers:
            if request.future.done():
                continue
            if isinstance(answer, EverlogError):
                request.future.set_exception(answer)
            else:
                request.future.set_result(answer)

    async def close(self) -> None:
        """Finish what was accepted."""
        self._closed = True
        if self._gathered:
            self._flush(asyncio.get_running_loop())
        if self._thread is not None:
            self._groups.put(None)
            await asyncio.to_thread(self._thread.join)
        if self._here is not None:
            self._here.connection.close()


def _verdict(path: Path, error: Exception) -> EverlogError:
    """What an error says about the group: a disk that fails while it writes leaves open whether it was stored."""
    if isinstance(error, EverlogError):
        return error
    if not isinstance(error, sqlite3.Error):
        logger.error("a group of appends failed", exc_info=error)
        return StorageFailed(f"{path}: {error!r}")
    if error_name(error).startswith("SQLITE_IOERR"):
        return Unacknowledged(f"{path}: {error}")
    return explain(path, error)
