"""A server for tests: its client, its streams, and a log whose journals and tags are reached through it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config
from everlog.console.server import serving
from everlog.remote.journal import RemoteJournal
from everlog.server.security.tokens import TokenFile, make_token, tokens_path


@asynccontextmanager
async def server(config: Config, **options: Any) -> AsyncIterator[tuple[Everlog, httpx.AsyncClient]]:
    """An open log, and a client of a server on it."""
    async with (
        connect(config) as log,
        serving(log, host="127.0.0.1", port=0, **options) as address,
        httpx.AsyncClient(base_url=address, timeout=60, limits=httpx.Limits(keepalive_expiry=2.0)) as client,
    ):
        yield log, client


def new_token(config: Config, *scopes: Any, name: str = "") -> str:
    """A token that is in the file of this configuration."""
    text, kept = make_token(name or "-".join(scopes), scopes, 0)
    TokenFile(tokens_path(config)).add(kept)
    return text


async def send(
    http: httpx.AsyncClient, method: str, path: str, body: Any = ..., status: int = 200, **options: Any
) -> httpx.Response:
    """A request that must have this status."""
    if body is not ...:
        options["content"] = json.dumps(body)
    answer = await http.request(method, path, **options)
    assert answer.status_code == status, (method, path, answer.status_code, answer.text)
    return answer


async def frames(
    http: httpx.AsyncClient, path: str, count: int, *, only: str | None = None, **options: Any
) -> list[dict[str, str]]:
    """The first so many frames of a stream: all, checkpoints included, or only those of one kind."""
    found: list[dict[str, str]] = []
    async with asyncio.timeout(60), http.stream("GET", path, **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        frame: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                frame[name] = value
                continue
            if only in (None, frame["event"]):
                found.append(frame)
            frame = {}
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {len(found)} frames")


class _InspectedJournal(RemoteJournal):
    """Tests put broken records into the log by hand, and look into the tables."""

    __slots__ = ("log_name",)

    def __init__(self, remote: Any, own: Any) -> None:
        super().__init__(own.topic, remote._wire, remote._clock)
        self.log_name = own.log_name
        self.ref = own.ref  # type: ignore[method-assign]


class Through:
    """A log whose journals, tags and topics are a server's; what tests do to the store itself stays local."""

    def __init__(self, local: Everlog, remote: Everlog) -> None:
        self._local = local
        self._remote = remote
        self._journals: dict[str, RemoteJournal] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def journal(self, topic: str) -> Any:
        if topic not in self._journals:
            self._journals[topic] = _InspectedJournal(self._remote, self._local.journal(topic))
        return self._journals[topic]

    def tag(self, name: str) -> Any:
        return self._remote.tag(name)

    def slices(self, first: int, last: int) -> Any:
        return self._remote.slices(first, last)

    async def tags(self) -> Any:
        return await self._remote.tags()

    async def topics(self) -> Any:
        return await self._remote.topics()


@asynccontextmanager
async def through_server(local: Everlog) -> AsyncIterator[Through]:
    async with serving(local, host="127.0.0.1", port=0) as address, connect(address) as remote:
        yield Through(local, remote)


@contextmanager
def server_in_thread(config: Config, **options: Any) -> Iterator[str]:
    """A server in a thread of its own, for tests that cannot be asynchronous; gives its address."""
    ready: threading.Event = threading.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
        async with connect(config) as log, serving(log, host="127.0.0.1", port=0, **options) as address:
            found["address"] = address
            ready.set()
            await found["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(60)
    try:
        yield found["address"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()
