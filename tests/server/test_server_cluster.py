"""The server on Kafka and Cassandra answers as it does on a folder."""

from __future__ import annotations

import json

import pytest

from everlog.client import connect
from everlog.core.events import Event
from everlog.testing.journal_support import keys, read
from everlog.testing.replication import replicate
from tests.fixtures.cluster import MakeConfig
from tests.http_support import frames, send, server, through_server

pytestmark = pytest.mark.cluster


async def test_journals_tags_and_operation(cluster_config: MakeConfig) -> None:
    async with server(cluster_config(), writable=True) as (log, http):
        body = {"events": [{"payload": {"n": 1}, "tags": ["eu"]}]}
        first = await send(http, "POST", "/journals/orders/a%2Fb", body, 201, headers={"If-None-Match": "*"})
        await send(http, "POST", "/journals/orders/a%2Fb", body, 412, headers={"If-None-Match": "*"})
        page = await send(http, "GET", "/journals/orders/a%2Fb", params={"after": first.headers["journal-position"]})
        assert [one["payload"] for one in page.json()["events"]] == [{"n": 1}]
        await send(http, "PUT", "/journals/orders/a%2Fb/snapshots/1", {"payload": 1}, 204)
        await replicate(log)
        (event,) = await frames(http, "/tags/eu?live=true", 1, only="event")
        assert json.loads(event["data"])["id"] == "a/b"
        assert (await send(http, "GET", "/status")).json()["caught_up"] is True
        assert 'everlog_part_up{part="status"} 1' in (await send(http, "GET", "/metrics")).text
        assert (await send(http, "GET", "/health/ready")).json()["status"] == "ok"
        await send(http, "POST", "/projections/none/x/pause", status=404)
        assert len((await send(http, "GET", "/operations")).json()["events"]) == 2


async def test_the_client(cluster_config: MakeConfig) -> None:
    async with connect(cluster_config()) as local, through_server(local) as log:
        journal = log.journal("orders")
        for at in range(3):
            token = await journal.append("k", [Event(at, tags={"t"}), Event(at)])
        assert await read(journal, after=token) == [1, 2, 3, 4, 5, 6]
        await journal.delete("k", to=2)
        await replicate(local)
        assert await read(journal) == [3, 4, 5, 6]
        assert await keys(journal) == ["k"]
        assert [event.payload async for event in log.tag("t").current()] == [0, 1, 2]
        await journal.purge("k")
        assert await journal.pointer("k") is None
