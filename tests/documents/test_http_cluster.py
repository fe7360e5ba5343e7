"""What documents refuse, and all ways to write and read them over HTTP, on Kafka and Cassandra as in a folder."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest

from everlog.cli.bulk import LineSource
from everlog.cli.docs_transfer import DocumentImport, export_lines
from everlog.client import connect
from everlog.config import Config, DocumentsConfig
from everlog.console.server import serving
from everlog.documents.api import Documents
from everlog.documents.documents import LocalDocuments
from tests.documents.test_batches import (  # noqa: F401
    test_a_batch_is_repeated_as_a_whole,
    test_a_refusal_names_the_operation_and_leaves_nothing,
    test_all_are_done_in_order,
)
from tests.documents.test_bulk import test_each_write_has_its_own_result_in_order  # noqa: F401
from tests.documents.test_documents_cluster import config, keyspace  # noqa: F401
from tests.documents.test_expiry import (  # noqa: F401
    World,
    test_a_later_write_decides_anew,
    test_all_ways_to_write_take_one,
    test_it_is_deleted_when_its_time_is_over_and_all_that_follows_it_learns,
)
from tests.http_support import frames, new_token, send, server
from tests.server.test_parameters import (  # noqa: F401
    test_conditions_that_cannot_be_evaluated_hold_nowhere,
    test_reads_take_what_fits_them,
)
from tests.support import ManualClock

pytestmark = pytest.mark.cluster

C, H = "/hyper-storage/content/", "/hyper-storage/"


@pytest.fixture
def clock() -> ManualClock:
    """Near the real time: the broker would drop records of years ago."""
    return ManualClock(int(time.time() * 1000))


@pytest.fixture
async def world(config: Config, clock: ManualClock) -> AsyncIterator[World]:  # noqa: F811
    limits = {"max_operations": 20, "max_batch_bytes": 3000, "max_messages": 5}
    documents = DocumentsConfig(expiry_interval_s=3600.0, feed_poll_interval_s=0.05, **limits)
    async with (
        connect(msgspec.structs.replace(config, documents=documents), clock=clock) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        connect(address) as remote,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        assert isinstance(log.documents, LocalDocuments)
        yield World(remote.documents, log.documents, clock, http)


@pytest.fixture
def docs(world: World) -> Documents:
    return world.docs


@pytest.fixture
async def http(world: World) -> httpx.AsyncClient:
    """With a document, a collection of two elements, an index, a view and a template index."""
    client = world.http
    assert client is not None
    await send(client, "PUT", C + "d", {"a": 1}, 201)
    for item in ("1", "2"):
        await send(client, "PUT", f"{C}c~/{item}", {"a": 1}, 201)
    await send(client, "POST", "/hyper-storage/indexes/c~", {"indexId": "i"}, 201)
    await send(client, "PUT", "/hyper-storage/views/v~", {"template_uri": "p/{*}"}, 201)
    await send(client, "PUT", "/hyper-storage/template-indexes/t", {"template_uri": "p/{*}~"}, 201)
    return client


async def test_what_is_too_much_or_no_number_is_refused(world: World) -> None:
    """A filter over its budget is a named 400, for queries and counts; numbers come back digit by digit."""
    http = world.http
    assert http is not None
    lists = {"l": list(range(10_000)), "m": list(range(10_000, 0, -1)), "t": "a" * 10_000}
    for number in range(3):
        await send(http, "PUT", f"{C}c~/{number}", lists, 201)
    costly = " or ".join(["l has m"] * 90)
    for query in ("", "&count"):
        answer = await send(http, "GET", f"{C}c~?filter={costly}{query}".replace("+", "%2B"), status=400)
        assert answer.json()["code"].startswith("filter-"), answer.text
    assert (await send(http, "GET", f'{C}c~?count&filter=id > "0"')).json() == {"count": 2}
    for text in ("NaN", "1e999999", "9" * 401, "[" * 200):
        assert (await http.put(C + "d", content=text)).status_code == 400
    assert (await http.put(C + "d", content="1e400")).status_code == 201
    assert (await http.get(C + "d")).text in ("1e400", "1E+400")


async def test_a_filter_that_is_followed(world: World) -> None:
    """Present, entered, changed and left, over HTTP."""
    http = world.http
    assert http is not None
    for number in range(3):
        await send(http, "PUT", f"{C}c~/{number}", {"n": number}, 201)
    found = await frames(http, f"{C}c~?live&filter=n > 0", 4)
    assert [frame["event"] for frame in found] == ["reset", "present", "present", "complete"]
    place = found[-1]["id"]
    for path, body in (("c~/0", {"n": 5}), ("c~/1", {"n": 0}), ("c~/2", {"n": 3})):
        await send(http, "PUT", C + path, body, 200)
    later = await frames(http, f"{C}c~?live&filter=n > 0&after={place}", 4)
    changes = [frame for frame in later if frame["event"] != "checkpoint"][:3]
    assert [(frame["event"], json.loads(frame["data"])["id"]) for frame in changes] == [
        ("entered", "0"),
        ("left", "1"),
        ("changed", "2"),
    ]


async def test_a_token_with_paths_reaches_these_and_nothing_else(config: Config) -> None:  # noqa: F811
    token = new_token(config, "write:/shop/**", name="shop")
    async with server(config) as (_, http):
        headers = {"Authorization": f"Bearer {token}"}
        batch = [{"method": "post", "body": {"n": 1}}]
        for path, status in (("shop/c~", 200), ("secret/c~", 403)):
            assert (await http.post(f"{H}batches/{path}", json=batch, headers=headers)).status_code == status
        lines = "".join(
            json.dumps({"method": "put", "path": path, "body": {}}) + "\n" for path in ("shop/a", "secret/a")
        )
        answer = await http.post(H + "_bulk", content=lines, headers=headers)
        assert [json.loads(line)["status"] for line in answer.text.splitlines()] == [201, 403]
        for path in ("/journals/documents/shop%2Fa", C + "secret/c~?count", C + "secret/a", H + "feed"):
            assert (await http.get(path, headers=headers)).status_code == 403, path


async def test_what_is_exported_comes_back(world: World, tmp_path) -> None:
    docs = world.docs
    for number in range(5):
        await docs.put(f"shop/a~/{number}", {"n": number})
    await docs.put("shop/b~")
    await docs.put("settings", [1, {"x": True}])
    found = [line async for line in export_lines(docs, ["settings"], "shop/")]
    assert len(found) == 8
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(line + "\n" for line in found))
    await docs.delete("shop/a~")
    work = DocumentImport(docs, "refuse")
    async for _ in work.run(LineSource(str(file), max_line=10**6)):
        pass
    assert (work.summary.created, work.summary.unchanged, work.summary.failed) == (6, 2, 0)
    assert [line async for line in export_lines(docs, ["settings"], "shop/")] == found
