"""The console on Kafka and Cassandra: every page answers, and a journal's timeline knows store from tail."""

from __future__ import annotations

import httpx
import pytest

from everlog.client import connect
from everlog.console.renderer import NAV, url
from everlog.console.server import serving
from everlog.core.events import Event
from everlog.log.kafka import tail as tail_module
from everlog.testing.replication import replicate
from tests.fixtures.cluster import MakeConfig

pytestmark = pytest.mark.cluster


async def told(http: httpx.AsyncClient) -> list[tuple[str, str]]:
    page = (await http.get("/console/journal.json?topic=orders&id=o-1")).json()["journal"]
    return [(item["kind"], item["source"]) for item in page["items"]]


async def test_every_page_answers(cluster_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        connect(cluster_config()) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        orders = log.journal("orders")
        await orders.append("o-1", [Event("a", tags={"eu"}), Event("b")])
        await log.documents.put("articles/hello", {"title": "Hello"}, wait=True)
        await replicate(log)
        await orders.append("o-1", Event("c"))
        await orders.delete("o-1", to=1)
        for path in [
            *(url(name, ".json") for name, _ in NAV),
            "/console/tags.json?tag=eu",
            "/console/documents.json?path=articles/hello",
            "/console/search.json?q=o-1",
        ]:
            found = await http.get(path)
            assert found.status_code == 200, (path, found.text)
        flow = (await http.get("/index.json")).json()
        assert [problem for problem in flow["problems"] if "does not answer" in problem["what"]] == []
        expected = [("delete", "tail"), ("event", "tail"), ("event", "store")]
        assert (await told(http))[:3] == expected
        monkeypatch.setattr(tail_module, "FRESH_S", -1.0)  # as after a pause: only the tail is cheap to read
        assert await told(http) == expected
        html = await http.get("/console/journal?topic=orders&id=o-1", headers={"accept": "text/html"})
        assert html.status_code == 200
