"""The curl lines of docs/documents*.md are run against a real server, and answer what the pages say."""

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

_BLOCK = re.compile(r"^```curl\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    page for page in sorted((Path(__file__).parents[2] / "docs").glob("documents*.md")) if "```curl" in page.read_text()
]


def steps(page: Path) -> list[tuple[str, str]]:
    """Every line with curl, and what the line below promises: a status, and perhaps a body."""
    lines = [line for block in _BLOCK.findall(page.read_text()) for line in block.splitlines()]
    assert len(lines) % 2 == 0
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_the_lines_of_a_page(page, tmp_path):
    found = steps(page)
    assert found
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
