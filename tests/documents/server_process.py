"""A server process of its own. Usage: python -m tests.documents.server_process CONFIG.json

Prints its address, and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import everlog
from everlog.cli.status import stop_signals
from everlog.console.server import serving
from tests.pipeline.backends import read_config


async def run(config: str) -> None:
    with stop_signals() as stop:
        async with everlog.connect(read_config(config)) as log, serving(log, host="127.0.0.1", port=0) as url:
            print(url, flush=True)
            await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(run(sys.argv[1]))
