"""`everlog serve` as a process of its own, and clients that keep their connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from everlog.config import Config

STOP_S = 30.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@contextmanager
def serving(config: Config, folder: Path) -> Iterator[str]:
    """A server on this configuration; gives its address."""
    file = folder / "serve.toml"
    file.write_text(as_toml(config))
    words = [sys.executable, "-m", "everlog.cli", "serve", "--port", "0", "--json", "--config", str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("everlog serve ended while it started")
            yield json.loads(line)["url"]
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def as_toml(config: Config) -> str:
    """A configuration as a file that says the same; what is not set stays out."""
    lines: list[str] = []
    sections: list[str] = []
    for name, value in msgspec.to_builtins(config).items():
        if isinstance(value, dict):
            settings = [f"{key} = {json.dumps(one)}" for key, one in value.items() if _is_plain(one)]
            sections += [f"\n[{name}]", *settings] if settings else []
        elif _is_plain(value):
            lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join([*lines, *sections]) + "\n"


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, dict)


class Client:
    """One connection that stays open: HTTP/1.1 with as little as possible around it, for the server is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def connect(cls, url: str) -> Self:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        return cls(reader, writer, parts.netloc)

    async def request(self, method: str, target: str, body: bytes = b"") -> tuple[int, bytes]:
        """The status and the body of the answer."""
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(answer)
        if found is None:
            raise RuntimeError(f"an answer without a length: {answer[:200]!r}")
        return int(answer[9:12]), await self._reader.readexactly(int(found[1]))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):  # the server may have been first
            await self._writer.wait_closed()
