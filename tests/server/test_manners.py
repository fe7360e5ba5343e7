"""What HTTP itself promises: methods, conditions, types of answers, packing, HEAD, and parts of bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from everlog.client import connect
from tests.http_support import send, server
from tests.support import small_config

C, I = "/hyper-storage/content/", "/hyper-storage/indexes/"  # noqa: E741
HAL, JSON = "application/hal+json", "application/json"


@pytest.fixture
async def http(tmp_path) -> AsyncIterator[httpx.AsyncClient]:
    async with server(small_config(tmp_path / "data")) as (_, client):
        client.headers["Accept-Encoding"] = "identity"
        yield client


def methods(answer: httpx.Response) -> set[str]:
    return set(answer.headers["allow"].split(", "))


async def test_options_and_allow_name_the_methods_of_each_kind_of_path(http):
    """Each method that is listed is taken, in some way; none that is not listed is."""
    await send(http, "PUT", "/hyper-storage/views/v~", {"template_uri": "p/{*}"}, 201)
    read = {"GET", "HEAD", "OPTIONS"}
    wanted = {
        C + "d": {"PUT", "PATCH", "DELETE"},
        C + "a%20b~x": {"PUT", "PATCH", "DELETE"},
        C + "c~": {"PUT", "POST", "DELETE"},
        C + "c~/1": {"PUT", "PATCH", "DELETE"},
        C + "v~": set(),
        C + "v~/1": set(),
        I + "c~": {"POST"},
        I + "c~/i": {"DELETE"},
        "/hyper-storage/views/v~/unshown": {"POST"},
        "/hyper-storage/views/v~": {"PUT", "DELETE"},
        "/hyper-storage/template-indexes/t": {"PUT", "DELETE"},
        "/hyper-storage/transactions": set(),
        "/hyper-storage/transactions/x": set(),
        "/journals": set(),
        "/journals/a/b": {"POST", "DELETE"},
        "/queues": set(),
        "/queues/x": {"PUT", "DELETE"},
        "/tags/x": set(),
    }
    for path, writes in wanted.items():
        answer = await send(http, "OPTIONS", path, status=204)
        assert methods(answer) == read | writes, path
        for method in ("PUT", "PATCH", "POST", "DELETE", "TRACE"):
            if method not in writes and not path.startswith((C + "v~", C + "c~")):
                answer = await http.request(method, path, content="{}")
                if path.startswith((I, "/hyper-storage/views")):
                    assert answer.status_code in (400, 405), (method, path)
                else:
                    assert (answer.status_code, methods(answer)) == (405, read | writes), (method, path, answer.text)
    answer = await send(http, "TRACE", C + "c~", status=405)
    assert methods(answer) == read | {"PUT", "POST", "DELETE"}


async def test_writes_answer_with_the_tag_of_what_is_stored(http):
    for method, path, body in (("PUT", "d", {"a": 1}), ("PUT", "d", {"a": 2, "b": None}), ("PATCH", "d", {"a": 3})):
        answer = await http.request(method, C + path, json=body)
        assert answer.headers["etag"] == (await http.get(C + path)).headers["etag"], method
    made = await send(http, "POST", C + "c~", {}, 201)
    assert made.headers["etag"] == (await http.get(made.headers["location"])).headers["etag"]
    tag = made.headers["etag"]
    await send(http, "PUT", made.headers["location"], {"v": 1}, headers={"If-Match": tag})
    await send(http, "PUT", made.headers["location"], {"v": 1}, 412, headers={"If-Match": tag})
    assert "etag" not in (await send(http, "DELETE", made.headers["location"])).headers


async def test_a_read_is_conditional_in_both_ways(http):
    tag = (await send(http, "PUT", C + "d", 1, 201)).headers["etag"]
    await send(http, "PUT", C + "c~/1", {}, 201)
    page = (await http.get(C + "c~")).headers["etag"]
    for method in ("GET", "HEAD"):
        await send(http, method, C + "d", headers={"If-Match": tag})
        await send(http, method, C + "d", headers={"If-Match": '"77", ' + tag})
        await send(http, method, C + "d", headers={"If-Match": "*", "If-None-Match": '"77"'})
        await send(http, method, C + "d", status=412, headers={"If-Match": '"77"'})
        await send(http, method, C + "d", status=412, headers={"If-Match": "W/" + tag})
        await send(http, method, C + "d", status=412, headers={"If-Match": '"77"', "If-None-Match": tag})
        await send(http, method, C + "d", status=304, headers={"If-Match": tag, "If-None-Match": tag})
        await send(http, method, C + "d", status=304, headers={"If-None-Match": "*"})
        await send(http, method, C + "c~", status=412, headers={"If-Match": page})
        await send(http, method, C + "c~", headers={"If-Match": "*"})
        await send(http, method, C + "nope", status=404, headers={"If-Match": tag})
        for query in ("history", "at=1", "diff=1,1", "feed"):
            await send(http, method, f"{C}d?{query}", status=412, headers={"If-Match": tag})
        await send(http, method, C + "d", status=400, headers={"If-Match": "x"})


async def test_a_body_with_links_is_hal_unless_json_is_preferred(http):
    await send(http, "PUT", C + "c~/1", {}, 201)
    paths = [C + "c~", C + "c~?history", C + "c~?at=1", I + "c~", "/hyper-storage/transactions?path=c~&incomplete=1"]
    for accept, kind in (
        (None, HAL),
        ("*/*", HAL),
        (HAL, HAL),
        (JSON, JSON),
        (f"{JSON}, text/plain, */*", JSON),
        (f"{JSON}, {HAL}", HAL),
        (f"{JSON};q=0.9, {HAL}", HAL),
        (f"{JSON}, {HAL};q=0.5", JSON),
        ("text/html", HAL),
        ("application/*", HAL),
        (f"{HAL};q=0, {JSON};q=0.1", JSON),
        ("", HAL),
        (";,q=x", HAL),
        (f"{JSON};q=7", JSON),
    ):
        headers = {"Accept": "*/*" if accept is None else accept}
        for path in paths:
            answer = await send(http, "GET", path, headers=headers)
            assert answer.headers["content-type"] == kind, (accept, path)
            assert "Accept" in answer.headers["vary"].split(", ")
        made = await http.post(C + "c~", json={}, headers=headers)
        assert made.headers["content-type"] == kind
        for path in (C + "c~/1", C + "nope"):
            assert (await http.get(path, headers=headers)).headers["content-type"] == JSON


async def test_large_answers_are_packed(http):
    """And only those; the tag of a packed body is another one, and both lead to the same revision."""
    large, huge, zipped = "x" * 2000, "y" * 100_000, {"Accept-Encoding": "gzip"}
    await send(http, "PUT", C + "small", 1, 201)
    tag = (await send(http, "PUT", C + "d", {"a": large}, 201)).headers["etag"]
    await send(http, "PUT", C + "c~/1", {"a": huge}, 201)
    plain = await http.get(C + "d")
    assert ("content-encoding" in plain.headers, plain.headers["vary"]) == (False, "Accept-Encoding")
    answer = await http.get(C + "d", headers=zipped)
    assert (answer.headers["content-encoding"], answer.json()) == ("gzip", {"a": large})
    assert int(answer.headers["content-length"]) < 200
    packed = answer.headers["etag"]
    assert (packed, plain.headers["etag"]) == (tag[:-1] + '-gzip"', tag)
    for accepted in ("identity", "gzip;q=0", "br", "*;q=0", "gzip;q=0, *"):
        answer = await http.get(C + "d", headers={"Accept-Encoding": accepted})
        assert ("content-encoding" in answer.headers, answer.headers["etag"]) == (False, tag), accepted
    for accepted in ("*", "br;q=0.1, gzip", "GZIP"):
        assert "content-encoding" in (await http.get(C + "d", headers={"Accept-Encoding": accepted})).headers, accepted
    for one in (tag, packed):
        again = await send(http, "GET", C + "d", status=304, headers={"If-None-Match": one, **zipped})
        assert again.headers["etag"] == packed
        await send(http, "GET", C + "d", headers={"If-Match": one, **zipped})
    for path in (C + "c~", C + "c~?history", C + "c~?at=1", C + "c~/1?at=1"):
        answer = await http.get(path, headers=zipped)
        assert (answer.headers["content-encoding"], huge in answer.text) == ("gzip", True), path
        head = await http.head(path, headers=zipped)
        assert head.headers["content-length"] == answer.headers["content-length"]
    assert (await http.get(C + "c~", headers=zipped)).headers["etag"] == (await http.get(C + "c~")).headers["etag"]
    for path in (C + "small", C + "d?fields=b", C + "nope"):
        assert "content-encoding" not in (await http.get(path, headers=zipped)).headers, path
    await send(http, "PUT", C + "d", 2, headers={"If-Match": packed})
    await send(http, "PUT", C + "d", 2, 412, headers={"If-Match": packed})
    async with http.stream("GET", C + "d?feed&after=0", headers=zipped) as stream:
        assert "content-encoding" not in stream.headers
        assert b"event: feed:put" in await anext(stream.aiter_raw())


async def test_head_is_get_without_a_body(http):
    """Of every kind of answer, also of one that never ends; a refusal has its status."""
    await send(http, "PUT", C + "c~/1", {"a": 1}, 201)
    for path in (
        C + "c~",
        C + "c~/1",
        C + "c~?history",
        C + "c~?at=1",
        C + "c~/1?diff=1,1",
        C + "nope",
        C + "c~?size=x",
        I + "c~",
        "/hyper-storage/views/v~",
        "/hyper-storage/nodes",
        "/journals",
        "/tags",
        "/queues",
        "/openapi/openapi.json",
        "/nope",
    ):
        got, head = await http.get(path), await http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        for name in ("content-type", "etag", "revision", "content-length", "vary", "hyper-storage-count"):
            if name != "content-length" or (path.startswith("/hyper") and got.status_code < 300):
                assert head.headers.get(name) == got.headers.get(name), (path, name)
    async with asyncio.timeout(60):
        for path in (C + "c~?feed", "/tags/eu?live=true"):
            answer = await http.head(path)
            assert answer.headers["content-type"].startswith("text/event-stream"), path


async def test_a_list_of_collections(http):
    for n in range(30):
        await send(http, "PUT", f"{C}shop/ü {n:02}~/1", {}, 201)
    url: Any = "/hyper-storage/collections?prefix=shop/%C3%BC&size=8"
    found: list[str] = []
    while url is not None:
        answer = await send(http, "GET", url)
        assert answer.headers["content-type"] == HAL
        found += [one["path"] for one in answer.json()["_embedded"]["els"]]
        url = answer.json().get("_links", {}).get("next", {}).get("href")
    assert found == [f"shop/ü {n:02}~" for n in range(30)]
    answer = await http.get("/hyper-storage/collections", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    for query in ("size=0", "size=1001", "size=x", "prefix=%00", "prefix=%ff", "filter=a"):
        await send(http, "GET", f"/hyper-storage/collections?{query}", status=400)


async def test_fields_of_a_body(http):
    body = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "l": [{"x": 1}], "odd name": 4}
    await send(http, "PUT", C + "d", body, 201)
    tag = (await http.get(C + "d")).headers["etag"]
    for fields, wanted in (
        ("a", {"a": 1}),
        ("a,b.c", {"a": 1, "b": {"c": 2}}),
        ("b.d.e,b.c", {"b": {"d": {"e": 3}, "c": 2}}),
        ("nope", {}),
        ("b,b.c", {"b": body["b"]}),
        ("b.c,b", {"b": body["b"]}),
        ("l.x", {}),
        ("l", {"l": [{"x": 1}]}),
        ("a.x", {}),
        ("`odd name`", {"odd name": 4}),
        (" a , b.c ", {"a": 1, "b": {"c": 2}}),
        ("", body),
        ("b.nope", {"b": {}}),
    ):
        answer = await send(http, "GET", C + "d", params={"fields": fields})
        assert answer.json() == wanted, fields
        assert answer.headers["etag"] == tag
    for fields in (",", "a,,b", "a b", "1a", "a.", "a > 1", ",".join(["a"] * 101)):
        answer = await send(http, "GET", C + "d", status=400, params={"fields": fields})
        assert answer.json()["code"] == "invalid-fields", fields
    await send(http, "PATCH", C + "d", {"b": None}, headers={"If-Match": tag})
    await send(http, "PUT", C + "scalar", 5, 201)
    assert (await http.get(C + "scalar?fields=a")).json() == {}
    for n in range(5):
        await send(http, "PUT", f"{C}c~/{n}", {"n": n, "x": {"y": n, "z": n}}, 201)
    assert (await http.get(C + "c~/3?fields=n")).json() == {"n": 3, "id": "3"}
    url: Any = f"{C}c~?fields=x.y&size=2&sort=-n&filter=n>0"
    pages = []
    while url is not None:
        found = (await send(http, "GET", url)).json()
        pages.append(found["_embedded"]["els"])
        url = found.get("_links", {}).get("next", {}).get("href")
    assert [one for page in pages for one in page] == [{"x": {"y": n}, "id": str(n)} for n in (4, 3, 2, 1)]
    async with connect(str(http.base_url)) as remote:
        docs = remote.documents
        assert (await docs.get("c~/1", fields=["n", "x.y"])).body == {"n": 1, "x": {"y": 1}, "id": "1"}
        assert (await docs.list("c~", fields=["n"], size=1)).elements == [{"n": 0, "id": "0"}]
