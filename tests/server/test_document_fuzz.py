"""Random requests, sound and broken: every answer has a documented status, and no request fails the server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from everlog.config import DocumentsConfig
from tests.http_support import server_in_thread
from tests.support import examples, small_config


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[httpx.Client]:
    """A server in a thread of its own, for all examples."""
    documents = DocumentsConfig(max_body_bytes=10_000, request_timeout_s=5.0, max_history=100)
    config = msgspec.structs.replace(small_config(tmp_path_factory.mktemp("fuzz")), documents=documents)
    with server_in_thread(config) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


words = st.sampled_from(
    ["a", "b~", "c~", "x", "1", "~", "", "%2F", "%", "%41", "%00", "a%20b", "ü", "a" * 300, "..", "."]
)
paths = st.lists(words, min_size=1, max_size=4).map("/".join)
routes = st.sampled_from(
    ["content", "content", "content", "indexes", "transactions", "views", "template-indexes", "batches", "schemas"]
)
methods = st.sampled_from(["GET", "GET", "HEAD", "PUT", "PATCH", "DELETE", "POST", "OPTIONS"])
filters = st.sampled_from(
    ["a > 1", "a", "b >", "a like '('", "((((", "a = 'x' and b < 3", "-a", "''", "unix_time() > a"]
)
names = ["filter", "sort", "size", "skipMax", "after", "explain", "history", "at", "diff", "path", "incomplete"]
names += ["count", "fields", "before", "position", "check"]
odd = st.sampled_from(["", "1", "-1", "a,-b", "1,2", "x" * 100, "99999999999999999999"])
parameters = st.dictionaries(st.sampled_from(names), st.one_of(filters, odd, st.text(max_size=5)), max_size=3)
fields = st.sampled_from(
    [
        "a",
        "b",
        "id",
        "sortBy",
        "fieldName",
        "filterBy",
        "template_uri",
        "indexId",
        "method",
        "path",
        "body",
        "ttl",
        "schema",
    ]
)
json_bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=3),
    max_leaves=6,
)
operations = st.fixed_dictionaries(
    {"method": st.sampled_from(["put", "patch", "post", "delete", "fetch"])},
    optional={
        "id": st.sampled_from(["a", "", "x" * 300, "~", 1]),
        "path": st.sampled_from(["a", "b~/1", "b~", "/x", "", "a/../b", 7]),
        "body": json_bodies,
        "ifMatch": st.sampled_from(["*", '"1"', "", 1]),
        "ttl": st.sampled_from([1, 0, -1, 10**12, 1.5, "1"]),
        "idempotencyKey": st.sampled_from(["k", "", "x" * 300]),
    },
)
batches = st.lists(operations, max_size=4).map(msgspec.json.encode)
schemas = st.fixed_dictionaries(
    {"template_uri": st.sampled_from(["zz~", "zz/{*}", "", "{"])},
    optional={"schema": st.sampled_from([{}, True, {"type": "object"}, {"type": 7}, {"$ref": "http://x"}, []])},
).map(msgspec.json.encode)
bodies = st.one_of(
    batches, schemas, st.none(), json_bodies.map(msgspec.json.encode), st.binary(max_size=50), st.just(b"x" * 20_000)
)
headers = st.dictionaries(
    st.sampled_from(
        ["If-Match", "If-None-Match", "Hyperbus-Message-Id", "Hyper-Storage-Wait", "Last-Event-ID", "Hyper-Storage-TTL"]
    ),
    st.sampled_from(["*", '"1"', "W/\"2\"", "m1", "full", "x" * 300, "", "1"]),
    max_size=2,
)  # fmt: skip


def template_of(route: str, asked: httpx.URL) -> str:
    """What the document calls this address: without a name, it is that of a list."""
    start = f"/hyper-storage/{route}"
    path = asked.raw_path.decode().partition("?")[0].removeprefix(start)
    if not path.strip("/"):
        return start
    if route == "schemas":
        return f"{start}/{{schema_id}}" + ("/check" if path.endswith("/check") else "")
    return f"{start}/{{path}}"


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(methods, routes, paths, parameters, bodies, headers)
@example("PUT", "views", "", {}, None, {})
def test_every_answer_is_documented(server, method, route, path, query, body, sent):
    if not hasattr(server, "documented"):
        server.documented = server.get("/openapi/openapi.json").json()["paths"]
    url = httpx.URL(f"/hyper-storage/{route}/{path}", params=query)
    answer = server.request(method, url, content=body, headers=sent)
    assert answer.status_code < 500 or answer.json()["code"].startswith("query-"), (answer.status_code, answer.text)
    if answer.status_code >= 400 and method != "HEAD":
        assert set(answer.json()) >= {"code", "description", "errorId"}
    if not answer.url.path.startswith(f"/hyper-storage/{route}"):
        return  # the client took dots in the path for folders, and asked for something else
    operation = server.documented.get(template_of(route, answer.url), {}).get(method.lower())
    if operation is not None and answer.status_code != 404:
        assert str(answer.status_code) in operation["responses"], (answer.status_code, answer.text)


@pytest.mark.parametrize(("route", "name"), [("views", "path"), ("schemas", "schema_id")])
def test_an_address_without_a_name_is_that_of_the_list(server, route, name):
    """`PUT …/views/` is a PUT of the list, which takes none; and the document says that no name is empty."""
    documented = server.get("/openapi/openapi.json").json()["paths"]
    for method in ("put", "delete"):
        answer = server.request(method, f"/hyper-storage/{route}/", content=b"{}")
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
        assert method not in documented[f"/hyper-storage/{route}"]
        operation = documented[f"/hyper-storage/{route}/{{{name}}}"][method]
        assert [one["schema"]["minLength"] for one in operation["parameters"] if one["in"] == "path"] == [1]


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(operations.map(msgspec.json.encode) | st.binary(max_size=30) | st.just(b"x" * 40_000), max_size=8))
def test_every_line_of_many_has_an_answer(server, lines):
    """One for each that is not empty, whatever it is, with a status that is not the server's fault."""
    answer = server.post("/hyper-storage/_bulk", content=b"\n".join(lines))
    assert answer.status_code == 200, answer.text
    found = [msgspec.json.decode(line) for line in answer.content.splitlines()]
    split = [number for number, line in enumerate(b"\n".join(lines).split(b"\n"), 1) if line.strip()]
    assert [one["line"] for one in found] == split
    for one in found:
        assert one["status"] < 500, one
        assert ("error" in one) == (one["status"] >= 400), one


