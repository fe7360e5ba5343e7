"""Documents over real HTTP: uvicorn, a socket, httpx."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

import httpx
import msgspec
import pytest

import everlog.server.documents
from everlog.client import connect
from everlog.config import DocumentsConfig
from everlog.console.server import serving
from everlog.documents.bodies import decode_body
from everlog.server.documents import MAX_BYTES_ON_LOOP
from tests.support import small_config
from tests.waiting import until

C, INDEXES = "/hyper-storage/content/", "/hyper-storage/indexes/"
D = {"item1": {"a": "hello", "b": 100500}, "item2": {"a": "goodbye", "b": 1}, "item3": {"a": "way way", "b": 12}}


@asynccontextmanager
async def served(folder: Path, request_timeout_s: float = 60.0) -> AsyncIterator[httpx.AsyncClient]:
    settings = DocumentsConfig(
        request_timeout_s=request_timeout_s, feed_checkpoint_interval_s=0.2, max_body_bytes=100_000
    )
    config = msgspec.structs.replace(small_config(folder), documents=settings)
    async with (
        connect(config) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        httpx.AsyncClient(base_url=address, timeout=60) as client,
    ):
        yield client


@pytest.fixture
async def http(tmp_path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server on a folder of its own."""
    async with served(tmp_path / "data") as client:
        yield client


async def send(
    http: httpx.AsyncClient, method: str, path: str, body: Any = ..., status: int = 200, **options: Any
) -> Any:
    """A request that must have this status; the answer."""
    if body is not ...:
        options["content"] = json.dumps(body)
    answer = await http.request(method, path, **options)
    assert answer.status_code == status, (answer.status_code, answer.text)
    return answer


async def refused(
    http: httpx.AsyncClient, method: str, path: str, body: Any = ..., *, status: int, code: str, **options: Any
) -> Any:
    """A request that is refused with this status and code."""
    answer = await send(http, method, path, body, status, **options)
    found = answer.json()
    assert found["code"] == code, found
    assert len(found["errorId"]) == 30
    assert found["description"]
    return answer


async def fill(http: httpx.AsyncClient, uri: str = "collection-1~") -> None:
    for item, body in D.items():
        await send(http, "PUT", f"{C}{uri}/{item}", body, 201)


async def events(http: httpx.AsyncClient, path: str) -> list[tuple[str, str, int, Any]]:
    found = (await send(http, "GET", f"{C}{path}?history&size=1000")).json()["_embedded"]["els"]
    return [(one["method"], one["path"], one["headers"]["revision"], one["body"]) for one in found]


def ids(answer: httpx.Response) -> list[str]:
    return [one["id"] for one in answer.json()["_embedded"]["els"]]


@pytest.mark.case("hyperstorage", 1, 2, 3, 5, 7)
async def test_documents(http):
    answer = await send(http, "PUT", C + "abc/123", {"a": 10, "x": "hello"}, 201)
    body = answer.json()
    assert body["path"] == "abc/123"
    assert body["transactionId"].endswith(":1")
    assert set(body["_links"]) == {"self", "location"}
    assert answer.headers["location"] == C + "abc/123"
    answer = await send(http, "GET", C + "abc/123")
    assert (answer.json(), answer.headers["revision"], answer.headers["hyperbus-revision"]) == (
        {"a": 10, "x": "hello"},
        "1",
        "1",
    )
    assert answer.headers["content-type"] == "application/json"
    answer = await send(http, "PUT", C + "abc/123", {"a": 11})
    assert list(answer.json()) == ["transactionId"]
    answer = await send(http, "GET", C + "abc/123")
    assert (answer.json(), answer.headers["revision"]) == ({"a": 11}, "2")
    await send(http, "PUT", C + "test-resource-1", {"text": "Test resource value", "null": None}, 201)
    assert (await send(http, "GET", C + "test-resource-1")).json() == {"text": "Test resource value"}
    await send(http, "DELETE", C + "abc/123")
    await refused(http, "GET", C + "abc/123", status=404, code="not_found")
    assert (await events(http, "abc/123"))[-1] == ("feed:delete", "abc/123", 3, None)
    await send(http, "PUT", C + "s", "Hello", 201)
    assert (await send(http, "GET", C + "s")).json() == "Hello"
    head = await send(http, "HEAD", C + "s")
    assert (head.content, head.headers["revision"]) == (b"", "1")


@pytest.mark.case("hyperstorage", 6, 8, 9, 10)
async def test_what_is_not_there(http):
    await refused(http, "GET", C + "nope", status=404, code="not_found")
    await refused(http, "GET", C + "missing~", status=404, code="not_found")
    await refused(http, "DELETE", C + "never", status=404, code="not_found")
    await send(http, "PUT", C + "d", {"a": 1}, 201)
    await send(http, "DELETE", C + "d")
    await refused(http, "DELETE", C + "d", status=404, code="not_found")
    await send(http, "PUT", C + "d", {"b": 1}, 201)
    answer = await send(http, "GET", C + "d")
    assert (answer.json(), answer.headers["revision"]) == ({"b": 1}, "3")
    assert len(await events(http, "d")) == 3
    assert await events(http, "never") == []
    await refused(http, "GET", "/elsewhere", status=404, code="not_found")


