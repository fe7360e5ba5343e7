"""What a client of journals can be told to do, in words that also travel to another process."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import everlog
from everlog import Event, EverlogError, Version
from everlog.api import Everlog
from everlog.config import Config
from tests.support import ManualClock

TOPIC = "orders"
Words = dict[str, Any]


class ClientClock(ManualClock):
    """Time that is told, and ids that no other client makes."""

    def __init__(self, now_ms: int, name: str) -> None:
        super().__init__(now_ms)
        self._random = Random(name)

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


class JournalClient:
    """Carries out operations on one open log, and answers with plain values."""

    def __init__(self, log: Everlog, clock: ClientClock) -> None:
        self.log = log
        self.clock = clock
        self.journal = log.journal(TOPIC)
        self.recoveries: dict[int, AsyncIterator[Any]] = {}

    async def do(self, words: Words) -> Words:
        """An error of the library is an answer, too."""
        given = dict(words)
        try:
            return await getattr(self, f"_{given.pop('do')}")(**given)
        except EverlogError as error:
            found = {name: getattr(error, name) for name in ("expected", "actual") if hasattr(error, name)}
            return {"error": type(error).__name__, **found}

    async def _advance(self, seconds: float) -> Words:
        self.clock.advance(seconds)
        return {}

    async def _append(
        self,
        key: str,
        payloads: list[Any],
        expected: str | None = None,
        seq_nr: int | None = None,
        idempotency_key: str | None = None,
        expire_s: int | None = None,
        verdict: bool = True,
    ) -> Words:
        numbers = [None] * len(payloads) if seq_nr is None else range(seq_nr, seq_nr + len(payloads))
        events = [Event(payload, seq_nr=number) for payload, number in zip(payloads, numbers, strict=True)]
        token = await self.journal.append(
            key,
            events,
            expected=None if expected is None else Version.parse(expected),
            expire_after=None if expire_s is None else timedelta(seconds=expire_s),
            idempotency_key=idempotency_key,
            verdict=verdict,
        )
        return {"first": token.range.first, "last": token.range.last, "life": token.life}

    async def _read(self, key: str, **options: Any) -> Words:
        return {"events": [[event.seq_nr, event.payload] async for event in self.journal.read(key, **options)]}

    async def _pointer(self, key: str) -> Words:
        found = await self.journal.pointer(key)
        return {"version": None if found is None else found.text}

    async def _delete(self, key: str, to: int) -> Words:
        return {"deleted": await self.journal.delete(key, to=to) is not None}

    async def _purge(self, key: str) -> Words:
        await self.journal.purge(key)
        return {}

    async def _mark(self, key: str) -> Words:
        await self.journal.mark(key)
        return {}

    async def _keys(self) -> Words:
        found = self.journal.keys()
        return {"keys": sorted([key async for key in found])}

    async def _save(self, key: str, version: str, payload: Any) -> Words:
        await self.journal.snapshots.save(key, seq_nr=Version.parse(version), payload=payload)
        return {}

    async def _load(self, key: str) -> Words:
        found = await self.journal.snapshots.load(key)
        return {"snapshot": None if found is None else [found.seq_nr, found.payload]}

    async def _recover(self, key: str, handle: int) -> Words:
        found = await self.journal.recover(key)
        self.recoveries[handle] = found.events
        kept = None if found.snapshot is None else [found.snapshot.seq_nr, found.snapshot.payload]
        return {"version": found.seq_nr.text, "snapshot": kept}

    async def _consume(self, handle: int, count: int) -> Words:
        """Up to so many of a recovery's events, and whether it ended there; it may end with an error."""
        events: list[Any] = []
        source = self.recoveries[handle]
        try:
            while len(events) < count:
                event = await anext(source)
                events.append([event.seq_nr, event.payload])
        except StopAsyncIteration:
            del self.recoveries[handle]
            return {"events": events, "end": "all"}
        except EverlogError as error:
            del self.recoveries[handle]
            return {"events": events, "end": type(error).__name__}
        return {"events": events, "end": None}

    async def close(self) -> None:
        for source in self.recoveries.values():
            await source.aclose()  # type: ignore[attr-defined]


class ProcessClient:
    """The same in a process of its own: a line for a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, config: Path, now_ms: int, name: str) -> ProcessClient:
        command = [sys.executable, "-m", "tests.journal.journal_client", str(config), str(now_ms), name]
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        return cls(await asyncio.create_subprocess_exec(*command, **pipes))

    async def do(self, words: Words) -> Words:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert line, "the process has ended"
        found: Words = json.loads(line)
        return found

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), 60)


async def _serve(config: Config, now_ms: int, name: str) -> None:
    clock = ClientClock(now_ms, name)
    async with everlog.connect(config, clock=clock) as log:
        client = JournalClient(log, clock)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await client.do(json.loads(line))), flush=True)
        await client.close()


if __name__ == "__main__":
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)
    asyncio.run(_serve(given, int(sys.argv[2]), sys.argv[3]))
