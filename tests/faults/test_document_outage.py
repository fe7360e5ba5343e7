"""The broker is really down: writes of documents go on, and their events follow in order once it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from everlog.cluster.local import LocalCluster
from everlog.config import Config, load_config
from everlog.core.values import Position
from tests.cluster.servers import running
from tests.conformance.node_support import C, Fleet, Server, all_active, fleet, history, revision_of
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(600)]

KEYS = [f"k{number}" for number in range(8)]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of its own, because its broker is killed."""
    with running(tmp_path / "cluster") as cluster:
        yield cluster


def quick(config: Config) -> Config:
    """Time-outs short enough for a test to see them."""
    assert config.kafka is not None
    return msgspec.structs.replace(
        config,
        journal=msgspec.structs.replace(config.journal, append_timeout_s=3.0),
        kafka=msgspec.structs.replace(config.kafka, request_timeout_s=3.0),
    )


async def incomplete(http: httpx.AsyncClient, server: Server, path: str) -> list[int]:
    """The revisions whose events are not out yet."""
    answer = await http.get(f"{server.url}/hyper-storage/transactions", params={"path": path, "incomplete": "1"})
    assert answer.status_code == 200, answer.text
    return [one["revision"] for one in answer.json()["_embedded"]["els"]]


async def write(http: httpx.AsyncClient, method: str, url: str, body: Any, **headers: str) -> httpx.Response:
    return await http.request(method, url, content=msgspec.json.encode(body), headers=headers)


@pytest.mark.case("hyperstorage", 65)
async def test_writes_while_the_broker_is_down(local: LocalCluster, tmp_path: Path) -> None:
    """PUT and PATCH are accepted and stay incomplete; of a document that was complete before, only the PATCH is.

    One of the two servers dies meanwhile. When the broker is back the other one completes all of it: nothing is
    left, and the events are those of the accepted writes, in the order of the revisions.
    """
    config = quick(load_config(local.config_file))
    with fleet(config, tmp_path / "fleet", request_timeout_s=15.0) as nodes:  # one write waits until it is over
        async with httpx.AsyncClient(timeout=60) as http:
            await _outage(local, nodes, http)


async def _outage(local: LocalCluster, nodes: Fleet, http: httpx.AsyncClient) -> None:
    servers = await asyncio.to_thread(nodes.start, 2)
    await all_active(http, servers)
    victim, survivor = servers
    before = await write(http, "PUT", f"{victim.url}{C}before", {"n": 1}, **{"Hyper-Storage-Wait": "full"})
    assert (revision_of(before), "journal-position" in before.headers) == (1, True)
    (broker,) = [one for one in local.servers() if one.name.startswith("kafka")]
    broker.process.kill()
    try:
        accepted = {}
        for number, key in enumerate(KEYS):
            server = servers[number % 2]
            made = revision_of(await write(http, "PUT", f"{server.url}{C}{key}", {"n": number}))
            changed = await write(http, "PATCH", f"{server.url}{C}{key}", {"m": number})
            accepted[key] = (made, revision_of(changed), changed.headers.get("journal-position"))
        assert set(accepted.values()) == {(1, 2, None)}
        assert revision_of(await write(http, "PATCH", f"{survivor.url}{C}before", {"n": 2})) == 2
        late = await write(
            http, "PUT", f"{survivor.url}{C}late", 1, **{"Hyper-Storage-Wait": "full", "Idempotency-Key": "late-1"}
        )
        assert (late.status_code, late.json()["code"]) == (504, "request_timeout")
        assert [await incomplete(http, survivor, key) for key in KEYS] == [[1, 2]] * len(KEYS)
        assert await incomplete(http, survivor, "before") == [2]
        assert (await http.get(f"{survivor.url}{C}{KEYS[0]}")).json() == {"n": 0, "m": 0}
        victim.kill()
    finally:
        await asyncio.to_thread(local.up)

    async def completed() -> bool:
        return not any([await incomplete(http, survivor, key) for key in [*KEYS, "before", "late"]])

    await until(completed, seconds=120)
    for number, key in enumerate(KEYS):
        assert await history(http, survivor, key) == [(1, {"n": number}), (2, {"m": number})]
    assert await history(http, survivor, "before") == [(1, {"n": 1}), (2, {"n": 2})]
    again = await write(
        http, "PUT", f"{survivor.url}{C}late", 1, **{"Hyper-Storage-Wait": "full", "Idempotency-Key": "late-1"}
    )
    assert revision_of(again) == 1
    assert Position.parse(again.headers["journal-position"]).topic == "documents"
    assert await history(http, survivor, "late") == [(1, 1)]
