"""A process that runs one version of a projection until it is killed.

Usage: python -m tests.models.version_process CONFIG VERSION
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

import everlog
from everlog import Config, Projection, exactly_once, records


def declare(version: str, split: int = 1) -> Projection:
    """Writes a row per record that says which version wrote it."""

    async def handler(record, view):
        await view.execute("INSERT INTO words VALUES (?, ?)", record.key, version)

    source, strategy = records("orders", split=split), exactly_once()
    return Projection("words", source=source, handler=handler, strategy=strategy, tables=["words"], version=version)


async def main(config: Config, version: str) -> None:
    async with everlog.connect(config) as log, log.projections.run(declare(version)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config), sys.argv[2]))
