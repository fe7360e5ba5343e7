"""Who may do what, and what nobody may: tokens, scopes, sessions, forged requests, tricks with paths and time."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from litestar import post
from litestar.routes import HTTPRoute

from everlog.client import connect
from everlog.config import Config, DocumentsConfig, JournalConfig, ServerConfig
from everlog.console.server import make_app, serving
from everlog.core.values import Position
from everlog.documents.router import HashRing
from everlog.errors import AccessDenied, InvalidConfig
from everlog.queues.queue import Receipt
from everlog.server.requests import AnyRequest
from everlog.server.security.guard import needed_scope
from everlog.server.security.tokens import TokenFile, tokens_path
from tests.http_support import frames, new_token, send, server
from tests.support import small_config
from tests.waiting import until

J = "/journals/orders/o-1"
EVENT = {"events": [{"payload": 1}]}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def config(tmp_path) -> Config:
    settings = ServerConfig(header_timeout_s=60, body_timeout_s=60, send_timeout_s=60, checkpoint_interval_s=0.1)
    found = small_config(tmp_path / "data")
    return msgspec.structs.replace(found, server=settings, journal=JournalConfig(max_append_bytes=10_000))


def hasty(config: Config, seconds: float) -> Config:
    """With so little patience that a test can wait for its end: anything else that is slow is cut, too."""
    settings = ServerConfig(header_timeout_s=seconds, body_timeout_s=seconds, send_timeout_s=seconds)
    return msgspec.structs.replace(config, server=settings)


@pytest.fixture
def tokens(config: Config) -> dict[str, str]:
    return {name: new_token(config, name) for name in ("read", "write", "admin")}


@pytest.fixture
async def http(config: Config, tokens: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A server that needs tokens."""
    async with server(config) as (_, client):
        yield client


@pytest.fixture
async def open_http(config: Config) -> AsyncIterator[httpx.AsyncClient]:
    """A server without tokens, which only this machine can reach."""
    async with server(config) as (_, client):
        yield client


# What a request needs: the smallest scope that lets it in.
NEEDS = [
    ("GET", "/journals", "read"),
    ("GET", J, "read"),
    ("POST", J, "write"),
    ("DELETE", J, "write"),
    ("POST", J + "/purge", "write"),
    ("PUT", J + "/snapshots/1", "write"),
    ("GET", "/tags", "read"),
    ("GET", "/tags/eu", "read"),
    ("GET", "/status", "read"),
    ("GET", "/metrics", "read"),
    ("GET", "/projections", "read"),
    ("POST", "/projections/a/b/pause", "admin"),
    ("POST", "/projections/a/b/skip", "admin"),
    ("PUT", "/projections/a/b/offset", "admin"),
    ("GET", "/openapi", "read"),
    ("GET", "/openapi/openapi.json", "read"),
    ("GET", "/session", "read"),
    ("GET", "/operations", "read"),
    ("PUT", "/hyper-storage/content/a", "write"),
    ("GET", "/hyper-storage/content/a", "read"),
    ("POST", "/hyper-storage/indexes/a~", "write"),
    ("GET", "/hyper-storage/transactions", "read"),
    ("GET", "/queues", "read"),
    ("POST", "/queues/pages/jobs", "write"),
    ("POST", "/queues/pages/claims", "write"),
    ("POST", "/queues/pages/operations", "write"),
    ("POST", "/queues/pages/pause", "admin"),
    ("POST", "/queues/pages/resume", "admin"),
    ("DELETE", "/queues/pages", "admin"),
]
ALLOWS = {"read": {"read"}, "write": {"write"}, "admin": {"read", "write", "admin"}}


async def test_every_scope_on_every_kind_of_route(http, tokens):
    for method, path, needed in NEEDS:
        answer = await http.request(method, path, json=EVENT)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), path
        assert answer.headers["www-authenticate"].startswith("Bearer")
        for name, token in tokens.items():
            status = (await http.request(method, path, json=EVENT, headers=bearer(token))).status_code
            if needed in ALLOWS[name]:
                assert status not in (401, 403), (method, path, name)
            else:
                assert status == 403, (method, path, name)


