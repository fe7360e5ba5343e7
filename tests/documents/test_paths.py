"""Any path that is allowed is the same document wherever it goes: addresses, links, events, feeds, clients, pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from everlog.cli.main import main
from everlog.client import connect
from everlog.console.server import serving
from everlog.documents.history import DocumentEvent
from everlog.documents.ids import TransactionId, time_uuid
from everlog.documents.indexes import IndexNew
from everlog.documents.paths import FORBIDDEN, parse_path
from everlog.documents.templates import item_of, source_of
from everlog.errors import InvalidDocument
from tests.documents.test_past import Served
from tests.http_support import server_in_thread
from tests.support import examples, small_config

C = "/hyper-storage/content/"
ODD = [
    "a b", " a", "a ", "?", "#", "%", "%41", "a%2Fb", "ä", "a\u0308", "日本", "\U0001f468\u200d\U0001f469",
    "+", "&=", '"', "'", "\\", "<b>",
    "{x}", "a:b", ":", ";p=1", "a,b", "`", "...", "~", "-", "$(x)", "\u00a0", "%00", "a\u200cb", "|", "^", "*", "עברית",
]  # fmt: skip


@pytest.fixture
async def served(tmp_path) -> AsyncIterator[Served]:
    async with (
        connect(small_config(tmp_path / "data")) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        connect(address) as remote,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        yield Served(log, remote.documents, http)


segments = st.text(
    st.characters(exclude_characters="/", exclude_categories=["Cs", "Cc"]) | st.sampled_from("".join(ODD)),
    min_size=1,
    max_size=12,
).filter(lambda text: FORBIDDEN.search(text) is None and text not in (".", ".."))
paths = st.lists(segments | st.sampled_from(ODD), min_size=1, max_size=3).map("/".join)


@given(paths, st.integers(1, 10**12))
def test_a_place_can_be_taken_apart_and_put_together(path, revision):
    place = parse_path(path)
    assert place.path == path
    written = TransactionId(place.uri, time_uuid(1_700_000_000_000, 7), revision)
    assert TransactionId.parse(str(written)) == written
    before, _, last = path.rpartition("/")
    if not set("{}") & set(before):
        template = f"{before}/{{*}}".lstrip("/")
        assert item_of(template, path) == last
        assert source_of(template, last) == parse_path(path)


async def test_odd_names_go_round_everywhere(served):
    """Of documents, collections and elements; in one server, as each is a few requests."""
    log, remote, http = served
    for name in ODD:
        for path in (name, f"x/{name}/y", f"{name}x~/{name}"):
            if parse_path(path).kind == "collection":
                continue
            made = await http.put(C + quote(path, safe="/"), content='{"v": 1}')
            assert made.status_code == 201, (path, made.text)
            assert made.json()["path"] == path
            assert (await http.get(made.headers["location"])).json()["v"] == 1
            written = made.json()["transactionId"]
            assert (await remote.transaction(written)).id == written
            assert (await remote.get(path)).body["v"] == 1
            assert (await log.documents.get(path)).body["v"] == 1
            assert [one.path async for one in remote.history(path)] == [path]
            items = remote.feed(path, after=0)
            event = await anext(items)
            await items.aclose()
            assert isinstance(event, DocumentEvent)
            assert event.path == path
            assert (await remote.patch(path, {"v": 2})).path == path
            assert await remote.diff(path, 1, 2) == {"v": 2}
            page = await http.get("/console/documents", params={"path": path})
            assert page.status_code == 200, path
    collection = "все заказы?/日本~"
    for name in ODD:
        await remote.put(f"{collection}/{name}", {"n": 1})
    wanted = sorted(ODD, key=str.encode)
    url: str | None = f"{C}{quote(collection, safe='/')}?size=9"
    found: list[str] = []
    while url is not None:
        body = (await http.get(url)).json()
        found += [one["id"] for one in body["_embedded"]["els"]]
        url = body.get("_links", {}).get("next", {}).get("href")
    assert found == wanted
    assert [one["id"] for one in await remote.at(collection, len(ODD))] == wanted
    await remote.create_index(collection, IndexNew("by n"))
    assert [one.index_id for one in await remote.indexes(collection)] == ["by n"]
    assert (await remote.index(collection, "by n")).index_id == "by n"
    made = await http.post("/hyper-storage/indexes/" + quote(collection, safe=""), content='{"indexId": "ü/ /"}')
    assert made.status_code == 400
    made = await http.post("/hyper-storage/indexes/" + quote(collection, safe=""), content='{"indexId": "ü %"}')
    assert (await http.get(made.json()["_links"]["self"]["href"])).json()["_embedded"]["els"]
    await remote.delete_index(collection, "by n")
    await remote.put_view("ein Blick~", "все заказы?/日本~/{*}")
    async with asyncio.timeout(60):
        while (await remote.list("ein Blick~")).count != len(ODD):
            await log.documents.build_indexes()
    assert [one["id"] for one in (await remote.list("ein Blick~", size=100)).elements] == wanted
    await remote.put_template_index("t", "все заказы?/{*}~", IndexNew("i"))


async def test_dots_lead_nowhere_else(served):
    """A client that took `..` for a folder would delete something else."""
    _, remote, http = served
    await remote.put("b", 1)
    for path in ("a/../b", "./b", "..", "b/.", "b/.."):
        for call in (remote.get, remote.delete, remote.settle):
            with pytest.raises(InvalidDocument):
                await call(path)
        with pytest.raises(InvalidDocument):
            await anext(remote.feed(path))
    raw = await http.request("DELETE", httpx.URL(str(http.base_url), raw_path=b"/hyper-storage/content/a/%2e%2e/b"))
    assert raw.status_code in (400, 404)
    assert (await remote.get("b")).body == 1


def test_the_command_line_takes_any_path(tmp_path):
    run = CliRunner().invoke
    for name in ("a b/ü?#%", "日本~/a b", "-x/'q'"):
        base = ["--data", str(tmp_path / "data")]
        assert run(main, [*base, "docs", "put", "--", name, '{"v": 1}'], catch_exceptions=False).exit_code == 0
        found = run(main, [*base, "docs", "get", "--json", "--", name], catch_exceptions=False)
        assert msgspec.json.decode(found.stdout)["path"] == name
    refused = run(main, ["--data", str(tmp_path / "data"), "docs", "get", "a/../b"])
    assert refused.exit_code != 0


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Any:
    with (
        server_in_thread(small_config(tmp_path_factory.mktemp("paths"))) as address,
        httpx.Client(base_url=address, timeout=60) as http,
    ):
        yield http


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths)
def test_any_path_comes_back(client, path):
    """Location, events and links of it lead to it again; nothing that is not the same text does."""
    assume(parse_path(path).kind != "collection")
    body = msgspec.json.encode({"p": path})
    url = C + quote(path, safe="/")
    assert client.put(url, content=body).status_code in (200, 201)
    assert client.get(url).json()["p"] == path
    changes = client.get(f"{url}?history&size=1").json()
    assert parse_path(changes["_embedded"]["els"][0]["path"]).uri == parse_path(path).uri
    following = changes.get("_links", {}).get("next", {}).get("href")
    if following is not None:
        assert client.get(following).status_code == 200
        assert dict(parse_qsl(urlsplit(following).query))["after"] == "1"
    again = client.put(url, content=body)
    assert again.status_code == 200
    assert (
        client.get("/hyper-storage/transactions/" + quote(again.json()["transactionId"], safe="")).json()["revision"]
        >= 2
    )
