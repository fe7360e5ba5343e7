"""What an application answers, as it is sent; and no route is open because it was declared in another way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from litestar import get

from everlog.client import connect
from everlog.server.app import make_app
from tests.server.test_raw_requests import connection
from tests.support import small_config

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Headers = list[tuple[bytes, bytes]]


def answering(headers: Headers, *pieces: bytes, status: int = 200) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for piece in pieces[:-1]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": pieces[-1]})

    return app


async def answer_of(app: Any, sent: bytes = GET) -> bytes:
    """All of it, up to the end of the connection."""
    async with connection(app) as (protocol, reader), asyncio.timeout(30):
        protocol.data_received(sent.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        return await reader.read()


async def test_lengths_and_chunks():
    head = b"HTTP/1.1 200 OK\r\n"
    end = b"connection: close\r\n\r\n"
    sized = [(b"Content-Length", b"4")]
    assert await answer_of(answering(sized, b"abcd")) == head + b"content-length: 4\r\n" + end + b"abcd"
    assert await answer_of(answering(sized, b"ab", b"", b"cd")) == head + b"content-length: 4\r\n" + end + b"abcd"
    chunked = head + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert await answer_of(answering([], b"ab", b"", b"c")) == chunked + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    assert await answer_of(answering([], b"")) == chunked + b"0\r\n\r\n"
    assert await answer_of(answering([], b"", status=204)) == b"HTTP/1.1 204 No Content\r\n" + end
    of_head = GET.replace(b"GET", b"HEAD")
    assert await answer_of(answering(sized, b""), of_head) == head + b"content-length: 4\r\n" + end


@pytest.mark.parametrize("control", [b"\r\nX: y", b"\n", b"\r", b"\x00", b"\x7f"])
async def test_no_header_begins_another_one(control):
    """Nor does a part of such an answer get out."""
    answer = await answer_of(answering([(b"etag", b"a" + control), (b"content-length", b"1")], b"1"))
    assert b"etag" not in answer
    assert b"X: y" not in answer
    assert b" 200 " not in answer


@pytest.mark.parametrize("name", [b"a b", b"a:", b"a\r\n", b"a\x00"])
async def test_no_name_of_a_header_ends_it(name):
    assert name not in await answer_of(answering([(name, b"1"), (b"content-length", b"1")], b"1"))


async def test_a_body_has_the_length_that_was_said():
    """A client must not take a part of the next answer for this one's, nor the other way round."""
    four = [(b"content-length", b"4")]
    assert not (await answer_of(answering(four, b"abcde"))).endswith(b"e")
    assert b"abc" not in await answer_of(answering(four, b"abc"))
    assert not (await answer_of(answering(four, b"ab", b"cde"))).endswith(b"e")


async def test_the_head_of_a_stream_does_not_wait_for_its_first_piece():
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await go.wait()
        await send({"type": "http.response.body", "body": b"late"})

    async with connection(app) as (protocol, reader), asyncio.timeout(30):
        protocol.data_received(GET)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        go.set()
        assert b"late" in await reader.readuntil(b"0\r\n\r\n")


async def test_a_route_that_would_not_be_guarded_is_refused(tmp_path):
    """The framework calls one function before a handler, the closest one: another one there would replace ours."""

    async def other(_: Any) -> None: ...

    @get("/open", before_request=other)
    async def bypassing() -> None: ...

    @get("/cached", cache=True)
    async def cached() -> None: ...

    @get("/sound")
    async def sound() -> None: ...

    async with connect(small_config(tmp_path / "data")) as log:
        make_app(log, routes=[sound])
        for route in (bypassing, cached):
            with pytest.raises(RuntimeError, match="open to all"):
                make_app(log, routes=[route])
