"""The past of documents, read beside the event loop of a server.

To read a long history is to read and decode megabytes, which a client may ask for as often as it likes. So a server
on files reads them in the thread for long work, over files that it opened for itself; what comes back are finished
pages and bodies. On a cluster the log and the store are other processes, and clients of theirs do the reading.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from everlog.core.values import Position
from everlog.documents.change_stream import ChangeLog, Places
from everlog.documents.history import DocumentEvent, History, HistoryPage
from everlog.documents.model import DocumentTransaction
from everlog.documents.paths import DocumentPlace
from everlog.documents.publisher import Publisher
from everlog.journal.journal import After
from everlog.projections.source import Delivery
from everlog.runtime.side_loop import SideLoop

MAX_BATCH_BYTES = 256 * 1024
MAX_BATCH = 100
MAX_ASKING = 2
MAX_LARGE = 1000  # documents with large events
MAX_CHARS_HERE = 32 * 1024  # of an event that is published on the loop
T = TypeVar("T")


class SideFiles(ABC):
    """What reads and writes the log in the thread for long work; all of it is called there."""

    @abstractmethod
    async def history(self) -> History: ...

    @abstractmethod
    async def publisher(self) -> Publisher: ...

    @abstractmethod
    async def change_log(self) -> ChangeLog: ...

    @abstractmethod
    async def close(self) -> None: ...


class SidePublisher:
    """Publishes large events in the thread, where the log is written without holding up others; small ones here.

    Each of the two knows how far it has brought a document, and looks it up where the other one was there last. So
    documents that had a large event lately are published there, whatever the size.
    """

    def __init__(self, side: SideLoop, files: SideFiles, publisher: Publisher) -> None:
        self._side = side
        self._files = files
        self._publisher = publisher
        self._there: OrderedDict[str, None] = OrderedDict()

    async def publish(self, transaction: DocumentTransaction) -> None:
        async def there() -> None:
            await (await self._files.publisher()).publish(transaction)

        uri = transaction.uri
        if uri in self._there or len(transaction.event) > MAX_CHARS_HERE:
            self._there[uri] = None
            self._there.move_to_end(uri)
            if len(self._there) > MAX_LARGE:
                self._there.popitem(last=False)
            await self._side.run(there())
        else:
            await self._publisher.publish(transaction)


class SideChangeLog(ChangeLog):
    """A topic whose pages are read in the thread."""

    def __init__(self, side: SideLoop, files: SideFiles, log: ChangeLog) -> None:
        super().__init__(log.parts, log.topic)
        self._side = side
        self._files = files

    async def pages(self, places: Places) -> AsyncGenerator[Sequence[Delivery], None]:
        here = dict(places)

        async def read() -> AsyncGenerator[Sequence[Delivery], None]:
            async with aclosing((await self._files.change_log()).pages(here)) as pages:
                async for page in pages:
                    yield page

        async with aclosing(self._side.stream(read)) as found:
            async for page in found:
                yield page


class SideHistory(History):
    """A history whose reading is done by another one, which lives in the thread for long work."""

    def __init__(self, side: SideLoop, files: SideFiles, poll_interval_s: float) -> None:
        self._side = side
        self._open = files.history
        self._poll_interval_s = poll_interval_s
        self._watching = {}
        self._asked: dict[str, asyncio.Task[int]] = {}
        self._asking = asyncio.Semaphore(MAX_ASKING)

    async def _run(self, work: Callable[[History], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            return await work(await self._open())

        return await self._side.run(run())

    async def events(
        self,
        place: DocumentPlace,
        *,
        after: int = 0,
        reverse: bool = False,
        upto: int | None = None,
        token: After = None,
    ) -> AsyncGenerator[DocumentEvent, None]:
        async def batches() -> AsyncGenerator[Sequence[DocumentEvent], None]:
            history = await self._open()
            batch: list[DocumentEvent] = []
            size = 0
            read = history.events(place, after=after, reverse=reverse, upto=upto, token=token)
            async with aclosing(read) as events:
                async for event in events:
                    batch.append(event)
                    size += len(event.json)
                    if size >= MAX_BATCH_BYTES or len(batch) >= MAX_BATCH:
                        yield batch
                        batch, size = [], 0
            if batch:
                yield batch

        async with aclosing(self._side.stream(batches)) as found:
            async for batch in found:
                for event in batch:
                    yield event

    async def page(
        self,
        place: DocumentPlace,
        *,
        after: int = 0,
        before: int | None = None,
        size: int,
        reverse: bool = False,
        token: After = None,
    ) -> HistoryPage:
        return await self._run(
            lambda history: history.page(place, after=after, before=before, size=size, reverse=reverse, token=token)
        )

    async def last_revision(self, uri: str, token: After = None) -> int:
        """Callers that ask for the same at the same time share an answer that none of them is too late for."""
        if token is not None:
            return await self._run(lambda history: history.last_revision(uri, token))
        asked = self._asked.get(uri)
        if asked is None:
            asked = self._asked[uri] = asyncio.create_task(self._ask(uri))
            asked.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(asked)

    async def _ask(self, uri: str) -> int:
        async with self._asking:
            del self._asked[uri]  # from here on it may be too late
            return await self._run(lambda history: history.last_revision(uri))

    async def position(self, transaction_id: str) -> Position | None:
        return await self._run(lambda history: history.position(transaction_id))

    async def revision_at(self, uri: str, time_ms: int, token: After = None) -> int:
        return await self._run(lambda history: history.revision_at(uri, time_ms, token))

    async def body_at(self, place: DocumentPlace, revision: int, token: After = None) -> Any:
        return await self._run(lambda history: history.body_at(place, revision, token))

    async def elements_at(
        self, uri: str, revision: int, *, after: str = "", size: int, token: After = None
    ) -> tuple[list[Any], str | None]:
        return await self._run(lambda history: history.elements_at(uri, revision, after=after, size=size, token=token))

    async def all_elements_at(self, uri: str, revision: int, *, size: int) -> list[Any]:
        return await self._run(lambda history: history.all_elements_at(uri, revision, size=size))

    async def diff(self, place: DocumentPlace, old: int, new: int, token: After = None) -> Any:
        return await self._run(lambda history: history.diff(place, old, new, token))
