"""A counter that many may raise at once: `expected=` decides who wins, the others read again and retry.

python examples/counter.py [folder]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import everlog
from everlog import Conflict, Event, Journal

WORKERS = 5
RAISES = 4


async def raise_counter(counters: Journal, name: str) -> int:
    """Add one; returns the number of tries it took."""
    for tries in range(1, 1000):
        seq_nr = await counters.pointer(name) or 0
        value = 0
        async for last in counters.read(name, reverse=True, limit=1):
            value = last.payload["value"]
        await asyncio.sleep(0)  # time for others to come in between
        try:
            await counters.append(name, Event({"value": value + 1}), expected=seq_nr)
        except Conflict:
            continue  # another writer was faster: what we read is old
        return tries
    raise RuntimeError("never got through")


async def main(folder: str) -> None:
    async with everlog.connect(folder) as log:
        counters = log.journal("counters")

        async def work() -> int:
            return sum([await raise_counter(counters, "visits") for _ in range(RAISES)])

        tries = sum(await asyncio.gather(*(work() for _ in range(WORKERS))))
        conflicts = "some" if tries > WORKERS * RAISES else "no"
        async for last in counters.read("visits", reverse=True, limit=1):
            print(f"the counter is at {last.payload['value']} after {last.seq_nr} events and {conflicts} conflicts")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else temporary))