@pytest.mark.case("hyperstorage", 11)
@pytest.mark.parametrize(
    "path",
    ["/a", "a/", "a//b", "a%09b", "%E4", "a%2", "a%zz", "%ED%A0%80", "a%2F", "a%2F%2Fb", "%2e%2e", "a/%2E/b", "%7F"],
)
async def test_bad_paths(http, path):
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        options = {} if method in ("GET", "DELETE") else {"content": "{}"}
        answer = await http.request(method, C + path, **options)
        assert answer.status_code == 400, (method, answer.status_code, answer.text)
        assert answer.json()["code"] == "invalid-path"


@pytest.mark.case("hyperstorage", 11)
async def test_long_paths_and_encoded_slashes(http):
    await refused(http, "GET", C + "x" * 1100, status=414, code="path-too-long")
    await send(http, "PUT", C + "a%2Fb", 1, 201)
    assert (await send(http, "GET", C + "a/b")).json() == 1
    await refused(http, "GET", C, status=404, code="not_found")


@pytest.mark.case("hyperstorage", 12)
async def test_correlation_ids_come_back(http):
    answer = await send(http, "PUT", C + "d", 1, 201, headers={"Hyperbus-Correlation-Id": "abc123"})
    assert answer.headers["hyperbus-correlation-id"] == "abc123"
    answer = await send(http, "GET", C + "nope", status=404, headers={"Hyperbus-Correlation-Id": "abc123"})
    assert answer.headers["hyperbus-correlation-id"] == "abc123"
    found = (await send(http, "GET", C + "d?history")).json()["_embedded"]["els"]
    assert found[0]["headers"]["correlationId"] == "abc123"


@pytest.mark.case("hyperstorage", 13)
async def test_bad_requests_change_nothing(http):
    await fill(http, "c~")
    await refused(http, "PUT", C + "d", status=400, code="invalid-json", content="{")
    await refused(http, "PUT", C + "d", status=400, code="invalid-json", content="")
    await refused(http, "PUT", C + "d", status=400, code="invalid-json", content="[" * 10_000)
    await refused(http, "PUT", C + "d", status=400, code="invalid-json", content="[" * 10_000 + "]" * 10_000)
    deep = '{"a":' * 10_000 + "1" + "}" * 10_000
    await refused(http, "PATCH", C + "c~/item1", status=400, code="invalid-json", content=deep)
    await refused(http, "PUT", C + "d", status=400, code="invalid-json", content="9" * 10_000)
    await refused(http, "PUT", C + "d", status=400, code="invalid-json", content="0." + "9" * 10_000)
    number = {"filter": "a > " + "9" * 5000}
    await refused(http, "GET", C + "c~", status=400, code="invalid-filter", params=number)
    for text in ("(" * 2000 + "a" + ")" * 2000, "!" * 5000 + "a", "a" + " = a" * 1000):
        assert (await http.get(C + "c~", params={"filter": text})).status_code in (200, 400)
    await refused(http, "PUT", C + "d", status=400, code="invalid-json", content=b'"\xff"')
    await refused(http, "PUT", C + "d", status=413, code="body-too-large", content='"' + "x" * 100_000 + '"')
    answer = await refused(http, "GET", C + "c~?filter=b%20%3E", status=400, code="invalid-filter")
    assert answer.json()["extra"] == {"position": 4}
    await refused(http, "GET", C + "c~?size=abc", status=400, code="invalid-parameter")
    await refused(http, "GET", C + "c~?size=-1", status=400, code="invalid-parameter")
    await refused(http, "GET", C + "c~?skipMax=x", status=400, code="invalid-parameter")
    await refused(http, "GET", C + "c~?sort=a%20b", status=400, code="invalid-sort")
    await refused(http, "GET", C + "c~?after=x", status=400, code="invalid-token")
    await refused(http, "PUT", C + "d", 1, status=400, code="invalid-header", headers={"If-Match": "x"})
    await refused(http, "PUT", C + "d", 1, status=400, code="invalid-header", headers={"Hyper-Storage-Wait": "x"})
    await refused(http, "GET", C + "d", status=404, code="not_found")
    assert (await send(http, "GET", C + "c~")).headers["revision"] == "3"


@pytest.mark.case("hyperstorage", 14)
async def test_a_hundred_writes_in_order(http):
    for number in range(100):
        await send(http, "PUT", C + "d", number, 201 if number == 0 else 200)
    assert (await send(http, "GET", C + "d")).headers["revision"] == "100"
    assert [revision for _, _, revision, _ in await events(http, "d")] == list(range(1, 101))


