"""Pages of an asynchronous read, one item at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def each(pages: AsyncIterator[Sequence[T]]) -> AsyncGenerator[T, None]:
    """The items of all pages; a caller that stops early ends the read of the pages, too."""
    async with aclosing(pages):  # type: ignore[type-var]
        async for page in pages:
            for item in page:
                yield item
