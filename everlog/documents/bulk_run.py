"""A run of many writes: results in the order of the writes, many documents at once, each document's in order.

Everything is bounded: so many writes and bytes are under way, so many results wait to be taken. When a bound is
reached, no more is read from the source: a slow disk or a slow reader slows the sender down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from everlog.documents.bulk import MAX_GROUP, BulkResult, BulkWrite, bulk_write, command_of
from everlog.documents.model import DocumentCommand, Method, WrittenDocument
from everlog.errors import EverlogError, InvalidDocument

MAX_UNDER_WAY = 2000
MAX_BYTES_UNDER_WAY = 16 * 1024 * 1024
MAX_RESULTS = 10_000
MAX_DOCUMENTS = 256

Written: TypeAlias = WrittenDocument | EverlogError
WriteEach: TypeAlias = Callable[[str, Sequence[DocumentCommand]], Awaitable[Sequence[Written]]]


class SourcedWrite(NamedTuple):
    """A write, or why it is none, its place in the source, and about how many bytes it holds."""

    number: int
    write: BulkWrite | EverlogError
    size: int = 0


class _Task(NamedTuple):
    command: DocumentCommand
    size: int
    done: asyncio.Future[Written]


class _Awaited(NamedTuple):
    """A write whose result is to be given in its turn; no path and no method if it is none."""

    number: int
    path: str | None
    method: Method | None
    done: asyncio.Future[Written]


class BulkRun:
    """One run. `write` carries out commands of one document, in order, and says what became of each."""

    def __init__(self, write: WriteEach, run_id: str, *, by: str) -> None:
        self._write = write
        self._run_id = run_id
        self._by = by
        self._documents: dict[str, deque[_Task]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MAX_DOCUMENTS)
        self._results: deque[_Awaited] = deque()
        self._under_way = 0
        self._bytes = 0
        self._ended = False
        self._come = asyncio.Event()  # a result has come, or the source has ended
        self._gone = asyncio.Event()  # a write is done, or a result was taken

    async def run(self, source: AsyncIterator[SourcedWrite]) -> AsyncGenerator[list[BulkResult], None]:
        """What became of each, in order, as soon as that is known: as many at a time as are."""
        reading = asyncio.create_task(self._read(source))
        try:
            while self._results or not self._ended:
                if not self._results:
                    self._come.clear()
                    await self._come.wait()
                    continue
                await self._results[0].done
                some: list[BulkResult] = []
                while self._results and self._results[0].done.done() and len(some) < MAX_GROUP:
                    some.append(_result(self._results.popleft()))
                self._gone.set()
                yield some
            await reading  # an error of the source comes after the results of what was read
        finally:
            tasks = [reading, *self._workers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, source: AsyncIterator[SourcedWrite]) -> None:
        try:
            async for one in source:
                self._begin(one)
                self._come.set()
                while self._is_full():
                    self._gone.clear()
                    await self._gone.wait()
        finally:
            self._ended = True
            self._come.set()

    def _is_full(self) -> bool:
        return (
            self._under_way >= MAX_UNDER_WAY or self._bytes >= MAX_BYTES_UNDER_WAY or len(self._results) >= MAX_RESULTS
        )

    def _begin(self, one: SourcedWrite) -> None:
        """Put a write behind the others of its document."""
        done: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        write = one.write
        if isinstance(write, EverlogError):
            self._results.append(_Awaited(one.number, None, None, done))
            done.set_result(write)
            return
        self._results.append(_Awaited(one.number, write.path, write.method, done))
        try:
            command = command_of(write, f"{self._run_id}-{one.number}", self._by)
        except EverlogError as error:
            done.set_result(error)
            return
        self._under_way += 1
        self._bytes += one.size
        uri = command.place.uri
        waiting = self._documents.get(uri)
        if waiting is not None:
            waiting.append(_Task(command, one.size, done))
            return
        self._documents[uri] = deque([_Task(command, one.size, done)])
        worker = asyncio.create_task(self._work(uri))
        self._workers.add(worker)
        worker.add_done_callback(self._workers.discard)

    async def _work(self, uri: str) -> None:
        """Write what waits of a document, several at a time, until nothing is left."""
        waiting = self._documents[uri]
        async with self._slots:
            while waiting:
                group = [waiting.popleft() for _ in range(min(len(waiting), MAX_GROUP))]
                try:
                    found = await self._write(uri, [task.command for task in group])
                except Exception as error:
                    for task in (*group, *waiting):
                        task.done.set_exception(error)
                    raise
                for task, written in zip(group, found, strict=True):
                    task.done.set_result(written)
                    self._under_way -= 1
                    self._bytes -= task.size
                self._gone.set()
            del self._documents[uri]


def _result(one: _Awaited) -> BulkResult:
    found = one.done.result()
    if isinstance(found, WrittenDocument):
        return BulkResult(one.number, found.path, found, method=one.method)
    return BulkResult(one.number, one.path, error=found, method=one.method)


async def sourced(writes: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[SourcedWrite, None]:
    """The writes of a Python user; one that is none is an error of its own."""
    number = 0
    if isinstance(writes, AsyncIterable):
        async for one in writes:
            number += 1
            yield _sourced(number, one)
    elif isinstance(writes, Iterable):
        for one in writes:
            number += 1
            yield _sourced(number, one)
            if number % MAX_GROUP == 0:
                await asyncio.sleep(0)  # others have their turn, also when nothing here waits
    else:
        raise InvalidDocument("invalid-line", f"many writes are an iterable of them, not {type(writes).__name__}")


def _sourced(number: int, given: Any) -> SourcedWrite:
    try:
        return SourcedWrite(number, *bulk_write(given))
    except EverlogError as error:
        return SourcedWrite(number, error)
