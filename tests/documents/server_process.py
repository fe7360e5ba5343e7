"""A server process of its own. Usage: python -m tests.documents.server_process CONFIG.json

Prints its address, and serves until SIGTERM; at any free port, or at EVERLOG_TEST_PORT.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import everlog
from everlog.cli.status import stop_signals
from everlog.console.server import serving
from everlog.runtime.server_process import as_server_process
from tests.pipeline.backends import read_config


async def run(config: str) -> None:
    with stop_signals() as stop, as_server_process():
        port = int(os.environ.get("EVERLOG_TEST_PORT", "0"))
        async with everlog.connect(read_config(config)) as log, serving(log, host="127.0.0.1", port=port) as url:
            print(url, flush=True)
            await stop.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(run(sys.argv[1]))
