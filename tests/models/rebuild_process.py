"""A process that gives one command about copies, and may die on the way.

Usage: python -m tests.models.rebuild_process CONFIG rebuild|switch|abort|run
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

import everlog
from everlog import Config, Projection, exactly_once, records

SQL = "INSERT INTO words VALUES (?, ?)"
CQL = "INSERT INTO words (key, n, text) VALUES (?, 0, ?)"


def declare(config: Config, version: str, *, pause: float = 0.0) -> Projection:
    """Both versions write a row per record; each row says which version wrote it."""
    statement = SQL if config.cassandra is None else CQL

    async def handler(record, view):
        await asyncio.sleep(pause)
        await view.execute(statement, record.key, version)

    return Projection("words", source=records("orders"), handler=handler, strategy=exactly_once(), tables=["words"])


async def main(config: Config, command: str) -> None:
    async with everlog.connect(config) as log:
        match command:
            case "rebuild":
                await log.projections.rebuild(declare(config, "new"))
            case "switch":
                await log.projections.switch("words")
            case "abort":
                await log.projections.abort("words")
            case "run":
                async with log.projections.run(declare(config, "new", pause=0.2)):
                    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config), sys.argv[2]))
