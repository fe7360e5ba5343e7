"""Live queries over HTTP, while the server is killed and started again: no gap, nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from pathlib import Path

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config
from tests.documents.live_support import CollectionModel, LiveClient, Step
from tests.documents.node_support import fleet
from tests.support import small_config
from tests.waiting import until

URI = "c~"
FILTERS = ["n >= 2", "n < 2 or m = 1"]
ROUNDS = 3


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def random_step(chance: random.Random) -> Step:
    kind = chance.choice(
        ["put", "put", "put", "patch", "patch", "delete", *(["clear"] if chance.random() < 0.1 else [])]
    )
    value = {name: chance.randrange(4) for name in "nm" if chance.random() < 0.7}
    return kind, "" if kind == "clear" else chance.choice("abcdefgh"), value


async def follow(remote: Everlog, client: LiveClient, end: asyncio.Event) -> None:
    async with contextlib.aclosing(remote.documents.live(URI, filter=client.condition)) as changes:
        async for change in changes:
            client.take(change)
            if end.is_set() and client.has(client.model.revision):
                return


async def check_live_queries_over_kills(config: Config, folder: Path, seed: int) -> None:
    chance, port = random.Random(seed), str(free_port())
    model, end = CollectionModel(URI), asyncio.Event()
    clients = [LiveClient(model, condition) for condition in FILTERS]
    with fleet(config, folder, feed_checkpoint_interval_s=0.2) as servers:
        async with connect(servers.config) as local, connect(f"http://127.0.0.1:{port}") as remote:

            async def write(count: int) -> None:
                for _ in range(count):
                    await model.write(local.documents, random_step(chance))

            await write(10)
            (server,) = servers.start(EVERLOG_TEST_PORT=port)
            async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(follow(remote, client, end))
                for _ in range(ROUNDS):
                    await write(15)
                    await until(lambda: all(client.revision > 0 for client in clients))
                    server.kill()
                    await write(15)
                    (server,) = servers.start(EVERLOG_TEST_PORT=port)
                end.set()
    assert all(client.has(model.revision) for client in clients)


async def test_live_queries_survive_their_server(tmp_path) -> None:
    await check_live_queries_over_kills(small_config(tmp_path / "data"), tmp_path / "fleet", seed=7)
