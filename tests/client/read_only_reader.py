"""Reads a folder as a user who may not write it, and tries to write: prints what came of it as JSON.

Everything runs once with all rights first, there or in another folder, so that all modules are loaded before this
process gives them up.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import everlog
from everlog import Event
from everlog.errors import EverlogError

UNPRIVILEGED = 65_534


async def look(folder: str) -> dict[str, Any]:
    """What can be read."""
    async with everlog.connect(folder) as log:
        orders = log.journal("orders")
        recovered = await orders.recover("o-1")
        events = [event.payload async for event in orders.read("o-1")]
        return {
            "events": events,
            "pointer": await orders.pointer("o-1"),
            "keys": sorted([key async for key in orders.keys()]),  # noqa: SIM118 - no dictionary
            "snapshot": None if recovered.snapshot is None else recovered.snapshot.payload,
            "tagged": [found.event.payload async for found in log.tag("eu").current()],
            "document": (await log.documents.get("carts/c-1")).body,
            "topics": await log.topics(),
            "lag": sum(one.lag for one in (await log.status()).partitions),
            "jobs": (await log.queue("mails").stats()).ready,
        }


async def write(folder: str) -> dict[str, str]:
    """The error of each kind of write."""
    async with everlog.connect(folder) as log:
        orders = log.journal("orders")
        writes: dict[str, Callable[[], Awaitable[Any]]] = {
            "append": lambda: orders.append("o-1", Event(1)),
            "append without verdict": lambda: orders.append("o-1", Event(1, seq_nr=9), verdict=False),
            "new topic": lambda: log.journal("others").append("o-1", Event(1)),
            "purge": lambda: orders.purge("o-1"),
            "snapshot": lambda: orders.snapshots.save("o-1", seq_nr=1, payload="s"),
            "document": lambda: log.documents.put("carts/c-1", {"lines": 2}),
            "job": lambda: log.queue("mails").put("m-2"),
            "new queue": lambda: log.queue("letters").put("m-2"),
        }
        return {name: await outcome(call) for name, call in writes.items()}


async def outcome(call: Callable[[], Awaitable[Any]]) -> str:
    try:
        await call()
    except EverlogError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def main(folder: str, other: str | None = None) -> None:
    asyncio.run(look(other or folder))
    if os.geteuid() == 0 and os.access(folder, os.W_OK):  # a read-only mount is one for everybody
        os.setgroups([])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
    found: dict[str, Any] = {}
    try:
        found["read"] = asyncio.run(look(folder))
        found["written"] = asyncio.run(write(folder))
    except EverlogError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
