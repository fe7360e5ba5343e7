"""A server with something that does what the pipeline does, as a program of its own: `python -m … FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from everlog.client import connect
from everlog.console.server import serving
from everlog.testing.replication import replicate
from tests.support import small_config


async def run(folder: Path) -> None:
    config = small_config(folder, page_size=500, segment_size=1000)
    async with connect(config) as log, serving(log, host="127.0.0.1", port=0) as address:
        print(address, flush=True)
        while True:
            await replicate(log)
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
