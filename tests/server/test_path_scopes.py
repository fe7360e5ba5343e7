"""Tokens whose scopes name document paths: what they reach, and that they reach nothing else by any way."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from litestar import get
from litestar.routes import HTTPRoute

from everlog.api import Everlog
from everlog.client import connect
from everlog.config import Config, load_config
from everlog.console.server import make_app
from everlog.errors import AccessDenied, InvalidConfig, InvalidInput
from everlog.server.requests import AnyRequest
from everlog.server.security.guard import needed_scope
from everlog.server.security.tokens import TokenFile, make_token, tokens_path
from tests.cli_support import Cli
from tests.http_support import frames, new_token, send, server
from tests.server.test_security import PUBLIC, bearer
from tests.support import small_config
from tests.waiting import until

C = "/hyper-storage/content/"
H = "/hyper-storage/"


@pytest.fixture
def config(tmp_path) -> Config:
    return small_config(tmp_path / "data")


@pytest.fixture
def tokens(config: Config) -> dict[str, str]:
    scopes = {
        "all": ("read", "write"),
        "shop": ("read:/shop/**", "write:/shop/**"),
        "reader": ("read:/shop/orders~", "read:/public/*"),
        "writer": ("write:/shop/orders~",),
        "element": ("read:/shop/orders~/1", "write:/shop/orders~/1"),
        "mixed": ("read", "write:/shop/**"),
    }
    return {name: new_token(config, *found, name=name) for name, found in scopes.items()}


@pytest.fixture
async def served(config: Config, tokens: dict[str, str]) -> AsyncIterator[tuple[Everlog, httpx.AsyncClient]]:
    async with server(config) as (log, http):
        every = bearer(tokens["all"])
        for path in ("shop/orders~/1", "shop/orders~/2", "shop/settings", "public/a", "secret/plans", "secret/list~/1"):
            await send(http, "PUT", C + path, {"n": 1}, 201, headers=every | {"Hyper-Storage-Wait": "full"})
        yield log, http


async def status(http: httpx.AsyncClient, token: str, method: str, path: str, body: Any = ...) -> int:
    content = None if body is ... else json.dumps(body)
    return (await http.request(method, path, headers=bearer(token), content=content)).status_code


REACHED = [
    # method, path, body, and who gets in; all others get 403
    ("GET", C + "shop/orders~", ..., "shop reader mixed"),
    ("GET", C + "shop/orders~?filter=n>0&sort=n&explain=1", ..., "shop reader mixed"),
    ("GET", C + "shop/orders~?history", ..., "shop reader mixed"),
    ("GET", C + "shop/orders~?at=1", ..., "shop reader mixed"),
    ("GET", C + "shop/orders~/1", ..., "shop reader element mixed"),
    ("GET", C + "shop/orders~/1?history", ..., "shop reader element mixed"),
    ("GET", C + "shop/orders~/1?diff=1,1", ..., "shop reader element mixed"),
    ("GET", C + "shop/orders~/2", ..., "shop reader mixed"),
    ("HEAD", C + "shop/orders~/2", ..., "shop reader mixed"),
    ("GET", C + "shop/settings", ..., "shop mixed"),
    ("GET", C + "public/a", ..., "reader mixed"),
    ("GET", C + "public/not-there", ..., "reader mixed"),
    ("GET", C + "secret/plans", ..., "mixed"),
    ("GET", C + "secret/not-there", ..., "mixed"),
    ("GET", C + "secret/plans?feed", ..., ""),
    ("GET", C + "shop%2Fsettings", ..., "shop mixed"),
    ("GET", C + "secret%2Fplans", ..., "mixed"),
    ("PUT", C + "shop/orders~/1", {"n": 2}, "shop writer element mixed"),
    ("PATCH", C + "shop/orders~/2", {"n": 2}, "shop writer mixed"),
    ("POST", C + "shop/orders~", {"n": 3}, "shop writer mixed"),
    ("POST", H + "batches/shop/orders~", [{"method": "post", "body": {}}], "shop writer mixed"),
    ("POST", H + "batches/secret/list~", [{"method": "post", "body": {}}], ""),
    ("POST", H + "batches/secret/plans", [{"method": "delete"}], ""),
    ("GET", H + "views", ..., "mixed"),
    ("GET", H + "views/secret%2Fview~/unshown", ..., "mixed"),
    ("POST", H + "views/secret%2Fview~/unshown", ..., ""),
    ("GET", C + "secret/list~?live", ..., ""),
    ("PUT", C + "secret/plans", 1, ""),
    ("PATCH", C + "secret/plans", {"n": 1}, ""),
    ("DELETE", C + "secret/plans", ..., ""),
    ("DELETE", C + "secret/list~", ..., ""),
    ("POST", C + "secret/list~", {"n": 1}, ""),
    ("POST", H + "indexes/shop%2Forders~", {"sortBy": [{"fieldName": "n"}]}, "shop writer mixed"),
    ("GET", H + "indexes/shop%2Forders~", ..., "shop reader mixed"),
    ("POST", H + "indexes/secret%2Flist~", {"sortBy": [{"fieldName": "n"}]}, ""),
    ("GET", H + "indexes/secret%2Flist~", ..., "mixed"),
    ("DELETE", H + "indexes/secret%2Flist~/x", ..., ""),
    ("GET", H + "transactions?path=shop/orders~&incomplete=1", ..., "shop reader mixed"),
    ("GET", H + "transactions?path=shop/orders~/1&incomplete=1", ..., "shop reader mixed"),
    ("GET", H + "transactions?path=secret/plans&incomplete=1", ..., "mixed"),
    ("GET", H + "views/shop%2Fview~", ..., "shop mixed"),
    ("DELETE", H + "views/secret%2Fview~", ..., ""),
]


async def test_what_each_token_reaches(served, tokens):
    _, http = served
    for method, path, body, names in REACHED:
        for name in ("shop", "reader", "writer", "element", "mixed"):
            if name == "mixed" and path.endswith(("?feed", "?live")):
                continue  # it may follow them, for ever
            found = await status(http, tokens[name], method, path, body)
            if name in names.split():
                assert found not in (401, 403), (name, method, path, found)
            else:
                assert found == 403, (name, method, path, found)


async def test_a_refusal_says_the_same_whether_there_is_a_document_or_not(served, tokens):
    _, http = served
    answers = []
    for path in ("secret/plans", "secret/nowhere"):
        for query in ("", "?history", "?at=1", "?feed", "?diff=1,2"):
            answer = await http.get(C + path + query, headers=bearer(tokens["reader"]))
            assert answer.status_code == 403
            answers.append(answer.json()["description"].replace(path, "…"))
            assert not {"revision", "etag", "hyper-storage-count"} & set(answer.headers)
    assert len(set(answers)) == 1
    assert "its scopes are read:/shop/orders~, read:/public/*" in answers[0]


async def test_feeds_of_what_may_be_read(served, tokens):
    _, http = served
    found = await frames(http, C + "shop/orders~?feed&after=0", 2, headers=bearer(tokens["reader"]))
    assert [json.loads(one["data"])["path"] for one in found] == ["shop/orders~/1", "shop/orders~/2"]
    assert await status(http, tokens["reader"], "GET", C + "secret/list~?feed&after=0") == 403


async def test_the_stream_of_all_changes_gives_what_may_be_read(served, tokens):
    """Whatever is asked for; the deletion of a collection comes to those who may read the collection."""
    _, http = served
    await send(http, "DELETE", C + "secret/list~", headers=bearer(tokens["all"]) | {"Hyper-Storage-Wait": "full"})
    await send(http, "DELETE", C + "shop/orders~", headers=bearer(tokens["all"]) | {"Hyper-Storage-Wait": "full"})
    for name, expected in (
        ("all", 8),
        ("shop", ["shop/orders~", "shop/orders~/1", "shop/orders~/2", "shop/settings"]),
        ("reader", ["public/a", "shop/orders~", "shop/orders~/1", "shop/orders~/2"]),
        ("element", ["shop/orders~/1"]),
    ):
        count = expected if isinstance(expected, int) else len(expected)
        seen = await frames(http, H + "feed?after=0", count + 1, headers=bearer(tokens[name]))
        found = sorted(json.loads(one["data"])["path"] for one in seen if one["event"] != "checkpoint")
        assert expected in (len(found), found), name
    (found,) = await frames(http, H + "feed?after=0&prefix=secret", 1, headers=bearer(tokens["shop"]))
    assert found["event"] == "checkpoint"
    assert await status(http, tokens["writer"], "GET", H + "feed?after=0") == 403


async def test_a_transaction_belongs_to_its_document(served, tokens):
    log, http = served
    own = (await log.documents.put("shop/settings", 2, wait=True)).transaction_id
    other = (await log.documents.put("secret/plans", 2, wait=True)).transaction_id
    assert await status(http, tokens["shop"], "GET", f"{H}transactions/{own}") == 200
    assert await status(http, tokens["shop"], "GET", f"{H}transactions/{other}") == 403
    assert await status(http, tokens["shop"], "GET", f"{H}transactions/{other.replace('plans', 'nowhere')}") == 403
    assert await status(http, tokens["shop"], "GET", f"{H}transactions/shop") == 400


async def test_a_view_needs_read_on_all_that_it_shows(served, tokens):
    """Else it would be a window into documents that its maker, or those who read it, may not see."""
    log, http = served
    path = H + "views/shop%2Fview~"
    for name, template in (("shop", "secret/{*}"), ("shop", "{*}/plans"), ("shop", "{*}/{*}"), ("writer", "shop/{*}")):
        assert await status(http, tokens[name], "PUT", path, {"template_uri": template}) == 403, (name, template)
    assert await status(http, tokens["shop"], "PUT", H + "views/secret%2Fview~", {"template_uri": "shop/{*}"}) == 403
    blind = new_token(log.config, "write", name="blind")
    assert await status(http, blind, "PUT", path, {"template_uri": "secret/{*}"}) == 403
    assert await status(http, tokens["shop"], "PUT", path, {"template_uri": "shop/orders~/{*}"}) == 201
    assert await status(http, tokens["mixed"], "PUT", H + "views/shop%2Fother~", {"template_uri": "secret/{*}"}) == 201
    assert await status(http, tokens["shop"], "DELETE", path) == 204


async def test_template_indexes_of_other_documents_are_as_if_they_were_not_there(served, tokens):
    _, http = served
    body = {"template_uri": "shop/{*}~", "sort_by": [{"fieldName": "n"}]}
    secret = body | {"template_uri": "secret/{*}~"}
    path = H + "template-indexes/"
    assert await status(http, tokens["shop"], "PUT", path + "own", body) == 201
    assert await status(http, tokens["shop"], "PUT", path + "other", secret) == 403
    assert await status(http, tokens["all"], "PUT", path + "other", secret) == 201
    assert await status(http, tokens["shop"], "GET", path + "own") == 200
    for method in ("GET", "DELETE"):
        answers = [
            await http.request(method, path + name, headers=bearer(tokens["shop"])) for name in ("other", "nowhere")
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert len({re.sub("other|nowhere", "…", answer.json()["description"]) for answer in answers}) == 1
    assert await status(http, tokens["shop"], "DELETE", path + "own") == 204


# What may be reached with paths alone, and for what reason. A new route that is not here is closed.
DECLARED = {
    "get_content": "path",
    "put_content": "path",
    "patch_content": "path",
    "delete_content": "path",
    "post_content": "path",
    "post_batch": "path",
    "post_bulk": "body",
    "retry_view": "path",
    "post_index": "path",
    "get_index": "path",
    "delete_index": "path",
    "list_transactions": "path",
    "get_transaction": "path",
    "put_view": "path",
    "get_view": "path",
    "delete_view": "path",
    "put_template_index": "body",
    "get_template_index": "body",
    "delete_template_index": "body",
    "get_changes": "each change",
    "get_session": "caller",
    "show": "page of documents",
}


def all_routes(log: Everlog) -> list[tuple[str, str, Any]]:
    return [
        (method, re.sub(r"\{[^}]*\}", "1", route.path_format), handler)
        for route in make_app(log).routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        for method in sorted(handler.http_methods)
    ]


async def test_every_route_is_declared_or_closed(config, served, tokens):
    """All of them, with every method, by tokens that may read and write some documents."""
    log, http = served
    everywhere = new_token(config, "read:/**", "write:/**", name="everywhere")
    nowhere = new_token(config, "read:/nowhere", "write:/nowhere", name="nowhere")
    routes = all_routes(log)
    assert len(routes) > 100
    declared = {handler.handler_name for _, _, handler in routes if "paths" in handler.opt}
    assert declared == set(DECLARED)
    for method, path, handler in routes:
        name = handler.handler_name
        if needed_scope(handler, method) == "public":
            assert name in PUBLIC
            continue
        if "paths" not in handler.opt:
            for token in (everywhere, nowhere):
                found = await status(http, token, method, path)
                assert found == (303 if path in ("/", "/console") and method in ("GET", "HEAD") else 403), (
                    method,
                    path,
                )
        elif DECLARED[name] == "path" and "{" not in path:
            assert await status(http, nowhere, method, path) in (400, 403), (method, path)


async def test_a_new_route_is_closed_until_it_says_what_it_is_about(config, tokens):
    @get("/later")
    async def later(request: AnyRequest) -> str:
        return "open"

    async with connect(config) as log:
        transport = httpx.ASGITransport(make_app(log, routes=[later]))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert await status(http, tokens["all"], "GET", "/later") == 200
            assert await status(http, tokens["shop"], "GET", "/later") == 403


async def test_no_way_round(served, tokens):
    """The same documents are journals, tags and console pages, too; and paths can be written in many ways."""
    _, http = served
    ways = [
        "/journals/documents/secret%2Fplans",
        "/journals/documents/shop%2Fsettings",
        "/journals/documents",
        "/journals",
        "/tags/secret%2Flist~",
        "/tags/shop%2Forders~",
        "/tags",
        "/status",
        "/metrics",
        "/operations",
        "/openapi",
        "/openapi/openapi.json",
        "/queues",
        "/projections",
        H + "nodes",
        C + "shop/../secret/plans",
        C + "shop/%2e%2e/secret/plans",
        C + "shop/%2E%2E%2Fsecret%2Fplans",
        C + "shop/orders~/../../secret/plans",
        C + "./secret/plans",
        C + "/secret/plans",
        C + "secret//plans",
        C + "Shop/settings",
        "/hyper-storage/%63ontent/secret/plans",
        "/console/documents.json?path=secret/plans",
        "/console/documents.json?path=/secret/plans/",
        "/console/documents.json?path=secret%2Fplans",
        "/console/journal.json?topic=documents&id=secret%2Fplans",
        "/console/search.json?q=secret/plans",
    ]
    host, port = http.base_url.host, http.base_url.port
    for way in ways:
        # By hand: a client would take the dots out of an address.
        reader, writer = await asyncio.open_connection(host, port)
        head = f"GET {way} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tokens['shop']}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        found = int(answer.split(b" ", 2)[1])
        assert found in (400, 403, 404), (way, answer)
        assert b'"n"' not in answer, way


async def test_the_console_shows_documents_that_may_be_read_and_nothing_else(served, tokens):
    log, http = served
    await log.documents.put("hidden-name", 1, wait=True)
    await log.journal("a-hidden-topic").mark("k")
    for name, seen, hidden in (
        ("shop", ["shop/orders~", "shop/settings"], ["public/a", "secret/plans", "secret/list~"]),
        ("reader", ["public/a", "shop/orders~"], ["shop/settings", "secret/plans", "secret/list~"]),
        ("element", [], ["shop/orders~", "shop/settings", "public/a", "secret/plans"]),
    ):
        headers = bearer(tokens[name])
        listed = (await send(http, "GET", "/console/documents.json", headers=headers)).json()
        assert [one["path"] for one in listed["paths"]] == seen
        assert listed["more"] is True, "whether there are others is not said"
        page = await send(http, "GET", "/console/documents?done=1", headers=headers | {"Accept": "text/html"})
        for text in [
            *hidden,
            "hidden-name",
            "hidden-topic",
            str(log.config.data),
            "/console/queues",
            "/console/operations",
        ]:
            assert text not in page.text, (name, text)
        for path in ("secret/plans", "secret/nowhere", "hidden-name"):
            for form in ("", ".json", ".live"):
                answer = await http.get(f"/console/documents{form}?path={path}", headers=headers)
                assert answer.status_code == 403, (name, path, form)
        for other in ("journal", "tags", "projections", "queues", "pipeline", "operations", "search?q=shop"):
            assert (await http.get(f"/console/{other}", headers=headers)).status_code == 403, other
        assert await status(http, tokens[name], "POST", "/console/act") == 403
        home = await http.get("/", headers=headers | {"Accept": "text/html"})
        assert (home.status_code, home.headers["location"]) == (303, "/console/documents")
    page = await send(http, "GET", "/console/documents.json?path=shop/orders~", headers=bearer(tokens["reader"]))
    assert [one["id"] for one in page.json()["elements"]] == ["1", "2"]


async def test_the_console_shows_schemas_of_what_may_be_read(served, tokens):
    """What a check has counted and found is about all documents of its template."""
    _, http = served
    every = bearer(tokens["all"])
    for name, template in (("own", "shop/{*}"), ("other", "secret/{*}"), ("both", "{*}/{*}")):
        body = {"template_uri": template, "schema": {"type": "object"}}
        answer = await http.put(f"{H}schemas/{name}", json=body, headers=every)
        assert answer.status_code in (200, 201), answer.text
    listed = (await send(http, "GET", "/console/documents.json", headers=bearer(tokens["shop"]))).json()
    assert [one["id"] for one in listed["schemas"]] == ["own"]
    path = "/console/documents.json?path=shop/settings"
    page = (await send(http, "GET", path, headers=bearer(tokens["shop"]))).json()
    assert {one["id"] for one in page["schemas"]} == {"own", "both"}
    assert next(one for one in page["schemas"] if one["id"] == "both")["check"] is None
    for name in ("own", "other"):
        assert await status(http, tokens["shop"], "GET", f"{H}schemas/{name}") == 403


async def test_a_browser_with_such_a_token(served, tokens):
    """It logs in and out, and is told what it may do; its changes are its own."""
    log, http = served
    session = (await send(http, "POST", "/login", {"token": tokens["shop"]})).json()
    assert session["scopes"] == ["read:/shop/**", "write:/shop/**"]
    assert (await send(http, "GET", "/session")).json() == session
    await send(http, "GET", C + "shop/settings")
    await send(http, "GET", C + "secret/plans", status=403)
    await send(http, "PUT", C + "shop/settings", 7, headers={"X-CSRF-Token": session["csrf_token"]})
    await send(http, "PUT", C + "secret/plans", 7, 403, headers={"X-CSRF-Token": session["csrf_token"]})
    assert [event.by async for event in log.documents.history("shop/settings")][-1] == "shop"
    assert (await http.post("/logout")).status_code == 303


async def test_from_python(served, tokens):
    _, http = served
    async with connect(str(http.base_url), token=tokens["shop"]) as remote:
        docs = remote.documents
        assert (await docs.get("shop/settings")).body == {"n": 1}
        for call in (docs.get("secret/plans"), docs.put("secret/plans", 1), docs.list("secret/list~"), remote.topics()):
            with pytest.raises(AccessDenied):
                await call


async def test_a_change_of_a_token_counts_from_the_next_request(served, config, tokens):
    _, http = served
    file = TokenFile(tokens_path(config))
    text, kept = make_token("later", ["read:/shop/**"], 0)
    file.add(kept)
    assert await status(http, text, "GET", C + "shop/settings") == 200
    file.revoke("later")
    assert await status(http, text, "GET", C + "shop/settings") == 401
    file.add(msgspec.structs.replace(kept, scopes=("read:/public/**",)))
    assert await status(http, text, "GET", C + "shop/settings") == 403


async def test_refusals_of_paths_are_noted(served, tokens):
    log, http = served
    assert await status(http, tokens["shop"], "PUT", C + "secret/plans", 1) == 403

    async def noted() -> bool:
        found = [event.payload async for event in log.journal("everlog.operations").read("console")]
        return any(one["by"] == "shop" and one["target"]["path"] == C + "secret/plans" for one in found)

    await until(noted)


BAD = ["", "reads", "read:", "read:shop", "write:/a/**/b", "admin:/a", "read:/a*", "write:/../a", "read:/a%20b"]


@pytest.mark.parametrize("scope", BAD)
def test_scopes_that_are_none_are_errors_where_they_are_written(tmp_path, scope):
    """On the command line, in a configuration, in the file of tokens."""
    with pytest.raises(InvalidInput):
        make_token("x", [scope], 0)
    cli = Cli(tmp_path / "data")
    cli.error("token", "new", "ci", "--scope", scope, code=2)
    _, kept = make_token("x", ["read"], 0)
    entry = f'[[server.tokens]]\nid = "{kept.id}"\nhash = "{kept.hash}"\nscopes = [{json.dumps(scope)}]\n'
    (tmp_path / "everlog.toml").write_text(entry)
    with pytest.raises(InvalidConfig, match=r"scope|pattern"):
        load_config(tmp_path / "everlog.toml")
    file = TokenFile(tmp_path / "tokens.json")
    file.add(kept)
    file.path.write_text(file.path.read_text().replace('"read"', json.dumps(scope)))
    with pytest.raises(InvalidConfig, match="is not a file of tokens"):
        file.read()


def test_on_the_command_line(tmp_path):
    cli = Cli(tmp_path / "data")
    made = cli.json("token", "new", "shop", "--scope", "read:/shop/**", "--scope", "write:/shop/orders~")
    assert made["scopes"] == ["read:/shop/**", "write:/shop/orders~"]
    assert cli.lines("token", "list")[0]["scopes"] == made["scopes"]
    assert "read:/shop/** write:/shop/orders~" in cli.out("token", "list")
    assert 'scopes = ["write:/a"]' in cli.out("token", "new", "x", "--scope", "write:/a", "--toml")


async def test_each_line_of_many_is_checked_by_its_own_path(served: Any, tokens: dict[str, str]) -> None:
    """One that may not be written is 403, also if there is nothing there; the others are done, in the token's name."""
    log, http = served
    lines = [
        {"method": "put", "path": "shop/orders~/7", "body": {}},
        {"method": "put", "path": "secret/plans", "body": {"n": 2}},
        {"method": "delete", "path": "secret/none"},
        {"method": "post", "path": "shop/orders~", "body": {}},
        {"method": "put", "path": "shop/settings", "body": 1},
    ]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    for token, wanted in (
        ("shop", [201, 403, 403, 201, 200]),
        ("writer", [200, 403, 403, 201, 403]),
        ("reader", None),
        ("all", [200, 200, 404, 201, 200]),
    ):
        answer = await http.post(H + "_bulk", content=body, headers=bearer(tokens[token]))
        if wanted is None:
            assert answer.status_code == 403
            continue
        found = [json.loads(line) for line in answer.text.splitlines()]
        assert [one["status"] for one in found] == wanted, token
        assert {one["error"]["code"] for one in found if one["status"] == 403} <= {"forbidden"}
    events = [event async for event in log.documents.history("shop/orders~", after=2)]
    assert [event.by for event in events] == ["shop", "shop", "writer", "writer", "all", "all"]
    assert (await log.documents.get("secret/plans")).body == {"n": 2}
    async with connect(str(http.base_url), token=tokens["writer"]) as remote:
        results = [one async for one in remote.documents.bulk(lines)]
    assert [type(one.error) for one in results if one.error is not None] == [AccessDenied] * 3
