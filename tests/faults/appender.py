"""A process that appends until it is killed, and writes down what it did.

Usage: python -m tests.faults.appender FOLDER NAME
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import everlog
from everlog import Event


async def run(folder: str, name: str) -> None:
    with (Path(folder) / f"history-{name}.jsonl").open("a", buffering=1) as history:

        def note(**operation: object) -> None:
            history.write(json.dumps(operation) + "\n")

        async def appends(log: everlog.Everlog, key: str) -> None:
            for number in range(1_000_000):
                value = f"{name}-{key}-{number}"
                note(op="append", key=key, value=value, outcome="unknown")
                token = await log.journal("faults").append(key, Event(value))
                note(op="append", key=key, value=value, outcome="ok", seq_nr=token.range.first, token=str(token))

        async with everlog.connect(folder) as log:
            print("ready", flush=True)
            await asyncio.gather(*[appends(log, f"key-{number}") for number in range(5)])


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2]))
