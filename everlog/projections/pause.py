"""Keys that stand still while a view is compared, and run again afterwards, also if who paused them died meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec.structs import replace

from everlog.projections.port import OffsetStore

# So long may a handler take until it stands.
STANDING_SECONDS = 60.0


class Pausing(Protocol):
    """Commands to a projection."""

    async def pause(self, name: str, key: str | None = None, *, wait: float | None = None) -> None: ...

    async def resume(self, name: str, key: str | None = None, *, wait: float | None = None) -> None: ...


@asynccontextmanager
async def standing_still(
    commands: Pausing, store: OffsetStore, name: str, running: Iterable[str]
) -> AsyncIterator[None]:
    """Pause these keys. They are noted first: who does this after one that died also lets that one's keys go on."""
    noted = await store.update_copies(
        name, lambda seen: replace(seen, standing=tuple(sorted({*seen.standing, *running})))
    )
    try:
        for key in noted.standing:
            await commands.pause(name, key, wait=STANDING_SECONDS)
        yield
    finally:
        for key in noted.standing:
            await commands.resume(name, key)
        await store.update_copies(name, lambda seen: replace(seen, standing=()))