async def test_public_routes_and_unknown_ones(http):
    assert (await http.get("/health/live")).status_code == 200
    assert (await http.get("/health/ready")).status_code == 200
    assert (await http.get("/login")).status_code == 200
    assert (await http.get("/no/such/route")).status_code == 404


# Style and script of the console are the same for everybody.
PUBLIC = {"get_live", "get_ready", "get_login", "post_login", "post_logout", "get_icon", "get_static", "get_theme"}
ADMIN = {
    "pause_projection",
    "resume_projection",
    "skip_envelope",
    "put_offset",
    "clear_offset",
    "replay_dead_letters",
    "forget_dead_letters",
    "command_view",
    "pause_queue",
    "purge_queue",
    "delete_queue",
    "resume_queue",
    "pause_schedule",
    "resume_schedule",
    "remove_schedule",
    "act",
}


async def test_every_route_but_the_public_ones_needs_a_token(config, http, tokens):
    """Every one of them, by a request without a token and by one with too little: a new route is closed."""
    async with connect(config) as log:
        routes = [
            (method, re.sub(r"\{[^}]*\}", "1", route.path_format), handler)
            for route in make_app(log).routes
            if isinstance(route, HTTPRoute)
            for handler in route.route_handlers
            for method in sorted(handler.http_methods)
            if method != "OPTIONS"
        ]
    assert len(routes) > 90
    needed = {handler.handler_name: needed_scope(handler, method) for method, _, handler in routes}
    assert {name for name, scope in needed.items() if scope == "public"} == PUBLIC
    assert {name for name, scope in needed.items() if scope == "admin"} == ADMIN
    for method, path, handler in routes:
        without = (await http.request(method, path)).status_code
        if handler.handler_name in PUBLIC:
            assert without not in (401, 403), (method, path)
            continue
        assert without == 401, (method, path)
        other = "read" if method not in ("GET", "HEAD") else "write"
        assert (await http.request(method, path, headers=bearer(tokens[other]))).status_code == 403, (method, path)


async def test_what_makes_a_queue_more_than_a_put_does_needs_an_administrator(config, http, tokens):
    """Its options may name a file of the server; and pausing is an operator's act through every route."""
    write, admin = bearer(tokens["write"]), bearer(tokens["admin"])
    await send(http, "PUT", "/queues/pages", {}, headers=write)  # as a first put of the Python client does
    await send(http, "PUT", "/queues/pages", {}, headers=write)
    file = {"options": {"bucket": "none", "file": str(Path(config.data) / "elsewhere.db")}}
    for name, body in (("pages", {"options": {"max_wait": "1m"}}), ("other", file), ("pages", {"description": "x"})):
        await send(http, "PUT", f"/queues/{name}", body, 403, headers=write)
    assert not (Path(config.data) / "elsewhere.db").exists()
    await send(http, "PUT", "/queues/pages", {"options": {"max_wait": "1m"}}, headers=admin)
    await send(http, "PUT", "/queues/pages", {}, 403, headers=write)
    address = str(http.base_url)
    async with connect(address, token=new_token(config, "read", "write")) as remote:
        queue = remote.queue("pages")
        both = await asyncio.gather(queue.pause(), queue.put("k", 1), return_exceptions=True)
        assert isinstance(both[0], AccessDenied)
        assert isinstance(both[1], Receipt), "an operation of another does not suffer from it"
    async with connect(address, token=tokens["admin"]) as remote:
        assert await remote.queue("pages").pause()
    found = (await send(http, "GET", "/operations", headers=admin)).json()["events"]
    begun = [one["payload"]["action"] for one in found[::-1] if "outcome" not in one["payload"]]
    assert begun == ["declare_queue", "run_operations"]
    assert json.loads(found[0]["payload"]["detail"]) == {"status": 200, "paused": True}


@pytest.mark.parametrize(
    "header",
    ["Bearer", "Bearer x", "Bearer evl__", "Bearer evl_000000000000_x", "Basic YTpi", "evl_1_2", "Bearer ü"],
)
async def test_wrong_tokens(http, tokens, header):
    for value in (header, header.replace("x", tokens["read"][4:])):
        answer = await http.get("/journals", headers=[(b"Authorization", value.encode("latin-1"))])
        assert answer.status_code == 401
    right = tokens["read"]
    for wrong in (right[:-1], right + "x", right.swapcase(), right.replace("_", "-", 1)):
        assert (await http.get("/journals", headers=bearer(wrong))).status_code == 401