@pytest.mark.case("hyperstorage", 15)
async def test_fifty_at_once(http):
    answers = await asyncio.gather(*[http.put(C + "d", content=str(number)) for number in range(50)])
    assert all(answer.status_code in (200, 201) for answer in answers)
    revisions = sorted(int(answer.json()["transactionId"].rpartition(":")[2]) for answer in answers)
    assert revisions == list(range(1, 51))
    assert (await send(http, "GET", C + "d")).headers["revision"] == "50"


@pytest.mark.case("hyperstorage", 16, 17, 18, 19, 21, 22)
async def test_patches(http):
    for path, body, patch, result in [
        ("p1", {"t1": "abc", "t2": "klmn"}, {"t1": "efg", "t2": None, "t3": "zzz"}, {"t1": "efg", "t3": "zzz"}),
        ("p2", {"a": "1", "b": "2", "c": "3"}, {"b": None}, {"a": "1", "c": "3"}),
        ("p3", {"a": {"x": 1, "y": 2}}, {"a": {"y": None, "z": 3}}, {"a": {"x": 1, "z": 3}}),
        ("p4", {"l": [1, 2]}, {"l": [3]}, {"l": [3]}),
        ("p5", {"a": {"x": 1}, "k": 1}, {"a": None}, {"k": 1}),
    ]:  # fmt: skip
        await send(http, "PUT", C + path, body, 201)
        await send(http, "PATCH", C + path, patch)
        assert (await send(http, "GET", C + path)).json() == result
        assert (await events(http, path))[-1] == ("feed:patch", path, 2, patch)
    await refused(http, "PATCH", C + "none", {}, status=404, code="not_found")
    await refused(http, "PATCH", C + "p1", "abc", status=400, code="patch-not-object")
    await send(http, "PUT", C + "text", "x", 201)
    await refused(http, "PATCH", C + "text", {}, status=422, code="not-mergeable")
    assert (await send(http, "GET", C + "p1")).headers["revision"] == "2"
    await send(http, "PATCH", C + "p1", {"n": 1})


@pytest.mark.case("hyperstorage", 23, 24, 25, 27, 28, 29, 30, 36)
async def test_collections(http):
    await send(http, "PUT", C + "collection-1~/r1", {"text": "v"}, 201)
    answer = await send(http, "GET", C + "collection-1~/r1")
    assert (answer.json(), answer.headers["revision"]) == ({"text": "v", "id": "r1"}, "1")
    await send(http, "PUT", C + "collection-1~/r2", {}, 201)
    assert (await send(http, "GET", C + "collection-1~/r1")).headers["revision"] == "2"
    await send(http, "PUT", C + "c~/x", {"id": "zzz", "a": 1}, 201)
    assert (await send(http, "GET", C + "c~/x")).json() == {"id": "x", "a": 1}
    answer = await send(http, "POST", C + "collection-2~", {"a": "hello", "b": 100500}, 201)
    path = answer.json()["path"]
    assert answer.headers["location"] == C + path
    item = path.removeprefix("collection-2~/")
    assert (await send(http, "GET", C + path)).json() == {"a": "hello", "b": 100500, "id": item}
    assert await events(http, "collection-2~") == [("feed:put", path, 1, {"a": "hello", "b": 100500, "id": item})]
    answer = await refused(http, "POST", C + "doc", {}, status=405, code="post-not-allowed")
    assert "PUT" in answer.headers["allow"]
    await refused(http, "PUT", C + "c~", {"a": 1}, status=409, code="collection-put-not-implemented")
    await refused(http, "PATCH", C + "c~", {"a": 1}, status=409, code="collection_patch_not_implemented")
    await refused(http, "PUT", C + "c~/x", "text", status=400, code="element-not-object")
    for other in ("y", None, 1, {"id": "x"}, ["x"]):
        await refused(http, "PATCH", C + "c~/x", {"id": other, "a": 5}, status=409, code="field_is_protected")
    await send(http, "PATCH", C + "c~/x", {"b": 2})
    assert (await send(http, "GET", C + "c~/x")).json() == {"id": "x", "a": 1, "b": 2}
    await send(http, "DELETE", C + "c~/x")
    await refused(http, "PATCH", C + "c~/x", {}, status=404, code="not_found")
    for path in ("abc/~xyz", "a~b", "abc~/1/2"):
        await send(http, "PUT", C + path, {"p": path}, 201)
        assert (await send(http, "GET", C + path)).json() == {"p": path}
    await refused(http, "GET", C + "abc~", status=404, code="not_found")
    await send(http, "PUT", C + "empty~", status=201)
    answer = await send(http, "GET", C + "empty~")
    assert (ids(answer), answer.headers["revision"], answer.headers["hyper-storage-count"]) == ([], "1", "0")


