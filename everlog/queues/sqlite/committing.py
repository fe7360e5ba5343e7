"""Group commit: operations that are ready at the same time share one transaction, and one wait for the disk.

They gather until the event loop has run all that is ready, and are then done on the spot if that is quick. While
commits are slow, or somebody else holds the files, a thread does it patiently, and the next group gathers meanwhile.
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
from everlog.queues.operations import Answer, Operation
from everlog.queues.sqlite.files import Files, is_busy
from everlog.sqlite import error_name, explain

logger = logging.getLogger("everlog.queues")

MAX_WAITING = 20_000
MAX_GROUP = 512
# Commits that take longer than this on average would hold up the event loop.
QUICK_SECONDS = 0.005


class Request(NamedTuple):
    """An operation on its way, and who waits for it."""

    name: str
    operation: Operation
    future: asyncio.Future[Answer]


Answers = list[tuple[Request, Answer | EverlogError]]
Work = Callable[[Files, str, Sequence[Operation]], list[Answer]]


class QueueCommitter:
    """Runs operations for one event loop. `work` does those of one queue in one transaction."""

    def __init__(self, path: Path, open_files: Callable[[bool], Files], work: Work) -> None:
        self._path = path
        self._open = open_files
        self._work = work
        self._gathered: list[Request] = []
        self._waiting = 0
        self._room = asyncio.Event()
        self._pace = 0.0
        self._in_thread = 0
        self._groups: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, list[Request]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._here: Files | None = None
        self._closed = False

    async def execute(self, name: str, operation: Operation) -> Answer:
        """Do it, durably."""
        while self._waiting >= MAX_WAITING:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise StorageFailed(f"{self._path} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if not self._gathered:
            loop.call_soon(self._flush, loop)
        self._gathered.append(Request(name, operation, future))
        self._waiting += 1
        return await future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered, self._gathered = self._gathered, []
        by_queue: dict[str, list[Request]] = {}
        for request in gathered:
            by_queue.setdefault(request.name, []).append(request)
        for requests in by_queue.values():
            for first in range(0, len(requests), MAX_GROUP):
                self._run(loop, requests[first : first + MAX_GROUP])

    def _run(self, loop: asyncio.AbstractEventLoop, group: list[Request]) -> None:
        """Here if that is quick and nobody holds the files, else in the thread, in the order of arrival."""
        if not self._in_thread and self._pace < QUICK_SECONDS:
            try:
                if self._here is None:
                    self._here = self._open(False)
                self._settle(self._do(self._here, group))
                return
            except sqlite3.OperationalError:
                logger.debug("somebody else holds the files: the thread waits for them")
            except EverlogError as error:
                self._settle([(request, error) for request in group])
                return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_groups, name="everlog-queues", daemon=True)
            self._thread.start()
        self._in_thread += len(group)
        self._groups.put((loop, group))

    def _do(self, files: Files, group: Sequence[Request]) -> Answers:
        """A group in one transaction. Only "busy" is raised; nothing was done then."""
        started = time.perf_counter()
        try:
            answers = self._work(files, group[0].name, [request.operation for request in group])
        except Exception as error:
            if isinstance(error, sqlite3.Error) and is_busy(error):
                raise
            verdict = self._verdict(error)
            return [(request, verdict) for request in group]
        self._pace += (time.perf_counter() - started - self._pace) / 8
        return list(zip(group, answers, strict=True))

    def _run_groups(self) -> None:
        """The thread: group after group, patiently."""
        files: Files | None = None
        while (item := self._groups.get()) is not None:
            loop, group = item
            try:
                files = files or self._open(True)
                answers = self._do(files, group)
            except (sqlite3.Error, EverlogError) as error:
                verdict = self._verdict(error)
                answers = [(request, verdict) for request in group]
            try:
                loop.call_soon_threadsafe(self._take_back, answers)
            except RuntimeError:
                logger.warning("%d operations were done, but nobody waits for them any more", len(group))
        if files is not None:
            files.close()

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
            await asyncio.sleep(0)  # what the thread sent last is settled now
        if self._here is not None:
            self._here.close()

    def _verdict(self, error: Exception) -> EverlogError:
        """What an error says about the group: a disk that fails while it writes leaves open what was stored."""
        if isinstance(error, EverlogError):
            return error
        if not isinstance(error, sqlite3.Error):
            logger.error("a group of operations failed", exc_info=error)
            return StorageFailed(f"{self._path}: {error!r}")
        if error_name(error).startswith("SQLITE_IOERR"):
            return Unacknowledged(f"{self._path}: {error}")
        return explain(self._path, error)
