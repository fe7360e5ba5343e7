"""A process that raises a counter: `python -m tests.journal.aggregate_process FOLDER TASKS ROUNDS`."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import everlog
from everlog.api import Everlog
from tests.support import small_config

RETRIES = 200


@everlog.event("raised")
@dataclass
class Raised:
    by: int


class Counter(everlog.Aggregate, topic="counters", events=Raised, snapshot_every=7):
    value: int = 0

    def apply(self, event: Raised) -> None:
        self.value += event.by

    def increment(self) -> None:
        self.emit(Raised(1))


async def count(log: Everlog, tasks: int, rounds: int) -> None:
    async def one() -> None:
        for _ in range(rounds):
            await log.update(Counter, "c", Counter.increment, retries=RETRIES)

    await asyncio.gather(*(one() for _ in range(tasks)))


async def main(folder: str, tasks: int, rounds: int) -> None:
    async with everlog.connect(small_config(Path(folder))) as log:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await count(log, tasks, rounds)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