@pytest.mark.case("hyperstorage", 26)
async def test_posted_ids_grow(http):
    paths = [(await send(http, "POST", C + "c~", {"n": n}, 201)).json()["path"] for n in range(100)]
    assert paths == sorted(set(paths), key=str.encode)
    assert [f"c~/{item}" for item in ids(await send(http, "GET", C + "c~?size=200"))] == paths


@pytest.mark.case("hyperstorage", 32, 33, 34, 37)
async def test_deleting_elements_and_collections(http):
    await fill(http)
    await send(http, "DELETE", C + "collection-1~/item2")
    await refused(http, "GET", C + "collection-1~/item2", status=404, code="not_found")
    answer = await send(http, "GET", C + "collection-1~")
    assert (ids(answer), answer.headers["revision"]) == (["item1", "item3"], "4")
    await refused(http, "DELETE", C + "collection-1~/absent", status=404, code="not_found")
    for item in ("item1", "item3"):
        await send(http, "DELETE", C + f"collection-1~/{item}")
    answer = await send(http, "GET", C + "collection-1~")
    assert (ids(answer), answer.headers["revision"]) == ([], "6")
    await fill(http)
    await send(http, "DELETE", C + "collection-1~")
    for path in ("collection-1~", "collection-1~/item1"):
        await refused(http, "GET", C + path, status=404, code="not_found")


LINKED = [
    {"filter": " or ".join(["n != 77"] * 99)},
    {"filter": "(" * 300 + "n != 77" + ")" * 300, "sort": "-id"},
    {"filter": f'a != "{"ü" * 900}"', "sort": "a,-n"},
    {"sort": "-a"},
    {"sort": "b,a", "skipMax": "100"},
    {"filter": "n and n or true"},
    {"sort": "n", "filter": 'id > "2" and a != "&=+%?#"', "explain": "1"},
]


@pytest.mark.parametrize("query", LINKED)
async def test_every_link_to_a_next_page_works(http, query):
    """Long filters and long values, through the links alone; what was sent as it is comes back as it is."""
    for number in range(5):
        body = {"a": "ä" * 10_000 + str(number % 3), "b": [str(uuid4()) for _ in range(500)], "n": number}
        await send(http, "PUT", f"{C}c~/{number}", body, 201)
    whole = ids(await send(http, "GET", C + "c~", params=query))
    link, found = f"{C}c~?{urlencode({**query, 'size': '1'}, safe='()')}", []
    while link:
        answer = await send(http, "GET", link)
        found += ids(answer)
        link = answer.json().get("_links", {}).get("next", {}).get("href")
        assert link is None or len(link) < 6000
    assert found == whole


@pytest.mark.case("hyperstorage", 38, 39, 40, 41, 42, 44, 45, 47, 48, 49)
async def test_queries(http):
    for number in range(150):
        await send(http, "PUT", C + f"big~/{number:03}", {}, 201)
    answer = await send(http, "GET", C + "big~")
    assert ids(answer) == [f"{number:03}" for number in range(100)]
    answer = await send(http, "GET", C + "big~", params={"size": "50", "filter": 'id > "099"'})
    assert ids(answer) == [f"{number:03}" for number in range(100, 150)]
    await fill(http)
    await send(http, "PUT", C + "collection-1~/item4", {"b": 5, "tags": [1, 2, 3], "x": {"y": 2}}, 201)
    for query, expected in [
        ({"size": "50", "sort": "-id"}, "4321"),
        ({"size": "50", "sort": "-id", "filter": 'id < "item3"'}, "21"),
        ({"size": "5", "filter": 'id ="item3"'}, "3"),
        ({"size": "1", "filter": 'a ="way way"'}, "3"),
        ({"size": "2", "sort": "a", "filter": 'a >"goodbye"'}, "13"),
        ({"size": "2", "sort": "-a", "filter": 'a >"goodbye"'}, "31"),
        ({"size": "50", "sort": "id", "filter": "b>10"}, "13"),
        ({"filter": 'a != "hello"'}, "234"),
        ({"filter": 'a < "z"'}, "123"),
        ({"filter": "substr(a, 6) = 'x'"}, ""),
        ({"filter": "tags has 3"}, "4"),
        ({"filter": "tags has [1,2]"}, "4"),
        ({"filter": 'a like "^way"'}, "3"),
        ({"filter": "x.y > 1"}, "4"),
        ({"sort": " -b , +a"}, "1342"),
        ({"filter": "b > 1000000"}, ""),
    ]:
        answer = await send(http, "GET", C + "collection-1~", params=query)
        assert ids(answer) == [f"item{number}" for number in expected], query
        assert answer.headers["revision"] == "4"
    answer = await send(http, "GET", C + "collection-1~?sort=-b,+a&explain=1")
    assert answer.json()["explain"]["sorted_in_memory"] is True


