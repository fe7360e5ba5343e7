"""Everlog's side: one folder, and an event loop that stays open over the rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import everlog
from bench.payloads import Payload
from bench.rounds import Round
from everlog.sqlite.connection import connect

T = TypeVar("T")

TOPIC = "orders"
FULL = 2


class Embedded:
    """An embedded Everlog with its default settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runner = asyncio.Runner()
        self.log = everlog.connect(folder)

    def __enter__(self) -> Self:
        self.run(self.log.__aenter__())
        self._check_durability()
        self.journal = self.log.journal(TOPIC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.log.close())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def _check_durability(self) -> None:
        """The comparison is void unless every commit is on the disk, as the other side's is."""
        connection = connect(self.folder / "log.db", synchronous=self.log.config.log.synchronous)
        try:
            (found,) = connection.execute("PRAGMA synchronous").fetchone()
        finally:
            connection.close()
        if found != FULL:
            raise RuntimeError(f"Everlog's log has synchronous={found}, not FULL: the comparison would not be fair")


class Writers:
    """Journals that are appended to, each with the seqNr that its writer expects."""

    def __init__(self, side: Embedded, names: Sequence[str], payloads: Sequence[Payload]) -> None:
        self._side = side
        self._names = names
        self._payloads = payloads
        self._at = dict.fromkeys(names, 0)

    def one_after_another(self, appends: int) -> Round:
        return self._side.run(self._one_after_another(appends))

    async def _one_after_another(self, appends: int) -> Round:
        clock, latencies = asyncio.get_running_loop().time, []
        started = clock()
        for number in range(appends):
            before = clock()
            await self._append(self._names[number % len(self._names)], number)
            latencies.append(clock() - before)
        return Round(appends, clock() - started, latencies)

    def at_once(self, appends_each: int) -> Round:
        return self._side.run(self._at_once(appends_each))

    async def _at_once(self, appends_each: int) -> Round:
        clock, latencies = asyncio.get_running_loop().time, list[float]()

        async def write(name: str) -> None:
            for number in range(appends_each):
                before = clock()
                await self._append(name, number)
                latencies.append(clock() - before)

        started = clock()
        async with asyncio.TaskGroup() as writers:
            for name in self._names:
                writers.create_task(write(name))
        return Round(len(latencies), clock() - started, latencies)

    async def _append(self, name: str, number: int) -> None:
        event = everlog.Event(self._payloads[number % len(self._payloads)])
        await self._side.journal.append(name, event, expected=self._at[name])
        self._at[name] += 1
