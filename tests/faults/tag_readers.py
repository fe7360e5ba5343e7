"""Ten writers, twenty live readers of their tag, and the real pipeline between them (case 45 at full size)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import everlog
from everlog import Event
from everlog.config import Config
from everlog.tags.tag import TaggedEvent

WRITERS = 10
READERS = 20
EVENTS = 5_000
EVENTS_PER_APPEND = 10
PATIENCE = 600


async def write_and_read(config: Config) -> None:
    """Each reader has every event once, in order per journal, and all of them in the same order."""
    async with everlog.connect(config) as writing, everlog.connect(config) as reading, asyncio.timeout(PATIENCE):
        readers = [asyncio.create_task(_read(reading.tag("t").live())) for _ in range(READERS)]
        await asyncio.gather(*(_write(writing, writer) for writer in range(WRITERS)))
        first, *others = await asyncio.gather(*readers)
    assert all(found == first for found in others)


async def _write(log: everlog.Everlog, writer: int) -> None:
    orders = log.journal("orders")
    for start in range(0, EVENTS, EVENTS_PER_APPEND):
        numbers = range(start + 1, start + EVENTS_PER_APPEND + 1)
        await orders.append(f"w-{writer}", [Event(number, tags={"t"}) for number in numbers])


async def _read(events: AsyncIterator[TaggedEvent]) -> list[UUID]:
    """The offsets, in the order in which the events came."""
    offsets: list[UUID] = []
    reached = {f"w-{writer}": 0 for writer in range(WRITERS)}
    while len(offsets) < WRITERS * EVENTS:
        event = await anext(events)
        assert event.payload == reached[event.id] + 1, f"{event.id} goes on after {reached[event.id]}"
        reached[event.id] = event.payload
        offsets.append(event.offset)
    return offsets