async def test_pages_are_linked(http):
    await fill(http)
    answer = await send(http, "GET", C + "collection-1~?size=1&sort=id")
    link = answer.json()["_links"]["next"]["href"]
    assert dict(httpx.URL(link).params)["filter"] == 'id > "item1"'
    for sort in ("id", "-a", "b,-a"):
        link, seen = f"{C}collection-1~?size=2&sort={sort}", []
        while link:
            answer = await send(http, "GET", link)
            seen += ids(answer)
            link = answer.json().get("_links", {}).get("next", {}).get("href")
        assert sorted(seen) == sorted(D)


@pytest.mark.case("hyperstorage", 50, 51, 52, 53, 55, 56, 57, 60)
async def test_indexes(http):
    await fill(http)
    answer = await send(
        http, "POST", INDEXES + "collection-1~", {"indexId": "index1", "sortBy": [], "filterBy": "b > 10"}, 201
    )
    assert {name: answer.json()[name] for name in ("indexId", "path")} == {"indexId": "index1", "path": "collection-1~"}
    body = {"indexId": "index2", "sortBy": [{"fieldName": "a"}], "filterBy": "b > 10"}
    await send(http, "POST", INDEXES + "collection-1~", body, 201)
    for index in ("index1", "index2"):

        async def ready(name: str = index) -> bool:
            return (await send(http, "GET", f"{INDEXES}collection-1~/{name}")).json()["status"] == "ready"

        await until(ready)
    for query, index, expected in [
        ({"sort": "id", "filter": "b > 12"}, "index1", "1"),
        ({"sort": "a", "filter": "b > 10"}, "index2", "13"),
        ({"sort": "-a", "filter": "b > 10"}, "index2", "31"),
        ({"sort": "a", "filter": 'b > 10 and a > "hello"'}, "index2", "3"),
    ]:
        answer = await send(http, "GET", C + "collection-1~", params={**query, "explain": "1"})
        assert (answer.json()["explain"]["index"], ids(answer)) == (index, [f"item{number}" for number in expected])
        assert answer.headers["hyper-storage-count"] == "2"
    await refused(http, "POST", INDEXES + "collection-1~", {"indexId": "index1"}, status=409, code="already-exists")
    assert len((await send(http, "POST", INDEXES + "collection-1~", {}, 201)).json()["indexId"]) == 30
    assert len((await send(http, "GET", INDEXES + "collection-1~")).json()["_embedded"]["els"]) == 3
    await send(http, "POST", INDEXES + "abc%2Fxyz~", {"indexId": "i"}, 201)
    assert (await send(http, "GET", INDEXES + "abc%2Fxyz~/i")).json()["indexId"] == "i"
    await refused(http, "POST", INDEXES + "doc", {}, status=400, code="not-a-collection")
    await refused(http, "POST", INDEXES + "c~", {"filterBy": "b >"}, status=400, code="invalid-filter")
    await refused(http, "POST", INDEXES + "c~", {"sortBy": [{"fieldName": "a b"}]}, status=400, code="invalid-field")
    await refused(http, "POST", INDEXES + "c~", {"sortBy": "a"}, status=400, code="invalid-body")
    await refused(http, "POST", INDEXES + "c~", {"sort": []}, status=400, code="invalid-body")
    await refused(http, "POST", INDEXES + "abc/xyz~", {}, status=400, code="invalid-path")
    assert (await send(http, "GET", INDEXES + "c~")).json()["_embedded"]["els"] == []
    await send(http, "DELETE", INDEXES + "collection-1~/index1", status=204)
    await refused(http, "DELETE", INDEXES + "collection-1~/index1", status=404, code="index-not-found")
    await refused(http, "GET", INDEXES + "collection-1~/index1", status=404, code="index-not-found")


async def test_a_page_shows_every_write_before_it(http):
    """300 times: a write, then queries that an index answers. No entity tag says 'unchanged' of what has changed."""
    await send(http, "PUT", C + "c~/first", {"n": -1}, 201)
    for name, order in (("up", "asc"), ("down", "desc")):
        body = {"indexId": name, "sortBy": [{"fieldName": "n", "order": order}], "filterBy": "n >= 0"}
        await send(http, "POST", INDEXES + "c~", body, 201)

        async def ready(name: str = name) -> bool:
            return (await send(http, "GET", f"{INDEXES}c~/{name}")).json()["status"] == "ready"

        await until(ready)
    tag = None
    for number in range(300):
        await send(http, "PUT", f"{C}c~/{number:03}", {"n": number}, 201)
        params = {"sort": ("n", "-n")[number % 2], "filter": f"n >= {number - number % 3}", "size": "1"}
        found: list[str] = []
        for _ in range(1 + number % 3):
            headers = {} if tag is None else {"If-None-Match": tag}
            answer = await http.get(C + "c~", params=params, headers=headers)
            assert answer.status_code == 200, (number, params)
            found += ids(answer)
            params = dict(parse_qsl(urlsplit(answer.json()["_links"]["next"]["href"]).query))
        assert sorted(found) == [f"{one:03}" for one in range(number - number % 3, number + 1)]
        assert (answer.headers["revision"], answer.headers["hyper-storage-count"]) == (str(number + 2), str(number + 1))
        tag = answer.headers["etag"]
    assert (await http.get(C + "c~", params=params, headers={"If-None-Match": tag})).status_code == 304


