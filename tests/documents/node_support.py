"""Server processes on the same documents, and what tests ask of them. The same on a folder and on a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from everlog.config import Config, DocumentsConfig
from everlog.runtime.failpoints import PAUSE_VARIABLE, VARIABLE
from tests.pipeline.backends import write_config
from tests.waiting import until

C = "/hyper-storage/content/"
POINT = "documents.decided"
# Recovery that need not be waited for.
QUICK = DocumentsConfig(
    node_sync_interval_s=0.2,
    node_lease_s=5.0,
    fail_timeout_s=1.0,
    hot_recovery_s=120.0,
    hot_recovery_interval_s=0.3,
    stale_recovery_s=240.0,
    # Tests hold tasks while they start another server, which takes as long as the machine makes it.
    request_timeout_s=60.0,
    transaction_days=1.5,
)


class Server:
    """One process."""

    def __init__(self, config: Path, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.documents.server_process", str(config)]
        known = {name: value for name, value in os.environ.items() if name not in (VARIABLE, PAUSE_VARIABLE)}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**known, **environment}, text=True)
        self.url = ""

    def ready(self) -> Server:
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the server did not start"
        return self

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        code = self._process.wait(60)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


class Fleet:
    """Servers on one configuration. `pause` holds tasks of a key as long as the block lasts."""

    def __init__(self, config: Config, folder: Path, **documents: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.config = msgspec.structs.replace(config, documents=msgspec.structs.replace(QUICK, **documents))
        self._file = write_config(self.config, folder / "server.json")
        self._paused = folder / "paused"
        self._held = folder / "paused.held"
        self.servers: list[Server] = []

    async def held(self, count: int) -> None:
        """Wait until so many tasks are held."""

        async def enough() -> bool:
            return len(self._held.read_text().splitlines()) >= count

        await until(enough)

    def start(self, count: int = 1, **environment: str) -> list[Server]:
        """Start so many at once; they are ready when this returns."""
        pause = {PAUSE_VARIABLE: f"{POINT}:{self._paused}"}
        made = [Server(self._file, {**pause, **environment}) for _ in range(count)]
        self.servers += made
        return [server.ready() for server in made]

    @contextmanager
    def pause(self, key: str) -> Iterator[None]:
        self._held.write_text("")
        draft = self._paused.with_suffix(".draft")
        draft.write_text(key)
        draft.rename(self._paused)
        try:
            yield
        finally:
            self._paused.unlink()

    def stop(self) -> None:
        for server in self.servers:
            if server.alive:
                server.signal(signal.SIGTERM)
        for server in self.servers:
            server.wait()


@contextmanager
def fleet(config: Config, folder: Path, **documents: Any) -> Iterator[Fleet]:
    """`documents`: other settings of theirs."""
    made = Fleet(config, folder, **documents)
    try:
        yield made
    finally:
        made.stop()


async def node_of(http: httpx.AsyncClient, server: Server) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"{server.url}/hyper-storage/nodes")).json()
    return found


async def all_active(http: httpx.AsyncClient, servers: list[Server]) -> None:
    """Wait until these servers, and no others, share the documents."""

    async def agree() -> bool:
        found = [await node_of(http, server) for server in servers]
        return {one["state"] for one in found} == {"active"} and len({one["view"] for one in found}) == 1

    await until(agree)


def revision_of(answer: httpx.Response) -> int:
    assert answer.status_code in (200, 201), (answer.status_code, answer.text)
    return int(answer.json()["transactionId"].rpartition(":")[2])


async def history(http: httpx.AsyncClient, server: Server, path: str) -> list[tuple[int, Any]]:
    answer = await http.get(f"{server.url}{C}{path}?history&size=1000")
    assert answer.status_code == 200, answer.text
    return [(one["headers"]["revision"], one["body"]) for one in answer.json()["_embedded"]["els"]]
