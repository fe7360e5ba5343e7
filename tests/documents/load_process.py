"""A process that writes documents at random through several writers, and notes every operation.

Usage: python -m tests.documents.load_process FOLDER NAME SECONDS
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path

import everlog
from everlog.errors import EverlogError

DOCUMENTS = 20
WRITERS = 60


async def run(folder: str, name: str, seconds: float) -> None:
    chance = random.Random(name)
    with (Path(folder) / f"history-{name}.jsonl").open("a", buffering=1) as history:

        def note(*operation: object) -> None:
            history.write(json.dumps(operation) + "\n")

        async def writer(log: everlog.Everlog, number: int, ends: float) -> None:
            count = 0
            while time.monotonic() < ends:
                count += 1
                path, value = f"d{chance.randrange(DOCUMENTS)}", f"{name}-{number}-{count}"
                note("unknown", path, value, 0)
                try:
                    written = await log.documents.put(path, value, message_id=value)
                except EverlogError as error:
                    note("error", path, value, str(error))
                    continue
                note("ok", path, value, written.revision)

        async with everlog.connect(folder) as log:
            print("ready", flush=True)
            ends = time.monotonic() + seconds  # from now on: how long the start takes is up to the machine
            await asyncio.gather(*[writer(log, number, ends) for number in range(WRITERS)])


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], float(sys.argv[3])))
