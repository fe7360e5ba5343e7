"""What a running stream is made of: a signal to end it, envelopes read ahead, and who waits for its progress."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Literal

from everlog.projections.ids import ProjectionId
from everlog.projections.save_window import LogPlace
from everlog.projections.source import Delivery

READ_AHEAD = 1000

EndReason = Literal["stop", "changed", "lost"]
# What counts more wins: a lost lease ends everything, a stop ends the instance, a change only the stream.
_ORDER: dict[EndReason | None, int] = {None: 0, "changed": 1, "stop": 2, "lost": 3}


class Signal:
    """Tells a stream to end in good order, and why."""

    def __init__(self) -> None:
        self.reason: EndReason | None = None
        self._event = asyncio.Event()
        self._wake: Callable[[], None] | None = None

    def set(self, reason: EndReason) -> None:
        if _ORDER[reason] > _ORDER[self.reason]:
            self.reason = reason
            self._event.set()
            if self._wake is not None:
                self._wake()

    def clear_change(self) -> None:
        """A new stream begins; a stop or a loss stays."""
        if self.reason == "changed":
            self.reason = None
            self._event.clear()

    def on_set(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the signal, at most so long; whether it came."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Prefetch:
    """Reads ahead of the handler, in a task of its own, up to a bound."""

    def __init__(self, pages: AsyncIterator[Sequence[Delivery]], *, limit: int = READ_AHEAD) -> None:
        self._pages = pages
        self._limit = limit
        self._ready: deque[Delivery] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for page in self._pages:
                self._ready.extend(page)
                self._wake.set()
                while len(self._ready) >= self._limit:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._wake.set()

    def wake(self) -> None:
        """Let `take` look around."""
        self._wake.set()

    async def take(self, most: int, until: float | None = None) -> list[Delivery] | None:
        """What is there, at most so many; [] if woken or at that time; None at the end. An error comes last."""
        if not self._ready and not self._ended:
            self._wake.clear()
            timer = None if until is None else asyncio.get_running_loop().call_at(until, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        if self._ready:
            taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._room.set()
            return taken
        if self._error is not None:
            raise self._error
        return None if self._ended else []

    async def aclose(self) -> None:
        """Read no further."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        close = getattr(self._pages, "aclose", None)
        if close is not None:
            await close()


class Hub:
    """Who waits, in this process, for a projection to pass a position; woken as soon as that is handled."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, str], dict[LogPlace, int]] = {}
        self._changed = asyncio.Event()
        self._waiting = 0

    def reached(self, projection: ProjectionId, positions: Mapping[LogPlace, int]) -> None:
        """All up to these positions is handled, though perhaps not saved yet."""
        self._positions.setdefault((projection.name, projection.key), {}).update(positions)
        self.wake()

    def forget(self, projection: ProjectionId) -> None:
        """The stream begins anew, perhaps further back."""
        self._positions.pop((projection.name, projection.key), None)

    def positions(self, name: str, place: LogPlace) -> dict[str, int]:
        """By key: up to where this part of the log is handled."""
        found = {key: places.get(place, -1) for (one, key), places in self._positions.items() if one == name}
        return {key: offset for key, offset in found.items() if offset >= 0}

    def wake(self) -> None:
        """Something changed."""
        if self._waiting:
            self._changed.set()

    async def wait(self, seconds: float) -> None:
        """Until something changes, at most so long."""
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1
            self._changed.clear()
