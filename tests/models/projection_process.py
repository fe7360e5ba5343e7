"""A process that runs two projections until it is killed.

Usage: python -m tests.models.projection_process CONFIG SPLIT [SLEEP_AFTER]

SLEEP_AFTER: after so many rows it stops itself (SIGSTOP) in the middle of its work, but outside of a transaction: a
process that sleeps inside one keeps SQLite's lock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import msgspec

import everlog
from everlog import Config, Projection, at_least_once, exactly_once, records
from everlog.errors import OwnershipLost
from everlog.projections.event_stream import EventStream

LOST = "its lease has run out"
WINDOW = 20
SPLIT = 4
# On Cassandra, a row per record with a count, many of them in a partition.
TABLES = {
    name: f"CREATE TABLE {name} (part int, partition int, offset bigint, n int, everlog_mark text static, "
    "PRIMARY KEY (part, partition, offset))"
    for name in ("exact", "least")
}


def declare(config: Config, split: int) -> list[everlog.Projection]:
    """Both count how often each record came; only one of them may ever count to more than one."""

    def counting(table: str):
        async def insert(record, view):
            await view.execute(f"INSERT INTO {table} VALUES (?, ?)", record.partition, record.offset)

        async def add(record, view):
            row = (record.offset % 50, record.partition, record.offset)
            where = "WHERE part = ? AND partition = ? AND offset = ?"
            rows = await view.fetch(f"SELECT n FROM {table} {where}", *row)
            await view.execute(f"UPDATE {table} SET n = ? {where}", (rows[0][0] or 0) + 1 if rows else 1, *row)

        return insert if config.cassandra is None else add

    strategies = {"exact": exactly_once(size=WINDOW), "least": at_least_once(save_every=WINDOW, within_s=60.0)}
    source = records("orders", split=split)
    return [
        Projection(name, source=source, handler=counting(name), strategy=strategy, tables=[name])
        for name, strategy in strategies.items()
    ]


def say_when_late() -> None:
    """Say on standard error when a key is lost: on a busy machine a lease may run out though its owner lives."""
    check_owned = EventStream.check_owned

    def check(stream: EventStream) -> None:
        try:
            check_owned(stream)
        except OwnershipLost:
            print(f"{stream.id}: {LOST}", file=sys.stderr, flush=True)
            raise

    EventStream.check_owned = check  # type: ignore[method-assign]


async def main(config: Config, split: int, sleep_after: int | None) -> None:
    async with everlog.connect(config) as log, log.projections.run(*declare(config, split)) as runner:
        print("ready", flush=True)
        if sleep_after is not None:
            store = await log.projections.store()
            while sum(report.handled for report in runner.status()["exact"].values()) < sleep_after:  # noqa: ASYNC110
                await asyncio.sleep(0)
            async with getattr(store, "_writing", nullcontext()):
                os.kill(os.getpid(), signal.SIGSTOP)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    say_when_late()
    asyncio.run(
        main(
            msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config),
            *map(int, sys.argv[2:3]),
            int(sys.argv[3]) if sys.argv[3:] else None,
        )
    )
