"""The curl lines of docs/documents.md are run against a real server, and answer what the page says."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from everlog.client import connect
from everlog.console.server import serving
from tests.support import small_config

PAGE = Path(__file__).parents[2] / "docs" / "documents.md"
_BLOCK = re.compile(r"^```curl\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, str]]:
    """Every line with curl, and what the line below promises: a status, and perhaps a body."""
    lines = [line for block in _BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    assert len(lines) % 2 == 0
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_the_lines_of_the_page(tmp_path):
    found = steps()
    assert len(found) > 20
    async with (
        connect(small_config(tmp_path / "data")) as log,
        serving(log, host="127.0.0.1", port=0) as address,
    ):
        for command, promise in found:
            assert command.startswith("curl -s")
            assert promise.startswith("=> ")
            process = await asyncio.create_subprocess_shell(
                command + " -w '\\n%{http_code}'",
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "URL": address},
            )
            output, _ = await process.communicate()
            body, _, status = output.decode().rpartition("\n")
            wanted, _, text = promise.removeprefix("=> ").partition(" ")
            assert status == wanted, (command, status, body)
            assert not text or body == text, (command, body)
