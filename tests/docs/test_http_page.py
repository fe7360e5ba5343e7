"""The curl lines and the JavaScript of docs/http.md are run against a real server, and answer what the page says."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import ServerConfig
from everlog.console.server import serving
from everlog.testing.replication import replicate
from tests.support import small_config

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[str]:
    """A server, and something that does what the pipeline does; gives the address."""
    config = msgspec.structs.replace(small_config(folder), server=ServerConfig(checkpoint_interval_s=0.2))
    async with connect(config) as log, serving(log, host="127.0.0.1", port=0) as address:
        replicating = asyncio.create_task(_replicate(log))
        yield address
        replicating.cancel()
        with suppress(asyncio.CancelledError):
            await replicating


async def _replicate(log: Everlog) -> None:
    while True:
        await replicate(log)
        await asyncio.sleep(0.05)


async def run(command: list[str] | str, address: str) -> tuple[int, str]:
    start = asyncio.create_subprocess_shell if isinstance(command, str) else asyncio.create_subprocess_exec
    words = [command] if isinstance(command, str) else command
    process = await start(
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "URL": address},
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_lines_of_the_page(tmp_path):
    lines = [line for block in blocks("curl") for line in block.splitlines()]
    found = list(zip(lines[::2], lines[1::2], strict=True))
    assert len(found) > 20
    async with everything(tmp_path / "data") as address:
        for command, promise in found:
            assert command.startswith("curl -s")
            assert promise.startswith("=> ")
            _, output = await run(command + " -w '\\n%{http_code}'", address)
            body, _, status = output.rpartition("\n")
            wanted, _, text = promise.removeprefix("=> ").partition(" ")
            assert status == wanted, (command, status, body)
            # An ellipsis stands for what is another one every time, such as the name of a life.
            pattern = re.escape(text).replace("…", '[^"]+')
            assert not text or re.fullmatch(pattern, body), (command, body)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
async def test_the_javascript_of_the_page(tmp_path):
    (program,) = blocks("js")
    walk = tmp_path / "walk.mjs"
    walk.write_text(program)
    async with everything(tmp_path / "data") as address:
        code, output = await run(["node", str(walk)], address)
    assert (code, output.splitlines()) == (0, ["read tea", "live tea true", "status boolean"])