async def test_conditional_requests(http):
    await send(http, "PUT", C + "d", {"a": 1}, 201, headers={"If-None-Match": "*"})
    etag = (await send(http, "GET", C + "d")).headers["etag"]
    assert etag == '"1"'
    answer = await send(http, "GET", C + "d", status=304, headers={"If-None-Match": etag})
    assert (answer.content, answer.headers["etag"]) == (b"", etag)
    await send(http, "GET", C + "d", headers={"If-None-Match": '"9"'})
    await refused(http, "DELETE", C + "d", status=412, code="not_matched", headers={"If-Match": '"9"'})
    await refused(http, "PUT", C + "d", 2, status=412, code="not_matched", headers={"If-None-Match": "*"})
    await send(http, "DELETE", C + "d", headers={"If-Match": etag})
    await send(http, "PUT", C + "d", 3, 201, headers={"If-None-Match": "*"})
    await fill(http)
    tag = (await send(http, "GET", C + "collection-1~")).headers["etag"]
    await send(http, "GET", C + "collection-1~", status=304, headers={"If-None-Match": tag})


async def test_message_ids(http):
    first = await send(http, "POST", C + "c~", {"a": 1}, 201, headers={"Hyperbus-Message-Id": "m1"})
    again = await send(http, "POST", C + "c~", {"a": 1}, 201, headers={"Idempotency-Key": "m1"})
    assert first.json() == again.json()
    await refused(
        http, "POST", C + "c~", {"a": 2}, status=422, code="message-id-reused", headers={"Idempotency-Key": "m1"}
    )
    assert len(await events(http, "c~")) == 1


async def test_transactions(http):
    answer = await send(http, "PUT", C + "a/b", 1, 201, headers={"Hyper-Storage-Wait": "full"})
    name = answer.json()["transactionId"]
    path = f"/hyper-storage/transactions/{name.replace('/', '%2F')}"

    async def completed() -> Any:
        return (await send(http, "GET", path)).json()["completedAt"]

    await until(completed)
    found = (await send(http, "GET", path)).json()
    assert (found["transactionId"], found["revision"]) == (name, 1)
    answer = await send(http, "GET", "/hyper-storage/transactions?path=a/b&incomplete=1")
    assert answer.json() == {"_embedded": {"els": []}}
    await refused(http, "GET", "/hyper-storage/transactions?path=a", status=400, code="invalid-parameter")
    await refused(http, "GET", "/hyper-storage/transactions/x", status=400, code="invalid-transaction-id")
    other = name.replace(":1", ":2").replace("/", "%2F")
    await refused(http, "GET", f"/hyper-storage/transactions/{other}", status=404, code="not_found")


async def test_the_past(http):
    await send(http, "PUT", C + "d", {"a": 1}, 201)
    await send(http, "PATCH", C + "d", {"b": 2})
    assert (await send(http, "GET", C + "d?at=1")).json() == {"a": 1}
    assert (await send(http, "GET", C + "d?at=2999-01-01T00:00:00Z")).json() == {"a": 1, "b": 2}
    answer = await send(http, "GET", C + "d?diff=1,2")
    assert (answer.json(), answer.headers["content-type"]) == ({"b": 2}, "application/merge-patch+json")
    await refused(http, "GET", C + "d?at=9", status=404, code="not_found")
    await refused(http, "GET", C + "d?at=1999-01-01T00:00:00Z", status=404, code="not_found")
    await refused(http, "GET", C + "d?at=x", status=400, code="invalid-parameter")
    await refused(http, "GET", C + "d?diff=1", status=400, code="invalid-parameter")
    await refused(http, "GET", C + "d?history&size=0", status=400, code="invalid-parameter")
    await fill(http)
    await send(http, "DELETE", C + "collection-1~/item1")
    assert ids(await send(http, "GET", C + "collection-1~?at=2")) == ["item1", "item2"]
    page = await send(http, "GET", C + "d?history&size=1")
    assert page.json()["_links"]["next"]["href"] == C + "d?history=&size=1&after=1"


async def read_feed(http: httpx.AsyncClient, path: str, count: int, **options: Any) -> list[dict[str, str]]:
    """The first so many events of a feed, and the checkpoint behind them; others come whenever it is time for one."""
    found: list[dict[str, str]] = []
    async with asyncio.timeout(60), http.stream("GET", C + path, **options) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        message: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line:
                name, _, value = line.partition(": ")
                message[name] = value
                continue
            if message["event"] != "checkpoint":
                found.append(message)
                assert len(found) <= count
            elif len(found) == count:
                return [*found, message]
            message = {}
    raise AssertionError("the feed ended")