async def test_a_token_in_an_address_is_refused(http, tokens):
    """Wherever it stands in the query, also if it is right and comes as a header, too; it is not repeated."""
    for query in (f"token={tokens['read']}", f"access_token={tokens['read']}", f"x={tokens['read']}", "TOKEN="):
        for path in ("/journals", "/tags/eu", "/health/live", "/login"):
            for headers in ({}, bearer(tokens["read"])):
                answer = await http.get(f"{path}?{query}", headers=headers)
                assert answer.status_code == 400
                assert tokens["read"] not in answer.text


async def test_the_secret_of_the_cluster(config, tokens):
    """Servers and workers that call each other may read and write, and nothing else may."""
    secret = "0123456789abcdef"
    known = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, cluster_token=secret))
    async with server(known) as (_, http):
        await send(http, "POST", J, EVENT, 201, headers=bearer(secret))
        await send(http, "GET", J, headers=bearer(secret))
        await send(http, "POST", "/projections/a/b/pause", status=403, headers=bearer(secret))
        await send(http, "GET", J, status=401, headers=bearer(secret[:-1]))
        await send(http, "GET", J, status=401)


async def test_a_revoked_token_ends_at_once_and_an_unreadable_file_lets_nobody_in(config, http, tokens):
    file = TokenFile(tokens_path(config))
    assert (await http.get("/journals", headers=bearer(tokens["read"]))).status_code == 200
    file.revoke("read")
    assert (await http.get("/journals", headers=bearer(tokens["read"]))).status_code == 401
    assert (await http.get("/journals", headers=bearer(tokens["admin"]))).status_code == 200
    file.path.write_text("{")
    assert (await http.get("/journals", headers=bearer(tokens["admin"]))).status_code == 401
    file.path.unlink()
    assert (await http.get("/journals")).status_code == 401, "a deleted file does not open the door"


async def test_the_first_token_closes_an_open_server(config, open_http):
    assert (await open_http.get("/journals")).status_code == 200
    token = new_token(config, "read")
    assert (await open_http.get("/journals")).status_code == 401
    assert (await open_http.get("/journals", headers=bearer(token))).status_code == 200


async def test_public_addresses_need_tokens(config, tmp_path):
    for host in ("0.0.0.0", "::"):
        async with connect(config) as log:
            with pytest.raises(InvalidConfig, match="everlog token new"):
                async with serving(log, host=host, port=0):
                    pass
    async with connect(config) as log:
        async with serving(log, host="0.0.0.0", port=0, anonymous=True):
            pass
        new_token(config, "read")
        async with serving(log, host="0.0.0.0", port=0):
            pass


# Browsers


async def log_in(http: httpx.AsyncClient, token: str) -> dict[str, Any]:
    answer = await http.post("/login", json={"token": token})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie
    assert token not in cookie
    found: dict[str, Any] = answer.json()
    return found


async def test_a_session(http, tokens):
    assert (await http.post("/login", json={"token": "evl_1_2"})).status_code == 401
    assert (await http.post("/login", json={"token": 1})).status_code == 400
    session = await log_in(http, tokens["admin"])
    assert (await http.get("/session")).json() == session
    assert (await http.get(J)).status_code == 404
    found = await frames(http, "/tags/eu", 1, headers={"Accept": "text/event-stream"})
    assert found[0]["event"] == "checkpoint", "EventSource cannot send a header: the cookie is enough to look"
    await send(http, "POST", J, EVENT, 403)
    await send(http, "POST", J, EVENT, 403, headers={"X-CSRF-Token": "wrong"})
    await send(http, "POST", J, EVENT, 201, headers={"X-CSRF-Token": session["csrf_token"]})
    origin = str(http.base_url).rstrip("/")
    headers = {"X-CSRF-Token": session["csrf_token"], "Origin": origin, "Sec-Fetch-Site": "same-origin"}
    await send(http, "POST", J, EVENT, 201, headers=headers)
    for bad in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        await send(http, "POST", J, EVENT, 403, headers={**headers, **bad})
    assert (await http.post("/logout", headers={"Origin": "https://evil.example"})).status_code == 403
    old = http.cookies["everlog_session"]
    assert (await http.post("/logout")).status_code == 303
    http.cookies.set("everlog_session", old)
    assert (await http.get("/session")).status_code == 401, "the cookie is worth nothing after the log-out"