texts = st.text(alphabet="ab()[]{}<>=!+-*/%.,'\"`$ s01orndhaslik\\", max_size=80)
atoms = st.sampled_from(
    ["a", "b", "x.y", "`odd name`", "'aaaaaaaaaaaaaaaaaaa!'", "1E400", "-1E-400", "9" * 300, "0xFF", "null", "[1,'a']",
     "unix_time()", "s'${a}'", "length(a)", "'(a+)+$'", "'(a|a)*b'", "'(.*)*(.*)*x'", "'a{1,200}{1,200}'", "'\\\\1'"]
)  # fmt: skip
operators = st.sampled_from(
    ["or", "xor", "and", "=", "!=", "<", "<=", ">", ">=", "has", "has not", "like", "not like", "+", "-", "*", "/", "%"]
)
calls = ["split", "index_of", "substr", "case", "upper", "apply", "empty", "parse_unix_time", "format_unix_time"]


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.builds("({} {} {})".format, inner, operators, inner)
        | st.builds("{}({}, {})".format, st.sampled_from(calls), inner, inner)
        | st.builds("!{}".format, inner)
        | st.builds(lambda text, times: " + ".join([text] * times), inner, st.integers(2, 200))
        | st.builds(lambda text, times: "(" * times + text + ")" * times, inner, st.integers(2, 500))
    )


expressions = st.recursive(atoms, _compound, max_leaves=12)


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts | expressions.map(lambda text: text[:6000]))
def test_any_filter_is_answered(server, text):
    """A result or a 400, whatever the filter says, and soon: server and client together take less than a second."""
    if not hasattr(server, "filled"):
        body = {"a": "a" * 2000, "b": [1, 2] * 50, "x": {"y": 1.5}}
        assert server.put("/hyper-storage/content/fuzz~/1", content=msgspec.json.encode(body)).status_code == 201
        server.filled = True
    before = time.process_time()
    answer = server.get("/hyper-storage/content/fuzz~", params={"filter": text})
    assert time.process_time() - before < 1.0, text
    assert answer.status_code in (200, 400, 414, 431), answer.text
