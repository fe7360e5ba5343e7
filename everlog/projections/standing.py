"""Keys that stand still while a view is compared, and run again afterwards, also if who paused them died meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec.structs import replace

from everlog.projections.store import OffsetStore

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
    keys = await _change(store, name, lambda noted: {*noted, *running})
    try:
        for key in keys:
            await commands.pause(name, key, wait=STANDING_SECONDS)
        yield
    finally:
        for key in keys:
            await commands.resume(name, key)
        await _change(store, name, lambda noted: ())


async def _change(store: OffsetStore, name: str, change: Callable[[Iterable[str]], Iterable[str]]) -> tuple[str, ...]:
    """Change which keys are noted; which they are now."""
    while True:
        seen = await store.copies(name)
        wanted = tuple(sorted(change(seen.standing)))
        if wanted == seen.standing or await store.change_copies(name, seen, replace(seen, standing=wanted)):
            return wanted