async def test_a_feed_is_resumable(http):
    await send(http, "PUT", C + "d", {"n": 1}, 201, headers={"Hyper-Storage-Wait": "full"})
    (first,) = await read_feed(http, "d?feed", 0)
    assert (first["event"], first["id"]) == ("checkpoint", "1")
    reading = asyncio.create_task(read_feed(http, "d?feed", 2, headers={"Last-Event-ID": "0"}))
    await send(http, "PATCH", C + "d", {"n": 2})
    assert [one["event"] for one in await reading] == ["feed:put", "feed:patch", "checkpoint"]
    await send(http, "DELETE", C + "d", headers={"Hyper-Storage-Wait": "full"})
    rest = await read_feed(http, "d?feed", 2, headers={"Last-Event-ID": "1"})
    assert [(one["id"], one["event"]) for one in rest[:2]] == [("2", "feed:patch"), ("3", "feed:delete")]
    assert json.loads(rest[0]["data"])["body"] == {"n": 2}
    await refused(http, "GET", C + "d?feed", status=400, code="invalid-parameter", headers={"Last-Event-ID": "x"})


async def test_a_feed_ends_when_the_server_stops(tmp_path):
    async with connect(small_config(tmp_path / "data")) as log, httpx.AsyncClient(timeout=60) as client:
        async with serving(log, host="127.0.0.1", port=0) as address:
            await client.put(f"{address}{C}d", content="1")
            answer = await client.send(client.build_request("GET", f"{address}{C}d?feed"), stream=True)
            chunks = answer.aiter_text()
            first = await anext(chunks)
        async with asyncio.timeout(60):
            text = first + "".join([chunk async for chunk in chunks])
    assert answer.status_code == 200
    assert text.endswith("\n\n")  # the last message is whole


async def test_the_feed_of_a_collection_and_of_one_element(http):
    await fill(http)
    await send(http, "DELETE", C + "collection-1~/item2", headers={"Hyper-Storage-Wait": "full"})
    seen = await read_feed(http, "collection-1~?feed&after=0", 4)
    assert [one["id"] for one in seen] == ["1", "2", "3", "4", "4"]
    seen = await read_feed(http, "collection-1~/item2?feed&after=0", 2)
    assert [(one["id"], one["event"]) for one in seen] == [("2", "feed:put"), ("4", "feed:delete"), ("4", "checkpoint")]


async def read_live(http: httpx.AsyncClient, path: str, last: str, **options: Any) -> list[dict[str, str]]:
    """The messages of a live query up to one of this kind, and the id behind it."""
    found: list[dict[str, str]] = []
    async with asyncio.timeout(60), http.stream("GET", C + path, **options) as answer:
        assert answer.status_code == 200, await answer.aread()
        message: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                message[name] = value
            elif message:
                found.append(message)
                if message["event"] == last:
                    return found
                message = {}
    raise AssertionError("the stream ended")


async def test_a_live_query(http):
    """What is there has no id, so that a stream that is cut before it is complete begins again."""
    await fill(http)
    where = "collection-1~?live&filter=b%3E10"
    present = await read_live(http, where, "complete")
    assert [one["event"] for one in present] == ["reset", "present", "present", "complete"]
    assert ["id" in one for one in present] == [False, False, False, True]
    assert json.loads(present[1]["data"]) == {"revision": 3, "id": "item1", "body": {**D["item1"], "id": "item1"}}
    place = {"Last-Event-ID": present[-1]["id"]}
    reading = asyncio.create_task(read_live(http, where, "left", headers=place))
    await send(http, "PATCH", C + "collection-1~/item2", {"b": 11})
    await send(http, "DELETE", C + "collection-1~/item1")
    messages = [one for one in await reading if one["event"] != "checkpoint"]
    assert [(one["event"], json.loads(one["data"])["id"]) for one in messages] == [
        ("entered", "item2"),
        ("left", "item1"),
    ]
    assert messages[0]["id"].startswith("4-")
    again = await read_live(http, f"{where}&after={messages[0]['id']}", "left")
    assert messages[1] in again
    assert "body" not in json.loads(messages[1]["data"])


async def test_a_live_query_is_refused_before_it_begins(http):
    await fill(http)
    (*_, complete) = await read_live(http, "collection-1~?live", "complete")
    place = complete["id"]
    other = {"Last-Event-ID": place}
    for path, headers, status, code in (
        ("collection-1~?live&filter=b>", {}, 400, "invalid-filter"),
        ("collection-1~?live&filter=b>unix_time()", {}, 400, "invalid-filter"),
        ("collection-1~?live&filter=b>1", other, 400, "position-of-another-query"),
        ("collection-2~?live", other, 400, "position-of-another-query"),
        ("collection-1~?live&after=3", {}, 400, "invalid-position"),
        ("collection-1~?live", {"Last-Event-ID": f"9{place}"}, 409, "position-beyond-end"),
        ("abc/123?live", {}, 400, "unfit-parameter"),
        ("collection-1~?live&sort=b", {}, 400, "unfit-parameter"),
        ("collection-1~?live=2", {}, 400, "invalid-parameter"),
    ):
        await refused(http, "GET", C + path, status=status, code=code, headers=headers)


