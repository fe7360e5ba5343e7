"""Group commit: what is ready at the same time shares one transaction, and one wait for the disk.

Items gather until the event loop has run all that is ready, then they are committed on the spot: a quick commit costs
less than handing it to a thread. While commits are slow, or another process holds the file, a thread takes over
and waits patiently, and the next group gathers meanwhile.

An item is answered when its group is durable. If the disk or the file fails, all of a group fails and nothing of it is
stored. If an item cannot be stored, it fails alone: its group is committed again, item by item. Groups are committed in
the order in which they gathered.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from everlog.errors import EverlogError, ForkedProcess, StorageFailed, Unacknowledged
from everlog.runtime.process import PROCESS
from everlog.sqlite.connection import error_name, explain, is_busy

logger = logging.getLogger("everlog.commits")

MAX_WAITING = 20_000
# Commits that take longer than this on average would hold up the event loop.
QUICK_S = 0.005


class Closable(Protocol):
    def close(self) -> None: ...


Files = TypeVar("Files", bound=Closable)
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Committed(NamedTuple, Generic[Answer]):
    """The answer to each item of a group, and for how long the group held up the thread that committed it."""

    answers: Sequence[Answer]
    seconds: float


Outcome: TypeAlias = Sequence[Answer | EverlogError] | EverlogError
"""What became of each item, or of all of them."""


class CommitRequest(msgspec.Struct, Generic[Item, Answer]):
    """An item on its way, and who waits for it."""

    item: Item
    future: asyncio.Future[Answer]


class HandedGroup(NamedTuple, Generic[Item, Answer]):
    """A group for the thread, the loop that gets its answers, and the timer that will not wait for them."""

    loop: asyncio.AbstractEventLoop
    group: list[CommitRequest[Item, Answer]]
    timer: asyncio.TimerHandle | None


class GroupCommitter(Generic[Files, Item, Answer]):
    """Commits items for one event loop.

    `open_files` opens connections that wait for a locked file, or fail at once. `commit` does a group in one
    transaction; if it raises, it has done nothing (if the disk itself fails, the outcome is unknown).
    `group_by`: items of one group have this in common. `timeout_s`: an item that the thread does not answer within this
    many seconds is unacknowledged.
    """

    def __init__(
        self,
        path: Path,
        open_files: Callable[[bool], Files],
        commit: Callable[[Files, Sequence[Item]], Committed[Answer]],
        *,
        group_by: Callable[[Item], Hashable] | None = None,
        max_group: int = MAX_WAITING,
        timeout_s: float | None = None,
    ) -> None:
        self._path = path
        self._open = open_files
        self._commit = commit
        self._group_by = group_by
        self._max_group = max_group
        self._timeout_s = timeout_s
        self._gathered: list[CommitRequest[Item, Answer]] = []
        self._waiting = 0
        self._room = asyncio.Event()
        self._pace = 0.0
        self._in_thread = 0
        self._handed: queue.SimpleQueue[HandedGroup[Item, Answer] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._here: Files | None = None
        self._closed = False
        self._pid = PROCESS.pid

    async def execute(self, item: Item) -> Answer:
        """Commit one item durably."""
        while self._waiting >= MAX_WAITING:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise StorageFailed(f"{self._path} is closed")
        if self._pid != PROCESS.pid:
            raise ForkedProcess(str(self._path), self._pid)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if not self._gathered:
            loop.call_soon(self._flush, loop)
        self._gathered.append(CommitRequest(item, future))
        self._waiting += 1
        return await future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered, self._gathered = self._gathered, []
        for group in self._groups(gathered):
            if self._in_thread or self._pace >= QUICK_S or not self._commit_here(group):
                self._hand_over(loop, group)

    def _groups(self, gathered: list[CommitRequest[Item, Answer]]) -> Iterable[list[CommitRequest[Item, Answer]]]:
        """What is committed together, none of it too large."""
        if self._group_by is None:
            alike: Iterable[list[CommitRequest[Item, Answer]]] = [gathered]
        else:
            found: dict[Hashable, list[CommitRequest[Item, Answer]]] = {}
            for request in gathered:
                found.setdefault(self._group_by(request.item), []).append(request)
            alike = found.values()
        for group in alike:
            for first in range(0, len(group), self._max_group):
                yield group[first : first + self._max_group]

    def _commit_here(self, group: list[CommitRequest[Item, Answer]]) -> bool:
        """Commit in this thread; False if nothing was done: another process holds the file, or one item is wrong."""
        outcome: Outcome[Answer]
        try:
            if self._here is None:
                self._here = self._open(False)
            outcome = self._answers(self._here, group)
        except Exception as error:
            if (isinstance(error, sqlite3.Error) and is_busy(error)) or (len(group) > 1 and _is_of_an_item(error)):
                return False
            outcome = self._verdict(error)
        self._settle(group, outcome)
        return True

    def _answers(self, files: Files, group: Sequence[CommitRequest[Item, Answer]]) -> Sequence[Answer]:
        answers, seconds = self._commit(files, [request.item for request in group])
        self._pace += (seconds - self._pace) / 8
        return answers

    def _patient_answers(
        self, files: Files, group: Sequence[CommitRequest[Item, Answer]]
    ) -> Sequence[Answer | EverlogError]:
        try:
            return self._answers(files, group)
        except Exception as error:
            if len(group) == 1 or not _is_of_an_item(error):
                raise
        return self._answers_alone(files, group)

    def _answers_alone(
        self, files: Files, group: Sequence[CommitRequest[Item, Answer]]
    ) -> Sequence[Answer | EverlogError]:
        """One item cannot be stored; which one, and that the others can be, shows when each is committed by itself."""
        found: list[Answer | EverlogError] = []
        for request in group:
            try:
                found.extend(self._commit(files, [request.item]).answers)
            except Exception as error:
                found.append(self._verdict(error))
        return found

    def _hand_over(self, loop: asyncio.AbstractEventLoop, group: list[CommitRequest[Item, Answer]]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._commit_handed, name="everlog-commits", daemon=True)
            self._thread.start()
        timer = None if self._timeout_s is None else loop.call_later(self._timeout_s, self._give_up, group)
        self._in_thread += len(group)
        self._handed.put(HandedGroup(loop, group, timer))

    def _give_up(self, group: Sequence[CommitRequest[Item, Answer]]) -> None:
        """It took too long: those that still wait learn that the outcome is unknown. The thread goes on trying."""
        silence = Unacknowledged(f"{self._path}: no answer in {self._timeout_s:g} s")
        for request in group:
            if not request.future.done():
                request.future.set_exception(silence)

    def _commit_handed(self) -> None:
        """The thread: commits group after group, patiently."""
        files: Files | None = None
        while (handed := self._handed.get()) is not None:
            outcome: Outcome[Answer]
            try:
                files = files or self._open(True)
                outcome = self._patient_answers(files, handed.group)
            except Exception as error:
                outcome = self._verdict(error)
            try:
                handed.loop.call_soon_threadsafe(self._take_back, handed, outcome)
            except RuntimeError:
                logger.warning(
                    "%d items were committed or refused, but no caller waits for the answer any more", len(handed.group)
                )
        if files is not None:
            files.close()

    def _take_back(self, handed: HandedGroup[Item, Answer], outcome: Outcome[Answer]) -> None:
        if handed.timer is not None:
            handed.timer.cancel()
        self._in_thread -= len(handed.group)
        self._settle(handed.group, outcome)

    def _settle(self, group: Sequence[CommitRequest[Item, Answer]], outcome: Outcome[Answer]) -> None:
        """Answer all that still wait."""
        self._waiting -= len(group)
        self._room.set()
        if isinstance(outcome, EverlogError):
            for request in group:
                if not request.future.done():
                    request.future.set_exception(outcome)
            return
        for request, answer in zip(group, outcome, strict=True):
            if request.future.done():
                continue
            if isinstance(answer, EverlogError):
                request.future.set_exception(answer)
            else:
                request.future.set_result(answer)

    async def close(self) -> None:
        """Finish what was accepted."""
        self._closed = True
        self._flush(asyncio.get_running_loop())
        if self._thread is not None:
            self._handed.put(None)
            await asyncio.to_thread(self._thread.join)  # what it sent last is settled before this returns
        if self._here is not None:
            self._here.close()

    def _verdict(self, error: Exception) -> EverlogError:
        """What an error says about the group: a disk that fails while it writes leaves open whether it was stored."""
        if isinstance(error, EverlogError):
            return error
        if not isinstance(error, sqlite3.Error):
            logger.error("a group failed", exc_info=error)
            return StorageFailed(f"{self._path}: {error!r}")
        if error_name(error).startswith("SQLITE_IOERR"):
            return Unacknowledged(f"{self._path}: {error}")
        return explain(self._path, error)


def _is_of_an_item(error: Exception) -> bool:
    """Whether an error is about what was to be stored, and not about the file or the disk."""
    if isinstance(error, sqlite3.Error):
        # The file's and the disk's are OperationalError and plain DatabaseError.
        return isinstance(error, sqlite3.DataError | sqlite3.IntegrityError | sqlite3.ProgrammingError)
    return not isinstance(error, EverlogError)
