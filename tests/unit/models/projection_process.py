"""A process that runs two projections until it is killed.

Usage: python -m tests.unit.models.projection_process CONFIG SPLIT [SLEEP_AFTER]

SLEEP_AFTER: after so many rows it stops itself (SIGSTOP) in the middle of its work, but outside of a transaction: a
process that sleeps inside one keeps SQLite's lock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec

import everlog
from everlog import Config, at_least_once, exactly_once, projection, records

WINDOW = 20


def declare(split: int) -> list[everlog.Projection]:
    """Both count how often each record came; only one of them may ever count to more than one."""

    @projection("exact", source=records("orders", split=split), strategy=exactly_once(size=WINDOW))
    async def exact(record, view):
        await view.execute("INSERT INTO exact VALUES (?, ?)", record.partition, record.offset)

    @projection("least", source=records("orders", split=split), strategy=at_least_once(save_every=WINDOW, within=60.0))
    async def least(record, view):
        await view.execute("INSERT INTO least VALUES (?, ?)", record.partition, record.offset)

    return [exact, least]


async def main(config: Config, split: int, sleep_after: int | None) -> None:
    async with everlog.connect(config) as log, log.projections.run(*declare(split)) as runner:
        print("ready", flush=True)
        if sleep_after is not None:
            store = await log.projections.store()
            while sum(report.handled for report in runner.status()["exact"].values()) < sleep_after:  # noqa: ASYNC110
                await asyncio.sleep(0)
            async with store._writing:
                os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(
        main(
            msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config),
            *map(int, sys.argv[2:3]),
            int(sys.argv[3]) if sys.argv[3:] else None,
        )
    )