async def test_views_and_template_indexes(http):
    views, templates = "/hyper-storage/views/", "/hyper-storage/template-indexes/"
    await send(http, "PUT", views + "abcs~", {"template_uri": "abc/{*}", "filter": "a > 5"}, 201)
    await send(http, "PUT", C + "abc/123", {"a": 10}, 201)

    async def shown() -> bool:
        return (await http.get(C + "abcs~/123")).status_code == 200

    async def gone() -> bool:
        return not await shown()

    await until(shown)
    await refused(http, "PATCH", C + "abcs~/123", {}, status=409, code="view_modification")
    await refused(http, "DELETE", C + "abcs~", status=409, code="view_modification")
    await send(http, "PATCH", C + "abc/123", {"a": 2})
    await until(gone)
    assert (await send(http, "GET", views + "abcs~")).json()["template_uri"] == "abc/{*}"
    await fill(http)
    body = {"template_uri": "x/{*}"}
    await refused(http, "PUT", views + "collection-1~", body, status=409, code="collection_view_conflict")
    await refused(http, "PUT", views + "v~", {"template_uri": "plain"}, status=400, code="invalid-template")
    await send(http, "DELETE", views + "abcs~", status=204)
    await refused(http, "DELETE", views + "abcs~", status=404, code="not_found")
    await refused(http, "GET", C + "abcs~", status=404, code="not_found")
    body = {"template_uri": "shop/{*}~", "sort_by": [{"fieldName": "a"}]}
    await send(http, "PUT", templates + "by-a", body, 201)
    await send(http, "PUT", C + "shop/one~/x", {"a": 1}, 201)

    async def made() -> bool:
        found = await http.get(INDEXES + "shop%2Fone~/by-a")
        return found.status_code == 200 and found.json()["status"] == "ready"

    await until(made)
    assert ids(await send(http, "GET", C + "shop/one~?sort=a")) == ["x"]
    assert (await send(http, "GET", templates + "by-a")).json()["template_uri"] == "shop/{*}~"
    await send(http, "DELETE", templates + "by-a", status=204)
    await refused(http, "GET", templates + "by-a", status=404, code="index-not-found")


async def test_numbers_are_exact(http):
    text = '{"a":1.10,"b":12345678901234567890123,"c":1E+400}'
    await send(http, "PUT", C + "d", status=201, content=text)
    assert (await send(http, "GET", C + "d")).text == text
    assert (await send(http, "GET", C + "d?at=1")).text == text


async def test_the_openapi_document_lists_the_routes(http):
    found = (await send(http, "GET", "/openapi/openapi.json")).json()
    assert {"/hyper-storage/content/{path}", "/hyper-storage/indexes/{path}"} <= set(found["paths"])
    assert set(found["paths"]["/hyper-storage/content/{path}"]) >= {"get", "put", "patch", "delete", "post"}


async def test_a_body_that_never_ends_and_a_slow_one(tmp_path):
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 10_000

    async with served(tmp_path / "data", request_timeout_s=2.0) as http:
        try:
            async with httpx.AsyncClient(base_url=http.base_url, timeout=60) as other:
                answer = await other.put(C + "d", content=endless())
                assert answer.status_code == 413
        except httpx.TransportError:
            pass  # the connection was closed under it, which is as good
        reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
        writer.write(b"PUT /hyper-storage/content/d HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n[1")
        await writer.drain()
        await send(http, "PUT", C + "other", 1, 201)
        assert (await asyncio.wait_for(reader.read(100), 60)).startswith(b"HTTP/1.1 408")
        writer.close()
        # Not over the old connection: the server may be closing it, as it has been idle for so long.
        async with httpx.AsyncClient(base_url=http.base_url, timeout=60) as fresh:
            await refused(fresh, "GET", C + "d", status=404, code="not_found")


async def test_a_large_body_is_decoded_beside_the_event_loop(http, monkeypatch):
    threads = []

    def decode(data):
        threads.append(threading.current_thread())
        return decode_body(data)

    monkeypatch.setattr(everlog.server.documents, "decode_body", decode)
    for text in ("[1]", "[" + "1," * MAX_BYTES_ON_LOOP + "1]"):
        assert (await http.put(C + "d", content=text)).status_code in (200, 201)
        assert (await http.get(C + "d")).text == text
    assert [one is threading.main_thread() for one in threads] == [True, False]