async def test_the_log_in_page(http, tokens):
    answer = await http.get("/journals?limit=3", headers={"Accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/journals%3Flimit%3D3")
    page = await http.get("/login?next=/journals")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    wrong = await http.post("/login", data={"token": "<script>", "next": '"><script>alert(1)</script>'})
    assert (wrong.status_code, "<script>" in wrong.text) == (401, False)
    for given, place in (
        ("/tags?x=1", "/tags?x=1"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("", "/"),
    ):
        answer = await http.post("/login", data={"token": tokens["read"], "next": given})
        assert (answer.status_code, answer.headers["location"]) == (303, place)
    foreign = {"Origin": "https://evil.example"}
    assert (await http.post("/login", data={"token": tokens["read"]}, headers=foreign)).status_code == 403


async def test_the_session_of_a_revoked_token_ends(config, http, tokens):
    await log_in(http, tokens["read"])
    assert (await http.get("/journals")).status_code == 200
    TokenFile(tokens_path(config)).revoke("read")
    assert (await http.get("/journals")).status_code == 401


async def test_a_form_carries_its_token(http, tokens):
    """The guard reads the form, and so may the handler behind it: here one that wants JSON instead."""
    session = await log_in(http, tokens["admin"])
    for fields, status in (({"a": "b"}, 403), ({"csrf_token": "x"}, 403), ({"csrf_token": session["csrf_token"]}, 400)):
        answer = await http.post("/projections/a/b/skip", data=fields)
        assert (answer.status_code, answer.json()["code"]) == (status, {403: "forbidden", 400: "invalid-body"}[status])


async def test_what_a_session_changes_is_in_the_operations_log(http, tokens):
    session = await log_in(http, tokens["admin"])
    await send(http, "POST", J, EVENT, 201, headers={"X-CSRF-Token": session["csrf_token"]})
    await send(http, "POST", J, EVENT, 403)
    await send(http, "POST", J, EVENT, 201, headers=bearer(tokens["write"]))
    found = (await send(http, "GET", "/operations")).json()["events"][::-1]
    found = [one for one in found if one["payload"].get("outcome") != "refused"]
    assert [one["payload"].get("action", one["payload"].get("outcome")) for one in found] == ["append_events", "done"]
    said = found[0]["payload"]
    assert (said["by"], said["target"]["path"], said["target"]["from"]) == ("admin", J, "127.0.0.1")
    assert found[0]["tags"] == ["operation"]


async def test_a_local_server_without_tokens_is_not_for_other_pages(open_http):
    """DNS rebinding, and forms of pages elsewhere."""
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        answer = await open_http.get("/journals", headers={"Host": host})
        assert answer.status_code in (400, 403), host
    for host in ("localhost", "127.0.0.1:1", "[::1]:8080"):
        assert (await open_http.get("/journals", headers={"Host": host})).status_code == 200
    for bad in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        await send(open_http, "POST", J, EVENT, 403, headers=bad)
    await send(open_http, "POST", J, EVENT, 201)
    await send(open_http, "POST", "/projections/a/b/pause", status=403)  # not started with --writable


async def test_nothing_is_shared_with_other_origins(open_http):
    answer = await open_http.get("/journals", headers={"Origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    options = await open_http.options(
        J, headers={"Origin": "https://e.example", "Access-Control-Request-Method": "POST"}
    )
    assert not [name for name in options.headers if name.startswith("access-control")]


# Paths and headers


async def raw(http: httpx.AsyncClient, request: bytes) -> bytes:
    """Bytes as they are; what comes back until the connection ends."""
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    writer.write(request)
    await writer.drain()
    try:
        return await asyncio.wait_for(reader.read(-1), 60)
    finally:
        writer.close()


async def test_path_tricks(open_http):
    """A path is what was sent: nothing is decoded before it is routed, nothing climbs."""
    await send(open_http, "POST", "/journals/orders/a%2Fpointer", EVENT, 201)
    assert (await send(open_http, "GET", "/journals/orders/a%2Fpointer")).json()["id"] == "a/pointer"
    await send(open_http, "GET", "/journals/orders/a/pointer", status=404)
    for path, status in (
        (b"/%6aournals", 404),
        (b"/journals%2forders", 404),
        (b"/journals/orders/../../status", 404),
        (b"/journals/orders/%2e%2e", 404),
        (b"/journals/..%2f..%2fetc/passwd", 400),
        (b"/journals/orders/%", 400),
        (b"/journals/orders/%ff", 400),
        (b"/journals/orders/%00", 404),
        (b"//evil.example/journals", 404),
        (b"http://evil.example/journals", 404),
        (b"/login/../journals", 404),
        (b"/health/live/../../journals", 404),
        (b"/hyper-storage/content/../../journals", 400),
        (b"/hyper-storage/content/%2e%2e%2f%2e%2e%2fetc%2fpasswd", 400),
        (b"/hyper-storage/indexes/..%2f..%2fa~", 400),
        (b"/queues/..%2f..%2fetc", 400),
        (b"/queues/%00", 400),
        (b"/tags/..%2f..%2fstatus", 200),
        (b"/console/static/../pages.py", 404),
        (b"/console/static/..%2froutes.py", 404),
        (b"/console/static/%2e%2e/routes.py", 404),
        (b"*", 404),
    ):
        answer = await raw(open_http, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert int(answer.split(b" ", 2)[1]) == status, (path, answer[:300])


async def test_header_injection(open_http):
    """Nothing that a request says becomes a header of an answer on its own."""
    evil = "a%0d%0aSet-Cookie:%20x=1"
    for method, path in (
        ("POST", f"/journals/orders/{evil}"),
        ("GET", f"/tags/{evil}"),
        ("PUT", f"/hyper-storage/content/{evil}"),
        ("GET", f"/login?next=/{evil}"),
    ):
        answer = await open_http.request(method, path, json=EVENT)
        assert answer.status_code < 500
        assert "set-cookie" not in answer.headers
    for line in (
        b"X: a\rb",
        b"X: a\x00b",
        b"X : y",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Transfer-Encoding: x",
    ):
        answer = await raw(open_http, b"GET /journals HTTP/1.1\r\nHost: localhost\r\n" + line + b"\r\n\r\n")
        assert answer.split(b" ", 2)[1] in (b"400", b"501"), line


async def test_headers_that_come_back(open_http):
    """An id of the request's own comes back as it was sent, or is refused; it never breaks the answer."""
    for value in (b"\x80\xff", b"a\tb", "\u00fc".encode(), b"x" * 200):
        for method, path in (
            ("GET", "/hyper-storage/content/none"),
            ("PUT", "/hyper-storage/content/a"),
            ("GET", "/hyper-storage/indexes/a~"),
        ):
            sent = [(b"Hyperbus-Correlation-Id", value), (b"Hyperbus-Message-Id", value)]
            answer = await open_http.request(method, path, content=b"1", headers=sent)
            assert answer.status_code in (200, 201, 400, 404), (value, answer.text)
            got = {name.lower(): one for name, one in answer.headers.raw}
            for name, one in sent:
                assert got.get(name.lower(), one) == one


async def test_no_route_takes_a_body_without_end(http, tokens):
    """Of every route that takes a body: it says no to a hundred megabytes before it has read them."""
    found = (await send(http, "GET", "/openapi/openapi.json", headers=bearer(tokens["admin"]))).json()["paths"]
    taking = [(method, path) for path, item in found.items() for method in item if "requestBody" in item[method]]
    assert len(taking) > 20
    taking.remove(("post", "/hyper-storage/_bulk"))  # read line by line, each with its bound: see test_bulk.py
    for method, path in taking:
        where = re.sub(r"\{[^}]*\}", "1", path)
        head = f"{method.upper()} {where} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {tokens['admin']}\r\n"
        head += "Content-Type: application/json\r\nConnection: close\r\nContent-Length: 100000000\r\n\r\n{"
        answer = await raw(http, head.encode())
        assert answer.split(b" ", 2)[1] == b"413", (method, path, answer[:300])


async def test_limits(open_http):
    await send(open_http, "POST", J, {"events": [{"payload": "x" * 200_000}]}, 413)
    await send(open_http, "POST", J, {"events": [{"payload": "x" * 20_000}]}, 413)
    answer = await raw(open_http, b"GET /journals HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")
    try:
        answer = await raw(open_http, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000)
        assert answer.startswith(b"HTTP/1.1 400")
    except ConnectionError:
        pass  # closed while we were still sending, which is as good
    await send(open_http, "POST", "/login", content=b"x" * 100_000, status=413)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 10_000

    try:
        async with httpx.AsyncClient(base_url=open_http.base_url, timeout=60) as other:
            assert (await other.post(J, content=endless())).status_code == 413
    except httpx.TransportError:
        pass  # the connection was closed under it, which is as good
    await send(open_http, "POST", J, EVENT, 201)


async def test_slow_loris(config):
    """No head, half a head, a head byte by byte, half a body: all end soon, and others are served meanwhile."""
    async with server(hasty(config, 1.5)) as (_, http):
        host, port = http.base_url.host, http.base_url.port

        async def trickle() -> None:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /journals HTTP/1.1\r\n")
            try:
                while not reader.at_eof():
                    writer.write(b"X")
                    await writer.drain()
                    await asyncio.sleep(0.05)
            except ConnectionError:
                pass  # cut, as it must be
            finally:
                writer.close()

        async def silent(first: bytes) -> bytes:
            return await raw(http, first)

        body = b"POST /journals/t/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        again = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /journals HTTP/1.1\r\n"
        attackers = [
            asyncio.create_task(one) for one in (trickle(), silent(b""), silent(b"GET"), silent(body), silent(again))
        ]
        for _ in range(5):
            await send(http, "GET", "/health/live")
            await asyncio.sleep(0.05)
        trickled, nothing, half, slow_body, kept = await asyncio.wait_for(
            asyncio.gather(*attackers, return_exceptions=True), 60
        )
        assert trickled is None
        assert isinstance(nothing, ConnectionError) or nothing == b""
        assert isinstance(half, ConnectionError) or half == b""
        assert isinstance(slow_body, bytes)
        assert slow_body.startswith(b"HTTP/1.1 408")
        assert isinstance(kept, ConnectionError) or kept.startswith(b"HTTP/1.1 200")


async def test_a_route_that_lets_the_framework_read_its_body(config):
    """It says nothing about time, and is protected all the same."""

    @post("/echo", opt={"scope": "public"})
    async def echo(request: AnyRequest) -> Any:
        return await request.json()

    async def ask(*bodies: bytes, whole: bool) -> int:
        """One request, its body in pieces; the last piece comes, or never."""
        left, statuses = list(bodies), list[int]()

        async def receive() -> Any:
            if not left:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or not whole}

        async def remember(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/echo", "raw_path": b"/echo", "query_string": b""}
        scope |= {"headers": headers, "client": None, "server": ("localhost", 80), "scheme": "http", "root_path": ""}
        await asyncio.wait_for(app({**scope, "http_version": "1.1"}, receive, remember), 60)
        return statuses[0]

    slow = msgspec.structs.replace(hasty(config, 0.5), documents=DocumentsConfig(request_timeout_s=0.5))
    async with connect(config) as patient, connect(slow) as log:
        app = make_app(patient, routes=[echo])
        assert await ask(b'{"a":', b"1}", whole=True) == 201
        app = make_app(log, routes=[echo])
        assert await ask(b'{"a":', whole=False) == 408


async def test_a_reader_that_reads_nothing_is_cut(config):
    """Its stream can be resumed; the server does not keep what it does not take."""
    async with server(hasty(config, 1.5)) as (_, http):
        for _ in range(30):
            body = {"events": [{"payload": "x" * 9000, "tags": ["eu"]}]}
            await send(http, "POST", J, body, 201)
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, (http.base_url.host, http.base_url.port))
        request = b"GET /journals/orders/o-1 HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
        await loop.sock_sendall(made, request * 40)  # far more answers than the buffers of two sockets hold

        async def cut() -> bool:
            return "everlog_http_connections_cut_total 0" not in (await http.get("/metrics")).text

        async with asyncio.timeout(60):
            while not await cut():  # noqa: ASYNC110  # it is the server that knows
                await asyncio.sleep(0.05)
        made.close()


async def certificate(folder: Path) -> tuple[Path, Path]:
    """One that only itself vouches for, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    return cert, key


async def test_servers_know_each_other(config, tmp_path):
    """By their secret and their certificate: a write is passed on to the server that its document belongs to."""
    cert, key = await certificate(tmp_path)
    both = msgspec.structs.replace(
        config,
        server=ServerConfig(cert_file=str(cert), key_file=str(key), cluster_token="0123456789abcdef"),
        documents=DocumentsConfig(node_sync_interval_s=0.2, node_lease_s=5.0),
    )
    token = new_token(both, "write")
    async with AsyncExitStack() as stack:
        addresses: list[str] = []
        for _ in range(2):
            log = await stack.enter_async_context(connect(both))
            addresses.append(await stack.enter_async_context(serving(log, host="127.0.0.1", port=0)))
        trusted = ssl.create_default_context(cafile=str(cert))
        http = await stack.enter_async_context(httpx.AsyncClient(verify=trusted, headers=bearer(token), timeout=60))
        routes = [f"{address}/hyper-storage/nodes" for address in addresses]
        known, unknown = bearer("0123456789abcdef"), bearer("0123456789abcdeg")
        assert (await http.get(routes[0], headers=unknown)).status_code == 401

        async def sharing() -> list[str] | None:
            nodes = [(await http.get(route, headers=known)).json() for route in routes]
            agreed = {(node["state"], node["view"]) for node in nodes} == {("active", nodes[0]["view"])}
            return [node["id"] for node in nodes] if agreed else None

        owners = await until(sharing)
        ring = HashRing(owners)
        for owner in owners:
            name = next(name for name in map(str, itertools.count()) if ring.owner(name) == owner)
            wait = {"Hyper-Storage-Wait": "full"}
            urls = [f"{one}/hyper-storage/content/{name}" for one in addresses]
            answers = [await http.put(url, json={"by": url}, headers=wait) for url in urls]
            assert [answer.status_code for answer in answers] == [201, 200]
            assert {answer.headers["everlog-node"] for answer in answers} == {owner}
            first, second = [Position.parse(answer.headers["journal-position"]) for answer in answers]
            assert first[:2] == second[:2]
            assert first.offset < second.offset
            # Which of the two took it makes no difference to who wrote it.
            assert [event.by async for event in log.documents.history(name)] == ["write", "write"]


async def test_tls(config, tmp_path):
    """Encrypted, and with a cookie that only travels so."""
    cert, key = await certificate(tmp_path)
    settings = ServerConfig(cert_file=str(cert), key_file=str(key))
    secure = msgspec.structs.replace(config, server=settings)
    token = new_token(secure, "read")
    async with connect(secure) as log, serving(log, host="127.0.0.1", port=0) as address:
        assert address.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(cert))
        async with httpx.AsyncClient(base_url=address, verify=trusted, timeout=60) as client:
            answer = await client.post("/login", json={"token": token})
            assert answer.headers["set-cookie"].startswith("__Host-everlog_session=")
            assert "Secure" in answer.headers["set-cookie"]
            assert (await client.get("/journals")).status_code == 200
    broken = msgspec.structs.replace(config, server=msgspec.structs.replace(settings, key_file=str(cert)))
    async with connect(broken) as log:
        with pytest.raises(InvalidConfig, match="cert_file"):
            async with serving(log, host="127.0.0.1", port=0):
                pass
    with pytest.raises(msgspec.ValidationError, match="go together"):
        msgspec.json.decode(json.dumps({"cert_file": "x"}), type=ServerConfig)
