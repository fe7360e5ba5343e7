"""Many queries at a time, their pages one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
WIDTH = 8


async def merged(sources: Iterable[AsyncIterator[T]], width: int = WIDTH) -> AsyncIterator[T]:
    """What the sources yield, `width` of them running at a time, in any order; nobody runs far ahead."""
    queue: asyncio.Queue[T | None] = asyncio.Queue(width)
    todo = iter(sources)
    workers = [asyncio.create_task(_drain(todo, queue)) for _ in range(width)]
    finished = asyncio.create_task(_finish(workers, queue))
    try:
        while (item := await queue.get()) is not None:
            yield item
        await asyncio.gather(*workers)
    finally:
        for task in (*workers, finished):
            task.cancel()
        await asyncio.gather(*workers, finished, return_exceptions=True)


async def _drain(todo: Iterator[AsyncIterator[T]], queue: asyncio.Queue[T | None]) -> None:
    for source in todo:
        async for item in source:
            await queue.put(item)


async def _finish(workers: list[asyncio.Task[None]], queue: asyncio.Queue[T | None]) -> None:
    """End the queue when all are done, or one has failed."""
    await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
    await queue.put(None)
