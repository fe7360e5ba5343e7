"""A server in a thread of its own, for tests that cannot be asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from everlog.client import connect
from everlog.config import Config
from everlog.http.server import serving


@contextmanager
def served(config: Config) -> Iterator[str]:
    """Its address."""
    ready: threading.Event = threading.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
        async with connect(config) as log, serving(log, host="127.0.0.1", port=0) as address:
            found["address"] = address
            ready.set()
            await found["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(20)
    try:
        yield found["address"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()
