"""A wire that can be cut: a TCP proxy in front of a node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from everlog.cassandra.connection import contact_points
from everlog.config import CassandraConfig


class Proxy:
    """Passes everything on, until it is cut; then it refuses connections and ends those that there are."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._whole = True
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    @classmethod
    @asynccontextmanager
    async def to(cls, config: CassandraConfig) -> AsyncIterator[Self]:
        hosts, port = contact_points(config.contact_points)
        proxy = cls(hosts[0], port)
        server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
        proxy.address = "127.0.0.1:{1}".format(*server.sockets[0].getsockname())
        try:
            yield proxy
        finally:
            proxy.cut()
            server.close()
            await asyncio.gather(*proxy._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._whole = False
        for writer in self._open:
            writer.transport.abort()

    def join(self) -> None:
        self._whole = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        far_writer: asyncio.StreamWriter | None = None
        try:
            if not self._whole:
                return
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            self._open.add(far_writer)
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        finally:
            for one in (writer, far_writer):
                if one is not None:
                    self._open.discard(one)
                    one.transport.abort()
            self._tasks.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
