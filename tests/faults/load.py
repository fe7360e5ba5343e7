"""Writers and readers that go on whatever happens, and write down what they saw, for the checker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from everlog import Conflict, Event, EverlogError, OutcomeUnknown
from everlog.api import Everlog
from everlog.journal.journal import Journal

PAUSE_SECONDS = 0.02


class Load:
    """Appends and reads on a few journals; `history` is for the checker, `errors` counts what was raised."""

    def __init__(self, log: Everlog, *, topic: str = "faults", keys: int = 5) -> None:
        self.history: list[dict[str, Any]] = []
        self.errors: Counter[str] = Counter()
        self._journal: Journal = log.journal(topic)
        self._keys = [f"key-{number}" for number in range(keys)]
        self._acknowledged: dict[str, set[str]] = {key: set() for key in self._keys}
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Two writers and a reader per journal: writers compete, so that verdicts matter."""
        work = [self._write(key, name) for key in self._keys for name in "ab"] + [self._read(key) for key in self._keys]
        self._tasks = [asyncio.ensure_future(one) for one in work]

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def progress(self, more: int) -> None:
        """Wait until so many more appends are acknowledged."""
        wanted = self.acknowledged + more
        while self.acknowledged < wanted:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(PAUSE_SECONDS)

    @property
    def acknowledged(self) -> int:
        return sum(map(len, self._acknowledged.values()))

    async def final(self) -> dict[str, list[str]]:
        """What the journals hold."""
        return {key: [event.payload async for event in self._journal.read(key)] for key in self._keys}

    async def _write(self, key: str, name: str) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            await self._append(key, f"{key}-{name}-{number}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _append(self, key: str, value: str) -> None:
        """Until it is known what became of it: an unknown outcome is repeated with its id, as users are told to."""
        append_id = None
        while True:
            try:
                token = await self._journal.append(key, Event(value), append_id=append_id)
            except OutcomeUnknown as unknown:
                self.errors[type(unknown).__name__] += 1
                append_id = unknown.append_id
            except EverlogError as error:
                self.errors[type(error).__name__] += 1
                if not error.retriable and not isinstance(error, Conflict):
                    raise
                if append_id is None:
                    self._note(key, value, "fail")
                    return
                # An earlier attempt may have been stored: go on asking.
            else:
                self._note(key, value, "ok", seq_nr=token.range.first, token=str(token))
                self._acknowledged[key].add(value)
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def _note(self, key: str, value: str, outcome: str, **more: Any) -> None:
        self.history.append({"op": "append", "key": key, "value": value, "outcome": outcome, **more})

    async def _read(self, key: str) -> None:
        while not self._stopping.is_set():
            held = sorted(self._acknowledged[key])
            try:
                values = [event.payload async for event in self._journal.read(key)]
            except EverlogError as error:
                self.errors[type(error).__name__] += 1
                if not error.retriable:
                    raise
            else:
                self.history.append({"op": "read", "key": key, "values": values, "must_hold": held})
            await asyncio.sleep(PAUSE_SECONDS)
