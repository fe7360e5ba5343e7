"""A server as a log: `everlog.connect("http://…")`. The same methods, the same answers, the same errors."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from everlog.config import Config
from everlog.documents.documents import Documents
from everlog.errors import StorageFailed
from everlog.journal.journal import Parts
from everlog.queues.port import QueueStore
from everlog.remote.connection import Wire, open_client
from everlog.remote.documents import RemoteDocuments
from everlog.remote.log import RemoteLog
from everlog.remote.queues import RemoteQueueStore
from everlog.runtime.clock import Clock, SystemClock


class RemoteEverlog(RemoteLog):
    """A server: journals, tags, documents, queues, and how projections are. What needs the files is not there."""

    def __init__(self, address: str, *, token: str | None = None, clock: Clock | None = None) -> None:
        self._http = open_client(address, token)
        super().__init__(Config(), Wire(self._http), clock or SystemClock())
        self._remote = RemoteDocuments(self._http, clock or SystemClock())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def parts(self) -> Parts:
        raise StorageFailed(
            "this needs the log and the store themselves, not a server: open the folder or everlog.toml"
        )

    @property
    def documents(self) -> Documents:
        return self._remote

    @property
    def queues(self) -> QueueStore:
        if self._queues is None:
            self._queues = RemoteQueueStore(self._http, self._clock)
        return self._queues

    async def close(self) -> None:
        queues, self._queues = self._queues, None
        if queues is not None:
            await queues.close()
        await self._http.aclose()
